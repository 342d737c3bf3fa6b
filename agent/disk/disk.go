// Package disk knows block devices: which there are, which one is the root disk, how its partition table is put
// together, and how an image is made bootable at the very end.
//
// Sizes and offsets are bytes unless a name says LBA or sectors. Everything is read from sysfs below a root folder:
// neither udev nor its database is needed, because the ramdisk has none.
//
// A disk is never opened for writing by its name alone. The choice of a disk gives an Identity (wwn, serial, size,
// path), and OpenVerified compares it with what is there now, before and after the exclusive open, because names move
// when controllers are slow or a cable is pulled.
//
// The commit protocol keeps a half-written disk from booting. Prepare zeroes both ends of the disk and takes the
// image's first MiB and its last 33 sectors into memory; the image writer fills in the rest; Commit writes what was
// held back, sector 0 last and alone. That sector is the one write that decides: firmware of both kinds looks there
// first (a GPT without a protective MBR is not a GPT to UEFI). In between, Pending is where the table can still be
// changed.
//
// GPT and MBR are read and written by our own code rather than by go-diskfs: the table is edited in memory, from an
// image's head on a disk that must not have a table yet, and it must reject what firmware would guess about.
package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ingot-metal/ingot/agent/step"
)

// Device is an open disk or plain file. It is an alias of an interface literal, so that whoever opens disks need not
// import this package. Offsets and lengths are whole logical sectors. Reads and writes go past the page cache where
// they can.
type Device = interface {
	io.ReaderAt
	io.WriterAt
	Size() int64
	SectorSize() int
	// Number is the device number; 0, 0 for a plain file.
	Number() (major, minor uint32)
	// Punch makes the range read as zero, or fails with an error that is errors.ErrUnsupported. It never writes zeros
	// itself.
	Punch(off, n int64) error
	// Sync returns when everything written is on the medium, and reports writes that failed earlier.
	Sync() error
	RereadPartitions() error
	Close() error
}

// machine is all that this package asks of the machine.
type machine interface {
	// Root is the folder below which sys is found.
	Root() string
	OpenExclusive(ctx context.Context, path string) (Device, error)
}

// settling is a machine whose disks may still be on their way.
type settling interface {
	machine
	// Settle waits, within reason, until the drivers have brought up their devices.
	Settle(ctx context.Context) error
}

// All are the machine's disks: what sysfs shows, or what the machine itself says it has (ingot-agent write has one,
// given by its path).
func All(ctx context.Context, m interface{ Root() string }) ([]Disk, error) {
	if own, ok := m.(interface {
		Disks(ctx context.Context) ([]Disk, error)
	}); ok {
		return own.Disks(ctx)
	}
	return List(ctx, m.Root())
}

// Find looks for the one disk with an identity. Wherever it is called now, it is found by what it is.
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

// OpenVerified opens the disk with the wanted identity for writing, exclusively. The identity is compared again when
// the disk is open, since only an open device can't be swapped behind its name.
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
