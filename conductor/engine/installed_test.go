package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/node"
)

// showsItself is an installed system that asks for an address, of which network boot takes note as long as the agent is
// expected.
func showsItself(ctx context.Context, m *machine, _ bool) {
	for ctx.Err() == nil {
		if c := m.w.current(); c != nil && !c.isDead() && m.noteSystem(ctx) {
			c.eng.SystemStarted(ctx, m.id)
		}
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (m *machine) noteSystem(ctx context.Context) bool {
	_, err := m.w.store.Change(context.WithoutCancel(ctx), m.id, func(n *node.Node, effects *node.SideEffects) error {
		if ctx.Err() != nil || n.Job == nil || !n.Boot.WindowOpen(time.Now()) || n.Boot.System != nil {
			return errNoSession
		}
		n.Boot.System = &node.SystemSeen{At: time.Now().UTC(), MAC: "52:54:00:" + m.macTail(), Class: "udhcp 1.35"}
		effects.Marks = append(effects.Marks, node.Mark{JobID: n.Job.ID, Name: node.MarkSystem, At: n.Boot.System.At})
		return nil
	})
	return err == nil
}

// oldSystem puts a system onto the machine's disk, which the firmware starts instead of the agent so often.
func (m *machine) oldSystem(instead int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bootable, m.os, m.osStarted, m.pxeBoots = true, showsItself, 0, 0
	m.turnedOn = func() {
		m.noNetBoot = instead > 0
		instead--
	}
}

// starts counts those of the installed system, and of the agent, since oldSystem.
func (m *machine) starts() (system, agent int, on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.osStarted, m.pxeBoots, m.on
}

// systemWorld has limits that are never reached: only a sign of the system ends a wait.
func systemWorld(t *testing.T) (*world, *machine) {
	w := newWorld(t)
	w.cfg.AgentSteps = outcomeSteps()
	w.cfg.BootTimeout = time.Hour
	w.start(nil)
	m := w.addRescued("n1")
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	return w, m
}

// TestOldSystemIsRestartedIntoTheAgent: a machine that missed its network boot twice is restarted twice, and cleaned
// then. Other boots of the agent are left to the job.
func TestOldSystemIsRestartedIntoTheAgent(t *testing.T) {
	w, m := systemWorld(t)
	w.kill()
	w.cfg.MaxBoots = 1
	w.start(nil)
	m.oldSystem(2)
	w.must(m, node.Provide)
	job := w.node(m).Job.ID
	n := w.untilState(m, node.Available, node.CleanFailed)
	system, agent, on := m.starts()
	if n.Provision != node.Available || system != 2 || agent != 1 || on || m.bootable {
		t.Errorf("%s (%s): the system started %d times, the agent %d; on: %v, bootable: %v", n.Provision, n.LastError,
			system, agent, on, m.bootable)
	}
	if !w.said(m, "restarted (1 of 2)") || !w.said(m, "restarted (2 of 2)") {
		t.Error("the history does not tell of the restarts")
	}
	marks, err := w.store.Marks(t.Context(), m.id, job)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range marks {
		if k.Name == node.MarkSystem || k.Name == node.MarkBootAgain || k.Name == node.MarkOff {
			got = append(got, k.Name)
		}
	}
	once := []string{node.MarkSystem, node.MarkBootAgain, node.MarkOff}
	if want := append(slices.Concat(once, once), node.MarkOff); !slices.Equal(got, want) {
		t.Errorf("marks %q, want %q", got, want)
	}
}

// TestOldSystemEndsEveryPhase: where the agent is never booted the phase fails as usual, the machine is off, and the
// node was not available meanwhile.
func TestOldSystemEndsEveryPhase(t *testing.T) {
	for _, c := range []struct {
		from    node.State
		request Request
		ends    node.State
	}{
		{node.Manageable, Request{Verb: node.Inspect}, node.InspectFailed},
		{node.Manageable, Request{Verb: node.Provide}, node.CleanFailed},
		{node.Available, Request{Verb: node.Deploy}, node.DeployFailed},
		{node.Active, Request{Verb: node.Delete}, node.CleanFailed},
		{node.Active, Request{Verb: node.DoRescue, RescuePassword: "open sesame"}, node.RescueFailed},
		{node.Active, Request{Verb: node.Service, ServiceSteps: listed("a")}, node.ServiceFailed},
	} {
		t.Run(string(c.request.Verb), func(t *testing.T) {
			t.Parallel()
			w, m := systemWorld(t)
			if c.from != node.Manageable {
				w.walk(m, c.from)
			}
			m.oldSystem(100)
			w.mu.Lock()
			clear(w.seen)
			w.mu.Unlock()
			n := w.want(m, c.request, c.ends)
			system, agent, on := m.starts()
			if system != 3 || agent != 0 || on {
				t.Errorf("the system started %d times, the agent %d; on: %v", system, agent, on)
			}
			wantError(t, n, "Booting the agent failed",
				"the installed system started instead of the agent 3 times in a row", `of "udhcp 1.35"`,
				"its firmware had not asked for an address", "the machine is turned off", "spanning tree")
			if m.runs != nil {
				t.Errorf("steps were run: %v", m.runs)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			for s := range w.seen {
				if s.To == node.Available {
					t.Errorf("the node was available after %v", s)
				}
			}
		})
	}
}

// TestOldSystemIsNotRestarted: with no restarts configured, the machine is turned off at once.
func TestOldSystemIsNotRestarted(t *testing.T) {
	w, m := systemWorld(t)
	w.kill()
	w.cfg.Restarts = -1
	w.start(nil)
	m.oldSystem(1)
	n := w.want(m, Request{Verb: node.Provide}, node.CleanFailed)
	if system, agent, on := m.starts(); system != 1 || agent != 0 || on {
		t.Errorf("the system started %d times, the agent %d; on: %v", system, agent, on)
	}
	if wantError(t, n, "instead of the agent (DHCP request"); n.Fault != node.FaultClean {
		t.Errorf("fault %q", n.Fault)
	}
}

// TestOldSystemAfterFirmwareWasAnswered: then the sentence looks elsewhere.
func TestOldSystemAfterFirmwareWasAnswered(t *testing.T) {
	w, m := systemWorld(t)
	m.oldSystem(100)
	m.os = func(ctx context.Context, m *machine, kexec bool) {
		n := w.node(m)
		if err := w.store.AddMark(ctx,
			node.Mark{NodeUUID: n.UUID, JobID: n.Job.ID, Name: node.MarkDHCP, At: time.Now().UTC()}); err != nil &&
			ctx.Err() == nil {
			t.Error(err)
		}
		showsItself(ctx, m, kexec)
	}
	wantError(t, w.want(m, Request{Verb: node.Inspect}, node.InspectFailed), "its firmware had been answered at",
		"no other DHCP server")
}

// TestOldSystemOfAMachineThatStaysOn is restarted by resets.
func TestOldSystemOfAMachineThatStaysOn(t *testing.T) {
	for _, instead := range []int{1, 100} {
		t.Run(fmt.Sprint(instead), func(t *testing.T) {
			t.Parallel()
			w, m := systemWorld(t)
			m.oldSystem(instead)
			m.mu.Lock()
			m.on = true
			m.mu.Unlock()
			w.edit(m, func(n *node.Node) { n.DisablePowerOff = true })
			w.must(m, node.Inspect)
			n := w.untilState(m, node.Manageable, node.InspectFailed)
			system, agent, _ := m.starts()
			if instead == 1 && (n.Provision != node.Manageable || system != 1 || agent != 1) {
				t.Errorf("%s (%s): the system started %d times, the agent %d", n.Provision, n.LastError, system, agent)
			}
			if instead > 1 {
				wantError(t, n, "must not be turned off, so that system goes on running")
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			if slices.ContainsFunc(m.asks, func(a string) bool { return strings.HasSuffix(a, "off") }) {
				t.Errorf("asked for %v", m.asks)
			}
		})
	}
}

// TestRequestBeforeTheResetIsOfNoMissedBoot: on a machine that stays on, a system runs between the opening of the
// window and the reset.
func TestRequestBeforeTheResetIsOfNoMissedBoot(t *testing.T) {
	w, m := systemWorld(t)
	m.mu.Lock()
	m.on, m.noNetBoot = true, true
	noted := false
	m.callErr = func(op string) error {
		if op == "set boot device" {
			noted = m.noteSystem(t.Context())
		}
		return nil
	}
	m.mu.Unlock()
	w.edit(m, func(n *node.Node) { n.DisablePowerOff = true })
	w.must(m, node.Inspect)
	n := w.until(m, "the wait", func(n *node.Node) bool { return n.Job.Note == "wait" })
	m.mu.Lock()
	defer m.mu.Unlock()
	if !noted || n.Boot.System != nil || n.Job.Systems != 0 {
		t.Errorf("seen before the reset: %v; afterwards: %v, restarts: %d", noted, n.Boot.System, n.Job.Systems)
	}
}

// TestOldSystemOfAMachineWithoutAController: only a person can restart it, so nothing is done, and the agent comes when
// it comes.
func TestOldSystemOfAMachineWithoutAController(t *testing.T) {
	w, m := systemWorld(t)
	w.edit(m, func(n *node.Node) { n.Interfaces["power"] = program.AgentPower })
	m.oldSystem(0)
	m.mu.Lock()
	m.startOS(false)
	m.mu.Unlock()
	w.must(m, node.Inspect)
	w.until(m, "the system being seen", func(n *node.Node) bool { return n.Job.Note == "wait" && n.Boot.System != nil })
	for range 3 {
		w.current().eng.wake(m.id)
	}
	m.mu.Lock()
	m.turnOff()
	m.boot.Device = "pxe"
	m.turnOn()
	m.mu.Unlock()
	w.untilState(m, node.Manageable)
	if _, agent, _ := m.starts(); agent != 1 {
		t.Errorf("the agent was started %d times", agent)
	}
}

// TestOldSystemInMaintenance: the machine is left to its maintainer; after maintenance it is restarted.
func TestOldSystemInMaintenance(t *testing.T) {
	w, m := systemWorld(t)
	m.oldSystem(1)
	m.os = nil
	w.must(m, node.Inspect)
	w.until(m, "the wait", func(n *node.Node) bool { return n.Job.Note == "wait" })
	w.edit(m, func(n *node.Node) { n.Maintenance = true })
	if !m.noteSystem(t.Context()) {
		t.Fatal("the system is not taken note of")
	}
	after, err := w.current().eng.advance(t.Context(), m.id)
	if n := w.node(m); err != nil || after <= 0 || n.Job == nil || n.Job.Systems != 0 {
		t.Errorf("in maintenance: looked at again after %s (%v), job %+v", after, err, n.Job)
	}
	w.edit(m, func(n *node.Node) { n.Maintenance = false })
	w.current().eng.wake(m.id)
	w.untilState(m, node.Manageable)
}

// TestOldSystemOfAWarmNode: what is done ahead fails as before, with the machine off and the node as available as it
// was.
func TestOldSystemOfAWarmNode(t *testing.T) {
	w, m := systemWorld(t)
	w.walk(m, node.Available)
	m.oldSystem(100)
	if err := w.current().eng.Warm(t.Context(), m.id, "tester"); err != nil {
		t.Fatal(err)
	}
	n := w.until(m, "the end", func(n *node.Node) bool { return n.Job == nil && n.Warmth != nil })
	if system, agent, on := m.starts(); system != 3 || agent != 0 || on ||
		!strings.Contains(n.Warmth.Failure, "instead of the agent 3 times") {
		t.Errorf("the system started %d times, the agent %d; on: %v; %s", system, agent, on, n.Warmth.Failure)
	}
}

// TestDieWithOldSystem kills the conductor at each write of a cleaning in which the system starts twice: the next one
// goes on, and restarts no more often than the first would have.
func TestDieWithOldSystem(t *testing.T) {
	t.Parallel()
	w, m := systemWorld(t)
	co := w.current()
	for k := 1; ; k++ {
		m.oldSystem(2)
		co.crash.arm(k, k%2 == 0)
		asked := w.clean(m, "a")
		died := false
		for n := w.node(m); n.Job != nil || !died && asked != nil; n = w.node(m) {
			if !died && co.crash.reached() {
				died = true
				<-co.ended
				co = w.start(nil)
				if w.node(m).Job == nil && asked != nil {
					if err := w.clean(m, "a"); err != nil {
						t.Fatal(err)
					}
				}
			}
			time.Sleep(time.Millisecond)
		}
		n := w.untilState(m, node.Manageable, node.CleanFailed)
		system, agent, on := m.starts()
		if n.Provision != node.Manageable || system != 2 || agent != 1 || on {
			t.Fatalf("killed at write %d: %s (%s), the system started %d times, the agent %d; on: %v", k, n.Provision,
				n.LastError, system, agent, on)
		}
		if !died {
			if k < 10 {
				t.Errorf("only %d writes: the count is wrong", k)
			}
			return
		}
	}
}
