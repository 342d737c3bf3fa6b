// Package btrfs reads btrfs file systems.
//
// It reads a kernel and its ramdisk from an untrusted image, without mounting or running anything of it: every number
// is checked against the file system's size, every walk is bounded, and unknown features are refused. Checksums of
// metadata are verified (CRC-32C; others are refused), and that each node is the one its parent points to; those of
// files' content are not, as in boot loaders. One device is read, with chunks of the profiles single and dup (the first
// copy), and only without a log: one that must be replayed changes files. Content may be compressed with zlib or zstd.
//
// The root is the default subvolume, as for a mount without options and for GRUB. Subvolumes inside are directories.
// Files not found there are looked up from the top of all subvolumes: configurations of GRUB name files both ways
// ("/boot/vmlinuz", "/@/.snapshots/1/snapshot/boot/vmlinuz"). The format is that of the kernel's documentation ("BTRFS
// on-disk format"). All numbers are little-endian.
package btrfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sort"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

// ErrNot means that the file system is of another kind, or unreadable; ErrNone that a file does not exist.
var (
	ErrNot  = errors.New("not a btrfs file system")
	ErrNone = errors.New("no such file")
)

// Info holds the superblock's data.
type Info struct {
	Size  int64 // bytes
	UUID  string
	Label string
}

const (
	superAt   = 64 << 10
	superSize = 4096
	magic     = "_BHRfS_M"

	// maxRead bounds the reads of one file system: several times a boot loader's needs.
	maxRead   = 512 << 20
	maxChunks = 1 << 16
	maxRuns   = 1 << 16 // pieces of a file
	maxNames  = 100_000 // of a directory
	maxLink   = 4096    // of a link's target
	maxLevel  = 7       // of a tree
	maxPacked = 128 << 10
	keptNodes = 32

	flagWritten = 1
	flagSeeding = 1 << 32

	incompatMetaUUID = 0x400
	// Features without effect on reading files, or supported: mixed back references, default subvolume, mixed groups,
	// LZO and zstd (checked per extent), large metadata, extended references, RAID 5/6 and RAID 1 of three and four
	// (checked per chunk), skinny metadata, no holes, the other UUID, simple quotas. Compatible features (free space
	// tree, verity, block group tree) don't affect readers.
	incompatKnown = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80 | 0x100 | 0x200 | incompatMetaUUID | 0x800 |
		0x10000

	chunkKinds = 0x7  // data, system, metadata
	chunkDup   = 0x20 // two copies on a device
)

var le = binary.LittleEndian

// super is a checked superblock.
type super struct {
	Info
	sector, nodeSize uint32
	device           uint64 // its number
	meta             [16]byte
	roots            tree // the tree of trees
	chunks           tree
	rootDir          uint64 // in the tree of trees
	system           []byte // chunks of the chunk tree
}

func parseSuper(b []byte) (*super, error) {
	if string(b[64:72]) != magic {
		return nil, ErrNot
	}
	if sum := le.Uint16(b[196:]); sum != 0 {
		return nil, fmt.Errorf("%w that can be read: its checksums are of kind %d, not CRC-32C", ErrNot, sum)
	}
	incompat, flags := le.Uint64(b[188:]), le.Uint64(b[56:])
	if bad := incompat &^ incompatKnown; bad != 0 {
		return nil, fmt.Errorf("%w that is known here: features %#x", ErrNot, bad)
	}
	if bad := flags &^ (flagWritten | flagSeeding); bad != 0 {
		return nil, fmt.Errorf("%w that is whole: it is marked as damaged or being changed (%#x)", ErrNot, bad)
	}
	if n := le.Uint64(b[136:]); n != 1 {
		return nil, fmt.Errorf("%w that can be read: it is spread over %d devices", ErrNot, n)
	}
	if le.Uint64(b[96:]) != 0 {
		return nil, fmt.Errorf("%w that is whole: its log has not been replayed; mount the image once", ErrNot)
	}
	s := &super{sector: le.Uint32(b[144:]), nodeSize: le.Uint32(b[148:]), device: le.Uint64(b[201:]),
		rootDir: le.Uint64(b[128:]),
		roots:   tree{id: rootTree, at: le.Uint64(b[80:]), generation: le.Uint64(b[72:]), level: int(b[198])},
		chunks:  tree{id: chunkTree, at: le.Uint64(b[88:]), generation: le.Uint64(b[164:]), level: int(b[199])}}
	power := func(n, low, high uint32) bool { return n >= low && n <= high && n&(n-1) == 0 }
	size, system := le.Uint64(b[209:]), le.Uint32(b[160:])
	switch {
	case le.Uint64(b[48:]) != superAt, !power(s.sector, 4096, 64<<10), !power(s.nodeSize, s.sector, 64<<10),
		system > 2048, size == 0, size > 1<<60, s.roots.level > maxLevel, s.chunks.level > maxLevel:
		return nil, fmt.Errorf("%w: its superblock is damaged", ErrNot)
	}
	s.Size = int64(size)
	s.system = b[811 : 811+system]
	u := b[32:48]
	s.UUID = fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	s.Label, _, _ = strings.Cut(string(b[299:299+256]), "\x00")
	copy(s.meta[:], u)
	if incompat&incompatMetaUUID != 0 {
		copy(s.meta[:], b[571:])
	}
	return s, nil
}

// chunk is a range of logical addresses, which all pointers are, and its place on the device.
type chunk struct{ logical, n, physical uint64 }

// FS is a file system open for reading, for one reader at a time.
type FS struct {
	super
	openfs.Tree[*inode]
	r      io.ReaderAt
	places []chunk // in order
	// top is the tree that contains all subvolumes; root is the default one.
	top, root *tree
	kept      map[uint64]*node
	used      []uint64 // oldest first
	unpack    *zstd.Decoder
	// budget is how many bytes may still be read: it stops endless walks of hostile structures.
	budget int64
	// blind skips checksums for the fuzz test, which would never find a valid one.
	blind bool
}

// Open reads the superblock of the file system at the beginning of r, which has size bytes, and locates its chunks and
// trees.
func Open(r io.ReaderAt, size int64) (*FS, error) { return open(r, size, false) }

func open(r io.ReaderAt, size int64, blind bool) (*FS, error) {
	if size < superAt+superSize {
		return nil, ErrNot
	}
	b := make([]byte, superSize)
	if n, err := r.ReadAt(b, superAt); n < len(b) {
		return nil, fmt.Errorf("read the superblock: %w", err)
	}
	s, err := parseSuper(b)
	if err != nil {
		return nil, err
	}
	f := &FS{super: *s, r: r, kept: map[uint64]*node{}, budget: maxRead, blind: blind}
	f.Tree = f.tree()
	if !f.sum(b) {
		return nil, fmt.Errorf("%w: its superblock is damaged: wrong checksum", ErrNot)
	}
	if s.Size > size {
		return nil, fmt.Errorf("%w: it claims %d bytes of %d", ErrNot, s.Size, size)
	}
	if err := f.readChunks(); err != nil {
		return nil, err
	}
	if f.top, err = f.subvolume(topTree); err != nil {
		return nil, err
	}
	f.root = f.top
	at, err := f.entry(&f.roots, f.rootDir, "default")
	if errors.Is(err, ErrNone) {
		return f, nil
	}
	if err == nil && at.kind != kindRoot {
		err = fmt.Errorf("%w: its default subvolume is none", ErrNot)
	}
	if err == nil {
		f.root, err = f.subvolume(at.object)
	}
	if err != nil {
		return nil, fmt.Errorf("find the default subvolume: %w", err)
	}
	return f, nil
}

// Info returns the superblock's data.
func (f *FS) Info() Info { return f.super.Info }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum reports whether the checksum at the beginning is right.
func (f *FS) sum(b []byte) bool {
	return f.blind || crc32.Checksum(b[32:], castagnoli) == le.Uint32(b)
}

func (f *FS) charge(n int64) error {
	if f.budget -= n; f.budget < 0 {
		return fmt.Errorf("%w: too much was read of it", ErrNot)
	}
	return nil
}

// read reads the bytes at a logical address.
func (f *FS) read(b []byte, logical uint64) error {
	if err := f.charge(int64(len(b))); err != nil {
		return err
	}
	for len(b) > 0 {
		k := sort.Search(len(f.places), func(k int) bool { return f.places[k].logical+f.places[k].n > logical })
		if k == len(f.places) || f.places[k].logical > logical {
			return fmt.Errorf("%w: address %d lies outside", ErrNot, logical)
		}
		c := f.places[k]
		in := logical - c.logical
		part := int(min(uint64(len(b)), c.n-in))
		if n, err := f.r.ReadAt(b[:part], int64(c.physical+in)); n < part {
			return fmt.Errorf("read address %d: %w", logical, err)
		}
		b, logical = b[part:], logical+uint64(part)
	}
	return nil
}

// readChunks reads the mapping of addresses: first the few chunks in the superblock, and through them the tree of all.
func (f *FS) readChunks() (err error) {
	damaged := fmt.Errorf("%w: its superblock is damaged", ErrNot)
	for b := f.system; len(b) > 0; {
		if len(b) < keySize+48 {
			return damaged
		}
		n := keySize + 48 + 32*int(le.Uint16(b[keySize+44:]))
		if n > len(b) {
			return damaged
		}
		if f.places, err = f.addChunk(f.places, parseKey(b), b[keySize:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	var all []chunk
	err = f.each(&f.chunks, key{chunkObject, kindChunk, 0}, func(k key, item []byte) (bool, error) {
		if k.object != chunkObject || k.kind != kindChunk {
			return false, nil
		}
		all, err = f.addChunk(all, k, item)
		return true, err
	})
	if err != nil {
		return fmt.Errorf("read the tree of chunks: %w", err)
	}
	f.places = all
	return nil
}

func (f *FS) addChunk(to []chunk, k key, b []byte) ([]chunk, error) {
	damaged := fmt.Errorf("%w: chunk %d is damaged", ErrNot, k.offset)
	if k.object != chunkObject || k.kind != kindChunk || len(b) < 48 {
		return nil, damaged
	}
	n, kind, stripes := le.Uint64(b), le.Uint64(b[24:]), int(le.Uint16(b[44:]))
	if profile := kind &^ chunkKinds; profile != 0 && profile != chunkDup {
		return nil, fmt.Errorf("%w that can be read: chunk %d is of a profile for several devices (%#x)", ErrNot,
			k.offset, profile)
	}
	if len(b) != 48+32*stripes || stripes == 0 || n == 0 || n > 1<<60 || k.offset > 1<<62 {
		return nil, damaged
	}
	if device := le.Uint64(b[48:]); device != f.device {
		return nil, fmt.Errorf("%w that can be read: chunk %d is on device %d", ErrNot, k.offset, device)
	}
	at := le.Uint64(b[56:])
	if at > uint64(f.Size) || n > uint64(f.Size)-at {
		return nil, fmt.Errorf("%w: chunk %d lies outside", ErrNot, k.offset)
	}
	if last := len(to) - 1; last >= 0 && to[last].logical+to[last].n > k.offset {
		return nil, fmt.Errorf("%w: its chunks are not in order", ErrNot)
	}
	if len(to) == maxChunks {
		return nil, fmt.Errorf("%w that can be read: it has more than %d chunks", ErrNot, maxChunks)
	}
	return append(to, chunk{k.offset, n, at}), nil
}
