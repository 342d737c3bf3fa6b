// Package agent is the power driver of machines without a controller whose agent restarts them: power interface
// "agent".
//
// It can only restart a machine on which an agent is connected. It can't turn machines on or off, choose their boot
// device or report their GUIDs: that is an error of kind Unsupported, which says what a person is to do by hand.
// Without an agent the power state is unknown, and a restart is a person's task, too.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

// Properties is empty: there is nothing to configure.
var Properties []power.Property

// Key of power.Info holds the UUID of the node whose machine a driver controls. The code that opens drivers for nodes
// sets it.
const Key = "agent_node"

// Link reaches agents.
type Link interface {
	// Connected reports whether an agent of the node is connected.
	Connected(nodeUUID string) bool
	// Reboot asks the node's agent to restart its machine.
	Reboot(ctx context.Context, nodeUUID string) error
}

var (
	errNoController = errors.New(
		"the node has no controller but its agent (power interface agent), which can only restart the machine")
	errNoAgent = errors.New(
		"the node has no controller but its agent (power interface agent), and none is connected")
)

// Opener makes drivers that reach agents through link.
func Opener(link Link) power.Opener {
	return func(info power.Info, _ *slog.Logger) (power.Driver, error) {
		id, _ := info[Key].(string)
		if id == "" {
			return nil, &power.Error{Kind: power.Config, Op: "open power driver", Err: fmt.Errorf("%s is missing", Key),
				Hint: "this is a fault of the program"}
		}
		return driver{id, link}, nil
	}
}

type driver struct {
	id   string
	link Link
}

// Power is on while an agent is connected, else unknown.
func (d driver) Power(ctx context.Context) (power.State, error) {
	if err := ctx.Err(); err != nil {
		return power.Unknown, err
	}
	if d.link.Connected(d.id) {
		return power.On, nil
	}
	return power.Unknown, nil
}

// SetPower restarts the machine for Reset and Cycle, and declines everything else.
func (d driver) SetPower(ctx context.Context, a power.Action) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	refuse := func(err error, hint string) error {
		return &power.Error{Kind: power.Unsupported, Op: "power " + string(a), Err: err, Hint: hint}
	}
	switch a {
	case power.TurnOn:
		return refuse(errNoController, "turn the machine on by hand")
	case power.TurnOff, power.SoftOff:
		return refuse(errNoController, "turn the machine off by hand")
	case power.Reset, power.Cycle:
	default:
		return refuse(fmt.Errorf("unknown action %q", a), "")
	}
	if !d.link.Connected(d.id) {
		return refuse(errNoAgent, "restart the machine by hand")
	}
	if err := d.link.Reboot(ctx, d.id); err != nil {
		return cmp.Or(ctx.Err(), error(&power.Error{Kind: power.Unreachable, Op: "power " + string(a), Err: err,
			Hint: "the agent was connected a moment ago; look at its log"}))
	}
	return nil
}

func (d driver) SetBoot(_ context.Context, b power.Boot) error {
	return &power.Error{Kind: power.Unsupported, Op: "set boot device " + string(b.Device), Err: errNoController,
		Hint: "choose the boot device in the machine's firmware"}
}

func (d driver) Boot(context.Context) (power.Boot, error) {
	return power.Boot{}, &power.Error{Kind: power.Unsupported, Op: "read boot device", Err: errNoController}
}

func (d driver) Devices() []power.Device { return nil }

func (d driver) SystemGUIDs(ctx context.Context) ([]string, error) { return nil, ctx.Err() }

func (d driver) Key() string { return "agent:" + d.id }

func (d driver) Close() error { return nil }
