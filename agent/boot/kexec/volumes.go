package kexec

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ingot-metal/ingot/agent/boot/bootentry"
	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/images/blkid"
	"github.com/ingot-metal/ingot/images/fs/btrfs"
	"github.com/ingot-metal/ingot/images/fs/ext4"
	"github.com/ingot-metal/ingot/images/fs/fat"
	"github.com/ingot-metal/ingot/images/fs/xfs"
)

// openers for the supported file systems. openVolume handles members of an array first.
var openers = map[blkid.Kind]func(r io.ReaderAt, size int64, v *bootentry.Volume) error{
	blkid.Ext: openExt, blkid.XFS: openXFS, blkid.Btrfs: openBtrfs, blkid.VFAT: openFAT,
}

// openVolume identifies a partition's content. It fails only when the disk can't be read.
func openVolume(r io.ReaderAt, size int64, v *bootentry.Volume) error {
	return openKind(r, size, v, false)
}

func openKind(r io.ReaderAt, size int64, v *bootentry.Volume, inArray bool) error {
	head := make([]byte, min(blkid.HeadSize, size))
	if _, err := r.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the beginning of partition %d: %w", v.Number, err)
	}
	found, _ := blkid.Find(head)
	open := openers[found.Kind]
	switch {
	case found.Kind == blkid.MD && !inArray: // no nested arrays
		open = func(r io.ReaderAt, size int64, v *bootentry.Volume) error { return openMember(r, size, found.Off, v) }
	case found.Kind == "" && blkid.HasBootSignature(head): // a FAT without its label, or other boot code
		found.Kind, open = blkid.VFAT, openFAT
	case found.Kind == "":
		return nil
	}
	if open == nil {
		v.Fault = "it is " + found.Kind.Description() + ", which is not read here"
		return nil
	}
	if err := open(r, size, v); err != nil {
		v.FS, v.Fault = nil, fmt.Sprintf("it looks like %s: %v", found.Kind.Description(), err)
	}
	return nil
}

func openExt(r io.ReaderAt, size int64, v *bootentry.Volume) error {
	f, err := ext4.Open(r, size)
	if err != nil {
		return err
	}
	v.FS, v.Fault, v.UUID, v.Label = f, "", f.Info().UUID, f.Info().Label
	return nil
}

func openXFS(r io.ReaderAt, size int64, v *bootentry.Volume) error {
	f, err := xfs.Open(r, size)
	if err != nil {
		return err
	}
	v.FS, v.Fault, v.UUID, v.Label = f, "", f.Info().UUID, f.Info().Label
	return nil
}

func openBtrfs(r io.ReaderAt, size int64, v *bootentry.Volume) error {
	f, err := btrfs.Open(r, size)
	if err != nil {
		return err
	}
	v.FS, v.Fault, v.UUID, v.Label = f, "", f.Info().UUID, f.Info().Label
	return nil
}

func openFAT(r io.ReaderAt, size int64, v *bootentry.Volume) error {
	f, err := fat.Open(r, size)
	if err != nil {
		return err
	}
	label, err := f.Label()
	if err != nil {
		return err
	}
	v.FS, v.Fault, v.UUID, v.Label = f, "", f.Serial(), label
	return nil
}

// openMember opens one member of a mirror: the others hold the same data. Its metadata, of format 1.1 or 1.2, has the
// offset of the data; with 0.9 and 1.0 the data starts with the partition and is detected directly.
func openMember(r io.ReaderAt, size, metadata int64, v *bootentry.Volume) error {
	var b [256]byte
	if _, err := r.ReadAt(b[:], metadata); err != nil {
		return err
	}
	le := binary.LittleEndian
	level, offset, length := int32(le.Uint32(b[72:])), int64(le.Uint64(b[128:])), int64(le.Uint64(b[136:]))
	if level != 1 {
		return fmt.Errorf("of level %d, which can't be read from one disk", level)
	}
	if offset < 8 || offset > size/512 || length <= 0 || length > size/512-offset {
		return errors.New("its metadata is damaged")
	}
	inner := bootentry.Volume{Number: v.Number}
	if err := openKind(io.NewSectionReader(r, offset*512, length*512), length*512, &inner, true); err != nil {
		return err
	}
	if inner.FS == nil {
		return errors.New(inner.Fault)
	}
	v.FS, v.Fault, v.UUID, v.Label = inner.FS, "", inner.UUID, inner.Label
	return nil
}

// volumes returns the partitions of an open disk.
func volumes(ctx context.Context, dev disk.Device) ([]bootentry.Volume, error) {
	kind, parts, err := disk.ReadTable(dev)
	if err != nil {
		return nil, err
	}
	if kind == "" {
		parts = []disk.Partition{{Start: 0, Size: dev.Size()}}
	}
	var out []bootentry.Volume
	for _, p := range parts {
		if p.Size < 64<<10 {
			continue
		}
		v := bootentry.Volume{Number: p.Number, GPT: kind == "gpt", ESP: strings.EqualFold(p.Type, disk.TypeESP) ||
			strings.EqualFold(p.Type, "0xef")}
		v.Raw = newAhead(ctx, disk.Section(dev, p.Start, p.Size), p.Size)
		if err := openVolume(v.Raw, p.Size, &v); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// ahead reads a disk in large pieces and keeps the last ones: file systems are read in blocks of a few kilobytes, each
// of which would be a disk command, because the page cache is bypassed.
type ahead struct {
	ctx  context.Context // of the step, which ends with the reading
	r    io.ReaderAt
	size int64
	kept map[int64][]byte
	used []int64 // oldest first
}

const (
	aheadSize = 128 << 10
	aheadKept = 24
)

func newAhead(ctx context.Context, r io.ReaderAt, size int64) *ahead {
	return &ahead{ctx: ctx, r: r, size: size, kept: map[int64][]byte{}}
}

func (a *ahead) ReadAt(b []byte, off int64) (n int, err error) {
	if off < 0 || off > a.size {
		return 0, io.ErrUnexpectedEOF
	}
	for len(b) > 0 {
		if off == a.size {
			return n, io.EOF
		}
		piece, err := a.piece(off / aheadSize)
		if err != nil {
			return n, err
		}
		k := copy(b, piece[off%aheadSize:])
		if k == 0 {
			return n, io.ErrUnexpectedEOF
		}
		b, off, n = b[k:], off+int64(k), n+k
	}
	return n, nil
}

func (a *ahead) piece(i int64) ([]byte, error) {
	if p, ok := a.kept[i]; ok {
		return p, nil
	}
	if err := a.ctx.Err(); err != nil {
		return nil, context.Cause(a.ctx)
	}
	p := make([]byte, min(aheadSize, a.size-i*aheadSize))
	if n, err := a.r.ReadAt(p, i*aheadSize); err != nil && (n < len(p) || !errors.Is(err, io.EOF)) {
		return nil, err
	}
	if len(a.used) == aheadKept {
		delete(a.kept, a.used[0])
		a.used = a.used[1:]
	}
	a.kept[i], a.used = p, append(a.used, i)
	return p, nil
}
