package engine

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// tally keeps what was counted.
type tally struct {
	mu     sync.Mutex
	states map[node.State]int
	jobs   []string
	calls  map[string]int
	steps  int
}

func (c *tally) StateLeft(state node.State, after time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if after >= 0 {
		c.states[state]++
	}
}

func (c *tally) JobEnded(n *node.Node, j *node.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	outcome := "done"
	if j.Failure != "" {
		outcome = "failed"
	}
	c.jobs = append(c.jobs, fmt.Sprintf("%s %s %s", j.Phase, outcome, n.Provision))
	for _, s := range j.Steps {
		if s.Status == node.StepDone && !s.StartedAt.IsZero() && !s.EndedAt.IsZero() {
			c.steps++
		}
	}
}

func (c *tally) Called(_, _, call string, took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[fmt.Sprintf("%s %v", call, err == nil && took > 0)]++
}

// TestTheMeterSeesEachJobOnce: from enrolment to a system that runs and back, each job and each state that is left is
// counted once, after it was stored, and each call to the controller.
func TestTheMeterSeesEachJobOnce(t *testing.T) {
	w := newWorld(t)
	c := &tally{states: map[node.State]int{}, calls: map[string]int{}}
	w.cfg.Meter = c
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	w.must(m, node.Deploy)
	w.untilState(m, node.Active)
	w.must(m, node.Delete)
	w.untilState(m, node.Available)
	c.mu.Lock()
	defer c.mu.Unlock()
	got := strings.Join(c.jobs, ", ")
	if !slices.Contains(c.jobs, "verify done manageable") || !slices.Contains(c.jobs, "deploy done active") ||
		!strings.HasSuffix(got, "clean done available") || strings.Contains(got, "failed") {
		t.Errorf("jobs: %s", got)
	}
	n := 0
	for _, j := range c.jobs {
		if strings.HasPrefix(j, "deploy ") {
			n++
		}
	}
	if n != 1 || c.states[node.Active] != 1 || c.states[node.Enroll] != 1 || c.states[node.DeployWait] == 0 ||
		c.steps < 5 {
		t.Errorf("%d deployments, %d steps, states that were left: %v", n, c.steps, c.states)
	}
	if c.calls["read power true"] == 0 || c.calls["set power true"] < 2 || c.calls["set boot device true"] == 0 {
		t.Errorf("calls: %v", c.calls)
	}
}
