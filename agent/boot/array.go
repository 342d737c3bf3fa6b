package boot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
)

// writeEntries makes every disk of an array bootable by firmware, which can't find the image's EFI system partition
// inside the array: the partition is copied to each disk, and each gets a boot entry. A BIOS needs nothing: the members
// have their boot record.
func (r *Result) writeEntries(ctx context.Context, m machine, d *disk.Committed, members []disk.Member,
	log *slog.Logger) error {
	esp, ok := findESP(d)
	if !ok {
		return step.Failf("use an image with an EFI system partition, or set boot_mode:bios in the node's capabilities",
			"the machine boots by UEFI, but the image on %s has no EFI system partition", d.Disk.Name)
	}
	l, fallback, lerr := readESP(ctx, m, d, esp)
	if lerr != nil && !fallback {
		return step.Fail(remedy(lerr), fmt.Errorf("make boot entries for %s: %w", d.Disk.Name, lerr))
	}
	var targets []disk.Partition
	for _, member := range members {
		p, name, err := disk.ESPOf(ctx, m, member.Disk)
		if err != nil {
			return fmt.Errorf("find the EFI system partition of %s: %w", member.Disk, err)
		}
		if p.Size < esp.Size {
			return step.Failf("use an image with a smaller EFI system partition",
				"the image's EFI system partition has %d MiB, those of the array's disks have %d", esp.Size>>20,
				p.Size>>20)
		}
		if err := copyESP(ctx, m, d.Disk.Name, esp, name); err != nil {
			return fmt.Errorf("copy the EFI system partition to %s: %w", name, err)
		}
		log.Info("EFI system partition copied", "disk", member.Disk, "bytes", esp.Size)
		targets = append(targets, p)
	}
	// Each new entry becomes the first of the boot order, so the first disk's is written last.
	var faults []error
	for i, p := range slices.Backward(targets) {
		err := lerr
		if err == nil {
			named := l
			named.label = fmt.Sprintf("%s (RAID, disk %d)", l.label, i+1)
			var e *Entry
			if e, err = install(m, p, 0, named); err == nil {
				r.BootEntry, r.BootEntries = e, slices.Insert(r.BootEntries, 0, *e)
				log.Info("boot entry written", "entry", e.Name, "label", e.Label, "loader", e.Loader, "disk",
					members[i].Disk)
				continue
			}
		}
		faults = append(faults, fmt.Errorf("%s: %w", members[i].Disk, err))
	}
	err := errors.Join(faults...)
	if err == nil {
		return nil
	}
	if !fallback {
		return step.Fail(remedy(err), fmt.Errorf("make boot entries for %s: %w", d.Disk.Name, err))
	}
	r.Warning = fmt.Sprintf("not every boot entry was written (%v); the firmware will use the image's fallback loader",
		err)
	log.Warn("boot entries are missing, the image's fallback loader has to do", "disk", d.Disk.Name, "err", err)
	return nil
}

// copyESP copies a partition of the array to a partition of a member's disk.
func copyESP(ctx context.Context, m machine, array string, esp disk.Partition, to string) (err error) {
	from, err := m.OpenExclusive(ctx, array)
	if err != nil {
		return err
	}
	defer from.Close() // nothing was written
	out, err := m.OpenExclusive(ctx, to)
	if err != nil {
		return err
	}
	defer disk.Close(out, &err)
	buf := disk.Aligned(4 << 20)
	for off := int64(0); off < esp.Size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := buf[:min(int64(len(buf)), esp.Size-off)]
		if _, err := from.ReadAt(part, esp.Start+off); err != nil {
			return fmt.Errorf("read byte %d of %s: %w", esp.Start+off, array, err)
		}
		if _, err := out.WriteAt(part, off); err != nil {
			return fmt.Errorf("write byte %d: %w", off, err)
		}
		off += int64(len(part))
	}
	return out.Sync()
}
