package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRecordCounts(t *testing.T) {
	const pass = `{"Action":"run","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Test":"A","Output":"fine\n"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"pass","Package":"p","Elapsed":0.1}
`
	for _, c := range []struct {
		name, in string
		ok       bool
		want     []string
		not      string
	}{
		{"pass", pass, true, []string{"1 passed, 0 failed, 0 skipped"}, "fine"},
		{"what takes long is named", pass + `{"Action":"pass","Package":"p","Test":"B","Elapsed":61}
{"Action":"pass","Package":"p","Test":"B/part","Elapsed":60}
`, true, []string{"slow    61.0 s  p B\n"}, "part"},
		{"nothing ran", "", false, []string{"0 passed, 0 failed, 0 skipped"}, ""},
		{"fail shows output", pass + `{"Action":"output","Package":"p","Test":"B","Output":"why\n"}
{"Action":"fail","Package":"p","Test":"B"}
`, false, []string{"why", "1 passed, 1 failed, 0 skipped"}, "fine"},
		{"a skip is a gap", pass + `{"Action":"output","Package":"p","Test":"C","Output":"needs root\n"}
{"Action":"skip","Package":"p","Test":"C"}
`, false, []string{"needs root", "1 passed, 0 failed, 1 skipped"}, ""},
		{"package died", pass + `{"Action":"fail","Package":"q"}
`, false, []string{"FAIL  q", "1 passed, 0 failed, 0 skipped"}, ""},
		{"a test that never ended", pass + `{"Action":"run","Package":"q","Test":"D"}
{"Action":"output","Package":"q","Test":"D","Output":"goroutine 7 [chan receive]\n"}
{"Action":"output","Package":"q","Output":"FAIL q 900s\n"}
{"Action":"fail","Package":"q"}
`, false, []string{"FAIL q 900s", "UNFINISHED  q D\ngoroutine 7", "1 passed, 0 failed, 0 skipped"}, "fine"},
		{"two jobs of one package", pass + `{"Action":"output","Package":"q","Name":"J","Test":"D","Output":"at work\n"}
{"Action":"fail","Package":"q","Name":"K"}
`, false, []string{"FAIL  q K\n"}, "at work"},
		{"build failure", pass + `{"Action":"build-output","ImportPath":"q","Output":"syntax\n"}
{"Action":"fail","Package":"q"}
`, false, []string{"syntax"}, ""},
	} {
		var out strings.Builder
		r := newCounter(&out)
		if err := each(strings.NewReader(c.in), r.add); err != nil {
			t.Fatal(err)
		}
		if got := r.end(); got != c.ok {
			t.Errorf("%s: count = %v, want %v", c.name, got, c.ok)
		}
		for _, w := range c.want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s: output %q lacks %q", c.name, out.String(), w)
			}
		}
		if c.not != "" && strings.Contains(out.String(), c.not) {
			t.Errorf("%s: output %q has %q", c.name, out.String(), c.not)
		}
	}
}

// What a process used between two events belongs to the tests that ran meanwhile.
func TestTimesOfARecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record.json")
	r, done, err := newRecorder(path, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	p := module + "/agent/disk"
	for _, e := range []event{
		{Action: "phase", Name: "build", Elapsed: 60, CPU: 110, Idle: 10},
		{Action: "cpu", Package: p, Test: "TestA", CPU: 7.5}, {Action: "pass", Package: p, Test: "TestA", Elapsed: 4},
		{Action: "pass", Package: p, Test: "TestA/sub", Elapsed: 3},
		{Action: "cpu", Package: p, CPU: 9}, {Action: "pass", Package: p, Elapsed: 5},
		{Action: "job", Name: "race group", Elapsed: 50, CPU: 100},
		{Action: "pass", Package: module + "/test/e2e", Name: "TestBIOS", Test: "TestBIOS", Elapsed: 70},
		{Action: "job", Package: module + "/test/e2e", Name: "TestBIOS", Elapsed: 71, CPU: 42},
		{Action: "pass", Package: module + "/test/e2e", Name: "others", Test: "TestGrown", Elapsed: 12},
		{Action: "job", Package: module + "/test/e2e", Name: "others", Elapsed: 13, CPU: 12},
		{Action: "job", Name: "debian", Elapsed: 90, CPU: 80},
	} {
		r.add(e)
	}
	if err := done(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := printTimes(&out, path); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| build | 60 | 110 | 10 | 0 |", "100 CPU s, of which 91 build and link 1 packages",
		"| agent/disk TestA | 4.0 | 7.5 |", "| agent/disk | 5.0 | 9.0 |", "| test/e2e:TestBIOS | 71.0 | 42.0 |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the tables lack %q:\n%s", want, &out)
		}
	}
	costs := filepath.Join(t.TempDir(), "costs.txt")
	if err := updateCosts(path, costs); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(costs)
	if want := "80 debian\n42 test/e2e:TestBIOS\n12 test/e2e:TestGrown\n9 race:agent/disk\n1 test/e2e:others\n"; err != nil || string(got) != want {
		t.Errorf("costs = %q (%v), want %q", got, err, want)
	}
}

// A process's time goes to the tests that run, not to those that are paused.
func TestWatcher(t *testing.T) {
	self, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{dirs: map[string]string{"p": self}, running: map[string]*running{}, used: map[string]float64{}}
	see := func(e event) []event {
		e.Package = "p"
		if r := w.running["p"]; r != nil {
			r.pid = os.Getpid()
		}
		return w.see(e)
	}
	see(event{Action: "start"})
	see(event{Action: "run", Test: "TestA"})
	see(event{Action: "pause", Test: "TestA"})
	see(event{Action: "run", Test: "TestB"})
	spin(0.1)
	b := see(event{Action: "pass", Test: "TestB"})
	see(event{Action: "cont", Test: "TestA"})
	a := see(event{Action: "pass", Test: "TestA"})
	all := see(event{Action: "pass"})
	if len(a) != 1 || len(b) != 1 || len(all) != 1 || b[0].CPU < 0.08 || a[0].CPU > b[0].CPU || all[0].CPU < a[0].CPU+
		b[0].CPU-0.001 {
		t.Errorf("the package used %+v, TestB, which worked, %+v, TestA, which was paused, %+v", all, b, a)
	}
}

// spin uses processor seconds of this process.
func spin(seconds float64) {
	before, _ := processSeconds(os.Getpid())
	for n := 0; ; n++ {
		if n%1e6 == 0 {
			if now, _ := processSeconds(os.Getpid()); now-before >= seconds {
				return
			}
		}
	}
}
