// Package manual is the power driver of hardware type manual-management: machines without a controller, whose buttons a
// person presses. The power state is unknown and every action is an error of kind Unsupported that says what to do by
// hand.
package manual

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

// Properties is empty: there is nothing to configure.
var Properties []power.Property

var errNoController = errors.New("the node has no controller (manual-management)")

// Open makes a driver. Each has a key of its own when info names the node in manual_id; else all share one.
func Open(info power.Info, _ *slog.Logger) (power.Driver, error) {
	id, _ := info["manual_id"].(string)
	return driver{id}, nil
}

type driver struct{ id string }

func (driver) Power(ctx context.Context) (power.State, error) { return power.Unknown, ctx.Err() }

func (driver) SetPower(_ context.Context, a power.Action) error {
	hint := map[power.Action]string{
		power.TurnOn:  "turn the machine on by hand",
		power.TurnOff: "turn the machine off by hand",
		power.SoftOff: "shut the machine down by hand",
		power.Cycle:   "turn the machine off and on by hand",
		power.Reset:   "reset the machine by hand",
	}[a]
	if hint == "" {
		return &power.Error{Kind: power.Unsupported, Op: "power " + string(a), Err: fmt.Errorf("unknown action %q", a)}
	}
	return &power.Error{Kind: power.Unsupported, Op: "power " + string(a), Err: errNoController, Hint: hint}
}

func (driver) SetBoot(_ context.Context, b power.Boot) error {
	return &power.Error{Kind: power.Unsupported, Op: "set boot device " + string(b.Device), Err: errNoController,
		Hint: "choose the boot device in the machine's firmware"}
}

func (driver) Boot(context.Context) (power.Boot, error) {
	return power.Boot{}, &power.Error{Kind: power.Unsupported, Op: "read boot device", Err: errNoController}
}

func (driver) Devices() []power.Device { return nil }

func (driver) SystemGUIDs(ctx context.Context) ([]string, error) { return nil, ctx.Err() }

func (d driver) Key() string { return "manual:" + d.id }

func (driver) Close() error { return nil }
