package standalone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/u-root/u-root/pkg/efivarfs"
	"golang.org/x/sys/unix"
)

// machine is this machine, with one disk.
type machine struct {
	linux.Machine
	root string          // of a test, that has a firmware of its own
	efi  efivarfs.EFIVar // that firmware's
	disk disk.Disk
	seen *seen

	served string // path of the published image that this program serves to itself
}

// Root is the directory that contains sys and others.
func (m machine) Root() string {
	return cmp.Or(m.root, m.Machine.Root())
}

// Variables returns the firmware's variables.
func (m machine) Variables() (efivarfs.EFIVar, error) {
	if m.efi != nil {
		return m.efi, nil
	}
	return m.Machine.Variables()
}

// Disks returns the one disk, whether or not it is still present.
func (m machine) Disks(context.Context) ([]disk.Disk, error) { return []disk.Disk{m.disk}, nil }

// UEFI accepts partition images for the disk: the firmware of the machine it is meant for is unknown, and partition
// images boot by UEFI only.
func (m machine) UEFI() bool { return true }

// LocalImages allows images that are files of this machine. It returns the path of the published image that this
// program serves to itself, or "".
func (m machine) LocalImages() (served string) { return m.served }

// Settle returns at once: the disk existed when its path was given.
func (m machine) Settle(context.Context) error { return nil }

// openMachine identifies the target.
func openMachine(ctx context.Context, path string) (machine, error) {
	m := machine{seen: &seen{}}
	if path == "" {
		return m, step.Failf("give --disk, the path of a disk, a loop device or a file", "no disk is given")
	}
	real, err := filepath.EvalSymlinks(path) // /dev/disk/by-id/...
	if errors.Is(err, fs.ErrNotExist) {
		remedy := "see `lsblk` for the disks of this machine"
		if !strings.HasPrefix(path, "/dev/") {
			remedy = "make the file first, as large as the disk shall be: truncate -s 10G " + path
		}
		return m, step.Failf(remedy, "there is no %s", path)
	}
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return m, err
	}
	if _, err := os.Stat(filepath.Join("/sys/class/block", filepath.Base(real), "partition")); err == nil &&
		strings.HasPrefix(real, "/dev/") {
		return m, step.Failf("give the whole disk", "%s is a partition; images are written to whole disks", path)
	}
	disks, err := disk.List(ctx, m.Root())
	if err != nil {
		return m, err
	}
	for _, d := range disks {
		if d.Name == real {
			if d.ReadOnly {
				return m, notOpened(errProtected(path))
			}
			m.disk = d
			return m, nil
		}
	}
	// A loop device, an array, a mapped device or a file has no hardware identity, only its path.
	dev, err := openWritable(ctx, real)
	if err != nil {
		return m, notOpened(err)
	}
	major, minor := dev.Number()
	m.disk = disk.Disk{Name: real, ByPath: real, Number: fmt.Sprintf("%d:%d", major, minor), Size: dev.Size(),
		LogicalSectors: dev.SectorSize(), PhysicalSectors: dev.SectorSize()}
	return m, dev.Close()
}

// openWritable refuses a write-protected device, which otherwise only the first write would detect.
func openWritable(ctx context.Context, path string) (disk.Device, error) {
	dev, err := linux.OpenExclusive(ctx, path)
	if err != nil {
		return nil, err
	}
	if d, ok := dev.(interface{ ReadOnly() (bool, error) }); ok {
		ro, err := d.ReadOnly()
		if err == nil && ro {
			err = errProtected(path)
		}
		if err != nil {
			return nil, errors.Join(err, dev.Close())
		}
	}
	return dev, nil
}

func errProtected(path string) error {
	return fmt.Errorf("open %s: the device is write-protected: %w", path, unix.EROFS)
}

const remedyInUse = "see what uses it (lsblk, mount, losetup) and release it"

// notOpened adds the remedy to the error of a disk that can't be opened.
func notOpened(err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return step.Fail(remedyInUse, err)
	case errors.Is(err, linux.ErrNoDisk):
		return step.Fail("give --disk, the path of a disk, a loop device or a file", err)
	case errors.Is(err, unix.EROFS):
		return step.Fail(
			"take its write protection off (a switch on it, blockdev --setrw, losetup without --read-only, mount -o remount,rw), or give another disk", err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return step.Fail("run this as root", err)
	}
	return err
}

// canBoot refuses a boot entry on a machine without suitable firmware. It is called before anything is written.
func (m machine) canBoot() error {
	if isThere(filepath.Join(m.Root(), "sys/firmware/efi")) {
		return nil
	}
	return step.Failf("leave out --boot-entry, or start this machine by UEFI",
		"this machine was not started by UEFI: no boot entry can be made")
}
