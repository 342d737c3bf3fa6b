// Package fat reads and makes FAT file systems (EFI system partitions, config drives), and puts files into existing
// ones.
//
// Images are untrusted, so every length is checked and every chain bounded; nothing is mounted. New file systems are
// written once: FAT12 as small as its content, or FAT32 or FAT16 that fills a partition, with long names, for sectors
// of 512 to 4096 bytes. go-diskfs is not used: it is not made for hostile bytes, and makes file systems in files, while
// a disk needs only the nonzero pieces. It follows Microsoft's "FAT: General Overview of On-Disk Format" 1.03.
package fat

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

// FS is a FAT12, FAT16 or FAT32 file system, read only.
type FS struct {
	r           io.ReaderAt
	boot        bootSector32
	unclean     byte // of the boot sector
	bits        width
	size        int64
	sector      int
	cluster     int64
	clusters    uint32 // clusters are numbered 2 ... clusters+1
	table, data int64  // offsets of the first FAT and of cluster 2
	tableSize   int64
	root        uint32 // FAT32: first cluster of the root
	rootAt      int64  // else: its offset
	rootSize    int64
	label       string // of the boot sector
	serial      uint32
	budget      int64 // bytes that may still be read: stops loops of directories
}

// Entry is a file or directory.
type Entry struct {
	Name  string // the long name if present
	Dir   bool
	Size  uint32
	first uint32
}

// maxRead bounds the reads of one file system: several times the size of a config drive or a system's loaders.
const maxRead = 256 << 20

const maxDir = 1 << 20

const attrVolume, attrDir, attrLong = 0x08, 0x10, 0x0f

// ErrNot means that it is no FAT file system, or a damaged one.
var ErrNot = errors.New("not a FAT file system")

// bootSector is the common beginning of boot sectors of all kinds.
type bootSector struct {
	Jump                 [3]byte
	Maker                [8]byte
	Sector               uint16
	PerCluster           byte
	Reserved             uint16
	FATs                 byte
	RootEntries, Total16 uint16
	Media                byte
	FATSectors16         uint16
	PerTrack, Heads      uint16
	Hidden, Total32      uint32
}

// bootSector32 is the boot sector of a FAT32, bootSector16 that of the others. What Extended begins counts only when it
// has the right mark.
type (
	bootSector32 struct {
		bootSector
		FATSectors32   uint32
		Flags, Version uint16
		Root           uint32
		Info, Backup   uint16
		Unused         [12]byte
		Extended       extended
	}
	bootSector16 struct {
		bootSector
		Extended extended
	}
	extended struct {
		Drive, Unclean, Mark byte
		Serial               uint32
		Label                [11]byte
		Kind                 [8]byte
	}
)

const isExtended = 0x29

// Open reads the boot sector of the file system that fills r.
func Open(r io.ReaderAt, size int64) (*FS, error) {
	var raw [512]byte
	if _, err := r.ReadAt(raw[:], 0); err != nil {
		return nil, fmt.Errorf("read the FAT file system: %w", err)
	}
	var b bootSector32
	var b16 bootSector16
	openfs.Parse(binary.LittleEndian, raw[:], &b)
	openfs.Parse(binary.LittleEndian, raw[:], &b16)
	sector, perCluster, reserved := int64(b.Sector), int64(b.PerCluster), int64(b.Reserved)
	total := int64(cmp.Or(uint32(b.Total16), b.Total32))
	fatSectors := int64(cmp.Or(uint32(b.FATSectors16), b.FATSectors32))
	if raw[510] != 0x55 || raw[511] != 0xaa || sector < 512 || sector > 4096 || sector&(sector-1) != 0 ||
		perCluster == 0 || perCluster&(perCluster-1) != 0 || reserved == 0 || b.FATs == 0 || b.FATs > 4 ||
		fatSectors == 0 {
		return nil, ErrNot
	}
	rootSize, rootAt := int64(b.RootEntries)*32, reserved+int64(b.FATs)*fatSectors
	dataStart := rootAt + (rootSize+sector-1)/sector
	if dataStart >= total || total*sector > size {
		return nil, fmt.Errorf("%w: it claims %d bytes of a partition of %d", ErrNot, total*sector, size)
	}
	f := &FS{r: r, boot: b, cluster: perCluster * sector, clusters: uint32((total - dataStart) / perCluster),
		table: reserved * sector, tableSize: fatSectors * sector, data: dataStart * sector, size: total * sector,
		sector: int(sector), budget: maxRead, rootAt: rootAt * sector, rootSize: rootSize}
	ext := b16.Extended
	switch {
	case f.clusters < fat16From:
		f.bits = 12
	case f.clusters < fat32From:
		f.bits = 16
	default:
		f.bits, f.root, ext = 32, b.Root, b.Extended
	}
	f.unclean = ext.Unclean
	if ext.Mark == isExtended {
		f.label, f.serial = clean(string(ext.Label[:])), ext.Serial
	}
	if (f.bits == 32) != (rootSize == 0) {
		return nil, fmt.Errorf("%w: the root folder of a FAT%d is in the wrong place", ErrNot, f.bits)
	}
	return f, nil
}

// width is how many bits an entry of a FAT has.
type width int

// at is where the entry of a cluster is.
func (w width) at(c uint32) int { return int(c) * int(w) / 8 }

// get is the entry of cluster c; b begins with the bytes that it is in.
func (w width) get(c uint32, b []byte) uint32 {
	if w == 32 {
		return binary.LittleEndian.Uint32(b) & 0x0fffffff
	}
	v := uint32(binary.LittleEndian.Uint16(b))
	if w == 12 {
		return v >> (4 * (c & 1)) & 0xfff
	}
	return v
}

// put sets the entry of cluster c in a FAT.
func (w width) put(table []byte, c, v uint32) {
	b, le := table[w.at(c):], binary.LittleEndian
	switch w {
	case 12:
		shift := 4 * (c & 1)
		le.PutUint16(b, le.Uint16(b)&^(0xfff<<shift)|uint16(v&0xfff)<<shift)
	case 16:
		le.PutUint16(b, uint16(v))
	default:
		le.PutUint32(b, le.Uint32(b)&0xf0000000|v&0x0fffffff)
	}
}

func (f *FS) valid(c uint32) bool { return c >= 2 && c < f.clusters+2 }

// readData reads bytes of a cluster.
func (f *FS) readData(b []byte, c uint32, off int64) error {
	if f.budget -= int64(len(b)); f.budget < 0 {
		return fmt.Errorf("%w: too much was read of it", ErrNot)
	}
	if _, err := f.r.ReadAt(b, f.data+int64(c-2)*f.cluster+off); err != nil {
		return fmt.Errorf("read the FAT file system: %w", err)
	}
	return nil
}

// next returns the cluster after c; ok is false at the end of the chain.
func (f *FS) next(c uint32) (n uint32, ok bool, err error) {
	var b [4]byte
	off, need := int64(f.bits.at(c)), max(2, int(f.bits)/8)
	if off+int64(need) > f.tableSize {
		return 0, false, fmt.Errorf("read the FAT: cluster %d lies outside", c)
	}
	if _, err := f.r.ReadAt(b[:need], f.table+off); err != nil {
		return 0, false, fmt.Errorf("read the FAT: %w", err)
	}
	v := f.bits.get(c, b[:])
	return v, f.valid(v), nil
}

// chain reads a chain of clusters, at most limit bytes.
func (f *FS) chain(first uint32, limit int64) ([]byte, error) {
	var out []byte
	for c, n, ok := first, uint32(0), f.valid(first); ok; n++ {
		if n > f.clusters {
			return nil, errors.New("read the FAT: a chain of clusters runs in a circle")
		}
		b := make([]byte, f.cluster)
		if err := f.readData(b, c, 0); err != nil {
			return nil, err
		}
		if out = append(out, b...); int64(len(out)) >= limit {
			break
		}
		var err error
		if c, ok, err = f.next(c); err != nil {
			return nil, err
		}
	}
	return out[:min(int64(len(out)), limit)], nil
}

// List returns the entries of a directory; nil stands for the root.
func (f *FS) List(dir *Entry) ([]Entry, error) {
	raw, err := f.rawDir(dir)
	if err != nil {
		return nil, err
	}
	return parseDir(raw), nil
}

func (f *FS) rawDir(dir *Entry) ([]byte, error) {
	var raw []byte
	var err error
	switch {
	case dir != nil:
		raw, err = f.chain(dir.first, maxDir)
	case f.bits == 32:
		raw, err = f.chain(f.root, maxDir)
	default:
		raw = make([]byte, min(f.rootSize, maxDir))
		_, err = f.r.ReadAt(raw, f.rootAt)
	}
	return raw, err
}

// slot is an entry of a folder: bytes from, which is where its long name begins, to to.
type slot struct {
	from, to int
	name     string
	e        []byte // the entry proper
}

func (s slot) dir() bool    { return s.e[11]&attrDir != 0 }
func (s slot) volume() bool { return s.e[11]&attrVolume != 0 }

// slots reads folder entries, with long names where they are whole, and where their end is.
func slots(raw []byte) (all []slot, end int) {
	from := -1
	var name []uint16 // long name, collected back to front
	for at := 0; at+32 <= len(raw); at += 32 {
		e := raw[at : at+32]
		switch {
		case e[0] == 0:
			return all, at
		case e[0] == 0xe5:
			from, name = -1, nil
			continue
		case e[11]&0x3f == attrLong:
			if e[0]&0x40 != 0 || from < 0 {
				from, name = at, nil
			}
			var part []uint16
			for _, at := range nameParts {
				for i := at[0]; i < at[1]; i += 2 {
					part = append(part, binary.LittleEndian.Uint16(e[i:]))
				}
			}
			if name = append(part, name...); len(name) > 20*13 {
				name = nil
			}
			continue
		}
		s := slot{from: from, to: at + 32, e: e, name: nameOf(e)}
		if from < 0 {
			s.from = at
		}
		if name != nil {
			if i := slices.Index(name, 0); i >= 0 {
				name = name[:i]
			}
			s.name = string(utf16.Decode(name))
		}
		all = append(all, s)
		from, name = -1, nil
	}
	return all, len(raw)
}

// nameParts is where the thirteen units of a long name's entry are.
var nameParts = [][2]int{{1, 11}, {14, 26}, {28, 32}}

// parseDir gives the files and folders in a folder.
func parseDir(raw []byte) []Entry {
	var out []Entry
	all, _ := slots(raw)
	for _, s := range all {
		if s.volume() || s.name == "." || s.name == ".." {
			continue
		}
		le := binary.LittleEndian
		out = append(out, Entry{Name: s.name, Dir: s.dir(), Size: le.Uint32(s.e[28:]),
			first: uint32(le.Uint16(s.e[20:]))<<16 | uint32(le.Uint16(s.e[26:]))})
	}
	return out
}

func nameOf(e []byte) string {
	base, ext := strings.TrimRight(string(e[:8]), " "), strings.TrimRight(string(e[8:11]), " ")
	// Windows NT's flags for a lower-case short name without a long one.
	const lowerBase, lowerExt = 0x08, 0x10
	if e[12]&lowerBase != 0 {
		base = strings.ToLower(base)
	}
	if e[12]&lowerExt != 0 {
		ext = strings.ToLower(ext)
	}
	if ext == "" {
		return base
	}
	return base + "." + ext
}

// Find walks a path of names without regard to case; nil when it is not there, or leads through a file.
func (f *FS) Find(names ...string) (*Entry, error) {
	var e *Entry
	for i, n := range names {
		list, err := f.List(e)
		if err != nil {
			return nil, err
		}
		k := slices.IndexFunc(list, func(x Entry) bool { return strings.EqualFold(x.Name, n) })
		if k < 0 || i < len(names)-1 && !list[k].Dir {
			return nil, nil
		}
		e = &list[k]
	}
	return e, nil
}

// Read returns a file's content, at most most bytes.
func (f *FS) Read(e *Entry, most int64) ([]byte, error) {
	if e.Dir || int64(e.Size) > most {
		return nil, fmt.Errorf("read %s: a folder, or larger than %d bytes", e.Name, most)
	}
	if e.Size == 0 {
		return nil, nil
	}
	b, err := f.chain(e.first, int64(e.Size))
	if err == nil && len(b) < int(e.Size) {
		err = fmt.Errorf("%w: %s has %d bytes, but clusters for %d", ErrNot, e.Name, e.Size, len(b))
	}
	return b, err
}

// Size returns the size of the file system.
func (f *FS) Size() int64 { return f.size }

// Sector returns its sector size: it can be mounted from disks with sectors of this size or smaller.
func (f *FS) Sector() int { return f.sector }

// Bits returns the kind: 12, 16 or 32.
func (f *FS) Bits() int { return int(f.bits) }

// Label returns the file system's name: from the root directory, which takes precedence, else from the boot sector.
func (f *FS) Label() (string, error) {
	raw, err := f.rawDir(nil)
	if err != nil {
		return "", err
	}
	all, _ := slots(raw)
	if k := slices.IndexFunc(all, slot.volume); k >= 0 {
		return clean(string(all[k].e[:11])), nil
	}
	if f.label == "NO NAME" {
		return "", nil
	}
	return f.label, nil
}

func clean(s string) string {
	return strings.TrimRight(strings.ToValidUTF8(s, "?"), " \x00")
}
