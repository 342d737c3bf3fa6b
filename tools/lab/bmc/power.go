package bmc

import "errors"

// Action is an action of the controller on the machine's power.
type Action string

// Power actions. Press is the ACPI button; NMI interrupts the operating system.
const (
	TurnOn  Action = "on"
	TurnOff Action = "off"
	Cycle   Action = "cycle"
	Reset   Action = "reset"
	Press   Action = "soft off"
	NMI     Action = "nmi"
)

// Why an action is declined.
var (
	ErrBusy    = errors.New("the controller is busy")
	ErrOff     = errors.New("the machine is off")
	ErrLacking = errors.New("the machine can't do it")
)

// interruptible is a machine that takes a non-maskable interrupt.
type interruptible interface{ NMI() error }

// Act carries out an action, unless a fault prevents it: then it is declined with ErrBusy, or taken and not done. What
// makes no sense for a machine that is off is declined with ErrOff. Other errors are the machine's.
func (b *BMC) Act(a Action) error {
	f, m := b.faults.Load(), b.cfg.Machine
	nmi, canNMI := m.(interruptible)
	ignore := f.StayOff && (a == TurnOn || a == Reset) || f.StayOn && (a == TurnOff || a == Press)
	switch {
	case f.Busy:
		return ErrBusy
	case a == NMI && !canNMI:
		return ErrLacking
	case ignore:
		b.log.Debug("power action taken and not done", "action", string(a))
		return nil
	case a != TurnOn && a != TurnOff && !m.On():
		return ErrOff
	}
	b.log.Debug("power action", "action", string(a))
	var err error
	switch a {
	case TurnOn:
		err = m.Start()
	case TurnOff:
		err = m.Stop()
	case Cycle:
		if err = m.Stop(); err == nil && !f.StayOff {
			err = m.Start()
		}
	case Reset:
		err = m.Reset()
	case Press:
		err = m.PressPower()
	case NMI:
		err = nmi.NMI()
	default:
		return ErrLacking
	}
	if err != nil {
		b.log.Error("power action", "action", string(a), "err", err)
	}
	return err
}

// On reports whether the machine runs.
func (b *BMC) On() bool { return b.cfg.Machine.On() }
