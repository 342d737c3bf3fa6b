package engine

import (
	"slices"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestWorks: each verb that leads from one state to another by request has one row, each row with a job says what
// follows it, and each phase is one row's, or that of rows which are told apart by where they lead.
func TestWorks(t *testing.T) {
	own := []node.Verb{node.Wait, node.Resume, node.Hold, node.Done, node.Fail, node.ToMgmt}
	asked := map[node.Verb]bool{}
	for _, tr := range node.Transitions() {
		if !slices.Contains(own, tr.Verb) && tr.Verb != "" {
			asked[tr.Verb] = true
		}
	}
	rows := map[node.Verb]int{}
	for _, w := range works() {
		if w.verb != "" {
			rows[w.verb]++
			if !asked[w.verb] {
				t.Errorf("%s is in the table, but leads to no state", w.verb)
			}
		}
		if w.phase == "" {
			if w.act == nil || w.steps != nil {
				t.Errorf("%s does nothing", w.verb)
			}
			continue
		}
		if w.next == nil || w.verb != "" && w.steps == nil {
			t.Errorf("%s %s lacks what it does, or what follows", w.verb, w.phase)
		}
		if got := workOfJob(&node.Job{Phase: w.phase, Target: w.target}); got.phase != w.phase ||
			got.target != w.target || got.flow != w.flow {
			t.Errorf("a job of %s to %q is that of %s %s to %q", w.phase, w.target, got.verb, got.phase, got.target)
		}
	}
	for v := range asked {
		if rows[v] != 1 {
			t.Errorf("%s has %d rows", v, rows[v])
		}
	}
}
