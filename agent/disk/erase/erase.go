// Package erase makes disks forget: their metadata, or all they hold, with proof that they did.
//
// Every step here works on all disks of the machine but those that skip_block_devices names, several at a time. A disk
// is opened by its identity, exclusively, and never when it is read-only or holds a cluster file system (VMFS, GFS2,
// GPFS), which other machines may be using. One disk that could not be erased fails the step, whose error names it; the
// others are erased all the same.
//
// erase_devices takes the strongest method that a disk really has, and says in a Report what it did, what the disk
// answered, what was read back and which level of NIST SP 800-88 that is. A disk's word counts for nothing: before the
// erase, markers are written all over it, and a disk on which one of them, or of what was there before, can still be
// read has not been erased. Offsets and sizes are bytes.
package erase

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
)

// machine is all that this package asks of the machine.
type machine interface {
	// Root is the folder below which sys is found.
	Root() string
	OpenExclusive(ctx context.Context, path string) (disk.Device, error)
	// Settle waits, within reason, until the drivers have brought up their devices.
	Settle(ctx context.Context) error
}

// concurrency is how many disks are worked on at a time: Ironic's disk_erasure_concurrency.
const concurrency = 4

// commonArgs are what every step of this package takes.
var commonArgs = []step.Arg{
	{Name: "skip_block_devices", Type: "array", Items: "object",
		Description: "disks to leave alone: a list of objects with the same hints as root_device"},
	{Name: "skip_read_only", Type: "boolean", Description: "leave read-only disks alone instead of failing"},
	{Name: "guard_special_filesystems", Type: "boolean",
		Description: "refuse disks with VMFS, GFS2 or GPFS on them, which other machines may be using (default true)"},
	{Name: "concurrency", Type: "integer", Min: step.Limit(1), Max: step.Limit(256),
		Description: "how many disks are worked on at a time (default 4)"},
	{Name: "arrays", Type: "array", Items: "string",
		Description: "UUIDs of the software RAID arrays that the conductor knows of, which are erased in place of their disks; any other array fails the step"},
}

// Common is the arguments that every step of this package takes.
type Common struct {
	Skip        []json.RawMessage `json:"skip_block_devices"`
	SkipRO      bool              `json:"skip_read_only"`
	Guard       *bool             `json:"guard_special_filesystems"`
	Concurrency *int              `json:"concurrency"`
	Arrays      []string          `json:"arrays"`
}

func (a Common) limit() int {
	if a.Concurrency == nil {
		return concurrency
	}
	return *a.Concurrency
}

func (a Common) guarded() bool { return a.Guard == nil || *a.Guard }

// chosen finds the disks to work on. what is the step's name.
func (a Common) chosen(ctx context.Context, m machine, c *step.Call, what string) ([]disk.Disk, error) {
	var skip []disk.Hints
	for _, raw := range a.Skip {
		h, err := disk.ParseHints(raw)
		if err != nil {
			return nil, fmt.Errorf("skip_block_devices: %w", err)
		}
		if h != nil { // an empty entry would skip every disk
			skip = append(skip, h)
		}
	}
	if p, err := disk.WrittenOf(c.Facts); err == nil {
		return nil, step.Failf("run "+what+" before write_image: give it a higher priority",
			"an image has just been written to %s, and would be damaged", p.Disk.Name)
	}
	// A disk that shows up later would have been forgotten.
	c.Report(step.Progress{Phase: "find disks"})
	if err := m.Settle(ctx); err != nil {
		return nil, step.Retryable("see the kernel log for a controller that keeps resetting",
			fmt.Errorf("find all disks: %w", err))
	}
	all, err := disk.All(ctx, m)
	if err != nil {
		return nil, err
	}
	if err := a.nothingHidden(ctx, m, all); err != nil {
		return nil, err
	}
	var out []disk.Disk
	for _, d := range all {
		switch {
		case slices.ContainsFunc(skip, func(h disk.Hints) bool { return h.Fit(d) }):
			c.Log.Info("disk skipped as asked for", "disk", d.Name)
		case d.ReadOnly && a.SkipRO:
			c.Log.Warn("read-only disk skipped as asked for: what it holds stays", "disk", d.Name)
		default:
			out = append(out, d)
		}
	}
	return out, nil
}

// nothingHidden makes sure that every disk is among those to erase, or a member of an array that is, and that the
// conductor knows of. Whoever had the machine could write an array's superblock, and so take his disks out of
// everybody's sight.
func (a Common) nothingHidden(ctx context.Context, m machine, all []disk.Disk) error {
	const remedy = "run raid.delete_configuration, which takes arrays apart, then clean again"
	disks, err := disk.List(ctx, m.Root())
	if err != nil {
		return err
	}
	among := func(list []disk.Disk, name string) bool {
		return slices.ContainsFunc(list, func(d disk.Disk) bool { return d.Name == name })
	}
	members := map[string]bool{}
	for _, d := range all {
		if among(disks, d.Name) {
			continue
		}
		if !slices.Contains(a.Arrays, d.Serial) {
			return step.Failf(remedy,
				"%s is an array (%s) that the conductor has not made: what its disks hold beside it would not be erased", d.Name, d.Serial)
		}
		of, err := disk.Members(m.Root(), d.Name)
		if err != nil {
			return err
		}
		for _, p := range of {
			members[p.Disk] = true
		}
	}
	for _, d := range disks {
		if !among(all, d.Name) && !members[d.Name] {
			return step.Failf(remedy,
				"disk %s is marked as part of an array that is not complete, and would not be erased", d)
		}
	}
	return nil
}

// open opens a disk for erasing, once it may be erased, and finds what is in it.
func (a Common) open(ctx context.Context, m machine, d disk.Disk) (disk.Device, []region, error) {
	if d.ReadOnly {
		return nil, nil, errReadOnly()
	}
	dev, _, err := disk.OpenVerified(ctx, m, d.Identity())
	if err != nil {
		return nil, nil, err
	}
	inner, err := regions(dev, m.Root(), d)
	if err == nil {
		err = a.guard(dev, inner)
	}
	if err != nil {
		_ = dev.Close() // nothing was written
		return nil, nil, err
	}
	return dev, inner, nil
}

func errReadOnly() error {
	return step.Failf(
		"switch off the disk's write protection, name the disk in skip_block_devices, or set skip_read_only",
		"the disk is read-only")
}

// guard refuses a disk that other machines may be using.
func (a Common) guard(dev disk.Device, inside []region) error {
	if !a.guarded() {
		return nil
	}
	name, err := guarded(dev, inside)
	if err != nil || name == "" {
		return err
	}
	return step.Failf(
		"wipe it by hand if it is really not in use, name the disk in skip_block_devices, or switch guard_special_filesystems off",
		"the disk holds a %s file system, which other machines may be using", name)
}

// Erased is one disk that was wiped.
type Erased struct {
	Name   string `json:"name"`
	Serial string `json:"serial"`
	WWN    string `json:"wwn"`
	Size   int64  `json:"size"`
}

func erasedOf(d disk.Disk) Erased {
	return Erased{Name: d.Name, Serial: d.Serial, WWN: d.WWN, Size: d.Size}
}
