package swarm

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/ingot-metal/ingot/images/index"
)

const (
	packedMemory = 16 << 20 // all packed chunks together, where the image is not very large
	// bytes that an agent has to know of each chunk of the image, and that packed chunks can't have
	perChunk  = 64
	mostSpare = 4 << 20  // used by nobody, kept for chunks to come
	grain     = 64 << 10 // of pieces, so that chunks of about the same size fit into each other's
)

// packed is a chunk as it goes over the wire.
type packed struct {
	chunk    int
	encoding encoding
	data     []byte
	pins     int // transfers that are sending it
	used     uint64
}

// pool is the memory of all packed chunks. Who needs some reserves it first, then has it by room, and ends with free
// and release, or with keep.
//
// Chunks on their way have priority: others are thrown out for them, but not while they are being sent, which is why
// neither may have everything.
type pool struct {
	size   int // all together
	onWay  int // what may be reserved for chunks on their way
	toKeep int // what may be kept to be given to others, who ask mostly for what has just come

	mu       sync.Mutex
	freed    chan struct{} // closed, and made anew, when there may be more to reserve; nil: nobody waits
	reserved int
	lent     int // by room
	kept     int
	all      map[int]*packed // what is kept
	clock    uint64
	unused   int
	spare    [][]byte // what is unused
}

// newPool makes one for an image of so many chunks.
func newPool(chunks int) *pool {
	size := max(packedMemory-perChunk*chunks, 2*index.MaxStored)
	each := size - index.MaxStored
	return &pool{size: size, onWay: min(3*index.MaxStored, each), toKeep: min(10<<20, each)}
}

// reserve waits until n bytes may be used. Whoever has reserved some must not wait for more.
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

// reserveNow reserves n bytes for a chunk that will be kept; false when that can't be now.
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

// room gives n bytes of what was reserved, used before if there are some: fresh memory for each chunk costs more than
// all else that is done with it.
func (p *pool) room(n int) []byte {
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

// free takes memory back that room gave, and that nobody uses any more.
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

// forget leaves so much that is unused.
func (p *pool) forget(most int) {
	for p.unused > max(most, 0) {
		p.unused -= cap(p.spare[0])
		p.spare = slices.Delete(p.spare, 0, 1)
	}
}

// keep keeps a chunk, in memory that room gave, so that others may have it. What was reserved for it is released. It
// holds the chunk until unpin if asked to. It gives nil when that can't be; then the memory is free.
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

// makeRoom throws out what was not used for longest until n more bytes can be kept.
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

// pin finds a chunk and holds it until unpin; nil when it is not there.
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

// chunks lists what is kept.
func (p *pool) chunks() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.all))
}
