package ipmi

import (
	"context"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/command/chassis"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

var _ power.Commander = (*Driver)(nil)

// InjectNMI has the controller pulse the diagnostic interrupt.
func (d *Driver) InjectNMI(ctx context.Context) error {
	return d.do(ctx, "send NMI", once, func(ctx context.Context, c *client.Client) error {
		_, err := c.ChassisControl(ctx, chassis.ChassisControlDiagnosticInterrupt)
		return err
	})
}

// ResetController restarts the controller. Many do so before they answer: silence in a session that was just opened is
// taken for that.
func (d *Driver) ResetController(ctx context.Context, warm bool) error {
	sent := false
	err := d.do(ctx, "restart controller", once, func(ctx context.Context, c *client.Client) error {
		sent = true
		if warm {
			return c.WarmReset(ctx)
		}
		return c.ColdReset(ctx)
	})
	if sent && power.KindOf(err) == power.Unreachable && ctx.Err() == nil {
		d.log.Debug("the controller did not answer that it restarts", "err", err)
		return nil
	}
	return err
}

// Raw sends a command of the caller's. Neither it nor its answer is logged: they can hold a password.
func (d *Driver) Raw(ctx context.Context, netFn, command byte, data []byte) error {
	return d.do(ctx, "send raw command", once, func(ctx context.Context, c *client.Client) error {
		_, err := c.RawCommand(ctx, types.NetFn(netFn), command, data, "raw")
		return err
	})
}
