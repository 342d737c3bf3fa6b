package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// tape records what a plan reports, as short lines.
type tape struct {
	mu    sync.Mutex
	lines []string
	last  Progress
}

func (t *tape) add(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, fmt.Sprintf(format, args...))
}

func (t *tape) StepStarted(i int, s Planned) { t.add("start %d %s", i, s.Name) }

func (t *tape) Progress(_ int, _ Planned, p Progress) {
	t.mu.Lock()
	t.last = p
	t.mu.Unlock()
}

func (t *tape) StepFinished(i int, s Planned, r Result) {
	if r.Err != nil {
		t.add("fail %d %s", i, s.Name)
		return
	}
	t.add("done %d %s", i, s.Name)
}

func plan(names ...string) (out []Planned) {
	for _, n := range names {
		out = append(out, Planned{Interface: "deploy", Name: n})
	}
	return out
}

func table(funcs map[string]Func) (out []Step) {
	for n, f := range funcs {
		out = append(out,
			Step{Run: f, Row: Row{Interface: "deploy", Name: n, Stall: time.Minute,
				Abortable: strings.HasPrefix(n, "abortable")}})
	}
	return out
}

func ok(context.Context, *Call) (Outcome, error) { return Outcome{}, nil }

// untilDone stops when its context ends, as a step should.
func untilDone(ctx context.Context, _ *Call) (Outcome, error) {
	<-ctx.Done()
	return Outcome{}, ctx.Err()
}

func TestRun(t *testing.T) {
	var runs int
	key := struct{}{}
	steps := table(map[string]Func{
		"ok":   ok,
		"fail": func(context.Context, *Call) (Outcome, error) { return Outcome{}, Failf("buy a disk", "no disk") },
		"panic": func(context.Context, *Call) (Outcome, error) {
			panic("assignment to entry in nil map")
		},
		"rerun": func(context.Context, *Call) (Outcome, error) {
			if runs++; runs < 3 {
				return Outcome{Kind: Rerun, After: time.Hour}, nil
			}
			return Outcome{}, nil
		},
		"next": func(context.Context, *Call) (Outcome, error) {
			return Outcome{Kind: RunNext, Next: plan("ok")}, nil
		},
		"reboot": func(context.Context, *Call) (Outcome, error) { return Outcome{Kind: Reboot}, nil },
		"leave":  func(_ context.Context, c *Call) (Outcome, error) { c.Facts.Set(key, 7); return Outcome{}, nil },
		"find": func(_ context.Context, c *Call) (Outcome, error) {
			if c.Facts.Get(key) != 7 {
				return Outcome{}, errors.New("fact lost")
			}
			return Outcome{}, nil
		},
	})
	for _, c := range []struct {
		plan  []string
		lines []string
		check func(End) bool
	}{
		{[]string{"leave", "find"}, []string{"start 0 leave", "done 0 leave", "start 1 find", "done 1 find"},
			func(e End) bool { return e.Done }},
		{[]string{"fail", "ok"}, []string{"start 0 fail", "fail 0 fail"},
			func(e End) bool { return !e.Done && e.Err.Remedy == "buy a disk" && e.Err.Error() == "no disk" }},
		{[]string{"panic", "ok"}, []string{"start 0 panic", "fail 0 panic"},
			func(e End) bool { return e.Err != nil && strings.Contains(e.Err.Error(), "nil map") }},
		{[]string{"rerun", "ok"},
			[]string{"start 0 rerun", "done 0 rerun", "start 0 rerun", "done 0 rerun", "start 0 rerun", "done 0 rerun",
				"start 1 ok", "done 1 ok"}, func(e End) bool { return e.Done }},
		{[]string{"next", "ok"},
			[]string{"start 0 next", "done 0 next", "start 0 ok", "done 0 ok", "start 1 ok", "done 1 ok"},
			func(e End) bool { return e.Done }},
		{[]string{"reboot", "ok"}, []string{"start 0 reboot", "done 0 reboot"},
			func(e End) bool { return !e.Done && e.Halted == Reboot && e.Err == nil }},
		{[]string{"absent"}, []string{"start 0 absent", "fail 0 absent"},
			func(e End) bool { return strings.Contains(e.Err.Error(), "no step deploy.absent") }},
	} {
		t.Run(strings.Join(c.plan, ","), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runs = 0
				var tp tape
				end := (&Runner{Table: steps}).Run(t.Context(), nil, plan(c.plan...), &tp)
				if !slices.Equal(tp.lines, c.lines) {
					t.Errorf("reported %q, want %q", tp.lines, c.lines)
				}
				if !c.check(end) {
					t.Errorf("ended with %+v", end)
				}
			})
		})
	}
}

// TestLater: a step knows the steps after it, including an inserted one.
func TestLater(t *testing.T) {
	var later []string
	tell := func(_ context.Context, c *Call) (Outcome, error) {
		var names []string
		for _, p := range c.Later {
			names = append(names, p.Name)
		}
		later = append(later, strings.Join(names, ","))
		return Outcome{}, nil
	}
	steps := table(map[string]Func{"ok": ok, "tell": tell,
		"next": func(context.Context, *Call) (Outcome, error) {
			return Outcome{Kind: RunNext, Next: plan("tell", "ok")}, nil
		}})
	(&Runner{Table: steps}).Run(t.Context(), nil, plan("tell", "next", "tell"), &tape{})
	if want := []string{"next,tell", "ok,tell", ""}; !slices.Equal(later, want) {
		t.Errorf("later steps: %q, want %q", later, want)
	}
}

func TestStall(t *testing.T) {
	slow := func(ctx context.Context, c *Call) (Outcome, error) {
		for i := range 10 {
			select {
			case <-time.After(50 * time.Second):
				c.Report(Progress{Phase: "write", Bytes: uint64(i), Total: 10})
			case <-ctx.Done():
				return Outcome{}, ctx.Err()
			}
		}
		return Outcome{}, nil
	}
	repeat := func(ctx context.Context, c *Call) (Outcome, error) {
		for {
			select {
			case <-time.After(10 * time.Second):
				c.Report(Progress{Phase: "write", Bytes: 5})
			case <-ctx.Done():
				return Outcome{}, ctx.Err()
			}
		}
	}
	deaf := func(context.Context, *Call) (Outcome, error) {
		time.Sleep(time.Hour)
		return Outcome{}, nil
	}
	run := func(t *testing.T, f Func) (*Runner, End, time.Duration) {
		r := &Runner{Table: table(map[string]Func{"s": f, "ok": ok})}
		begin := time.Now()
		end := r.Run(t.Context(), nil, plan("s"), &tape{})
		return r, end, time.Since(begin)
	}
	synctest.Test(t, func(t *testing.T) {
		if _, end, _ := run(t, slow); !end.Done {
			t.Errorf("a slow step that gets on ended with %+v", end)
		}
		if _, end, took := run(t, repeat); end.Err == nil || !end.Err.Retryable || took > 2*time.Minute {
			t.Errorf("repeating one report: %+v after %s, want a stall", end, took)
		}
		r, end, _ := run(t, deaf)
		if end.Err == nil || !strings.Contains(end.Err.Error(), "did not stop") {
			t.Errorf("a step that does not stop: %+v", end)
		}
		if end := r.Run(t.Context(), nil, plan("ok"), &tape{}); !errors.Is(end.Err, ErrStuck) {
			t.Errorf("next plan after a stuck step: %+v, want ErrStuck", end)
		}
		time.Sleep(2 * time.Hour) // let the deaf step end: synctest waits for it
	})
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		finished := false
		r := &Runner{Table: table(map[string]Func{
			"abortable": untilDone,
			"whole": func(ctx context.Context, _ *Call) (Outcome, error) {
				select {
				case <-time.After(30 * time.Second):
					finished = true
				case <-ctx.Done():
				}
				return Outcome{}, ctx.Err()
			},
			"ok": ok,
		})}
		cancelAfter := func(d time.Duration, names ...string) End {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			return r.Run(ctx, nil, plan(names...), &tape{})
		}
		if end := cancelAfter(time.Second, "abortable", "ok"); !end.Cancelled || end.Err == nil ||
			strings.Contains(end.Err.Error(), "progress") {
			t.Errorf("cancel of an abortable step: %+v", end)
		}
		if end := cancelAfter(time.Second, "whole", "ok"); !end.Cancelled || !finished || end.Done {
			t.Errorf("cancel of a step that must end: %+v, finished %v", end, finished)
		}
	})
}

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tp tape
		r := &Runner{Table: table(map[string]Func{"s": func(_ context.Context, c *Call) (Outcome, error) {
			for i := range 100 {
				time.Sleep(100 * time.Millisecond)
				c.Report(Progress{Phase: "write", Bytes: uint64(i) * 1e6, Total: 1e8})
			}
			return Outcome{}, nil
		}})}
		r.Run(t.Context(), nil, plan("s"), &tp)
		if tp.last.Rate < 9.9e6 || tp.last.Rate > 10.1e6 {
			t.Errorf("rate = %d, want 1e7", tp.last.Rate)
		}
	})
}

func TestDigest(t *testing.T) {
	a := Step{Row: Row{Interface: "deploy", Name: "a", Priority: In{Deploy: 60}}, Run: ok}
	b := Step{Row: Row{Interface: "deploy", Name: "b", Priority: In{Deploy: 80, Clean: 5}}, Run: ok}
	c := Step{Row: Row{Interface: "deploy", Name: "c"}, Run: ok}
	m1, err1 := Describe([]Step{a, b, c})
	m2, err2 := Describe([]Step{c, b, a})
	if err1 != nil || err2 != nil || m1.Digest != m2.Digest || len(m1.Digest) != 64 {
		t.Errorf("Describe depends on the table's order: %v %v", m1, m2)
	}
	err := Check([]Step{a, a, {Row: Row{Interface: "x", Name: "y"}}})
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("Check = %v, want two faults", err)
	}
}

func TestCheckArgs(t *testing.T) {
	s := Step{Row: Row{Name: "s", Args: []Arg{
		{Name: "url", Type: "string", Required: true}, {Name: "n", Type: "integer"}, {Name: "o", Type: "object"},
		{Name: "l", Type: "array"}, {Name: "b", Type: "boolean"}, {Name: "x", Type: "any"},
	}}}
	for args, want := range map[string]string{
		`{"url":"u"}`: "",
		`{"url":"u","n":3,"o":{},"l":[1],"b":true,"x":[]}`: "",
		`{"url":"u","n":null}`:                             "",
		``:                                                 "needs the argument url",
		`{"url":null}`:                                     "needs the argument url",
		`{"url":"u","n":1.5}`:                              "argument n of step s is a number, but has to be an integer",
		`{"url":"u","o":"s"}`:                              "has to be an object",
		`{"url":"u","zzz":1}`:                              "no argument zzz",
		`[]`:                                               "not a JSON object",
	} {
		err := s.CheckArgs(json.RawMessage(args))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("CheckArgs(%s) = %v, want %q", args, err, want)
		}
	}
}

// TestRerunIsFinished: a step that must not be stopped and asks to run again is run to its end when the plan is
// cancelled meanwhile; one that may be stopped is not.
func TestRerunIsFinished(t *testing.T) {
	for name, want := range map[string]string{
		"flash":          "start 0 flash,done 0 flash,start 0 flash,done 0 flash,start 0 flash,done 0 flash",
		"abortable poll": "start 0 abortable poll,done 0 abortable poll"} {
		synctest.Test(t, func(t *testing.T) {
			runs := 0
			steps := table(map[string]Func{name: func(context.Context, *Call) (Outcome, error) {
				if runs++; runs < 3 {
					return Outcome{Kind: Rerun, After: time.Hour}, nil
				}
				return Outcome{}, nil
			}, "ok": ok})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Minute, cancel)
			var tp tape
			end := (&Runner{Table: steps}).Run(ctx, nil, plan(name, "ok"), &tp)
			if got := strings.Join(tp.lines, ","); got != want || !end.Cancelled || end.Done {
				t.Errorf("reported %s, ended with %+v; want %s", got, end, want)
			}
		})
	}
}

// TestTimeout: progress does not save a step from its limit, and what it found out is kept.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := func(ctx context.Context, c *Call) (Outcome, error) {
			for i := uint64(0); ; i++ {
				select {
				case <-time.After(time.Second):
					c.Report(Progress{Phase: "dig", Bytes: i})
				case <-ctx.Done():
					return Outcome{}, &Error{Err: ctx.Err(), Result: map[string]int{"found": 3}}
				}
			}
		}
		steps := table(map[string]Func{"busy": busy})
		steps[0].Timeout = 10 * time.Minute
		begin := time.Now()
		var tp tape
		end := (&Runner{Table: steps}).Run(t.Context(), nil, plan("busy"), &tp)
		if end.Err == nil || !strings.Contains(end.Err.Error(), "took longer than 10m0s and was stopped") ||
			end.Err.Retryable || fmt.Sprint(end.Err.Result) != "map[found:3]" {
			t.Errorf("ended with %+v", end.Err)
		}
		if took := time.Since(begin); took != 10*time.Minute {
			t.Errorf("stopped after %s", took)
		}
	})
}

// TestAlive: a sign of life without progress puts the stall off.
func TestAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := table(map[string]Func{"talks": func(ctx context.Context, c *Call) (Outcome, error) {
			for range 10 {
				select {
				case <-time.After(50 * time.Second):
					c.Alive()
				case <-ctx.Done():
					return Outcome{}, ctx.Err()
				}
			}
			return Outcome{}, nil
		}})
		var tp tape
		if end := (&Runner{Table: steps}).Run(t.Context(), nil, plan("talks"), &tp); !end.Done {
			t.Errorf("ended with %+v", end)
		}
	})
}
