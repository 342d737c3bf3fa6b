package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/rest"
)

func TestPercentile(t *testing.T) {
	all := []float64{5, 1, 4, 2, 3}
	for p, want := range map[int]float64{0: 1, 50: 3, 99: 4, 100: 5} {
		if got := percentile(all, p); got != want {
			t.Errorf("percentile(%d) = %v, want %v", p, got, want)
		}
	}
	if got := percentile(nil, 50); got != 0 {
		t.Errorf("percentile of nothing = %v", got)
	}
}

// TestWhatWatchersMissed: events before the last watcher began do not count, of the others each that a watcher lacks
// does, and so does one that came after a later one or twice.
func TestWhatWatchersMissed(t *testing.T) {
	got := compare([]*watcher{
		{base: 2, ids: []int64{3, 4, 6, 7, 9}, delays: []float64{1}},
		{base: 4, ids: []int64{6, 7, 9}, delays: []float64{2, 3}},
		{base: 3, ids: []int64{4, 6, 9, 9}},
		{base: 4, ids: []int64{7, 6, 9}},
	})
	want := seen{events: 3, missed: 1, disorder: 2, delays: []float64{1, 2, 3}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(seen{})); d != "" {
		t.Error(d)
	}
	if got := compare([]*watcher{{}, {err: io.EOF}}); got.err == nil {
		t.Error("a watcher whose stream broke is not reported")
	}
}

// TestWhatIsSpent: a group counts by its members.
func TestWhatIsSpent(t *testing.T) {
	spans := []rest.Span{{Kind: "conductor", Seconds: 1}, {Kind: "agent", Seconds: 2},
		{Kind: "group", Seconds: 9, Spans: []rest.Span{{Kind: "conductor", Seconds: 4}, {Kind: "step", Seconds: 5}}}}
	if got := spent(spans, "conductor"); got != 5 {
		t.Errorf("%v s for the conductor, want 5", got)
	}
}

// TestGoals: each figure that is worse than promised misses a goal, and only that.
func TestGoals(t *testing.T) {
	good := func() *report {
		return &report{Rows: []row{{Nodes: 10_000, Engine: postgres, Conductors: 3, MemoryMiB: 1536, IdleCPU: 0.6,
			Back: 60, Taken: 3000, TakenOwners: 30, TakenSessions: 29, QueueP50: 3, QueueMax: 7, Watchers: 200}},
			Flat: []flat{{Nodes: 100, PerMinute: 1000}, {Nodes: 10_000, PerMinute: 800}}}
	}
	r := good()
	r.Goals = r.goals()
	if r.missed() != 0 {
		t.Errorf("goals that are just met are missed: %+v", r.Goals)
	}
	var out bytes.Buffer
	r.print(&out)
	if strings.Contains(out.String(), "MISSED") || strings.Count(out.String(), " met\n") != len(r.Goals) {
		t.Errorf("the report says %s", &out)
	}
	for name, worse := range map[string]func(*report){
		"memory":   func(r *report) { r.Rows[0].MemoryMiB = 1537 },
		"cores":    func(r *report) { r.Rows[0].IdleCPU = 0.61 },
		"back":     func(r *report) { r.Rows[0].Back = 61 },
		"refused":  func(r *report) { r.Rows[0].Refused = 1 },
		"owners":   func(r *report) { r.Rows[0].TakenOwners = 31 },
		"agents":   func(r *report) { r.Rows[0].TakenSessions = 31 },
		"queue":    func(r *report) { r.Rows[0].QueueMax = 7.1 },
		"overlaps": func(r *report) { r.Rows[0].Overlaps = 1 },
		"failed":   func(r *report) { r.Rows[0].Failed = 1 },
		"missed":   func(r *report) { r.Rows[0].Missed = 1 },
		"disorder": func(r *report) { r.Rows[0].Disorder = 1 },
		"flat":     func(r *report) { r.Flat[1].PerMinute = 799 },
	} {
		r := good()
		worse(r)
		if r.Goals = r.goals(); r.missed() != 1 {
			t.Errorf("%s: %d goals are missed, want 1", name, r.missed())
		}
		out.Reset()
		if r.print(&out); strings.Count(out.String(), "MISSED") != 1 {
			t.Errorf("%s: the report says %s", name, &out)
		}
	}
	r = good()
	r.Rows[0].Nodes, r.Rows[0].MemoryMiB = 1000, 2000
	if r.Goals = r.goals(); r.missed() != 0 {
		t.Error("the memory of 10,000 agents is promised for fewer, whose base counts more")
	}
}

// TestTable: each row of Markdown has as many cells as its head.
func TestTable(t *testing.T) {
	r := &report{Rows: []row{{Nodes: 7, Engine: postgres, Conductors: 3,
		Each: []usage{{"c1", 40, 0.1}, {"postgres", 60, 0.2}}}}, Flat: []flat{{Nodes: 100, PerMinute: 5}}}
	cells := 0
	for line := range strings.Lines(r.table()) {
		n := strings.Count(line, "|")
		if n > 0 && cells > 0 && n != cells {
			t.Errorf("%d cells, want %d: %s", n, cells, line)
		}
		cells = n
	}
	for _, want := range []string{"| 7 | 3 | postgres |", "c1 40, 0.100; postgres 60, 0.200"} {
		if !strings.Contains(r.table(), want) {
			t.Errorf("no %q in %s", want, r.table())
		}
	}
}

// TestThisProcess: memory and processor time of a process can be read.
func TestThisProcess(t *testing.T) {
	mem, err := memory(os.Getpid(), "status", "VmRSS:")
	if err != nil || mem < 1 {
		t.Errorf("%v MiB, %v", mem, err)
	}
	for began := time.Now(); ; { // the kernel counts in ticks
		cpu, err := processor(os.Getpid(), true)
		if err != nil || time.Since(began) > time.Minute {
			t.Fatalf("%v s, %v", cpu, err)
		}
		if cpu > 0 {
			break
		}
	}
}

// TestWrongOptions: refused before anything is started.
func TestWrongOptions(t *testing.T) {
	for _, args := range [][]string{{"-engine", "mysql"}, {"-conductors", "3"}, {"-conductors", "0"}, {"-nodes", "0"},
		{"-nodes", "many"}, {"-flat", "99"}} {
		if err := run(context.Background(), args, io.Discard); err == nil {
			t.Errorf("%v is not refused", args)
		}
	}
}
