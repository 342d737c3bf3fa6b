package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/blkid"
	"github.com/ingot-metal/ingot/images/gpt"
)

// TypeRAID is the partition type of a member of a software RAID.
var TypeRAID = gpt.RAID.String()

// NewPartition is a partition to create. Start and Size are whole sectors.
type NewPartition struct {
	Name        string
	Type        string // GUID
	Start, Size int64
}

// WriteTable writes a GPT with exactly these partitions to an open disk, and this boot code to sector 0 (nil: none).
// The content of the partitions is not touched. If stopped, the disk has no table, or the complete one.
func WriteTable(ctx context.Context, dev Device, code []byte, parts []NewPartition) error {
	if err := Wipe(ctx, dev); err != nil {
		return err
	}
	sector := dev.SectorSize()
	g, err := newGPT(sector, uint64(dev.Size())/uint64(sector))
	if err != nil {
		return err
	}
	for i, p := range parts {
		if p.Start < HeadSize || p.Start%int64(sector) != 0 || p.Size <= 0 || p.Size%int64(sector) != 0 {
			return fmt.Errorf("partition %s of %d bytes can't be at byte %d", p.Name, p.Size, p.Start)
		}
		kind, err := gpt.ParseGUID(p.Type)
		if err != nil {
			return err
		}
		first := uint64(p.Start) / uint64(sector)
		g.Set(gpt.Entry{Number: i + 1, Type: kind, GUID: gpt.NewGUID(), First: first,
			Last: first + uint64(p.Size)/uint64(sector) - 1, Name: p.Name})
	}
	if err := g.fit(uint64(dev.Size()) / uint64(sector)); err != nil {
		return err
	}
	head := Aligned(HeadSize)
	copy(head[:440], code)
	g.apply(head)
	tail, at := g.backup()
	if _, err := dev.WriteAt(tail, int64(at)*int64(sector)); err != nil {
		return fmt.Errorf("write the backup partition table: %w", err)
	}
	// Sector 0 last and alone, as in Commit.
	for _, part := range [][2]int{{sector, HeadSize}, {0, sector}} {
		if _, err := dev.WriteAt(head[part[0]:part[1]], int64(part[0])); err != nil {
			return fmt.Errorf("write the partition table: %w", err)
		}
		if err := dev.Sync(); err != nil {
			return fmt.Errorf("flush: %w", err)
		}
	}
	return nil
}

// ReadTable returns the partitions of an open disk's table; kind is "gpt", "mbr", or "" if there is none.
func ReadTable(dev Device) (kind string, parts []Partition, err error) {
	head := Aligned(HeadSize)
	if dev.Size() < HeadSize {
		return "", nil, nil
	}
	if _, err := dev.ReadAt(head, 0); err != nil {
		return "", nil, fmt.Errorf("read the partition table: %w", err)
	}
	if !blkid.HasBootSignature(head) {
		return "", nil, nil
	}
	t, err := parseTable(head, dev.SectorSize())
	if err != nil {
		return "", nil, nil // no table to firmware or kernel
	}
	return t.kind(), t.partitions(), nil
}

// Member is a partition that is a member of an array.
type Member struct {
	Disk      string // "/dev/sda"
	Partition string // "/dev/sda2"
	Start     int64  // of the partition on its disk, bytes
}

// Members returns the members of an array from sysfs; none for a disk that is no array.
func Members(root, name string) ([]Member, error) {
	if !strings.HasPrefix(filepath.Base(name), "md") {
		return nil, nil
	}
	dir := filepath.Join(root, "sys/block", filepath.Base(name), "slaves")
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("find the members of %s: %w", name, err)
	}
	var out []Member
	for _, e := range list {
		real, err := filepath.EvalSymlinks(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("find the members of %s: %w", name, err)
		}
		start, err := strconv.ParseInt(attributes(real).text("start"), 10, 64)
		if err != nil {
			continue // a whole disk: not one of our arrays
		}
		out = append(out,
			Member{Disk: "/dev/" + filepath.Base(filepath.Dir(real)), Partition: "/dev/" + e.Name(),
				Start: start * 512})
	}
	return out, nil
}

// ESPOf returns the EFI system partition in the table of a disk from which a system in an array is started, and its
// name in /dev. The table is read without opening the disk exclusively, as its other partitions are in use.
func ESPOf(ctx context.Context, m interface {
	Root() string
	ReadRaw(ctx context.Context, path string, p []byte, off int64) error
}, name string) (Partition, string, error) {
	sector := int(attributes(filepath.Join(m.Root(), "sys/block", filepath.Base(name), "queue")).number(
		"logical_block_size"))
	if sector < 512 {
		sector = 512
	}
	head := Aligned(HeadSize)
	if err := m.ReadRaw(ctx, name, head, 0); err != nil {
		return Partition{}, "", err
	}
	t, err := parseTable(head, sector)
	if err != nil {
		return Partition{}, "", err
	}
	for _, p := range t.partitions() {
		if !strings.EqualFold(p.Type, TypeESP) {
			continue
		}
		dir := filepath.Join(m.Root(), "sys/block", filepath.Base(name))
		list, err := filepath.Glob(filepath.Join(dir, "*", "partition"))
		if err != nil {
			return Partition{}, "", err
		}
		for _, f := range list {
			if attributes(filepath.Dir(f)).number("partition") == int64(p.Number) {
				return p, "/dev/" + filepath.Base(filepath.Dir(f)), nil
			}
		}
		return Partition{}, "", errors.New("the kernel does not show the EFI system partition")
	}
	return Partition{}, "",
		step.Failf("create the RAID again: delete_configuration, then create_configuration",
			"disk %s has no EFI system partition", name)
}
