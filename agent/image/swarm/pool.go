package swarm

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/ingot-metal/ingot/images/index"
)

const (
	packedMemory = 16 << 20 // all packed chunks together, unless the image is very large
	// bytes of an agent's state per chunk of the image, which reduce the memory for packed chunks
	perChunk  = 64
	mostSpare = 4 << 20  // unused, kept for coming chunks
	grain     = 64 << 10 // of pieces, so that chunks of similar size can reuse them
)

// packed is a chunk in its transfer format.
type packed struct {
	chunk    int
	encoding encoding
	data     []byte
	pins     int // transfers that are sending it
	used     uint64
}

// pool is the memory of all packed chunks. A user reserves memory first, then gets it with take, and ends with free and
// release, or with keep.
//
// Incoming chunks have priority: kept ones are dropped for them, but not while they are being sent, which is why
// neither may use everything.
type pool struct {
	size   int // all together
	onWay  int // limit of reservations for incoming chunks
	toKeep int // limit of kept chunks for others, who mostly request recent ones

	mu       sync.Mutex
	freed    chan struct{} // closed and replaced when more may be reserved; nil: no waiter
	reserved int
	lent     int // by take
	kept     int
	all      map[int]*packed // kept chunks
	clock    uint64
	unused   int
	spare    [][]byte // unused pieces
}

// newPool returns a pool for an image of that many chunks.
func newPool(chunks int) *pool {
	size := max(packedMemory-perChunk*chunks, 2*index.MaxStored)
	each := size - index.MaxStored
	return &pool{size: size, onWay: min(3*index.MaxStored, each), toKeep: min(10<<20, each)}
}

// reserve waits until n bytes may be used. The holder of a reservation must not wait for another.
func (p *pool) reserve(ctx context.Context, n int) error {
	for {
		p.mu.Lock()
		if p.reserved+n <= p.onWay && p.makeRoom(n, p.size-p.reserved) {
			p.reserved += n
			p.mu.Unlock()
			return nil
		}
		if p.freed == nil {
			p.freed = make(chan struct{})
		}
		freed := p.freed
		p.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reserveNow reserves n bytes for a chunk that will be kept; false if that is impossible now.
func (p *pool) reserveNow(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.makeRoom(n, min(p.size-p.reserved, p.toKeep)) {
		return false
	}
	p.reserved += n
	return true
}

func (p *pool) release(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved -= n
	p.rouse()
}

func (p *pool) rouse() {
	if p.freed != nil {
		close(p.freed)
		p.freed = nil
	}
}

// take returns n bytes of reserved memory, reusing a piece if possible: fresh memory for each chunk would be the
// largest cost of handling it.
func (p *pool) take(n int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, b := range p.spare {
		if cap(b) >= n && cap(b)/2 <= n {
			p.spare = slices.Delete(p.spare, k, k+1)
			p.unused -= cap(b)
			p.lent += cap(b)
			return b[:n]
		}
	}
	size := (n + grain - 1) / grain * grain
	p.forget(packedMemory - p.lent - p.kept - size)
	p.lent += size
	return make([]byte, n, size)
}

// free returns memory from take that is not used any more.
func (p *pool) free(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lent -= cap(b)
	p.idle(b)
}

func (p *pool) idle(b []byte) {
	p.spare = append(p.spare, b)
	p.unused += cap(b)
	p.forget(mostSpare)
}

// forget drops unused pieces beyond most bytes.
func (p *pool) forget(most int) {
	for p.unused > max(most, 0) {
		p.unused -= cap(p.spare[0])
		p.spare = slices.Delete(p.spare, 0, 1)
	}
}

// keep keeps a chunk, in memory from take, so that others may have it, and releases its reservation. With pin set the
// chunk is held until unpin. It returns nil if it can't be kept; then the memory is free.
func (p *pool) keep(chunk int, e encoding, data []byte, reserved int, pin bool) *packed {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.rouse()
	p.reserved -= reserved
	p.lent -= cap(data)
	if p.all[chunk] != nil || !p.makeRoom(cap(data), p.toKeep) {
		p.idle(data)
		return nil
	}
	if p.all == nil {
		p.all = map[int]*packed{}
	}
	p.clock++
	k := &packed{chunk: chunk, encoding: e, data: data, used: p.clock}
	if pin {
		k.pins++
	}
	p.all[chunk] = k
	p.kept += cap(data)
	return k
}

// makeRoom drops the least recently used chunks until n more bytes can be kept.
func (p *pool) makeRoom(n, most int) bool {
	for p.kept+n > most {
		var oldest *packed
		for _, k := range p.all {
			if k.pins == 0 && (oldest == nil || k.used < oldest.used) {
				oldest = k
			}
		}
		if oldest == nil {
			return false
		}
		delete(p.all, oldest.chunk)
		p.kept -= cap(oldest.data)
		p.idle(oldest.data)
	}
	return true
}

// pin returns a chunk and holds it until unpin; nil if it is not kept.
func (p *pool) pin(chunk int) *packed {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.all[chunk]
	if k == nil {
		return nil
	}
	p.clock++
	k.used = p.clock
	k.pins++
	return k
}

func (p *pool) unpin(k *packed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k.pins--
	p.rouse()
}

// chunks lists the kept chunks.
func (p *pool) chunks() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.all))
}
