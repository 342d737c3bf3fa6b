// Package passthru speaks to disks in their own languages: NVMe admin commands, ATA commands and SCSI commands, past
// the kernel's block layer, to erase them by their own means and to ask how they are.
//
// Open asks a device what it is and what it can do; Device.Methods lists its own ways of erasing, best first; a Method
// is started and then asked for its progress until it is done. Which method is taken, what is written before and read
// back after, is package erase's. A device's answer is never believed further than it goes: Done means that the device
// said so, no more.
//
// What survives what: a sanitize (NVMe, ATA, SCSI) belongs to the device. It goes on when the agent dies and after the
// power has been away, and Running recognises it. NVMe format and ATA security erase are single commands that answer at
// their end: when the power goes the erase is half done, and is started again from the beginning. Before an ATA
// security erase a password is set, always the same one (Password), so that a drive locked by an interrupted erase can
// be released by the next.
//
// Layouts and codes follow NVM Express Base 2.0 and NVM Command Set 1.0, ATA ACS-4 (security, sanitize, SMART), SAT-4
// (ATA in SCSI), SPC-5 and SBC-4, TCG Core 2.01 and Opal SSC 2.01. Levels are those of NIST SP 800-88 revision 1,
// appendix A.
package passthru

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// Door is all that this package asks of the machine: agent/machine/linux and agent/machine/fake have it. device is a
// path in /dev.
type Door interface {
	// Root is the folder below which sys is found.
	Root() string
	// NVMeAdmin sends an admin command to a namespace's controller. Bits 0 and 1 of opcode say which way data goes: 1
	// to the device, 2 from it. cdw holds command double words 10 to 15. status is the device's, without the phase bit,
	// zero for success; err means that the device was not reached.
	NVMeAdmin(ctx context.Context, device string, opcode uint8, nsid uint32, cdw [6]uint32, data []byte,
		timeout time.Duration) (result uint32, status uint16, err error)
	// SCSI sends a command to a SCSI or SATA disk; n is how much of data was moved. Sense data is there when status is
	// not zero (and may be when it is). err means that the device was not reached.
	SCSI(ctx context.Context, device string, cdb []byte, out bool, data []byte,
		timeout time.Duration) (status uint8, sense []byte, n int, err error)
}

// Level is how well a method sanitizes, in the words of NIST SP 800-88.
type Level string

// The levels that a command can reach.
const (
	Clear Level = "clear" // keeps off whoever reads the disk through its interface
	Purge Level = "purge" // keeps off a laboratory too
)

// Kind is the language that a device speaks.
type Kind string

// The kinds of device. None is a device with no language of its own (virtio): no methods, no health.
const (
	NVMe Kind = "nvme"
	ATA  Kind = "ata"
	SCSI Kind = "scsi"
	None Kind = "none"
)

// Options are what an operator says about a device that the device does not tell.
type Options struct {
	// PSID is the key printed on a drive with TCG Opal, with which it can be reverted without a password.
	PSID string
}

// Device is an open device: what it said of itself when it was opened.
type Device struct {
	Path     string
	Kind     Kind
	Model    string
	Serial   string
	Firmware string
	// Security is the state of the ATA security feature; nil on others.
	Security *Security
	// Opal is what level 0 discovery told; nil when the device has no TCG security.
	Opal *Opal
	// Discard tells what a discarded block reads as.
	Discard Discard

	door    Door
	opt     Options
	methods []Method
	running func(ctx context.Context) (Method, bool, error)
	release func(ctx context.Context) error
	health  func(ctx context.Context) (Health, error)
}

// Discard is what a device promises of blocks that were discarded (TRIM, UNMAP, deallocate).
type Discard struct {
	Supported bool
	Zeros     bool // they are guaranteed to read as zero
}

// Security is the state of the ATA security feature.
type Security struct {
	Supported, Enabled, Locked, Frozen, CountExpired bool
	Enhanced                                         bool // the enhanced erase is supported
}

// Method is one of a device's own ways of erasing itself.
type Method struct {
	Name  string // "nvme_sanitize_crypto", "ata_secure_erase_enhanced", ...
	Level Level
	// LeavesNoise: what is read afterwards is not one byte all over: old data under a new key, or a pattern of the
	// vendor's. Otherwise the whole disk reads as one value, mostly zero.
	LeavesNoise bool
	// Also are the other block devices ("/dev/nvme0n2") that are erased with this one: a sanitize is the whole
	// subsystem's.
	Also []string
	// Blocked says why the method can't be started now though the device has it, with a remedy (frozen, locked by a
	// stranger); nil when it can.
	Blocked error
	// Estimate is how long the device says that it takes; zero when it does not say.
	Estimate time.Duration
	// Resumes: the device goes on by itself when agent or power were away.
	Resumes bool

	start    func(ctx context.Context) error
	progress func(ctx context.Context) (Status, error)
}

// Status is how far an erase is.
type Status struct {
	Percent   int  // 0 to 100; -1 when the device does not tell
	Estimated bool // Percent comes from the time that the device said it takes
	Done      bool // the device says that it has finished, without an error
}

// ErrFailed is what an erase ends with when the device itself says that it failed.
var ErrFailed = errors.New("the device says that the erase failed")

// Open asks a device what it is. A device without a language of its own is no error: it has no methods.
func Open(ctx context.Context, door Door, device string, opt Options) (*Device, error) {
	d := &Device{Path: device, Kind: kindOf(door.Root(), device), door: door, opt: opt}
	var err error
	switch d.Kind {
	case NVMe:
		err = d.openNVMe(ctx)
	case ATA:
		err = d.openATA(ctx)
	case SCSI:
		err = d.openSCSI(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s what it is: %w", device, err)
	}
	return d, nil
}

// Methods are the device's own ways of erasing, best first: Purge before Clear, the quick before the slow.
func (d *Device) Methods() []Method { return d.methods }

// sortMethods puts what reaches further first, and otherwise keeps the order.
func (d *Device) sortMethods() {
	slices.SortStableFunc(d.methods, func(a, b Method) int { return rank(a) - rank(b) })
}

func rank(m Method) int {
	if m.Level == Purge {
		return 0
	}
	return 1
}

// Running finds an erase that the device is still at, started before the agent was, to be waited for. None is no error.
func (d *Device) Running(ctx context.Context) (Method, bool, error) {
	if d.running == nil {
		return Method{}, false, nil
	}
	return d.running(ctx)
}

// Release brings a device that an interrupted erase has left locked back into use. Call it before anything is read or
// written. A device that is not locked is left alone; one locked by a stranger's password is an error that says what to
// do.
func (d *Device) Release(ctx context.Context) error {
	if d.release == nil {
		return nil
	}
	return d.release(ctx)
}

// Start begins the erase and returns: with an error when the device refused. Everything on the device (and on Also) is
// lost from here on.
func (m Method) Start(ctx context.Context) error {
	if m.Blocked != nil {
		return m.Blocked
	}
	if err := m.start(ctx); err != nil {
		return fmt.Errorf("start %s: %w", m.Name, err)
	}
	return nil
}

// Progress asks how far the erase is. An error that is ErrFailed ends it; any other means that asking failed, not the
// erase.
func (m Method) Progress(ctx context.Context) (Status, error) {
	st, err := m.progress(ctx)
	if err != nil {
		return Status{Percent: -1}, fmt.Errorf("ask how far %s is: %w", m.Name, err)
	}
	return st, nil
}

// Wait asks for progress every so often until the erase is done, and hands on what it hears. A device that does not
// answer is asked again: resets in mid-sanitize are common. ctx ends the waiting, not the erase.
func (m Method) Wait(ctx context.Context, every time.Duration, report func(Status)) error {
	const patience = 10 // questions in a row that may stay without an answer
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for silent := 0; ; {
		st, err := m.Progress(ctx)
		switch {
		case err == nil:
			silent = 0
			if report != nil {
				report(st)
			}
			if st.Done {
				return nil
			}
		case errors.Is(err, ErrFailed):
			return err
		default:
			if silent++; silent >= patience {
				return step.Retryable(
					"see the kernel log for what the disk does, and clean again: an erase in progress is waited for",
					err)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
