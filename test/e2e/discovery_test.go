package e2e

import (
	"net/http"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
)

// discover turns on an unknown machine. It boots the agent from the network and becomes a node with the
// driver that the configuration names and the address of its controller, which the agent read from the controller
// itself over KCS. Nothing turns it off or on, and "manage" is the only verb that is accepted. An
// operator sets the credentials and a name, and it becomes available. It returns the inventory. started is called
// once the machine is on.
func (r *rig) discover(m *lab.Machine, name string, started func()) (inventory object) {
	t := r.t
	t.Helper()
	nodes := func() []any {
		list, _ := r.must("GET", "/v1/nodes/detail", nil)["nodes"].([]any)
		return list
	}
	if got := nodes(); len(got) != 0 {
		t.Fatalf("before anything was turned on there are %v", got)
	}
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	started()

	var n object
	kit.Eventually(t, bootLimit, "the machine is found and inspected", func() bool {
		if list := nodes(); len(list) == 1 {
			n = object(list[0].(map[string]any))
		}
		return n != nil && n["inspection_finished_at"] != nil
	})
	id := n.str("uuid")
	info, _ := n["driver_info"].(map[string]any)
	if n.str("provision_state") != "enroll" || n.str("driver") != "ipmi" || n.str("network_interface") != "noop" ||
		n.str("last_error") != "" || n["instance_uuid"] != nil {
		t.Errorf("the node is %v", n)
	}
	if len(info) != 1 || info["ipmi_address"] != m.BMCAddress {
		t.Errorf("driver_info = %v, want the address %s and nothing else", info, m.BMCAddress)
	}
	ports, _ := r.must("GET", "/v1/ports?node="+id, nil)["ports"].([]any)
	if len(ports) != 1 || ports[0].(map[string]any)["address"] != m.MAC {
		t.Errorf("ports = %v, want one with %s", ports, m.MAC)
	}
	all := r.must("GET", "/v1/nodes/"+id+"/inventory", nil)
	inv, _ := all["inventory"].(map[string]any)
	plugin, _ := all["plugin_data"].(map[string]any)
	if inv["bmc_address"] != m.BMCAddress || plugin["auto_discovered"] != true {
		t.Errorf("the inventory has the controller %v, auto_discovered %v", inv["bmc_address"],
			plugin["auto_discovered"])
	}

	// Nothing more is done to it, or can be, until somebody agrees.
	for _, target := range []string{"provide", "active", "inspect", "clean"} {
		if code, o := r.call("PUT", "/v1/nodes/"+id+"/states/provision",
			object{"target": target}); code != http.StatusBadRequest {
			t.Errorf("%s of a machine that is not managed = %d %v", target, code, o)
		}
	}
	if !m.On() || m.Starts() != 1 || n["power_state"] != nil {
		t.Errorf("the machine is on: %v, was started %d times, its power state is %v; none of that was requested",
			m.On(), m.Starts(), n["power_state"])
	}

	// An operator agrees.
	var patch []object
	for k, v := range controller(m) {
		if k != "ipmi_address" {
			patch = append(patch, object{"op": "add", "path": "/driver_info/" + k, "value": v})
		}
	}
	r.must("PATCH", "/v1/nodes/"+id, append(patch, object{"op": "add", "path": "/name", "value": name},
		object{"op": "add", "path": "/automated_clean", "value": false}))
	r.provision(name, "manage", nil)
	r.wait(name, "manageable", time.Minute)
	r.provision(name, "provide", nil)
	n = r.wait(name, "available", time.Minute)
	if n.str("power_state") != "power on" && n.str("power_state") != "power off" {
		t.Errorf("its power state is %v", n["power_state"])
	}
	var said []string
	history, _ := r.must("GET", "/v1/nodes/"+name+"/history?detail=True", nil)["history"].([]any)
	for _, h := range history {
		said = append(said, object(h.(map[string]any)).str("event"))
	}
	if text := strings.Join(said, "\n"); !strings.Contains(text, "left alone until somebody wants it managed") {
		t.Errorf("the history says nothing of a discovery:\n%s", text)
	}
	if m.Starts() != 1 {
		t.Errorf("the machine was started %d times", m.Starts())
	}
	return inv
}
