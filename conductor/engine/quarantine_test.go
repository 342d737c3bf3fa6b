package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// TestQuarantine: the mark changes nothing while the instance lives, survives restarts, and keeps the node from
// becoming available.
func TestQuarantine(t *testing.T) {
	ctx := t.Context()
	w := newWorld(t)
	w.start(nil)
	m := w.addFake("n1")
	w.walk(m, node.Available)
	eng := w.current().eng
	var invalid *InvalidError
	if _, err := eng.Quarantine(ctx, m.id, "disk", "tester"); !errors.As(err, &invalid) {
		t.Errorf("quarantine of an available node = %v", err)
	}
	w.walk(m, node.Active)
	for _, reason := range []string{"", "  ", strings.Repeat("x", maxReason+1)} {
		if _, err := eng.Quarantine(ctx, m.id, reason, "tester"); !errors.As(err, &invalid) {
			t.Errorf("quarantine with %d bytes of reason = %v", len(reason), err)
		}
	}
	if _, err := eng.Quarantine(ctx, m.id, "disk sdb fails", "tester"); err != nil {
		t.Fatal(err)
	}
	w.kill()
	w.start(nil)
	eng = w.current().eng
	n := w.node(m)
	if n.Provision != node.Active || n.Fault != node.FaultQuarantined || n.Quarantine.Reason != "disk sdb fails" ||
		n.Quarantine.By != "tester" || n.Maintenance {
		t.Errorf("in quarantine: state %s, fault %q, %+v", n.Provision, n.Fault, n.Quarantine)
	}
	// Its instance goes on: power and the like are as before.
	if err := eng.SetPower(ctx, m.id, "rebooting", 0, ""); err != nil {
		t.Error(err)
	}
	w.until(m, "the end of the restart", func(n *node.Node) bool { return n.Job == nil })

	n = w.want(m, Request{Verb: node.Delete}, node.Manageable)
	wantError(t, n, "in quarantine since", "disk sdb fails", "stays manageable")
	h, err := w.store.History(ctx, m.id, 0)
	if err != nil ||
		!slices.ContainsFunc(h, func(e node.HistoryEntry) bool {
			return strings.Contains(e.Event, "does not become available")
		}) {
		t.Errorf("the history does not say why (%v)", err)
	}
	if err := w.ask(m, node.Provide); !errors.As(err, &invalid) || !strings.Contains(err.Error(), "disk sdb fails") {
		t.Errorf("provide in quarantine = %v", err)
	}
	if n, err = eng.Unquarantine(ctx, m.id, "tester"); err != nil || n.Fault != "" || n.Quarantine != nil ||
		n.LastError != "" {
		t.Errorf("after the quarantine: %v, fault %q, last error %q", err, n.Fault, n.LastError)
	}
	w.want(m, Request{Verb: node.Provide}, node.Available)
}

// TestBreakLock: a controller that hangs holds a node's lock; an administrator frees the node, and the worker that
// comes back from the controller later can't write any more.
func TestBreakLock(t *testing.T) {
	ctx := t.Context()
	w := newWorld(t)
	w.cfg.CallTimeout = 20 * time.Second
	w.start(nil)
	m := w.addFake("n1")
	w.want(m, Request{Verb: node.Manage}, node.Manageable)
	eng := w.current().eng
	var invalid *InvalidError
	if _, err := eng.BreakLock(ctx, m.id, "root"); !errors.As(err, &invalid) {
		t.Errorf("breaking a free lock = %v", err)
	}
	hangs, hung := make(chan struct{}), make(chan struct{}, 1)
	hang := func() {
		select {
		case hung <- struct{}{}:
		default:
		}
		<-hangs
	}
	m.hang.Store(&hang)
	if err := eng.SetPower(ctx, m.id, "power on", 0, "tester"); err != nil {
		t.Fatal(err)
	}
	<-hung
	n := w.node(m)
	fence := n.Fence
	if l := LockOf(n); l.Holder != "c1" || !strings.Contains(l.Purpose, "power on") ||
		time.Since(l.Since) > time.Minute {
		t.Errorf("the lock is %+v", l)
	}
	l, err := eng.BreakLock(ctx, m.id, "root")
	if err != nil || l.Holder != "c1" {
		t.Fatalf("BreakLock = %+v, %v", l, err)
	}
	n = w.node(m)
	if n.Reservation != "" || n.Job != nil || n.TargetPower != "" || n.Fence != fence+1 {
		t.Errorf("after breaking: reservation %q, job %v, target %q, fence %d after %d", n.Reservation, n.Job,
			n.TargetPower, n.Fence, fence)
	}
	wantError(t, n, "lock of c1", "power on", "broken by root")
	close(hangs)
	w.until(m, "power off again", func(n *node.Node) bool {
		err := eng.SetPower(ctx, m.id, "power off", 0, "tester")
		return err == nil
	})
	w.until(m, "the end", func(n *node.Node) bool { return n.Job == nil })
}

// TestBreakLockOfAnother: the lock of a conductor that lives but does nothing is broken by another; what the holder is
// at is not stored, and the node, which stays its own, takes new work.
func TestBreakLockOfAnother(t *testing.T) {
	ctx := t.Context()
	w := newWorld(t)
	f := newFleet("c1", "c2")
	first := w.member(f, "c1")
	m := w.addFake("n1")
	w.walk(m, node.Available)
	// It is asked for work, and stuck in it.
	hangs, hung := make(chan struct{}), make(chan struct{}, 1)
	hang := func() {
		select {
		case hung <- struct{}{}:
		default:
		}
		<-hangs
	}
	m.hang.Store(&hang)
	if err := first.eng.SetPower(ctx, m.id, "power on", 0, "tester"); err != nil {
		t.Fatal(err)
	}
	<-hung
	cfg := w.cfg
	cfg.Hostname, cfg.Conductors = "c2", f.of("c2")
	other := New(w.store, drivers{first}, nil, nil, cfg, nil)
	var locked *LockedError
	err := other.Provision(ctx, m.id, Request{Verb: node.Manage})
	if !errors.As(err, &locked) || locked.Holder != "c1" {
		t.Errorf("a request to another conductor = %v, want a LockedError that names c1", err)
	}
	fence := w.node(m).Fence
	if l, err := other.BreakLock(ctx, m.id, "root"); err != nil || l.Holder != "c1" {
		t.Fatalf("BreakLock = %+v, %v", l, err)
	}
	n := w.node(m)
	if n.Conductor != "c1" || n.Fence != fence+1 || n.Reservation != "" || n.Job != nil {
		t.Errorf("after breaking: conductor %s, fence %d after %d, reservation %q, job %v", n.Conductor, n.Fence, fence,
			n.Reservation, n.Job)
	}
	version := n.Version
	_, err = first.eng.change(context.Background(), m.id,
		func(n *node.Node, _ *node.SideEffects) error { n.LastError = "late"; return nil })
	if !errors.Is(err, errFenced) {
		t.Errorf("a late write of the holder = %v, want %v", err, errFenced)
	}
	close(hangs)
	time.Sleep(20 * time.Millisecond)
	if n := w.node(m); n.Version != version {
		t.Errorf("the former holder wrote: %+v", n)
	}
	if err := other.SetPower(ctx, m.id, "power off", 0, "root"); err != nil {
		t.Fatal(err)
	}
	first.eng.Wake(m.id)
	w.until(m, "power off", func(n *node.Node) bool { return n.Job == nil && n.Power == string(power.Off) })
}
