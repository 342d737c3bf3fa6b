package engine

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Validation reports whether a node has the settings that an interface needs. Result is nil when the node's type does
// not support it.
type Validation struct {
	Result *bool
	Reason string
}

// Validate checks a node without touching its machine, by kind of interface.
func (e *Engine) Validate(ctx context.Context, ident string) (map[string]Validation, error) {
	n, err := e.db.Node(ctx, ident)
	if err != nil {
		return nil, err
	}
	verdict := func(err error) Validation {
		ok := err == nil
		if ok {
			return Validation{Result: &ok}
		}
		return Validation{&ok, sentence(err.Error())}
	}
	d, err := e.drivers.Open(n)
	if err == nil {
		err = d.Close()
	}
	out := map[string]Validation{"power": verdict(err), "management": verdict(err),
		"network": verdict(e.networkFault(ctx, n)), "storage": verdict(nil)}
	out["boot"] = verdict(e.bootFault(n))
	out["inspect"] = verdict(nil)
	if m := instance.Capability(n.Properties["capabilities"], "boot_mode"); m != "" && m != "bios" && m != "uefi" {
		out["boot"] = verdict(node.Invalidf("capability boot_mode is %q: use bios or uefi", m))
	}
	image, err := e.describe(ctx, n)
	if err == nil {
		image.apply(n)
		_, err = e.planner().Deployment(ctx, n, nil)
	}
	var invalid *InvalidError
	var service *ServiceError
	if err != nil && !errors.As(err, &invalid) && !errors.As(err, &service) {
		return nil, err
	}
	out["deploy"] = verdict(err)
	for _, kind := range []string{"bios", "console", "inspect", "raid", "rescue"} {
		if name := e.drivers.Interface(n, kind); name == "" {
			out[kind] = Validation{Reason: "not supported"}
		} else if strings.HasPrefix(name, "no-") {
			out[kind] = verdict(node.Invalidf("interface %s of node %s is %s, which can do nothing", kind, n.UUID, name))
		} else if _, ok := out[kind]; !ok {
			out[kind] = verdict(nil)
		}
	}
	return out, nil
}

// driverOf opens the driver of a node.
func (e *Engine) driverOf(ctx context.Context, ident string) (*node.Node, power.Driver, error) {
	n, err := e.db.Node(ctx, ident)
	if err != nil {
		return nil, nil, err
	}
	d, err := e.drivers.Open(n)
	return n, d, err
}

// WithController calls a node's controller on behalf of a client, who waits in line like all others. Errors of nodes
// that are not this conductor's are *ElsewhereError.
func (e *Engine) WithController(ctx context.Context, ident string,
	f func(context.Context, *node.Node, power.Driver) error) error {
	n, err := e.db.Node(ctx, ident)
	if err != nil {
		return err
	}
	if err := e.Here(n); err != nil { // first: this conductor may not have the node's hardware type
		return err
	}
	d, err := e.drivers.Open(n)
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(ctx, e.cfg.CallTimeout)
	defer cancel()
	me := "client " + uuid.NewString()
	if err := e.bmcs.Wait(ctx, d.Key(), me); err != nil {
		return e.locked(n, "its controller is in use")
	}
	defer e.bmcs.Release(me)
	// It may have been handed over while this client waited: then its new owner asks the controller.
	if now, err := e.db.Node(ctx, n.UUID); err != nil {
		return err
	} else if err := e.Here(now); err != nil {
		return err
	}
	return f(ctx, n, d)
}

// BootDevice reads the machine's next boot device.
func (e *Engine) BootDevice(ctx context.Context, ident string) (device string, persistent bool, err error) {
	err = e.WithController(ctx, ident, func(ctx context.Context, _ *node.Node, d power.Driver) error {
		b, err := d.Boot(ctx)
		device, persistent = string(b.Device), b.Persistent
		return err
	})
	return device, persistent, err
}

// BootDevices lists what SetBootDevice accepts for the node.
func (e *Engine) BootDevices(ctx context.Context, ident string) ([]string, error) {
	_, d, err := e.driverOf(ctx, ident)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, dev := range d.Devices() {
		out = append(out, string(dev))
	}
	return out, d.Close()
}

// SetBootDevice sets the machine's boot device for the next boot, or from now on.
func (e *Engine) SetBootDevice(ctx context.Context, ident, device string, persistent bool, user string) error {
	var id string
	err := e.WithController(ctx, ident, func(ctx context.Context, n *node.Node, d power.Driver) error {
		id = n.UUID
		if n.Provision.IsWorking() {
			return e.locked(n, "it is in state "+string(n.Provision))
		}
		if !slices.Contains(d.Devices(), power.Device(device)) {
			return node.Invalidf("boot device %q is not supported by the node's management interface", device)
		}
		mode, _ := e.site().BootMode(n)
		return d.SetBoot(ctx, power.Boot{Device: power.Device(device), Persistent: persistent, Mode: mode})
	})
	if err != nil {
		return err
	}
	_, err = e.change(ctx, id, func(n *node.Node, effects *node.SideEffects) error {
		how := "for the next boot"
		if persistent {
			how = "from now on"
		}
		e.history(n, effects, "boot", "INFO", "boot device set to "+device+" "+how, user)
		return nil
	})
	if errors.Is(err, errFenced) || held(err) {
		return nil // it is done; only the history lacks it
	}
	return err
}
