// Package disk handles block devices: it lists them, chooses the root disk, builds its partition table, and finally
// makes an image bootable.
//
// Sizes and offsets are bytes unless a name says LBA or sectors. Everything is read from sysfs below a root directory:
// the ramdisk has no udev and no udev database.
//
// A disk is never opened for writing by its name alone. The choice of a disk yields an Identity (wwn, serial, size,
// path), and OpenVerified compares it with the present disk before and after the exclusive open, because names move
// when controllers are slow or a cable is pulled.
//
// The commit protocol keeps a half-written disk from booting. Prepare zeroes both ends of the disk and takes the
// image's first MiB and its last 33 sectors into memory; the image writer writes the rest; Commit writes the withheld
// data, sector 0 last and alone. That single write decides: firmware of both kinds looks there first (a GPT without a
// protective MBR is not a GPT to UEFI). Until then the table can be changed through Pending.
//
// GPT and MBR are read and written by our own code instead of go-diskfs: the table is edited in memory, from an image's
// head on a disk that must not have a table yet, and ambiguous tables must be rejected that firmware would have to
// guess about.
package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ingot-metal/ingot/agent/step"
)

// Device is an open disk or plain file. It is an alias of an interface literal, so that implementations need not import
// this package. Offsets and lengths are whole logical sectors. Reads and writes bypass the page cache where possible.
type Device = interface {
	io.ReaderAt
	io.WriterAt
	Size() int64
	SectorSize() int
	// Number returns the device number; 0, 0 for a plain file.
	Number() (major, minor uint32)
	// Punch makes the range read as zero, or fails with an error that is errors.ErrUnsupported. It never writes zeros
	// itself.
	Punch(off, n int64) error
	// Sync returns when all written data is on the medium, and returns errors of earlier writes.
	Sync() error
	RereadPartitions() error
	Close() error
}

// Close closes a device, and puts the error of that into err if there is none yet.
func Close(dev io.Closer, err *error) {
	*err = cmp.Or(*err, dev.Close())
}

// machine is the part of the machine that this package uses.
type machine interface {
	// Root is the directory that contains sys.
	Root() string
	OpenExclusive(ctx context.Context, path string) (Device, error)
}

// settling is a machine whose disks may not have appeared yet.
type settling interface {
	machine
	// Settle waits, for a limited time, until the drivers have initialized their devices.
	Settle(ctx context.Context) error
}

// All returns the machine's disks: those in sysfs, or those the machine itself lists (ingot-agent write has one, given
// by its path).
func All(ctx context.Context, m interface{ Root() string }) ([]Disk, error) {
	if own, ok := m.(interface {
		Disks(ctx context.Context) ([]Disk, error)
	}); ok {
		return own.Disks(ctx)
	}
	return List(ctx, m.Root())
}

// Find returns the one disk with an identity, independent of its current name.
func Find(disks []Disk, want Identity) (Disk, error) {
	const remedy = "check the disk and its cabling, then start the deployment or cleaning again"
	if want.WWN == "" && want.Serial == "" && want.ByPath == "" {
		return Disk{}, step.Failf("give the disk a serial number, or use a controller that reports its position",
			"disk %s has neither wwn, serial nor path: nothing to recognise it by", want.Name)
	}
	var twins []Disk
	var near []string
	for _, d := range disks {
		id := d.Identity()
		diff := want.Differs(id)
		switch {
		case diff == "":
			twins = append(twins, d)
		case want.Same(id) || d.Name == want.Name:
			near = append(near, d.Name+": "+diff)
		}
	}
	switch {
	case len(twins) == 1:
		return twins[0], nil
	case len(twins) > 1:
		return Disk{}, step.Failf("remove one of them, or make one of two paths to it unavailable",
			"disk %s is ambiguous: %s and %s have the same identity", want.Name, twins[0].Name, twins[1].Name)
	case len(near) > 0:
		return Disk{}, step.Failf(remedy, "disk %s is not the disk that was chosen: %s", want.Name,
			strings.Join(near, "; "))
	}
	return Disk{}, step.Failf(remedy, "disk %s (serial %q, wwn %q) is gone", want.Name, want.Serial, want.WWN)
}

// OpenVerified opens the disk with the wanted identity for writing, exclusively. The identity is compared again after
// the open, since only then can the name no longer move to another disk.
func OpenVerified(ctx context.Context, m machine, want Identity) (Device, Disk, error) {
	d, err := find(ctx, m, want)
	if err != nil {
		return nil, Disk{}, err
	}
	dev, err := m.OpenExclusive(ctx, d.Name)
	if err != nil {
		return nil, Disk{}, step.Fail("see what uses the disk (a mount, an array, a volume group) and release it",
			fmt.Errorf("open %s: %w", d.Name, err))
	}
	again, err := find(ctx, m, want)
	if err == nil {
		major, minor := dev.Number()
		number := fmt.Sprintf("%d:%d", major, minor)
		switch {
		case again.Name != d.Name:
			err = step.Failf("try again", "disk %s became %s while it was opened", d.Name, again.Name)
		case number != again.Number && number != "0:0":
			err = step.Failf("try again", "disk %s has device number %s, but %s was opened", d.Name, again.Number,
				number)
		case dev.Size() != d.Size:
			err = step.Failf("try again", "disk %s has %d bytes, but %d when opened", d.Name, d.Size, dev.Size())
		}
	}
	if err != nil {
		return nil, Disk{}, errors.Join(err, dev.Close())
	}
	return dev, again, nil
}

func find(ctx context.Context, m machine, want Identity) (Disk, error) {
	disks, err := All(ctx, m)
	if err != nil {
		return Disk{}, err
	}
	return Find(disks, want)
}
