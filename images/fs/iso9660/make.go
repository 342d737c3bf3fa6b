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
	root, err := openfs.Plant[place](files, rules)
	if err != nil {
		return nil, err
	}
	root.Own.parent = root
	nameTree(root)
	b := &builder{now: now.UTC(), label: label, root: root}
	return b.build(), nil
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

// The two trees over the same files.
const (
	plainTree = iota
	jolietTree
)

type builder struct {
	now   time.Time
	label string
	root  *node
	dirs  [2][]*node // in the order of the path table: level by level
	next  uint32     // first free sector
	out   []byte

	pathTable [2][2]uint32 // first sector: by tree, then little- and big-endian
	pathSize  [2]uint32
	contFirst uint32 // sector with the continuation of the root's Rock Ridge entries
}

func (b *builder) take(bytes int) uint32 {
	at := b.next
	b.next += uint32((bytes + Sector - 1) / Sector)
	return at
}

func (b *builder) build() []byte {
	b.next = first + 3
	for tree := range 2 {
		b.listDirs(tree)
		b.pathSize[tree] = uint32(len(b.paths(tree, binary.LittleEndian)))
		b.pathTable[tree] = [2]uint32{b.take(int(b.pathSize[tree])), b.take(int(b.pathSize[tree]))}
	}
	b.contFirst = b.take(1)
	for tree := range 2 {
		for _, d := range b.dirs[tree] {
			d.Own.size[tree] = uint32(len(b.records(tree, d)))
			d.Own.extent[tree] = b.take(int(d.Own.size[tree]))
		}
	}
	for _, d := range b.dirs[plainTree] {
		for _, n := range d.Children {
			if !n.Dir {
				n.Own.size = [2]uint32{uint32(len(n.Data)), uint32(len(n.Data))}
				at := b.take(len(n.Data)) // an empty file points at the next one's place, without harm
				n.Own.extent = [2]uint32{at, at}
			}
		}
	}
	b.out = make([]byte, int(b.next)*Sector)
	b.put(first, b.descriptor(plainTree))
	b.put(first+1, b.descriptor(jolietTree))
	b.put(first+2, append([]byte{255}, "CD001\x01"...))
	b.put(b.contFirst, rockRidgeReference())
	for tree := range 2 {
		b.put(b.pathTable[tree][0], b.paths(tree, binary.LittleEndian))
		b.put(b.pathTable[tree][1], b.paths(tree, binary.BigEndian))
		for _, d := range b.dirs[tree] {
			b.put(d.Own.extent[tree], b.records(tree, d))
			for _, n := range d.Children {
				if !n.Dir {
					b.put(n.Own.extent[0], n.Data)
				}
			}
		}
	}
	return b.out
}

func (b *builder) put(sector uint32, data []byte) { copy(b.out[int(sector)*Sector:], data) }

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
	text(40, 32, b.label)
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
	text(318, 128, "")
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
