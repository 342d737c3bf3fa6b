package bmc

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	command "github.com/bougou/go-ipmi/pkg/command/chassis"
	"github.com/bougou/go-ipmi/pkg/hal"
	"github.com/bougou/go-ipmi/pkg/handlers"
	"github.com/bougou/go-ipmi/pkg/types"
)

// hardware is the controller's view of the machine, in go-ipmi's terms.
type hardware struct{ b *BMC }

func (h hardware) Chassis() hal.ChassisHAL { return chassis(h) }
func (h hardware) Network() hal.NetworkHAL { return network(h) }
func (h hardware) Console() hal.ConsoleHAL { return console(h) }
func (hardware) Sensors() hal.SensorHAL    { return nil }
func (hardware) Storage() hal.StorageHAL   { return nil }
func (hardware) GPIO() hal.GPIOHAL         { return nil }
func (hardware) I2C() hal.I2CHAL           { return nil }
func (hardware) Close() error              { return nil }

type chassis struct{ b *BMC }

func (c chassis) PowerState(context.Context) (bool, error) { return c.b.cfg.Machine.On(), nil }

// act carries out a power action. Its error is a completion code: a packet has no place for words. D5h says at least
// that the machine's state prevents it, and that a retry does not help.
func (c chassis) act(a Action) error {
	err := c.b.Act(a)
	switch {
	case errors.Is(err, ErrBusy):
		return types.CodeNodeBusy
	case err != nil:
		return types.CodeNotSupported
	}
	return nil
}

func (c chassis) SetPower(_ context.Context, on bool) error {
	if on {
		return c.act(TurnOn)
	}
	return c.act(TurnOff)
}

func (c chassis) PowerCycle(context.Context) error { return c.act(Cycle) }

func (c chassis) ColdReset(context.Context) error { return c.act(Reset) }

// WarmReset is called by go-ipmi's server for the chassis control "soft shutdown".
func (c chassis) WarmReset(context.Context) error { return c.act(Press) }

func (c chassis) Identify(context.Context, uint8) error { return nil }

func (c chassis) IntrusionState(context.Context) (bool, error) { return false, hal.ErrNotSupported }

func (c chassis) SetBootFlags(_ context.Context, flags *types.BootOptionParam_BootFlags) error {
	f := c.b.faults.Load()
	if f.Busy {
		return types.CodeNodeBusy
	}
	if f.ForgetBoot {
		return nil
	}
	c.b.flagsMu.Lock()
	defer c.b.flagsMu.Unlock()
	c.b.flags, c.b.http = *flags, false
	c.b.log.Debug("boot flags", "valid", flags.BootFlagsValid, "boot", c.b.bootLocked(), "persistent", flags.Persist)
	return nil
}

func (c chassis) GetBootFlags(context.Context) (*types.BootOptionParam_BootFlags, error) {
	c.b.flagsMu.Lock()
	defer c.b.flagsMu.Unlock()
	flags := c.b.flags
	return &flags, nil
}

func (chassis) SetBootInfoAcknowledge(context.Context, *types.BootOptionParam_BootInfoAcknowledge) error {
	return nil
}

func (chassis) GetBootInfoAcknowledge(context.Context) (*types.BootOptionParam_BootInfoAcknowledge, error) {
	return &types.BootOptionParam_BootInfoAcknowledge{}, nil
}

// network reports to the machine, over the system interface, the address of its controller.
type network struct{ b *BMC }

func (n network) GetConfig(context.Context) (*hal.IPConfig, error) {
	addr := n.b.Addr()
	prefix := n.b.cfg.Prefix
	if !prefix.IsValid() {
		prefix = netip.PrefixFrom(addr.Addr().Unmap(), 24)
	}
	out := &hal.IPConfig{Port: addr.Port()}
	if a := prefix.Addr().Unmap(); a.Is4() {
		out.IP = a.As4()
		for i := range prefix.Bits() {
			out.Mask[i/8] |= 0x80 >> (i % 8)
		}
	}
	if g := n.b.cfg.Gateway.Unmap(); g.Is4() {
		out.Gateway = g.As4()
	}
	copy(out.MAC[:], n.b.cfg.MAC)
	return out, nil
}

// SetConfig declines: the lab decides on addresses.
func (network) SetConfig(context.Context, *hal.IPConfig) error { return hal.ErrNotSupported }

// console is serial over LAN.
type console struct{ b *BMC }

func (c console) Open(context.Context) (hal.ConsoleConn, error) {
	con, err := c.b.cfg.Machine.Console()
	if err != nil {
		return nil, err
	}
	if con == nil {
		return nil, hal.ErrNotSupported
	}
	return consoleConn{con}, nil
}

type consoleConn struct{ Console }

func (consoleConn) SendBreak(context.Context) error { return hal.ErrNotSupported }

// Restarts are the restarts of the controller that were asked for: "warm", "cold".
func (b *BMC) Restarts() []string {
	b.flagsMu.Lock()
	defer b.flagsMu.Unlock()
	return slices.Clone(b.restarts)
}

// registry adds to go-ipmi's commands what it lacks or does otherwise than a controller should.
func (b *BMC) registry() *handlers.Registry {
	reg := handlers.NewRegistry()
	handlers.RegisterAllHandlers(reg)
	ok := func(data ...byte) func(context.Context, *handlers.HandlerContext,
		[]byte) ([]byte, types.CompletionCode, error) {
		return func(context.Context, *handlers.HandlerContext, []byte) ([]byte, types.CompletionCode, error) {
			return data, types.CodeOK, nil
		}
	}
	guid := b.state.GUID
	reg.RegisterFunc(types.CommandGetSystemGUID, ok(guid[:]...))
	// go-ipmi resets the machine here. These commands are for the controller itself, which only counts them.
	restart := func(how string) func(context.Context, *handlers.HandlerContext,
		[]byte) ([]byte, types.CompletionCode, error) {
		return func(context.Context, *handlers.HandlerContext, []byte) ([]byte, types.CompletionCode, error) {
			b.flagsMu.Lock()
			defer b.flagsMu.Unlock()
			b.restarts = append(b.restarts, how)
			return nil, types.CodeOK, nil
		}
	}
	reg.RegisterFunc(types.CommandColdReset, restart("cold"))
	reg.RegisterFunc(types.CommandWarmReset, restart("warm"))
	own := handlers.NewRegistry()
	handlers.RegisterAllHandlers(own)
	control := types.CommandChassisControl
	reg.RegisterFunc(control, func(ctx context.Context, h *handlers.HandlerContext,
		request []byte) ([]byte, types.CompletionCode, error) {
		if len(request) == 0 || request[0] != byte(command.ChassisControlDiagnosticInterrupt) { // which go-ipmi lacks
			return own.Dispatch(ctx, h, uint8(control.NetFn), control.ID, request)
		}
		code := types.CodeOK
		errors.As(chassis{b}.act(NMI), &code)
		return nil, code, nil
	})
	// Linux's ipmi_si asks for these when it finds the controller and complains when they fail.
	reg.RegisterFunc(types.CommandGetBMCGlobalEnables, ok(0x00))
	reg.RegisterFunc(types.CommandSetBMCGlobalEnables, ok())
	reg.RegisterFunc(types.CommandGetMessageFlags, ok(0x00))
	reg.RegisterFunc(types.CommandClearMessageFlags, ok())
	return reg
}
