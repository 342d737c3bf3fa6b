package swarm

import (
	"maps"
	"slices"
	"sync"
)

const (
	// cacheSize bounds the packed chunks that are kept to be given to others. What others ask for is mostly what has just come.
	cacheSize = 8 << 20
	// spareSize bounds the memory that is kept for chunks to come: that of some, of usual size.
	spareSize = 4 << 20
)

// packed is a chunk as it goes over the wire.
type packed struct {
	chunk    int
	encoding encoding
	data     []byte
	pins     int // transfers that are sending it
	used     uint64
}

// cache holds packed chunks. Those that are being sent can't be thrown out, so that it also bounds the memory of all transfers.
type cache struct {
	mu    sync.Mutex
	all   map[int]*packed
	bytes int
	clock uint64
	spare [][]byte // memory that nobody uses
}

// room gives memory for n bytes of a packed chunk, used before if there is some. Chunks come all the time: fresh memory for each costs more
// than all else that is done with it.
func (c *cache) room(n int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, b := range c.spare {
		if cap(b) >= n && cap(b)/2 <= n {
			c.spare = slices.Delete(c.spare, k, k+1)
			return b[:n]
		}
	}
	const grain = 64 << 10 // so that chunks of about the same size fit into each other's
	return make([]byte, n, (n+grain-1)/grain*grain)
}

// free takes memory back that room gave, and that nobody uses any more.
func (c *cache) free(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freeLocked(b)
}

func (c *cache) freeLocked(b []byte) {
	c.spare = append(c.spare, b)
	size := 0
	for _, b := range c.spare {
		size += cap(b)
	}
	for size > spareSize {
		size -= cap(c.spare[0])
		c.spare = slices.Delete(c.spare, 0, 1)
	}
}

// pin finds a chunk and holds it until unpin; nil when it is not there.
func (c *cache) pin(chunk int) *packed {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.all[chunk]
	if p == nil {
		return nil
	}
	c.clock++
	p.used = c.clock
	p.pins++
	return p
}

func (c *cache) unpin(p *packed) {
	c.mu.Lock()
	p.pins--
	c.mu.Unlock()
}

// put keeps a chunk that has come, if there is room. The data are the cache's from then on.
func (c *cache) put(chunk int, e encoding, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all[chunk] != nil || !c.makeRoom(len(data)) {
		c.freeLocked(data)
		return
	}
	c.add(&packed{chunk: chunk, encoding: e, data: data})
}

// putPinned keeps a chunk and holds it until unpin; the data are the cache's. It returns nil when there is no room because everything is being
// sent.
func (c *cache) putPinned(chunk int, e encoding, data []byte) *packed {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.makeRoom(len(data)) {
		c.freeLocked(data)
		return nil
	}
	p := &packed{chunk: chunk, encoding: e, data: data, pins: 1}
	c.add(p)
	return p
}

// chunks lists what is there.
func (c *cache) chunks() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.all))
}

func (c *cache) add(p *packed) {
	c.clock++
	p.used = c.clock
	if c.all == nil {
		c.all = map[int]*packed{}
	}
	c.all[p.chunk] = p
	c.bytes += len(p.data)
}

func (c *cache) makeRoom(n int) bool {
	for c.bytes+n > cacheSize {
		var oldest *packed
		for _, p := range c.all {
			if p.pins == 0 && (oldest == nil || p.used < oldest.used) {
				oldest = p
			}
		}
		if oldest == nil {
			return false
		}
		delete(c.all, oldest.chunk)
		c.bytes -= len(oldest.data)
		c.freeLocked(oldest.data)
	}
	return true
}
