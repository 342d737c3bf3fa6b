// Package passthru sends disks their native commands, NVMe admin commands, ATA commands and SCSI commands, past the
// kernel's block layer, to erase them by their own functions and to read their health.
//
// Open reads a device's identity and capabilities; Device.Methods lists its erase methods, best first; a Method is
// started and then polled until it is done. Package erase chooses the method, and writes before and reads back after. A
// device's response is not proof: Done means only that the device reported it.
//
// Interruptions: a sanitize (NVMe, ATA, SCSI) belongs to the device. It continues when the agent dies and after a power
// cut, and Running detects it. NVMe format and ATA security erase are single commands that return at their end: after a
// power cut the erase is half done, and is restarted from the beginning. Before an ATA security erase a password is
// set, always the same one (Password), so that the next erase can release a drive locked by an interrupted one.
//
// Layouts and codes follow NVM Express Base 2.0 and NVM Command Set 1.0, ATA ACS-4 (security, sanitize, SMART), SAT-4
// (ATA in SCSI), SPC-5 and SBC-4, TCG Core 2.01 and Opal SSC 2.01. Levels are those of NIST SP 800-88 revision 1,
// appendix A.
package passthru

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// Transport sends commands to the machine's disks: agent/machine/linux and agent/machine/fake implement it.
// device is a path in /dev.
type Transport interface {
	// Root is the directory that contains sys.
	Root() string
	// NVMeAdmin sends an admin command to a namespace's controller. Bits 0 and 1 of opcode give the direction of data:
	// 1 to the device, 2 from it. cdw holds command double words 10 to 15. status is the device's, without the phase
	// bit, zero for success; err means that the device was not reached.
	NVMeAdmin(ctx context.Context, device string, opcode uint8, nsid uint32, cdw [6]uint32, data []byte,
		timeout time.Duration) (result uint32, status uint16, err error)
	// SCSI sends a command to a SCSI or SATA disk; n is the number of bytes moved. Sense data is valid if status is not
	// zero (and possibly otherwise). err means that the device was not reached.
	SCSI(ctx context.Context, device string, cdb []byte, out bool, data []byte,
		timeout time.Duration) (status uint8, sense []byte, n int, err error)
}

// Level is a level of sanitization by NIST SP 800-88.
type Level string

// Levels that a command can reach.
const (
	Clear Level = "clear" // protects against reading through the disk's interface
	Purge Level = "purge" // protects against a laboratory too
)

// Kind is a device's command set.
type Kind string

// Kinds of devices. None is a device without a command set (virtio): no methods, no health.
const (
	NVMe Kind = "nvme"
	ATA  Kind = "ata"
	SCSI Kind = "scsi"
	None Kind = "none"
)

// Options are data about a device from the operator.
type Options struct {
	// PSID is the key printed on a drive with TCG Opal, with which it can be reverted without a password.
	PSID string
}

// Device is an open device, with its properties at the time of opening.
type Device struct {
	Path     string
	Kind     Kind
	Model    string
	Serial   string
	Firmware string
	// Security is the state of the ATA security feature; nil on others.
	Security *Security
	// Opal is level 0 discovery's data; nil if the device has no TCG security.
	Opal *Opal
	// Discard says how discarded blocks read.
	Discard Discard

	transport Transport
	opt       Options
	methods   []Method
	running   func(ctx context.Context) (Method, bool, error)
	release   func(ctx context.Context) error
	health    func(ctx context.Context) (Health, error)
}

// Discard is a device's promise about discarded blocks (TRIM, UNMAP, deallocate).
type Discard struct {
	Supported bool
	Zeros     bool // they are guaranteed to read as zero
}

// Security is the state of the ATA security feature.
type Security struct {
	Supported, Enabled, Locked, Frozen, CountExpired bool
	Enhanced                                         bool // the enhanced erase is supported
}

// Method is one of a device's erase functions.
type Method struct {
	Name  string // "nvme_sanitize_crypto", "ata_secure_erase_enhanced", ...
	Level Level
	// LeavesNoise: blocks read afterwards are not one repeated byte, but old data under a new key, or a vendor's
	// pattern. Otherwise the whole disk reads as one value, usually zero.
	LeavesNoise bool
	// Also lists the other block devices ("/dev/nvme0n2") that are erased with this one: a sanitize affects the whole
	// subsystem.
	Also []string
	// Blocked says why a supported method can't be started now, with a remedy (frozen, locked with a foreign password);
	// nil if it can.
	Blocked error
	// Estimate is the duration that the device announces; zero if unknown.
	Estimate time.Duration
	// Resumes: the device continues by itself after an end of the agent or a power cut.
	Resumes bool

	start    func(ctx context.Context) error
	progress func(ctx context.Context) (Status, error)
}

// Status is the progress of an erase.
type Status struct {
	Percent   int  // 0 to 100; -1 if unknown
	Estimated bool // Percent is computed from the device's Estimate
	Done      bool // the device reports success
}

// ErrFailed is the error of an erase whose failure the device itself reports.
var ErrFailed = errors.New("the device says that the erase failed")

// Open reads a device's properties. A device without a command set is not an error: it has no methods.
func Open(ctx context.Context, t Transport, device string, opt Options) (*Device, error) {
	d := &Device{Path: device, Kind: kindOf(t.Root(), device), transport: t, opt: opt}
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

// Methods returns the device's erase methods, best first: Purge before Clear, fast before slow.
func (d *Device) Methods() []Method { return d.methods }

// sortMethods puts what reaches further first, "purge" before "clear", and otherwise keeps the order.
func (d *Device) sortMethods() {
	slices.SortStableFunc(d.methods, func(a, b Method) int { return cmp.Compare(b.Level, a.Level) })
}

// Running finds an erase that was started before the agent and is still in progress. None is not an error.
func (d *Device) Running(ctx context.Context) (Method, bool, error) {
	if d.running == nil {
		return Method{}, false, nil
	}
	return d.running(ctx)
}

// Release unlocks a device that an interrupted erase left locked. Call it before any read or write. An unlocked device
// is left alone; for one locked with a foreign password the error has the remedy.
func (d *Device) Release(ctx context.Context) error {
	if d.release == nil {
		return nil
	}
	return d.release(ctx)
}

// Start starts the erase and returns: with an error if the device refused. Everything on the device (and on Also) is
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

// Progress returns the progress of the erase. An error that is ErrFailed ends it; any other means that the query
// failed, not the erase.
func (m Method) Progress(ctx context.Context) (Status, error) {
	st, err := m.progress(ctx)
	if err != nil {
		return Status{Percent: -1}, fmt.Errorf("ask how far %s is: %w", m.Name, err)
	}
	return st, nil
}

// Wait polls for progress until the erase is done, and reports it. A device that does not answer is asked again: resets
// during a sanitize are common. ctx ends the waiting, not the erase.
func (m Method) Wait(ctx context.Context, every time.Duration, report func(Status)) error {
	const patience = 10 // unanswered queries in a row
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
					"see the kernel log for the disk's errors, and clean again: the step waits for an erase in progress",
					err)
			}
		}
		if err := step.Sleep(ctx, every); err != nil {
			return err
		}
	}
}
