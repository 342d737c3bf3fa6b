package redfish

import (
	"context"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/inventory"
	"github.com/ingot-metal/ingot/conductor/node"
)

// readingTime bounds the reading of many resources: controllers that take a second for each are common.
const readingTime = 5 * time.Minute

// Inspect is the inspect interface: it asks the controller for the machine's parts, and leaves the machine alone.
type Inspect struct{ m *Management }

// NewInspect makes the interface, which opens machines as a management interface does.
func NewInspect(m *Management) *Inspect { return &Inspect{m} }

// Steps has the one step of an inspection.
func (i *Inspect) Steps(*node.Node) []hardware.Step {
	return []hardware.Step{{Interface: "inspect", Name: "inspect_hardware", Abortable: true,
		Description: "reads processors, memory, disks and network cards from the controller, without booting the machine",
		Priority:    map[node.Phase]int{node.PhaseInspect: 100}, Limit: readingTime,
		Run: func(ctx context.Context, call hardware.Call) (out hardware.Outcome, err error) {
			err = i.m.within(ctx, readingTime, call.Node, func(ctx context.Context, d *Driver) error {
				return d.on(ctx, "inspect", func(s *controller.System) error {
					machine, err := inventory.Read(ctx, d.c, s)
					if err == nil {
						out.Found, err = machine.Document()
					}
					return err
				})
			})
			return out, err
		}}}
}

// Vendor is the machine's maker in the words of its controller; "" when it does not say.
func (d *Driver) Vendor(ctx context.Context) (string, error) {
	var vendor string
	err := d.on(ctx, "read the vendor", func(s *controller.System) error {
		vendor = d.c.Clean(s.Manufacturer)
		return nil
	})
	return vendor, err
}
