// Package fat reads and makes FAT file systems (EFI system partitions, config drives), and puts files into those that
// others made.
//
// What is read comes from images that somebody else made, so every length is checked and every chain bounded; nothing
// is mounted. What is made is written once: FAT12 as small as its content, or FAT32 or FAT16 that fills a partition,
// with long names, for sectors of 512 to 4096 bytes. go-diskfs is not used: it is not made for hostile bytes, and makes
// file systems in files, where a disk wants the pieces that are not zero. Microsoft's "FAT: General Overview of On-Disk
// Format" 1.03 was followed.
package fat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf16"
)

// FS is a FAT12, FAT16 or FAT32 file system, read only.
type FS struct {
	r           io.ReaderAt
	bits        int // 12, 16 or 32
	size        int64
	sector      int
	cluster     int64
	clusters    uint32 // clusters are numbered 2 ... clusters+1
	table, data int64  // offsets of the first FAT and of cluster 2
	tableSize   int64
	root        uint32 // FAT32: first cluster of the root
	rootAt      int64  // else: its place
	rootSize    int64
	label       string // of the boot sector
	serial      uint32
	budget      int64 // bytes that may still be read: folders that hold each other a thousand times end here
}

// Entry is a file or folder.
type Entry struct {
	Name  string // the long name when there is one
	Dir   bool
	Size  uint32
	first uint32
}

// maxRead bounds what is read of one file system: several times what a config drive or the loaders of a system can be.
const maxRead = 256 << 20

const maxDir = 1 << 20

const attrVolume, attrDir, attrLong = 0x08, 0x10, 0x0f

// ErrNot is for what is no FAT file system, or a damaged one.
var ErrNot = errors.New("not a FAT file system")

// Open reads the boot sector of the file system that fills r.
func Open(r io.ReaderAt, size int64) (*FS, error) {
	var b [512]byte
	if _, err := r.ReadAt(b[:], 0); err != nil {
		return nil, fmt.Errorf("read the FAT file system: %w", err)
	}
	le := binary.LittleEndian
	sector := int64(le.Uint16(b[11:]))
	perCluster, reserved, fats := int64(b[13]), int64(le.Uint16(b[14:])), int64(b[16])
	rootEntries, total, fatSectors := int64(le.Uint16(b[17:])), int64(le.Uint16(b[19:])), int64(le.Uint16(b[22:]))
	if total == 0 {
		total = int64(le.Uint32(b[32:]))
	}
	if fatSectors == 0 {
		fatSectors = int64(le.Uint32(b[36:]))
	}
	if b[510] != 0x55 || b[511] != 0xaa || sector < 512 || sector > 4096 || sector&(sector-1) != 0 || perCluster == 0 ||
		perCluster&(perCluster-1) != 0 || reserved == 0 || fats == 0 || fats > 4 || fatSectors == 0 {
		return nil, ErrNot
	}
	rootSectors := (rootEntries*32 + sector - 1) / sector
	dataStart := reserved + fats*fatSectors + rootSectors
	if dataStart >= total || total*sector > size {
		return nil, fmt.Errorf("%w: it claims %d bytes of a partition of %d", ErrNot, total*sector, size)
	}
	f := &FS{r: r, cluster: perCluster * sector, clusters: uint32((total - dataStart) / perCluster),
		table: reserved * sector, tableSize: fatSectors * sector, data: dataStart * sector, size: total * sector,
		sector: int(sector), budget: maxRead, rootAt: (reserved + fats*fatSectors) * sector, rootSize: rootEntries * 32}
	switch {
	case f.clusters < 4085:
		f.bits = 12
	case f.clusters < 65525:
		f.bits = 16
	default:
		f.bits, f.root = 32, le.Uint32(b[44:])
	}
	const extended = 0x29
	if at := map[bool]int{false: 38, true: 66}[f.bits == 32]; b[at] == extended {
		f.label = clean(string(b[at+5 : at+16]))
		f.serial = le.Uint32(b[at+1:])
	}
	if f.bits == 32 && rootEntries != 0 || f.bits != 32 && rootEntries == 0 {
		return nil, fmt.Errorf("%w: the root folder of a FAT%d is in the wrong place", ErrNot, f.bits)
	}
	return f, nil
}

// next gives the cluster behind c; ok is false at the end of the chain.
func (f *FS) next(c uint32) (n uint32, ok bool, err error) {
	off := int64(c) * int64(f.bits) / 8
	width := int64(4)
	if f.bits != 32 {
		width = 2
	}
	if off+width > f.tableSize {
		return 0, false, fmt.Errorf("read the FAT: cluster %d lies outside", c)
	}
	var b [4]byte
	if _, err := f.r.ReadAt(b[:width], f.table+off); err != nil {
		return 0, false, fmt.Errorf("read the FAT: %w", err)
	}
	v := binary.LittleEndian.Uint32(b[:])
	switch f.bits {
	case 12:
		if c&1 != 0 {
			v >>= 4
		}
		v &= 0xfff
	case 32:
		v &= 0x0fffffff
	}
	return v, v >= 2 && v < f.clusters+2, nil
}

// chain reads a chain of clusters, at most limit bytes.
func (f *FS) chain(first uint32, limit int64) ([]byte, error) {
	var out []byte
	for c, n := first, uint32(0); c >= 2 && c < f.clusters+2; n++ {
		if n > f.clusters {
			return nil, errors.New("read the FAT: a chain of clusters runs in a circle")
		}
		if f.budget -= f.cluster; f.budget < 0 {
			return nil, fmt.Errorf("%w: too much was read of it", ErrNot)
		}
		b := make([]byte, f.cluster)
		if _, err := f.r.ReadAt(b, f.data+int64(c-2)*f.cluster); err != nil {
			return nil, fmt.Errorf("read the FAT file system: %w", err)
		}
		out = append(out, b...)
		if int64(len(out)) >= limit {
			break
		}
		var ok bool
		var err error
		if c, ok, err = f.next(c); err != nil {
			return nil, err
		} else if !ok {
			break
		}
	}
	return out[:min(int64(len(out)), limit)], nil
}

// List gives what is in a folder; nil stands for the root.
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

// parseDir reads folder entries, with long names where they are whole.
func parseDir(raw []byte) []Entry {
	var out []Entry
	var name []uint16 // long name, collected back to front
	for ; len(raw) >= 32; raw = raw[32:] {
		e := raw[:32]
		switch {
		case e[0] == 0:
			return out
		case e[0] == 0xe5:
			name = nil
			continue
		case e[11]&0x3f == attrLong:
			if e[0]&0x40 != 0 {
				name = nil
			}
			var part []uint16
			for _, at := range [][2]int{{1, 11}, {14, 26}, {28, 32}} {
				for i := at[0]; i < at[1]; i += 2 {
					part = append(part, binary.LittleEndian.Uint16(e[i:]))
				}
			}
			if name = append(part, name...); len(name) > 20*13 {
				name = nil
			}
			continue
		case e[11]&attrVolume != 0:
			name = nil
			continue
		}
		n := nameOf(e)
		if name != nil {
			for i, u := range name {
				if u == 0 {
					name = name[:i]
					break
				}
			}
			n = string(utf16.Decode(name))
		}
		name = nil
		if n == "." || n == ".." {
			continue
		}
		first := uint32(binary.LittleEndian.Uint16(e[20:]))<<16 | uint32(binary.LittleEndian.Uint16(e[26:]))
		out = append(out,
			Entry{Name: n, Dir: e[11]&attrDir != 0, first: first, Size: binary.LittleEndian.Uint32(e[28:])})
	}
	return out
}

func nameOf(e []byte) string {
	base, ext := strings.TrimRight(string(e[:8]), " "), strings.TrimRight(string(e[8:11]), " ")
	// Windows NT's way to keep a short name in lower case without a long one beside it.
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

// Find walks a path of names without regard to case; nil when it is not there.
func (f *FS) Find(names ...string) (*Entry, error) {
	var at *Entry
	for _, n := range names {
		list, err := f.List(at)
		if err != nil {
			return nil, err
		}
		at = nil
		for i := range list {
			if strings.EqualFold(list[i].Name, n) {
				at = &list[i]
			}
		}
		if at == nil {
			return nil, nil
		}
	}
	return at, nil
}

// Read gives a file's content, which must not be longer than most.
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

// Size is how large the file system is.
func (f *FS) Size() int64 { return f.size }

// Sector is the size of its sectors: the file system can be mounted from disks with this one alone, or a smaller one.
func (f *FS) Sector() int { return f.sector }

// Bits tells the kind: 12, 16 or 32.
func (f *FS) Bits() int { return f.bits }

// Label is the file system's name: that of the root folder, which is the one that counts, else the boot sector's.
func (f *FS) Label() (string, error) {
	raw, err := f.rawDir(nil)
	if err != nil {
		return "", err
	}
	for ; len(raw) >= 32 && raw[0] != 0; raw = raw[32:] {
		if raw[0] != 0xe5 && raw[11]&0x3f != attrLong && raw[11]&attrVolume != 0 {
			return clean(string(raw[:11])), nil
		}
	}
	if f.label == "NO NAME" {
		return "", nil
	}
	return f.label, nil
}

func clean(s string) string {
	return strings.TrimRight(strings.ToValidUTF8(s, "?"), " \x00")
}
