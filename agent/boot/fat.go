package boot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf16"
)

// fat is a FAT12, FAT16 or FAT32 file system, read only. What it reads comes from an image that somebody else made, so every length is
// checked and every chain bounded. Microsoft's "FAT: General Overview of On-Disk Format" 1.03.
type fat struct {
	r           io.ReaderAt
	bits        int // 12, 16 or 32
	cluster     int64
	clusters    uint32 // clusters are numbered 2 ... clusters+1
	table, data int64  // offsets of the first FAT and of cluster 2
	tableSize   int64
	root        uint32 // FAT32: first cluster of the root
	rootAt      int64  // else: its place
	rootSize    int64
}

// fatEntry is a file or folder.
type fatEntry struct {
	name  string // the long name when there is one
	dir   bool
	first uint32
	size  uint32
}

const (
	maxFATDir  = 1 << 20
	maxFATFile = 1 << 20 // only small text files are read
)

var errFAT = errors.New("not a FAT file system")

// openFAT reads the boot sector of the file system that fills r.
func openFAT(r io.ReaderAt, size int64) (*fat, error) {
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
		return nil, errFAT
	}
	rootSectors := (rootEntries*32 + sector - 1) / sector
	dataStart := reserved + fats*fatSectors + rootSectors
	if dataStart >= total || total*sector > size {
		return nil, fmt.Errorf("%w: it claims %d bytes of a partition of %d", errFAT, total*sector, size)
	}
	f := &fat{r: r, cluster: perCluster * sector, clusters: uint32((total - dataStart) / perCluster), table: reserved * sector,
		tableSize: fatSectors * sector, data: dataStart * sector, rootAt: (reserved + fats*fatSectors) * sector, rootSize: rootEntries * 32}
	switch {
	case f.clusters < 4085:
		f.bits = 12
	case f.clusters < 65525:
		f.bits = 16
	default:
		f.bits, f.root = 32, le.Uint32(b[44:])
	}
	if f.bits == 32 && rootEntries != 0 || f.bits != 32 && rootEntries == 0 {
		return nil, fmt.Errorf("%w: the root folder of a FAT%d is in the wrong place", errFAT, f.bits)
	}
	return f, nil
}

// next gives the cluster behind c; ok is false at the end of the chain.
func (f *fat) next(c uint32) (n uint32, ok bool, err error) {
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
func (f *fat) chain(first uint32, limit int64) ([]byte, error) {
	var out []byte
	for c, n := first, uint32(0); c >= 2 && c < f.clusters+2; n++ {
		if n > f.clusters {
			return nil, errors.New("read the FAT: a chain of clusters runs in a circle")
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

// list gives what is in a folder; nil stands for the root.
func (f *fat) list(dir *fatEntry) ([]fatEntry, error) {
	var raw []byte
	var err error
	switch {
	case dir != nil:
		raw, err = f.chain(dir.first, maxFATDir)
	case f.bits == 32:
		raw, err = f.chain(f.root, maxFATDir)
	default:
		raw = make([]byte, min(f.rootSize, maxFATDir))
		_, err = f.r.ReadAt(raw, f.rootAt)
	}
	if err != nil {
		return nil, err
	}
	return parseDir(raw), nil
}

// parseDir reads folder entries, with long names where they are whole.
func parseDir(raw []byte) []fatEntry {
	const volume, folder, long = 0x08, 0x10, 0x0f
	var out []fatEntry
	var name []uint16 // long name, collected back to front
	for ; len(raw) >= 32; raw = raw[32:] {
		e := raw[:32]
		switch {
		case e[0] == 0:
			return out
		case e[0] == 0xe5:
			name = nil
			continue
		case e[11]&0x3f == long:
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
		case e[11]&volume != 0:
			name = nil
			continue
		}
		n := shortName(e)
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
		out = append(out, fatEntry{name: n, dir: e[11]&folder != 0, first: first, size: binary.LittleEndian.Uint32(e[28:])})
	}
	return out
}

func shortName(e []byte) string {
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

// find walks a path of names without regard to case; nil when it is not there.
func (f *fat) find(names ...string) (*fatEntry, error) {
	var at *fatEntry
	for _, n := range names {
		list, err := f.list(at)
		if err != nil {
			return nil, err
		}
		at = nil
		for i := range list {
			if strings.EqualFold(list[i].name, n) {
				at = &list[i]
			}
		}
		if at == nil {
			return nil, nil
		}
	}
	return at, nil
}

// read gives a small file's content.
func (f *fat) read(e *fatEntry) ([]byte, error) {
	if e.dir || e.size > maxFATFile {
		return nil, fmt.Errorf("read %s: a folder, or too large", e.name)
	}
	if e.size == 0 {
		return nil, nil
	}
	return f.chain(e.first, int64(e.size))
}

// part is a piece of a device that takes reads of whole sectors only; reads of part may begin and end anywhere.
type part struct {
	r      io.ReaderAt
	start  int64
	size   int64
	sector int64
}

func (p *part) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(b)) > p.size {
		return 0, io.ErrUnexpectedEOF
	}
	from := (p.start + off) / p.sector * p.sector
	to := (p.start + off + int64(len(b)) + p.sector - 1) / p.sector * p.sector
	buf := make([]byte, to-from)
	if _, err := p.r.ReadAt(buf, from); err != nil {
		return 0, err
	}
	return copy(b, buf[p.start+off-from:]), nil
}
