package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// outcomeSteps are steps a to e, for every phase that takes lists.
func outcomeSteps() catalog.Table {
	steps := catalog.BuiltinSteps()
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		s := steparg.Row{Interface: "deploy", Name: name,
			Args: []steparg.Arg{{Name: "n", Type: "integer", Min: steparg.Limit(1), Max: steparg.Limit(9)}}}
		s.Priority = steparg.Priorities{steparg.Service: steparg.OnRequest}
		steps = append(steps, s)
	}
	return steps
}

// script has the steps of one machine end as asked, one outcome after the other, then well. It counts their runs, and
// what runs after something has to have run before it.
func script(m *machine, outcomes map[string][]node.StepResult) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runs = nil
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		left := slices.Clone(outcomes[name])
		m.behave[name] = func(a *agent, s node.PlanStep) (node.StepResult, bool) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.runs = append(m.runs, name)
			if len(left) == 0 {
				return node.StepResult{Outcome: node.OutcomeDone, Result: json.RawMessage(`{"ran":"` + name + `"}`)},
					true
			}
			r := left[0]
			left = left[1:]
			return r, true
		}
	}
}

func listed(names ...string) []node.JobStep {
	var out []node.JobStep
	for _, n := range names {
		out = append(out, node.JobStep{Interface: "deploy", Name: n})
	}
	return out
}

func outcomeWorld(t *testing.T) (*world, *machine) {
	w := newWorld(t)
	w.cfg.AgentSteps = outcomeSteps()
	w.start(nil)
	m := w.add("n1")
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	return w, m
}

func (w *world) clean(m *machine, names ...string) error {
	return w.current().eng.Provision(w.t.Context(), m.id,
		Request{Verb: node.Clean, CleanSteps: listed(names...), User: "tester"})
}

func next(names ...string) []node.PlanStep {
	var out []node.PlanStep
	for _, n := range names {
		out = append(out, node.PlanStep{Interface: "deploy", Name: n})
	}
	return out
}

// ran gives the steps that a machine ran, and those that its last job recorded as done, in order.
func ran(m *machine, n *node.Node, phase node.Phase) (runs, done string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for _, s := range n.Past[phase].Steps {
		if s.InBand && s.Status == node.StepDone {
			names = append(names, s.Name)
		}
	}
	return strings.Join(m.runs, " "), strings.Join(names, " ")
}

// TestRunNextGoesOn: what a step asks for may itself ask for a restart or to hold; what comes behind it still runs,
// once.
func TestRunNextGoesOn(t *testing.T) {
	for _, c := range []struct {
		name     string
		outcomes map[string][]node.StepResult
		runs     string
		held     bool
	}{
		{"plainly", map[string][]node.StepResult{"a": {{Outcome: node.OutcomeRunNext, Next: next("c", "d")}}},
			"a c d b", false},
		{"restart in it", map[string][]node.StepResult{"a": {{Outcome: node.OutcomeRunNext, Next: next("c", "d")}},
			"c": {{Outcome: node.OutcomeReboot}}}, "a c d b", false},
		{"hold in it", map[string][]node.StepResult{"a": {{Outcome: node.OutcomeRunNext, Next: next("c", "d")}},
			"d": {{Outcome: node.OutcomeHold}}}, "a c d b", true},
		{"deep", map[string][]node.StepResult{"a": {{Outcome: node.OutcomeRunNext, Next: next("c", "e")}},
			"c": {{Outcome: node.OutcomeRunNext, Next: next("d")}}, "d": {{Outcome: node.OutcomeReboot}}}, "a c d e b",
			false},
		{"the same again", map[string][]node.StepResult{"a": {{Outcome: node.OutcomeRunNext, Next: next("a", "a")}}},
			"a a a b", false},
		{"by the last", map[string][]node.StepResult{"b": {{Outcome: node.OutcomeRunNext, Next: next("c")}},
			"c": {{Outcome: node.OutcomeReboot}}}, "a b c", false},
		{"again", map[string][]node.StepResult{
			"a": {{Outcome: node.OutcomeRerun, After: time.Millisecond}, {Outcome: node.OutcomeRerun}}}, "a a a b",
			false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, m := outcomeWorld(t)
			script(m, c.outcomes)
			if err := w.clean(m, "a", "b"); err != nil {
				t.Fatal(err)
			}
			if c.held {
				w.until(m, "clean hold", func(n *node.Node) bool { return n.Provision == node.CleanHold })
				w.kill()
				w.start(nil)
				w.must(m, node.Unhold)
			}
			n := w.untilState(m, node.Manageable, node.CleanFailed)
			runs, done := ran(m, n, node.PhaseClean)
			want := c.runs
			if c.name == "again" {
				want = "a b" // one step, however often it ran
			}
			if n.Provision != node.Manageable || runs != c.runs || done != want {
				t.Errorf("%s (%s): ran %s, recorded %s; want %s", n.Provision, n.LastError, runs, done, c.runs)
			}
			last := n.Past[node.PhaseClean].Steps
			if s := last[len(last)-2]; string(s.Result) != `{"ran":"`+s.Name+`"}` && c.name != "by the last" {
				t.Errorf("result of %s kept as %s", s.Name, s.Result)
			}
		})
	}
}

// TestRerunIsNoSilence: a step that wants to be left alone for longer than an agent may be silent is left alone, by the
// next conductor, too.
func TestRerunIsNoSilence(t *testing.T) {
	w := newWorld(t)
	w.cfg.AgentSteps = outcomeSteps()
	w.cfg.Silence = 20 * time.Second
	w.start(nil)
	m := w.add("n1")
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	script(m, map[string][]node.StepResult{"a": {{Outcome: node.OutcomeRerun, After: time.Second}}})
	if err := w.clean(m, "a"); err != nil {
		t.Fatal(err)
	}
	n := w.until(m, "the wait", func(n *node.Node) bool {
		return n.Job != nil && n.Job.Current() != nil && !n.Job.Current().RunsAgain.IsZero()
	})
	if !strings.Contains(n.Job.Detail, "runs again after 1s") {
		t.Errorf("detail %q", n.Job.Detail)
	}
	w.silent(m)
	time.Sleep(100 * time.Millisecond) // in which it is looked at
	w.kill()
	w.start(nil)
	w.silent(m)
	n = w.untilState(m, node.Manageable, node.CleanFailed)
	if runs, _ := ran(m, n, node.PhaseClean); runs != "a a" || m.pxeBoots != 1 {
		t.Errorf("%s (%s): ran %q in %d boots", n.Provision, n.LastError, runs, m.pxeBoots)
	}
}

// TestNoHoldInInspection: a phase that can't be held fails, and says why.
func TestNoHoldInInspection(t *testing.T) {
	w, m := outcomeWorld(t)
	m.behave["inspect"] = func(*agent, node.PlanStep) (node.StepResult, bool) {
		return node.StepResult{Outcome: node.OutcomeHold}, true
	}
	w.must(m, node.Inspect)
	wantError(t, w.untilState(m, node.InspectFailed), "asks to hold the node, which is not possible in phase inspect")
}

// TestDoneStaysDone: hours of work are not done again because something behind them failed in a way that may pass.
func TestDoneStaysDone(t *testing.T) {
	w, m := outcomeWorld(t)
	script(m, map[string][]node.StepResult{
		"b": {{Outcome: node.OutcomeFailed, Error: "the switch is away", Retryable: true}}})
	if err := w.clean(m, "a", "b", "c"); err != nil {
		t.Fatal(err)
	}
	n := w.untilState(m, node.Manageable, node.CleanFailed)
	if runs, done := ran(m, n, node.PhaseClean); runs != "a b b c" || done != "a b c" {
		t.Errorf("%s (%s): ran %s, recorded %s", n.Provision, n.LastError, runs, done)
	}
}

// TestFailureKeepsResults: what a failed step, and those before it, found out is kept with the job.
func TestFailureKeepsResults(t *testing.T) {
	w, m := outcomeWorld(t)
	script(m, map[string][]node.StepResult{
		"b": {{Outcome: node.OutcomeFailed, Error: "sdb lies", Result: json.RawMessage(`{"lies":["sdb"]}`)}}})
	if err := w.clean(m, "a", "b", "c"); err != nil {
		t.Fatal(err)
	}
	n := w.untilState(m, node.CleanFailed)
	j := n.Past[node.PhaseClean]
	var got []string
	for _, s := range j.Steps {
		if s.InBand {
			got = append(got, fmt.Sprintf("%s %s %s", s.Name, s.Status, s.Result))
		}
	}
	if want := []string{`a done {"ran":"a"}`, `b failed {"lies":["sdb"]}`, "c  "}; !slices.Equal(got, want) ||
		!strings.Contains(j.Failure, "sdb lies") || j.EndedAt.IsZero() {
		t.Errorf("kept %q, failure %q", got, j.Failure)
	}
}

// TestAgentBreaksDownInWhatWasAskedFor: the worker dies in a step that another asked for; what was done before it stays
// done.
func TestAgentBreaksDownInWhatWasAskedFor(t *testing.T) {
	w, m := outcomeWorld(t)
	script(m, map[string][]node.StepResult{"a": {{Outcome: node.OutcomeRunNext, Next: next("c", "d")}}})
	well, broke := m.behave["d"], false
	m.behave["d"] = func(a *agent, s node.PlanStep) (node.StepResult, bool) {
		if broke {
			return well(a, s)
		}
		broke = true
		a.breakDown(false)
		<-a.ctx.Done() // what is left of the old worker does nothing
		return node.StepResult{}, true
	}
	if err := w.clean(m, "a", "b"); err != nil {
		t.Fatal(err)
	}
	n := w.untilState(m, node.Manageable, node.CleanFailed)
	if runs, done := ran(m, n, node.PhaseClean); runs != "a c d b" || done != "a c d b" {
		t.Errorf("%s (%s): ran %s, recorded %s", n.Provision, n.LastError, runs, done)
	}
}

// TestDieWithOutcomes kills the conductor at each write of a cleaning whose steps run again, ask for others, restart
// and hold the node.
func TestDieWithOutcomes(t *testing.T) {
	t.Parallel()
	w, m := outcomeWorld(t)
	co := w.current()
	step := 1
	if raceOn && os.Getenv("INGOT_FULL") == "" {
		step = 5
	}
	for k := 1; ; k += step {
		script(m, map[string][]node.StepResult{
			"a": {{Outcome: node.OutcomeRerun, After: time.Millisecond},
				{Outcome: node.OutcomeRunNext, Next: next("c", "d")}},
			"c": {{Outcome: node.OutcomeReboot}}, "b": {{Outcome: node.OutcomeHold}},
		})
		co.crash.arm(k, k%2 == 0)
		asked := w.clean(m, "a", "b", "e")
		died := false
		for n := w.node(m); ; n = w.node(m) {
			if !died && co.crash.reached() {
				died = true
				<-co.ended
				co = w.start(nil)
				// it was lost: the client asks again
				if n = w.node(m); asked != nil && n.Job == nil && n.Provision == node.Manageable {
					if err := w.clean(m, "a", "b", "e"); err != nil {
						t.Fatal(err)
					}
				}
				continue
			}
			if n.Provision == node.CleanHold {
				_ = w.ask(m, node.Unhold) // asked until it is taken: the conductor may die of it
			} else if n.Job == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		n := w.untilState(m, node.Manageable, node.CleanFailed)
		runs, done := ran(m, n, node.PhaseClean)
		if n.Provision != node.Manageable || runs != "a a c d b e" || done != "a c d b e" {
			t.Fatalf("killed at write %d: %s (%s), ran %s, recorded %s", k, n.Provision, n.LastError, runs, done)
		}
		if !died {
			if k < 10 {
				t.Errorf("only %d writes: the count is wrong", k)
			}
			return
		}
	}
}

// TestPlanEndsLate has the end of a plan come when the conductor, to which the result of the plan's last step was
// enough, is in the middle of its own next step.
func TestPlanEndsLate(t *testing.T) {
	n := &node.Node{Provision: node.Deploying, TargetProvision: node.Active,
		Job: &node.Job{Phase: node.PhaseDeploy, PlanID: "p", Index: 1, Note: noteKexec, Steps: []node.JobStep{
			{Interface: "deploy", Name: "write_image", InBand: true, Status: node.StepDone},
			{Interface: "deploy", Name: catalog.StepTearDown, Status: node.StepRunning}}}}
	if err := (&Engine{}).planResult(n, &node.SideEffects{}, &node.PlanResult{PlanID: "p", Done: true}); err != nil {
		t.Fatal(err)
	}
	if n.Job.Note != noteKexec || n.Job.PlanID != "p" || n.Job.Index != 1 {
		t.Errorf("the job is at %q of step %d of plan %q, want where it was", n.Job.Note, n.Job.Index, n.Job.PlanID)
	}
}

// TestLargeResultStaysReadable: what a step found out that is too large for the node is stored apart, also that of a
// step that failed.
func TestLargeResultStaysReadable(t *testing.T) {
	large := json.RawMessage(`"` + strings.Repeat("x", 100<<10) + `"`)
	w, m := outcomeWorld(t)
	script(m, map[string][]node.StepResult{"a": {{Outcome: node.OutcomeDone, Result: large}},
		"b": {{Outcome: node.OutcomeFailed, Error: "broken", Result: large}}})
	if err := w.clean(m, "a", "b"); err != nil {
		t.Fatal(err)
	}
	n := w.untilState(m, node.Manageable, node.CleanFailed)
	apart, err := w.store.Results(t.Context(), m.id)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, s := range n.Past[node.PhaseClean].Steps {
		if s.ResultRef != "" && string(apart[s.ResultRef]) == string(large) && len(s.Result) < 100 {
			found++
		}
	}
	if found != 2 || n.Provision != node.CleanFailed {
		t.Errorf("%s: %d of 2 results can be read", n.Provision, found)
	}
}

// TestStepsWithoutEnd: a step that asks for steps that ask for steps fails the job when that is too large.
func TestStepsWithoutEnd(t *testing.T) {
	w, m := outcomeWorld(t)
	script(m, map[string][]node.StepResult{
		"a": {{Outcome: node.OutcomeRunNext, Next: next(slices.Repeat([]string{"b"}, 600)...)}}})
	if err := w.clean(m, "a"); err != nil {
		t.Fatal(err)
	}
	if n := w.untilState(m, node.Manageable, node.CleanFailed); n.Provision != node.CleanFailed ||
		!strings.Contains(n.LastError, "may have 512") {
		t.Errorf("%s: %s", n.Provision, n.LastError)
	}
}
