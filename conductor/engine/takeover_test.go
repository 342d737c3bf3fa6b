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

// member makes the world's next conductor one of a fleet.
func (w *world) member(f *fleet, name string) *conductor {
	w.cfg.Hostname, w.cfg.Conductors = name, f.of(name)
	return w.start(nil)
}

// TestTakeOver: two conductors share a store. What one leaves undone when it dies the other takes up when it is taken
// to be dead, and not before; the dead one's lock goes with it, and the history says so.
func TestTakeOver(t *testing.T) {
	w := newWorld(t)
	w.cfg.Rescan = 20 * time.Millisecond
	f := newFleet("c1", "c2")
	first := w.member(f, "c1")
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
	w.member(f, "c2")
	time.Sleep(5 * w.cfg.Rescan)
	if n := w.node(m); n.Conductor != "c1" || n.Fence != died.Fence {
		t.Errorf("taken over by %s while its owner is taken to be alive", n.Conductor)
	}
	f.die("c1")
	n := w.until(m, "take-over", func(n *node.Node) bool { return n.Conductor == "c2" })
	if n.Fence <= died.Fence || n.Reservation != "" && n.Reservation != "c2" {
		t.Errorf("fence %d after %d, reservation %q", n.Fence, died.Fence, n.Reservation)
	}
	w.untilState(m, node.Active)
	checkDeployed(t, m, 1)
	if !w.said(m, "conductor c2 took the node over from c1, which does not answer") {
		t.Error("the history does not say that the node changed hands")
	}
}

// TestTwoConductors: of two that live on one store each does what concerns its own nodes, whichever of them was asked.
func TestTwoConductors(t *testing.T) {
	w := newWorld(t)
	w.cfg.Rescan, w.cfg.PowerSync = 5*time.Millisecond, 5*time.Millisecond
	f := newFleet("c1", "c2")
	var mu sync.Mutex
	places := map[string]string{}
	f.placed(func(n *node.Node) string {
		mu.Lock()
		defer mu.Unlock()
		return places[n.UUID]
	})
	asked := []*conductor{w.member(f, "c1"), w.member(f, "c2")}
	var wg sync.WaitGroup
	for i := range 20 {
		m := w.addFake(fmt.Sprint("n", i))
		name := fmt.Sprint("c", 1+i%2)
		mu.Lock()
		places[m.id] = name
		mu.Unlock()
		wg.Go(func() {
			for k, v := range []node.Verb{node.Manage, node.Provide, node.Deploy} {
				if err := asked[(i/2+k)%2].eng.Provision(t.Context(), m.id, Request{Verb: v}); err != nil {
					t.Errorf("%s of %s's: %v", v, name, err)
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
}

// TestOrphanLock: a lock without work behind it is freed at once if it is of a conductor of this name from before, or
// of one that does not live; that of another that lives is left, until it has had it for too long.
func TestOrphanLock(t *testing.T) {
	w := newWorld(t)
	w.cfg.Rescan = 20 * time.Millisecond
	locked := func(name, by string, ago time.Duration) *machine {
		m := w.addFake(name)
		w.edit(m, func(n *node.Node) { n.Reservation, n.ReservedAt = by, time.Now().Add(-ago).UTC() })
		return m
	}
	mine, dead := locked("n1", "c1", 0), locked("n2", "dead", 0)
	other, old := locked("n3", "c2", 0), locked("n4", "c2", longestLock+time.Second)
	w.member(newFleet("c1", "c2"), "c1")
	for _, m := range []*machine{mine, dead, old} {
		w.until(m, "no lock", func(n *node.Node) bool { return n.Reservation == "" })
	}
	time.Sleep(3 * w.cfg.Rescan)
	if n := w.node(other); n.Reservation != "c2" {
		t.Error("the lock of another conductor, which lives, was freed")
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
