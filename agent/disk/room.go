package disk

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ingot-metal/ingot/images/gpt"
)

// CheckRoom is CheckHead for an image that needs a partition of a name and at least so many bytes beside it: it refuses
// what Reserve would refuse after the image is written and the old system is gone. A partition of the image may serve;
// as its name may be only in its file system, which has not been read yet, any possible one is accepted. Zero bytes: no
// partition is needed.
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

// ownMost is the largest size of a partition that may be an image's own config drive; a config drive has at most 64
// MiB.
const ownMost = 512 << 20

// mayHold are the partition types for ISO 9660 or FAT file systems with data.
var mayHold = map[string]bool{
	gpt.BasicData.String(): true, gpt.Linux.String(): true,
	"0x01": true, "0x04": true, "0x06": true, "0x07": true, "0x0b": true, "0x0c": true, "0x0e": true, "0x83": true,
	"0x96": true, "0xcd": true,
}

// extended reports whether an MBR partition is extended.
func extended(kind string) bool { return kind == "0x05" || kind == "0x0f" || kind == "0x85" }

// wholeMiB rounds bytes up to whole MiB, in sectors.
func wholeMiB(bytes int64, sector int) uint64 {
	return uint64((bytes+HeadSize-1)/HeadSize*HeadSize) / uint64(sector)
}
