package qcow2

import (
	"encoding/binary"
	"sort"
)

// run is a contiguous piece of the disk that is contiguous in the file: plain bytes, or consecutive compressed
// clusters. It is packed into two words, because a fragmented image has a million of them:
//
//	packed 1 | upper bits of the extent 13 | offset in the file 50
//	offset on the disk, in sectors 44 | lower bits of the extent 20
//
// The extent of plain bytes is their number of sectors; of compressed clusters, their number 8 | the index of their
// code 25.
type run struct{ a, b uint64 }

const (
	packedFlag = 1 << 63
	hostBits   = 50
	lowBits    = 20
	codeBits   = 25
	maxPlain   = 1<<33 - 1 // sectors
	maxPacked  = 1<<8 - 1  // clusters
	runBytes   = 16
	runChunk   = 1 << 11 // runs that are allocated together
	codeChunk  = 1 << 15 // bytes
)

func plainRun(host, guest, n int64) run {
	r := run{uint64(host), uint64(guest) / sector << lowBits}
	r.setExtent(uint64(n / sector))
	return r
}

func packedRun(host, guest int64, n, code uint32) run {
	r := run{uint64(host) | packedFlag, uint64(guest) / sector << lowBits}
	r.setExtent(uint64(n)<<codeBits | uint64(code))
	return r
}

func (r *run) packed() bool    { return r.a&packedFlag != 0 }
func (r *run) hostOff() int64  { return int64(r.a & (1<<hostBits - 1)) }
func (r *run) guestOff() int64 { return int64(r.b>>lowBits) * sector }
func (r *run) extent() uint64  { return r.a&^packedFlag>>hostBits<<lowBits | r.b&(1<<lowBits-1) }

func (r *run) setExtent(x uint64) {
	r.a = r.a&(packedFlag|1<<hostBits-1) | x>>lowBits<<hostBits
	r.b = r.b&^(1<<lowBits-1) | x&(1<<lowBits-1)
}

// sectors of a plain run; clusters and code of a packed one.
func (r *run) sectors() int64   { return int64(r.extent()) }
func (r *run) clusters() uint32 { return uint32(r.extent() >> codeBits) }
func (r *run) code() uint32     { return uint32(r.extent() & (1<<codeBits - 1)) }

// budget limits the memory of the mapping.
type budget struct{ left int64 }

func (b *budget) take(n int64) error {
	if b.left -= n; b.left < 0 {
		return refuse(remedyClusters,
			"it is in too many pieces: the list of them needs more memory than is allowed for it")
	}
	return nil
}

// mapping holds the place of each piece of the disk in the file. It grows in chunks, so that growing leaves no garbage.
type mapping struct {
	budget  *budget
	cluster int64
	size    int64 // of the disk
	runs    [][]run
	code    [][]byte
	holes   [][]byte
	holeSum int64
	dataSum int64 // bytes of the file to read for data

	// The end of the growing run, and the start of its last cluster.
	hostEnd, guestEnd, hostLast int64
}

func (m *mapping) len() int {
	if len(m.runs) == 0 {
		return 0
	}
	return (len(m.runs)-1)*runChunk + len(m.runs[len(m.runs)-1])
}

func (m *mapping) run(i int) *run { return &m.runs[i/runChunk][i%runChunk] }

func (m *mapping) last() *run {
	if n := m.len(); n > 0 {
		return m.run(n - 1)
	}
	return nil
}

func (m *mapping) push(r run) error {
	if m.len()%runChunk == 0 {
		if err := m.budget.take(runChunk * runBytes); err != nil {
			return err
		}
		m.runs = append(m.runs, make([]run, 0, runChunk))
	}
	c := &m.runs[len(m.runs)-1]
	*c = append(*c, r)
	return nil
}

// plain adds uncompressed bytes. All numbers are multiples of a sector.
func (m *mapping) plain(host, guest, n int64) error {
	r := m.last()
	if r != nil && !r.packed() && m.hostEnd == host && m.guestEnd == guest && r.sectors()+n/sector <= maxPlain {
		r.setExtent(uint64(r.sectors() + n/sector))
	} else if err := m.push(plainRun(host, guest, n)); err != nil {
		return err
	}
	m.hostEnd, m.guestEnd = host+n, guest+n
	m.dataSum += n
	return nil
}

// compressed adds a cluster whose compressed data is within the bytes of the file from host to end, which is a sector
// boundary.
//
// A cluster costs about three bytes: the distance of its start from the last sector of the previous one, and the number
// of its sectors.
func (m *mapping) compressed(host, end, guest int64) error {
	r := m.last()
	follows := r != nil && r.packed() && m.guestEnd == guest && host > m.hostLast && host > m.hostEnd-sector &&
		host <= m.hostEnd && r.clusters() < maxPacked
	if room := m.codeRoom(); room < 2*binary.MaxVarintLen64 {
		if err := m.budget.take(codeChunk); err != nil {
			return err
		}
		if len(m.code) == 1<<codeBits/codeChunk {
			return m.budget.take(m.budget.left + 1)
		}
		m.code, follows = append(m.code, make([]byte, 0, codeChunk)), false
	}
	base := host &^ (sector - 1)
	if follows {
		base = m.hostEnd - sector
		r.setExtent(r.extent() + 1<<codeBits)
	} else {
		at := (len(m.code)-1)*codeChunk + len(m.code[len(m.code)-1])
		if err := m.push(packedRun(host, guest, 1, uint32(at))); err != nil {
			return err
		}
	}
	c := &m.code[len(m.code)-1]
	*c = binary.AppendUvarint(*c, uint64(host-base))
	*c = binary.AppendUvarint(*c, uint64((end-host&^(sector-1))/sector))
	m.hostEnd, m.guestEnd, m.hostLast = end, guest+m.cluster, host
	m.dataSum += end - host
	return nil
}

func (m *mapping) codeRoom() int {
	if len(m.code) == 0 {
		return 0
	}
	return codeChunk - len(m.code[len(m.code)-1])
}

// guestLen returns the length of a run on the disk.
func (m *mapping) guestLen(r *run) int64 {
	if r.packed() {
		return min(int64(r.clusters())*m.cluster, m.size-r.guestOff())
	}
	return r.sectors() * sector
}

type byGuest struct{ *mapping }
type byHost struct{ *mapping }

func (m *mapping) Len() int          { return m.len() }
func (m *mapping) Swap(i, j int)     { a, b := m.run(i), m.run(j); *a, *b = *b, *a }
func (m byGuest) Less(i, j int) bool { return m.run(i).guestOff() < m.run(j).guestOff() }
func (m byHost) Less(i, j int) bool  { return m.run(i).hostOff() < m.run(j).hostOff() }
func (m *mapping) sortBy(less sort.Interface) {
	if !sort.IsSorted(less) {
		sort.Sort(less)
	}
}

// findHoles lists the ranges without a run, as distances in sectors: data, hole, data, hole. It leaves the runs in the
// disk's order.
func (m *mapping) findHoles() error {
	m.sortBy(byGuest{m})
	var off, from int64 // off: end of the known part, from: end of the last hole
	hole := func(to int64) error {
		if to == off {
			return nil
		}
		if n := len(m.holes); n == 0 || codeChunk-len(m.holes[n-1]) < 2*binary.MaxVarintLen64 {
			if err := m.budget.take(codeChunk); err != nil {
				return err
			}
			m.holes = append(m.holes, make([]byte, 0, codeChunk))
		}
		c := &m.holes[len(m.holes)-1]
		*c = binary.AppendUvarint(*c, uint64(off-from)/sector)
		*c = binary.AppendUvarint(*c, uint64(to-off)/sector)
		m.holeSum += to - off
		from = to
		return nil
	}
	for i := range m.len() {
		r := m.run(i)
		if err := hole(r.guestOff()); err != nil {
			return err
		}
		off = r.guestOff() + m.guestLen(r)
	}
	return hole(m.size)
}

// untangle sorts the runs into the file's order and ensures that no run begins within another one.
//
// Small compressed clusters share a sector, and clusters of several runs can alternate within it: the runs were made in
// the order of the disk, which does not show that. Such runs are split into their clusters.
func (m *mapping) untangle() error {
	m.sortBy(byHost{m})
	n := m.len()
	last := int64(-1) // start of the last cluster of all runs so far
	first := 0        // of the overlapping runs
	split := func(to int) error {
		if to-first < 2 {
			return nil
		}
		for i := first; i < to; i++ {
			if err := m.split(i); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range n {
		r := m.run(i)
		if r.hostOff() > last {
			if err := split(i); err != nil {
				return err
			}
			first = i
		}
		last = max(last, m.lastHost(i))
	}
	if err := split(n); err != nil {
		return err
	}
	m.sortBy(byHost{m})
	return nil
}

// lastHost returns the start of a run's last cluster; for a run of plain bytes, of the last sector.
func (m *mapping) lastHost(i int) int64 {
	r := m.run(i)
	if !r.packed() {
		return r.hostOff() + (r.sectors()-1)*sector
	}
	w := walk{m: m, i: i}
	host := r.hostOff()
	for w.i == i {
		p, _ := w.next()
		host = p.host
	}
	return host
}

// split makes a separate run of each compressed cluster.
func (m *mapping) split(i int) error {
	r := *m.run(i)
	if !r.packed() || r.clusters() == 1 {
		return nil
	}
	w := walk{m: m, i: i}
	w.next()
	for k := uint32(1); k < r.clusters(); k++ {
		code := w.code
		p, _ := w.next()
		if err := m.push(packedRun(p.host, p.guest, 1, code)); err != nil {
			return err
		}
	}
	m.run(i).setExtent(1<<codeBits | uint64(r.code()))
	return nil
}

// holeWalk yields the holes in order.
type holeWalk struct {
	m          *mapping
	chunk, pos int
	off, n     int64 // of the current one
}

// next advances to the next hole; false at the end.
func (w *holeWalk) next() bool {
	if w.chunk < len(w.m.holes) && w.pos == len(w.m.holes[w.chunk]) {
		w.chunk, w.pos = w.chunk+1, 0
	}
	if w.chunk == len(w.m.holes) {
		return false
	}
	c := w.m.holes[w.chunk]
	data, a := binary.Uvarint(c[w.pos:])
	hole, b := binary.Uvarint(c[w.pos+a:])
	w.pos += a + b
	w.off += w.n + int64(data)*sector
	w.n = int64(hole) * sector
	return true
}

// piece is a run of plain bytes, or one compressed cluster.
type piece struct {
	host, end int64 // in the file
	guest, n  int64 // on the disk; n is less than a cluster for one at the disk's end
	packed    bool
}

// walk yields the pieces of a mapping in the order of its runs. A copy of it is independent.
type walk struct {
	m    *mapping
	i    int
	k    uint32
	code uint32
	base int64
}

func (w *walk) next() (piece, bool) {
	if w.i >= w.m.len() {
		return piece{}, false
	}
	r := w.m.run(w.i)
	if !r.packed() {
		w.i++
		n := r.sectors() * sector
		return piece{host: r.hostOff(), end: r.hostOff() + n, guest: r.guestOff(), n: n}, true
	}
	if w.k == 0 {
		w.code = r.code()
	}
	c := w.m.code[w.code/codeChunk][w.code%codeChunk:]
	d, a := binary.Uvarint(c)
	sectors, b := binary.Uvarint(c[a:])
	w.code += uint32(a + b)
	host := w.base + int64(d)
	if w.k == 0 {
		host = r.hostOff() // a run split from another one does not begin with its own base
	}
	p := piece{host: host, end: host&^(sector-1) + int64(sectors)*sector, guest: r.guestOff() + int64(w.k)*w.m.cluster,
		packed: true}
	p.n = min(w.m.cluster, w.m.size-p.guest)
	w.base = p.end - sector
	if w.k++; w.k == r.clusters() {
		w.i, w.k = w.i+1, 0
	}
	return p, true
}
