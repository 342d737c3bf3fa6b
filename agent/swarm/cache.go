package swarm

import (
	"maps"
	"slices"
	"sync"
)

// cacheSize bounds the packed chunks that are kept to be given to others. What others ask for is mostly what has just come.
const cacheSize = 8 << 20

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
	if c.all[chunk] == nil && c.makeRoom(len(data)) {
		c.add(&packed{chunk: chunk, encoding: e, data: data})
	}
}

// putPinned keeps a chunk and holds it until unpin. It returns nil when there is no room because everything is being sent.
func (c *cache) putPinned(chunk int, e encoding, data []byte) *packed {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.makeRoom(len(data)) {
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
	}
	return true
}
