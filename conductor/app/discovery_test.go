//go:build !race

package app_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

// TestDiscovery: an unknown machine is turned on by hand and boots from the network. It becomes a node
// with driver, address of its BMC, port and inventory, and nothing else is done to it, whatever happens to the
// conductor, until an operator has given credentials and wants it managed.
func TestDiscovery(t *testing.T) {
	s := newSite(t)
	s.write("rules.yaml",
		`[{uuid: rack, actions: [{op: set-attribute, args: {path: extra/rack, value: "of {inventory[bmc_address]}"}}]}]`)
	s.env = []string{"INGOT_DISCOVERY_ENABLED=true", "INGOT_INSPECTION_RULES_FILE=" + s.dir + "/rules.yaml"}
	s.start()
	release := s.machine.hold("inspect")
	s.machine.run(bmc.Boot{Device: bmc.PXE})
	if got := <-s.machine.held; got != "inspect" {
		t.Fatalf("the machine is held at %s", got)
	}
	// The conductor dies while the machine is looked at, and another goes on.
	s.kill()
	s.start()
	release()
	var n rest.Node
	s.until("the node is inspected", func() bool {
		all, err := s.Nodes(t.Context(), nil)
		if err != nil || len(all) != 1 {
			return false
		}
		n = all[0]
		return !n.InspectionFinishedAt.IsZero()
	})
	if n.ProvisionState != "enroll" || n.Driver != "ipmi" || len(n.DriverInfo) != 1 ||
		n.DriverInfo["ipmi_address"] != "192.0.2.7" || n.Extra["rack"] != "of 192.0.2.7" ||
		n.PowerState != "" || n.TargetPowerState != "" || n.Properties["memory_mb"] != 512.0 || n.LastError != "" {
		t.Errorf("the node is %+v", n)
	}
	ports, err := s.Ports(t.Context(), string(n.UUID))
	if err != nil || len(ports) != 1 || ports[0].Address != mac {
		t.Errorf("ports = %v, %v", ports, err)
	}
	inv, err := s.Inventory(t.Context(), string(n.UUID))
	if err != nil || string(inv.PluginData["auto_discovered"]) != "true" {
		t.Errorf("inventory = %v, %v", inv, err)
	}
	var found struct {
		CPU struct{ Count int }
	}
	if err == nil && (json.Unmarshal(inv.Inventory, &found) != nil || found.CPU.Count != 2) {
		t.Errorf("inventory = %s", inv.Inventory)
	}
	history, err := s.History(t.Context(), string(n.UUID))
	for _, want := range []string{"discovered: an unknown machine",
		"is left alone until somebody wants it managed"} {
		if err != nil ||
			!slices.ContainsFunc(history, func(e client.Event) bool { return strings.Contains(e.Event, want) }) {
			t.Errorf("history lacks %q: %v, %v", want, history, err)
		}
	}
	s.machine.mu.Lock()
	boots := slices.Clone(s.machine.boots)
	agent := s.machine.agents[0]
	s.machine.mu.Unlock()
	if len(boots) != 1 {
		t.Errorf("the machine was booted as %v", boots)
	}
	if runs := []int{agent.Runs("inspect"), agent.Runs("erase_devices_metadata"),
		agent.Runs("write_image")}; !slices.Equal(runs, []int{1, 0, 0}) {
		t.Errorf("steps run: %v, want the inspection once and nothing else", runs)
	}
	// The operator agrees.
	a := s.bmc.Addr()
	if _, err := s.UpdateNode(t.Context(), string(n.UUID), []rest.Operation{
		{Op: "replace", Path: "/driver_info",
			Value: map[string]any{"ipmi_address": a.Addr().String(), "ipmi_port": a.Port(), "ipmi_username": "admin",
				"ipmi_password": "secret"}},
		{Op: "add", Path: "/name", Value: "n1"},
	}); err != nil {
		t.Fatal(err)
	}
	s.do("n1", "manage", "manageable", nil)
	s.do("n1", "provide", "available", nil)
	all, err := s.Nodes(t.Context(), nil)
	if err != nil || len(all) != 1 {
		t.Errorf("nodes = %v, %v", all, err)
	}
}
