package configdrive

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
	"unicode/utf16"
)

// maxFAT12 is the number of clusters at which a FAT begins to be a FAT16 (Microsoft's FAT specification 1.03, section 3.5).
const maxFAT12 = 4085

// makeFAT makes a FAT12 file system of files, for disks with sectors too large for ISO 9660. Clusters grow with the content, so that a
// FAT12 always does.
func makeFAT(files []file, sector int, now time.Time) ([]byte, error) {
	root, err := isoTree(files)
	if err != nil {
		return nil, err
	}
	f := &fatBuilder{sector: sector, now: now.UTC()}
	for f.cluster = sector; ; f.cluster *= 2 {
		if f.cluster > 128*sector {
			return nil, errTooLarge()
		}
		f.clusters = 16 // some room to spare
		f.count(root)
		if f.clusters < maxFAT12 {
			break
		}
	}
	return f.build(root), nil
}

type fatBuilder struct {
	sector, cluster int
	clusters        int // in all
	now             time.Time

	fat  []uint16
	data []byte
}

func (f *fatBuilder) need(bytes int) int { return (bytes + f.cluster - 1) / f.cluster }

func (f *fatBuilder) count(dir *isoNode) {
	for _, n := range dir.children {
		if n.dir {
			f.clusters += f.need(32 * f.entries(n))
			f.count(n)
		} else {
			f.clusters += f.need(len(n.data))
		}
	}
}

// entries is how many directory entries a folder takes: two for itself and its parent, and for each child one and its long name.
func (f *fatBuilder) entries(dir *isoNode) int {
	n := 2
	for _, c := range dir.children {
		n += 1 + (len(utf16.Encode([]rune(c.name)))+12)/13
	}
	return n
}

func (f *fatBuilder) build(root *isoNode) []byte {
	rootEntries := f.entries(root) + 16
	per := f.sector / 32
	rootEntries = (rootEntries + per - 1) / per * per
	fatSectors := ((f.clusters+2)*3/2 + 1 + f.sector - 1) / f.sector
	f.fat = []uint16{0xff8, 0xfff}
	f.data = nil

	rootData := make([]byte, rootEntries*32)
	label := f.entry("CONFIG-2   ", 0x08, 0, 0)
	body := append(label, f.children(root, 0)...)
	copy(rootData, body)

	total := 1 + 2*fatSectors + len(rootData)/f.sector + f.clusters*f.cluster/f.sector
	boot := make([]byte, f.sector)
	le := binary.LittleEndian
	copy(boot, "\xeb\x3c\x90INGOT   ")
	le.PutUint16(boot[11:], uint16(f.sector))
	boot[13] = byte(f.cluster / f.sector)
	le.PutUint16(boot[14:], 1) // reserved sectors: this one
	boot[16] = 2               // copies of the FAT
	le.PutUint16(boot[17:], uint16(rootEntries))
	if total < 1<<16 {
		le.PutUint16(boot[19:], uint16(total))
	} else {
		le.PutUint32(boot[32:], uint32(total))
	}
	boot[21] = 0xf8
	le.PutUint16(boot[22:], uint16(fatSectors))
	le.PutUint16(boot[24:], 63)
	le.PutUint16(boot[26:], 255)
	boot[36], boot[38] = 0x80, 0x29
	le.PutUint32(boot[39:], uint32(f.now.Unix()))
	copy(boot[43:], "CONFIG-2   FAT12   ")
	boot[510], boot[511] = 0x55, 0xaa

	out := boot
	table := f.packed(fatSectors * f.sector)
	out = append(append(out, table...), table...)
	out = append(append(out, rootData...), f.data...)
	return append(out, make([]byte, total*f.sector-len(out))...)
}

// packed writes the FAT's 12-bit entries.
func (f *fatBuilder) packed(size int) []byte {
	b := make([]byte, size)
	for i, v := range f.fat {
		at := i * 3 / 2
		if i%2 == 0 {
			b[at] = byte(v)
			b[at+1] = b[at+1]&0xf0 | byte(v>>8)
		} else {
			b[at] = b[at]&0x0f | byte(v<<4)
			b[at+1] = byte(v >> 4)
		}
	}
	return b
}

// store appends data in clusters of its own and gives the first; 0 for no data.
func (f *fatBuilder) store(data []byte) uint16 {
	first := f.reserve(f.need(len(data)))
	if first > 0 {
		copy(f.data[(int(first)-2)*f.cluster:], data)
	}
	return first
}

func (f *fatBuilder) reserve(n int) uint16 {
	if n == 0 {
		return 0
	}
	first := uint16(len(f.fat))
	for i := range n {
		next := uint16(0xfff)
		if i < n-1 {
			next = first + uint16(i) + 1
		}
		f.fat = append(f.fat, next)
	}
	f.data = append(f.data, make([]byte, n*f.cluster)...)
	return first
}

// children gives the directory entries of what is in dir, whose own first cluster is self (0 for the root), and stores their content.
func (f *fatBuilder) children(dir *isoNode, self uint16) []byte {
	var out []byte
	taken := map[string]bool{}
	for _, n := range dir.children {
		short := shortName(n.name, taken)
		var e []byte
		if n.dir {
			at := f.reserve(f.need(32 * f.entries(n)))
			body := append(f.entry(".          ", 0x10, at, 0), f.entry("..         ", 0x10, self, 0)...)
			body = append(body, f.children(n, at)...)
			copy(f.data[(int(at)-2)*f.cluster:], body)
			e = f.entry(short, 0x10, at, 0)
		} else {
			e = f.entry(short, 0x20, f.store(n.data), uint32(len(n.data)))
		}
		out = append(append(out, longName(n.name, short)...), e...)
	}
	return out
}

func (f *fatBuilder) entry(name string, attr byte, cluster uint16, size uint32) []byte {
	e := make([]byte, 32)
	copy(e, name)
	e[11] = attr
	t := f.now
	clock := uint16(t.Hour()<<11 | t.Minute()<<5 | t.Second()/2)
	day := uint16(max(t.Year()-1980, 0)<<9 | int(t.Month())<<5 | t.Day())
	le := binary.LittleEndian
	le.PutUint16(e[14:], clock)
	le.PutUint16(e[16:], day)
	le.PutUint16(e[18:], day)
	le.PutUint16(e[22:], clock)
	le.PutUint16(e[24:], day)
	le.PutUint16(e[26:], cluster)
	le.PutUint32(e[28:], size)
	return e
}

// shortName makes an 8.3 name with a number, unique in its folder; every file has a long name beside it, which is the one people see.
func shortName(name string, taken map[string]bool) string {
	base, ext := name, ""
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		base, ext = name[:i], name[i+1:]
	}
	base, ext = plainChars(base, 8), plainChars(ext, 3)
	for i := 1; ; i++ {
		tail := fmt.Sprintf("~%d", i)
		short := fmt.Sprintf("%-8s%-3s", base[:min(len(base), 8-len(tail))]+tail, ext)
		if !taken[short] {
			taken[short] = true
			return short
		}
	}
}

// longName gives the entries that hold a long name, last part first, bound to the short name by a checksum.
func longName(name, short string) []byte {
	var sum byte
	for i := range 11 {
		sum = sum>>1 | sum<<7
		sum += short[i]
	}
	units := utf16.Encode([]rune(name))
	parts := (len(units) + 12) / 13
	if len(units)%13 != 0 {
		units = append(units, 0)
	}
	for len(units) < parts*13 {
		units = append(units, 0xffff)
	}
	var out []byte
	for i := parts; i > 0; i-- {
		e := bytes.Repeat([]byte{0}, 32)
		e[0] = byte(i)
		if i == parts {
			e[0] |= 0x40
		}
		e[11], e[13] = 0x0f, sum
		for j, u := range units[(i-1)*13 : i*13] {
			at := 1 + 2*j
			switch {
			case j >= 11:
				at = 28 + 2*(j-11)
			case j >= 5:
				at = 14 + 2*(j-5)
			}
			binary.LittleEndian.PutUint16(e[at:], u)
		}
		out = append(out, e...)
	}
	return out
}
