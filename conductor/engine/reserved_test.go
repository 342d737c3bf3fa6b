package engine

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// TestReservedWithAgent: holds, pauses and restarts between steps of the agent.
func TestReservedWithAgent(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.want(m, Request{Verb: node.Manage}, node.Manageable)
	asked := steps("erase_devices_metadata", "hold", "erase_devices_metadata", "wait", "reboot",
		"erase_devices_metadata", "power_off", "power_on", "erase_devices_metadata")
	asked[3].Args = json.RawMessage(`{"seconds":1}`)
	w.want(m, Request{Verb: node.Clean, CleanSteps: asked}, node.CleanHold)
	w.kill()
	w.start(nil) // a hold outlives the conductor
	time.Sleep(20 * time.Millisecond)
	if n := w.node(m); n.Provision != node.CleanHold || n.Reservation != "" {
		t.Fatalf("a held node went on to %s, reservation %q", n.Provision, n.Reservation)
	}
	begun := time.Now()
	w.must(m, node.Unhold)
	n := w.untilState(m, node.Manageable)
	if n.LastError != "" || n.Fault != "" {
		t.Errorf("last error %q, fault %q", n.LastError, n.Fault)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.plansTaken) != 4 || m.pxeBoots != 3 || m.on {
		t.Errorf("%d plans, %d boots of the agent, on %v; want 4, 3, false", len(m.plansTaken), m.pxeBoots, m.on)
	}
	if took := time.Since(begun); took < time.Second {
		t.Errorf("the wait of a second was over after %s", took)
	}
}

// TestReservedWithoutAgent: power steps act on the machine itself.
func TestReservedWithoutAgent(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.addFake("n1")
	w.want(m, Request{Verb: node.Manage}, node.Manageable)
	w.want(m, Request{Verb: node.Clean, CleanSteps: steps("power_on", "reboot", "power_off", "wait", "power_on")},
		node.Manageable)
	m.mu.Lock()
	defer m.mu.Unlock()
	if got := strings.Join(m.asks, " "); got != "on off on off on" || m.pxeBoots != 0 {
		t.Errorf("asked for %q, booted the agent %d times", got, m.pxeBoots)
	}
}

// TestHoldWithAgent: aborting a held deployment turns the agent's machine off; a deployment that is held goes on with
// the same agent.
func TestHoldWithAgent(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	hold := []node.JobStep{{Interface: "deploy", Name: "hold", Priority: 65}}
	n := w.want(m, Request{Verb: node.Deploy, ConfigDrive: "http://drive-of/n1", DeploySteps: hold}, node.DeployHold)
	if s := n.Job.Current(); s == nil || s.Name != "prepare_instance_boot" {
		t.Errorf("held before %+v", s)
	}
	w.must(m, node.Abort)
	n = w.untilState(m, node.DeployFailed)
	wantError(t, n, "aborted by tester", "before step prepare_instance_boot")
	m.mu.Lock()
	if m.on || m.bootable {
		t.Errorf("after the abort: on %v, bootable %v", m.on, m.bootable)
	}
	boots := m.pxeBoots
	m.writes = 0
	m.mu.Unlock()
	w.want(m, Request{Verb: node.Deploy, DeploySteps: hold}, node.DeployHold)
	w.must(m, node.Unhold)
	w.untilState(m, node.Active)
	checkDeployed(t, m, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pxeBoots != boots+1 {
		t.Errorf("the agent was booted %d times for one deployment", m.pxeBoots-boots)
	}
}

// TestServiceWithAgent: steps that the agent declares for service run, and the machine runs its own system again
// afterwards.
func TestServiceWithAgent(t *testing.T) {
	w := newWorld(t)
	blink := steparg.Row{Interface: "deploy", Name: "blink", Abortable: true, Stall: time.Minute}
	blink.Priority = steparg.Priorities{steparg.Service: 10}
	w.cfg.AgentSteps = append(catalog.BuiltinSteps(), blink)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Active)
	m.mu.Lock()
	m.behave["blink"] = func(*agent, node.PlanStep) (node.StepResult, bool) {
		return node.StepResult{Outcome: node.OutcomeDone}, true
	}
	started := m.osStarted
	m.mu.Unlock()
	w.want(m, Request{Verb: node.Service, ServiceSteps: steps("blink")}, node.Active)
	checkDeployed(t, m, 1)
	m.mu.Lock()
	if last := m.plansTaken[len(m.plansTaken)-1]; last.Phase != node.PhaseService || len(last.Steps) != 1 ||
		m.osStarted != started+1 {
		t.Errorf("the last plan is %+v; started from disk %d times", last, m.osStarted-started)
	}
	boots := m.pxeBoots
	m.mu.Unlock()
	// Anything else is refused before it touches the machine.
	for _, c := range []struct {
		r     Request
		words string
	}{
		{Request{ServiceSteps: steps("erase_devices_metadata")}, "no step of that name for service"},
		{Request{ServiceSteps: steps("write_image")}, "no step of that name for service"},
		{Request{ServiceSteps: steps("dance")}, "no step deploy.dance"},
		{Request{}, "service_steps is empty"},
		{Request{ServiceSteps: steps("blink"), DisableRamdisk: true}, "can't run with disable_ramdisk"},
		{Request{ServiceSteps: []node.JobStep{
			{Interface: "deploy", Name: "wait", Args: json.RawMessage(`{"seconds":-1}`)}}}, "whole number"},
		{Request{ServiceSteps: []node.JobStep{
			{Interface: "deploy", Name: "wait", Args: json.RawMessage(`{"minutes":1}`)}}}, "no argument minutes"},
		{Request{ServiceSteps: []node.JobStep{{Interface: "deploy", Name: "hold", Args: json.RawMessage(`[]`)}}},
			"not a JSON object"},
	} {
		c.r.Verb = node.Service
		var invalid *InvalidError
		if err := w.current().eng.Provision(t.Context(), m.id, c.r); !errors.As(err, &invalid) ||
			!strings.Contains(err.Error(), c.words) {
			t.Errorf("service with %+v = %v, want %q", c.r, err, c.words)
		}
	}
	// Without the ramdisk, what the conductor does by itself may run.
	w.want(m, Request{Verb: node.Service, ServiceSteps: steps("wait", "reboot"), DisableRamdisk: true}, node.Active)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pxeBoots != boots || !m.on || m.osStarted != started+2 {
		t.Errorf("without the ramdisk: %d boots of the agent, on %v, started from disk %d times", m.pxeBoots-boots,
			m.on, m.osStarted-started)
	}
}

// TestPlugArguments: a step of an interface is refused with arguments that it does not take, and in phases that it is
// not for.
func TestPlugArguments(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.addFake("n1")
	w.walk(m, node.Active)
	for _, c := range []struct{ step, args, words string }{
		{"paint", ``, "needs the argument colour"},
		{"paint", `{"colour":"red","size":1}`, "no argument size"},
		{"paint", `7`, "not a JSON object"},
	} {
		err := w.current().eng.Provision(t.Context(), m.id,
			Request{Verb: node.Service,
				ServiceSteps: []node.JobStep{{Interface: "bios", Name: c.step, Args: json.RawMessage(c.args)}}})
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("service with %s %s = %v, want %q", c.step, c.args, err, c.words)
		}
	}
	for _, name := range []string{"work_clean", "write_image"} {
		var invalid *InvalidError
		if err := w.current().eng.Provision(t.Context(), m.id,
			Request{Verb: node.Service, ServiceSteps: steps(name)}); !errors.As(err, &invalid) {
			t.Errorf("service with %s = %v", name, err)
		}
	}
	w.want(m, Request{
		Verb:         node.Service,
		ServiceSteps: []node.JobStep{{Interface: "bios", Name: "paint", Args: json.RawMessage(`{"colour":"red"}`)}}},
		node.Active)
}

// TestRestartBetweenImageAndTable: what the agent still has to write is in its memory.
func TestRestartBetweenImageAndTable(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	for _, name := range []string{"reboot", "power_off"} {
		var invalid *InvalidError
		err := w.current().eng.Provision(t.Context(), m.id,
			Request{Verb: node.Deploy, DeploySteps: []node.JobStep{{Interface: "deploy", Name: name, Priority: 65}}})
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), "loses the end of the image") {
			t.Errorf("deploy with %s in the middle = %v", name, err)
		}
	}
	w.want(m, Request{Verb: node.Deploy, ConfigDrive: "http://drive-of/n1",
		DeploySteps: []node.JobStep{{Interface: "deploy", Name: "reboot", Priority: 90}}}, node.Active)
	checkDeployed(t, m, 1)
}

// TestReserved: the steps that can be requested by name alone are those that Ironic reserves, and work with every
// interface.
func TestReserved(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	eng := w.current().eng
	for _, name := range []string{catalog.StepHold, catalog.StepWait, catalog.StepPowerOn, catalog.StepPowerOff,
		catalog.StepReboot} {
		if _, ok := eng.planner().Reserved(name); !ok {
			t.Errorf("step %s can't be asked for", name)
		}
		if _, ok := eng.findStep(&node.Node{}, &node.JobStep{Interface: "bios", Name: name}); !ok {
			t.Errorf("step %s is done by nothing", name)
		}
	}
	if _, ok := eng.planner().Reserved(catalog.StepBootInstance); ok {
		t.Errorf("%s is reserved", catalog.StepBootInstance)
	}
}
