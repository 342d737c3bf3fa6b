// Package erase erases disks: their metadata, or all their data, with proof.
//
// Every step works on all disks of the machine except those that skip_block_devices names, several at a time. A disk is
// opened by its identity, exclusively, and never if it is read-only or holds a cluster file system (VMFS, GFS2, GPFS),
// which other machines may be using. A disk that could not be erased fails the step, whose error names it; the others
// are still erased.
//
// erase_devices uses the strongest method that a disk really has. Its Report holds the actions, the disk's response,
// the result of reading back, and the achieved level of NIST SP 800-88. The disk's response is not trusted: before the
// erase, markers are written all over the disk, and if one of them, or of the old content, is still readable
// afterwards, the disk has not been erased. Offsets and sizes are bytes.
package erase

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
)

// machine is the part of the machine that this package uses.
type machine interface {
	// Root is the directory that contains sys.
	Root() string
	OpenExclusive(ctx context.Context, path string) (disk.Device, error)
	// Settle waits, for a limited time, until the drivers have initialized their devices.
	Settle(ctx context.Context) error
}

// concurrency is the number of disks in work at a time: Ironic's disk_erasure_concurrency.
const concurrency = 4

// commonArgs are the arguments of every step of this package.
var commonArgs = []step.Arg{
	{Name: "skip_block_devices", Type: "array", Items: "object",
		Description: "disks to leave alone: a list of objects with the same hints as root_device"},
	{Name: "skip_read_only", Type: "boolean", Description: "leave read-only disks alone instead of failing"},
	{Name: "guard_special_filesystems", Type: "boolean",
		Description: "refuse disks with VMFS, GFS2 or GPFS on them, which other machines may be using (default true)"},
	{Name: "concurrency", Type: "integer", Min: step.Limit(1), Max: step.Limit(256),
		Description: "number of disks in work at a time (default 4)"},
	{Name: "arrays", Type: "array", Items: "string",
		Description: "UUIDs of the software RAID arrays known to the conductor, which are erased in place of their disks; any other array fails the step"},
}

// Common holds the arguments of every step of this package.
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

// chosen returns the disks to work on. what is the step's name.
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
	// A disk that appears later would be missed.
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
			c.Log.Info("disk skipped as requested", "disk", d.Name)
		case d.ReadOnly && a.SkipRO:
			c.Log.Warn("read-only disk skipped as requested: what it holds stays", "disk", d.Name)
		default:
			out = append(out, d)
		}
	}
	return out, nil
}

// nothingHidden checks that every disk is among those to erase, or a member of an array that is, and that the conductor
// knows of. A tenant could write the superblock of an array and thereby hide the disks.
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

// open opens a disk for erasing, checks that it may be erased, and finds its content.
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
		_ = dev.Close() // only read
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

// Erased is a wiped disk.
type Erased struct {
	Name   string `json:"name"`
	Serial string `json:"serial"`
	WWN    string `json:"wwn"`
	Size   int64  `json:"size"`
}

func erasedOf(d disk.Disk) Erased {
	return Erased{Name: d.Name, Serial: d.Serial, WWN: d.WWN, Size: d.Size}
}
