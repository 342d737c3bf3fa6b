package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

func TestTwoNodesAtOnce(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	a, b := w.add("a"), w.add("b")
	a.key, b.key = "chassis", "chassis" // one controller for both
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.walk(b, node.Active)
	}()
	w.walk(a, node.Active)
	<-done
	checkDeployed(t, a, 1)
	checkDeployed(t, b, 1)
}

// TestOneControllerAtATime: of many nodes behind one controller only one is worked on at any time, and none starves.
func TestOneControllerAtATime(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	var inUse, most int
	var machines []*machine
	busy := make(chan struct{}, 1)
	for i := range 8 {
		m := w.add(fmt.Sprint("n", i))
		m.key = "chassis"
		m.callErr = func(string) error {
			select {
			case busy <- struct{}{}:
			default:
				return errors.New("two at once")
			}
			inUse++
			most = max(most, inUse)
			time.Sleep(time.Millisecond)
			inUse--
			<-busy
			return nil
		}
		machines = append(machines, m)
		w.must(m, node.Manage)
	}
	for _, m := range machines {
		w.untilState(m, node.Manageable)
	}
	if most != 1 {
		t.Errorf("%d at once", most)
	}
}

func TestAbort(t *testing.T) {
	t.Run("waiting for the agent to boot", func(t *testing.T) {
		w := newWorld(t)
		w.start(nil)
		m := w.add("n1")
		w.must(m, node.Manage)
		w.untilState(m, node.Manageable)
		m.noNetBoot = true
		w.must(m, node.Inspect)
		w.until(m, "inspect wait", func(n *node.Node) bool { return n.Provision == node.InspectWait })
		w.must(m, node.Abort)
		n := w.untilState(m, node.InspectFailed)
		wantError(t, n, "By request", "inspect", "aborted by tester")
		if n.Power != "power off" || n.Boot.WindowOpen(time.Now()) {
			t.Errorf("power %q, boot %+v", n.Power, n.Boot)
		}
	})
	for _, c := range []struct {
		step  string
		from  node.State
		verb  node.Verb
		ends  node.State
		waits bool // the step is not abortable
	}{
		{"erase_devices_metadata", node.Manageable, node.Provide, node.CleanFailed, false},
		{"write_image", node.Available, node.Deploy, node.DeployFailed, true},
	} {
		t.Run(c.step, func(t *testing.T) {
			w := newWorld(t)
			w.cfg.AgentSteps = catalog.BuiltinSteps()
			for i, s := range w.cfg.AgentSteps {
				w.cfg.AgentSteps[i].Abortable = s.Abortable && s.Name != "write_image"
			}
			w.start(nil)
			m := w.add("n1")
			w.walk(m, c.from)
			hold := make(chan struct{})
			finished := false
			m.mu.Lock()
			m.behave[c.step] = func(a *agent, _ node.PlanStep) (node.StepResult, bool) {
				select {
				case <-hold:
					finished = true
				case <-a.ctx.Done():
				}
				return node.StepResult{}, false
			}
			m.mu.Unlock()
			w.must(m, c.verb)
			w.until(m, c.step, func(n *node.Node) bool {
				s := n.Job.Current()
				return s != nil && s.Name == c.step && s.Status == node.StepRunning
			})
			w.must(m, node.Abort)
			if c.waits {
				w.until(m, "the agent being told", func(*node.Node) bool {
					m.mu.Lock()
					defer m.mu.Unlock()
					return m.cancels > 0
				})
				time.Sleep(20 * time.Millisecond)
				if n := w.node(m); n.Provision != node.DeployWait {
					t.Errorf("a step that can't be stopped was: state %s", n.Provision)
				}
				close(hold)
			}
			wantError(t, w.untilState(m, c.ends), "aborted by tester",
				map[bool]string{false: "during step " + c.step, true: "before step prepare_instance_boot"}[c.waits])
			m.mu.Lock()
			defer m.mu.Unlock()
			if finished != c.waits || m.on || m.bootable {
				t.Errorf("finished %v, on %v, bootable %v", finished, m.on, m.bootable)
			}
		})
	}
}

func TestUndeployWhileWaiting(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	m.mu.Lock()
	m.stepTook = time.Hour
	m.mu.Unlock()
	w.must(m, node.Deploy)
	w.until(m, "write_image", func(n *node.Node) bool {
		s := n.Job.Current()
		return s != nil && s.Name == "write_image" && s.Status == node.StepRunning
	})
	m.mu.Lock()
	old := m.agent
	m.stepTook = time.Millisecond
	m.mu.Unlock()
	w.must(m, node.Delete)
	w.untilState(m, node.Available)
	// What the old agent still has to say counts for nothing.
	err := w.current().eng.AgentEvent(t.Context(),
		node.AgentEvent{NodeUUID: m.id, BootID: old.bootID, Seq: 99, PlanFinished: &node.PlanResult{Done: true}})
	var stale *StaleAgentError
	if up := w.current().eng.AgentUp(t.Context(), old.state()); err != nil || !errors.As(up, &stale) {
		t.Errorf("event of an old boot = %v, session = %v", err, up)
	}
}

func TestPowerVerbs(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	eng := w.current().eng
	for _, c := range []struct{ target, asks, ends string }{
		{"power on", "on", "power on"},
		{"power on", "", "power on"},
		{"rebooting", "off on", "power on"},
		{"soft rebooting", "soft off on", "power on"},
		{"soft power off", "soft off", "power off"},
		{"rebooting", "on", "power on"},
		{"power off", "off", "power off"},
	} {
		m.mu.Lock()
		m.asks = nil
		m.mu.Unlock()
		if err := eng.SetPower(t.Context(), m.id, c.target, 0, "tester"); err != nil {
			t.Fatal(err)
		}
		n := w.until(m, c.target, func(n *node.Node) bool { return n.TargetPower == "" })
		m.mu.Lock()
		if got := strings.Join(m.asks, " "); got != c.asks || n.Power != c.ends || n.Job != nil ||
			n.Reservation != "" || n.LastError != "" {
			t.Errorf("%s: asked %q, power %q, reservation %q, error %q; want %q and %q", c.target, got, n.Power,
				n.Reservation, n.LastError, c.asks, c.ends)
		}
		m.mu.Unlock()
	}
	var invalid *InvalidError
	if err := eng.SetPower(t.Context(), m.id, "explode", 0, ""); !errors.As(err, &invalid) {
		t.Errorf("power explode = %v", err)
	}

	// One that does not happen fails in its time, and says so.
	m.mu.Lock()
	m.staysOff = true
	m.mu.Unlock()
	asked := make(chan struct{})
	hang := func() { <-asked } // so that its time is not over before the others are asked for
	m.hang.Store(&hang)
	if err := eng.SetPower(t.Context(), m.id, "power on", 50*time.Millisecond, ""); err != nil {
		t.Fatal(err)
	}
	var locked *LockedError
	if err := eng.SetPower(t.Context(), m.id, "power on", 0, ""); !errors.As(err, &locked) {
		t.Errorf("a second power action = %v, want a LockedError", err)
	}
	if err := w.ask(m, node.Inspect); !errors.As(err, &locked) {
		t.Errorf("inspect during a power action = %v, want a LockedError", err)
	}
	close(asked)
	n := w.until(m, "the end", func(n *node.Node) bool { return n.TargetPower == "" })
	wantError(t, n, "stays off after 50ms")
	if n.Provision != node.Manageable {
		t.Errorf("a failed power action moved the node to %s", n.Provision)
	}
}

func TestPowerWhileCleaning(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	m.mu.Lock()
	m.noNetBoot = true
	m.mu.Unlock()
	w.must(m, node.Manage)
	w.must(m, node.Provide)
	w.until(m, "clean wait", func(n *node.Node) bool { return n.Provision == node.CleanWait })
	var invalid *InvalidError
	if err := w.current().eng.SetPower(t.Context(), m.id, "power off", 0, ""); !errors.As(err, &invalid) {
		t.Errorf("power during cleaning = %v, want an InvalidError", err)
	}
}

// TestPowerSync: the record follows the machine, never the other way round; a controller that is gone becomes a fault,
// and back.
func TestPowerSync(t *testing.T) {
	w := newWorld(t)
	w.cfg.PowerSync = 5 * time.Millisecond
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Active)
	m.mu.Lock()
	m.asks = nil
	m.mu.Unlock()
	m.pull()
	w.until(m, "power off", func(n *node.Node) bool { return n.Power == "power off" })
	m.mu.Lock()
	m.callErr = func(string) error {
		return &power.Error{Kind: power.Unreachable, Op: "read power state", Err: errors.New("no answer")}
	}
	m.mu.Unlock()
	n := w.until(m, "a fault", func(n *node.Node) bool { return n.Fault == node.FaultPower })
	if n.Power != "" || n.Maintenance || n.Provision != node.Active {
		t.Errorf("with a dead controller: power %q, maintenance %v, state %s", n.Power, n.Maintenance, n.Provision)
	}
	wantError(t, n, "no answer")
	m.mu.Lock()
	m.callErr = nil
	m.mu.Unlock()
	w.until(m, "no fault", func(n *node.Node) bool { return n.Fault == "" && n.Power == "power off" })
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.asks) != 0 {
		t.Errorf("power sync asked for %v", m.asks)
	}
}

// TestInspectAgain: ports that are there stay as they are, and those of other nodes where they are.
func TestInspectAgain(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m, other := w.add("n1"), w.add("other")
	mine := &node.Port{NodeUUID: m.id, Address: "52:54:00:" + m.macTail(), PXEEnabled: false, Description: "by hand"}
	theirs := &node.Port{NodeUUID: other.id, Address: "52:54:01:" + m.macTail()}
	for _, p := range []*node.Port{mine, theirs} {
		if err := w.store.CreatePort(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	w.walk(m, node.Available)
	for _, p := range []*node.Port{mine, theirs} {
		got, err := w.store.PortByMAC(t.Context(), p.Address)
		if err != nil || got.UUID != p.UUID || got.PXEEnabled != p.PXEEnabled || got.NodeUUID != p.NodeUUID {
			t.Errorf("port %s is now %+v (%v)", p.Address, got, err)
		}
	}
	h, _ := w.store.History(t.Context(), m.id, 0)
	if !slices.ContainsFunc(h, func(e node.HistoryEntry) bool {
		return strings.Contains(e.Event, "is a port of node "+other.id)
	}) {
		t.Error("the history does not say that a port belongs to another node")
	}
}

// TestPatchDuringWork: fields that clients change meanwhile are kept, and disturb nothing.
func TestPatchDuringWork(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	stop, gone := make(chan struct{}), make(chan struct{})
	n := 0
	go func() {
		defer close(gone)
		for {
			select {
			case <-stop:
				return
			default:
			}
			n++
			_, err := w.store.UpdateNode(context.Background(), m.id,
				func(nd *node.Node) error { nd.Extra = map[string]any{"n": n}; return nil })
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	w.walk(m, node.Active)
	close(stop)
	<-gone
	checkDeployed(t, m, 1)
	if got := w.node(m).Extra["n"]; got != float64(n) {
		t.Errorf("extra is %v after %d changes", got, n)
	}
}

// TestFakeInterfaces: a node whose deploy and inspect interfaces are fakes walks through all states with nothing but
// its power.
func TestFakeInterfaces(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	_, err := w.store.UpdateNode(t.Context(), m.id, func(n *node.Node) error {
		n.Interfaces = map[string]string{"deploy": "fake", "inspect": "fake"}
		n.InstanceInfo = nil
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	w.walk(m, node.Active)
	w.must(m, node.Delete)
	w.untilState(m, node.Available)
	if m.pxeBoots != 0 {
		t.Errorf("a machine with fake interfaces was booted into the agent %d times", m.pxeBoots)
	}
}

// TestDisablePowerOff: a machine that must not be turned off is restarted instead.
func TestDisablePowerOff(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	_, err := w.store.UpdateNode(t.Context(), m.id, func(n *node.Node) error { n.DisablePowerOff = true; return nil })
	if err != nil {
		t.Fatal(err)
	}
	w.walk(m, node.Active)
	checkDeployed(t, m, 1)
	m.mu.Lock()
	for _, a := range m.asks {
		if strings.Contains(a, "off") {
			t.Errorf("the machine was turned off: %v", m.asks)
			break
		}
	}
	m.mu.Unlock()
	var invalid *InvalidError
	if err := w.current().eng.SetPower(t.Context(), m.id, "power off", 0, ""); !errors.As(err, &invalid) {
		t.Errorf("power off = %v, want an InvalidError", err)
	}
}

func TestCleaningOff(t *testing.T) {
	w := newWorld(t)
	w.cfg.AutomatedClean = false
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Active)
	w.must(m, node.Delete)
	w.untilState(m, node.Available)
	if len(m.plansTaken) != 2 {
		t.Errorf("%d plans, want those of inspection and deployment only", len(m.plansTaken))
	}
}

func TestBootDevice(t *testing.T) {
	ctx := t.Context()
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	eng := w.current().eng
	if err := eng.SetBootDevice(ctx, m.id, "disk", true, "tester"); err != nil {
		t.Fatal(err)
	}
	if d, persistent, err := eng.BootDevice(ctx, "n1"); err != nil || d != "disk" || !persistent {
		t.Errorf("BootDevice = %q, %v, %v", d, persistent, err)
	}
	var invalid *InvalidError
	if err := eng.SetBootDevice(ctx, m.id, "floppy", true, ""); !errors.As(err, &invalid) {
		t.Errorf("boot device floppy = %v", err)
	}
	if ds, err := eng.BootDevices(ctx, m.id); err != nil || len(ds) != 2 {
		t.Errorf("BootDevices = %v, %v", ds, err)
	}
}

func TestProgress(t *testing.T) {
	w := newWorld(t)
	eng := w.start(nil).eng
	if _, ok := eng.Progress("n"); ok {
		t.Error("progress out of nothing")
	}
	eng.AgentProgress("n", node.Progress{Step: "write_image", Bytes: 5, Total: 10})
	if p, ok := eng.Progress("n"); !ok || p.Bytes != 5 || p.At.IsZero() {
		t.Errorf("Progress = %+v, %v", p, ok)
	}
}

// TestAdopt takes over a machine that runs already without touching it.
func TestAdopt(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	m.on = true
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	w.must(m, node.Adopt)
	n := w.untilState(m, node.Active)
	if len(m.asks) != 0 || n.Power != "power on" {
		t.Errorf("adoption asked the controller for %v; power %q", m.asks, n.Power)
	}
}

// TestSilence: a connected agent that says nothing for too long is booted anew.
func TestSilence(t *testing.T) {
	w := newWorld(t)
	w.cfg.Silence = 20 * time.Second
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	var before atomic.Bool // the agent of one boot, then that of the next
	m.mu.Lock()
	m.behave["write_image"] = func(a *agent, _ node.PlanStep) (node.StepResult, bool) {
		if !before.Swap(true) {
			<-a.ctx.Done()
		}
		return node.StepResult{}, false
	}
	m.mu.Unlock()
	if err := w.current().eng.Provision(t.Context(), m.id, drive(w, m)); err != nil {
		t.Fatal(err)
	}
	boots := -1
	w.until(m, "the second boot", func(n *node.Node) bool {
		s := n.Job.Current()
		if s == nil || s.Name != "write_image" || s.Status != node.StepRunning {
			return boots >= 0 && m.boots() > boots
		}
		if boots < 0 {
			boots = m.boots()
		}
		w.silent(m)
		return m.boots() > boots
	})
	w.untilState(m, node.Active)
	checkDeployed(t, m, 2)
}

// silent lets hours pass since the agent of a machine last said something about its plan.
func (w *world) silent(m *machine) {
	w.t.Helper()
	const hours = 5 * time.Hour
	w.edit(m, func(n *node.Node) {
		if n.Job != nil && time.Since(n.Job.PlanSent) < hours && !n.Job.PlanSent.IsZero() {
			n.Job.PlanSent = n.Job.PlanSent.Add(-hours)
		}
	})
	eng := w.current().eng
	eng.mu.Lock()
	eng.alive[m.id] = time.Now().Add(-hours)
	eng.mu.Unlock()
	eng.wake(m.id)
}

// picky is a network that a node may lack something for.
type picky struct {
	movable
	fault error
}

func (p *picky) Validate(context.Context, *node.Node) error { return p.fault }

// TestNetworkIsCheckedBeforeTheMachineIsTouched: what a network plug finds wrong is said by validate, and refuses the
// deployment before it begins.
func TestNetworkIsCheckedBeforeTheMachineIsTouched(t *testing.T) {
	w := newWorld(t)
	eng := w.start(nil).eng
	net := &picky{fault: errors.New("no network is attached")}
	m := w.add("n1")
	w.walk(m, node.Available)
	eng.network = net
	boots := m.boots()
	v, err := eng.Validate(t.Context(), m.id)
	if err != nil || *v["network"].Result || !strings.Contains(v["network"].Reason, "no network is attached") {
		t.Errorf("validate: %+v, %v", v["network"], err)
	}
	var invalid *InvalidError
	if err := eng.Provision(t.Context(), m.id, Request{Verb: node.Deploy}); !errors.As(err, &invalid) {
		t.Errorf("deploy = %v, want an InvalidError", err)
	}
	n, err := w.store.Node(t.Context(), m.id)
	if err != nil || n.Provision != node.Available || m.boots() != boots || len(net.went) > 0 {
		t.Errorf("after the refusal: %v, %d boots, networks %v, %v", n.Provision, m.boots()-boots, net.went, err)
	}
	net.fault = nil
	if v, err := eng.Validate(t.Context(), m.id); err != nil || !*v["network"].Result {
		t.Errorf("validate, all there: %+v, %v", v["network"], err)
	}
	w.must(m, node.Deploy)
	w.untilState(m, node.Active)
}
