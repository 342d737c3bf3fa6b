package engine

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// TestClockSetBack: work that was stored by a clock which was a year ahead goes on at once, and its limits count.
func TestClockSetBack(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, c := range []struct {
		name    string
		err     error
		changed bool // by somebody else, after the clock was set back
		want    node.State
	}{
		{"goes on", nil, false, node.Manageable},
		{"goes on after a change", nil, true, node.Manageable},
		{"fails in its time", errors.New("no answer"), false, node.Enroll},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.RetryBase = 200 * time.Millisecond
			w.start(nil)
			m := w.add("n1")
			m.mu.Lock()
			m.callErr = func(string) error {
				return &power.Error{Kind: power.Unreachable, Op: "log in", Err: errors.New("no answer")}
			}
			m.mu.Unlock()
			w.must(m, node.Manage)
			w.until(m, "a pause", func(n *node.Node) bool { return n.Job != nil && !n.Job.NotBefore.IsZero() })
			w.kill()
			w.ahead.Store(int64(year))
			w.edit(m, func(n *node.Node) {
				setBack(reflect.ValueOf(n.Job), time.Unix(0, 0), -year, 0)
			})
			w.ahead.Store(0)
			if n := w.node(m); time.Until(n.Job.NotBefore) < year/2 || time.Until(n.UpdatedAt) < year/2 {
				t.Fatalf("the test does not work: the node was stored at %v", n.UpdatedAt)
			}
			if c.changed {
				w.edit(m, func(n *node.Node) { n.Description = "changed" })
				if n := w.node(m); time.Until(n.UpdatedAt) > time.Minute {
					t.Fatalf("the test does not work: the node was stored at %v", n.UpdatedAt)
				}
			}
			m.mu.Lock()
			if c.err == nil {
				m.callErr = nil
			}
			m.mu.Unlock()
			w.start(nil)
			n := w.until(m, "the end of the work", func(n *node.Node) bool { return n.Job == nil })
			if n.Provision != c.want || time.Until(n.UpdatedAt) > time.Minute {
				t.Errorf("the node is %s, stored at %v", n.Provision, n.UpdatedAt)
			}
		})
	}
}
