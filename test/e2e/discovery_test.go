package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
)

// TestDiscovery turns on a machine that nobody told of. It boots the agent from the network, and is a node then, with the driver that the
// configuration names and the address of its controller, which the agent asked of the controller itself, over KCS. That is all: nobody
// turns it off or on, and nothing can be asked of it but to be managed. An operator gives the credentials, and it becomes available.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	// The ramdisk for servers has the drivers of controllers; that for the lab, and its kernel, has not.
	built, err := serverRamdisk()
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, []lab.NodeSpec{{Name: "stray", MemoryMiB: 1024, Disks: disk6()}}, set("netboot.ramdisk_dir", built.Dir),
		set("discovery.enabled", true), set("discovery.driver", "ipmi"), set("discovery.interfaces", []string{"network=noop"}))
	m := r.lab.Node("stray")
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

	var n object
	kit.Eventually(t, bootLimit, "the machine is found and inspected", func() bool {
		if list := nodes(); len(list) == 1 {
			n = object(list[0].(map[string]any))
		}
		return n != nil && n["inspection_finished_at"] != nil
	})
	id := n.str("uuid")
	info, _ := n["driver_info"].(map[string]any)
	if n.str("provision_state") != "enroll" || n.str("driver") != "ipmi" || n.str("network_interface") != "noop" || n.str("last_error") != "" || n["instance_uuid"] != nil {
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
	if inv["bmc_address"] != m.BMCAddress || len(inv["disks"].([]any)) != 1 || plugin["auto_discovered"] != true {
		t.Errorf("the inventory has the controller %v, disks %v, auto_discovered %v", inv["bmc_address"], inv["disks"], plugin["auto_discovered"])
	}

	// Nothing more is done to it, or can be, until somebody agrees.
	for _, target := range []string{"provide", "active", "inspect", "clean"} {
		if code, o := r.call("PUT", "/v1/nodes/"+id+"/states/provision", object{"target": target}); code != http.StatusBadRequest {
			t.Errorf("%s of a machine that nobody manages = %d %v", target, code, o)
		}
	}
	if !m.On() || m.Starts() != 1 || n["power_state"] != nil {
		t.Errorf("the machine is on: %v, was started %d times, its power state is %v; nobody agreed to any of that", m.On(), m.Starts(), n["power_state"])
	}

	// An operator agrees.
	var patch []object
	for k, v := range controller(m) {
		if k != "ipmi_address" {
			patch = append(patch, object{"op": "add", "path": "/driver_info/" + k, "value": v})
		}
	}
	r.must("PATCH", "/v1/nodes/"+id, append(patch, object{"op": "add", "path": "/name", "value": "found"}, object{"op": "add", "path": "/automated_clean", "value": false}))
	r.provision("found", "manage", nil)
	r.wait("found", "manageable", time.Minute)
	r.provision("found", "provide", nil)
	n = r.wait("found", "available", time.Minute)
	if n.str("power_state") != "power on" && n.str("power_state") != "power off" {
		t.Errorf("its power state is %v", n["power_state"])
	}
	var said []string
	history, _ := r.must("GET", "/v1/nodes/found/history?detail=True", nil)["history"].([]any)
	for _, h := range history {
		said = append(said, object(h.(map[string]any)).str("event"))
	}
	if text := strings.Join(said, "\n"); !strings.Contains(text, "left alone until somebody wants it managed") {
		t.Errorf("the history says nothing of a discovery:\n%s", text)
	}
	if m.Starts() != 1 {
		t.Errorf("the machine was started %d times", m.Starts())
	}
}
