// Package ipmi drives a machine's power over IPMI 2.0 (RMCP+), with go-ipmi as the client.
//
// One Driver is one controller. Its session is opened at the first call, reused by later ones and opened anew when it
// was idle for long, because controllers forget sessions after about 60 seconds and many have only four of them. It has
// no keep-alive and no goroutine in the background.
//
// go-ipmi's own Connect is not used: it flattens the handshake's errors to text, so that a wrong password can't be
// distinguished from a silent host, and it starts a keep-alive goroutine. The handshake's messages are sent one by one
// instead, each attempt on a socket of its own: a late answer to a repeated request would otherwise be taken for the
// answer to the next one, which looks exactly like a wrong password.
//
// Errors are *power.Error: Auth (name, password or privilege; never tried twice, since controllers lock accounts out),
// Unreachable (no answer, after about nine seconds or when the context ends), Busy, Refused, Unsupported, Config.
package ipmi

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/command/chassis"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

// Driver is the IPMI driver of one machine. It is safe for concurrent use; calls wait for each other.
type Driver struct {
	opt options
	log *slog.Logger

	mu      sync.Mutex
	sess    *session
	suiteOK types.CipherSuiteID // the suite that worked last, 0 when none did yet
}

var _ power.Driver = (*Driver)(nil)

// Open checks driver_info and makes a Driver. It sends nothing.
func Open(info power.Info, log *slog.Logger) (power.Driver, error) {
	o, err := parse(info)
	if err != nil {
		return nil, &power.Error{Kind: power.Config, Op: "read driver_info", Err: err,
			Hint: "correct driver_info of the node"}
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Driver{opt: o, log: log.With("driver", "ipmi", "bmc", o.addr)}, nil
}

// Key is the controller's address.
func (d *Driver) Key() string { return "ipmi:" + strings.ToLower(d.opt.addr) }

// Power requests the chassis status.
func (d *Driver) Power(ctx context.Context) (power.State, error) {
	var s power.State
	err := d.do(ctx, "read power state", repeatable, func(ctx context.Context, c *client.Client) error {
		r, err := c.GetChassisStatus(ctx)
		if err != nil {
			return err
		}
		switch {
		case r.PowerFault && !r.PowerIsOn:
			s = power.Failed
		case r.PowerIsOn:
			s = power.On
		default:
			s = power.Off
		}
		return nil
	})
	return s, err
}

var controls = map[power.Action]chassis.ChassisControl{
	power.TurnOn:  chassis.ChassisControlPowerUp,
	power.TurnOff: chassis.ChassisControlPowerDown,
	power.SoftOff: chassis.ChassisControlSoftShutdown,
	power.Cycle:   chassis.ChassisControlPowerCycle,
	power.Reset:   chassis.ChassisControlHardReset,
}

// SetPower sends a chassis control. Turning on a machine that is on, or off one that is off, is no error, whatever the
// controller answers.
func (d *Driver) SetPower(ctx context.Context, a power.Action) error {
	op := "power " + string(a)
	control, ok := controls[a]
	if !ok {
		return &power.Error{Kind: power.Unsupported, Op: op, Addr: d.opt.addr, Err: fmt.Errorf("unknown action %q", a)}
	}
	mode := once
	if a == power.TurnOn || a == power.TurnOff {
		mode = repeatable
	}
	err := d.do(ctx, op, mode, func(ctx context.Context, c *client.Client) error {
		_, err := c.ChassisControl(ctx, control)
		return err
	})
	if code, ok := completionCode(err); ok && code == types.CodeNotSupported && mode == repeatable {
		// D5h: "not supported in present state", some controllers' way of saying that there is nothing to do.
		want := power.Off
		if a == power.TurnOn {
			want = power.On
		}
		if now, perr := d.Power(ctx); perr == nil && now == want {
			return nil
		}
	}
	if err == nil {
		d.log.Debug("power action taken", "action", string(a))
	}
	return err
}

// SystemGUIDs requests the system GUID. A controller without one returns none and no error.
func (d *Driver) SystemGUIDs(ctx context.Context) ([]string, error) {
	var out []string
	err := d.do(ctx, "read system GUID", repeatable, func(ctx context.Context, c *client.Client) error {
		r, err := c.GetSystemGUID(ctx)
		if err != nil {
			return err
		}
		out = guids(r.GUID)
		return nil
	})
	if power.KindOf(err) == power.Unsupported {
		d.log.Debug("controller has no system GUID", "err", err)
		return nil, nil
	}
	return out, err
}

// Close ends the session.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sess == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	d.sess.end(ctx)
	d.sess = nil
	return nil
}

// guids renders the 16 bytes in the orders that controllers and firmware use, and read from the end in the same orders,
// as IPMI's own text has it.
func guids(b [16]byte) []string {
	out := power.GUIDs(b)
	slices.Reverse(b[:])
	for _, s := range power.GUIDs(b) {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
