package app

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/driver"
	"github.com/ingot-metal/ingot/conductor/hardware"
	fakeparts "github.com/ingot-metal/ingot/conductor/hardware/fake"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/power"
	"github.com/ingot-metal/ingot/conductor/power/fake"
	"github.com/ingot-metal/ingot/conductor/power/ipmi"
	"github.com/ingot-metal/ingot/conductor/power/manual"
)

// powerDrivers is the table of power drivers, by hardware type. machines are those that exist in memory only.
func powerDrivers(machines *fake.Machines) map[string]power.Opener {
	return map[string]power.Opener{
		"ipmi":              ipmi.Open,
		"fake-hardware":     machines.Open,
		"manual-management": manual.Open,
	}
}

// drivers opens machines for the engine.
type drivers struct {
	openers map[string]power.Opener
	log     *slog.Logger
}

// Open makes the node's power driver.
func (d drivers) Open(n *node.Node) (power.Driver, error) {
	open, ok := d.openers[n.Driver]
	if !ok {
		return nil, &power.Error{Kind: power.Config, Op: "open power driver", Err: fmt.Errorf("there is no hardware type %q", n.Driver),
			Hint: "set the node's driver to one of " + strings.Join(slices.Sorted(maps.Keys(d.openers)), ", ")}
	}
	info := power.Info{}
	maps.Copy(info, n.DriverInfo)
	// Drivers without a controller have nothing else to tell machines apart by.
	for _, key := range []string{"fake_id", "manual_id"} {
		if info[key] == nil {
			info[key] = n.UUID
		}
	}
	return open(info, d.log.With("node", n.UUID))
}

// plugs is what stands behind the nodes' interfaces beside their power.
func plugs(machines *fake.Machines) *hardware.Set {
	return hardware.New(func(n *node.Node, kind string) string { return driver.Interfaces(n)[kind] }, fakeparts.New(machines, nil).Plugs())
}

// Interface tells which interface of a kind the node uses.
func (d drivers) Interface(n *node.Node, kind string) string { return driver.Interfaces(n)[kind] }
