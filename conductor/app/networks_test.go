package app

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/node"
)

// What every network plug owes the engine.
func TestNetworkPlugs(t *testing.T) {
	for name, serves := range map[string]bool{"noop": false, "flat": true} {
		t.Run(name, func(t *testing.T) {
			table := networkPlugs(driver.All(), nil)
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
	table := networkPlugs(driver.All(), nil)
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

// Whatever a hardware type offers there is a plug for, and no plug is left over.
func TestEveryNetworkHasItsPlug(t *testing.T) {
	configured := map[string]networkPlug{"switch": switchNetwork{}, "neutron": neutronNetwork{}}
	table, offered := networkPlugs(driver.All(), configured), map[string]bool{}
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
