package disk

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/blkid"
	"github.com/ingot-metal/ingot/images/fs/ext4"
	"github.com/ingot-metal/ingot/images/fs/fat"
	"github.com/ingot-metal/ingot/images/gpt"
)

// Layout is the partitioning of a disk for an image of one file system, under the names of Ironic's instance_info.
type Layout struct {
	RootGB            int64  `json:"root_gb"` // 0: all remaining space
	SwapMB            int64  `json:"swap_mb"`
	EphemeralGB       int64  `json:"ephemeral_gb"`
	EphemeralFormat   string `json:"ephemeral_format"` // "ext4" (also for ""), "vfat"
	PreserveEphemeral bool   `json:"preserve_ephemeral"`
}

// The order on the disk is Ironic's: EFI system partition, ephemeral, swap, config drive, root. Root is last, so that
// the instance can grow it to the end of the disk. Sizes are MiB, the first partition begins at the first.
const (
	espSize  = 550 << 20
	driveMax = 64 << 20 // space for a config drive is always reserved
)

// Roles of the partitions of a Division. They are also the partitions' names, except for the config drive's.
const (
	RoleESP       = "esp"
	RoleEphemeral = "ephemeral0"
	RoleSwap      = "swap1"
	RoleRoot      = "root"
	roleDrive     = "config drive"
)

// Division is the partitioning of a disk for an image of one file system, which goes to the root partition. The table
// exists only in memory until disk.Commit.
type Division struct {
	dev    Device
	disk   Disk
	layout Layout
	table  *gptTable
	slots  map[string]slot
	size   int64 // of the image
	booted bool  // the EFI system partition has been filled
}

// slot is the place of a partition: the entry's index in the table, and bytes.
type slot struct {
	index       int
	start, size int64
}

const remedyLayout = "correct root_gb, swap_mb and ephemeral_gb of instance_info, or use a larger disk"

// Divide computes the partitioning of an open disk. Nothing is written.
func Divide(dev Device, d Disk, l Layout) (*Division, error) {
	const most = 1 << 40 // MiB; keeps byte counts from overflowing
	if l.RootGB < 0 || l.SwapMB < 0 || l.EphemeralGB < 0 || l.RootGB > most>>10 || l.SwapMB > most ||
		l.EphemeralGB > most>>10 {
		return nil, step.Failf(remedyLayout, "sizes of partitions can't be root %d GiB, swap %d MiB, ephemeral %d GiB",
			l.RootGB, l.SwapMB, l.EphemeralGB)
	}
	if l.EphemeralFormat = strings.ToLower(cmp.Or(l.EphemeralFormat, "ext4")); l.EphemeralFormat != "ext4" &&
		l.EphemeralFormat != "vfat" {
		return nil, step.Failf("set ephemeral_format to ext4 or vfat", "the ephemeral partition can't be made as %q",
			l.EphemeralFormat)
	}
	if l.PreserveEphemeral && l.EphemeralGB == 0 {
		return nil, step.Failf("set ephemeral_gb as it was, or leave out preserve_ephemeral",
			"there is no ephemeral partition to preserve: ephemeral_gb is 0")
	}
	x := &Division{dev: dev, disk: d, layout: l, slots: map[string]slot{}}
	sector := int64(d.LogicalSectors)
	sectors := uint64(d.Size / sector)
	var err error
	if x.table, err = newGPT(d.LogicalSectors, sectors); err != nil {
		return nil, err
	}
	at := int64(HeadSize)
	end := int64(x.table.LastUsable+1) * sector / HeadSize * HeadSize
	add := func(role string, size int64) {
		x.slots[role] = slot{len(x.slots), at, size}
		at += size
	}
	add(RoleESP, espSize)
	if l.EphemeralGB > 0 {
		add(RoleEphemeral, l.EphemeralGB<<30)
	}
	if l.SwapMB > 0 {
		add(RoleSwap, l.SwapMB<<20)
	}
	add(roleDrive, driveMax)
	root := cmp.Or(l.RootGB<<30, end-at)
	if root < 4*HeadSize || at+root > end {
		return nil, step.Failf(remedyLayout,
			"the disk has no room for the requested layout: %s has %d MiB, before the root partition come %d MiB, and root_gb is %d",
			d.Name, end>>20, at>>20, l.RootGB)
	}
	add(RoleRoot, root)
	for _, r := range []struct {
		role string
		kind gpt.GUID
	}{{RoleESP, gpt.ESP}, {RoleEphemeral, gpt.Linux}, {RoleSwap, gpt.Swap}, {RoleRoot, gpt.Linux}} {
		if s, ok := x.slots[r.role]; ok {
			x.set(s, r.role, r.kind)
		}
	}
	return x, nil
}

// set writes a slot into the table.
func (x *Division) set(s slot, name string, kind gpt.GUID) {
	sector := uint64(x.table.Sector)
	x.table.Set(gpt.Entry{Number: s.index + 1, Type: kind, GUID: gpt.NewGUID(), First: uint64(s.start) / sector,
		Last: uint64(s.start+s.size)/sector - 1, Name: name})
}

// Partition returns the partition with a role, as in the future table.
func (x *Division) Partition(role string) (Partition, bool) {
	s, ok := x.slots[role]
	if !ok {
		return Partition{}, false
	}
	e, ok := x.table.Partition(s.index + 1)
	return x.table.partition(e), ok
}

// SetGUID sets the GUID by which the image's own files refer to a partition.
func (x *Division) SetGUID(role, guid string) error {
	g, err := gpt.ParseGUID(guid)
	if err != nil {
		return err
	}
	n := x.slots[role].index + 1
	for _, e := range x.table.Partitions() {
		if e.GUID == g && e.Number != n {
			return fmt.Errorf("two partitions can't have the GUID %s", guid)
		}
	}
	e, _ := x.table.Partition(n)
	e.GUID = g
	x.table.Set(e)
	return nil
}

// Root returns the root partition as a device: offset 0 is the start of the image.
func (x *Division) Root() Device { return x.window(RoleRoot) }

func (x *Division) window(role string) *window {
	s := x.slots[role]
	return &window{x.dev, s.start, s.size}
}

// Begin checks the beginning of the image (a MiB is enough; size is its size, or -1), and then wipes the disk's table.
// An image that can't work is refused before the disk is touched.
func (x *Division) Begin(ctx context.Context, start []byte, size int64) error {
	root := x.slots[RoleRoot]
	fs, err := ext4.Inspect(start)
	if err != nil {
		return step.Fail("use a partition image with an ext2, ext3 or ext4 file system, or a whole-disk image",
			fmt.Errorf("the image can't be put into a partition and booted: %w", err))
	}
	switch {
	case size >= 0 && fs.Size > size:
		return step.Failf("fetch or build the image again",
			"the image is truncated: its file system has %d bytes, the image %d", fs.Size, size)
	case max(size, fs.Size) > root.size:
		return step.Failf("set root_gb to more, use a smaller image or a larger disk",
			"the image has %d bytes, the root partition on %s %d", max(size, fs.Size), x.disk.Name, root.size)
	case fs.BlockSize < x.disk.LogicalSectors:
		return step.Failf(
			"make the file system with blocks of 4096 bytes (mkfs.ext4 -b 4096), or use a disk with sectors of 512 bytes",
			"the image's file system has blocks of %d bytes, which can't be on a disk with sectors of %d", fs.BlockSize,
			x.disk.LogicalSectors)
	}
	if x.layout.PreserveEphemeral {
		if err := x.ephemeralIsThere(); err != nil {
			return err
		}
	}
	return Wipe(ctx, x.dev)
}

// ephemeralIsThere checks that the place of the ephemeral partition has one now. The old table may already be missing:
// an earlier attempt may have removed it.
func (x *Division) ephemeralIsThere() error {
	w := x.window(RoleEphemeral)
	buf := Aligned(64 << 10)
	if _, err := w.ReadAt(buf, 0); err != nil {
		return fmt.Errorf("read the ephemeral partition: %w", err)
	}
	var size int64
	if fs, err := ext4.Inspect(buf); err == nil {
		size = fs.Size
	} else if f, err := fat.Open(Section(x.dev, w.start, w.size), w.size); err == nil {
		size = f.Size()
	} else if blkid.Detect(buf) == blkid.XFS {
		size = int64(binary.BigEndian.Uint32(buf[4:])) * int64(min(binary.BigEndian.Uint64(buf[8:]), 1<<40))
	}
	if size <= 0 || size > w.size {
		return step.Failf(
			"leave out preserve_ephemeral to make a new one, or set ephemeral_gb as it was when it was made",
			"the ephemeral partition can't be preserved: at byte %d of %s is no file system that fits into %d GiB",
			w.start, x.disk.Name, x.layout.EphemeralGB)
	}
	return nil
}

// Pending returns the pending commit, after the image of that many bytes was written to the root partition.
func (x *Division) Pending(size int64) *Pending {
	x.size = size
	return &Pending{Disk: x.disk, head: make([]byte, HeadSize), tailOff: HeadSize, table: x.table,
		added: map[string]Partition{}, div: x}
}

// Division returns the partitioning for a partition image; nil for a whole-disk image.
func (p *Pending) Division() *Division { return p.div }

// drive adds the config drive's partition.
func (x *Division) drive(name string, want, least int64) (Partition, error) {
	s := x.slots[roleDrive]
	if least > s.size {
		return Partition{}, step.Failf("make it smaller", "there is room for a config drive of %d MiB", s.size>>20)
	}
	s.size = (min(want, s.size) + HeadSize - 1) / HeadSize * HeadSize
	x.set(s, name, gpt.BasicData)
	p, _ := x.Partition(roleDrive)
	return p, nil
}

// format makes swap and ephemeral, and clears the ends of the partitions, where signatures of an earlier system would
// be taken for arrays or other file systems.
func (x *Division) format(ctx context.Context, dev Device) error {
	// If a Zeroer detects late that the device breaks its promise, it writes zeros over all its ranges, and so over
	// data written there since. So each range has its own Zeroer.
	zero := func(off, n int64) error { return NewZeroer(dev).Zero(ctx, off, n) }
	for role, s := range x.slots {
		if role == roleDrive || role == RoleEphemeral && x.layout.PreserveEphemeral {
			continue
		}
		off := s.start + s.size - HeadSize
		if role == RoleRoot {
			off = max(off, (s.start+x.size+HeadSize-1)/HeadSize*HeadSize)
		}
		if n := s.start + s.size - off; n > 0 {
			if err := zero(off, n); err != nil {
				return err
			}
		}
	}
	if s, ok := x.slots[RoleSwap]; ok {
		head := Aligned(HeadSize)
		makeSwap(head, s.size)
		if _, err := dev.WriteAt(head, s.start); err != nil {
			return fmt.Errorf("make the swap partition: %w", err)
		}
	}
	if s, ok := x.slots[RoleEphemeral]; ok && !x.layout.PreserveEphemeral {
		if err := zero(s.start, HeadSize); err != nil {
			return err
		}
		var err error
		if x.layout.EphemeralFormat == "vfat" {
			err = x.formatFAT(ctx, dev, s)
		} else {
			err = ext4.Make(&window{dev, s.start, s.size}, s.size, RoleEphemeral, gpt.NewGUID(), time.Now(),
				func(off, n int64) error { return zero(s.start+off, n) })
		}
		if err != nil {
			return fmt.Errorf("make the ephemeral partition: %w", err)
		}
	}
	return nil
}

func (x *Division) formatFAT(ctx context.Context, dev Device, s slot) error {
	img, err := fat.Make(nil,
		fat.Options{Sector: x.disk.LogicalSectors, Size: s.size, Label: "EPHEMERAL0", Serial: randomSerial(),
			Time: time.Now()})
	if err != nil {
		return step.Fail("set ephemeral_format to ext4", err)
	}
	return putFAT(ctx, dev, s.start, img)
}

// putFAT writes a FAT file system to a partition.
func putFAT(ctx context.Context, dev Device, start int64, img *fat.Image) error {
	if err := NewZeroer(dev).Zero(ctx, start, img.Zero); err != nil {
		return err
	}
	for _, p := range img.Pieces {
		for off := 0; off < len(p.Data); off += HeadSize {
			if _, err := dev.WriteAt(p.Data[off:min(off+HeadSize, len(p.Data))], start+p.Off+int64(off)); err != nil {
				return fmt.Errorf("write %d bytes at byte %d: %w", len(p.Data), start+p.Off, err)
			}
		}
	}
	return nil
}

func randomSerial() uint32 {
	g := gpt.NewGUID()
	return binary.LittleEndian.Uint32(g[:])
}

// PutESP fills the EFI system partition with a FAT of files.
func (x *Division) PutESP(ctx context.Context, dev Device, files []fat.File, label string, serial uint32) error {
	s := x.slots[RoleESP]
	img, err := fat.Make(files, fat.Options{Sector: x.disk.LogicalSectors, Size: s.size, Label: label,
		Serial: cmp.Or(serial, randomSerial()), Time: time.Now()})
	if err == nil {
		err = putFAT(ctx, dev, s.start, img)
	}
	if err != nil {
		return fmt.Errorf("make the EFI system partition: %w", err)
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	x.booted = true
	return nil
}

// makeSwap writes the header of a swap area, as mkswap does with pages of 4 KiB (linux/include/linux/swap.h, union
// swap_header).
func makeSwap(head []byte, size int64) {
	const page = 4096
	clear(head)
	le := binary.LittleEndian
	le.PutUint32(head[1024:], 1)
	le.PutUint32(head[1028:], uint32(min(size/page-1, 1<<32-1)))
	guid := gpt.NewGUID()
	copy(head[1036:], guid[:])
	copy(head[1052:1068], RoleSwap)
	copy(head[page-10:], "SWAPSPACE2")
}

// window is a part of a device, as a device.
type window struct {
	Device
	start, size int64
}

var errOutside = errors.New("outside of the partition")

func (w *window) Size() int64 { return w.size }

func (w *window) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 || off > w.size {
		return 0, errOutside
	}
	if rest := w.size - off; int64(len(b)) > rest {
		n, err := w.Device.ReadAt(b[:rest], w.start+off)
		return n, cmp.Or(err, io.EOF)
	}
	return w.Device.ReadAt(b, w.start+off)
}

func (w *window) WriteAt(b []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(b)) > w.size {
		return 0, errOutside
	}
	return w.Device.WriteAt(b, w.start+off)
}

func (w *window) Punch(off, n int64) error {
	if off < 0 || n < 0 || off+n > w.size {
		return errOutside
	}
	return w.Device.Punch(w.start+off, n)
}

// Close does nothing: the opener of the disk closes it.
func (w *window) Close() error { return nil }

// CanDivide refuses a partition image on a machine that could not boot it. It is called before anything is written.
func CanDivide(m interface{ Root() string }) error {
	_, err := os.Stat(filepath.Join(m.Root(), "sys/firmware/efi"))
	uefi := err == nil
	if own, ok := m.(interface{ UEFI() bool }); ok { // the disk may be meant for another machine
		uefi = own.UEFI()
	}
	if uefi {
		return nil
	}
	return step.Failf(
		"use a whole-disk image, or let the machine boot by UEFI (boot_mode:uefi in the node's capabilities)",
		"the machine boots by BIOS, for which a partition image can't be made bootable without running programs out of it")
}
