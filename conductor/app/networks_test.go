package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/network/switches"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
)

// What every network plug owes the engine.
func TestNetworkPlugs(t *testing.T) {
	for name, serves := range map[string]bool{"noop": false, "flat": true} {
		t.Run(name, func(t *testing.T) {
			table := networkPlugs(driver.All(), nil, nil)
			n := &node.Node{UUID: "n", Driver: "ipmi", Interfaces: map[string]string{"network": name}}
			before := &node.Node{UUID: "n", Driver: "ipmi", Interfaces: map[string]string{"network": name}}
			// From each network to each, and once more, as after a conductor's death.
			all := []engine.NetworkName{engine.ProvisioningNetwork, engine.TenantNetwork, engine.NoNetwork}
			for _, from := range all {
				for _, to := range all {
					for _, net := range []engine.NetworkName{from, to, to} {
						if err := table.Attach(t.Context(), n, net); err != nil {
							t.Errorf("Attach to %s, from %s to %s: %v", net, from, to, err)
						}
					}
				}
			}
			if !reflect.DeepEqual(n, before) {
				t.Errorf("Attach changed the node: %+v", n)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := table.Attach(ctx, n, engine.TenantNetwork); !errors.Is(err, context.Canceled) {
				t.Errorf("Attach after the end = %v", err)
			}
			moves, err := table.Switches(t.Context(), n, engine.TenantNetwork)
			if data, err := table.NetworkData(t.Context(), n); data != nil || err != nil {
				t.Errorf("NetworkData = %v, %v", data, err)
			}
			if err := errors.Join(err, table.Validate(t.Context(), n)); err != nil || moves {
				t.Errorf("Switches = %v, with Validate: %v", moves, err)
			}
			if got := table.servesInstance(n); got != serves {
				t.Errorf("servesInstance = %v, want %v", got, serves)
			}
		})
	}
}

func TestUnknownNetworkPlug(t *testing.T) {
	table := networkPlugs(driver.All(), nil, nil)
	n := &node.Node{Driver: "ipmi", Interfaces: map[string]string{"network": "neutron"}}
	err := table.Attach(t.Context(), n, engine.TenantNetwork)
	if err == nil || !strings.Contains(err.Error(), `no network interface "neutron"`) ||
		!strings.Contains(err.Error(), "one of flat, noop") {
		t.Errorf("Attach = %v", err)
	}
	if err := table.Validate(t.Context(), n); err == nil || !strings.Contains(err.Error(), "no network interface") {
		t.Errorf("Validate = %v", err)
	}
	if table.servesInstance(n) {
		t.Error("an instance of an unknown network gets an address")
	}
	n.Interfaces = nil // the type's default
	if err := table.Attach(t.Context(), n, engine.TenantNetwork); err != nil {
		t.Errorf("Attach with the default = %v", err)
	}
}

// TestWhatIsAttachedGoesWithTheTenant: a node that is torn down has nothing attached any more, whatever its network
// interface; one whose deployment failed keeps it, and so does another node.
func TestWhatIsAttachedGoesWithTheTenant(t *testing.T) {
	st, err := store.Open(t.Context(), store.Options{Dir: storetest.Fresh(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	attached := map[string]any{switches.VIFKey: "network", "kept": "x"}
	table := networkPlugs(driver.All(), nil, cabling{st}.detach)
	has := func(uuid string) (vifs int) {
		t.Helper()
		ports, err := cabling{st}.PortsOf(t.Context(), uuid)
		if err != nil {
			t.Fatal(err)
		}
		groups, err := cabling{st}.GroupsOf(t.Context(), uuid)
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range []map[string]any{ports[0].InternalInfo, groups[0].InternalInfo} {
			if info["kept"] != "x" {
				t.Errorf("more is taken from a port than its network: %v", info)
			}
			if info[switches.VIFKey] != nil {
				vifs++
			}
		}
		return vifs
	}
	var nodes []*node.Node
	for i := range 2 {
		n := &node.Node{Driver: "ipmi", Interfaces: map[string]string{"network": "flat"}}
		if err := st.CreateNode(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		g := &node.Portgroup{InternalInfo: attached}
		g.NodeUUID = n.UUID
		p := &node.Port{NodeUUID: n.UUID, Address: fmt.Sprintf("52:54:00:00:00:%02x", i), InternalInfo: attached}
		err := errors.Join(st.Portgroups().Create(t.Context(), g), st.CreatePort(t.Context(), p))
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	n := nodes[0]
	for _, c := range []struct {
		phase node.Phase
		to    engine.NetworkName
		want  int
	}{
		{node.PhaseDeploy, engine.TenantNetwork, 2},
		{node.PhaseDeploy, engine.NoNetwork, 2},
		{node.PhaseDelete, engine.ProvisioningNetwork, 2},
		{node.PhaseDelete, engine.NoNetwork, 0},
		{node.PhaseDelete, engine.NoNetwork, 0}, // again
	} {
		n.Job = &node.Job{Phase: c.phase}
		if err := table.Attach(t.Context(), n, c.to); err != nil {
			t.Fatal(err)
		}
		if got := has(n.UUID); got != c.want {
			t.Errorf("after %s, in phase %s, %d are attached, want %d", c.to, c.phase, got, c.want)
		}
	}
	if got := has(nodes[1].UUID); got != 2 {
		t.Errorf("another node has %d attached", got)
	}
}

// Whatever a hardware type offers there is a plug for, and no plug is left over.
func TestEveryNetworkHasItsPlug(t *testing.T) {
	configured := map[string]networkPlug{"switch": switchNetwork{}, "neutron": neutronNetwork{}}
	table, offered := networkPlugs(driver.All(), configured, nil), map[string]bool{}
	for _, name := range driver.Names() {
		typ, _ := driver.ByName(name)
		for _, network := range typ.Enabled("network") {
			offered[network] = true
		}
	}
	if got, want := slices.Sorted(maps.Keys(offered)), slices.Sorted(maps.Keys(table.plugs)); !slices.Equal(got, want) {
		t.Errorf("hardware types offer %v, there are plugs for %v", got, want)
	}
}
