package standalone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/linux"
	"github.com/ingot-metal/ingot/agent/step"
)

// machine is this machine, with one disk.
type machine struct {
	linux.Machine
	disk disk.Disk
	seen *seen
}

// Disks is the one disk, as long as it is there.
func (m machine) Disks(context.Context) ([]disk.Disk, error) { return []disk.Disk{m.disk}, nil }

// UEFI tells that a partition image may be put on the disk: what it boots by is not known here, and partition images boot by UEFI alone.
func (m machine) UEFI() bool { return true }

// LocalImages says that images may be files of this machine.
func (m machine) LocalImages() {}

// Settle has nothing to wait for: the disk was there when its path was given.
func (m machine) Settle(context.Context) error { return nil }

// openMachine finds out what the target is.
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
	if _, err := os.Stat(filepath.Join("/sys/class/block", filepath.Base(real), "partition")); err == nil && strings.HasPrefix(real, "/dev/") {
		return m, step.Failf("give the whole disk", "%s is a partition; images are written to whole disks", path)
	}
	disks, err := disk.List(ctx, m.Root())
	if err != nil {
		return m, err
	}
	for _, d := range disks {
		if d.Name == real {
			m.disk = d
			return m, nil
		}
	}
	// A loop device, an array, a mapped device or a file: nothing is burnt into it, its path is all it has.
	dev, err := linux.OpenExclusive(ctx, real)
	if err != nil {
		return m, inUse(err)
	}
	major, minor := dev.Number()
	m.disk = disk.Disk{Name: real, ByPath: real, Number: fmt.Sprintf("%d:%d", major, minor), Size: dev.Size(), LogicalSectors: dev.SectorSize(), PhysicalSectors: dev.SectorSize()}
	return m, dev.Close()
}

func inUse(err error) error {
	return step.Fail("see what uses it (lsblk, mount, losetup) and release it; or run this as root", err)
}
