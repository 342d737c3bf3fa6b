// Package boot makes the machine start the installed system: it commits the disk and writes the firmware's boot entry.
//
// Variables are read and written with u-root's efivarfs; this package encodes boot entries and checks that the firmware
// kept them. The EFI system partition is read with our own FAT reader, read-only and bounded, because the image is a
// tenant's: nothing of it is mounted or run. An entry that can't be written is a warning if the image has the fallback
// loader \EFI\BOOT\BOOTX64.EFI, which firmware finds without an entry; else it is a failure, because the machine would
// not boot.
package boot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/fat"
	"github.com/u-root/u-root/pkg/efivarfs"
	"golang.org/x/sys/unix"
)

// PrepareArgs declares the arguments of prepare_instance_boot: none.
var PrepareArgs = []step.Arg{}

// machine is the part of the machine that this package uses.
type machine interface {
	Root() string
	OpenExclusive(ctx context.Context, path string) (disk.Device, error)
	// ReadRaw reads from a disk that other programs may have open.
	ReadRaw(ctx context.Context, path string, p []byte, off int64) error
	// Variables returns the firmware's variables. errors.Is(err, efivarfs.ErrNoFS): the kernel has none.
	Variables() (efivarfs.EFIVar, error)
}

// Result of prepare_instance_boot.
type Result struct {
	Committed bool   `json:"committed"`
	BootEntry *Entry `json:"boot_entry"` // null: none was written
	BootMode  string `json:"boot_mode"`  // "bios" or "uefi"
	// BootEntries are those of all disks of an array.
	BootEntries []Entry `json:"boot_entries,omitempty"`
	Warning     string  `json:"warning"`
	// RootUUID is the UUID of a partition image's file system.
	RootUUID string `json:"root_uuid,omitempty"`
}

// Entry is a boot entry of the firmware.
type Entry struct {
	Name      string `json:"name"` // "Boot0003"
	Label     string `json:"label"`
	Loader    string `json:"loader"`
	Partition string `json:"partition"` // GUID; on an MBR the disk's signature and the number
}

// PrepareStep commits the disk that write_image left, then makes the firmware start it. Stopped before the commit, the
// disk has no table and does not boot; stopped after it, the disk is complete and at most the boot entry is missing. It
// may be run again.
func PrepareStep(m machine) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, _ struct{}) (step.Outcome, error) {
		r := Result{BootMode: "bios"}
		efi := filepath.Join(m.Root(), "sys/firmware/efi")
		if _, err := os.Stat(efi); err == nil {
			r.BootMode = "uefi"
		}
		p, err := disk.PendingOf(c.Facts)
		if err == nil && p.Division() != nil {
			c.Report(step.Progress{Phase: "EFI system partition"})
			if r.RootUUID, err = FillESP(ctx, m, p, c.Log); err != nil {
				return step.Outcome{}, err
			}
		}
		c.Report(step.Progress{Phase: "commit"})
		done, err := disk.Commit(ctx, c.Facts, m, c.Log)
		if err != nil {
			return step.Outcome{}, err
		}
		r.Committed = true
		if r.BootMode == "uefi" {
			c.Report(step.Progress{Phase: "boot entry"})
			members, err := disk.Members(m.Root(), done.Disk.Name)
			if err != nil {
				return step.Outcome{}, err
			}
			if len(members) > 0 {
				err = r.writeEntries(ctx, m, done, members, c.Log)
				return step.Outcome{Result: r}, err
			}
			if err := r.writeEntry(ctx, m, done, c.Log); err != nil {
				return step.Outcome{}, err
			}
		}
		return step.Outcome{Result: r}, nil
	})
}

// writeEntry writes the boot entry, and decides whether a missing one is a warning or a failure.
func (r *Result) writeEntry(ctx context.Context, m machine, d *disk.Committed, log *slog.Logger) error {
	esp, ok := findESP(d)
	if !ok {
		return step.Failf("use an image with an EFI system partition, or set boot_mode:bios in the node's capabilities",
			"the machine boots by UEFI, but the image on %s has no EFI system partition", d.Disk.Name)
	}
	l, fallback, err := readESP(ctx, m, d, esp)
	if err == nil {
		var e *Entry
		if e, err = install(m, esp, d.Signature, l); err == nil {
			r.BootEntry = e
			log.Info("boot entry written", "entry", e.Name, "label", e.Label, "loader", e.Loader, "disk", d.Disk.Name)
			return nil
		}
	}
	if !fallback {
		return step.Fail(remedy(err), fmt.Errorf("make a boot entry for %s: %w", d.Disk.Name, err))
	}
	r.Warning = fmt.Sprintf("no boot entry was written (%v); the firmware will use the image's fallback loader", err)
	log.Warn("no boot entry written, the image's fallback loader has to do", "disk", d.Disk.Name, "err", err)
	return nil
}

func remedy(err error) string {
	if errors.Is(err, errNoLoader) || errors.Is(err, fat.ErrNot) {
		return "use an image whose EFI system partition has a boot loader (EFI/BOOT/BOOTX64.EFI is enough)"
	}
	if errors.Is(err, unix.ENOSPC) {
		return "the firmware's variable store is full: delete old boot entries in its setup, or reset it"
	}
	return "use an image that also has EFI/BOOT/BOOTX64.EFI, or look at the firmware's setup: it refuses boot entries"
}

// FillESP makes a disk that was partitioned for a partition image bootable, except for the table; it does nothing for
// other images. It returns the UUID of the root file system.
func FillESP(ctx context.Context, m machine, p *disk.Pending, log *slog.Logger) (string, error) {
	if p.Division() == nil {
		return "", nil
	}
	if err := disk.CanDivide(m); err != nil {
		return "", err
	}
	root, err := makeESP(ctx, m, p, archs[runtime.GOARCH], log)
	if err != nil {
		return "", fmt.Errorf("make %s bootable: %w", p.Disk.Name, err)
	}
	return root, nil
}

// findESP returns the first EFI system partition.
func findESP(d *disk.Committed) (disk.Partition, bool) {
	for _, p := range d.Partitions {
		if strings.EqualFold(p.Type, disk.TypeESP) || strings.EqualFold(p.Type, "0xef") {
			return p, true
		}
	}
	return disk.Partition{}, false
}

// readESP reads the EFI system partition through the whole-disk device, without partition nodes and mounts.
func readESP(ctx context.Context, m machine, d *disk.Committed,
	esp disk.Partition) (l loader, fallback bool, err error) {
	dev, err := m.OpenExclusive(ctx, d.Disk.Name)
	if err != nil {
		return loader{}, false, fmt.Errorf("open %s: %w", d.Disk.Name, err)
	}
	defer dev.Close() // nothing was written
	f, err := fat.Open(disk.Section(dev, esp.Start, esp.Size), esp.Size)
	if err != nil {
		return loader{}, false, fmt.Errorf("EFI system partition: %w", err)
	}
	return findLoader(f, archs[runtime.GOARCH])
}

func partitionName(p disk.Partition, signature uint32) string {
	return cmp.Or(p.GUID, fmt.Sprintf("%08x-%02d", signature, p.Number)) // as in Linux' PARTUUID
}

func install(m machine, esp disk.Partition, signature uint32, l loader) (*Entry, error) {
	firmware, err := m.Variables()
	if err != nil {
		return nil, fmt.Errorf("the kernel shows no firmware variables: %w", err)
	}
	option, err := loadOption(l.label, l.path, esp, signature)
	if err != nil {
		return nil, err
	}
	n, err := vars{firmware}.install(l.label, option)
	if err != nil {
		return nil, err
	}
	return &Entry{Name: entryName(n), Label: l.label, Loader: l.path, Partition: partitionName(esp, signature)}, nil
}
