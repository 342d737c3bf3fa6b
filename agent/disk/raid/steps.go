package raid

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
)

// Arguments of the steps.
var (
	CreateArgs = []step.Arg{
		{Name: "target_raid_config", Type: "object",
			Description: "the arrays to create; the conductor sets the node's target_raid_config"},
		{Name: "create_root_volume", Type: "boolean", Description: "create the root volume (default true)"},
		{Name: "create_nonroot_volumes", Type: "boolean",
			Description: "create the other volumes (default true)"},
		{Name: "delete_existing", Type: "boolean",
			Description: "remove existing arrays first (default false)"},
	}
	ApplyArgs = []step.Arg{
		{Name: "raid_config", Type: "object", Required: true,
			Description: "the arrays to create, in the form of target_raid_config"},
		{Name: "delete_existing", Type: "boolean",
			Description: "remove existing arrays first (default true)"},
	}
)

// Result of the steps: the present arrays, under Ironic's names.
type Result struct {
	RAIDConfig Made `json:"raid_config"`
	// RootDevice is the hint that finds the root volume; nil if none was made.
	RootDevice map[string]string `json:"root_device,omitempty"`
}

// Made lists the created arrays.
type Made struct {
	LogicalDisks []MadeDisk `json:"logical_disks"`
}

// MadeDisk is a created array.
type MadeDisk struct {
	Level         string            `json:"raid_level"`
	SizeGB        int64             `json:"size_gb"`
	Controller    string            `json:"controller"`
	VolumeName    string            `json:"volume_name"`
	Root          bool              `json:"is_root_volume"`
	PhysicalDisks []string          `json:"physical_disks"`
	Device        string            `json:"device"`
	UUID          string            `json:"uuid"`
	Hint          map[string]string `json:"root_device_hint,omitempty"`
}

type createArgs struct {
	Config  *Config `json:"target_raid_config"`
	Root    *bool   `json:"create_root_volume"`
	Others  *bool   `json:"create_nonroot_volumes"`
	Replace bool    `json:"delete_existing"`
}

// CreateStep creates the arrays of target_raid_config. Disks must be empty (erase_devices_metadata) or hold arrays made
// here. If stopped, some disks have a new table and perhaps a superblock; a repeated run starts over.
func CreateStep(m Machine) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, args createArgs) (step.Outcome, error) {
		if args.Config == nil || len(args.Config.LogicalDisks) == 0 {
			return step.Outcome{},
				step.Failf("set target_raid_config of the node (openstack baremetal node set --target-raid-config)",
					"the node has no target_raid_config")
		}
		if no(args.Root) || no(args.Others) {
			// The first array is the root volume, and the place of the second depends on it.
			return step.Outcome{},
				step.Failf("put all arrays to create into target_raid_config, and leave out the arguments",
					"software RAID is made as a whole")
		}
		return create(ctx, m, c, *args.Config, args.Replace)
	})
}

type applyArgs struct {
	Config  Config `json:"raid_config"`
	Replace *bool  `json:"delete_existing"`
}

func no(v *bool) bool { return v != nil && !*v }

// ApplyStep is CreateStep with the configuration as its argument.
func ApplyStep(m Machine) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, args applyArgs) (step.Outcome, error) {
		return create(ctx, m, c, args.Config, !no(args.Replace))
	})
}

// DeleteStep removes all arrays made here: superblocks, tables, boot loaders. Other disks are not touched. If stopped,
// it can be run again.
func DeleteStep(m Machine) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, _ struct{}) (step.Outcome, error) {
		if err := unwritten(c); err != nil {
			return step.Outcome{}, err
		}
		disks, err := settled(ctx, m)
		if err != nil {
			return step.Outcome{}, err
		}
		if err := remove(ctx, m, c, disks); err != nil {
			return step.Outcome{}, err
		}
		disk.SetRoot(c.Facts, nil)
		return step.Outcome{Result: Result{RAIDConfig: Made{LogicalDisks: []MadeDisk{}}}}, nil
	})
}

// settled lists the disks when all are there.
func settled(ctx context.Context, m Machine) ([]disk.Disk, error) {
	if err := m.Settle(ctx); err != nil {
		return nil, step.Retryable("see the kernel log for a controller that keeps resetting",
			fmt.Errorf("find all disks: %w", err))
	}
	return disk.List(ctx, m.Root())
}

// unwritten refuses to touch disks between write_image and the reboot.
func unwritten(c *step.Call) error {
	if p, err := disk.WrittenOf(c.Facts); err == nil {
		return step.Failf("run the step before write_image: give it a higher priority",
			"an image has just been written to %s, and would be lost", p.Disk.Name)
	}
	return nil
}

func create(ctx context.Context, m Machine, c *step.Call, config Config, replace bool) (step.Outcome, error) {
	if err := unwritten(c); err != nil {
		return step.Outcome{}, err
	}
	if err := config.Check(); err != nil {
		return step.Outcome{}, err
	}
	c.Report(step.Progress{Phase: "find disks"})
	disks, err := settled(ctx, m)
	if err != nil {
		return step.Outcome{}, err
	}
	arrays, err := plan(config, disks)
	if err != nil {
		return step.Outcome{}, err
	}
	if replace {
		if err := remove(ctx, m, c, disks); err != nil {
			return step.Outcome{}, err
		}
	} else if err := free(m, arrays); err != nil {
		return step.Outcome{}, err
	}
	return build(ctx, m, c, arrays)
}

// free refuses disks with running arrays.
func free(m Machine, arrays []array) error {
	list, err := running(m.Root())
	if err != nil {
		return err
	}
	for _, r := range list {
		members, err := disk.Members(m.Root(), r.Name)
		if err != nil {
			return err
		}
		for _, p := range members {
			if slices.ContainsFunc(arrays, func(a array) bool {
				return slices.ContainsFunc(a.members, func(w member) bool { return w.disk.Name == p.Disk })
			}) {
				return step.Failf("run raid.delete_configuration before, or give delete_existing",
					"%s belongs to the array %s", p.Disk, r.Name)
			}
		}
	}
	return nil
}

const (
	espName    = "ingot-esp"
	memberName = "ingot-raid"
)

// ours reports whether a disk's table was made here.
func ours(parts []disk.Partition) bool {
	return len(parts) > 0 &&
		!slices.ContainsFunc(parts, func(p disk.Partition) bool {
			return p.Name != espName && !strings.HasPrefix(p.Name, memberName)
		})
}

// remove removes the arrays on these disks.
func remove(ctx context.Context, m Machine, c *step.Call, disks []disk.Disk) error {
	list, err := Assembled(ctx, m)
	if err != nil {
		return err
	}
	for _, a := range list {
		c.Report(step.Progress{Phase: "stop " + a.Name})
		if err := stop(m.Root(), a); err != nil {
			return err
		}
		c.Log.Info("array stopped", "disk", a.Name, "volume", a.Volume)
	}
	var faults []error
	for _, d := range disks {
		if err := removeFrom(ctx, m, d); err != nil {
			faults = append(faults, fmt.Errorf("take the arrays off %s: %w", d.Name, err))
		}
	}
	return errors.Join(faults...)
}

// Assembled returns our running arrays, without assembling others.
func Assembled(ctx context.Context, m Machine) ([]Array, error) {
	members, err := look(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("look for arrays: %w", err)
	}
	list, err := running(m.Root())
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(a Array) bool {
		i, err := a.memberIn(m.Root(), members)
		return err != nil || i < 0
	}), nil
}

func removeFrom(ctx context.Context, m Machine, d disk.Disk) (err error) {
	if d.ReadOnly {
		return nil
	}
	dev, _, err := disk.OpenVerified(ctx, m, d.Identity())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	_, parts, err := disk.ReadTable(dev)
	if err != nil || !ours(parts) {
		return err
	}
	if err := disk.ZeroVerified(ctx, dev, ends(parts)); err != nil {
		return err
	}
	if err := disk.Wipe(ctx, dev); err != nil {
		return err
	}
	return dev.RereadPartitions()
}

// ends returns the first and last MiB of each partition, where all superblocks are.
func ends(parts []disk.Partition) (out []disk.Span) {
	for _, p := range parts {
		out = append(out, disk.Span{Off: p.Start, N: min(2*mib, p.Size)})
		if p.Size > 3*mib {
			out = append(out, disk.Span{Off: p.Start + p.Size - mib, N: mib})
		}
	}
	return out
}

// build writes tables and superblocks, and assembles the arrays.
func build(ctx context.Context, m Machine, c *step.Call, arrays []array) (step.Outcome, error) {
	now := time.Now()
	var uuids [][16]byte
	for range arrays {
		uuids = append(uuids, uuid.New())
	}
	done := map[string]bool{}
	for _, a := range arrays {
		for _, w := range a.members {
			if done[w.disk.Name] {
				continue
			}
			done[w.disk.Name] = true
			c.Report(step.Progress{Phase: "divide " + w.disk.Name})
			if err := divide(ctx, m, w.disk, arrays, uuids, now); err != nil {
				return step.Outcome{}, fmt.Errorf("divide %s: %w", w.disk, err)
			}
		}
	}
	c.Report(step.Progress{Phase: "start arrays"})
	for _, a := range arrays {
		for _, w := range a.members {
			if err := awaitPartition(ctx, m, w); err != nil {
				return step.Outcome{}, err
			}
		}
	}
	got, err := Assemble(ctx, m)
	if err != nil {
		return step.Outcome{}, err
	}
	r := Result{RAIDConfig: Made{LogicalDisks: []MadeDisk{}}}
	rooted := slices.ContainsFunc(arrays, func(a array) bool { return a.want.Root })
	for i, a := range arrays {
		k := slices.IndexFunc(got, func(g Array) bool { return g.UUID == uuidText(uuids[i]) })
		if k < 0 {
			return step.Outcome{},
				step.Failf("see the kernel log for what md says", "array %s was made, but the kernel does not show it",
					a.name)
		}
		made := MadeDisk{Level: a.want.Level, SizeGB: a.size >> 30, Controller: "software", VolumeName: a.name,
			Root: a.want.Root, Device: got[k].Name, UUID: got[k].UUID}
		for _, w := range a.members {
			made.PhysicalDisks = append(made.PhysicalDisks, w.disk.Name)
		}
		// Without a root volume in the configuration, machines start from the first array.
		if a.want.Root || !rooted && i == 0 {
			made.Hint = map[string]string{"serial": made.UUID}
			r.RootDevice = made.Hint
		}
		if made.Hint != nil {
			raw, err := json.Marshal(made.Hint)
			if err != nil {
				return step.Outcome{}, err
			}
			h, err := disk.ParseHints(raw)
			if err != nil {
				return step.Outcome{}, err
			}
			disk.SetRoot(c.Facts, h)
		}
		r.RAIDConfig.LogicalDisks = append(r.RAIDConfig.LogicalDisks, made)
		c.Log.Info("array made", "disk", made.Device, "volume", a.name, "level", made.Level, "bytes", a.size, "members",
			len(a.members))
	}
	return step.Outcome{Result: r}, nil
}

func awaitPartition(ctx context.Context, m Machine, w member) error {
	ctx, cancel := context.WithTimeout(ctx, appears)
	defer cancel()
	for {
		starts, _ := filepath.Glob(filepath.Join(m.Root(), "sys/block", filepath.Base(w.disk.Name), "*", "start"))
		for _, s := range starts {
			if text(s) == fmt.Sprint(w.start/512) {
				return await(ctx, filepath.Join(m.Root(), "dev", filepath.Base(filepath.Dir(s))))
			}
		}
		if step.Sleep(ctx, 20*time.Millisecond) != nil {
			return step.Failf("see what uses the disk, or restart the node",
				"the kernel does not show the new partitions of %s", w.disk.Name)
		}
	}
}

// divide writes a disk's table, boot record and superblocks.
func divide(ctx context.Context, m Machine, d disk.Disk, arrays []array, uuids [][16]byte, now time.Time) (err error) {
	dev, _, err := disk.OpenVerified(ctx, m, d.Identity())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	kind, parts, err := disk.ReadTable(dev)
	if err != nil {
		return err
	}
	if kind != "" && !ours(parts) {
		return step.Failf("run deploy.erase_devices_metadata before raid.create_configuration",
			"the disk is in use: it has a partition table (%s, %d partitions)", kind, len(parts))
	}
	table := []disk.NewPartition{{Name: espName, Type: disk.TypeESP, Start: firstMiB, Size: espSize}}
	var code []byte
	supers := map[int64][]byte{}
	for i, a := range arrays {
		for k, w := range a.members {
			if w.disk.Name != d.Name {
				continue
			}
			table = append(table,
				disk.NewPartition{Name: fmt.Sprintf("%s-%d", memberName, i), Type: disk.TypeRAID, Start: w.start,
					Size: w.size})
			l := levels[a.want.Level]
			s := superblock{UUID: uuids[i], Name: mark + a.name, Level: l.level, Layout: l.layout,
				Members: uint32(len(a.members)), Size: uint64(a.per / 512), Data: uint64(a.per / 512),
				Offset: dataSector, Number: uint32(k), Device: uuid.New(), Created: now, Events: 1}
			if l.chunked {
				s.Chunk = chunkSectors
			}
			if l.level == 0 {
				s.Size, s.Resync = 0, noResync
			}
			if l.level == 1 && code == nil {
				code = bootRecord(uint64(w.start+dataSector*512) / uint64(dev.SectorSize()))
			}
			supers[w.start] = s.encode()
		}
	}
	var clean []disk.Partition
	for _, p := range table {
		clean = append(clean, disk.Partition{Start: p.Start, Size: p.Size})
	}
	if err := disk.ZeroVerified(ctx, dev, ends(clean)); err != nil {
		return err
	}
	for at, s := range supers {
		if _, err := dev.WriteAt(s, at+superSector*512); err != nil {
			return fmt.Errorf("write a superblock: %w", err)
		}
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	if err := disk.WriteTable(ctx, dev, code, table); err != nil {
		return err
	}
	return dev.RereadPartitions()
}
