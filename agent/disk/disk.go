// Package disk knows block devices: which there are, which one is the root disk, how its partition table is put together, and
// how all that was on a disk is made to be forgotten.
//
// Sizes and offsets are bytes unless a name says LBA or sectors. Everything is read from sysfs below a root folder: neither
// udev nor its database is needed, because the ramdisk has none.
//
// A disk is never opened for writing by its name alone. The choice of a disk gives an Identity (wwn, serial, size, path), and
// OpenVerified compares it with what is there now, before and after the exclusive open, because names move when controllers
// are slow or a cable is pulled.
//
// The commit protocol keeps a half-written disk from booting. Prepare zeroes both ends of the disk and takes the image's
// first MiB and its last 33 sectors into memory; the image writer fills in the rest; Commit writes what was held back, sector
// 0 last and alone. That sector is the one write that decides: firmware of both kinds looks there first (a GPT without a
// protective MBR is not a GPT to UEFI). In between, Pending is where the table can still be changed.
//
// GPT and MBR are read and written by our own code rather than by go-diskfs: the table is edited in memory, from an image's
// head on a disk that must not have a table yet, and it must reject what firmware would guess about.
package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ingot-metal/ingot/agent/step"
)

// Device is an open disk or plain file. It is an alias of an interface literal, so that whoever opens disks need not import
// this package. Offsets and lengths are whole logical sectors. Reads and writes go past the page cache where they can.
type Device = interface {
	io.ReaderAt
	io.WriterAt
	Size() int64
	SectorSize() int
	// Number is the device number; 0, 0 for a plain file.
	Number() (major, minor uint32)
	// Punch makes the range read as zero, or fails with an error that is errors.ErrUnsupported. It never writes zeros itself.
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

// Disk is one whole block device, under the names that ironic-python-agent uses. Empty strings are null in JSON.
type Disk struct {
	Name               string // "/dev/sda"
	Model              string
	Size               int64
	Rotational         bool
	WWN                string
	Serial             string
	Vendor             string
	WWNWithExtension   string
	WWNVendorExtension string
	HCTL               string
	ByPath             string // "/dev/disk/by-path/pci-0000:00:04.0"
	LogicalSectors     int    // size of a logical sector
	PhysicalSectors    int
	Tran               string // "nvme", "sata", "sas", "usb", "virtio", "fc", "iscsi", "mmc" or ""

	// ByPathAlso is what older rules call the same path. ReadOnly and Removable are as the kernel says. None is in JSON.
	ByPathAlso []string
	ReadOnly   bool
	Removable  bool

	number string // "254:0"
}

type diskJSON struct {
	Name               string  `json:"name"`
	Model              *string `json:"model"`
	Size               int64   `json:"size"`
	Rotational         bool    `json:"rotational"`
	WWN                *string `json:"wwn"`
	Serial             *string `json:"serial"`
	Vendor             *string `json:"vendor"`
	WWNWithExtension   *string `json:"wwn_with_extension"`
	WWNVendorExtension *string `json:"wwn_vendor_extension"`
	HCTL               *string `json:"hctl"`
	ByPath             *string `json:"by_path"`
	LogicalSectors     int     `json:"logical_sectors"`
	PhysicalSectors    int     `json:"physical_sectors"`
	Tran               *string `json:"tran"`
}

func (d Disk) json() diskJSON {
	null := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	return diskJSON{
		Name: d.Name, Model: null(d.Model), Size: d.Size, Rotational: d.Rotational, WWN: null(d.WWN), Serial: null(d.Serial),
		Vendor: null(d.Vendor), WWNWithExtension: null(d.WWNWithExtension), WWNVendorExtension: null(d.WWNVendorExtension),
		HCTL: null(d.HCTL), ByPath: null(d.ByPath), LogicalSectors: d.LogicalSectors, PhysicalSectors: d.PhysicalSectors,
		Tran: null(d.Tran),
	}
}

// MarshalJSON writes ironic-python-agent's names, with null for what is not known.
func (d Disk) MarshalJSON() ([]byte, error) { return json.Marshal(d.json()) }

// String names the disk the way an operator can find it: name, model, size, serial.
func (d Disk) String() string {
	parts := []string{d.Name}
	if m := strings.TrimSpace(d.Vendor + " " + d.Model); m != "" {
		parts = append(parts, m)
	}
	parts = append(parts, humanSize(d.Size))
	if d.Serial != "" {
		parts = append(parts, "serial "+d.Serial)
	}
	return strings.Join(parts, ", ")
}

func humanSize(n int64) string {
	switch {
	case n >= 10<<40:
		return fmt.Sprintf("%d TiB", n>>40)
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}

// Identity is what makes a disk this disk. At least one of WWN, Serial and ByPath is set.
type Identity struct {
	Name   string `json:"name"` // where it was; not part of the comparison
	Serial string `json:"serial"`
	WWN    string `json:"wwn"`
	Size   int64  `json:"size"`
	ByPath string `json:"by_path"`
}

// Identity gives the disk's identity.
func (d Disk) Identity() Identity {
	wwn := d.WWNWithExtension
	if wwn == "" {
		wwn = d.WWN
	}
	return Identity{Name: d.Name, Serial: d.Serial, WWN: wwn, Size: d.Size, ByPath: d.ByPath}
}

// differs says what is not the same about two identities, or "".
func (id Identity) differs(other Identity) string {
	var diffs []string
	for _, f := range []struct{ what, want, is string }{
		{"wwn", id.WWN, other.WWN}, {"serial", id.Serial, other.Serial}, {"path", id.ByPath, other.ByPath},
	} {
		if f.want != f.is {
			diffs = append(diffs, fmt.Sprintf("%s is %q, not %q", f.what, f.is, f.want))
		}
	}
	if id.Size != other.Size {
		diffs = append(diffs, fmt.Sprintf("size is %d, not %d", other.Size, id.Size))
	}
	return strings.Join(diffs, ", ")
}

// same says whether two disks can't be told apart by what is burnt into them.
func (id Identity) same(other Identity) bool {
	return id.WWN == other.WWN && id.Serial == other.Serial && (id.WWN != "" || id.Serial != "")
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
		diff := want.differs(id)
		switch {
		case diff == "":
			twins = append(twins, d)
		case want.same(id) || d.Name == want.Name:
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
		return Disk{}, step.Failf(remedy, "disk %s is not the disk that was chosen: %s", want.Name, strings.Join(near, "; "))
	}
	return Disk{}, step.Failf(remedy, "disk %s (serial %q, wwn %q) is gone", want.Name, want.Serial, want.WWN)
}

// OpenVerified opens the disk with the wanted identity for writing, exclusively. The identity is compared again when the disk
// is open, since only an open device can't be swapped behind its name.
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
		case number != again.number && number != "0:0":
			err = step.Failf("try again", "disk %s has device number %s, but %s was opened", d.Name, again.number, number)
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
	disks, err := List(ctx, m.Root())
	if err != nil {
		return Disk{}, err
	}
	return Find(disks, want)
}
