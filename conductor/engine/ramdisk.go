package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/node/ramdiskdeploy"
)

// A node with deploy_interface "ramdisk" runs from memory: nothing is written to a disk, so no agent is needed. Its
// machine is set to boot from the network for good and restarted; network boot then answers each of its starts with the
// workload of instance_info. An ISO image on a machine that boots the agent from virtual media is put into the same
// drive, where it stays as long as the instance does, and no network is needed. Where the workload is to be started by
// kexec, or an agent waits on the machine anyway, the agent loads it and jumps, which takes no firmware; its later
// starts are the same.

// bootFromMemory has the machine boot its workload from now on, each time: from the network, or from its ISO image in
// the virtual drive.
func (p *pass) bootFromMemory(ctx context.Context) error {
	b, from := power.Boot{Device: power.BootPXE, Persistent: true, Mode: p.bootMode()}, "the network"
	address := p.e.planner().Disc(p.n)
	if address != "" && slices.Contains(MediaBoots, p.e.drivers.Interface(p.n, "boot")) {
		b.Device, from = power.BootCDROM, "its virtual drive"
		if err := p.insertDisc(ctx, address); err != nil {
			return err
		}
	}
	err := p.setBoot(ctx, b)
	if k := power.KindOf(err); k != power.Unsupported && k != power.Refused {
		return err
	}
	reason := err.Error()
	b.Persistent = false
	if again := p.setBoot(ctx, b); again != nil {
		return errors.Join(err, again)
	}
	_, err = p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
		p.e.history(n, effects, "boot", "WARNING", "the boot device was set to "+from+
			" for the next start only, so that what the machine does at later ones is up to its firmware: "+reason, "")
		return nil
	})
	return err
}

// openDrive lets the machine, which is about to start, fetch the config drive of a workload that runs from memory. One
// that is about to start the agent gets it over the agent's session.
func (e *Engine) openDrive(n *node.Node) {
	if now := time.Now().UTC(); e.drivers.Interface(n, "deploy") == ramdiskdeploy.Interface && !n.Boot.WindowOpen(now) {
		n.OpenDrive(now)
	}
}

// bootRamdisk turns the machine off, whatever runs on it, and sets it to boot from the network; the step boot_instance
// turns it on. A machine that must not be turned off is restarted at once.
func bootRamdisk(ctx context.Context, p *pass) (verdict, error) {
	e := p.e
	switch p.n.Job.Note {
	case "":
		next := "off"
		if e.staysOn(p.n) {
			next = "device"
		}
		err := p.note(ctx, next, func(n *node.Node, effects *node.SideEffects) error {
			e.closeBoot(n) // an agent that was kept and is not wanted
			return nil
		})
		if err == nil && !p.viaAgent() { // else the session is needed to restart it
			e.agents().CloseSession(p.n.UUID)
		}
		return again(0), err

	case "off", "off asked":
		return p.driveThen(ctx, "off", power.TurnOff, "device")

	case "device":
		if err := p.bootFromMemory(ctx); err != nil {
			return verdict{}, err
		}
		marked := func(n *node.Node, effects *node.SideEffects) error {
			if e.staysOn(n) {
				e.openDrive(n)
			}
			device := power.BootPXE
			if n.InstanceDisc {
				device = power.BootCDROM
			}
			e.mark(n, effects, node.MarkBootDevice, strings.TrimSpace(string(device)+" "+p.bootMode()))
			return nil
		}
		if !e.staysOn(p.n) {
			return verdict{done: true, apply: marked}, nil
		}
		return again(0), p.note(ctx, "reset", marked)

	case "reset": // of a machine that must not be turned off
		st, err := p.power(ctx)
		if err != nil {
			return verdict{}, err
		}
		if st == power.On {
			if err := p.setPower(ctx, power.Reset); err != nil {
				return verdict{}, err
			}
		}
		if p.viaAgent() {
			e.agents().CloseSession(p.n.UUID)
		}
		return verdict{done: true, apply: func(n *node.Node, effects *node.SideEffects) error {
			e.mark(n, effects, node.MarkReset, "")
			return nil
		}}, nil
	}
	return verdict{}, failf("it was left at %q, which this version of Ingot does not know; ask for the operation again",
		p.n.Job.Note)
}
