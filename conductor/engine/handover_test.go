package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/start"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// TestHandOver: a node whose job waits for its agent changes hands; the agent's plan goes on and is run once.
func TestHandOver(t *testing.T) {
	w := newWorld(t)
	w.cfg.Rescan = time.Hour
	_, c1, c2 := pair(w)
	w.cond = c1
	m := w.add("n1")
	w.walk(m, node.Available)
	m.mu.Lock()
	m.stepTook = 150 * time.Millisecond
	before := len(m.plansTaken)
	m.mu.Unlock()
	if err := c1.eng.Provision(t.Context(), m.id,
		Request{Verb: node.Deploy, ConfigDrive: "http://drive-of/n1"}); err != nil {
		t.Fatal(err)
	}
	w.until(m, "a running plan", func(n *node.Node) bool {
		s := n.Job.Current()
		return s != nil && s.InBand && s.Status == node.StepRunning
	})
	hand := func(c *conductor, to string) error {
		var locked *LockedError
		for {
			err := c.eng.HandOver(t.Context(), m.id, to)
			if !errors.As(err, &locked) { // a worker has it for a moment, after each result
				return err
			}
			time.Sleep(time.Millisecond)
		}
	}
	fence := w.node(m).Fence
	if err := hand(c1, "c2"); err != nil {
		t.Fatal(err)
	}
	n := w.node(m)
	if n.Conductor != "c2" || n.Fence <= fence || n.Job == nil || n.Reservation != "" && n.Reservation != "c2" {
		t.Fatalf("handed over: conductor %s, fence %d after %d, job %v, reservation %q", n.Conductor, n.Fence, fence,
			n.Job, n.Reservation)
	}
	if _, ok := c1.eng.Progress(m.id); ok {
		t.Error("the former owner still knows the progress")
	}
	c2.eng.Wake(m.id)
	if n = w.untilState(m, node.Active); n.Conductor != "c2" {
		t.Errorf("the node is %s's, want c2's", n.Conductor)
	}
	checkDeployed(t, m, 1)
	m.mu.Lock()
	plans, redirects := len(m.plansTaken)-before, m.redirects
	m.mu.Unlock()
	if redirects != 1 {
		t.Errorf("the agent was sent to the new owner %d times, want once", redirects)
	}
	if plans != 1 {
		t.Errorf("the agent got %d plans, want one", plans)
	}
	if !w.said(m, "handed over to conductor c2") || w.said(m, "does not answer") {
		t.Error("the history does not say how the node changed hands")
	}
	var invalid *InvalidError
	if err := hand(c2, "c3"); !errors.As(err, &invalid) {
		t.Errorf("handing over to a conductor that does not live = %v", err)
	}
	if err := hand(c1, "c1"); err != nil {
		t.Errorf("handing over to itself = %v", err)
	}
	if err := hand(c2, "c1"); err != nil {
		t.Fatal(err)
	}
	if err := hand(c2, "c1"); !held(err) {
		t.Errorf("handing over another's node = %v", err)
	}
	if err := c2.eng.SetPower(t.Context(), m.id, "power off", 0, "tester"); err != nil {
		t.Fatal(err)
	}
	c1.eng.Wake(m.id)
	w.until(m, "off at c1", func(n *node.Node) bool {
		return n.Job == nil && n.Power == string(power.Off) && n.Conductor == "c1"
	})
}

// TestHandOverWhileAConsoleIsRead: a node whose system is to show itself on the console stays until that is over: what
// the console says meanwhile would be lost, and the deployment fail.
func TestHandOverWhileAConsoleIsRead(t *testing.T) {
	w := newWorld(t)
	w.cfg = kexecConfig(start.Kexec, "console:never")
	f := newFleet("c1", "c2")
	w.cfg.Conductors = f.of("c1")
	w.cond = w.start(nil)
	m := available(t, w, "n1")
	w.must(m, node.Deploy)
	w.until(m, "the wait", func(n *node.Node) bool { return n.Job != nil && n.Job.Note == "sign" })
	f.drain("c1")
	f.placed(func(*node.Node) string { return "c2" })
	if l, err := w.cond.eng.HandAway(t.Context(), m.id); err != nil || l == nil || l.Nowhere ||
		!strings.Contains(l.Why, "its console is read") {
		t.Errorf("handing it away = %+v, %v", l, err)
	}
	w.must(m, node.Delete)
	w.until(m, "at c2", func(n *node.Node) bool {
		l, err := w.cond.eng.HandAway(t.Context(), m.id)
		return err == nil && l == nil && n.Conductor == "c2"
	})
}

// TestHandOverInAnAct: a node is not handed over while a call to its controller is under way.
func TestHandOverInAnAct(t *testing.T) {
	w := newWorld(t)
	_, c1, _ := pair(w)
	w.cond = c1
	m := w.add("n1")
	w.walk(m, node.Manageable)
	goesOn, hung := make(chan struct{}), make(chan struct{})
	var once sync.Once
	hang := func() { once.Do(func() { close(hung); <-goesOn }) }
	m.hang.Store(&hang)
	if err := c1.eng.SetPower(t.Context(), m.id, "power on", 0, "tester"); err != nil {
		t.Fatal(err)
	}
	<-hung
	var locked *LockedError
	if err := c1.eng.HandOver(t.Context(), m.id, "c2"); !errors.As(err, &locked) {
		t.Errorf("handing over in an act = %v, want a LockedError", err)
	}
	close(goesOn)
	if n := w.until(m, "the end", func(n *node.Node) bool { return n.Job == nil }); n.Conductor != "c1" {
		t.Errorf("the node is %s's", n.Conductor)
	}
}

// TestHandOverWhileTheControllerIsAsked: a node is not handed over while its power is read, or a client's request is
// answered, by its controller; and no list that is older than a hand-over has the former owner ask.
func TestHandOverWhileTheControllerIsAsked(t *testing.T) {
	w := newWorld(t)
	_, c1, c2 := pair(w)
	w.cond = c1
	m := w.add("n1")
	w.walk(m, node.Manageable)
	old, err := w.store.Idle(t.Context())
	if err != nil || len(old) != 1 {
		t.Fatal(old, err)
	}
	for what, ask := range map[string]func() error{
		"the power is read": func() error { return c1.eng.syncPower(t.Context()) },
		"a client asks": func() error {
			_, _, err := c1.eng.BootDevice(t.Context(), m.id)
			return err
		},
	} {
		w.settled(m) // a worker that has not ended would have the machine left out
		goesOn, hung, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		var once sync.Once
		hang := func() { once.Do(func() { close(hung); <-goesOn }) }
		m.hang.Store(&hang)
		go func() { ended <- ask() }()
		select {
		case <-hung:
		case err := <-ended:
			t.Fatalf("%s: the controller was not asked (%v)", what, err)
		}
		var locked *LockedError
		if err := c1.eng.HandOver(t.Context(), m.id, "c2"); !errors.As(err, &locked) {
			t.Errorf("handing over while %s = %v, want a LockedError", what, err)
		}
		close(goesOn)
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	w.settled(m)
	calls := 0
	m.mu.Lock()
	m.callErr = func(string) error { calls++; return nil }
	m.mu.Unlock()
	c1.eng.syncOne(t.Context(), old[0])
	if calls == 0 {
		t.Error("the owner does not read the power")
	}
	calls = 0
	if err := c1.eng.HandOver(t.Context(), m.id, "c2"); err != nil {
		t.Fatal(err)
	}
	c1.eng.syncOne(t.Context(), old[0])
	if calls > 0 {
		t.Error("the former owner has read the power")
	}
	c2.eng.syncOne(t.Context(), node.Idle{UUID: m.id, Conductor: "c2"})
	if calls == 0 {
		t.Error("the new owner does not read the power")
	}
}

// TestRebalance: idle nodes that are to be another conductor's move there, so many at a time, and no others;
// one that drains does not do so by itself.
func TestRebalance(t *testing.T) {
	w := newWorld(t)
	w.cfg.Rescan = time.Hour
	f, c1, c2 := pair(w)
	moving := map[string]bool{}
	var busy *machine
	for i := range handedPerRound + 40 {
		m := w.addFake(fmt.Sprint("n", i))
		w.edit(m, func(n *node.Node) {
			n.Provision, n.Conductor = node.Available, "c1"
			if i == 0 {
				n.Job = &node.Job{ID: "j", Phase: node.PhaseWarm,
					Steps: []node.JobStep{{Interface: "deploy", Name: catalog.StepHold, Status: node.StepDone}}}
			}
		})
		if i == 0 {
			busy = m
		}
		moving[m.id] = i < handedPerRound+20
	}
	f.placed(func(n *node.Node) string { return map[bool]string{true: "c2", false: "c1"}[moving[n.UUID]] })
	owned := func() (c2s, wrong int) {
		t.Helper()
		ids, err := w.store.UUIDs(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			n, err := w.store.Node(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if n.Conductor == "c2" {
				c2s++
				if !moving[id] || id == busy.id {
					wrong++
				}
			}
		}
		return c2s, wrong
	}
	round := func(want int) {
		t.Helper()
		for _, c := range []*conductor{c1, c2} {
			if err := c.eng.rebalance(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got, wrong := owned(); got != want || wrong > 0 {
			t.Errorf("c2 has %d nodes, %d of them wrongly, want %d", got, wrong, want)
		}
	}
	round(handedPerRound)
	round(handedPerRound + 19)
	round(handedPerRound + 19)
	f.lease("c1", false)
	for id := range moving {
		moving[id] = id != busy.id
	}
	round(handedPerRound + 19) // it may not act
	f.lease("c1", true)
	f.drain("c1")
	round(handedPerRound + 19)
	f.drains = map[string]bool{"c2": true}
	round(handedPerRound + 19)
	f.drains = nil
	round(handedPerRound + 39)
}

// TestHandAway: a conductor that drains hands over every node that another can have, whatever its state is; one that it
// is in an act on, and one that no other conductor can have, it names.
func TestHandAway(t *testing.T) {
	w := newWorld(t)
	w.cfg.Rescan = time.Hour
	f, c1, c2 := pair(w)
	w.cond = c1
	acting := w.add("acting")
	w.walk(acting, node.Manageable)
	goesOn, hung := make(chan struct{}), make(chan struct{})
	var once sync.Once
	hang := func() { once.Do(func() { close(hung); <-goesOn }) }
	acting.hang.Store(&hang)
	if err := c1.eng.SetPower(t.Context(), acting.id, "power on", 0, "tester"); err != nil {
		t.Fatal(err)
	}
	<-hung
	var moving []*machine
	for i, change := range []func(n *node.Node){
		func(n *node.Node) { n.Provision = node.Enroll },
		func(n *node.Node) { n.Provision, n.Maintenance = node.Available, true },
		func(n *node.Node) { n.Provision, n.Power = node.Available, string(power.On) },
		func(n *node.Node) { n.Provision, n.Quarantine = node.Active, &node.Quarantine{Reason: "a test"} },
		func(n *node.Node) {
			n.Provision = node.Available
			n.Job = &node.Job{ID: "j", Phase: node.PhaseWarm,
				Steps: []node.JobStep{{Interface: "deploy", Name: catalog.StepHold, Status: node.StepDone}}}
		},
	} {
		m := w.addFake(fmt.Sprint("n", i))
		w.edit(m, func(n *node.Node) { n.Conductor = "c1"; change(n) })
		moving = append(moving, m)
	}
	alone := w.addFake("alone")
	w.edit(alone, func(n *node.Node) { n.Conductor, n.ConductorGroup = "c1", "rack7" })
	f.drain("c1")
	f.placed(func(n *node.Node) string { return map[bool]string{true: "c1", false: "c2"}[n.UUID == alone.id] })
	ids, err := c1.eng.Owned(t.Context())
	if err != nil || len(ids) != len(moving)+2 {
		t.Fatalf("c1 owns %d nodes, %v; want %d", len(ids), err, len(moving)+2)
	}
	round := func() (left map[string]Left) {
		t.Helper()
		left = map[string]Left{}
		for _, id := range ids {
			l, err := c1.eng.HandAway(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if l != nil {
				left[l.UUID] = *l
			}
		}
		return left
	}
	left := round()
	if l := left[acting.id]; len(left) != 2 || l.Nowhere || !strings.Contains(l.Why, "worked on (power, step ") ||
		l.Name != "acting" {
		t.Errorf("left are %+v", left)
	}
	if l := left[alone.id]; !l.Nowhere || !strings.Contains(l.Why, `"rack7" with hardware type sim`) {
		t.Errorf("the node of a group without another conductor is left as %+v", l)
	}
	for _, m := range moving {
		if n := w.node(m); n.Conductor != "c2" {
			t.Errorf("%s is %s's", n.Name, n.Conductor)
		}
	}
	f.drain("c2") // two that drain do not pass nodes to and fro
	if got := round(); len(got) != 2 || !got[acting.id].Nowhere {
		t.Errorf("with no conductor that takes nodes left are %+v", got)
	}
	f.drains = map[string]bool{"c1": true}
	f.lease("c1", false)
	if _, err := c1.eng.HandAway(t.Context(), acting.id); !lapsed(err) {
		t.Errorf("handing away without a lease: %v", err)
	}
	f.lease("c1", true)
	close(goesOn)
	for len(round()) > 1 {
		time.Sleep(time.Millisecond)
	}
	c2.eng.Wake(acting.id)
	w.until(acting, "the end at c2", func(n *node.Node) bool { return n.Job == nil && n.Conductor == "c2" })
	if left, err := c1.eng.HandAway(t.Context(), acting.id); left != nil || err != nil {
		t.Errorf("handing another's node away = %+v, %v", left, err)
	}
}

// TestPowerReadFirst: a conductor that takes a job over reads the power of the machine before anything else, since the
// conductor before may have changed it after it was last recorded.
func TestPowerReadFirst(t *testing.T) {
	w := newWorld(t)
	w.cfg.Rescan = 10 * time.Millisecond
	f := newFleet("c1", "c2")
	w.cfg.Conductors = f.of("c1")
	seen := make(chan struct{})
	c1 := w.start(&crash{moment: func(n *node.Node) bool {
		at := n.Job != nil && n.Job.Phase == node.PhaseDeploy && n.Job.Note == "device"
		if at {
			close(seen)
		}
		return at
	}})
	m := w.add("n1")
	w.walk(m, node.Available)
	if err := w.ask(m, node.Deploy); err != nil && !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	<-seen
	<-c1.ended
	var ops []string
	m.mu.Lock()
	m.on = true // by a late packet: not as a boot of the agent
	m.callErr = func(op string) error { ops = append(ops, op); return nil }
	m.mu.Unlock()
	f.die("c1")
	w.member(f, "c2")
	w.untilState(m, node.Active)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(ops) == 0 || ops[0] != "read power state" {
		t.Errorf("the new owner asked the controller first to %v", ops[:min(3, len(ops))])
	}
	if !w.said(m, "turned off again") {
		t.Error("the history does not show the late packet")
	}
}

// TestTurnedOffLate: a machine that a late packet of the former owner turned off while it was to boot the agent boots
// it again.
func TestTurnedOffLate(t *testing.T) {
	w := newWorld(t)
	w.cfg.Rescan = 10 * time.Millisecond
	f := newFleet("c1", "c2")
	w.cfg.Conductors = f.of("c1")
	seen := make(chan struct{})
	c1 := w.start(&crash{moment: func(n *node.Node) bool {
		at := n.Job != nil && n.Job.Phase == node.PhaseDeploy && n.Job.Note == "wait"
		if at {
			close(seen)
		}
		return at
	}})
	m := w.add("n1")
	w.walk(m, node.Available)
	if err := w.ask(m, node.Deploy); err != nil && !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	<-seen
	<-c1.ended
	m.mu.Lock()
	m.turnOff()
	m.mu.Unlock()
	f.die("c1")
	w.member(f, "c2")
	w.untilState(m, node.Active)
	if !w.said(m, "booted anew: the machine is off") {
		t.Error("the history does not show the late packet")
	}
}

// TestTakeOverIsSpread: thousands of nodes of a conductor that died are looked at evenly over ten seconds, one is at
// once; and each conductor works on so many at a time as ever.
func TestTakeOverIsSpread(t *testing.T) {
	for _, c := range []struct {
		nodes, most int // in a tenth of a second
		within      time.Duration
	}{{1, 1, 0}, {500, 11, 5 * time.Second}, {5000, 51, 10 * time.Second}} {
		t.Run(fmt.Sprint(c.nodes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := New(nil, nil, nil, nil, Config{}, nil)
				ids := make([]string, c.nodes)
				for i := range ids {
					ids[i] = fmt.Sprint("n", i)
				}
				began := time.Now()
				e.wakeAll(ids)
				looked := map[time.Duration]int{}
				for range ids {
					if _, ok := e.queue.Next(t.Context()); !ok {
						t.Fatal("a node is not looked at")
					}
					looked[time.Since(began)/(time.Second/10)]++
				}
				if most := slices.Max(slices.Collect(maps.Values(looked))); most > c.most {
					t.Errorf("%d nodes were looked at in a tenth of a second, want %d at most", most, c.most)
				}
				if took := time.Since(began); took > c.within {
					t.Errorf("the last one was looked at after %s, want %s", took, c.within)
				}
				if e.cfg.Workers != 32 {
					t.Errorf("%d nodes are worked on at a time", e.cfg.Workers)
				}
			})
		})
	}
}

// TestKeptAgentsOfOthers: a conductor that looks for work leaves out nodes that another one keeps with their agents,
// until that one has died.
func TestKeptAgentsOfOthers(t *testing.T) {
	w := newWorld(t)
	w.cfg.FastTrack, w.cfg.Rescan = true, time.Hour
	f, c1, c2 := pair(w)
	w.cond = c1
	m := w.add("n1")
	w.walk(m, node.Available)
	finds := func(e *Engine) int {
		t.Helper()
		ids, err := e.unfinished(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(ids)
	}
	if n := w.node(m); !n.Boot.Kept || n.Conductor != "c1" {
		t.Fatalf("the agent is kept: %v, by %s", n.Boot.Kept, n.Conductor)
	}
	if own, others := finds(c1.eng), finds(c2.eng); own != 1 || others != 0 {
		t.Errorf("its owner finds %d nodes, the other conductor %d, want 1 and 0", own, others)
	}
	f.die("c1")
	if n := finds(c2.eng); n != 1 {
		t.Errorf("of a conductor that died %d nodes are found, want 1", n)
	}
}
