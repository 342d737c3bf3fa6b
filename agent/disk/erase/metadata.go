package erase

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/blkid"
)

// MetadataArgs declares the arguments of erase_devices_metadata.
var MetadataArgs = commonArgs

// MetadataStep wipes the metadata of every disk: partition tables, RAID and volume manager superblocks and file system
// signatures, on the whole disk and in its partitions. All disks are tried; one that could not be wiped fails the step.
// If stopped, some disks are wiped and those in work may still have their tables; a repeated run completes them.
func MetadataStep(m machine) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, args Common) (step.Outcome, error) {
		disks, err := args.chosen(ctx, m, c, "erase_devices_metadata")
		if err != nil {
			return step.Outcome{}, err
		}
		if err := step.Each(ctx, c, "erase metadata", args.limit(), disks, disk.Disk.String,
			func(ctx context.Context, d disk.Disk, report func(done, total int64)) error {
				if err := args.metadata(ctx, m, d, report); err != nil {
					return fmt.Errorf("erase metadata: %w", err)
				}
				c.Log.Info("metadata erased", "disk", d.Name, "serial", d.Serial)
				return nil
			}); err != nil {
			return step.Outcome{}, advised(err)
		}
		wiped := []Erased{}
		for _, d := range disks {
			wiped = append(wiped, erasedOf(d))
		}
		return step.Outcome{Result: map[string]any{"devices": wiped}}, nil
	})
}

// advised adds a remedy to an error without one.
func advised(err error) error {
	if e := step.AsError(err); e.Remedy == "" {
		return &step.Error{Err: err, Remedy: "replace the disk, or name it in skip_block_devices, and clean again",
			Retryable: e.Retryable}
	}
	return err
}

func (a Common) metadata(ctx context.Context, m machine, d disk.Disk, report func(done, total int64)) error {
	dev, inside, err := a.open(ctx, m, d)
	if err != nil {
		return err
	}
	return cmp.Or(wipe(ctx, dev, inside, report), dev.Close())
}

// wipe erases the metadata of an open disk and reads it back as zeros.
func wipe(ctx context.Context, dev disk.Device, all []region, report func(done, total int64)) error {
	if dev.Size() < 4*disk.HeadSize {
		return disk.ZeroVerified(ctx, dev, []disk.Span{{Off: 0, N: dev.Size()}})
	}
	// Inside first: the tables that locate the partitions go last, so that an interrupted step can be repeated.
	order := slices.Clone(all)
	slices.SortStableFunc(order, func(a, b region) int { return cmp.Compare(b.depth, a.depth) })
	for i := 0; i < len(order); {
		var ranges []disk.Span
		depth := order[i].depth
		for ; i < len(order) && order[i].depth == depth; i++ {
			far, err := farSignatures(dev, order[i])
			if err != nil {
				return err
			}
			ranges = append(append(ranges, ends(order[i])...), far...)
		}
		if depth == 0 {
			if err := disk.Wipe(ctx, dev); err != nil { // it finds backup tables elsewhere
				return err
			}
		}
		if err := disk.ZeroVerified(ctx, dev, merged(ranges)); err != nil {
			return err
		}
		report(int64(i), int64(len(order)))
	}
	// Stale partitions in the kernel are not a fault of the disk.
	_ = dev.RereadPartitions()
	return nil
}

// ends returns the first and the last MiB of a region, where all known signatures are except for a few copies. GPT and
// its backup, MBR, md 0.90 (64 KiB before the end, rounded down), 1.0 (8 KiB before the end), 1.1 (start), 1.2 (4 KiB),
// LVM (first four sectors), firmware RAID and DDF (last sectors), DRBD (last 4 KiB), ZFS (512 KiB at both ends), ext,
// XFS, btrfs, F2FS, swap, LUKS, FAT, NTFS, ISO 9660, UDF, bcache, squashfs, Ceph's BlueStore, Stratis (starts).
func ends(r region) []disk.Span {
	if r.n <= 2*disk.HeadSize {
		return []disk.Span{r.span()}
	}
	return []disk.Span{{Off: r.off, N: disk.HeadSize}, {Off: r.off + r.n - disk.HeadSize, N: disk.HeadSize}}
}

// merged joins ranges that touch or overlap: partitions often begin where others end.
func merged(s []disk.Span) []disk.Span {
	slices.SortFunc(s, func(a, b disk.Span) int { return cmp.Compare(a.Off, b.Off) })
	var out []disk.Span
	for _, x := range s {
		if l := len(out); l > 0 && x.Off <= out[l-1].Off+out[l-1].N {
			out[l-1].N = max(out[l-1].N, x.Off+x.N-out[l-1].Off)
			continue
		}
		out = append(out, x)
	}
	return out
}

// guardTypes are cluster file systems (blkid.Cluster) by partition type. Ironic's agent spares them too.
var guardTypes = map[string]string{
	"37AFFC90-EF7D-4E96-91C3-2D7AE055B174": "GPFS",
	"AA31E02A-400F-11DB-9590-000C2911D1B8": "VMFS",
	"0xfb":                                 "VMFS",
}

func guarded(dev disk.Device, all []region) (string, error) {
	for _, r := range all {
		if name := guardTypes[r.kind]; name != "" {
			return name, nil
		}
		for _, g := range blkid.Cluster {
			if _, found, err := in(g, dev, r); err != nil || found {
				return string(g.Kind), err
			}
		}
	}
	return "", nil
}

// farSignatures returns the blocks of blkid.Copies that are present.
func farSignatures(dev disk.Device, r region) ([]disk.Span, error) {
	var far []disk.Span
	for _, c := range blkid.Copies {
		block, found, err := in(c, dev, r)
		if err != nil {
			return nil, err
		}
		if found {
			far = append(far, block)
		}
	}
	return far, nil
}

// in looks for a signature in a region and returns the block in which it begins.
func in(g blkid.Signature, dev disk.Device, r region) (disk.Span, bool, error) {
	at := g.Off
	if at < 0 {
		at += r.n
	}
	if at < 0 || at+int64(len(g.Magic)) > r.n {
		return disk.Span{}, false, nil
	}
	buf := make([]byte, len(g.Magic))
	if _, err := disk.Section(dev, r.off, r.n).ReadAt(buf, at); err != nil {
		return disk.Span{}, false, fmt.Errorf("look for %s at byte %d: %w", g.Kind, r.off+at, err)
	}
	const block = 4096 // a multiple of every sector size
	start := (r.off + at) / block * block
	return disk.Span{Off: start, N: min(block, dev.Size()-start)}, bytes.Equal(buf, []byte(g.Magic)), nil
}
