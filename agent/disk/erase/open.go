package erase

import (
	"context"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
)

// CommonArgs declares the arguments of Common, for steps of other packages that work on all disks.
var CommonArgs = commonArgs

// Limit is the number of disks in work at a time.
func (a Common) Limit() int { return a.limit() }

// Chosen returns the disks to work on, after waiting for them to appear. what is the step's name.
func (a Common) Chosen(ctx context.Context, m machine, c *step.Call, what string) ([]disk.Disk, error) {
	return a.chosen(ctx, m, c, what)
}

// Open opens a disk whose content may be destroyed: by its identity, exclusively, unless it must be spared.
func (a Common) Open(ctx context.Context, m machine, d disk.Disk) (disk.Device, error) {
	dev, _, err := a.open(ctx, m, d)
	return dev, err
}
