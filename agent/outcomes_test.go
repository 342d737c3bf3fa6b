package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
)

type left struct{}

// outcomes adds steps that end in every way.
func (b *bench) outcomes() {
	runs := 0
	one := func(name string, f step.Func) {
		row := step.Row{Interface: "deploy", Name: name, Abortable: true}
		b.opts.Steps = append(b.opts.Steps, step.Step{Row: row, Run: f})
	}
	one("again", func(context.Context, *step.Call) (step.Outcome, error) {
		if runs++; runs < 3 {
			return step.Outcome{Kind: step.Rerun, After: time.Millisecond, Result: map[string]int{"run": runs}}, nil
		}
		return step.Outcome{Result: map[string]int{"run": runs}}, nil
	})
	one("asks", func(context.Context, *step.Call) (step.Outcome, error) {
		return step.Outcome{
			Kind: step.RunNext,
			Next: []step.Planned{{Interface: "deploy", Name: "quick"}, {Interface: "deploy", Name: "hold"}}}, nil
	})
	one("hold", func(_ context.Context, c *step.Call) (step.Outcome, error) {
		c.Facts.Set(left{}, "something")
		return step.Outcome{Kind: step.Hold}, nil
	})
	one("reboot", func(context.Context, *step.Call) (step.Outcome, error) {
		return step.Outcome{Kind: step.Reboot}, nil
	})
	one("finds", func(_ context.Context, c *step.Call) (step.Outcome, error) {
		return step.Outcome{Result: map[string]any{"left": c.Facts.Get(left{}), "node": c.Facts.Get(step.Node{})}}, nil
	})
	one("reports", func(context.Context, *step.Call) (step.Outcome, error) {
		return step.Outcome{}, &step.Error{Err: errors.New("sdb lies"), Result: map[string]string{"lies": "sdb"}}
	})
	one("many", func(ctx context.Context, c *step.Call) (step.Outcome, error) {
		return step.Outcome{}, step.Each(ctx, c, "erase", 2, []string{"sda", "sdb"}, func(d string) string { return d },
			func(ctx context.Context, d string, report func(done, total int64)) error {
				if d == "sda" {
					report(7, 7)
					return errors.New("lies")
				}
				report(3, 9)
				<-b.release
				return nil
			})
	})
	one("later", func(context.Context, *step.Call) (step.Outcome, error) {
		b.ran <- "later"
		return step.Outcome{Kind: step.Rerun, After: time.Hour}, nil
	})
}

// outcomes returns the results of a plan's steps that the conductor has received.
func (c *conductor) outcomes(plan string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var got []string
	for _, e := range c.results {
		if f := e.GetStepFinished(); f != nil && f.PlanId == plan {
			text := fmt.Sprintf("%d %s %s %s", f.StepIndex, f.Name, strings.TrimPrefix(f.Outcome.String(), "OUTCOME_"),
				f.Result)
			for _, n := range f.Next {
				text += " " + n.Name
			}
			got = append(got, text)
		}
		if f := e.GetPlanFinished(); f != nil && f.PlanId == plan {
			got = append(got, fmt.Sprintf("done=%v cancelled=%v", f.Done, f.Cancelled))
		}
	}
	return strings.Join(got, "\n")
}

// TestOutcomesOverSession: each way in which a step can end reaches the conductor, and the plan goes on or ends as it
// says.
func TestOutcomesOverSession(t *testing.T) {
	c := newConductor(t)
	b := newBench(t, c)
	b.outcomes()
	b.run()
	for i, p := range []struct {
		steps []string
		want  string
	}{
		{[]string{"again", "quick"},
			`0 again RERUN {"run":1}|0 again RERUN {"run":2}|0 again DONE {"run":3}|1 quick DONE {"n":7}|done=true cancelled=false`},
		{[]string{"quick", "asks", "quick"},
			`0 quick DONE {"n":7}|1 asks RUN_NEXT {} quick hold|1 quick DONE {"n":7}|1 hold HOLD {}|done=false cancelled=false`},
		// What was left in a held machine is still there when it goes on.
		{[]string{"finds"}, `0 finds DONE {"left":"something","node":"node-1"}|done=true cancelled=false`},
		{[]string{"reports", "quick"}, `0 reports FAILED {"lies":"sdb"}|done=false cancelled=false`},
		{[]string{"finds"}, `0 finds DONE {"left":null,"node":"node-1"}|done=true cancelled=false`},
		{[]string{"reboot", "quick"}, `0 reboot REBOOT {}|done=false cancelled=false`},
	} {
		id := fmt.Sprintf("p%d", i)
		c.plan(id, uint64(3+i), p.steps...)
		poll(t, "the end of "+strings.Join(p.steps, " "), func() bool { return c.finished(id) != nil })
		if got := strings.ReplaceAll(c.outcomes(id), "\n", "|"); got != p.want {
			t.Errorf("%v: outcomes\n%s\nwant\n%s", p.steps, got, p.want)
		}
	}
}

// TestItemsOverSession: how far each of several things is reaches the conductor.
func TestItemsOverSession(t *testing.T) {
	c := newConductor(t)
	b := newBench(t, c)
	b.outcomes()
	b.run()
	c.plan("p1", 3, "many")
	poll(t, "the progress", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, e := range c.other {
			p := e.GetProgress()
			if p == nil || len(p.Items) != 2 {
				continue
			}
			a, z := p.Items[0], p.Items[1]
			if p.Bytes == 10 && p.Total == 16 && a.Name == "sda" && a.Done && a.Error == "lies" && z.Name == "sdb" &&
				!z.Done && z.Bytes == 3 && z.Total == 9 {
				return true
			}
		}
		return false
	})
	close(b.release)
	poll(t, "the plan's end", func() bool { return c.finished("p1") != nil })
	if got := c.outcomes("p1"); !strings.Contains(got, "0 many FAILED") {
		t.Errorf("outcomes %s", got)
	}
}

// TestWorkerDiesBetweenRuns: a step that waits to be run again when the worker dies has not been done, and may be tried
// again.
func TestWorkerDiesBetweenRuns(t *testing.T) {
	c := newConductor(t)
	b := newBench(t, c)
	b.outcomes()
	b.run()
	c.plan("p1", 3, "quick", "later")
	poll(t, "the wait", func() bool { return strings.Contains(c.outcomes("p1"), "1 later RERUN") })
	state, err := os.ReadFile(b.opts.State)
	if err != nil {
		t.Fatal(err)
	}
	_ = b.stop()
	if err := os.WriteFile(b.opts.State, state, 0o600); err != nil {
		t.Fatal(err)
	}
	b2 := newBench(t, c)
	b2.outcomes()
	b2.opts.State, b2.opts.Restarts, b2.opts.Reason = b.opts.State, 1, "panic"
	b2.run()
	failed := func() *agentv1.StepFinished {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, e := range c.results {
			if f := e.GetStepFinished(); f != nil && f.Outcome == agentv1.Outcome_OUTCOME_FAILED {
				return f
			}
		}
		return nil
	}
	poll(t, "the failure", func() bool { return failed() != nil })
	if f := failed(); f.Name != "later" || !f.Retryable || f.StepIndex != 1 {
		t.Errorf("outcome %v", f)
	}
}
