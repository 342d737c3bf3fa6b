package fat

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

// File is a file to write.
type File = openfs.Content

// Options of a new file system.
type Options struct {
	Sector int   // 512 ... 4096
	Size   int64 // of the partition, for a FAT32 or FAT16; 0 makes a FAT12 as small as its content
	Label  string
	Serial uint32
	Time   time.Time // of the files
}

// Piece is bytes and where they belong.
type Piece = openfs.Piece

// Image is a new file system: pieces, and zeros elsewhere.
type Image struct {
	Pieces []Piece
	Size   int64
	// Zero is the end of the range that must be zero outside of the pieces; the content after it does not matter.
	Zero int64
}

// Bytes returns the whole file system, for small ones.
func (m *Image) Bytes() []byte {
	b := make([]byte, m.Size)
	for _, p := range m.Pieces {
		copy(b[p.Off:], p.Data)
	}
	return b
}

// Cluster counts from which a FAT is a FAT16, and a FAT32 (section 3.5).
const (
	fat16From = 4085
	fat32From = 65525
	fat32To   = 0x0ffffff5
)

// rules of long names (section 7). A unit of UTF-16 takes at most three bytes.
var rules = openfs.Rules{What: "a FAT", Files: 10000, Depth: 16, Units: 255, Bytes: 3 * 255,
	Forbidden: "\\:*?\"<>|\x00", Fold: true}

type node = openfs.Node[struct{}]

// Make makes a file system of files. Directories come from the files' paths.
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
		f.clusters = 16 // some spare space
		f.count(root)
		if f.clusters < fat16From {
			break
		}
	}
	return f.build(root)
}

type builder struct {
	o        Options
	bits     width
	cluster  int
	clusters int // in all

	fat  []uint32
	data []byte
}

// fill sets the number of clusters that fit after the reserved sectors and two FATs, and returns the sectors of a FAT.
// A FAT's size depends on the number of clusters, which depends on the FATs' size: ignoring the latter wastes only a
// few sectors of FAT.
func (f *builder) fill(reserved int) (sectors int64) {
	total, sector := f.o.Size/int64(f.o.Sector), int64(f.o.Sector)
	clusters := (total - int64(reserved)) * sector / int64(f.cluster)
	sectors = ((clusters+2)*int64(f.bits)/8 + sector - 1) / sector
	f.clusters = int((total - int64(reserved) - 2*sectors) * sector / int64(f.cluster))
	return sectors
}

// rootEntries16 is the minimum number of entries in the root of a FAT16.
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

// fsInfo is the FSInfo sector of a FAT32: which clusters are free, as a hint.
type fsInfo struct {
	Lead       [4]byte
	Unused     [480]byte
	Mark       [4]byte
	Free, Next uint32
	Unused2    [14]byte
	End        [2]byte
}

var (
	infoLead, infoMark = [4]byte([]byte("RRaA")), [4]byte([]byte("rrAa"))
	sectorEnd          = [2]byte{0x55, 0xaa}
)

// large makes a FAT32 that fills the partition, with clusters of 4 KiB or more if there are enough of them.
func (f *builder) large(root *node) (*Image, error) {
	f.bits = 32
	const reserved, backup = 32, 6
	total := f.o.Size / int64(f.o.Sector)
	for f.cluster = max(4096, f.o.Sector); f.cluster < 32<<10 && f.o.Size/int64(f.cluster) > 2<<20; f.cluster *= 2 {
	}
	sectors := f.fill(reserved)
	for ; f.clusters < fat32From && f.cluster > f.o.Sector; sectors = f.fill(reserved) {
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

	boot := f.sector(bootSector32{bootSector: f.bootSector(reserved, 0, 0, total), FATSectors32: uint32(sectors),
		Root: at, Info: 1, Backup: backup, Extended: f.extended("FAT32")})
	info := f.sector(fsInfo{Lead: infoLead, Mark: infoMark, Free: uint32(f.clusters - (len(f.fat) - 2)),
		Next: uint32(len(f.fat))})
	head := make([]byte, reserved*f.o.Sector)
	for _, at := range []int{0, backup} {
		copy(head[at*f.o.Sector:], append(boot, info...))
	}
	one, first := sectors*int64(f.o.Sector), int64(len(head))
	table := f.packed((len(f.fat)*4 + f.o.Sector - 1) / f.o.Sector * f.o.Sector)
	return &Image{Size: f.o.Size, Zero: first + 2*one + int64(len(f.data)),
		Pieces: []Piece{{Data: head}, {Off: first, Data: table}, {Off: first + one, Data: table},
			{Off: first + 2*one, Data: f.data}}}, nil
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

// entries returns the number of directory entries of a directory: two for itself and its parent, and for each child one
// and its long name.
func (f *builder) entries(dir *node) int {
	n := 2
	for _, c := range dir.Children {
		n += 1 + (len(utf16.Encode([]rune(c.Name)))+12)/13
	}
	return n
}

// bootSector returns the part common to all kinds, including the number of sectors of a FAT16 or FAT12 if it fits.
func (f *builder) bootSector(reserved, rootEntries, fatSectors int, total int64) bootSector {
	b := bootSector{Jump: [3]byte{0xeb, 0x58, 0x90}, Maker: [8]byte([]byte("INGOT   ")), Sector: uint16(f.o.Sector),
		PerCluster: byte(f.cluster / f.o.Sector), Reserved: uint16(reserved), FATs: 2, Media: 0xf8, PerTrack: 63,
		Heads: 255, RootEntries: uint16(rootEntries), FATSectors16: uint16(fatSectors), Total32: uint32(total)}
	if f.bits != 32 && total < 1<<16 {
		b.Total16, b.Total32 = uint16(total), 0
	}
	return b
}

func (f *builder) extended(kind string) extended {
	return extended{Drive: 0x80, Mark: isExtended, Serial: f.o.Serial, Label: [11]byte([]byte(label11(f.o.Label))),
		Kind: [8]byte([]byte(fmt.Sprintf("%-8s", kind)))}
}

// sector is a sector that begins with a structure and has the mark of boot sectors.
func (f *builder) sector(v any) []byte {
	b := make([]byte, f.o.Sector)
	copy(b, openfs.Bytes(binary.LittleEndian, v))
	copy(b[510:], sectorEnd[:])
	return b
}

// rootEntries returns the number of entries in the root of a FAT12 or FAT16, in whole sectors.
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
	fatSectors := ((f.clusters+2)*int(f.bits)/8 + 1 + sector - 1) / sector
	f.fat = []uint32{f.end() &^ 7, f.end()}

	rootData := make([]byte, rootEntries*32)
	body, err := f.children(root, 0)
	if err != nil {
		return nil, err
	}
	copy(rootData, append(f.entry(label11(f.o.Label), attrVolume, 0, 0), body...))

	total := 1 + 2*fatSectors + len(rootData)/sector + f.clusters*f.cluster/sector
	boot := f.sector(bootSector16{bootSector: f.bootSector(1, rootEntries, fatSectors, int64(total)),
		Extended: f.extended(fmt.Sprintf("FAT%d", f.bits))})
	table := f.packed(fatSectors * sector)
	head := slices.Concat(boot, table, table, rootData)
	img := &Image{Size: f.o.Size, Zero: int64(len(head) + len(f.data)),
		Pieces: []Piece{{Data: head}, {Off: int64(len(head)), Data: f.data}}}
	if f.o.Size == 0 {
		img.Size = int64(total * sector)
		img.Zero = img.Size
	}
	return img, nil
}

// packed writes the FAT's entries.
func (f *builder) packed(size int) []byte {
	b := make([]byte, size)
	for i, v := range f.fat {
		f.bits.put(b, uint32(i), v)
	}
	return b
}

// store appends data in new clusters and returns the first; 0 for no data.
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

// children returns the directory entries for the content of dir, whose own first cluster is self (0 for the root), and
// stores that content.
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
	t := f.o.Time.UTC()
	if t.Year() < 1980 || t.Year() > 2107 {
		t = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	clock := uint16(t.Hour()<<11 | t.Minute()<<5 | t.Second()/2)
	day := uint16((t.Year()-1980)<<9 | int(t.Month())<<5 | t.Day())
	e := struct {
		Name                         [11]byte
		Attr                         byte
		Unused                       uint16
		MadeAt, MadeOn, Read         uint16
		ClusterHigh, At, On, Cluster uint16
		Size                         uint32
	}{Attr: attr, MadeAt: clock, MadeOn: day, Read: day, ClusterHigh: uint16(cluster >> 16), At: clock, On: day,
		Cluster: uint16(cluster), Size: size}
	copy(e.Name[:], name)
	return openfs.Bytes(binary.LittleEndian, e)
}

// label11 is a label in FAT's form: eleven bytes, padded.
func label11(s string) string {
	s = cmp.Or(s, "NO NAME")
	return fmt.Sprintf("%-11s", s[:min(len(s), 11)])
}

// shortName makes an 8.3 name with a number, unique in its directory; people see the long name that each file has too.
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

// longName returns the entries of a long name, last part first, bound to the short name by a checksum.
func longName(name, short string) []byte {
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
		e := make([]byte, 32)
		e[0], e[11], e[13] = byte(i), attrLong, shortSum([]byte(short))
		if i == parts {
			e[0] |= 0x40
		}
		part := units[(i-1)*13 : i*13]
		for _, at := range nameParts {
			n := (at[1] - at[0]) / 2
			copy(e[at[0]:], openfs.Bytes(binary.LittleEndian, part[:n]))
			part = part[n:]
		}
		out = append(out, e...)
	}
	return out
}
