package record

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
)

// job is at its first plan: a step of the conductor's, three of the agent's, of which the second asked for another, and
// one behind them.
func job() *node.Job {
	in := func(name string) node.JobStep { return node.JobStep{Interface: "deploy", Name: name, InBand: true} }
	j := &node.Job{Phase: node.PhaseDeploy, PlanID: "p", PlanFirst: 1, Index: 1, Steps: []node.JobStep{
		{Interface: "deploy", Name: "boot", Status: node.StepDone}, in("a"), in("b"), in("asked"), in("c"),
		{Interface: "deploy", Name: "off"}}}
	for i := 1; i < len(j.Steps); i++ {
		j.Steps[i].Status = node.StepPending
	}
	j.Steps[3].Under = true
	return j
}

func list(j *node.Job) string {
	var out []string
	for _, s := range j.Steps {
		out = append(out, s.Name+":"+string(s.Status))
	}
	return strings.Join(out, " ")
}

// TestPlanStep: results are counted by the plan's own steps, and those that a step asked for are found behind it by
// name.
func TestPlanStep(t *testing.T) {
	j := job()
	j.Steps[2].Status = node.StepDone
	for _, c := range []struct {
		index int
		name  string
		want  int // 0: none
	}{{0, "a", 1}, {0, "", 1}, {1, "b", 2}, {1, "asked", 3}, {2, "c", 4}, {2, "asked", 0}, {3, "off", 0},
		{-1, "a", 0}} {
		s, at := PlanStep(j, node.StepRef{PlanID: "p", Index: c.index, Name: c.name})
		if at != c.want || (s == nil) != (c.want == 0) || s != nil && s != &j.Steps[at] {
			t.Errorf("PlanStep(%d, %s) = %v, %d, want %d", c.index, c.name, s, at, c.want)
		}
	}
}

// TestPlanAnew: what is done stays done, unless the image is among it, which is only complete with all that follows;
// then what came before it runs again, too, but for what takes hours.
func TestPlanAnew(t *testing.T) {
	table := catalog.BuiltinSteps()
	j := job()
	j.Steps[1].Status, j.Steps[2].Status = node.StepDone, node.StepRunning
	if !Touched(j) {
		t.Error("a plan of which a step is done counts as not begun")
	}
	PlanAnew(j, table, "why")
	if got, want := list(j), "boot:done a:done b: asked: c: off:"; got != want || j.Index != 2 || j.PlanID != "" ||
		j.Detail != "why" {
		t.Errorf("%s at %d, plan %q, detail %q; want %s at 2", got, j.Index, j.PlanID, j.Detail, want)
	}
	j = job()
	j.Steps[1].Name = "write_image"
	j.Steps[1].Status, j.Steps[2].Status = node.StepDone, node.StepRunning
	PlanAnew(j, table, "why")
	if got, want := list(j), "boot:done write_image: b: c: off:"; got != want || j.Index != 1 {
		t.Errorf("with an image: %s at %d, want %s at 1", got, j.Index, want)
	}
	for name, want := range map[string]string{"erase_devices_metadata": "", "erase_devices": "done"} {
		j = job()
		j.Steps[1].Name, j.Steps[2].Name, j.Steps[3].Under = name, "write_image", false
		j.Steps[1].Status, j.Steps[2].Status = node.StepDone, node.StepDone
		PlanAnew(j, table, "why")
		if got, want := list(j), "boot:done "+name+":"+want+" write_image: asked: c: off:"; got != want {
			t.Errorf("before an image: %s, want %s", got, want)
		}
	}
}

// TestInsert: what a step asked for runs behind it, within its priority, and goes with it.
func TestInsert(t *testing.T) {
	j := job()
	j.Steps[1].Priority = 70
	if err := Insert(j, nil, 2, []node.PlanStep{{Interface: "deploy", Name: "x", Stall: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	if s := j.Steps[2]; s.Name != "x" || !s.Under || !s.InBand || s.Priority != 70 || s.Stall != time.Minute ||
		len(j.Steps) != 7 {
		t.Errorf("inserted %+v in %s", s, list(j))
	}
	j.Steps[1].Status = node.StepDone
	if ToNext(j); j.Index != 2 || j.PlanID != "" {
		t.Errorf("the next step is %d of %s, plan %q", j.Index, list(j), j.PlanID)
	}
}

// TestHowFar: the last stage of this boot counts, and nothing of the boot before it.
func TestHowFar(t *testing.T) {
	opened := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	mark := func(name string, after time.Duration) node.Mark { return node.Mark{Name: name, At: opened.Add(after)} }
	b := &node.Boot{OpenedAt: opened}
	before := []node.Mark{mark(node.MarkKernel, -time.Minute)}
	for _, c := range []struct {
		marks []node.Mark
		want  string
		last  time.Duration
	}{
		{nil, "no DHCP request", 0},
		{[]node.Mark{mark(node.MarkDHCP, 1)}, "DHCP request answered", 1},
		{[]node.Mark{mark(node.MarkDHCP, 1), mark(node.MarkBootProgram, 2)}, "boot program fetched", 2},
		{[]node.Mark{mark(node.MarkBootProgram, 2), mark(node.MarkBootScript, 3)}, "no kernel", 3},
		{[]node.Mark{mark(node.MarkBootScript, 3), mark(node.MarkKernel, 4)}, "kernel", 4},
		{[]node.Mark{mark(node.MarkKernel, 4), mark(node.MarkEnrolRefused, 5)}, "enrolment was refused", 4},
		{[]node.Mark{mark(node.MarkDHCP, 1), mark(node.MarkDHCP, 9)}, "DHCP request answered", 1}, // in circles
	} {
		marks := append(before[:1:1], c.marks...)
		far, heard := HowFar(b, marks, "server")
		if !strings.Contains(far, c.want) || heard != (c.marks != nil) {
			t.Errorf("HowFar(%v) = %q, %v, want something of %q", c.marks, far, heard, c.want)
		}
		for _, dhcp := range []string{"off", ""} { // no DHCP request is seen there
			if far, heard := HowFar(b, marks, dhcp); len(c.marks) == 0 &&
				(heard || strings.Contains(far, "no DHCP request")) {
				t.Errorf("HowFar(%v) with DHCP %q = %q, %v, which can't be known", c.marks, dhcp, far, heard)
			}
		}
		if got := Progress(b, marks); !got.Equal(opened.Add(c.last)) {
			t.Errorf("Progress(%v) = %s, want %s", c.marks, got, opened.Add(c.last))
		}
	}
	media := &node.Boot{OpenedAt: opened, Media: true}
	for _, c := range []struct {
		marks []node.Mark
		want  string
	}{
		{nil, "has read nothing of the boot image"},
		{[]node.Mark{mark(node.MarkDHCP, 1)}, "has read nothing of the boot image"},
		{[]node.Mark{mark(node.MarkMediaRead, 1)}, "boots from the virtual drive"},
		{[]node.Mark{mark(node.MarkMediaRead, 1), mark(node.MarkRamdisk, 2)}, "last seen: ramdisk fetched"},
	} {
		if far, _ := HowFar(media, c.marks, "server"); !strings.Contains(far, c.want) {
			t.Errorf("virtual media: HowFar(%v) = %q, want something of %q", c.marks, far, c.want)
		}
	}
}

// TestRemember: a job that is over is kept without arguments, which may hold secrets.
func TestRemember(t *testing.T) {
	n := &node.Node{Job: job()}
	n.Job.Steps[1].Args, n.Job.Steps[1].Result = json.RawMessage(`{"secret":1}`), json.RawMessage(`{"a":1}`)
	Remember(n)
	past := n.Past[node.PhaseDeploy]
	if past == nil || past.Steps[1].Args != nil || string(past.Steps[1].Result) != `{"a":1}` {
		t.Fatalf("remembered %+v", past)
	}
	if n.Job.Steps[1].Args == nil {
		t.Error("the job itself was changed")
	}
}

// TestLongResultsAreStoredApart: a result that is too long for the node, or too long beside those of other steps, is
// stored apart, whole.
func TestLongResultsAreStoredApart(t *testing.T) {
	for _, tt := range []struct {
		size, others int
		apart        bool
	}{
		{limit.KeptResult, 0, false}, {limit.KeptResult + 1, 0, true},
		{limit.KeptResult, limit.KeptResults - limit.KeptResult, false},
		{limit.KeptResult, limit.KeptResults - limit.KeptResult + 1, true}, {10, limit.KeptResults, false},
	} {
		doc := strings.Repeat(" ", tt.size)
		j := &node.Job{Steps: []node.JobStep{{Result: []byte(strings.Repeat(" ", tt.others))}, {Result: []byte(doc)}}}
		var effects node.SideEffects
		Shorten(j, 1, &effects)
		s := j.Steps[1]
		switch {
		case !tt.apart && (string(s.Result) != doc || s.ResultRef != "" || effects.Results != nil):
			t.Errorf("%d beside %d bytes: %d are kept, %d apart", tt.size, tt.others, len(s.Result),
				len(effects.Results))
		case tt.apart && (string(s.Result) != fmt.Sprintf(`{"omitted_bytes":%d}`, tt.size) ||
			len(effects.Results) != 1 ||
			effects.Results[0].Ref != s.ResultRef ||
			s.ResultRef == "" || string(effects.Results[0].Doc) != doc):
			t.Errorf("%d beside %d bytes: kept %.40s, ref %q, %d apart", tt.size, tt.others, s.Result, s.ResultRef,
				len(effects.Results))
		}
	}
}

// TestJobsAreBounded: steps can't ask for other steps without end.
func TestJobsAreBounded(t *testing.T) {
	j := job()
	var err error
	for i := 0; err == nil && i < limit.JobSteps; i++ {
		err = Insert(j, nil, 1, []node.PlanStep{{Interface: "deploy", Name: "x"}})
	}
	if err == nil || len(j.Steps) != limit.JobSteps {
		t.Errorf("%d steps, %v", len(j.Steps), err)
	}
	j = job()
	if err := Insert(j, nil, 1, []node.PlanStep{{Args: make([]byte, limit.JobArgs+1)}}); err == nil ||
		len(j.Steps) != len(job().Steps) {
		t.Errorf("large arguments = %v, %d steps", err, len(j.Steps))
	}
}
