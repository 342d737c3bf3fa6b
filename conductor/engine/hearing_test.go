package engine

import (
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestLimitsCountFromHearing: what a conductor missed while it was frozen, or had no lease, does not count against an
// agent; a busy process, which looks at the clock now and then, misses nothing.
func TestLimitsCountFromHearing(t *testing.T) {
	const grace = time.Minute
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for _, tt := range []struct {
		what string
		note func(h *hearing)
		want time.Duration // left of the grace of an agent that was lost 50 s ago
	}{
		{"nothing happened", func(h *hearing) { h.look(ago(time.Second), true) }, 10 * time.Second},
		{"busy", func(h *hearing) { h.look(ago(8*time.Second), true); h.look(ago(4*time.Second), true) },
			10 * time.Second},
		{"frozen until now", func(h *hearing) { h.look(ago(30*time.Second), true) }, grace},
		{"frozen until 20 s ago", func(h *hearing) {
			h.look(ago(40*time.Second), true)
			for d := 20; d >= 0; d-- {
				h.look(ago(time.Duration(d)*time.Second), true)
			}
		}, 40 * time.Second},
		{"without a lease until 2 s ago", func(h *hearing) { h.look(ago(2*time.Second), false) }, 58 * time.Second},
		{"without a lease before it was lost", func(h *hearing) {
			h.look(ago(55*time.Second), false)
			for d := 54; d >= 0; d-- {
				h.look(ago(time.Duration(d)*time.Second), true)
			}
		}, 10 * time.Second},
	} {
		e := &Engine{alive: map[string]time.Time{"n1": ago(50 * time.Second)}}
		e.cfg.SessionGrace = grace
		tt.note(&e.hearing)
		got := e.grace(&node.Boot{LostAt: ago(50 * time.Second)})
		if d := tt.want - got; d < 0 || d > 3*time.Second {
			t.Errorf("%s: %s are left, want %s", tt.what, got, tt.want)
		}
		silent := time.Since(e.lastSign("n1", ago(time.Hour)))
		if d := silent - (grace - tt.want); d < 0 || d > 3*time.Second {
			t.Errorf("%s: silent for %s, want %s", tt.what, silent, grace-tt.want)
		}
	}
}

// inPlan brings a machine into a deployment whose plan its agent has, and which takes long.
func inPlan(w *world) *machine {
	w.t.Helper()
	m := w.add("n1")
	w.walk(m, node.Available)
	m.mu.Lock()
	m.stepTook = time.Hour
	m.mu.Unlock()
	w.must(m, node.Deploy)
	w.until(m, "a plan", func(n *node.Node) bool {
		return n.Job.PlanID != "" && !n.Job.PlanSent.IsZero() && n.Boot.Connected
	})
	return m
}

// TestSessionThatTheStoreMissed: the store is corrected when it says of an agent other than what the conductor sees,
// as when the end of a session could not be stored, or was stored after the next one had begun.
func TestSessionThatTheStoreMissed(t *testing.T) {
	t.Run("ended", func(t *testing.T) {
		w := newWorld(t)
		w.cfg.sessionSettles, w.cfg.SessionGrace, w.cfg.Silence = 50*time.Millisecond, 100*time.Millisecond, time.Hour
		w.start(nil)
		m := inPlan(w)
		m.away.Store(true)
		link{w.current()}.CloseSession(m.id)
		w.until(m, "the end of the session", func(n *node.Node) bool { return !n.Boot.Connected })
		w.edit(m, func(n *node.Node) { n.Boot.Connected, n.Boot.LostAt = true, time.Time{} })
		w.current().eng.wake(m.id)
		w.until(m, "a boot anew", func(n *node.Node) bool { return n.Job.Boots == 2 })
	})
	t.Run("goes on", func(t *testing.T) {
		w := newWorld(t)
		w.cfg.sessionSettles, w.cfg.SessionGrace = 50*time.Millisecond, 100*time.Millisecond
		w.start(nil)
		m := inPlan(w)
		w.edit(m, func(n *node.Node) { n.Boot.Connected, n.Boot.LostAt = false, time.Now().Add(-time.Hour) })
		w.current().eng.wake(m.id)
		w.until(m, "connected", func(n *node.Node) bool { return n.Boot.Connected && n.Boot.LostAt.IsZero() })
		if n := w.node(m); n.Job.Boots != 1 {
			t.Errorf("the machine was booted %d times", n.Job.Boots)
		}
	})
}
