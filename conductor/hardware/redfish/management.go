package redfish

import (
	"context"
	"log/slog"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/health"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Management is the management interface beyond boot devices, which are the Driver's.
type Management struct {
	hardware.NoManagement
	pool   *controller.Pool
	folder string
	log    *slog.Logger
	limit  time.Duration
}

// NewManagement makes the interface. limit bounds each call; the rest is as for Opener.
func NewManagement(pool *controller.Pool, folder string, limit time.Duration, log *slog.Logger) *Management {
	return &Management{pool: pool, folder: folder, limit: limit, log: log}
}

func (m *Management) do(ctx context.Context, n *node.Node, f func(context.Context, *Driver) error) error {
	return m.within(ctx, m.limit, n, f)
}

func (m *Management) within(ctx context.Context, limit time.Duration, n *node.Node,
	f func(context.Context, *Driver) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	d, err := open(m.pool, m.folder, power.Info(n.DriverInfo), m.log)
	if err != nil {
		return err
	}
	defer d.Close()
	return f(ctx, d)
}

// With reads a node's machine at its controller and does something with it.
func (m *Management) With(ctx context.Context, n *node.Node, op string,
	f func(ctx context.Context, c *controller.Controller, s *controller.System) error) error {
	return m.do(ctx, n, func(ctx context.Context, d *Driver) error {
		return d.on(ctx, op, func(s *controller.System) error { return f(ctx, d.c, s) })
	})
}

// Controller is the address of the node's controller.
func (m *Management) Controller(n *node.Node) string {
	o, err := parse(power.Info(n.DriverInfo), m.folder)
	if err != nil {
		return n.UUID // Health says what is wrong
	}
	return o.access.Base.Host
}

// Health reads how the machine is.
func (m *Management) Health(ctx context.Context, n *node.Node) (r *node.Reading, err error) {
	err = m.within(ctx, readingTime, n, func(ctx context.Context, d *Driver) error {
		return d.on(ctx, "read health", func(s *controller.System) error {
			r, err = health.Read(ctx, d.c, s)
			return err
		})
	})
	return r, err
}

// BootModes are both, as in Ironic: whether the machine takes one is seen when it is set.
func (m *Management) BootModes(context.Context, *node.Node) ([]string, error) {
	return []string{"bios", "uefi"}, nil
}

// SetBootMode chooses how the machine boots from now on, and reads it back.
func (m *Management) SetBootMode(ctx context.Context, n *node.Node, mode string) error {
	return m.do(ctx, n, func(ctx context.Context, d *Driver) error { return d.setBootMode(ctx, mode) })
}

// SetSecureBoot turns Secure Boot on or off for the next boot.
func (m *Management) SetSecureBoot(ctx context.Context, n *node.Node, on bool) error {
	return m.do(ctx, n, func(ctx context.Context, d *Driver) error { return d.setSecureBoot(ctx, on) })
}

// InjectNMI sends a non-maskable interrupt to a machine that is on.
func (m *Management) InjectNMI(ctx context.Context, n *node.Node) error {
	return m.do(ctx, n, func(ctx context.Context, d *Driver) error { return d.injectNMI(ctx) })
}
