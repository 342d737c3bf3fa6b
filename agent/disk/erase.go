package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/agent/step"
)

// EraseMetadataArgs declares the arguments of erase_devices_metadata.
var EraseMetadataArgs = []step.Arg{
	{Name: "skip_block_devices", Type: "array", Description: "disks to leave alone: a list of objects with the same hints as root_device"},
}

// Erased is one disk that was wiped.
type Erased struct {
	Name   string `json:"name"`
	Serial string `json:"serial"`
	WWN    string `json:"wwn"`
	Size   int64  `json:"size"`
}

// EraseMetadataStep makes every writable disk forget what it was: partition tables, RAID and volume manager superblocks and file
// system signatures, on the whole disk and in its partitions. All disks are tried; one that could not be wiped fails the step. Stopped
// half way, some disks are wiped and the one in work may still have its table; run again, the step finishes it.
func EraseMetadataStep(m settling) step.Func {
	return func(ctx context.Context, c *step.Call) (step.Outcome, error) {
		var args struct {
			Skip []json.RawMessage `json:"skip_block_devices"`
		}
		if err := c.Decode(&args); err != nil {
			return step.Outcome{}, err
		}
		var skip []Hints
		for _, raw := range args.Skip {
			h, err := ParseHints(raw)
			if err != nil {
				return step.Outcome{}, fmt.Errorf("skip_block_devices: %w", err)
			}
			if h != nil { // an empty entry would skip every disk
				skip = append(skip, h)
			}
		}
		if p, err := written(c.Facts); err == nil {
			return step.Outcome{}, step.Failf("run erase_devices_metadata before write_image: give it a higher priority",
				"an image has just been written to %s, and would be damaged", p.Disk.Name)
		}
		// A disk that shows up later would have been forgotten.
		c.Report(step.Progress{Phase: "find disks"})
		if err := m.Settle(ctx); err != nil {
			return step.Outcome{}, step.Retryable("see the kernel log for a controller that keeps resetting", fmt.Errorf("find all disks: %w", err))
		}
		disks, err := disksOf(ctx, m)
		if err != nil {
			return step.Outcome{}, err
		}
		var wiped []Erased
		var faults []error
		for i, d := range disks {
			if err := ctx.Err(); err != nil {
				return step.Outcome{}, err
			}
			if slices.ContainsFunc(skip, func(h Hints) bool { return h.Fit(d) }) {
				c.Log.Info("disk skipped as asked for", "disk", d.Name)
				continue
			}
			c.Report(step.Progress{Phase: "erase " + d.Name, Bytes: uint64(i), Total: uint64(len(disks))})
			if err := eraseMetadata(ctx, m, d); err != nil {
				faults = append(faults, fmt.Errorf("erase metadata of %s: %w", d, err))
				continue
			}
			c.Log.Info("metadata erased", "disk", d.Name, "serial", d.Serial)
			wiped = append(wiped, Erased{Name: d.Name, Serial: d.Serial, WWN: d.WWN, Size: d.Size})
		}
		if len(faults) > 0 {
			return step.Outcome{}, eraseFault(faults, len(wiped), len(disks))
		}
		if wiped == nil {
			wiped = []Erased{}
		}
		return step.Outcome{Result: map[string]any{"devices": wiped}}, nil
	}
}

func eraseFault(faults []error, wiped, all int) error {
	var texts []string
	remedy := "replace the disk, or name it in skip_block_devices, and clean again"
	for _, f := range faults {
		texts = append(texts, f.Error())
		if r := step.AsError(f).Remedy; r != "" {
			remedy = r
		}
	}
	return step.Fail(remedy, joined{fmt.Sprintf("%d of %d disks erased, not: %s", wiped, all, strings.Join(texts, "; ")), errors.Join(faults...)})
}

// joined is errors.Join on one line.
type joined struct {
	text string
	err  error
}

func (j joined) Error() string { return j.text }
func (j joined) Unwrap() error { return j.err }

func eraseMetadata(ctx context.Context, m machine, d Disk) (err error) {
	if d.ReadOnly {
		return step.Failf("switch off the disk's write protection, or name the disk in skip_block_devices", "the disk is read-only")
	}
	dev, _, err := OpenVerified(ctx, m, d.Identity())
	if err != nil {
		return err
	}
	defer func() {
		if cerr := dev.Close(); err == nil {
			err = cerr
		}
	}()
	if dev.Size() < 4*HeadSize {
		return zeroVerified(ctx, dev, []span{{0, dev.Size()}})
	}
	inner, err := insides(dev)
	if err != nil {
		return err
	}
	all := append([]inside{{span: span{0, dev.Size()}}}, inner...)
	if name, err := guarded(dev, all); err != nil {
		return err
	} else if name != "" {
		return step.Failf("wipe it by hand if it is really not in use, or name the disk in skip_block_devices",
			"the disk holds a %s file system, which other machines may be using", name)
	}
	// Inside first: the table that tells where the partitions are goes last, so that a step cut short can be run again.
	var ranges []span
	for _, s := range inner {
		ranges = append(ranges, ends(s.span)...)
	}
	far, err := farSignatures(dev, all)
	if err != nil {
		return err
	}
	if err := zeroVerified(ctx, dev, append(ranges, far...)); err != nil {
		return err
	}
	if err := Wipe(ctx, dev); err != nil {
		return err
	}
	// A kernel that still shows old partitions is no fault of the disk.
	_ = dev.RereadPartitions()
	return nil
}

// ends is the first and the last MiB of a range: every known signature but a few copies is there. GPT and its backup, MBR, md 0.90
// (64 KiB before the end, rounded down), 1.0 (8 KiB before the end), 1.1 (start), 1.2 (4 KiB), LVM (first four sectors), firmware
// RAID (last sectors), ZFS (512 KiB at both ends), ext, XFS, btrfs, swap, LUKS, FAT, NTFS, ISO 9660, bcache (starts).
func ends(s span) []span {
	if s.n <= 2*HeadSize {
		return []span{s}
	}
	return []span{{s.off, HeadSize}, {s.off + s.n - HeadSize, HeadSize}}
}

// inside is a partition on a disk to be erased.
type inside struct {
	span
	kind string
}

// insides gives the partitions that the disk's table names, or its backup, in whole sectors and within the disk, whether the table
// is sound or not.
func insides(dev Device) ([]inside, error) {
	sector := int64(dev.SectorSize())
	sectors := uint64(dev.Size() / sector)
	head := Aligned(HeadSize)
	if _, err := dev.ReadAt(head, 0); err != nil {
		return nil, fmt.Errorf("read the partition table: %w", err)
	}
	var found []inside
	add := func(kind string, start, n uint64) {
		if start == 0 || start >= sectors || n == 0 {
			return
		}
		n = min(n, sectors-start)
		found = append(found, inside{span{int64(start) * sector, int64(n) * sector}, kind})
	}
	g, _ := parseGPT(head, int(sector)) // a table that is not sound is still a hint where superblocks are
	if g == nil {
		g = backupGPT(dev)
	}
	if g != nil {
		for _, p := range g.partitions() {
			add(p.Type, p.StartLBA, p.Sectors)
		}
		return found, nil
	}
	if head[510] == 0x55 && head[511] == 0xaa {
		err := walkMBR(dev, head, add)
		return found, err
	}
	return nil, nil
}

// backupGPT reads the table at the disk's end, or gives nil.
func backupGPT(dev Device) *gpt {
	sector := int64(dev.SectorSize())
	end := Aligned(HeadSize)
	if _, err := dev.ReadAt(end, dev.Size()-HeadSize); err != nil {
		return nil
	}
	h, err := parseGPTHeader(end[HeadSize-sector:], int(sector))
	if err != nil || h.entriesLBA >= uint64(dev.Size()/sector) {
		return nil
	}
	from := int64(h.entriesLBA)*sector - (dev.Size() - HeadSize)
	n := int64(h.count) * int64(h.entrySize)
	if from < 0 || from+n > HeadSize {
		return nil
	}
	return &gpt{gptHeader: h, sector: int(sector), entries: end[from : from+n]}
}

// walkMBR goes through primary and logical partitions; a chain of extended boot records is followed for 128 links at most.
func walkMBR(dev Device, sector0 []byte, add func(kind string, start, n uint64)) error {
	type entry struct {
		kind     byte
		start, n uint64
	}
	read := func(b []byte) (es []entry) {
		for i := range 4 {
			e := b[446+16*i:]
			es = append(es, entry{e[4], uint64(binary.LittleEndian.Uint32(e[8:])), uint64(binary.LittleEndian.Uint32(e[12:]))})
		}
		return es
	}
	extended := func(kind byte) bool { return kind == 0x05 || kind == 0x0f || kind == 0x85 }
	var base, next uint64
	for _, e := range read(sector0) {
		switch {
		case extended(e.kind):
			base, next = e.start, e.start
		case e.kind != 0 && e.kind != 0xee:
			add(fmt.Sprintf("0x%02x", e.kind), e.start, e.n)
		}
	}
	sector := int64(dev.SectorSize())
	buf := Aligned(int(sector))
	for range 128 {
		if next == 0 || int64(next) >= dev.Size()/sector {
			return nil
		}
		if _, err := dev.ReadAt(buf, int64(next)*sector); err != nil {
			return fmt.Errorf("read the extended boot record in sector %d: %w", next, err)
		}
		if buf[510] != 0x55 || buf[511] != 0xaa {
			return nil
		}
		here := next
		next = 0
		for _, e := range read(buf) {
			switch {
			case extended(e.kind):
				next = base + e.start
			case e.kind != 0:
				add(fmt.Sprintf("0x%02x", e.kind), here+e.start, e.n)
			}
		}
		if next <= here { // a chain that goes back would never end
			return nil
		}
	}
	return nil
}

// signature is a magic number at a place within a disk or partition.
type signature struct {
	name  string
	off   int64
	magic []byte
}

// guards are cluster file systems: a disk that holds one may be in use by machines other than this one. Ironic's agent spares them too.
var guards = []signature{
	{"VMFS", 0x100000, []byte("\x0d\xd0\x01\xc0")},
	{"GFS2", 0x10000, []byte("\x01\x16\x19\x70")},
}

// guardTypes are the same by partition type.
var guardTypes = map[string]string{
	"37AFFC90-EF7D-4E96-91C3-2D7AE055B174": "GPFS",
	"AA31E02A-400F-11DB-9590-000C2911D1B8": "VMFS",
	"0xfb":                                 "VMFS",
}

// copies are superblocks that lie far inside: they go when they are there. (btrfs would be found by its copies.)
var copies = []signature{
	{"btrfs", 64<<20 + 0x40, []byte("_BHRfS_M")},
	{"btrfs", 256<<30 + 0x40, []byte("_BHRfS_M")},
}

func guarded(dev Device, all []inside) (string, error) {
	for _, s := range all {
		if name := guardTypes[s.kind]; name != "" {
			return name, nil
		}
		for _, g := range guards {
			found, err := g.in(dev, s.span)
			if err != nil || found {
				return g.name, err
			}
		}
	}
	return "", nil
}

func farSignatures(dev Device, all []inside) ([]span, error) {
	var far []span
	for _, s := range all {
		for _, c := range copies {
			found, err := c.in(dev, s.span)
			if err != nil {
				return nil, err
			}
			if found {
				off := s.off + c.off
				far = append(far, span{off - off%4096, 4096})
			}
		}
	}
	return far, nil
}

func (g signature) in(dev Device, s span) (bool, error) {
	const block = 4096
	at := s.off + g.off
	start := at - at%block
	if start+block > s.off+s.n || start+block > dev.Size() {
		return false, nil
	}
	buf := Aligned(block)
	if _, err := dev.ReadAt(buf, start); err != nil {
		return false, fmt.Errorf("look for %s at byte %d: %w", g.name, at, err)
	}
	return bytes.HasPrefix(buf[at-start:], g.magic), nil
}
