package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// settled waits until the workers have ended, and the machine's controller is free: a worker releases it a moment after
// it has stored the end of its work.
func (w *world) settled(m *machine) {
	w.t.Helper()
	eng := w.current().eng
	if err := eng.bmcs.Wait(w.t.Context(), m.key, "test"); err != nil {
		w.t.Fatal(err)
	}
	eng.bmcs.Release("test")
	for due, working := eng.queue.Load(); due+working > 0; due, working = eng.queue.Load() {
		time.Sleep(time.Millisecond)
	}
}

// syncPower is a round of reading every machine's power, when all work has settled.
func (w *world) syncPower(m *machine) {
	w.t.Helper()
	w.settled(m)
	if err := w.current().eng.syncPower(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// TestPowerSyncSkips: the power of nodes that are in somebody's hands is not looked at.
func TestPowerSyncSkips(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*node.Node)
		read bool
	}{
		{"active", func(*node.Node) {}, true},
		{"maintenance", func(n *node.Node) { n.Maintenance = true }, false},
		{"reserved", func(n *node.Node) { n.Reservation, n.ReservedAt = "somebody", time.Now() }, false},
		{"power action", func(n *node.Node) { n.TargetPower = "power on" }, false},
		{"enroll", func(n *node.Node) { n.Provision = node.Enroll }, false},
		{"adopt failed", func(n *node.Node) { n.Provision = node.AdoptFailed }, false},
		{"another's", func(n *node.Node) { n.Conductor = "c2" }, false},
		{"without an owner", func(n *node.Node) { n.Conductor = "dead" }, true},
		{"agent", func(n *node.Node) { n.Interfaces["power"] = program.AgentPower }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.cfg.Conductors = newFleet("c1", "c2").of("c1")
			w.start(nil)
			m := w.addFake("n1")
			w.walk(m, node.Active)
			w.settled(m) // what a worker still asks of the controller is not counted
			w.edit(m, c.set)
			calls := 0
			m.mu.Lock()
			m.callErr = func(string) error { calls++; return nil }
			m.mu.Unlock()
			w.syncPower(m)
			m.mu.Lock()
			defer m.mu.Unlock()
			if calls > 1 || (calls == 1) != c.read {
				t.Errorf("the controller was asked %d times", calls)
			}
		})
	}
}

// TestPowerSyncForced: told so, the conductor sets the power back; after three times in a row it takes the machine's
// word.
func TestPowerSyncForced(t *testing.T) {
	w := newWorld(t)
	w.cfg.ForcePower = true
	w.start(nil)
	m := w.addFake("n1")
	w.walk(m, node.Active)
	round := func() { t.Helper(); w.syncPower(m) }
	for i := range 4 {
		m.pull()
		round()
		n := w.until(m, "the end of the correction", func(n *node.Node) bool { return n.Job == nil })
		want := "power on"
		if i == 3 {
			want = "power off"
			wantError(t, n, "set back", "3 times")
		}
		m.mu.Lock()
		if n.Power != want || m.on != (want == "power on") {
			t.Errorf("correction %d: recorded %q, on %v", i+1, n.Power, m.on)
		}
		m.mu.Unlock()
	}
	// Then it is in step again, and the count begins anew.
	for range 2 {
		round()
	}
	m.mu.Lock()
	m.turnOn()
	m.mu.Unlock()
	round()
	w.until(m, "off", func(n *node.Node) bool { return n.Job == nil && n.Power == "power off" })
	h, err := w.store.History(t.Context(), m.id, 0)
	if err != nil ||
		!slices.ContainsFunc(h, func(e node.HistoryEntry) bool {
			return strings.Contains(e.Event, "it is set back (1 of 3)")
		}) {
		t.Errorf("the history does not tell of it (%v)", err)
	}
	// One whose power must not be turned off is left on.
	w.edit(m, func(n *node.Node) { n.DisablePowerOff = true })
	m.mu.Lock()
	m.turnOn()
	m.mu.Unlock()
	round()
	if n := w.node(m); n.Job != nil || n.Power != "power on" {
		t.Errorf("with disable_power_off: power %q, job %+v", n.Power, n.Job)
	}
}

// TestPowerFaultApart: a controller that can't be read is a fault after three times, in addition to maintenance and
// quarantine and not instead; afterwards the previous state comes back.
func TestPowerFaultApart(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.addFake("n1")
	w.walk(m, node.Active)
	eng := w.current().eng
	if _, err := eng.Quarantine(t.Context(), m.id, "smells", "tester"); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	m.callErr = func(string) error {
		return &power.Error{Kind: power.Unreachable, Op: "read power state", Err: errors.New("no answer")}
	}
	m.mu.Unlock()
	for i := range 5 {
		w.syncPower(m)
		n := w.node(m)
		if bad := i >= 2; (n.Fault == node.FaultPower) != bad || (n.Power == "") != bad || n.Maintenance {
			t.Errorf("after %d failed reads: fault %q, power %q, maintenance %v", i+1, n.Fault, n.Power, n.Maintenance)
		}
	}
	wantError(t, w.node(m), "Power failure", "3 times in a row", "no answer")
	m.mu.Lock()
	m.callErr = nil
	m.mu.Unlock()
	w.syncPower(m)
	if n := w.node(m); n.Fault != node.FaultQuarantined || n.Power != "power on" || n.LastError != "" {
		t.Errorf("after recovery: fault %q, power %q, last error %q", n.Fault, n.Power, n.LastError)
	}
}
