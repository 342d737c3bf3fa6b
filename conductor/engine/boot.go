package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/record"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// verify reads power state and identity, which proves address and credentials, and the vendor, which goes into the
// node's properties as in Ironic.
func verify(ctx context.Context, p *pass) (verdict, error) {
	if _, err := p.power(ctx); err != nil {
		return verdict{}, err
	}
	var guids []string
	err := p.read(ctx, "system GUID", func(ctx context.Context, d power.Driver) (err error) {
		guids, err = d.SystemGUIDs(ctx)
		return err
	})
	var vendor string
	var rows []string
	if err == nil {
		// Nothing depends on it.
		if verr := p.read(ctx, "vendor", func(ctx context.Context, d power.Driver) (err error) {
			if v, ok := power.As[power.VendorTeller](d); ok {
				vendor, err = v.Vendor(ctx)
			}
			rows = power.RowsOf(d)
			return err
		}); lapsed(verr) {
			return verdict{}, verr
		} else if verr != nil {
			p.e.log.Debug("read the vendor", "node", p.n.UUID, "err", verr)
		}
	}
	untold := power.KindOf(err) == power.Unsupported || power.KindOf(err) == power.Refused
	if err != nil && !untold {
		return verdict{}, err
	}
	return verdict{done: true, apply: func(n *node.Node, effects *node.SideEffects) error {
		if len(guids) > 0 {
			n.SystemGUIDs = guids
		}
		n.ControllerRows = rows
		if vendor != "" {
			n.Properties = node.With(n.Properties, "vendor", any(vendor))
		}
		if untold { // the node can still be admitted by a port
			p.e.history(n, effects, "monitoring", "WARNING",
				"the controller does not tell the system GUID: create a port for the node before it is inspected", "")
		}
		if n.Fault == node.FaultPower {
			n.Fault = n.StandingFault()
		}
		return nil
	}}, nil
}

// bootAgent restarts the machine into the ramdisk and waits until its agent is connected. The machine is off when the
// boot device is chosen, because many controllers forget the choice after a minute, and the boot window opens only
// then, so that whatever ran on the machine before is not answered.
func bootAgent(ctx context.Context, p *pass) (verdict, error) {
	e := p.e
	booting := func(n *node.Node, effects *node.SideEffects) error {
		n.Job.Detail = cmp.Or(n.Job.Detail, "waiting for the agent")
		return e.waitForAgent(n, effects)
	}
	viaAgent := p.viaAgent()
	switch j := p.n.Job; j.Note {
	case "":
		if b := p.n.Boot; b != nil && b.Kept {
			if v, taken, err := takeUp(ctx, p); taken || err != nil {
				return v, err
			}
			j = p.n.Job
		}
		if j.Boots >= e.cfg.MaxBoots {
			return verdict{},
				failf("the agent was booted %d times for this job and lost each time, at last because %s; look at the node's console and history",
					j.Boots, cmp.Or(j.Detail, "it went away"))
		}
		if err := e.attach(ctx, p.n, ProvisioningNetwork); err != nil {
			return verdict{}, err
		}
		next, open := "off", func(n *node.Node, effects *node.SideEffects) error {
			e.closeBoot(n)
			return nil
		}
		if e.staysOn(p.n) {
			next, open = "device", e.openWindow
		}
		err := p.note(ctx, next, open)
		if err == nil && !viaAgent { // else the session is needed to restart it
			e.agents().CloseSession(p.n.UUID)
		}
		return again(0), err

	case "off", "off asked":
		return p.driveThen(ctx, "off", power.TurnOff, "device", e.openWindow)

	case "device", "image inserted":
		b := power.Boot{Device: power.BootPXE, Mode: p.bootMode()}
		boot := e.drivers.Interface(p.n, "boot")
		switch {
		case slices.Contains(networkHTTP, boot):
			b.Device = power.BootHTTP
		case p.n.Boot != nil && p.n.Boot.Media && boot == HTTPBoot:
			image, err := p.bootImage(ctx, false)
			if err != nil {
				return verdict{}, err
			}
			b = power.Boot{Device: power.BootHTTP, Mode: "uefi", Address: image.Plain}
		case p.n.Boot != nil && p.n.Boot.Media:
			b.Device = power.BootCDROM
			if j.Note == "device" {
				checked, err := p.insertMedia(ctx)
				if err != nil {
					return verdict{}, err
				}
				level := "trust level L0: the controller does not check where it comes from"
				if checked {
					level = "trust level L1: over HTTPS, and the controller checks the certificate"
				}
				return again(0), p.note(ctx, "image inserted", func(n *node.Node, effects *node.SideEffects) error {
					e.mark(n, effects, node.MarkMedia, level)
					return nil
				})
			}
		}
		if err := p.setBoot(ctx, b); err != nil {
			return verdict{}, err
		}
		next := "on"
		if e.staysOn(p.n) {
			next = "reset"
		}
		err := p.note(ctx, next, func(n *node.Node, effects *node.SideEffects) error {
			e.mark(n, effects, node.MarkBootDevice, strings.TrimSpace(string(b.Device)+" "+b.Mode))
			return nil
		})
		if err == nil && next == "reset" {
			e.mayReset(p.n.UUID)
		}
		return again(0), err

	case "reset": // of a machine that must not be turned off
		// The boot device holds for one start, and the window for one agent: after a restart that may have been asked
		// for, another needs both anew.
		enrolled := p.n.Boot != nil && !p.n.Boot.EnrolledAt.IsZero()
		if !enrolled && !viaAgent && !e.resets(p.n.UUID) {
			return again(0), p.bootAnew(ctx, "it is not known whether the machine was restarted")
		}
		st, err := p.power(ctx)
		if err != nil {
			return verdict{}, err
		}
		e.forgetAsked(p.n.UUID) // what comes of the request may never be stored
		if st == power.On && !enrolled {
			if err := p.setPower(ctx, power.Reset); err != nil {
				if power.KindOf(err) == power.Busy { // it was not done
					e.mayReset(p.n.UUID)
				}
				return verdict{}, err
			}
		}
		if viaAgent {
			e.agents().CloseSession(p.n.UUID)
			if st == power.On {
				return again(0), p.note(ctx, "wait", booting)
			}
		}
		return again(0), p.note(ctx, "on", func(n *node.Node, _ *node.SideEffects) error {
			n.Boot.System = nil // until here it was what ran before
			return nil
		})

	case "on", "on asked":
		return p.driveThen(ctx, "on", power.TurnOn, "wait", booting)
	}

	// Note is "wait".
	b := p.n.Boot
	if b == nil {
		return verdict{}, failf("the record of the boot is gone; ask for the operation again")
	}
	if !b.EnrolledAt.IsZero() && b.Connected {
		result, err := json.Marshal(
			map[string]any{"boot_id": b.BootID, "took_ms": time.Since(b.OpenedAt).Milliseconds()})
		return verdict{done: true, result: result}, err
	}
	left := time.Until(b.ClosesAt)
	if p.n.Maintenance {
		return again(e.pausePoll()), nil
	}
	if over, err := p.insteadOfAgent(ctx); over || err != nil {
		return again(0), err
	}
	if left > 0 {
		return again(left), nil
	}
	if until, err := e.bootProgress(ctx, p); err != nil {
		return verdict{}, err
	} else if time.Until(until) > 0 {
		_, err := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
			n.Boot.ClosesAt = until
			if n.Boot.Media {
				n.Boot.TokenExpires = until
			}
			return nil
		})
		return again(max(0, time.Until(until))), err // less than zero is never
	}
	reason, err := e.whyNoAgent(ctx, p)
	if err != nil {
		return verdict{}, err
	}
	return verdict{}, failf("%s", reason)
}

// openWindow begins a new boot of the agent: from here on the machine's boot requests are answered.
func (e *Engine) openWindow(n *node.Node, effects *node.SideEffects) error {
	now := time.Now().UTC()
	n.Generation++
	n.Job.Boots++
	n.DriveWindow = nil
	n.Boot = &node.Boot{OpenedAt: now, ClosesAt: now.Add(e.cfg.BootTimeout), Generation: n.Generation,
		Media: bootsImage(e.drivers.Interface(n, "boot"))}
	e.mark(n, effects, node.MarkWindow, "")
	return nil
}

// bootMarks returns the marks of the present job, after those of the job whose boot it took over, oldest first.
func (e *Engine) bootMarks(ctx context.Context, p *pass) ([]node.Mark, error) {
	marks, err := e.db.Marks(ctx, p.n.UUID, p.n.Job.ID)
	if err != nil || p.n.Job.Adopted == "" {
		return marks, err
	}
	before, err := e.db.Marks(ctx, p.n.UUID, p.n.Job.Adopted)
	return append(before, marks...), err
}

// bootProgress is until when a machine that boots may take: so long after it first got as far as it is.
func (e *Engine) bootProgress(ctx context.Context, p *pass) (time.Time, error) {
	marks, err := e.bootMarks(ctx, p)
	if err != nil {
		return time.Time{}, err
	}
	// Marks in the future are from before the clock was set back.
	marks = slices.DeleteFunc(slices.Clone(marks), func(m node.Mark) bool { return time.Until(m.At) > clockSlack })
	return record.Progress(p.n.Boot, marks).Add(e.cfg.BootTimeout), nil
}

// whyNoAgent says how far a machine came that did not bring up its agent in time, and what that hints at.
func (e *Engine) whyNoAgent(ctx context.Context, p *pass) (string, error) {
	marks, err := e.bootMarks(ctx, p)
	if err != nil {
		return "", err
	}
	head := fmt.Sprintf("the agent did not call back within %s; ", e.cfg.BootTimeout)
	if s := p.n.Boot.System; s != nil {
		return head + fmt.Sprintf("the installed system runs on the machine (%s at %s): boot it from the network", s,
			s.At.Format("15:04:05")), nil
	}
	far, heard := record.HowFar(p.n.Boot, marks, e.cfg.DHCP)
	if heard {
		return head + far, nil
	}
	st, err := p.power(ctx)
	switch {
	case errors.Is(err, errMoved), errors.Is(err, errFenced), lapsed(err), ctx.Err() != nil:
		return "", err
	case err == nil && st == power.Off:
		far = "the controller says that the machine is off again: look at its power supplies and at the controller's event log"
	}
	return head + far, nil
}

// endAgent turns the agent's machine off: the agent is asked first, so that it ends its boot in order, then the power
// is cut.
func endAgent(ctx context.Context, p *pass) (verdict, error) {
	e := p.e
	switch j := p.n.Job; j.Note {
	case "", "agent off":
		if j.Note == "" {
			if err := p.note(ctx, "agent off"); err != nil {
				return verdict{}, err
			}
		}
		if p.n.Boot != nil && p.n.Boot.Connected && j.Failure == "" {
			err := e.agents().Power(ctx, p.n.UUID, node.AgentOff)
			switch {
			case err == nil:
				return again(e.cfg.PowerPoll), p.note(ctx, "agent asked")
			case lapsed(err):
				return verdict{}, err
			}
			e.log.Info("the agent can't be asked to turn its machine off; its power is cut", "node", p.n.UUID)
		}
		e.forgetAsked(p.n.UUID)
		return again(0), p.note(ctx, "off")
	case "agent asked":
		// The agent closes its session first and is then busy flushing and unmounting: that it is gone says nothing
		// yet.
		st, err := p.power(ctx)
		switch {
		case err != nil:
			return verdict{}, err
		case st == power.Off:
			return stepDone, nil
		case time.Since(j.BegunAt) < e.cfg.AgentOff:
			return again(e.cfg.PowerPoll), nil
		}
		e.log.Info("the agent did not turn its machine off in time; its power is cut", "node", p.n.UUID, "took",
			e.cfg.AgentOff)
		e.forgetAsked(p.n.UUID)
		return again(0), p.note(ctx, "off")
	}
	return p.drivePower(ctx, "off", power.TurnOff, e.cfg.PowerTimeout)
}

// ended voids the agent's boot and credentials, after its machine is off. An image that it was booted from is ejected.
func (p *pass) ended(ctx context.Context) error {
	if err := p.ejectMedia(ctx, false); err != nil {
		return err
	}
	_, err := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
		p.e.closeBoot(n)
		return nil
	})
	if err == nil {
		p.e.agents().CloseSession(p.n.UUID)
	}
	return err
}

// tearDownAgent hands the machine over to the installed system: from now on it boots from its disk.
func tearDownAgent(ctx context.Context, p *pass) (verdict, error) {
	if p.n.Job.Note == "" {
		if err := p.bootFromDisk(ctx); err != nil { // before a kexec, too: should that end badly, the disk it is
			return verdict{}, err
		}
		if begun, err := beginKexec(ctx, p); begun || err != nil {
			return again(0), err
		}
	}
	if p.n.Job.Note == noteKexec {
		if v, over, err := kexec(ctx, p); over || err != nil {
			return v, err
		}
	}
	if p.e.staysOn(p.n) {
		if p.e.planner().FromMemory(p.n) {
			_, err := p.change(ctx, func(n *node.Node, _ *node.SideEffects) error {
				p.e.openDrive(n)
				return nil
			})
			if err != nil {
				return verdict{}, err
			}
		}
		if err := p.ejectMedia(ctx, false); err != nil { // before the restart, which must be asked for once
			return verdict{}, err
		}
		if err := p.e.agents().Power(ctx, p.n.UUID, node.AgentReboot); lapsed(err) {
			return verdict{}, err
		} else if err != nil {
			err := p.setPower(ctx, power.Reset)
			if err != nil {
				return verdict{}, err
			}
		} else {
			p.edit(func(n *node.Node, effects *node.SideEffects) error {
				p.e.mark(n, effects, node.MarkReset, "by the agent")
				return nil
			})
		}
		return stepDone, p.ended(ctx)
	}
	return takeDown(ctx, p)
}

// powerOffAgent leaves the ramdisk of a machine that must not be turned off running, locked out. Unless an agent is
// kept for what comes next, the machine's network goes with it.
func powerOffAgent(ctx context.Context, p *pass) (verdict, error) {
	if p.n.Job.Note == "" {
		if v, taken := keep(ctx, p); taken {
			return v, nil
		}
	}
	v, err := takeDown(ctx, p)
	if v.done && err == nil {
		err = p.e.disconnect(ctx, p.n)
	}
	return v, err
}

// takeDown ends the ramdisk with its machine.
func takeDown(ctx context.Context, p *pass) (verdict, error) {
	if p.e.staysOn(p.n) {
		return stepDone, p.ended(ctx)
	}
	// The machine is off when its medium is taken out: some controllers give a running one errors of its drive.
	if p.n.Job.Note == "eject" {
		if err := p.ejectMedia(ctx, true); err != nil {
			return verdict{}, err
		}
		return stepDone, p.ended(ctx)
	}
	v, err := endAgent(ctx, p)
	switch {
	case !v.done || err != nil:
		return v, err
	case p.n.MediaInserted:
		return again(0), p.note(ctx, "eject")
	}
	return stepDone, p.ended(ctx)
}

func switchToTenantNetwork(ctx context.Context, p *pass) (verdict, error) {
	return stepDone, p.e.attach(ctx, p.n, TenantNetwork)
}

func removeTenantNetwork(ctx context.Context, p *pass) (verdict, error) {
	return stepDone, p.e.attach(ctx, p.n, NoNetwork)
}

func powerOn(ctx context.Context, p *pass) (verdict, error) {
	if p.viaAgent() && !isPowerJob(p.n.Job) {
		return stepDone, nil // it restarts by itself, or a person does it
	}
	return p.drivePower(ctx, "on", power.TurnOn, p.limit(p.e.cfg.PowerTimeout))
}

func powerOff(ctx context.Context, p *pass) (verdict, error) {
	return p.drivePower(ctx, "off", power.TurnOff, p.limit(p.e.cfg.PowerTimeout))
}

// powerOffForGood is powerOff for a tear-down; a node whose power must not be cut keeps running until cleaning restarts
// it.
func powerOffForGood(ctx context.Context, p *pass) (verdict, error) {
	v, err := stepDone, error(nil)
	if !p.e.staysOn(p.n) { // first: some controllers give a running machine errors of its drive
		v, err = powerOff(ctx, p)
	}
	if v.done && err == nil {
		err = p.ejectDisc(ctx)
	}
	return v, err
}

func softPowerOff(ctx context.Context, p *pass) (verdict, error) {
	return p.drivePower(ctx, "off", power.SoftOff, p.limit(p.e.cfg.SoftOffTimeout))
}

// limit returns the time that the client allowed for a power action, or the usual one.
func (p *pass) limit(usual time.Duration) time.Duration {
	var args struct {
		Timeout time.Duration `json:"timeout"`
	}
	if s := p.n.Job.Current(); s != nil && len(s.Args) > 0 {
		if err := json.Unmarshal(s.Args, &args); err == nil && args.Timeout > 0 {
			return args.Timeout
		}
	}
	return usual
}
