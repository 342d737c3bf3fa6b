package iso9660

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

// Sector is the size of a sector.
const Sector = 2048

// MaxFiles is the maximum number of files in a new image.
const MaxFiles = 1000

// rules keep a directory record below 256 bytes. Joliet's names have 64 units of UCS-2.
var rules = openfs.Rules{What: "an ISO 9660 image", Files: MaxFiles, Depth: 8, Units: 64, Bytes: 128}

// File is a file to write.
type File = openfs.Content

// Boot is a program that firmware starts from the image (El Torito).
type Boot struct {
	Path string // of its file
	EFI  bool   // for UEFI, which takes a FAT; else for a BIOS
	// Table has the file's place written into its bytes 8 to 63, as isolinux needs it (a boot information table).
	Table bool
}

// Options of a new image.
type Options struct {
	Label     string
	Publisher string
	Time      time.Time
	Boot      []Boot // at most eight; the first is the default
}

// Image is a new image: pieces, and zeros elsewhere.
type Image struct {
	Pieces []openfs.Piece
	Size   int64
	// At has the first byte of each file. Files with a Size have their places there, and no pieces beyond their Data.
	At map[string]int64
}

// Bytes returns the whole image, for small ones.
func (m *Image) Bytes() []byte {
	b := make([]byte, m.Size)
	for _, p := range m.Pieces {
		copy(b[p.Off:], p.Data)
	}
	return b
}

// node is a file or a directory.
type node = openfs.Node[place]

// place is the place of a node.
type place struct {
	plain  string // upper case, in the plain tree
	parent *node
	extent [2]uint32 // first sector: for a directory in the plain and in the Joliet tree, for a file the same in both
	size   [2]uint32
	number [2]int // of a directory in the path table
}

// Make makes an image of files, with Rock Ridge names for Linux and Joliet names for Windows.
func Make(files []File, label string, now time.Time) ([]byte, error) {
	m, err := New(files, Options{Label: label, Time: now})
	if err != nil {
		return nil, err
	}
	return m.Bytes(), nil
}

// New plans an image like Make's, which machines may boot from.
func New(files []File, o Options) (*Image, error) {
	root, err := openfs.Plant[place](files, rules)
	if err != nil {
		return nil, err
	}
	if len(o.Boot) > 8 {
		return nil, fmt.Errorf("%d boot programs are too many", len(o.Boot))
	}
	root.Own.parent = root
	nameTree(root)
	b := &builder{o: o, now: o.Time.UTC(), root: root, out: &Image{At: map[string]int64{}}}
	if err := b.build(); err != nil {
		return nil, err
	}
	for _, f := range files {
		b.out.At[f.Path] = int64(find(root, f.Path).Own.extent[plainTree]) * Sector
	}
	return b.out, nil
}

// find returns a file's node; nil if there is none.
func find(root *node, name string) *node {
	at := root
	for part := range strings.SplitSeq(name, "/") {
		i := slices.IndexFunc(at.Children, func(n *node) bool { return n.Name == part })
		if i < 0 {
			return nil
		}
		at = at.Children[i]
	}
	return at
}

// Check reports an error if Make would refuse the files, by number or names.
func Check(files []File) error {
	_, err := openfs.Plant[place](files, rules)
	return err
}

// nameTree sets every node's plain name, unique in its directory, and sorts by it.
func nameTree(dir *node) {
	taken := map[string]bool{}
	for _, n := range dir.Children {
		n.Own.parent = dir
		base, ext := n.Name, ""
		if !n.Dir {
			ext = path.Ext(n.Name)
			base = strings.TrimSuffix(n.Name, ext)
		}
		base, ext = openfs.PlainName(base, 22), openfs.PlainName(strings.TrimPrefix(ext, "."), 4)
		for i := 0; ; i++ {
			name := base
			if i > 0 {
				name = fmt.Sprintf("%s_%d", base, i)
			}
			if !n.Dir {
				name += "." + ext
			}
			if !taken[name] {
				taken[name], n.Own.plain = true, name
				break
			}
		}
		if !n.Dir {
			n.Own.plain += ";1"
		}
		nameTree(n)
	}
	slices.SortFunc(dir.Children, func(a, b *node) int { return strings.Compare(a.Own.plain, b.Own.plain) })
}

// Large files that are only placed begin at pages of memory, so that a server of images hands whole pages of files to
// the kernel.
const (
	largeFile   = 1 << 20
	pageSectors = 4096 / Sector
)

// The two trees over the same files.
const (
	plainTree = iota
	jolietTree
)

type builder struct {
	o    Options
	now  time.Time
	root *node
	dirs [2][]*node // in the order of the path table: level by level
	next uint32     // first free sector
	out  *Image

	pathTable [2][2]uint32 // first sector: by tree, then little- and big-endian
	pathSize  [2]uint32
	contFirst uint32 // sector with the continuation of the root's Rock Ridge entries
}

func (b *builder) take(bytes int64) uint32 {
	at := b.next
	b.next += uint32((bytes + Sector - 1) / Sector)
	return at
}

func (b *builder) build() error {
	joliet, catalog := uint32(first+1), uint32(0)
	if len(b.o.Boot) > 0 {
		joliet++ // El Torito wants its descriptor second
	}
	b.next = joliet + 2
	if len(b.o.Boot) > 0 {
		catalog = b.take(Sector)
	}
	for tree := range 2 {
		b.listDirs(tree)
		b.pathSize[tree] = uint32(len(b.paths(tree, binary.LittleEndian)))
		b.pathTable[tree] = [2]uint32{b.take(int64(b.pathSize[tree])), b.take(int64(b.pathSize[tree]))}
	}
	b.contFirst = b.take(1)
	for tree := range 2 {
		for _, d := range b.dirs[tree] {
			d.Own.size[tree] = uint32(len(b.records(tree, d)))
			d.Own.extent[tree] = b.take(int64(d.Own.size[tree]))
		}
	}
	for _, d := range b.dirs[plainTree] {
		for _, n := range d.Children {
			if !n.Dir {
				if n.Size > 1<<32-1 || n.Size > (1<<32-1-int64(b.next))*Sector {
					return fmt.Errorf("%q is too large for an ISO 9660 image", n.Name)
				}
				n.Own.size = [2]uint32{uint32(n.Size), uint32(n.Size)}
				if n.Size >= largeFile && int64(len(n.Data)) < n.Size {
					b.next = (b.next + pageSectors - 1) / pageSectors * pageSectors
				}
				at := b.take(n.Size) // an empty file points at the next one's place, without harm
				n.Own.extent = [2]uint32{at, at}
			}
		}
	}
	b.out.Size = int64(b.next) * Sector
	b.put(first, b.descriptor(plainTree))
	b.put(joliet, b.descriptor(jolietTree))
	b.put(joliet+1, append([]byte{255}, "CD001\x01"...))
	b.put(b.contFirst, rockRidgeReference())
	if catalog > 0 {
		b.put(first+1, bootDescriptor(catalog))
		entries, err := b.catalog()
		if err != nil {
			return err
		}
		b.put(catalog, entries)
	}
	for tree := range 2 {
		b.put(b.pathTable[tree][0], b.paths(tree, binary.LittleEndian))
		b.put(b.pathTable[tree][1], b.paths(tree, binary.BigEndian))
		for _, d := range b.dirs[tree] {
			b.put(d.Own.extent[tree], b.records(tree, d))
			for _, n := range d.Children {
				if !n.Dir && tree == plainTree {
					b.put(n.Own.extent[0], n.Data)
				}
			}
		}
	}
	return nil
}

func (b *builder) put(sector uint32, data []byte) {
	if len(data) > 0 {
		b.out.Pieces = append(b.out.Pieces, openfs.Piece{Off: int64(sector) * Sector, Data: data})
	}
}

// bootDescriptor is El Torito's volume descriptor.
func bootDescriptor(catalog uint32) []byte {
	d := make([]byte, Sector)
	copy(d, "\x00CD001\x01EL TORITO SPECIFICATION")
	binary.LittleEndian.PutUint32(d[71:], catalog)
	return d
}

// El Torito's sizes count sectors of a disk, not of the image.
const bootSector = 512

// catalog returns El Torito's boot catalog, sections 2.1 to 2.4, and fills boot information tables in.
func (b *builder) catalog() ([]byte, error) {
	c := make([]byte, Sector)
	for i, boot := range b.o.Boot {
		n := find(b.root, boot.Path)
		if n == nil || n.Dir || len(n.Data) == 0 || int64(len(n.Data)) != n.Size {
			return nil, fmt.Errorf("the image has no boot program %q", boot.Path)
		}
		platform, load := byte(0), 4 // a BIOS loads the beginning, which loads the rest
		if boot.EFI {
			platform, load = 0xef, (len(n.Data)+bootSector-1)/bootSector
			if load > 0xffff {
				return nil, fmt.Errorf("the boot program %q has %d bytes: the catalog has no room for its size",
					boot.Path, len(n.Data))
			}
		}
		entry := c[i*64+32:][:32]
		if header := c[i*64:][:32]; i == 0 {
			header[0], header[1] = 1, platform
			header[30], header[31] = 0x55, 0xaa
			sum := uint16(0)
			for k := 0; k < len(header); k += 2 {
				sum += binary.LittleEndian.Uint16(header[k:])
			}
			binary.LittleEndian.PutUint16(header[28:], -sum)
		} else {
			header[0], header[1], header[2] = 0x90, platform, 1
			if i == len(b.o.Boot)-1 {
				header[0] = 0x91 // the last one
			}
		}
		entry[0] = 0x88
		binary.LittleEndian.PutUint16(entry[6:], uint16(load))
		binary.LittleEndian.PutUint32(entry[8:], n.Own.extent[plainTree])
		if boot.Table {
			var err error
			if n.Data, err = withTable(n.Data, n.Own.extent[plainTree]); err != nil {
				return nil, fmt.Errorf("the boot program %q: %w", boot.Path, err)
			}
		}
	}
	return c, nil
}

// withTable returns a boot program with its boot information table: the sectors of the primary descriptor and of the
// program, its size, and the sum of its words after the table.
func withTable(program []byte, sector uint32) ([]byte, error) {
	const begin, end = 8, 64
	if len(program) < end {
		return nil, fmt.Errorf("%d bytes have no room for a table", len(program))
	}
	out := slices.Clone(program)
	clear(out[begin:end])
	sum := uint32(0)
	for words := append(slices.Clone(out[end:]), 0, 0, 0); len(words) >= 4; words = words[4:] {
		sum += binary.LittleEndian.Uint32(words)
	}
	for i, v := range []uint32{first, sector, uint32(len(out)), sum} {
		binary.LittleEndian.PutUint32(out[begin+4*i:], v)
	}
	return out, nil
}

func (b *builder) listDirs(tree int) {
	level := []*node{b.root}
	for len(level) > 0 {
		var below []*node
		for _, d := range level {
			b.dirs[tree] = append(b.dirs[tree], d)
			d.Own.number[tree] = len(b.dirs[tree])
			for _, c := range b.sorted(tree, d) {
				if c.Dir {
					below = append(below, c)
				}
			}
		}
		level = below
	}
}

func (b *builder) sorted(tree int, d *node) []*node {
	children := slices.Clone(d.Children)
	if tree == jolietTree {
		slices.SortFunc(children, func(x, y *node) int { return bytes.Compare(ucs2(x.Name), ucs2(y.Name)) })
	}
	return children
}

// identifier returns a node's name in a tree.
func identifier(n *node, tree int) []byte {
	if n.Own.parent == n {
		return []byte{0}
	}
	if tree == plainTree {
		return []byte(n.Own.plain)
	}
	return ucs2(n.Name) // without a version: genisoimage leaves it out, and isoinfo would show it as part of the name
}

func ucs2(s string) []byte {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		b = binary.BigEndian.AppendUint16(b, u)
	}
	return b
}

func (b *builder) paths(tree int, order binary.AppendByteOrder) []byte {
	var out []byte
	for _, d := range b.dirs[tree] {
		id := identifier(d, tree)
		out = append(out, byte(len(id)), 0)
		out = order.AppendUint32(out, d.Own.extent[tree])
		out = order.AppendUint16(out, uint16(d.Own.parent.Own.number[tree]))
		out = append(out, id...)
		if len(id)%2 == 1 {
			out = append(out, 0)
		}
	}
	return out
}

// records returns a directory's content. A record never crosses the end of a sector, and a directory is whole sectors.
func (b *builder) records(tree int, d *node) []byte {
	var out []byte
	add := func(n *node, id []byte, rock []byte) {
		r := b.record(tree, n, id, rock)
		if room := Sector - len(out)%Sector; len(r) > room {
			out = append(out, make([]byte, room)...)
		}
		out = append(out, r...)
	}
	var self, up []byte
	if tree == plainTree {
		self, up = b.rockRidge(d, ""), b.rockRidge(d.Own.parent, "")
		if d.Own.parent == d {
			// SP means that the entries begin at once, CE that more follow elsewhere.
			ce := append([]byte("CE\x1c\x01"), both32(b.contFirst)...)
			ce = append(append(ce, both32(0)...), both32(uint32(len(rockRidgeReference())))...)
			self = append(append([]byte("SP\x07\x01\xbe\xef\x00"), self...), ce...)
		}
	}
	add(d, []byte{0}, self)
	add(d.Own.parent, []byte{1}, up)
	for _, c := range b.sorted(tree, d) {
		var rock []byte
		if tree == plainTree {
			rock = b.rockRidge(c, c.Name)
		}
		add(c, identifier(c, tree), rock)
	}
	return append(out, make([]byte, (Sector-len(out)%Sector)%Sector)...)
}

func (b *builder) record(tree int, n *node, id, rock []byte) []byte {
	r := []byte{0, 0}
	r = append(r, both32(n.Own.extent[tree])...)
	r = append(r, both32(n.Own.size[tree])...)
	r = append(r, b.date7()...)
	var flags byte
	if n.Dir {
		flags = 2
	}
	r = append(r, flags, 0, 0)
	r = append(r, both16(1)...)
	r = append(r, byte(len(id)))
	r = append(r, id...)
	if len(id)%2 == 0 {
		r = append(r, 0)
	}
	r = append(r, rock...)
	if len(r)%2 == 1 {
		r = append(r, 0)
	}
	r[0] = byte(len(r)) // at most 33 + 29 + 44 + 26 + 133: names are bounded by rules
	return r
}

// rockRidge returns the entries for the real name and for world-readable permissions, like genisoimage -r.
func (b *builder) rockRidge(n *node, name string) []byte {
	mode, links := uint32(0o100444), uint32(1)
	if n.Dir {
		mode, links = 0o040555, 2
		for _, c := range n.Children {
			if c.Dir {
				links++
			}
		}
	}
	out := []byte("PX\x24\x01")
	for _, v := range []uint32{mode, links, 0, 0} {
		out = append(out, both32(v)...)
	}
	out = append(append(out, "TF\x0c\x01\x02"...), b.date7()...) // time of last modification
	if name != "" {
		out = append(out, 'N', 'M', byte(5+len(name)), 1, 0)
		out = append(out, name...)
	}
	return out
}

// rockRidgeReference returns the entry that names the extension.
func rockRidgeReference() []byte {
	id, what, source := "RRIP_1991A",
		"THE ROCK RIDGE INTERCHANGE PROTOCOL PROVIDES SUPPORT FOR POSIX FILE SYSTEM SEMANTICS",
		"PLEASE CONTACT DISC PUBLISHER FOR SPECIFICATION SOURCE"
	out := []byte{'E', 'R', byte(8 + len(id) + len(what) + len(source)), 1, byte(len(id)), byte(len(what)),
		byte(len(source)), 1}
	return append(out, id+what+source...)
}

func both16(v uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, v), v)
}

func both32(v uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, v), v)
}

func (b *builder) date7() []byte {
	t := b.now
	return []byte{byte(t.Year() - 1900), byte(t.Month()), byte(t.Day()), byte(t.Hour()), byte(t.Minute()),
		byte(t.Second()), 0}
}

// descriptor returns the primary volume descriptor, or Joliet's supplementary one.
func (b *builder) descriptor(tree int) []byte {
	d := make([]byte, Sector)
	text := func(off, n int, s string) {
		field := bytes.Repeat([]byte{' '}, n)
		if tree == jolietTree {
			field = bytes.Repeat([]byte{0, ' '}, n/2+1)[:n]
			copy(field, ucs2(s))
		} else {
			copy(field, s)
		}
		copy(d[off:], field)
	}
	d[0] = 1
	copy(d[1:], "CD001\x01")
	text(8, 32, "")
	text(40, 32, b.o.Label)
	copy(d[80:], both32(b.next))
	if tree == jolietTree {
		d[0] = 2
		copy(d[88:], "%/E") // UCS-2 level 3
	}
	copy(d[120:], both16(1))
	copy(d[124:], both16(1))
	copy(d[128:], both16(Sector))
	copy(d[132:], both32(b.pathSize[tree]))
	binary.LittleEndian.PutUint32(d[140:], b.pathTable[tree][0])
	binary.BigEndian.PutUint32(d[148:], b.pathTable[tree][1])
	copy(d[156:], b.record(tree, b.root, []byte{0}, nil))
	text(190, 128, "")
	text(318, 128, b.o.Publisher)
	text(446, 128, "")
	text(574, 128, "INGOT")
	for _, off := range []int{702, 739, 776} {
		text(off, 37, "")
	}
	stamp := b.now.Format("20060102150405") + "00\x00"
	copy(d[813:], stamp)
	copy(d[830:], stamp)
	copy(d[847:], "0000000000000000\x00")
	copy(d[864:], stamp)
	d[881] = 1
	return d
}
