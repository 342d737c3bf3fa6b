package disk

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingot-metal/ingot/agent/step"
)

// Installed is the disk of a previously installed system, with its table. Nothing is withheld: changes take effect at
// once.
type Installed struct {
	Disk Disk

	table table
	head  []byte
}

// OpenInstalled opens the disk that a deployment with these hints would use, exclusively, and reads its table.
func OpenInstalled(ctx context.Context, m settling, hints Hints) (*Installed, Device, error) {
	choice, err := ChooseWhenReady(ctx, m, hints)
	if err != nil {
		return nil, nil, err
	}
	dev, d, err := OpenVerified(ctx, m, choice.Disk.Identity())
	if err != nil {
		return nil, nil, err
	}
	in := &Installed{Disk: d, head: Aligned(HeadSize)}
	if d.ReadOnly {
		err = step.Failf("switch off its write protection", "disk %s is read-only", d)
	} else if _, err = dev.ReadAt(in.head, 0); err == nil {
		if in.table, err = parseTable(in.head, dev.SectorSize()); err != nil {
			err = step.Fail(
				"name the disk with the system with root_device, if it is another one; or mend its table in rescue",
				fmt.Errorf("disk %s has no partition table that can be used (%s): %v", d, choice.Why, err))
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, dev.Close())
	}
	return in, dev, nil
}

// PartitionsOn returns the disk's partitions, including the logical ones of an MBR, without extended ones.
func (in *Installed) PartitionsOn(dev Device) []Partition {
	return append(primaries(in.table), logical(dev, in.table, in.head, in.Disk.Size)...)
}

// View gives access to the content of a partition.
func (in *Installed) View(dev Device, part Partition) (*View, error) {
	return view(nil, in.Disk, dev, part)
}
