package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// checkDeployed looks at the machine itself: the image was written once, it runs from its disk.
func checkDeployed(t *testing.T, m *machine, writes int) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.w.node(m)
	if m.writes != writes {
		t.Errorf("the image was written %d times, want %d", m.writes, writes)
	}
	if want := "http://images/" + n.Name + " http://drive-of/" + n.Name; m.content != want || !m.bootable {
		t.Errorf("the disk holds %q (bootable %v), want %q", m.content, m.bootable, want)
	}
	if !m.on || m.osStarted == 0 {
		t.Errorf("the machine is on: %v, and booted from its disk %d times", m.on, m.osStarted)
	}
	if n.Power != "power on" || n.Reservation != "" || n.TargetProvision != node.None || n.LastError != "" {
		t.Errorf("the node shows power %q, reservation %q, target %q, last error %q", n.Power, n.Reservation,
			n.TargetProvision, n.LastError)
	}
}

func TestMainJob(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")

	w.must(m, node.Manage)
	n := w.untilState(m, node.Manageable)
	if n.Power != "power off" || len(n.SystemGUIDs) != 1 {
		t.Errorf("after manage: power %q, GUIDs %v", n.Power, n.SystemGUIDs)
	}

	w.must(m, node.Inspect)
	n = w.untilState(m, node.Manageable)
	if n.Properties["memory_mb"] != 2048.0 || n.Properties["cpus"] != 4.0 || n.Properties["cpu_arch"] != "x86_64" ||
		n.Properties["local_gb"] != 9.0 || n.BootMode != "bios" {
		t.Errorf("after inspection: %v, boot mode %q", n.Properties, n.BootMode)
	}
	ports, err := w.store.Ports(t.Context(), store.PortQuery{NodeUUID: &m.id, Sort: "address"})
	if err != nil || len(ports) != 2 || !ports[0].PXEEnabled || ports[1].PXEEnabled || ports[0].Address != "52:54:00:"+
		m.macTail() {
		t.Errorf("after inspection the ports are %v (%v)", ports, err)
	}
	if inv, err := w.store.Inventory(t.Context(), m.id); err != nil ||
		!strings.Contains(string(inv), `"physical_mb":2048`) {
		t.Errorf("inventory = %s, %v", inv, err)
	}
	if !n.InspectionStartedAt.IsZero() || n.InspectionFinishedAt.IsZero() || n.Power != "power off" {
		t.Errorf("after inspection: started %v, finished %v, power %q", n.InspectionStartedAt, n.InspectionFinishedAt,
			n.Power)
	}

	w.must(m, node.Provide)
	w.untilState(m, node.Available)
	w.walk(m, node.Active)
	checkDeployed(t, m, 1)

	plan := m.plansTaken[len(m.plansTaken)-1]
	var names []string
	for _, s := range plan.Steps {
		names = append(names, s.Name)
	}
	if got := strings.Join(names, " "); got != "write_image write_configdrive prepare_instance_boot" {
		t.Errorf("the deploy plan is %q", got)
	}

	w.must(m, node.Delete)
	n = w.untilState(m, node.Available)
	if m.bootable || len(n.InstanceInfo) != 0 {
		t.Errorf("after undeploy the disk is bootable: %v, instance_info %v", m.bootable, n.InstanceInfo)
	}

	// The history says who asked for what; the time line has its points in order.
	h, err := w.store.History(t.Context(), m.id, 0)
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	for _, e := range h {
		if strings.Contains(e.Event, "requested in state") && e.User == "tester" {
			asked = append([]string{strings.Fields(e.Event)[0]}, asked...)
		}
	}
	if got := strings.Join(asked, " "); got != "manage inspect provide deploy undeploy" {
		t.Errorf("the history says %q", got)
	}
	for _, jobless := range h {
		if jobless.Conductor != "c1" {
			t.Errorf("history without conductor: %+v", jobless)
		}
	}
}

func TestMarks(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	w.must(m, node.Deploy)
	job := w.node(m).Job.ID
	w.untilState(m, node.Active)
	marks, err := w.store.Marks(t.Context(), m.id, job)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range marks {
		if k.Name == node.MarkBMC && strings.HasPrefix(k.Detail, "read ") {
			continue // noted only when it was slow
		}
		switch k.Name {
		case node.MarkState, node.MarkSession, node.MarkSessionLost: // the last two race with the polling of power
			continue
		case node.MarkStepBegan, node.MarkStepDone:
			got = append(got, k.Name+" "+k.Detail)
		default:
			got = append(got, k.Name)
		}
	}
	want := `requested, step started deploy, boot window opened, controller called, boot device set, power on requested, controller called, power is on, step done deploy, plan sent,
 step started write_image, step done write_image, step started prepare_instance_boot, step done prepare_instance_boot,
 step started tear_down_agent, controller called, power is off, step done tear_down_agent, step started switch_to_tenant_network, step done switch_to_tenant_network,
 step started boot_instance, power on requested, controller called, power is on, step done boot_instance`
	if g, wnt := strings.Join(got, ", "), strings.ReplaceAll(want, "\n", ""); g != wnt {
		t.Errorf("marks of a deployment:\n%s\nwant\n%s", g, wnt)
	}
}

// TestAgentEndsInOrder: an agent that needs a while between the end of its session and the end of its machine gets it:
// the power is not cut meanwhile.
func TestAgentEndsInOrder(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	m.flushTook = 200 * time.Millisecond
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	w.must(m, node.Provide)
	w.untilState(m, node.Available)
	w.walk(m, node.Active)
	checkDeployed(t, m, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, ask := range m.asks {
		if ask == "agent off" && (i+1 >= len(m.asks) || m.asks[i+1] != "agent is done") {
			t.Errorf("the agent was asked to end its boot, then came %q; all of it: %q", m.asks[i+1:], m.asks)
			break
		}
	}
	if !slices.Contains(m.asks, "agent off") {
		t.Errorf("the agent was never asked to end its boot: %q", m.asks)
	}
}
