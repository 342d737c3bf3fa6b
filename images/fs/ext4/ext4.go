// Package ext4 reads ext2, ext3 and ext4 file systems, makes empty ones, and puts files into existing ones.
//
// It reads a boot loader's files from an untrusted image, without mounting or running anything of it: every number is
// checked against the file system's size, every walk is bounded, and unknown features are refused. It follows only the
// kernel's documentation of the format (Documentation/filesystems/ext4). go-diskfs' package is not used: it trusts its
// input.
package ext4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"path"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

// ErrNot means that the file system is of another kind, or unreadable; ErrNone that a file does not exist.
var (
	ErrNot  = errors.New("not an ext2, ext3 or ext4 file system")
	ErrNone = errors.New("no such file")
)

// Info holds the superblock's data.
type Info struct {
	BlockSize int
	Size      int64 // bytes
	UUID      string
	Label     string
}

// maxRead bounds the reads of one file system: several times the size of a boot loader.
const maxRead = 512 << 20

const (
	superAt   = 1024
	superSize = 1024
	rootInode = 2

	superMagic   = 0xef53
	extentMagic  = 0xf30a
	journalMagic = 0xc03b3998

	incompatFiletype = 0x2
	incompatRecover  = 0x4
	incompatExtents  = 0x40
	incompat64       = 0x80
	// Features without effect on reading files, or supported: filetype, recover (checked), extents, 64bit, mmp,
	// flex_bg, ea_inode, csum_seed, largedir, inline_data (checked per inode), encrypt (likewise), casefold. meta_bg is
	// not.
	incompatKnown = incompatFiletype | incompatRecover | incompatExtents | incompat64 | 0x100 | 0x200 | 0x400 | 0x2000 |
		0x4000 | 0x8000 | 0x10000 | 0x20000
)

// super is a checked superblock.
type super struct {
	Info
	incompat       uint32
	inodes         uint32
	perGroup       uint32 // blocks
	inodesPerGroup uint32
	inodeSize      int64
	descSize       int64
	blocks         uint64
	first          uint64 // block of the superblock
}

// Inspect parses the superblock in the beginning of an image; 2 KiB are enough.
func Inspect(start []byte) (Info, error) {
	if len(start) < superAt+superSize {
		return Info{}, fmt.Errorf("%w: only %d bytes", ErrNot, len(start))
	}
	s, err := parseSuper(start[superAt : superAt+superSize])
	if err != nil {
		return Info{}, err
	}
	return s.Info, nil
}

func parseSuper(b []byte) (*super, error) {
	le := binary.LittleEndian
	if le.Uint16(b[0x38:]) != superMagic {
		return nil, ErrNot
	}
	s := &super{inodes: le.Uint32(b), first: uint64(le.Uint32(b[0x14:])), perGroup: le.Uint32(b[0x20:]),
		inodesPerGroup: le.Uint32(b[0x28:]), incompat: le.Uint32(b[0x60:]), inodeSize: 128, descSize: 32,
		blocks: uint64(le.Uint32(b[4:]))}
	if le.Uint32(b[0x4c:]) > 0 { // revision 1
		s.inodeSize = int64(le.Uint16(b[0x58:]))
	} else {
		s.incompat = 0
	}
	if bad := s.incompat &^ incompatKnown; bad != 0 {
		return nil, fmt.Errorf("%w that is known here: features %#x", ErrNot, bad)
	}
	if s.incompat&incompatRecover != 0 {
		return nil, fmt.Errorf("%w that is whole: its journal has not been replayed (%w); run e2fsck on it", ErrNot,
			ErrUnclean)
	}
	if s.incompat&incompat64 != 0 {
		s.descSize = int64(le.Uint16(b[0xfe:]))
		s.blocks |= uint64(le.Uint32(b[0x150:])) << 32
	}
	log := le.Uint32(b[0x18:])
	if log > 6 {
		return nil, fmt.Errorf("%w: impossible block size", ErrNot)
	}
	s.BlockSize = 1024 << log
	bits := uint32(8 * s.BlockSize)
	switch {
	case s.blocks == 0, s.blocks > 1<<44, s.first >= s.blocks, s.perGroup == 0, s.inodesPerGroup == 0,
		s.inodesPerGroup > bits, s.inodeSize < 128, s.inodeSize > int64(s.BlockSize), s.inodeSize&(s.inodeSize-1) != 0,
		s.descSize < 32, s.descSize > 1024, s.descSize&(s.descSize-1) != 0:
		return nil, fmt.Errorf("%w: its superblock is damaged", ErrNot)
	}
	s.Size = int64(s.blocks) * int64(s.BlockSize)
	u := b[0x68:0x78]
	s.UUID = fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	s.Label, _, _ = strings.Cut(string(b[0x78:0x88]), "\x00")
	return s, nil
}

// FS is a file system open for reading.
type FS struct {
	super
	openfs.Tree[*inode]
	r io.ReaderAt
	// budget is how many bytes may still be read: it stops endless walks of hostile structures.
	budget int64
	// over returns blocks changed by a Writer, read-only; nil for others.
	over func(n uint64) []byte
}

// Open reads the superblock of the file system at the beginning of r, which has size bytes.
func Open(r io.ReaderAt, size int64) (*FS, error) {
	var b [superSize]byte
	if _, err := r.ReadAt(b[:], superAt); err != nil {
		return nil, fmt.Errorf("read the superblock: %w", err)
	}
	s, err := parseSuper(b[:])
	if err != nil {
		return nil, err
	}
	if s.Size > size {
		return nil, fmt.Errorf("%w: it claims %d bytes of %d", ErrNot, s.Size, size)
	}
	f := &FS{super: *s, r: r, budget: maxRead}
	f.Tree = f.tree()
	return f, nil
}

// Info returns the superblock's data.
func (f *FS) Info() Info { return f.super.Info }

func (f *FS) block(n uint64) ([]byte, error) {
	if n == 0 || n >= f.blocks {
		return nil, fmt.Errorf("%w: block %d lies outside", ErrNot, n)
	}
	if f.over != nil {
		if b := f.over(n); b != nil {
			return b, nil
		}
	}
	if f.budget -= int64(f.BlockSize); f.budget < 0 {
		return nil, fmt.Errorf("%w: too much was read of it", ErrNot)
	}
	b := make([]byte, f.BlockSize)
	if _, err := f.r.ReadAt(b, int64(n)*int64(f.BlockSize)); err != nil {
		return nil, fmt.Errorf("read block %d: %w", n, err)
	}
	return b, nil
}

const (
	typeMask    = 0xf000
	typeDir     = 0x4000
	typeFile    = 0x8000
	typeSymlink = 0xa000

	flagEncrypted = 0x800
	flagExtents   = 0x80000
	flagInline    = 0x10000000
)

type inode struct {
	number uint32
	mode   uint16
	flags  uint32
	size   int64
	body   [60]byte // the block map
	inline []byte   // inline content
}

func (f *FS) inode(n uint32) (*inode, error) {
	if n == 0 || n > f.inodes {
		return nil, fmt.Errorf("%w: inode %d does not exist", ErrNot, n)
	}
	group, index := int64((n-1)/f.inodesPerGroup), int64((n-1)%f.inodesPerGroup)
	at := group * f.descSize
	desc, err := f.block(f.first + 1 + uint64(at/int64(f.BlockSize)))
	if err != nil {
		return nil, err
	}
	d := desc[at%int64(f.BlockSize):]
	le := binary.LittleEndian
	table := uint64(le.Uint32(d[8:]))
	if f.descSize >= 64 {
		table |= uint64(le.Uint32(d[0x28:])) << 32
	}
	off := index * f.inodeSize
	b, err := f.block(table + uint64(off/int64(f.BlockSize)))
	if err != nil {
		return nil, err
	}
	b = b[off%int64(f.BlockSize):]
	i := &inode{number: n, mode: le.Uint16(b), flags: le.Uint32(b[0x20:]), size: int64(le.Uint32(b[4:]))}
	if i.mode&typeMask != typeDir {
		i.size |= int64(le.Uint32(b[0x6c:])) << 32
	}
	copy(i.body[:], b[0x28:0x64])
	if i.flags&flagEncrypted != 0 {
		return nil, fmt.Errorf("%w that can be read: inode %d is encrypted", ErrNot, n)
	}
	if i.size < 0 {
		return nil, fmt.Errorf("%w: inode %d has an impossible size", ErrNot, n)
	}
	if i.flags&flagInline != 0 {
		i.inline = append(i.body[:], inlineRest(b[:f.inodeSize])...)
	}
	return i, nil
}

// inlineRest returns the part of inline data beyond the block map: the value of the attribute "system.data", which must
// be inside the inode.
func inlineRest(b []byte) []byte {
	const magic, system, name = 0xea020000, 7, "data"
	le := binary.LittleEndian
	if len(b) < 128+4 {
		return nil
	}
	at := 128 + int(le.Uint16(b[0x80:]))
	if at < 128 || at+4 > len(b) || le.Uint32(b[at:]) != magic {
		return nil
	}
	values := b[at+4:]
	for e := values; len(e) >= 16 && le.Uint32(e) != 0; {
		n, off, size := int(e[0]), int(le.Uint16(e[2:])), int64(le.Uint32(e[8:]))
		if 16+n > len(e) {
			return nil
		}
		if e[1] == system && string(e[16:16+n]) == name && le.Uint32(e[4:]) == 0 {
			if int64(off)+size > int64(len(values)) {
				return nil
			}
			return values[off : int64(off)+size]
		}
		e = e[min(len(e), (16+n+3)/4*4):]
	}
	return nil
}

// content reads the whole content of an inode, at most most bytes.
func (f *FS) content(i *inode, most int64) ([]byte, error) {
	if i.size > most {
		return nil, fmt.Errorf("%d bytes are more than the %d that are allowed", i.size, most)
	}
	if i.flags&flagInline != 0 {
		if i.size > int64(len(i.inline)) {
			return nil, fmt.Errorf("%w: inode %d claims more than it holds", ErrNot, i.number)
		}
		return i.inline[:i.size], nil
	}
	runs, err := f.runs(i)
	if err != nil {
		return nil, err
	}
	out := make([]byte, i.size)
	for _, r := range runs {
		for j := range r.n {
			b, err := f.block(r.start + j)
			if err != nil {
				return nil, err
			}
			copy(out[(r.logical+j)*uint64(f.BlockSize):], b)
		}
	}
	return out, nil
}

// layout is where an inode's content is, and the blocks that say so. It is walked up to the logical block end, by
// either kind of map.
type layout struct {
	fs        *FS
	end       uint64
	unwritten bool  // whether blocks count that are allocated and were never written, which read as zeros
	most      int   // pieces
	tooMany   error // the error of more

	pieces []extent
	tree   []uint64
	next   uint64 // logical block, of the older map
}

func (l *layout) walk(i *inode) error {
	if i.flags&flagExtents != 0 {
		return l.extents(i.body[:], 6)
	}
	for k := range 15 {
		if err := l.mapped(uint64(binary.LittleEndian.Uint32(i.body[4*k:])), max(0, k-11)); err != nil {
			return err
		}
	}
	return nil
}

func (l *layout) put(logical, start, n uint64) error {
	if start == 0 || start >= l.fs.blocks || n > l.fs.blocks-start {
		return fmt.Errorf("%w: block %d lies outside", ErrNot, start)
	}
	if l.pieces = add(l.pieces, logical, start, n); len(l.pieces) > l.most {
		return l.tooMany
	}
	return nil
}

// extents walks a node of an extent tree, whose depth must be less than most. Each level must be one less than the one
// above.
func (l *layout) extents(node []byte, most int) error {
	le := binary.LittleEndian
	if le.Uint16(node) != extentMagic {
		return fmt.Errorf("%w: a damaged extent tree", ErrNot)
	}
	count, depth := int(le.Uint16(node[2:])), int(le.Uint16(node[6:]))
	if depth >= most || 12+12*count > len(node) {
		return fmt.Errorf("%w: an impossible extent tree", ErrNot)
	}
	for k := range count {
		e := node[12+12*k:]
		if depth > 0 {
			child := uint64(le.Uint32(e[4:])) | uint64(le.Uint16(e[8:]))<<32
			b, err := l.fs.block(child)
			if err != nil {
				return err
			}
			if int(le.Uint16(b[6:])) != depth-1 {
				return fmt.Errorf("%w: an extent tree that does not end", ErrNot)
			}
			l.tree = append(l.tree, child)
			if err := l.extents(b, depth); err != nil {
				return err
			}
			continue
		}
		const longest = 32768 // larger values mean unwritten
		logical, n := uint64(le.Uint32(e)), uint64(le.Uint16(e[4:]))
		if n > longest && !l.unwritten || logical >= l.end { // blocks may be preallocated after the file's end
			continue
		}
		if n > longest {
			n -= longest
		}
		start := uint64(le.Uint32(e[8:])) | uint64(le.Uint16(e[6:]))<<32
		if err := l.put(logical, start, min(n, l.end-logical)); err != nil {
			return err
		}
	}
	return nil
}

// mapped walks the older map: a block, or a block of numbers of blocks, to a depth of three. Zero is a hole.
func (l *layout) mapped(p uint64, depth int) error {
	per := uint64(l.fs.BlockSize / 4)
	span := uint64(1)
	for range depth {
		span *= per
	}
	switch {
	case l.next >= l.end:
		return nil
	case p == 0:
		l.next += span
		return nil
	case depth == 0:
		l.next++
		return l.put(l.next-1, p, 1)
	}
	b, err := l.fs.block(p)
	if err != nil {
		return err
	}
	l.tree = append(l.tree, p)
	for k := range per {
		if err := l.mapped(uint64(binary.LittleEndian.Uint32(b[4*k:])), depth-1); err != nil {
			return err
		}
	}
	return nil
}

// Entry is an entry of a directory.
type Entry struct {
	Name string
	Dir  bool // not for symbolic links
	Size int64
}

const (
	maxDir = 4 << 20

	maxPath = 4096
)

// listing returns a directory's raw list of entries.
func (f *FS) listing(i *inode) ([]byte, error) {
	if i.mode&typeMask != typeDir {
		return nil, fmt.Errorf("%w: not a folder", ErrNone)
	}
	raw, err := f.content(i, maxDir)
	if err != nil || i.inline == nil {
		return raw, err
	}
	// The parent's number, entries, and more of them in the rest, which is a separate list.
	if len(raw) < len(i.body) {
		return nil, fmt.Errorf("%w: a damaged folder", ErrNot)
	}
	return slices.Concat(raw[4:len(i.body)], raw[len(i.body):]), nil
}

// dirEntry is an entry of a folder: where it is, its length, and what it says. Without an inode it is a gap.
type dirEntry struct {
	at, length int
	inode      uint32
	name       []byte
}

// dirEntries are the entries in b. The last has an error if they don't end where b does. An entry never crosses a
// block, and hash trees hide themselves in what looks like a gap.
func dirEntries(b []byte) iter.Seq2[dirEntry, error] {
	return func(yield func(dirEntry, error) bool) {
		for at, le := 0, binary.LittleEndian; at < len(b); {
			e := dirEntry{at: at}
			if at+8 <= len(b) {
				e.length, e.inode = int(le.Uint16(b[at+4:])), le.Uint32(b[at:])
			}
			if e.length < 8 || e.length%4 != 0 || at+e.length > len(b) || 8+int(b[at+6]) > e.length {
				yield(e, fmt.Errorf("%w: a damaged folder", ErrNot))
				return
			}
			e.name = b[at+8:][:b[at+6]]
			if !yield(e, nil) {
				return
			}
			at += e.length
		}
	}
}

func (f *FS) dir(i *inode) (map[string]uint32, []string, error) {
	raw, err := f.listing(i)
	if err != nil {
		return nil, nil, err
	}
	names := map[string]uint32{}
	var order []string
	for e, err := range dirEntries(raw) {
		if err != nil {
			return nil, nil, err
		}
		if e.inode == 0 || len(e.name) == 0 {
			continue
		}
		name := string(e.name)
		if _, twice := names[name]; !twice {
			order = append(order, name)
		}
		names[name] = e.inode
	}
	return names, order, nil
}

// find looks up one name in a directory.
func (f *FS) find(i *inode, name string) (uint32, bool, error) {
	raw, err := f.listing(i)
	if err != nil {
		return 0, false, err
	}
	for e, err := range dirEntries(raw) {
		if err != nil {
			return 0, false, err
		}
		if e.inode != 0 && string(e.name) == name {
			return e.inode, true, nil
		}
	}
	return 0, false, nil
}

// lookup resolves a path from the root. A symbolic link at its end is followed only if follow is set.
func (f *FS) lookup(name string, follow bool) (*inode, error) {
	root, err := f.inode(rootInode)
	if err != nil {
		return nil, err
	}
	return openfs.Folders[*inode]{
		Child: func(dir *inode, part string) (*inode, error) {
			n, ok, err := f.find(dir, part)
			if err != nil {
				return nil, err
			}
			if !ok {
				return nil, fmt.Errorf("%w: %s", ErrNone, name)
			}
			return f.inode(n)
		},
		IsLink: func(i *inode) bool { return i.mode&typeMask == typeSymlink }, Link: f.link, None: ErrNone,
	}.Walk(root, name, follow)
}

func (f *FS) link(i *inode) (string, error) {
	if i.size < 60 && i.flags&flagExtents == 0 {
		return string(i.body[:i.size]), nil
	}
	b, err := f.content(i, maxPath)
	return string(b), err
}

// Read returns a file's content, at most most bytes. ErrNone means that it does not exist.
func (f *FS) Read(name string, most int64) ([]byte, error) {
	i, err := f.lookup(name, true)
	if err != nil {
		return nil, err
	}
	if i.mode&typeMask != typeFile {
		return nil, fmt.Errorf("%w: %s is not a file", ErrNone, name)
	}
	b, err := f.content(i, most)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return b, nil
}

// Has reports whether a file of that name exists.
func (f *FS) Has(name string) (bool, error) {
	i, err := f.lookup(name, true)
	if errors.Is(err, ErrNone) {
		return false, nil
	}
	return err == nil && i.mode&typeMask == typeFile, err
}

// List returns the files and directories in a directory, without other types and symbolic links.
func (f *FS) List(name string) ([]Entry, error) {
	i, err := f.lookup(name, true)
	if err != nil {
		return nil, err
	}
	names, order, err := f.dir(i)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", name, err)
	}
	var out []Entry
	for _, n := range order {
		if n == "." || n == ".." || path.Base(n) != n {
			continue
		}
		c, err := f.inode(names[n])
		if err != nil {
			return nil, err
		}
		if t := c.mode & typeMask; t == typeDir || t == typeFile {
			out = append(out, Entry{Name: n, Dir: t == typeDir, Size: c.size})
		}
	}
	return out, nil
}
