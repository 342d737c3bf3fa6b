package qcow2

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

const (
	offsetMask   = 1<<56 - 1<<9
	copiedFlag   = 1 << 63
	compressFlag = 1 << 62
	zeroFlag     = 1
	// Reserved bits of an entry in L1, and of an uncompressed one in L2.
	l1Reserved = ^uint64(offsetMask | copiedFlag)
	l2Reserved = ^uint64(offsetMask | copiedFlag | compressFlag | zeroFlag)

	// tables hold the sector of an L2 table, and its number.
	tableBits = 22

	headerMax  = 64 << 10
	firstRead  = 512 << 10 // tables of a small image are within it
	maxRequest = 1 << 20
	maxGap     = 128 << 10 // up to which a gap is read through instead of a new request
)

// opener reads the tables.
type opener struct {
	at       io.ReaderAt
	fileSize int64
	first    []byte // the beginning of the file
	buf      []byte
	h        *Header
	m        *mapping
	budget   budget

	fixed  []*check
	tables []uint64
	groups []group
	blocks []int64 // of reference counts
	end    int64   // of what the tables name
}

// packedMax is the maximum read for a compressed cluster. Writers store clusters uncompressed that would become larger.
func packedMax(cluster int64) int64 { return cluster + cluster/64 + 2*sector }

// readAt fills p, or all but slack of it at the file's end.
func (o *opener) readAt(p []byte, off int64, slack int) error {
	if off+int64(len(p)) <= int64(len(o.first)) {
		copy(p, o.first[off:])
		return nil
	}
	n, err := o.at.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == io.EOF && n > 0 && len(p)-n <= min(slack, tolerated(off+int64(len(p)), o.fileSize)):
		clear(p[n:])
		return nil
	case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
		return truncated(fmt.Sprintf("at byte %d, within what its tables name", off+int64(n)))
	case err == nil:
		err = io.ErrNoProgress
	}
	return fmt.Errorf("read the tables of the qcow2 image at byte %d: %w", off, err)
}

// span is a part of the file.
type span struct{ off, end int64 }

// tolerated returns how much may be missing at the end byte: the part known to be beyond the file's end, less than a
// sector.
func tolerated(end, fileSize int64) int {
	if fileSize < 0 {
		return sector - 1
	}
	return int(min(max(0, end-fileSize), sector-1))
}

// fetch reads n spans, in ascending order, with few requests. begin is called for each request with the number of its
// first span.
func (o *opener) fetch(n int, at func(i int) span, slack int, begin func(i int),
	got func(i int, b []byte) error) error {
	for i := 0; i < n; {
		s := at(i)
		j := i + 1
		for ; j < n; j++ {
			next := at(j)
			if next.off > s.end+maxGap || next.end-s.off > int64(len(o.buf)) {
				break
			}
			s.end = max(s.end, next.end)
		}
		b := o.buf[:s.end-s.off]
		if err := o.readAt(b, s.off, slack); err != nil {
			return err
		}
		begin(i)
		for ; i < j; i++ {
			x := at(i)
			if err := got(i, b[x.off-s.off:x.end-s.off]); err != nil {
				return err
			}
		}
	}
	return nil
}

// table reads a contiguous table, and records its digest.
func (o *opener) table(what string, off, n int64, got func(off int64, b []byte) error) error {
	h := sha256.New()
	for done := int64(0); done < n; {
		b := o.buf[:min(n-done, maxRequest)]
		if err := o.readAt(b, off+done, 0); err != nil {
			return err
		}
		h.Write(b)
		if err := got(done, b); err != nil {
			return err
		}
		done += int64(len(b))
	}
	c := &check{what: what, span: span{off, off + n}, h: sha256.New()}
	h.Sum(c.sum[:0])
	o.fixed = append(o.fixed, c)
	return nil
}

func (o *opener) within(what string, off, n int64) error {
	if off+n > maxHost {
		return damaged("%s is said to be at byte %d", what, off)
	}
	if o.fileSize >= 0 && off+n > o.fileSize {
		return truncated(fmt.Sprintf("after %d bytes, and %s should be at byte %d", o.fileSize, what, off))
	}
	o.end = max(o.end, off+n)
	return nil
}

func (o *opener) header(l Limits) error {
	n := int64(firstRead)
	if o.fileSize >= 0 {
		n = min(n, o.fileSize)
	}
	first := make([]byte, n)
	m, err := o.at.ReadAt(first, 0)
	if int64(m) < n && err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
		err = cmp.Or(err, io.ErrNoProgress)
		return fmt.Errorf("read the header of the qcow2 image: %w", err)
	}
	o.first = first[:m]
	if o.fileSize >= 0 && int64(m) < n {
		return truncated(fmt.Sprintf("after %d bytes instead of %d", m, o.fileSize))
	}
	if o.h, err = parseHeader(o.first[:min(m, headerMax)], o.fileSize, l); err != nil {
		return err
	}
	if o.h.Snapshots > 0 {
		o.end = o.h.snapshots + 1
	}
	o.buf = make([]byte, max(maxRequest, packedMax(o.h.cluster())))
	return o.table("its header", 0, min(int64(m), headerMax, o.h.cluster()), func(int64, []byte) error { return nil })
}

// refcounts reads where the blocks of reference counts are, just to see that nothing else is there. An image that was
// not closed has reference counts that are behind its tables.
func (o *opener) refcounts() error {
	h := o.h
	if h.Dirty {
		return nil
	}
	n := h.refcountClusters << h.ClusterBits
	if o.fileSize >= 0 {
		perBlock := h.cluster() * 8 / int64(h.RefcountBits) * h.cluster() // bytes of the file
		n = min(n, (o.fileSize+perBlock-1)/perBlock*8)
	}
	if err := o.within("its table of reference counts", h.refcounts, n); err != nil {
		return err
	}
	return o.table("its table of reference counts", h.refcounts, n, func(_ int64, b []byte) error {
		for ; len(b) > 0; b = b[8:] {
			e := binary.BigEndian.Uint64(b)
			if e == 0 {
				continue
			}
			if e%uint64(h.cluster()) != 0 || e >= maxHost {
				return damaged("its table of reference counts names byte %d, where no block of them can be", e)
			}
			if err := o.within("a block of reference counts", int64(e), h.cluster()); err != nil {
				return err
			}
			if len(o.blocks) == cap(o.blocks) {
				if err := o.budget.take(2 * 8 * 512); err != nil {
					return err
				}
				o.blocks = slices.Grow(o.blocks, 512)
			}
			o.blocks = append(o.blocks, int64(e))
		}
		return nil
	})
}

// l1 lists the L2 tables.
func (o *opener) l1() error {
	h := o.h
	if err := o.within("its L1 table", h.l1, h.l1Need()*8); err != nil {
		return err
	}
	most := h.l1Need()
	if o.fileSize >= 0 {
		most = min(most, o.fileSize>>h.ClusterBits)
	}
	most = min(most, o.budget.left/8)
	o.tables = make([]uint64, 0, most)
	err := o.table("its L1 table", h.l1, h.l1Need()*8, func(off int64, b []byte) error {
		for i := int64(0); i < int64(len(b)); i += 8 {
			e := binary.BigEndian.Uint64(b[i:])
			if e == 0 {
				continue
			}
			host := e & offsetMask
			if e&l1Reserved != 0 || host == 0 || host%uint64(h.cluster()) != 0 || host >= maxHost {
				return damaged("its L1 table names an L2 table at byte %d by %#x, which can't be", host, e)
			}
			if err := o.within("an L2 table", int64(host), h.cluster()); err != nil {
				return err
			}
			if len(o.tables) == cap(o.tables) {
				if o.fileSize >= 0 && most == o.fileSize>>h.ClusterBits {
					return damaged("it has more L2 tables than its file has clusters")
				}
				return o.budget.take(o.budget.left + 1)
			}
			if err := o.budget.take(8); err != nil {
				return err
			}
			o.tables = append(o.tables, host/sector<<tableBits|uint64((off+i)/8))
		}
		return nil
	})
	slices.Sort(o.tables)
	return err
}

func tableAt(t uint64) int64 { return int64(t>>tableBits) * sector }

// l2 reads the L2 tables.
func (o *opener) l2() error {
	for i := 1; i < len(o.tables); i++ {
		if a, b := o.tables[i-1], o.tables[i]; tableAt(a) == tableAt(b) {
			return damaged("two entries of its L1 table, %d and %d, name the same L2 table at byte %d",
				a&(1<<tableBits-1), b&(1<<tableBits-1), tableAt(a))
		}
	}
	sum := sha256.New()
	flush := func() {
		if len(o.groups) > 0 {
			sum.Sum(o.groups[len(o.groups)-1].sum[:0])
			sum.Reset()
		}
	}
	cluster := o.h.cluster()
	err := o.fetch(len(o.tables), func(i int) span { off := tableAt(o.tables[i]); return span{off, off + cluster} }, 0,
		func(i int) {
			flush()
			o.groups = append(o.groups, group{first: i})
		},
		func(i int, b []byte) error {
			sum.Write(b)
			return o.clusters(int64(o.tables[i]&(1<<tableBits-1)), b)
		})
	flush()
	if err != nil {
		return err
	}
	return o.budget.take(int64(cap(o.groups)) * 40)
}

// clusters parses one L2 table.
func (o *opener) clusters(index int64, b []byte) error {
	size := int64(len(b)) / o.h.l2Entries()
	guest := index * o.h.l2Entries() << o.h.ClusterBits
	for ; len(b) > 0 && guest < o.h.Size; b, guest = b[size:], guest+o.h.cluster() {
		e := binary.BigEndian.Uint64(b)
		var bits uint64
		if o.h.Extended {
			bits = binary.BigEndian.Uint64(b[8:])
		}
		if e == 0 && bits == 0 {
			continue
		}
		var err error
		if e&compressFlag != 0 {
			err = o.compressed(e, bits, guest)
		} else {
			err = o.plain(e, bits, guest)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func badEntry(guest int64, e uint64) error {
	return damaged("the entry of an L2 table for byte %d of the disk can't be: %#x", guest, e)
}

func (o *opener) compressed(e, bits uint64, guest int64) error {
	shift := 62 - (o.h.ClusterBits - 8)
	host := int64(e & (1<<shift - 1))
	if e&copiedFlag != 0 || bits != 0 || host >= maxHost || host == 0 {
		return badEntry(guest, e)
	}
	sectors := int64(e&(compressFlag-1)>>shift) + 1
	end := host&^(sector-1) + sectors*sector
	end = min(end, (host+packedMax(o.h.cluster()))&^(sector-1))
	// The last sector of a file may be partial.
	if err := o.within("data", host, max(1, end-host-(sector-1))); err != nil {
		return err
	}
	return o.m.compressed(host, end, guest)
}

func (o *opener) plain(e, bits uint64, guest int64) error {
	host := int64(e & offsetMask)
	n := min(o.h.cluster(), o.h.Size-guest)
	alloc, zero := uint32(bits), uint32(bits>>32)
	switch {
	case e&l2Reserved != 0 || host&(o.h.cluster()-1) != 0 || host >= maxHost:
		return badEntry(guest, e)
	case e&zeroFlag != 0 && (o.h.Version == 2 || o.h.Extended):
		return badEntry(guest, e)
	case alloc&zero != 0:
		return damaged("the entry of an L2 table for byte %d of the disk says of the same bytes that they are data and zeros: %#x", guest, bits)
	case e&zeroFlag != 0:
		return nil
	case host == 0 && (e != 0 || alloc != 0):
		return badEntry(guest, e)
	case host == 0 || o.h.Extended && alloc == 0:
		return nil
	case o.h.Extended && alloc != ^uint32(0):
		return o.parts(host, guest, n, alloc)
	}
	if err := o.within("data", host, n); err != nil {
		return err
	}
	return o.m.plain(host, guest, n)
}

// parts handles a cluster of which not all subclusters are data.
func (o *opener) parts(host, guest, n int64, alloc uint32) error {
	sub := o.h.cluster() / subclusters
	for i := range int64(subclusters) {
		if alloc&(1<<i) == 0 || i*sub >= n {
			continue
		}
		part := min(sub, n-i*sub)
		if err := o.within("data", host+i*sub, part); err != nil {
			return err
		}
		if err := o.m.plain(host+i*sub, guest+i*sub, part); err != nil {
			return err
		}
	}
	return nil
}

// claim is a part of the file and its use.
type claim struct {
	span
	what   string
	packed bool
	guest  int64
}

// overlaps checks all known parts of the file, in order: each byte may have one use.
func (o *opener) overlaps() error {
	h := o.h
	round := func(n int64) int64 { return (n + h.cluster() - 1) &^ (h.cluster() - 1) }
	fixed := []claim{
		{span: span{0, h.cluster()}, what: "the header"},
		{span: span{h.l1, h.l1 + round(h.l1Size*8)}, what: "the L1 table"},
		{span: span{h.refcounts, h.refcounts + h.refcountClusters<<h.ClusterBits},
			what: "the table of reference counts"},
	}
	if h.Snapshots > 0 {
		fixed = append(fixed, claim{span: span{h.snapshots, h.snapshots + 1}, what: "the list of snapshots"})
	}
	slices.SortFunc(fixed, func(a, b claim) int { return cmp.Compare(a.off, b.off) })
	slices.Sort(o.blocks)
	data := walk{m: o.m}
	// The next claim of each kind.
	var f, b, t int
	p, more := data.next()
	var prev claim
	for {
		next := claim{span: span{off: -1}}
		earlier := func(off int64) bool { return next.off < 0 || off < next.off }
		kind := 0
		if f < len(fixed) {
			next, kind = fixed[f], 1
		}
		if b < len(o.blocks) && earlier(o.blocks[b]) {
			next, kind = claim{span: span{o.blocks[b], o.blocks[b] + h.cluster()}, what: "a block of reference counts"},
				2
		}
		if t < len(o.tables) && earlier(tableAt(o.tables[t])) {
			next, kind = claim{span: span{tableAt(o.tables[t]), tableAt(o.tables[t]) + h.cluster()},
				what: "an L2 table"}, 3
		}
		if more && earlier(p.host) {
			next, kind = claim{span: span{p.host, p.end}, what: "data", packed: p.packed, guest: p.guest}, 4
		}
		switch kind {
		case 0:
			return nil
		case 1:
			f++
		case 2:
			b++
		case 3:
			t++
		case 4:
			p, more = data.next()
		}
		if err := next.beside(prev, h.cluster()); err != nil {
			return err
		}
		prev = next
	}
}

// beside compares two neighbours.
func (c claim) beside(prev claim, cluster int64) error {
	bad := c.off < prev.end
	switch {
	case c.packed && prev.packed:
		// The end of a compressed cluster is only known by sector; the next one may begin in its last sector.
		bad = c.off <= prev.off || c.off < prev.end-sector
	case c.what == "data" && prev.what == "data" && !c.packed && !prev.packed:
		// Parts of a cluster that is used twice.
		bad = bad || (prev.end-1)&^(cluster-1) == c.off&^(cluster-1) &&
			c.off-prev.end != c.guest-(prev.guest+prev.end-prev.off)
	}
	if bad {
		return damaged("byte %d of the file is used twice, for %s and for %s", c.off, prev.what, c.what)
	}
	return nil
}
