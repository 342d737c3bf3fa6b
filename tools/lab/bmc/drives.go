package bmc

import "io"

// Medium is a disc: its bytes, which can't be changed.
type Medium interface {
	io.ReaderAt
	// Size is in bytes, whole sectors of 2048.
	Size() int64
}

// changer is a machine with drives for discs of the controller's.
type changer interface {
	// SetMedium puts a medium into a drive, in place of what is in it; nil leaves it empty. A machine that is on sees
	// it at once, whether its system has locked the drive or not. The medium must be readable until it is out.
	SetMedium(drive int, m Medium) error
}

// SetMedium changes the medium of a drive, unless a fault prevents it: then it is declined with ErrBusy, or taken and
// not done.
func (b *BMC) SetMedium(drive int, m Medium) error {
	f := b.faults.Load()
	c, can := b.cfg.Machine.(changer)
	switch {
	case f.Busy:
		return ErrBusy
	case !can:
		return ErrLacking
	case f.ForgetMedia:
		return nil
	}
	return c.SetMedium(drive, m)
}
