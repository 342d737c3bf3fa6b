// Package xfs reads XFS file systems.
//
// It reads a kernel and its ramdisk from an untrusted image, without mounting or running anything of it: every number
// is checked against the file system's size, every walk is bounded, and unknown features are refused. Version 5 (with
// checksums, which are verified) and version 4 are read, of one device, and only with a clean log: one that must be
// replayed may change any block. The format is that of the kernel's documentation ("XFS Filesystem Structure"). All
// numbers are big-endian, except checksums.
package xfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
	"strings"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

// ErrNot means that the file system is of another kind, or unreadable; ErrNone that a file does not exist.
var (
	ErrNot  = errors.New("not an XFS file system")
	ErrNone = errors.New("no such file")
)

// Info holds the superblock's data.
type Info struct {
	BlockSize int
	Size      int64 // bytes
	UUID      string
	Label     string
}

const (
	superSize = 512
	sector    = 512 // the unit of the log and of the addresses in metadata, independent of the device

	// maxRead bounds the reads of one file system: several times a boot loader's needs.
	maxRead  = 512 << 20
	maxDir   = 4 << 20
	maxRuns  = 1 << 16 // pieces of a file
	maxLink  = 1024    // of a link's target
	maxDepth = 9       // of the tree of extents

	versionDirV2 = 0x2000
	feature2Type = 0x200 // in version 4: directories hold file types

	incompatType        = 0x1
	incompatMetaUUID    = 0x4
	incompatNeedsRepair = 0x10
	// Features without effect on reading files, or supported: ftype, sparse inodes, the other UUID, bigtime, 64-bit
	// extent counters (checked per inode), exchange-range, parent pointers. Compatible features (reverse mapping,
	// reflink, free inodes, ...) don't affect readers.
	incompatKnown = incompatType | 0x2 | incompatMetaUUID | 0x8 | 0x20 | 0x40 | 0x80
)

var be = binary.BigEndian

// super is a checked superblock.
type super struct {
	Info
	crc       bool // version 5
	ftype     bool
	blocks    uint64
	agBlocks  uint64
	agCount   uint64
	agLog     uint // bits of a block's number inside its group
	perLog    uint // bits of an inode's place inside its block
	inodeSize int
	dirSize   int // bytes of a directory's block
	root      uint64
	logStart  uint64
	logBlocks uint64
	meta      [16]byte // the UUID in metadata
}

func parseSuper(b []byte) (*super, error) {
	if string(b[:4]) != "XFSB" {
		return nil, ErrNot
	}
	version := be.Uint16(b[100:])
	s := &super{blocks: be.Uint64(b[8:]), agBlocks: uint64(be.Uint32(b[84:])), agCount: uint64(be.Uint32(b[88:])),
		agLog: uint(b[124]), perLog: uint(b[123]), inodeSize: int(be.Uint16(b[104:])), root: be.Uint64(b[56:]),
		logStart: be.Uint64(b[48:]), logBlocks: uint64(be.Uint32(b[96:]))}
	block, least, dirLog := be.Uint32(b[4:]), 256, b[192]
	copy(s.meta[:], b[32:])
	switch version & 0xf {
	case 4:
		if version&versionDirV2 == 0 {
			return nil, fmt.Errorf("%w that is known here: its folders are of version 1", ErrNot)
		}
		s.ftype = version&0x8000 != 0 && be.Uint32(b[200:])&feature2Type != 0
	case 5:
		s.crc, least = true, 512
		incompat := be.Uint32(b[216:])
		if incompat&incompatNeedsRepair != 0 {
			return nil, fmt.Errorf("%w that is whole: it is marked as in need of repair; run xfs_repair on the image",
				ErrNot)
		}
		if bad := incompat &^ incompatKnown; bad != 0 {
			return nil, fmt.Errorf("%w that is known here: features %#x", ErrNot, bad)
		}
		s.ftype = incompat&incompatType != 0
		if incompat&incompatMetaUUID != 0 {
			copy(s.meta[:], b[248:])
		}
	default:
		return nil, fmt.Errorf("%w that is known here: version %d", ErrNot, version&0xf)
	}
	power := func(n uint32, low, high uint32) bool { return n >= low && n <= high && n&(n-1) == 0 }
	switch {
	case !power(block, 512, 64<<10), 1<<(b[120]&31) != block, !power(uint32(be.Uint16(b[102:])), 512, 32<<10),
		!power(uint32(s.inodeSize), uint32(least), 2048), uint32(s.inodeSize) > block, s.perLog > 8,
		1<<s.perLog != block/uint32(s.inodeSize), dirLog > 7, block<<dirLog > 64<<10,
		s.agBlocks < 16, s.agBlocks > 1<<31, s.agLog != uint(bits.Len64(s.agBlocks-1)),
		s.agCount == 0, s.blocks == 0, s.blocks > 1<<44, s.blocks > s.agBlocks*s.agCount,
		s.blocks <= s.agBlocks*(s.agCount-1), b[126] != 0:
		return nil, fmt.Errorf("%w: its superblock is damaged", ErrNot)
	}
	s.BlockSize, s.dirSize = int(block), int(block)<<dirLog
	s.Size = int64(s.blocks) * int64(block)
	u := b[32:48]
	s.UUID = fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	label, _, _ := strings.Cut(string(b[108:120]), "\x00")
	s.Label = label
	return s, nil
}

// FS is a file system open for reading, for one reader at a time.
type FS struct {
	super
	openfs.Tree[*inode]
	r io.ReaderAt
	// budget is how many bytes may still be read: it stops endless walks of hostile structures.
	budget int64
	// blind skips checksums for the fuzz test, which would never find a valid one.
	blind bool
}

// Open reads the superblock of the file system at the beginning of r, which has size bytes, and checks that its log is
// clean.
func Open(r io.ReaderAt, size int64) (*FS, error) { return open(r, size, false) }

func open(r io.ReaderAt, size int64, blind bool) (*FS, error) {
	b := make([]byte, superSize, 32<<10)
	if _, err := r.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("read the superblock: %w", err)
	}
	s, err := parseSuper(b)
	if err != nil {
		return nil, err
	}
	if s.Size > size {
		return nil, fmt.Errorf("%w: it claims %d bytes of %d", ErrNot, s.Size, size)
	}
	f := &FS{super: *s, r: r, budget: maxRead, blind: blind}
	f.Tree = f.tree()
	if s.crc {
		b = b[:be.Uint16(b[102:])] // of the size checked above
		if err := f.read(b, 0); err != nil {
			return nil, fmt.Errorf("read the superblock: %w", err)
		}
		if !f.sum(b, 224) {
			return nil, fmt.Errorf("%w: its superblock is damaged: wrong checksum", ErrNot)
		}
	}
	if err := f.cleanLog(); err != nil {
		return nil, err
	}
	return f, nil
}

// Info returns the superblock's data.
func (f *FS) Info() Info { return f.super.Info }

// read reads bytes and charges the budget. Callers have checked the bounds.
func (f *FS) read(b []byte, at int64) error {
	if f.budget -= int64(len(b)); f.budget < 0 {
		return fmt.Errorf("%w: too much was read of it", ErrNot)
	}
	n, err := f.r.ReadAt(b, at)
	if n == len(b) {
		err = nil
	}
	return err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum reports whether the checksum at an offset, which counts as zeros, is right.
func (f *FS) sum(b []byte, at int) bool {
	if f.blind {
		return true
	}
	c := crc32.Update(0, castagnoli, b[:at])
	c = crc32.Update(c, castagnoli, []byte{0, 0, 0, 0})
	return crc32.Update(c, castagnoli, b[at+4:]) == binary.LittleEndian.Uint32(b[at:])
}

// place converts a block's number, which has the group's in its upper bits, to its place on the device; n blocks from
// there must be in one group.
func (f *FS) place(number, n uint64) (uint64, error) {
	group, in := number>>f.agLog, number&(1<<f.agLog-1)
	if group >= f.agCount || n > f.agBlocks || in > f.agBlocks-n || group*f.agBlocks+in+n > f.blocks {
		return 0, fmt.Errorf("%w: block %d lies outside", ErrNot, number)
	}
	return group*f.agBlocks + in, nil
}

// checked reports whether a metadata block with checksums is the expected one: its own UUID, place and owner, at these
// offsets.
func (f *FS) checked(b []byte, crc, uuid, place, owner int, block, inode uint64) error {
	switch {
	case f.blind:
	case !f.sum(b, crc):
		return fmt.Errorf("%w: wrong checksum in block %d", ErrNot, block)
	case !bytes.Equal(b[uuid:uuid+16], f.meta[:]), be.Uint64(b[place:]) != block*uint64(f.BlockSize/sector),
		be.Uint64(b[owner:]) != inode:
		return fmt.Errorf("%w: block %d is not the one that should be there", ErrNot, block)
	}
	return nil
}

const (
	typeMask    = 0xf000
	typeDir     = 0x4000
	typeFile    = 0x8000
	typeSymlink = 0xa000

	formatLocal   = 1
	formatExtents = 2
	formatTree    = 3

	flagRealtime = 1
	flag2Wide    = 0x10 // extent counters are wider, and elsewhere
)

type inode struct {
	number  uint64
	mode    uint16
	format  uint8
	size    int64
	extents uint64
	fork    []byte // the data fork: content, extents or the root of their tree
}

func (f *FS) inode(n uint64) (*inode, error) {
	block, err := f.place(n>>f.perLog, 1)
	if err != nil {
		return nil, fmt.Errorf("%w: inode %d does not exist", ErrNot, n)
	}
	b := make([]byte, f.inodeSize)
	if err := f.read(b, int64(block)*int64(f.BlockSize)+int64(n&(1<<f.perLog-1))*int64(f.inodeSize)); err != nil {
		return nil, fmt.Errorf("read inode %d: %w", n, err)
	}
	i := &inode{number: n, mode: be.Uint16(b[2:]), format: b[5], size: int64(be.Uint64(b[56:])),
		extents: uint64(be.Uint32(b[76:]))}
	version, head := b[4], 100
	if string(b[:2]) != "IN" || i.mode == 0 || f.crc && version != 3 || !f.crc && version != 1 && version != 2 {
		return nil, fmt.Errorf("%w: inode %d does not exist", ErrNot, n)
	}
	if i.size < 0 {
		return nil, fmt.Errorf("%w: inode %d has an impossible size", ErrNot, n)
	}
	if f.crc {
		head = 176
		if !f.sum(b, 100) {
			return nil, fmt.Errorf("%w: wrong checksum in inode %d", ErrNot, n)
		}
		if !f.blind && (be.Uint64(b[152:]) != n || !bytes.Equal(b[160:176], f.meta[:])) {
			return nil, fmt.Errorf("%w: inode %d is not the one that should be there", ErrNot, n)
		}
		if be.Uint64(b[120:])&flag2Wide != 0 {
			i.extents = be.Uint64(b[24:])
		}
	}
	if i.mode&typeMask == typeFile && be.Uint16(b[90:])&flagRealtime != 0 {
		return nil, fmt.Errorf("%w that can be read: inode %d is on a realtime device", ErrNot, n)
	}
	i.fork = b[head:]
	if at := int(b[82]) * 8; at > len(i.fork) {
		return nil, fmt.Errorf("%w: inode %d is damaged", ErrNot, n)
	} else if at > 0 { // its attributes follow
		i.fork = i.fork[:at]
	}
	return i, nil
}

// run is a range of blocks; physical is its place on the device.
type run struct{ logical, physical, n uint64 }

// runs returns the places of an inode's content, up to the logical block end, in order, without holes and unwritten
// extents.
func (f *FS) runs(i *inode, end uint64) ([]run, error) {
	w := &walk{f: f, inode: i, end: end}
	var err error
	switch i.format {
	case formatExtents:
		if i.extents > uint64(len(i.fork)/16) {
			return nil, fmt.Errorf("%w: inode %d has more extents than room", ErrNot, i.number)
		}
		err = w.leaf(i.fork[:16*i.extents])
	case formatTree:
		level, count, most := int(be.Uint16(i.fork)), int(be.Uint16(i.fork[2:])), (len(i.fork)-4)/16
		if level == 0 || level > maxDepth || count > most {
			return nil, fmt.Errorf("%w: an impossible tree of extents in inode %d", ErrNot, i.number)
		}
		err = w.node(i.fork[4+8*most:], count, level)
	default:
		err = fmt.Errorf("%w: inode %d is of format %d", ErrNot, i.number, i.format)
	}
	return w.out, err
}

type walk struct {
	f     *FS
	inode *inode
	end   uint64
	next  uint64 // minimum start of the next extent: they are in order
	out   []run
}

// node walks count pointers to nodes one level below. Each block is charged to the budget.
func (w *walk) node(pointers []byte, count, level int) error {
	f := w.f
	magic, head := "BMAP", 24
	if f.crc {
		magic, head = "BMA3", 72
	}
	for k := range count {
		at, err := f.place(be.Uint64(pointers[8*k:]), 1)
		if err != nil {
			return err
		}
		b := make([]byte, f.BlockSize)
		if err := f.read(b, int64(at)*int64(f.BlockSize)); err != nil {
			return fmt.Errorf("read block %d: %w", at, err)
		}
		n, most := int(be.Uint16(b[6:])), (f.BlockSize-head)/16
		if string(b[:4]) != magic || int(be.Uint16(b[4:])) != level-1 || n > most {
			return fmt.Errorf("%w: a damaged tree of extents in inode %d", ErrNot, w.inode.number)
		}
		if f.crc {
			if err := f.checked(b, 64, 40, 24, 56, at, w.inode.number); err != nil {
				return err
			}
		}
		if level > 1 {
			err = w.node(b[head+8*most:], n, level-1)
		} else {
			err = w.leaf(b[head : head+16*n])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) leaf(b []byte) error {
	for ; len(b) > 0; b = b[16:] {
		high, low := be.Uint64(b), be.Uint64(b[8:])
		logical, number, n := high&(1<<63-1)>>9, high&0x1ff<<43|low>>21, low&(1<<21-1)
		if n == 0 || logical < w.next {
			return fmt.Errorf("%w: extents of inode %d are not in order", ErrNot, w.inode.number)
		}
		w.next = logical + n
		at, err := w.f.place(number, n)
		if err != nil {
			return err
		}
		if high>>63 != 0 || logical >= w.end { // unwritten, or preallocated after the file's end
			continue
		}
		n = min(n, w.end-logical)
		if k := len(w.out) - 1; k >= 0 && w.out[k].logical+w.out[k].n == logical && w.out[k].physical+w.out[k].n == at {
			w.out[k].n += n
			continue
		}
		if len(w.out) == maxRuns {
			return fmt.Errorf("%w: inode %d is in too many pieces", ErrNot, w.inode.number)
		}
		w.out = append(w.out, run{logical, at, n})
	}
	return nil
}

// names yields a directory's entries, in stored order, until put returns true. "." and ".." are left out.
func (f *FS) names(i *inode, put func(name string, inode uint64) (enough bool, err error)) error {
	if i.mode&typeMask != typeDir {
		return fmt.Errorf("%w: not a folder", ErrNone)
	}
	if i.size > maxDir {
		return fmt.Errorf("a folder of %d bytes, more than the %d that are read", i.size, maxDir)
	}
	if i.format == formatLocal {
		return f.shortNames(i, put)
	}
	per := uint64(f.dirSize / f.BlockSize)
	count := (uint64(i.size) + uint64(f.dirSize) - 1) / uint64(f.dirSize)
	runs, err := f.runs(i, count*per) // the hash index is far beyond the size
	if err != nil {
		return err
	}
	b := make([]byte, f.dirSize)
	for at := uint64(0); at < count*per; at += per {
		first, found := uint64(0), uint64(0)
		for len(runs) > 0 && runs[0].logical < at+per {
			r := runs[0]
			skip := uint64(0)
			if r.logical < at {
				skip = at - r.logical
			}
			from, n := r.logical+skip-at, min(r.n-skip, per-(r.logical+skip-at))
			if err := f.read(b[from*uint64(f.BlockSize):(from+n)*uint64(f.BlockSize)],
				int64(r.physical+skip)*int64(f.BlockSize)); err != nil {
				return fmt.Errorf("read block %d: %w", r.physical+skip, err)
			}
			if found == 0 {
				first = r.physical + skip
			}
			found += n
			if r.logical+r.n > at+per {
				break
			}
			runs = runs[1:]
		}
		if found == 0 {
			continue // a block without names
		}
		if found != per {
			return fmt.Errorf("%w: a damaged folder, inode %d", ErrNot, i.number)
		}
		enough, err := f.blockNames(i, b, first, count == 1, put)
		if enough || err != nil {
			return err
		}
	}
	return nil
}

func (f *FS) shortNames(i *inode, put func(string, uint64) (bool, error)) error {
	damaged := fmt.Errorf("%w: a damaged folder, inode %d", ErrNot, i.number)
	if i.size < 6 || i.size > int64(len(i.fork)) {
		return damaged
	}
	b := i.fork[:i.size]
	count, wide, kind := int(b[0]), 4, 0
	if b[1] > 0 { // count of numbers that need eight bytes; then all have eight
		wide = 8
	}
	if f.ftype {
		kind = 1
	}
	for b = b[min(2+wide, len(b)):]; count > 0; count-- {
		if len(b) < 3 {
			return damaged
		}
		n := int(b[0])
		size := 3 + n + kind + wide
		if n == 0 || size > len(b) {
			return damaged
		}
		number := uint64(be.Uint32(b[size-4:]))
		if wide == 8 {
			number = be.Uint64(b[size-8:])
		}
		if enough, err := put(string(b[3:3+n]), number); enough || err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}

// blockNames yields the names in one block of a directory. The only block of a small directory has a list of hashes at
// its end.
func (f *FS) blockNames(i *inode, b []byte, block uint64, only bool,
	put func(string, uint64) (bool, error)) (bool, error) {
	damaged := fmt.Errorf("%w: a damaged folder, inode %d", ErrNot, i.number)
	small, large, head := "XD2B", "XD2D", 16
	if f.crc {
		small, large, head = "XDB3", "XDD3", 64
		if err := f.checked(b, 4, 24, 8, 40, block, i.number); err != nil {
			return false, err
		}
	}
	end, kind := len(b), 0
	switch string(b[:4]) {
	case small:
		n := int64(be.Uint32(b[len(b)-8:]))
		if !only || n > int64(len(b)-head-8)/8 {
			return false, damaged
		}
		end -= 8 + 8*int(n)
	case large:
	default:
		return false, damaged
	}
	if f.ftype {
		kind = 1
	}
	for b = b[head:end]; len(b) > 0; {
		if len(b) < 8 {
			return false, damaged
		}
		if be.Uint16(b) == 0xffff { // free
			n := int(be.Uint16(b[2:]))
			if n < 8 || n%8 != 0 || n > len(b) {
				return false, damaged
			}
			b = b[n:]
			continue
		}
		if len(b) < 16 {
			return false, damaged
		}
		n := int(b[8])
		size := (8 + 1 + n + kind + 2 + 7) / 8 * 8
		if n == 0 || size > len(b) {
			return false, damaged
		}
		if name := string(b[9 : 9+n]); name != "." && name != ".." {
			if enough, err := put(name, be.Uint64(b)); enough || err != nil {
				return enough, err
			}
		}
		b = b[size:]
	}
	return false, nil
}

// link returns a symbolic link's target.
func (f *FS) link(i *inode) (string, error) {
	damaged := fmt.Errorf("%w: a damaged symbolic link, inode %d", ErrNot, i.number)
	if i.size == 0 || i.size > maxLink {
		return "", damaged
	}
	if i.format == formatLocal {
		if i.size > int64(len(i.fork)) {
			return "", damaged
		}
		return string(i.fork[:i.size]), nil
	}
	// Each range begins with a header, which takes space: one more block may be needed.
	runs, err := f.runs(i, uint64(maxLink/f.BlockSize)+3)
	if err != nil {
		return "", err
	}
	var out []byte
	for _, r := range runs {
		b := make([]byte, r.n*uint64(f.BlockSize))
		if err := f.read(b, int64(r.physical)*int64(f.BlockSize)); err != nil {
			return "", fmt.Errorf("read block %d: %w", r.physical, err)
		}
		rest := int(i.size) - len(out)
		if !f.crc {
			out = append(out, b[:min(rest, len(b))]...)
			continue
		}
		if string(b[:4]) != "XSLM" {
			return "", damaged
		}
		if err := f.checked(b, 12, 16, 40, 32, r.physical, i.number); err != nil {
			return "", err
		}
		n := int(min(be.Uint32(b[8:]), maxLink))
		if uint64(be.Uint32(b[4:])) != uint64(len(out)) || n > len(b)-56 || n > rest {
			return "", damaged
		}
		out = append(out, b[56:56+n]...)
	}
	if int64(len(out)) != i.size {
		return "", damaged
	}
	return string(out), nil
}

// lookup resolves a path from the root. A symbolic link at its end is followed only if follow is set.
func (f *FS) lookup(name string, follow bool) (*inode, error) {
	root, err := f.inode(f.root)
	if err != nil {
		return nil, err
	}
	return openfs.Folders[*inode]{
		Child: func(dir *inode, part string) (*inode, error) {
			var number uint64
			found := false
			if err := f.names(dir, func(n string, i uint64) (bool, error) {
				if n == part {
					number, found = i, true
				}
				return found, nil
			}); err != nil {
				return nil, err
			}
			if !found {
				return nil, fmt.Errorf("%w: %s", ErrNone, name)
			}
			return f.inode(number)
		},
		IsLink: func(i *inode) bool { return i.mode&typeMask == typeSymlink }, Link: f.link, None: ErrNone,
	}.Walk(root, name, follow)
}
