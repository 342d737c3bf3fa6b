package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// pair starts two conductors of a fleet, of which c1 is to have all nodes, and returns them.
func pair(w *world) (f *fleet, c1, c2 *conductor) {
	f = newFleet("c1", "c2")
	c1 = w.member(f, "c1")
	return f, c1, w.member(f, "c2")
}

// TestRequestAtAnotherConductor: every request is taken by a conductor that does not own the node, and done by its
// owner, whether that is woken or finds it when it searches the store.
func TestRequestAtAnotherConductor(t *testing.T) {
	for _, woken := range []bool{true, false} {
		t.Run(map[bool]string{true: "woken", false: "found"}[woken], func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.Rescan = time.Hour
			if !woken {
				w.cfg.Rescan = 20 * time.Millisecond
			}
			_, c1, c2 := pair(w)
			m := w.add("n1")
			ctx := t.Context()
			asked := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				if n := w.node(m); n.Reservation != "" && n.Reservation != "c1" {
					t.Errorf("the node is reserved by %s, want its owner", n.Reservation)
				}
				if woken {
					c1.eng.Wake(m.id)
					c2.eng.Wake(m.id) // which leaves it alone
				}
			}
			verb := func(r Request, to node.State) {
				t.Helper()
				r.User = "tester"
				asked(c2.eng.Provision(ctx, m.id, r))
				n := w.untilState(m, to)
				if n.Conductor != "c1" {
					t.Errorf("%s was done by %s, want c1", r.Verb, n.Conductor)
				}
			}
			verb(Request{Verb: node.Manage}, node.Manageable)
			m.mu.Lock()
			m.stepTook = time.Hour
			m.mu.Unlock()
			asked(c2.eng.Provision(ctx, m.id, Request{Verb: node.Inspect}))
			w.until(m, "a plan", func(n *node.Node) bool { return n.Job.PlanID != "" && !n.Job.PlanSent.IsZero() })
			m.mu.Lock()
			m.stepTook = time.Millisecond
			m.mu.Unlock()
			asked(c2.eng.Provision(ctx, m.id, Request{Verb: node.Abort}))
			w.untilState(m, node.InspectFailed)
			verb(Request{Verb: node.Inspect}, node.Manageable)
			verb(Request{Verb: node.Provide}, node.Available)
			asked(c2.eng.Warm(ctx, m.id, "tester"))
			w.until(m, "warm", func(n *node.Node) bool { return n.Job == nil && n.IsWarm() })
			asked(c2.eng.Cool(ctx, m.id, "tester"))
			w.until(m, "cold", func(n *node.Node) bool { return n.Job == nil && n.Power == string(power.Off) })
			verb(Request{Verb: node.Deploy, ConfigDrive: "http://drive-of/n1"}, node.Active)
			checkDeployed(t, m, 1)
			asked(c2.eng.SetPower(ctx, m.id, "power off", 0, "tester"))
			w.until(m, "off", func(n *node.Node) bool { return n.Job == nil && n.Power == string(power.Off) })
			if _, err := c2.eng.Quarantine(ctx, m.id, "smells", "tester"); err != nil {
				t.Error(err)
			}
			if n, err := c2.eng.Unquarantine(ctx, m.id, "tester"); err != nil || n.Quarantine != nil {
				t.Error(err)
			}
			verb(Request{Verb: node.Delete}, node.Available)
			if n := w.node(m); n.Conductor != "c1" {
				t.Errorf("the node is %s's, want c1's", n.Conductor)
			}
			if w.said(m, "took the node over") {
				t.Error("the history has a take-over")
			}
		})
	}
}

// TestAskedAtBoth: of two conductors that are asked for the same at once one takes it, and it is done once.
func TestAskedAtBoth(t *testing.T) {
	w := newWorld(t)
	_, c1, c2 := pair(w)
	m := w.add("n1")
	w.cond = c1
	w.walk(m, node.Available)
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, c := range []*conductor{c1, c2} {
		wg.Go(func() {
			errs[i] = c.eng.Provision(t.Context(), m.id, Request{Verb: node.Deploy, ConfigDrive: "http://drive-of/n1"})
			c1.eng.Wake(m.id)
		})
	}
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Errorf("asked at both: %v and %v, want one of them refused", errs[0], errs[1])
	}
	w.untilState(m, node.Active)
	checkDeployed(t, m, 1)
	errs = make([]error, 2)
	for i, c := range []*conductor{c1, c2} {
		wg.Go(func() {
			errs[i] = c.eng.SetPower(t.Context(), m.id, "rebooting", 0, "tester")
			c1.eng.Wake(m.id)
		})
	}
	wg.Wait()
	var locked *LockedError
	switch err := errors.Join(errs...); {
	case (errs[0] == nil) == (errs[1] == nil):
		// Both are taken if the first was done before the second came.
		if err != nil || w.node(m).Job != nil {
			t.Errorf("asked at both: %v and %v", errs[0], errs[1])
		}
	case !errors.As(err, &locked) || locked.Holder != "c1":
		t.Errorf("the second request = %v, want a LockedError that names c1", err)
	}
	w.until(m, "the end", func(n *node.Node) bool { return n.Job == nil })
}

// TestElsewhere: what asks the controller or the agent at once is done by the owner only; others name it.
func TestElsewhere(t *testing.T) {
	w := newWorld(t)
	_, c1, c2 := pair(w)
	m := w.add("n1")
	w.cond = c1
	w.walk(m, node.Manageable)
	m.mu.Lock()
	calls := 0
	m.callErr = func(string) error { calls++; return nil }
	m.mu.Unlock()
	ctx := t.Context()
	for name, ask := range map[string]func(e *Engine) error{
		"boot device": func(e *Engine) error { _, _, err := e.BootDevice(ctx, m.id); return err },
		"set boot device": func(e *Engine) error {
			return e.SetBootDevice(ctx, m.id, "pxe", false, "tester")
		},
		"password":      func(e *Engine) error { return e.SetControllerPassword(ctx, m.id, "p", "tester") },
		"reset network": func(e *Engine) error { return e.ResetNetwork(ctx, m.id, "tester") },
	} {
		var e *ElsewhereError
		if err := ask(c2.eng); !errors.As(err, &e) || e.Conductor != "c1" || e.Node != m.id {
			t.Errorf("%s at another conductor = %v, want an ElsewhereError that names c1", name, err)
		}
		if err := ask(c1.eng); errors.As(err, &e) {
			t.Errorf("%s at the owner = %v", name, err)
		}
	}
	m.mu.Lock()
	owners := calls
	m.mu.Unlock()
	if err := c2.eng.syncPower(ctx); err != nil {
		t.Error(err)
	}
	if _, err := c2.eng.Validate(ctx, m.id); err != nil {
		t.Error(err)
	}
	if devices, err := c2.eng.BootDevices(ctx, m.id); err != nil || len(devices) == 0 {
		t.Error(devices, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if calls != owners {
		t.Errorf("the controller was asked %d times by a conductor that does not own the node", calls-owners)
	}
}

// TestLeaseEndsInAJob: when a conductor's lease ends, it sends nothing any more, to controllers or agents, and nothing
// counts as a failure; when the lease is back the job goes on. That holds wherever in a deployment it ends.
func TestLeaseEndsInAJob(t *testing.T) {
	for at := range 20 {
		t.Run(fmt.Sprint(at), func(t *testing.T) { t.Parallel(); leaseEndsAt(t, 2*at+1) })
	}
}

func leaseEndsAt(t *testing.T, at int) {
	w := newWorld(t)
	f := newFleet("c1")
	w.member(f, "c1")
	m := w.add("n1")
	w.walk(m, node.Available)
	f.mu.Lock()
	count, ended, asks, plans := 0, make(chan struct{}), 0, 0
	f.checks = func(name string) {
		if count++; count != at {
			return
		}
		f.ended[name] = true // calls of a node are one after the other: none is on its way
		m.mu.Lock()
		defer m.mu.Unlock()
		asks, plans = len(m.asks), len(m.plansTaken)
		m.callErr = func(op string) error {
			t.Errorf("check %d: %q was sent without a lease", at, op)
			return nil
		}
		close(ended)
	}
	f.mu.Unlock()
	if err := w.current().eng.Provision(t.Context(), m.id,
		Request{Verb: node.Deploy, ConfigDrive: "http://drive-of/n1"}); err != nil {
		t.Fatal(err)
	}
	w.until(m, "the end of the lease, or of the work", func(n *node.Node) bool {
		select {
		case <-ended:
			return true
		default:
			return n.Job == nil && at > 20 // that many checks there are
		}
	})
	select {
	case <-ended:
	default:
		return
	}
	time.Sleep(20 * time.Millisecond)
	m.mu.Lock()
	if len(m.asks) != asks || len(m.plansTaken) != plans {
		t.Errorf("check %d: sent without a lease: %v, %d plans", at, m.asks[asks:], len(m.plansTaken)-plans)
	}
	m.callErr = nil
	m.mu.Unlock()
	n := w.node(m)
	if j := n.Job; j != nil && (j.Failure != "" || j.Attempt > 1 || strings.Contains(j.Detail, errEnded.Error())) {
		t.Errorf("check %d: the job counts it: failure %q, attempt %d, detail %q", at, j.Failure, j.Attempt, j.Detail)
	}
	f.lease("c1", true)
	w.untilState(m, node.Active)
	checkDeployed(t, m, 1)
	if w.said(m, "booted anew") || w.said(m, "power is cut") {
		t.Errorf("check %d: the machine paid for it", at)
	}
}

// TestFrozenOwner: an owner that is frozen until another has taken its node over stores nothing when it thaws, and its
// job is not done twice.
func TestFrozenOwner(t *testing.T) {
	w := newWorld(t)
	w.cfg.Rescan = 20 * time.Millisecond
	f, c1, c2 := pair(w)
	w.cond = c1
	m := w.add("n1")
	w.walk(m, node.Available)
	m.mu.Lock()
	m.stepTook = 50 * time.Millisecond
	m.mu.Unlock()
	// It hangs in a call to the controller, as it does while it is stopped.
	hangs, hung := make(chan struct{}), make(chan struct{}, 1)
	var frozen atomic.Bool
	hang := func() {
		if frozen.CompareAndSwap(false, true) { // calls of the other conductor go on
			hung <- struct{}{}
			<-hangs
		}
	}
	m.hang.Store(&hang)
	if err := c1.eng.Provision(t.Context(), m.id,
		Request{Verb: node.Deploy, ConfigDrive: "http://drive-of/n1"}); err != nil {
		t.Fatal(err)
	}
	<-hung
	f.lease("c1", false)
	f.die("c1")
	w.until(m, "take-over", func(n *node.Node) bool { return n.Conductor == "c2" })
	w.until(m, "work at the new owner", func(n *node.Node) bool {
		return n.Job == nil || n.Job.Current() != nil && n.Job.Current().InBand
	})
	close(hangs) // it thaws: the packet that it was at is late
	f.live("c1")
	f.lease("c1", true)
	_, err := c1.eng.change(context.Background(), m.id, func(n *node.Node, _ *node.SideEffects) error {
		n.LastError = "late"
		return nil
	})
	if !held(err) && !errors.Is(err, errFenced) {
		t.Errorf("a late write of the frozen owner = %v", err)
	}
	n := w.untilState(m, node.Active)
	if n.Conductor != "c2" {
		t.Errorf("the node is %s's, want c2's", n.Conductor)
	}
	checkDeployed(t, m, 1)
	m.mu.Lock()
	seen := map[string]int{}
	for _, p := range m.plansTaken {
		seen[p.ID]++
	}
	m.mu.Unlock()
	for id, times := range seen {
		if times > 1 {
			t.Errorf("plan %s was taken %d times", id, times)
		}
	}
	// Its new owner dies: it is back, and takes it.
	f.die("c2")
	c2.die()
	if err := c1.eng.SetPower(t.Context(), m.id, "power off", 0, "tester"); err != nil {
		t.Fatal(err)
	}
	w.until(m, "off", func(n *node.Node) bool {
		return n.Job == nil && n.Power == string(power.Off) && n.Conductor == "c1"
	})
}
