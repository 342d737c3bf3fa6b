package engine

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// TestTakeOver: two conductors share a store. What one leaves undone when it dies the other takes up when the lease is
// over, and not before; the dead one's lock goes with it.
func TestTakeOver(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lease, w.cfg.Rescan = 400*time.Millisecond, 20*time.Millisecond
	first := w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	m.mu.Lock()
	m.stepTook = 100 * time.Millisecond
	m.mu.Unlock()
	if err := first.eng.Provision(t.Context(), m.id,
		Request{Verb: node.Deploy, ConfigDrive: "http://drive-of/n1", User: "tester"}); err != nil {
		t.Fatal(err)
	}
	w.until(m, "deploying", func(n *node.Node) bool {
		return n.Provision == node.Deploying || n.Provision == node.DeployWait
	})
	w.kill()
	died := w.node(m)
	w.cfg.Hostname = "c2"
	w.start(nil)
	n := w.until(m, "take-over", func(n *node.Node) bool { return n.Conductor == "c2" })
	if at := time.Now(); at.Before(died.LeaseUntil.Add(-10 * time.Millisecond)) {
		t.Errorf("taken over %s before the lease was over", died.LeaseUntil.Sub(at))
	}
	if n.Fence <= died.Fence || n.Reservation != "" && n.Reservation != "c2" {
		t.Errorf("fence %d after %d, reservation %q", n.Fence, died.Fence, n.Reservation)
	}
	w.untilState(m, node.Active)
	checkDeployed(t, m, 1)
}

// TestTwoConductors: of two that live on one store each does what it was asked for, and neither touches the other's
// nodes.
func TestTwoConductors(t *testing.T) {
	w := newWorld(t)
	w.cfg.Rescan, w.cfg.PowerSync = 5*time.Millisecond, 5*time.Millisecond
	first := w.start(nil)
	cfg := w.cfg
	cfg.Hostname = "c2"
	second := New(w.store, drivers{first}, nil, nil, cfg, nil)
	second.SetPlugs(&w.plugs)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- second.Run(ctx) }()
	var wg sync.WaitGroup
	for i := range 20 {
		m := w.addFake(fmt.Sprint("n", i))
		eng, name := first.eng, "c1"
		if i%2 == 1 {
			eng, name = second, "c2"
		}
		wg.Go(func() {
			for _, v := range []node.Verb{node.Manage, node.Provide, node.Deploy} {
				if err := eng.Provision(ctx, m.id, Request{Verb: v}); err != nil {
					t.Errorf("%s by %s: %v", v, name, err)
					return
				}
				w.until(m, string(v), func(n *node.Node) bool { return n.Job == nil })
			}
			if n := w.node(m); n.Provision != node.Active || n.Conductor != name {
				t.Errorf("node %s is %s with %s, want active with %s (%s)", n.Name, n.Provision, n.Conductor, name,
					n.LastError)
			}
		})
	}
	wg.Wait()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestOrphanLock: a lock without work behind it is freed: at once if it is of a conductor of this name from before,
// else when its time is over.
func TestOrphanLock(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lease = time.Hour // longer than the test
	m, o := w.addFake("n1"), w.addFake("n2")
	over := time.Now().Add(time.Second)
	w.edit(m, func(n *node.Node) { n.Reservation, n.ReservedAt = "c1", time.Now().UTC() })
	w.edit(o, func(n *node.Node) { n.Reservation, n.ReservedAt = "dead", over.Add(-w.cfg.Lease).UTC() })
	w.start(nil)
	w.until(m, "no lock", func(n *node.Node) bool { return n.Reservation == "" })
	w.until(o, "no lock", func(n *node.Node) bool { return n.Reservation == "" })
	if early := time.Until(over); early > 10*time.Millisecond {
		t.Errorf("the lock of another conductor was freed %s before its time was over", early)
	}
}

// TestThousandAtOnce: requests for a thousand nodes at once are all taken, and all of them are carried out, one at a
// time for those that share a controller.
func TestThousandAtOnce(t *testing.T) {
	nodes := 1000
	if raceOn {
		nodes = 250
	}
	w := newWorld(t)
	w.start(nil)
	var machines []*machine
	for i := range nodes {
		m := w.addFake(fmt.Sprint("n", i))
		m.key = fmt.Sprint("chassis", i/8)
		machines = append(machines, m)
	}
	for _, c := range []struct {
		ask  func(*machine) error
		ends func(*node.Node) bool
	}{
		{func(m *machine) error { return w.ask(m, node.Manage) },
			func(n *node.Node) bool { return n.Job == nil && n.Provision == node.Manageable }},
		{func(m *machine) error {
			return w.current().eng.SetPower(context.Background(), m.id, "rebooting", 0, "tester")
		}, func(n *node.Node) bool { return n.Job == nil && n.Power == string(power.On) }},
	} {
		var wg sync.WaitGroup
		for _, m := range machines {
			wg.Go(func() {
				if err := c.ask(m); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, m := range machines {
			w.until(m, "the end", c.ends)
		}
	}
	if held := w.current().eng.queue.Len(); held > 2*nodes {
		t.Errorf("the queue holds %d entries for %d nodes", held, nodes)
	}
}

// TestUUIDOfADeletedNode: a node that is made with the UUID of a deleted one has no owner, and the first request to it
// is served.
func TestUUIDOfADeletedNode(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.addFake("n1")
	w.want(m, Request{Verb: node.Manage}, node.Manageable)
	if err := w.store.DeleteNode(t.Context(), m.id); err != nil {
		t.Fatal(err)
	}
	again := &node.Node{UUID: m.id, Name: "n1-again", Provision: node.Enroll, Driver: "fake-hardware"}
	if err := w.store.CreateNode(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if n := w.node(m); n.Conductor != "" || n.Fence != 0 {
		t.Fatalf("a new node has the owner %q and fence %d", n.Conductor, n.Fence)
	}
	if err := w.current().eng.SetPower(t.Context(), m.id, "power on", 0, "tester"); err != nil {
		t.Fatal(err)
	}
	w.until(m, "power on", func(n *node.Node) bool { return n.TargetPower == "" && n.Conductor == w.cfg.Hostname })
}
