package fat

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

// File is a file that is to be written.
type File = openfs.Content

// Options of a file system that is made.
type Options struct {
	Sector int   // 512 ... 4096
	Size   int64 // of the partition, for a FAT32 or FAT16; 0 makes a FAT12 as small as its content
	Label  string
	Serial uint32
	Time   time.Time // of the files
}

// Piece is bytes and where they belong.
type Piece struct {
	Off  int64
	Data []byte
}

// Image is a file system that was made: pieces, and zeros elsewhere.
type Image struct {
	Pieces []Piece
	Size   int64
	// Zero is up to where zeros count: behind it the file system does not care what is there.
	Zero int64
}

// Bytes is the file system as a whole, for small ones.
func (m *Image) Bytes() []byte {
	b := make([]byte, m.Size)
	for _, p := range m.Pieces {
		copy(b[p.Off:], p.Data)
	}
	return b
}

// Cluster counts at which a FAT begins to be a FAT16, and a FAT32 (section 3.5).
const (
	fat16From = 4085
	fat32From = 65525
	fat32To   = 0x0ffffff5
)

// rules of long names (section 7). A unit of UTF-16 has at most three bytes.
var rules = openfs.Rules{What: "a FAT", Files: 10000, Depth: 16, Units: 255, Bytes: 3 * 255,
	Forbidden: "\\:*?\"<>|\x00", Fold: true}

type node = openfs.Node[struct{}]

// Make makes a file system of files. Folders come from the files' paths.
func Make(files []File, o Options) (*Image, error) {
	if o.Sector < 512 || o.Sector > 4096 || o.Sector&(o.Sector-1) != 0 {
		return nil, fmt.Errorf("a FAT can't have sectors of %d bytes", o.Sector)
	}
	root, err := openfs.Plant[struct{}](files, rules)
	if err != nil {
		return nil, err
	}
	f := &builder{o: o, bits: 12}
	if o.Size > 0 {
		return f.large(root)
	}
	for f.cluster = o.Sector; ; f.cluster *= 2 {
		if f.cluster > 128*o.Sector {
			return nil, fmt.Errorf("too much for a FAT12")
		}
		f.clusters = 16 // some room to spare
		f.count(root)
		if f.clusters < fat16From {
			break
		}
	}
	return f.build(root)
}

type builder struct {
	o        Options
	bits     int
	cluster  int
	clusters int // in all

	fat  []uint32
	data []byte
}

// fill sets how many clusters there are room for behind the reserved sectors and two FATs, and gives the sectors of a
// FAT. A FAT's size depends on the number of clusters, which depends on the FATs' size: counting as if they took no
// room errs on the side of a few sectors of FAT that are never used.
func (f *builder) fill(reserved int) (sectors int64) {
	total, sector := f.o.Size/int64(f.o.Sector), int64(f.o.Sector)
	clusters := (total - int64(reserved)) * sector / int64(f.cluster)
	sectors = ((clusters+2)*int64(f.bits)/8 + sector - 1) / sector
	f.clusters = int((total - int64(reserved) - 2*sectors) * sector / int64(f.cluster))
	return sectors
}

// rootEntries16 is how many entries the root of a FAT16 has, at least.
const rootEntries16 = 512

// medium makes a FAT16 that fills the partition.
func (f *builder) medium(root *node) (*Image, error) {
	f.bits = 16
	for f.cluster = f.o.Sector; ; f.cluster *= 2 {
		f.fill(1 + f.rootEntries(root)*32/f.o.Sector)
		if f.clusters < fat32From {
			break
		}
	}
	if f.clusters < fat16From {
		return nil, fmt.Errorf("neither a FAT16 nor a FAT32 can have %d bytes", f.o.Size)
	}
	return f.build(root)
}

// large makes a FAT32 that fills the partition, with clusters of 4 KiB or more if there are enough of them.
func (f *builder) large(root *node) (*Image, error) {
	f.bits = 32
	total := f.o.Size / int64(f.o.Sector)
	for f.cluster = max(4096, f.o.Sector); f.cluster < 32<<10 && f.o.Size/int64(f.cluster) > 2<<20; f.cluster *= 2 {
	}
	reserved := int64(32)
	sectors := f.fill(int(reserved))
	for ; f.clusters < fat32From && f.cluster > f.o.Sector; sectors = f.fill(int(reserved)) {
		f.cluster /= 2
	}
	if f.clusters < fat32From {
		return f.medium(root)
	}
	if f.clusters >= fat32To || total >= 1<<32 {
		return nil, fmt.Errorf("a FAT32 can't have %d bytes", f.o.Size)
	}
	f.fat = []uint32{f.end() &^ 7, f.end()}
	body := f.entry(label11(f.o.Label), attrVolume, 0, 0)
	at := f.reserve(f.need(32 * (f.entries(root) + 1)))
	rest, err := f.children(root, 0)
	if err != nil {
		return nil, err
	}
	copy(f.data[(int(at)-2)*f.cluster:], append(body, rest...))

	le := binary.LittleEndian
	boot := f.bootSector()
	le.PutUint16(boot[14:], uint16(reserved))
	le.PutUint32(boot[32:], uint32(total))
	le.PutUint32(boot[36:], uint32(sectors))
	le.PutUint32(boot[44:], at)
	le.PutUint16(boot[48:], 1) // FSInfo
	le.PutUint16(boot[50:], 6) // copy of the boot sector
	boot[64], boot[66] = 0x80, 0x29
	le.PutUint32(boot[67:], f.o.Serial)
	copy(boot[71:], label11(f.o.Label)+"FAT32   ")
	info := make([]byte, f.o.Sector)
	copy(info, "RRaA")
	copy(info[484:], "rrAa")
	le.PutUint32(info[488:], uint32(f.clusters-(len(f.fat)-2)))
	le.PutUint32(info[492:], uint32(len(f.fat)))
	info[510], info[511] = 0x55, 0xaa

	head := make([]byte, reserved*int64(f.o.Sector))
	for _, at := range []int{0, 6} {
		copy(head[at*f.o.Sector:], boot)
		copy(head[(at+1)*f.o.Sector:], info)
	}
	table := make([]byte, (len(f.fat)*4+f.o.Sector-1)/f.o.Sector*f.o.Sector)
	for i, v := range f.fat {
		le.PutUint32(table[4*i:], v)
	}
	one := sectors * int64(f.o.Sector)
	first := int64(len(head))
	return &Image{Size: f.o.Size, Zero: first + 2*one + int64(len(f.data)),
		Pieces: []Piece{{0, head}, {first, table}, {first + one, table}, {first + 2*one, f.data}}}, nil
}

func (f *builder) need(bytes int) int { return (bytes + f.cluster - 1) / f.cluster }

func (f *builder) count(dir *node) {
	for _, n := range dir.Children {
		if n.Dir {
			f.clusters += f.need(32 * f.entries(n))
			f.count(n)
		} else {
			f.clusters += f.need(len(n.Data))
		}
	}
}

// entries is how many directory entries a folder takes: two for itself and its parent, and for each child one and its
// long name.
func (f *builder) entries(dir *node) int {
	n := 2
	for _, c := range dir.Children {
		n += 1 + (len(utf16.Encode([]rune(c.Name)))+12)/13
	}
	return n
}

// bootSector is what all kinds have in common.
func (f *builder) bootSector() []byte {
	boot := make([]byte, f.o.Sector)
	le := binary.LittleEndian
	copy(boot, "\xeb\x58\x90INGOT   ")
	le.PutUint16(boot[11:], uint16(f.o.Sector))
	boot[13] = byte(f.cluster / f.o.Sector)
	boot[16] = 2 // copies of the FAT
	boot[21] = 0xf8
	le.PutUint16(boot[24:], 63)
	le.PutUint16(boot[26:], 255)
	boot[510], boot[511] = 0x55, 0xaa
	return boot
}

// rootEntries is how many entries the root of a FAT12 or FAT16 has: whole sectors of them.
func (f *builder) rootEntries(root *node) int {
	n, per := f.entries(root)+16, f.o.Sector/32
	if f.bits == 16 {
		n = max(n, rootEntries16)
	}
	return (n + per - 1) / per * per
}

// build makes a FAT12 or a FAT16.
func (f *builder) build(root *node) (*Image, error) {
	sector, rootEntries := f.o.Sector, f.rootEntries(root)
	fatSectors := ((f.clusters+2)*f.bits/8 + 1 + sector - 1) / sector
	f.fat = []uint32{f.end() &^ 7, f.end()}

	rootData := make([]byte, rootEntries*32)
	body, err := f.children(root, 0)
	if err != nil {
		return nil, err
	}
	copy(rootData, append(f.entry(label11(f.o.Label), attrVolume, 0, 0), body...))

	total := 1 + 2*fatSectors + len(rootData)/sector + f.clusters*f.cluster/sector
	boot := f.bootSector()
	le := binary.LittleEndian
	le.PutUint16(boot[14:], 1) // reserved sectors: this one
	le.PutUint16(boot[17:], uint16(rootEntries))
	if total < 1<<16 {
		le.PutUint16(boot[19:], uint16(total))
	} else {
		le.PutUint32(boot[32:], uint32(total))
	}
	le.PutUint16(boot[22:], uint16(fatSectors))
	boot[36], boot[38] = 0x80, 0x29
	le.PutUint32(boot[39:], f.o.Serial)
	copy(boot[43:], fmt.Sprintf("%sFAT%d   ", label11(f.o.Label), f.bits))

	head := boot
	table := f.packed(fatSectors * sector)
	head = append(append(head, table...), table...)
	head = append(head, rootData...)
	pieces := []Piece{{0, head}, {int64(len(head)), f.data}}
	if f.o.Size > 0 {
		return &Image{Size: f.o.Size, Zero: int64(len(head) + len(f.data)), Pieces: pieces}, nil
	}
	size := int64(total * sector)
	return &Image{Size: size, Zero: size, Pieces: pieces}, nil
}

// packed writes the FAT's entries of 12 or 16 bits.
func (f *builder) packed(size int) []byte {
	b := make([]byte, size)
	for i, v := range f.fat {
		if f.bits == 16 {
			binary.LittleEndian.PutUint16(b[2*i:], uint16(v))
			continue
		}
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
func (f *builder) store(data []byte) uint32 {
	first := f.reserve(f.need(len(data)))
	if first > 0 {
		copy(f.data[(int(first)-2)*f.cluster:], data)
	}
	return first
}

// end marks the last cluster of a chain.
func (f *builder) end() uint32 { return uint32(min(1<<f.bits-1, 0x0fffffff)) }

func (f *builder) reserve(n int) uint32 {
	if n == 0 {
		return 0
	}
	first := uint32(len(f.fat))
	for i := range n {
		next := f.end()
		if i < n-1 {
			next = first + uint32(i) + 1
		}
		f.fat = append(f.fat, next)
	}
	f.data = append(f.data, make([]byte, n*f.cluster)...)
	return first
}

// children gives the directory entries of what is in dir, whose own first cluster is self (0 for the root), and stores
// their content.
func (f *builder) children(dir *node, self uint32) ([]byte, error) {
	var out []byte
	taken := map[string]bool{}
	for _, n := range dir.Children {
		short := shortName(n.Name, taken)
		var e []byte
		if n.Dir {
			at := f.reserve(f.need(32 * f.entries(n)))
			body := append(f.entry(".          ", attrDir, at, 0), f.entry("..         ", attrDir, self, 0)...)
			more, err := f.children(n, at)
			if err != nil {
				return nil, err
			}
			copy(f.data[(int(at)-2)*f.cluster:], append(body, more...))
			e = f.entry(short, attrDir, at, 0)
		} else {
			e = f.entry(short, 0x20, f.store(n.Data), uint32(len(n.Data)))
		}
		if len(f.fat)-2 > f.clusters {
			return nil, fmt.Errorf("the files take more than %d bytes", int64(f.clusters)*int64(f.cluster))
		}
		out = append(append(out, longName(n.Name, short)...), e...)
	}
	return out, nil
}

func (f *builder) entry(name string, attr byte, cluster, size uint32) []byte {
	e := make([]byte, 32)
	copy(e, name)
	e[11] = attr
	t := f.o.Time.UTC()
	if t.Year() < 1980 || t.Year() > 2107 {
		t = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	clock := uint16(t.Hour()<<11 | t.Minute()<<5 | t.Second()/2)
	day := uint16((t.Year()-1980)<<9 | int(t.Month())<<5 | t.Day())
	le := binary.LittleEndian
	le.PutUint16(e[14:], clock)
	le.PutUint16(e[16:], day)
	le.PutUint16(e[18:], day)
	le.PutUint16(e[20:], uint16(cluster>>16))
	le.PutUint16(e[22:], clock)
	le.PutUint16(e[24:], day)
	le.PutUint16(e[26:], uint16(cluster))
	le.PutUint32(e[28:], size)
	return e
}

// label11 is a label as FAT keeps it: eleven bytes, padded.
func label11(s string) string {
	if s == "" {
		s = "NO NAME"
	}
	return fmt.Sprintf("%-11s", s[:min(len(s), 11)])
}

// shortName makes an 8.3 name with a number, unique in its folder; every file has a long name beside it, which is the
// one people see.
func shortName(name string, taken map[string]bool) string {
	base, ext := name, ""
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		base, ext = name[:i], name[i+1:]
	}
	base, ext = openfs.PlainName(base, 8), openfs.PlainName(ext, 3)
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
