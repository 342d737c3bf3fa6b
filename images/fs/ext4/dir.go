package ext4

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// blocksOfDir returns the physical blocks of a directory, in order. A directory has no holes.
func (w *Writer) blocksOfDir(dir *inode) ([]uint64, error) {
	x, _, err := w.layout(dir)
	if err != nil {
		return nil, err
	}
	n := uint64(dir.size) / uint64(w.fs.BlockSize)
	if dir.size > maxDir || n == 0 || blocksOf(x) < n {
		return nil, fmt.Errorf("%w: a folder of %d bytes in %d blocks", ErrNot, dir.size, blocksOf(x))
	}
	out := make([]uint64, 0, n)
	for _, e := range x {
		for k := range e.n {
			if uint64(len(out)) == n {
				return out, nil
			}
			if e.logical+k != uint64(len(out)) {
				return nil, fmt.Errorf("%w: a folder with holes", ErrNot)
			}
			out = append(out, e.start+k)
		}
	}
	return out, nil
}

// sealDir sets the checksum of a directory's block. raw is the directory's inode.
func (w *Writer) sealDir(n uint32, raw, b []byte) {
	if !w.csum {
		return
	}
	t := b[len(b)-dirTail:]
	clear(t)
	le := binary.LittleEndian
	le.PutUint16(t[4:], dirTail)
	t[7] = 0xde
	le.PutUint32(t[8:], sum32(w.inodeSeed(n, raw), b[:len(b)-dirTail]))
}

func entrySize(name int) int { return (8 + name + 3) / 4 * 4 }

// hasTail reports whether a directory block has space for a checksum.
func (w *Writer) hasTail(b []byte) bool {
	t := b[len(b)-dirTail:]
	le := binary.LittleEndian
	return !w.csum || le.Uint32(t) == 0 && le.Uint16(t[4:]) == dirTail && t[6] == 0 && t[7] == 0xde
}

// insert inserts an entry into a block if there is space.
func (w *Writer) insert(at uint64, name string, n uint32, kind byte) (bool, error) {
	b, err := w.fs.block(at)
	if err != nil {
		return false, err
	}
	if !w.hasTail(b) {
		return false, fmt.Errorf("%w that is whole: a folder's block has no checksum; run e2fsck -D on the image",
			ErrNot)
	}
	for e, err := range dirEntries(b[:w.dirEnd()]) {
		if err != nil {
			return false, err
		}
		used := 0
		if e.inode != 0 {
			used = entrySize(len(e.name))
		}
		if e.length-used < entrySize(len(name)) {
			continue
		}
		if b, err = w.edit(at); err != nil {
			return false, err
		}
		if used > 0 {
			binary.LittleEndian.PutUint16(b[e.at+4:], uint16(used))
		}
		clear(b[e.at+used:][:8])
		w.entry(b[e.at+used:e.at+e.length], n, name, kind)
		return true, nil
	}
	return false, nil
}

// link adds a name to a directory.
func (w *Writer) link(dir *inode, name string, n uint32, kind byte) error {
	dir, err := w.fs.inode(dir.number) // its present state
	if err != nil {
		return err
	}
	if err := changeable(dir); err != nil {
		return err
	}
	raw, err := w.raw(dir.number)
	if err != nil {
		return err
	}
	blocks, err := w.blocksOfDir(dir)
	if err != nil {
		return err
	}
	w.stamp(raw, 0xc, 0x84)
	w.stamp(raw, 0x10, 0x88)
	const compatIndex = 0x20
	if dir.flags&flagIndex != 0 && binary.LittleEndian.Uint32(w.sb[0x5c:])&compatIndex != 0 {
		return w.linkIndexed(dir, raw, blocks, name, n, kind)
	}
	if dir.flags&flagIndex != 0 {
		return fmt.Errorf(
			"%w that is whole: a folder has an index, but the file system knows none; run e2fsck on the image", ErrNot)
	}
	for _, at := range blocks {
		ok, err := w.insert(at, name, n, kind)
		if err != nil {
			return err
		}
		if ok {
			w.sealDir(dir.number, raw, w.meta[at])
			w.sealInode(dir.number, raw)
			return nil
		}
	}
	_, b, err := w.grow(dir, raw)
	if err != nil {
		return err
	}
	w.entry(b[:w.dirEnd()], n, name, kind)
	w.sealDir(dir.number, raw, b)
	w.sealInode(dir.number, raw)
	return nil
}

// grow adds a block to a directory, and returns its number in the directory.
func (w *Writer) grow(dir *inode, raw []byte) (uint32, []byte, error) {
	dir, err := w.fs.inode(dir.number)
	if err != nil {
		return 0, nil, err
	}
	if dir.size+int64(w.fs.BlockSize) > maxDir {
		return 0, nil, fmt.Errorf("%w: a folder would be larger than %d MiB", ErrFull, maxDir>>20)
	}
	x, tree, err := w.layout(dir)
	if err != nil {
		return 0, nil, err
	}
	n := uint64(dir.size) / uint64(w.fs.BlockSize)
	if len(x) == 0 || x[len(x)-1].logical+x[len(x)-1].n != n {
		return 0, nil, fmt.Errorf("inode %d %w: a folder with room that was reserved", dir.number, ErrCant)
	}
	if err := w.freeAll(nil, tree); err != nil {
		return 0, nil, err
	}
	w.count(raw, -int64(blocksOf(x)+uint64(len(tree))))
	at, b, err := w.allocOne(w.groupOf(dir.number))
	if err != nil {
		return 0, nil, err
	}
	x = add(x, n, at, 1)
	if err := w.setLayout(dir.number, raw, x); err != nil {
		return 0, nil, err
	}
	binary.LittleEndian.PutUint32(raw[4:], uint32(dir.size)+uint32(w.fs.BlockSize))
	return uint32(n), b, nil
}

// unlink removes a name from a directory.
func (w *Writer) unlink(dir *inode, name string) error {
	raw, err := w.raw(dir.number)
	if err != nil {
		return err
	}
	blocks, err := w.blocksOfDir(dir)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	for _, at := range blocks {
		b, err := w.fs.block(at)
		if err != nil {
			return err
		}
		if !w.hasTail(b) { // a block of an index, without names
			continue
		}
		before := -1
		for e, err := range dirEntries(b[:w.dirEnd()]) {
			if err != nil {
				return err
			}
			if e.inode == 0 || string(e.name) != name {
				before = e.at
				continue
			}
			if b, err = w.edit(at); err != nil {
				return err
			}
			if before >= 0 {
				le.PutUint16(b[before+4:], le.Uint16(b[before+4:])+uint16(e.length))
				clear(b[e.at:][:8])
			} else {
				le.PutUint32(b[e.at:], 0)
			}
			w.sealDir(dir.number, raw, b)
			w.stamp(raw, 0xc, 0x84)
			w.stamp(raw, 0x10, 0x88)
			w.sealInode(dir.number, raw)
			return nil
		}
	}
	return fmt.Errorf("%w: %s is gone", ErrNot, name)
}

// frame is a node of a directory's index on the path to a leaf.
type frame struct {
	at    uint64 // its block
	off   int    // start of its entries
	index int    // the entry that was followed
}

// node reads and checks a node of an index.
func (w *Writer) node(f frame) (b []byte, limit, count int, err error) {
	if b, err = w.fs.block(f.at); err != nil {
		return nil, 0, 0, err
	}
	le := binary.LittleEndian
	limit, count = int(le.Uint16(b[f.off:])), int(le.Uint16(b[f.off+2:]))
	if count < 1 || count > limit || f.off+8*limit > len(b) || w.csum && f.off+8*limit+8 > len(b) {
		return nil, 0, 0, fmt.Errorf("%w: a folder's index is damaged", ErrNot)
	}
	return b, limit, count, nil
}

// sealNode sets the checksum of a node of an index.
func (w *Writer) sealNode(n uint32, raw []byte, f frame) {
	if !w.csum {
		return
	}
	b := w.meta[f.at]
	le := binary.LittleEndian
	limit, count := int(le.Uint16(b[f.off:])), int(le.Uint16(b[f.off+2:]))
	tail := b[f.off+8*limit:]
	sum := sum32(w.inodeSeed(n, raw), b[:f.off+8*count])
	sum = sum32(sum, tail[:4])
	sum = sum32(sum, []byte{0, 0, 0, 0})
	le.PutUint32(tail[4:], sum)
}

// linkIndexed adds a name to a directory with an index: a tree of name hashes. A full leaf is split.
func (w *Writer) linkIndexed(dir *inode, raw []byte, blocks []uint64, name string, n uint32, kind byte) error {
	le := binary.LittleEndian
	root, err := w.fs.block(blocks[0])
	if err != nil {
		return err
	}
	const info = 0x18
	version, length := root[info+4], int(root[info+5])
	if le.Uint32(root[info:]) != 0 || length != 8 || version > 2 {
		return fmt.Errorf("the folder %w: its index is of the unknown kind %d", ErrCant, version)
	}
	const unsignedHash = 2
	hash := hasher{kind: version, unsigned: le.Uint32(w.sb[0x160:])&unsignedHash != 0}
	for k := range hash.seed {
		hash.seed[k] = le.Uint32(w.sb[0xec+4*k:])
	}
	want := hash.of([]byte(name))
	const tries = 8 // each divides a leaf
	for range tries {
		path, leaf, err := w.descend(blocks, info+length, want)
		if err != nil {
			return err
		}
		ok, err := w.insert(leaf, name, n, kind)
		if err != nil {
			return err
		}
		if ok {
			w.sealDir(dir.number, raw, w.meta[leaf])
			w.sealInode(dir.number, raw)
			return nil
		}
		if err := w.divide(dir, raw, &blocks, path, leaf, hash); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: no room was made in a folder's index", ErrFull)
}

// descend follows the index to the leaf for a hash.
func (w *Writer) descend(blocks []uint64, off int, want uint32) (path []frame, leaf uint64, err error) {
	le := binary.LittleEndian
	root, err := w.fs.block(blocks[0])
	if err != nil {
		return nil, 0, err
	}
	levels := int(root[off-8+6])
	if levels > 2 {
		return nil, 0, fmt.Errorf("%w: a folder's index has %d levels", ErrNot, levels)
	}
	f := frame{at: blocks[0], off: off}
	for {
		b, _, count, err := w.node(f)
		if err != nil {
			return nil, 0, err
		}
		for f.index = count - 1; f.index > 0 && le.Uint32(b[f.off+8*f.index:]) > want; f.index-- {
		}
		next := le.Uint32(b[f.off+8*f.index+4:]) & 0x0fffffff
		if next == 0 || int(next) >= len(blocks) {
			return nil, 0, fmt.Errorf("%w: a folder's index leads outside of it", ErrNot)
		}
		path = append(path, f)
		if len(path) > levels {
			return path, blocks[next], nil
		}
		f = frame{at: blocks[next], off: 8}
	}
}

// hashed is an entry of a leaf.
type hashed struct {
	hash uint32
	b    []byte
}

// divide moves the upper half of a leaf's entries into a new one.
func (w *Writer) divide(dir *inode, raw []byte, blocks *[]uint64, path []frame, leaf uint64, hash hasher) error {
	bottom := path[len(path)-1]
	_, limit, count, err := w.node(bottom)
	if err != nil {
		return err
	}
	if count == limit { // makes space in the index instead; the next attempt gets here again
		return w.divideNode(dir, raw, blocks, path)
	}
	b, err := w.edit(leaf)
	if err != nil {
		return err
	}
	var all []hashed
	total := 0
	for e, err := range dirEntries(b[:w.dirEnd()]) {
		if err != nil {
			return err
		}
		if e.inode != 0 {
			all = append(all, hashed{hash.of(e.name), slices.Clone(b[e.at:][:entrySize(len(e.name))])})
			total += entrySize(len(e.name))
		}
	}
	if len(all) < 2 {
		return fmt.Errorf("%w: a folder's leaf can't be divided", ErrNot)
	}
	slices.SortStableFunc(all, func(a, b hashed) int { return cmp.Compare(a.hash, b.hash) })
	mid, sum := 1, len(all[0].b)
	for mid < len(all)-1 && sum+len(all[mid].b) <= total/2 {
		sum += len(all[mid].b)
		mid++
	}
	border := all[mid].hash
	if all[mid-1].hash == border {
		border |= 1 // continues the previous leaf
	}
	at, fresh, err := w.newBlock(dir, raw, blocks)
	if err != nil {
		return err
	}
	w.pack(b, all[:mid])
	w.pack(fresh, all[mid:])
	w.sealDir(dir.number, raw, b)
	w.sealDir(dir.number, raw, fresh)
	if err := w.index(dir.number, raw, bottom, border, at); err != nil {
		return err
	}
	w.sealInode(dir.number, raw)
	return nil
}

// newBlock is grow, and also extends the list of the directory's blocks.
func (w *Writer) newBlock(dir *inode, raw []byte, blocks *[]uint64) (uint32, []byte, error) {
	at, b, err := w.grow(dir, raw)
	if err != nil {
		return 0, nil, err
	}
	now, err := w.fs.inode(dir.number)
	if err != nil {
		return 0, nil, err
	}
	*blocks, err = w.blocksOfDir(now)
	return at, b, err
}

// pack fills a block with entries; the last one extends to the end.
func (w *Writer) pack(b []byte, all []hashed) {
	end := w.dirEnd()
	clear(b)
	at := 0
	for k, e := range all {
		copy(b[at:], e.b)
		length := len(e.b)
		if k == len(all)-1 {
			length = end - at
		}
		binary.LittleEndian.PutUint16(b[at+4:], uint16(length))
		at += length
	}
}

// index inserts an index entry after the one that was followed.
func (w *Writer) index(n uint32, raw []byte, f frame, hash, block uint32) error {
	b, err := w.edit(f.at)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	count := int(le.Uint16(b[f.off+2:]))
	at := f.off + 8*(f.index+1)
	copy(b[at+8:f.off+8*(count+1)], b[at:f.off+8*count])
	le.PutUint32(b[at:], hash)
	le.PutUint32(b[at+4:], block)
	le.PutUint16(b[f.off+2:], uint16(count+1))
	w.sealNode(n, raw, f)
	return nil
}

// divideNode makes space in the last node of a path: the root's entries move one level down, another node is split.
func (w *Writer) divideNode(dir *inode, raw []byte, blocks *[]uint64, path []frame) error {
	le := binary.LittleEndian
	f := path[len(path)-1]
	if len(path) > 1 {
		_, limit, count, err := w.node(path[len(path)-2])
		if err != nil {
			return err
		}
		if count == limit {
			if len(path) > 2 {
				return w.divideNode(dir, raw, blocks, path[:len(path)-1])
			}
			return fmt.Errorf("%w: a folder's index is full", ErrFull)
		}
	}
	at, fresh, err := w.newBlock(dir, raw, blocks)
	if err != nil {
		return err
	}
	b, err := w.edit(f.at)
	if err != nil {
		return err
	}
	count := int(le.Uint16(b[f.off+2:]))
	const off = 8
	le.PutUint16(fresh[4:], uint16(len(fresh))) // an entry without a name, for readers without index support
	limit := (len(fresh) - off) / 8
	if w.csum {
		limit--
	}
	from := 0
	if len(path) > 1 {
		from = count / 2
	}
	border := le.Uint32(b[f.off+8*from:])
	copy(fresh[off:], b[f.off+8*from:f.off+8*count])
	le.PutUint16(fresh[off:], uint16(limit))
	le.PutUint16(fresh[off+2:], uint16(count-from))
	freshAt := (*blocks)[at]
	if from == 0 {
		b[f.off-8+6]++ // levels
		le.PutUint16(b[f.off+2:], 1)
		le.PutUint32(b[f.off+4:], at)
	} else {
		le.PutUint16(b[f.off+2:], uint16(from))
	}
	w.sealNode(dir.number, raw, f)
	w.sealNode(dir.number, raw, frame{at: freshAt, off: off})
	if from > 0 {
		if err := w.index(dir.number, raw, path[len(path)-2], border, at); err != nil {
			return err
		}
	}
	w.sealInode(dir.number, raw)
	return nil
}

// hasher computes the hashes of directory indexes: 0 is the oldest, 1 half of MD4, 2 TEA.
type hasher struct {
	kind     byte
	unsigned bool // whether characters are unsigned
	seed     [4]uint32
}

func (h hasher) char(c byte) uint32 {
	if h.unsigned {
		return uint32(c)
	}
	return uint32(int32(int8(c)))
}

func (h hasher) of(name []byte) uint32 {
	buf := [4]uint32{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476}
	if h.seed != [4]uint32{} {
		buf = h.seed
	}
	var out uint32
	switch h.kind {
	case 0:
		out = h.legacy(name)
	case 1:
		for ; len(name) > 0; name = name[min(32, len(name)):] {
			var in [8]uint32
			h.words(name, in[:])
			halfMD4(&buf, &in)
		}
		out = buf[1]
	default:
		for ; len(name) > 0; name = name[min(16, len(name)):] {
			var in [4]uint32
			h.words(name, in[:])
			tea(&buf, &in)
		}
		out = buf[0]
	}
	const end = 0x7fffffff
	if out &^= 1; out == end<<1&0xffffffff {
		out = (end - 1) << 1
	}
	return out
}

func (h hasher) legacy(name []byte) uint32 {
	h0, h1 := uint32(0x12a3fe2d), uint32(0x37abe8f9)
	for _, c := range name {
		v := h1 + (h0 ^ h.char(c)*7152373)
		if v&0x80000000 != 0 {
			v -= 0x7fffffff
		}
		h1, h0 = h0, v
	}
	return h0 << 1
}

// words converts a name to numbers; the rest is padded with its length.
func (h hasher) words(name []byte, out []uint32) {
	pad := uint32(len(name)) | uint32(len(name))<<8
	pad |= pad << 16
	name = name[:min(len(name), 4*len(out))]
	for k := range out {
		v := pad
		for j := 4 * k; j < min(4*k+4, len(name)); j++ {
			v = h.char(name[j]) + v<<8
		}
		out[k] = v
	}
}

func tea(buf *[4]uint32, in *[4]uint32) {
	sum, b0, b1 := uint32(0), buf[0], buf[1]
	for range 16 {
		sum += 0x9e3779b9
		b0 += (b1<<4 + in[0]) ^ (b1 + sum) ^ (b1>>5 + in[1])
		b1 += (b0<<4 + in[2]) ^ (b0 + sum) ^ (b0>>5 + in[3])
	}
	buf[0] += b0
	buf[1] += b1
}

func halfMD4(buf *[4]uint32, in *[8]uint32) {
	v := *buf
	rounds := []struct {
		f     func(x, y, z uint32) uint32
		add   uint32
		order [8]int
		shift [4]int
	}{
		{func(x, y, z uint32) uint32 { return z ^ x&(y^z) }, 0, [8]int{0, 1, 2, 3, 4, 5, 6, 7}, [4]int{3, 7, 11, 19}},
		{func(x, y, z uint32) uint32 { return x&y + (x^y)&z }, 0x5a827999, [8]int{1, 3, 5, 7, 0, 2, 4, 6},
			[4]int{3, 5, 9, 13}},
		{func(x, y, z uint32) uint32 { return x ^ y ^ z }, 0x6ed9eba1, [8]int{3, 7, 2, 6, 1, 5, 0, 4},
			[4]int{3, 9, 11, 15}},
	}
	for _, r := range rounds {
		for k, word := range r.order {
			a, b, c, d := (4-k%4)%4, (5-k%4)%4, (6-k%4)%4, (7-k%4)%4 // the four take turns
			v[a] = bits.RotateLeft32(v[a]+r.f(v[b], v[c], v[d])+in[word]+r.add, r.shift[k%4])
		}
	}
	for k := range buf {
		buf[k] += v[k]
	}
}
