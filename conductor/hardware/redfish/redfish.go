// Package redfish has the interfaces of hardware types redfish and idrac: power and boot device (Driver, a
// power.Driver), management with virtual media and health, inspection, BIOS settings, RAID and firmware.
//
// One Driver is one machine; its controller, with session and connections, is shared (package controller). What some
// vendors' controllers do otherwise is in the table of package quirk, which is asked here and nowhere decided anew.
//
// SetPower sends the request whatever the controller says that the power is, since that may be old; it returns when the
// request was taken, and the engine polls Power until it is so.
package redfish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/quirk"
)

// Opener makes drivers whose controllers are those of the pool. folder has the files that redfish_verify_ca may name;
// "": there are none.
func Opener(pool *controller.Pool, folder string) power.Opener {
	return func(info power.Info, log *slog.Logger) (power.Driver, error) {
		d, err := open(pool, folder, info, log)
		if err != nil {
			return nil, err
		}
		return d, nil
	}
}

func open(pool *controller.Pool, folder string, info power.Info, log *slog.Logger) (*Driver, error) {
	o, err := parse(info, folder)
	var c *controller.Controller
	if err == nil {
		if c, err = pool.Get(o.access); err != nil {
			err = fmt.Errorf("driver_info/redfish_verify_ca: %w", err)
		}
	}
	if err != nil {
		return nil, &power.Error{Kind: power.Config, Op: "read driver_info", Err: err,
			Hint: "correct driver_info of the node"}
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Driver{c: c, system: o.system, log: log.With("driver", "redfish", "bmc", c.Host())}, nil
}

// Driver is one machine. It is safe for concurrent use; requests to a controller wait for each other.
type Driver struct {
	c      *controller.Controller
	system string // path; "": the only one
	log    *slog.Logger
	rows   atomic.Pointer[[]string]
}

var (
	_ power.Driver      = (*Driver)(nil)
	_ power.MediaDriver = (*Driver)(nil)
	_ power.RowTeller   = (*Driver)(nil)

	_ power.PasswordDriver = (*Driver)(nil)
)

// Key is the controller's address.
func (d *Driver) Key() string { return "redfish:" + d.c.Host() }

// Close gives the controller back.
func (d *Driver) Close() error {
	d.c.Release()
	return nil
}

// on reads the machine and does something with it.
func (d *Driver) on(ctx context.Context, op string, f func(s *controller.System) error) error {
	s, err := d.c.System(ctx, d.system)
	if err == nil {
		rows := s.Quirks.Names()
		d.rows.Store(&rows)
		err = f(s)
	}
	return d.c.Error(op, err)
}

// Rows are the names of the rows of package quirk that the last call found to apply.
func (d *Driver) Rows() []string {
	if rows := d.rows.Load(); rows != nil {
		return *rows
	}
	return nil
}

// Power reads the power state. A machine on its way to a state is not there yet.
func (d *Driver) Power(ctx context.Context) (power.State, error) {
	var state power.State
	err := d.on(ctx, "read power state", func(s *controller.System) (err error) {
		state, err = stateOf(s)
		return err
	})
	return state, err
}

func stateOf(s *controller.System) (power.State, error) {
	switch s.PowerState {
	case schemas.OnPowerState, schemas.PoweringOffPowerState, schemas.PausedPowerState:
		return power.On, nil
	case schemas.OffPowerState, schemas.PoweringOnPowerState:
		return power.Off, nil
	}
	return power.Unknown, &power.Error{Kind: power.Busy, Err: errors.New("the controller does not know the power state"),
		Hint: "wait until it has started; if it stays so, reset it"}
}

// resets are the ways to carry out an action, the best first.
var resets = map[power.Action][]schemas.ResetType{
	power.TurnOn:  {schemas.OnResetType, schemas.ForceOnResetType},
	power.TurnOff: {schemas.ForceOffResetType},
	power.SoftOff: {schemas.GracefulShutdownResetType, schemas.PushPowerButtonResetType},
	power.Cycle:   {schemas.PowerCycleResetType, schemas.ForceRestartResetType},
	power.Reset:   {schemas.ForceRestartResetType, schemas.PowerCycleResetType},
	nmi:           {schemas.NmiResetType},
}

// nmi is an action of Management.
const nmi power.Action = "nmi"

// SetPower requests an action. Turning on a machine that is on, or off one that is off, is no error.
func (d *Driver) SetPower(ctx context.Context, a power.Action) error {
	op := "power " + string(a)
	types, ok := resets[a]
	if !ok || a == nmi {
		return &power.Error{Kind: power.Unsupported, Op: op, Addr: d.c.Host(), Err: fmt.Errorf("unknown action %q", a)}
	}
	return d.on(ctx, op, func(s *controller.System) error {
		if state, err := stateOf(s); err != nil {
			return err
		} else if state == power.Off && a != power.TurnOn && a != power.TurnOff {
			if a == power.SoftOff {
				return nil
			}
			return &power.Error{Kind: power.Refused, Err: errors.New("the machine is off"), Hint: "turn it on"}
		}
		if (a == power.Cycle || a == power.Reset) && s.Quirks.Has(quirk.RestartByOffOn) {
			return d.offOn(ctx, s)
		}
		return d.reset(ctx, s, a, types)
	})
}

// offOn restarts a machine whose controller can't.
func (d *Driver) offOn(ctx context.Context, s *controller.System) error {
	if err := d.reset(ctx, s, power.TurnOff, resets[power.TurnOff]); err != nil {
		return err
	}
	for now := s; !isPower(now, power.Off); {
		if !controller.Sleep(ctx, conflictWait) {
			return ctx.Err()
		}
		var err error
		if now, err = d.c.System(ctx, s.Path); err != nil {
			return err
		}
	}
	if !controller.Sleep(ctx, offTime) {
		return ctx.Err()
	}
	return d.reset(ctx, s, power.TurnOn, resets[power.TurnOn])
}

// Repetition of a power-on that the controller declines for a while.
const (
	conflictLimit = 20 * time.Second
	conflictWait  = 500 * time.Millisecond
	// offTime is how long a machine stays off whose controller can't restart it.
	offTime = 10 * time.Second
)

// reset sends the first of the types that the controller has.
func (d *Driver) reset(ctx context.Context, s *controller.System, a power.Action, types []schemas.ResetType) error {
	typ := types[0]
	if allowed := s.Actions.Reset.Types; len(allowed) > 0 {
		i := slices.IndexFunc(types, func(t schemas.ResetType) bool { return slices.Contains(allowed, t) })
		if i < 0 {
			return &power.Error{Kind: power.Unsupported, Err: fmt.Errorf("the controller has no %s", types[0]),
				Hint: "this machine can't do it"}
		}
		typ = types[i]
	}
	target := map[power.Action]power.State{power.TurnOn: power.On, power.TurnOff: power.Off}[a]
	begun := time.Now()
	for {
		err := d.c.Reset(ctx, s, typ, target != "")
		if err == nil {
			d.log.Debug("power action taken", "action", string(a), "type", string(typ))
			return nil
		}
		if target == "" || controller.Status(err) != http.StatusConflict {
			return err
		}
		if s.Quirks.Has(quirk.SameStateIsDone) {
			if now, perr := d.c.System(ctx, s.Path); perr == nil && isPower(now, target) {
				return nil
			}
		}
		if !s.Quirks.Has(quirk.RetryOnAfterOff) || a != power.TurnOn || time.Since(begun) > conflictLimit {
			return err
		}
		d.log.Debug("the controller declines to turn on just after off: trying again")
		if !controller.Sleep(ctx, conflictWait) {
			return err
		}
	}
}

func isPower(s *controller.System, want power.State) bool {
	state, err := stateOf(s)
	return err == nil && state == want
}

// SystemGUIDs is the machine's UUID in both byte orders that firmware is known to send. A controller without one
// returns none.
func (d *Driver) SystemGUIDs(ctx context.Context) ([]string, error) {
	var out []string
	err := d.on(ctx, "read system UUID", func(s *controller.System) error {
		if u, err := uuid.Parse(s.UUID); err == nil {
			out = power.GUIDs(u)
		}
		return nil
	})
	return out, err
}
