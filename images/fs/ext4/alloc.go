package ext4

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"math/rand/v2"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum32 is CRC-32C as the kernel chains it: without inversion at start and end.
func sum32(sum uint32, b []byte) uint32 { return ^crc32.Update(^sum, castagnoli, b) }

// inGroup returns the number of blocks in a group: the last may have fewer.
func (w *Writer) inGroup(g uint32) uint32 {
	return uint32(min(uint64(w.fs.perGroup), w.fs.blocks-w.fs.first-uint64(g)*uint64(w.fs.perGroup)))
}

func has(b []byte, i uint32) bool { return b[i/8]&(1<<(i%8)) != 0 }
func set(b []byte, i uint32)      { b[i/8] |= 1 << (i % 8) }

// clearBits counts the zero bits among the first n; n may end within a byte.
func clearBits(b []byte, n uint32) uint32 {
	count := uint32(0)
	for _, c := range b[:n/8] {
		count += uint32(bits.OnesCount8(^c))
	}
	for i := n / 8 * 8; i < n; i++ {
		if !has(b, i) {
			count++
		}
	}
	return count
}

// blockMap returns a group's block bitmap for changes; nil if it does not agree with the descriptor.
func (w *Writer) blockMap(g uint32) ([]byte, error) {
	if b := w.blockMaps[g]; b != nil || w.unsound[g] {
		return b, nil
	}
	d := w.desc(g)
	n := w.inGroup(g)
	at := wide(d, 0, 0x20)
	le := binary.LittleEndian
	flags := le.Uint16(d[0x12:])
	var b []byte
	var err error
	if fresh := w.lazy && flags&blockUninit != 0; fresh {
		if at == 0 || at >= w.fs.blocks {
			return nil, fmt.Errorf("%w: block %d lies outside", ErrNot, at)
		}
		b = w.ownBlocks(g, n)
	} else if b, err = w.fs.block(at); err != nil {
		return nil, err
	}
	if clearBits(b, n) != short(d, 0xc, 0x2c) {
		w.unsound[g] = true
		return nil, nil
	}
	le.PutUint16(d[0x12:], flags&^blockUninit)
	w.blockMaps[g] = b
	return b, nil
}

// ownBlocks returns the bitmap of a group in which only the file system's own blocks are allocated.
func (w *Writer) ownBlocks(g, n uint32) []byte {
	b := make([]byte, w.fs.BlockSize)
	for i := n; i < uint32(8*len(b)); i++ {
		set(b, i)
	}
	first := w.fs.first + uint64(g)*uint64(w.fs.perGroup)
	mark := func(start, count uint64) {
		for k := max(start, first); k < min(start+count, first+uint64(n)); k++ {
			set(b, uint32(k-first))
		}
	}
	if w.backup(g) {
		table := (uint64(w.groups)*uint64(w.fs.descSize) + uint64(w.fs.BlockSize) - 1) / uint64(w.fs.BlockSize)
		mark(first, 1+table+uint64(binary.LittleEndian.Uint16(w.sb[0xce:])))
	}
	inodes := (uint64(w.fs.inodesPerGroup)*uint64(w.fs.inodeSize) + uint64(w.fs.BlockSize) - 1) / uint64(w.fs.BlockSize)
	for k := range w.groups { // with flex_bg, those of other groups may be here
		d := w.desc(k)
		mark(wide(d, 0, 0x20), 1)
		mark(wide(d, 4, 0x24), 1)
		mark(wide(d, 8, 0x28), inodes)
	}
	return b
}

// backup reports whether a group has a copy of the superblock.
func (w *Writer) backup(g uint32) bool {
	const compatSparse2, roSparse = 0x200, 0x1
	le := binary.LittleEndian
	if g > 0 && le.Uint32(w.sb[0x5c:])&compatSparse2 != 0 {
		return g == le.Uint32(w.sb[0x24c:]) || g == le.Uint32(w.sb[0x250:])
	}
	return w.roCompat&roSparse == 0 || backups(uint64(g))
}

// use marks a group's bitmaps as changed.
func (w *Writer) use(g uint32) {
	w.touched[g] = true
	d := w.desc(g)
	if b := w.blockMaps[g]; b != nil {
		w.meta[wide(d, 0, 0x20)] = b
	}
	if b := w.inodeMaps[g]; b != nil {
		w.meta[wide(d, 4, 0x24)] = b
	}
}

// extent is a contiguous range of a file's blocks.
type extent struct {
	logical, start, n uint64
}

func blocksOf(x []extent) (n uint64) {
	for _, e := range x {
		n += e.n
	}
	return n
}

// add appends a run, or extends the last one.
func add(x []extent, logical, start, n uint64) []extent {
	if k := len(x) - 1; k >= 0 && x[k].logical+x[k].n == logical && x[k].start+x[k].n == start {
		x[k].n += n
		return x
	}
	return append(x, extent{logical, start, n})
}

// maxUnsound is how many damaged groups are tolerated before the search stops: detecting damage takes time.
const maxUnsound = 16

// alloc allocates n blocks, near the group if possible.
func (w *Writer) alloc(near uint32, n uint64) ([]extent, error) {
	var x []extent
	got := uint64(0)
	for k := uint32(0); k < w.groups && got < n && len(w.unsound) <= maxUnsound; k++ {
		g := (near + k) % w.groups
		d := w.desc(g)
		if short(d, 0xc, 0x2c) == 0 {
			continue
		}
		b, err := w.blockMap(g)
		if err != nil {
			return nil, err
		}
		if b == nil {
			continue
		}
		first := w.fs.first + uint64(g)*uint64(w.fs.perGroup)
		taken := uint32(0)
		for i, end := uint32(0), w.inGroup(g); i < end && got < n; i++ {
			if i%8 == 0 && b[i/8] == 0xff {
				i += 7
				continue
			}
			if !has(b, i) {
				set(b, i)
				x = add(x, got, first+uint64(i), 1)
				got++
				taken++
			}
		}
		putShort(d, 0xc, 0x2c, short(d, 0xc, 0x2c)-taken)
		w.use(g)
	}
	if got < n {
		if len(w.unsound) > 0 {
			return nil, fmt.Errorf(
				"%w that is whole: the bitmaps of %d groups contradict their descriptors; run e2fsck on the image", ErrNot, len(w.unsound))
		}
		return nil, fmt.Errorf("%w: %d more blocks of %d bytes are needed, %d are free", ErrFull, n, w.fs.BlockSize,
			got)
	}
	return x, nil
}

// allocOne allocates one block for metadata.
func (w *Writer) allocOne(near uint32) (uint64, []byte, error) {
	x, err := w.alloc(near, 1)
	if err != nil {
		return 0, nil, err
	}
	b := make([]byte, w.fs.BlockSize)
	w.meta[x[0].start] = b
	return x[0].start, b, nil
}

func (w *Writer) freeAll(x []extent, tree []uint64) error {
	for _, e := range x {
		for k := range e.n {
			if err := w.free(e.start + k); err != nil {
				return err
			}
		}
	}
	for _, n := range tree {
		if err := w.free(n); err != nil {
			return err
		}
	}
	return nil
}

// free frees a block.
func (w *Writer) free(n uint64) error {
	if n <= w.fs.first || n >= w.fs.blocks {
		return fmt.Errorf("%w: block %d lies outside", ErrNot, n)
	}
	g := uint32((n - w.fs.first) / uint64(w.fs.perGroup))
	i := uint32((n - w.fs.first) % uint64(w.fs.perGroup))
	b, err := w.blockMap(g)
	if err != nil {
		return err
	}
	if b == nil || !has(b, i) {
		return fmt.Errorf("%w that is whole: the bitmap of blocks of group %d is wrong; run e2fsck on the image",
			ErrNot, g)
	}
	b[i/8] &^= 1 << (i % 8)
	d := w.desc(g)
	putShort(d, 0xc, 0x2c, short(d, 0xc, 0x2c)+1)
	if !w.touched[g] || w.meta[wide(d, 0, 0x20)] == nil {
		w.use(g)
	}
	delete(w.meta, n)
	delete(w.data, n)
	return nil
}

// inodeMap is blockMap for inodes.
func (w *Writer) inodeMap(g uint32) ([]byte, error) {
	if b := w.inodeMaps[g]; b != nil {
		return b, nil
	}
	d := w.desc(g)
	le := binary.LittleEndian
	flags := le.Uint16(d[0x12:])
	b, err := w.fs.block(wide(d, 4, 0x24))
	if err != nil {
		return nil, err
	}
	fresh := w.lazy && flags&inodeUninit != 0
	if fresh {
		// As in the kernel: a group with inodes has a block bitmap.
		if m, err := w.blockMap(g); err != nil || m == nil {
			return nil, err
		}
		clear(b)
		for i := w.fs.inodesPerGroup; i < uint32(8*len(b)); i++ {
			set(b, i)
		}
	}
	if clearBits(b, w.fs.inodesPerGroup) != short(d, 0xe, 0x2e) {
		return nil, nil
	}
	if fresh {
		le.PutUint16(d[0x12:], le.Uint16(d[0x12:])&^inodeUninit)
	}
	w.inodeMaps[g] = b
	return b, nil
}

// newInode allocates an inode, and returns its bytes, in which only times are set.
func (w *Writer) newInode(near uint32, dir bool) (uint32, []byte, error) {
	le := binary.LittleEndian
	bad := 0
	for k := uint32(0); k < w.groups && bad <= maxUnsound; k++ {
		g := (near + k) % w.groups
		d := w.desc(g)
		if short(d, 0xe, 0x2e) == 0 {
			continue
		}
		m, err := w.inodeMap(g)
		if err != nil {
			return 0, nil, err
		}
		if m == nil {
			bad++
			continue
		}
		i := uint32(0)
		if g == 0 { // lower ones are the file system's own
			if i = 10; le.Uint32(w.sb[0x4c:]) > 0 {
				i = max(le.Uint32(w.sb[0x54:]), 1) - 1
			}
		}
		for i < w.fs.inodesPerGroup && has(m, i) {
			i++
		}
		if i >= w.fs.inodesPerGroup {
			continue
		}
		set(m, i)
		putShort(d, 0xe, 0x2e, short(d, 0xe, 0x2e)-1)
		if w.lazy {
			putShort(d, 0x1c, 0x32, min(short(d, 0x1c, 0x32), w.fs.inodesPerGroup-i-1))
		}
		if dir {
			putShort(d, 0x10, 0x30, short(d, 0x10, 0x30)+1)
		}
		w.use(g)
		n := g*w.fs.inodesPerGroup + i + 1
		if n == rootInode {
			return 0, nil, fmt.Errorf("%w that is whole: its root is free", ErrNot)
		}
		b, err := w.rawNew(n)
		return n, b, err
	}
	if bad > 0 {
		return 0, nil, fmt.Errorf(
			"%w that is whole: the inode bitmaps of %d groups contradict their descriptors; run e2fsck on the image", ErrNot, bad)
	}
	return 0, nil, fmt.Errorf("%w: no inode is free", ErrFull)
}

// rawNew returns the bytes of a new inode.
func (w *Writer) rawNew(n uint32) ([]byte, error) {
	b, err := w.inodeBytes(n)
	if err != nil {
		return nil, err
	}
	clear(b)
	le := binary.LittleEndian
	times := [][2]int{{8, 0x8c}, {0xc, 0x84}, {0x10, 0x88}}
	if len(b) > 128 {
		extra := le.Uint16(w.sb[0x15e:])
		if extra < 4 || extra > uint16(len(b)-128) || extra%4 != 0 {
			extra = 32
		}
		le.PutUint16(b[0x80:], extra)
		times = append(times, [2]int{0x90, 0x94}) // made
	}
	for _, t := range times {
		w.stamp(b, t[0], t[1])
	}
	le.PutUint32(b[0x64:], rand.Uint32()) // generation
	return b, nil
}

// freeInode frees a file's inode.
func (w *Writer) freeInode(n uint32) error {
	g := w.groupOf(n)
	i := (n - 1) % w.fs.inodesPerGroup
	m, err := w.inodeMap(g)
	if err != nil {
		return err
	}
	if m == nil || !has(m, i) {
		return fmt.Errorf("%w that is whole: the bitmap of inodes of group %d is wrong; run e2fsck on the image",
			ErrNot, g)
	}
	m[i/8] &^= 1 << (i % 8)
	d := w.desc(g)
	putShort(d, 0xe, 0x2e, short(d, 0xe, 0x2e)+1)
	w.use(g)
	return nil
}

// maxExtents bounds the fragmentation of a file.
const maxExtents = 1 << 20

// layout returns the places of an inode's content, and the blocks of its mapping.
func (w *Writer) layout(i *inode) (x []extent, tree []uint64, err error) {
	if i.flags&flagInline != 0 {
		return nil, nil, fmt.Errorf("inode %d %w: it has its data in itself", i.number, ErrCant)
	}
	l := layout{fs: w.fs, end: math.MaxUint64, unwritten: true, most: maxExtents,
		tooMany: fmt.Errorf("inode %d %w: it is in more than %d pieces", i.number, ErrCant, maxExtents)}
	err = l.walk(i)
	return l.pieces, l.tree, err
}

// setLayout sets the blocks of an inode that has none.
func (w *Writer) setLayout(n uint32, b []byte, x []extent) error {
	le := binary.LittleEndian
	flags := le.Uint32(b[0x20:]) &^ flagExtents
	body := b[0x28:0x64]
	clear(body)
	near := w.groupOf(n)
	tree, err := uint64(0), error(nil)
	if w.fs.incompat&incompatExtents != 0 {
		flags |= flagExtents
		tree, err = w.extentTree(near, w.inodeSeed(n, b), body, x)
	} else {
		tree, err = w.blockList(near, body, x)
	}
	if err != nil {
		return err
	}
	le.PutUint32(b[0x20:], flags)
	w.count(b, int64(blocksOf(x)+tree))
	return nil
}

// extentTree writes extents below an inode, and returns the number of blocks used.
func (w *Writer) extentTree(near, seed uint32, body []byte, x []extent) (took uint64, err error) {
	le := binary.LittleEndian
	const longest = 32768
	type item struct {
		logical uint64
		b       [12]byte
	}
	var items []item
	for _, e := range x {
		for e.n > 0 {
			it := item{logical: e.logical}
			n := min(e.n, longest)
			le.PutUint32(it.b[:], uint32(e.logical))
			le.PutUint16(it.b[4:], uint16(n))
			le.PutUint16(it.b[6:], uint16(e.start>>32))
			le.PutUint32(it.b[8:], uint32(e.start))
			items = append(items, it)
			e.logical, e.start, e.n = e.logical+n, e.start+n, e.n-n
		}
	}
	node := func(b []byte, items []item, most, depth int) {
		le.PutUint16(b, extentMagic)
		le.PutUint16(b[2:], uint16(len(items)))
		le.PutUint16(b[4:], uint16(most))
		le.PutUint16(b[6:], uint16(depth))
		for k, it := range items {
			copy(b[12+12*k:], it.b[:])
		}
	}
	depth := 0
	for ; len(items) > 4; depth++ {
		most := (w.fs.BlockSize - 12) / 12
		var above []item
		for len(items) > 0 {
			at, b, err := w.allocOne(near)
			if err != nil {
				return 0, err
			}
			took++
			part := items[:min(most, len(items))]
			items = items[len(part):]
			node(b, part, most, depth)
			if w.csum {
				le.PutUint32(b[12+12*most:], sum32(seed, b[:12+12*most]))
			}
			it := item{logical: part[0].logical}
			le.PutUint32(it.b[:], uint32(it.logical))
			le.PutUint32(it.b[4:], uint32(at))
			le.PutUint16(it.b[8:], uint16(at>>32))
			above = append(above, it)
		}
		items = above
	}
	node(body, items, 4, depth)
	return took, nil
}

// blockList writes the older map below an inode: twelve blocks, then blocks of block numbers.
func (w *Writer) blockList(near uint32, body []byte, x []extent) (took uint64, err error) {
	le := binary.LittleEndian
	end := uint64(0)
	if len(x) > 0 {
		end = x[len(x)-1].logical + x[len(x)-1].n
	}
	k := 0 // of x
	at := func(logical uint64) uint32 {
		for k < len(x) && logical >= x[k].logical+x[k].n {
			k++
		}
		if k == len(x) || logical < x[k].logical {
			return 0 // a hole
		}
		return uint32(x[k].start + logical - x[k].logical)
	}
	per := uint64(w.fs.BlockSize / 4)
	next := uint64(0)
	var fill func(depth int) (uint32, error)
	fill = func(depth int) (uint32, error) {
		if next >= end {
			return 0, nil
		}
		if depth == 0 {
			next++
			return at(next - 1), nil
		}
		n, b, err := w.allocOne(near)
		if err != nil {
			return 0, err
		}
		if n > 1<<32-1 {
			return 0, fmt.Errorf("%w: block %d can't be named", ErrFull, n)
		}
		took++
		for j := range per {
			p, err := fill(depth - 1)
			if err != nil {
				return 0, err
			}
			le.PutUint32(b[4*j:], p)
		}
		return uint32(n), nil
	}
	for j := range 15 {
		p, err := fill(max(0, j-11))
		if err != nil {
			return 0, err
		}
		le.PutUint32(body[4*j:], p)
	}
	return took, nil
}
