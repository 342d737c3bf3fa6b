package disk

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ingot-metal/ingot/images/gpt"
)

// CheckRoom is CheckHead for an image beside which a partition of a name and at least so many bytes has to be: it
// refuses what Reserve would have to refuse when the image is on the disk and the old system is gone. A partition that
// the image brings may serve; as its name may be only in its file system, which nobody has seen yet, one that could be
// it is given the benefit of the doubt. No bytes: no partition is needed.
func CheckRoom(head []byte, size int64, d Disk, name string, least int64) error {
	t, err := fitted(head, size, d)
	if err != nil || least == 0 {
		return err
	}
	parts := t.partitions()
	// holds the system
	largest := slices.MaxFunc(parts, func(a, b Partition) int { return cmp.Compare(a.Size, b.Size) })
	own := slices.ContainsFunc(parts, func(p Partition) bool {
		return p.Start >= HeadSize && p.Size >= least &&
			(p.Name == name || extended(p.Type) || p.Size <= ownMost && mayHold[p.Type] && p != largest)
	})
	if own {
		return nil
	}
	if _, err := t.add(name, wholeMiB(least, d.LogicalSectors)); err != nil {
		return fmt.Errorf("add partition %s to %s: %w", name, d.Name, err)
	}
	return nil
}

// ownMost is the largest partition that is thought to be an image's own one for a config drive, which has 64 MiB at
// most.
const ownMost = 512 << 20

// mayHold are the types of partitions that have ISO 9660 or FAT file systems with data.
var mayHold = map[string]bool{
	gpt.BasicData.String(): true, gpt.Linux.String(): true,
	"0x01": true, "0x04": true, "0x06": true, "0x07": true, "0x0b": true, "0x0c": true, "0x0e": true, "0x83": true,
	"0x96": true, "0xcd": true,
}

// extended tells whether a partition of an MBR is one that holds others.
func extended(kind string) bool { return kind == "0x05" || kind == "0x0f" || kind == "0x85" }

// wholeMiB is bytes, and what is missing of the last MiB, in sectors.
func wholeMiB(bytes int64, sector int) uint64 {
	return uint64((bytes+HeadSize-1)/HeadSize*HeadSize) / uint64(sector)
}
