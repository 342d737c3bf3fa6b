package chunked

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// A bufferPool is a fixed amount of memory that is lent in pieces of any size. Requests wait in order for a free piece,
// so that small ones don't starve large ones. The holder of a piece must not wait for another.
type bufferPool struct {
	size int
	mem  []byte // nil: not requested yet

	mu      sync.Mutex
	lent    []extent // in ascending order
	waiting []*waiter
}

type extent struct{ off, n int }

type waiter struct {
	n    int
	got  []byte
	done chan struct{}
}

// newBufferPool returns a pool of n bytes.
func newBufferPool(n int) *bufferPool { return &bufferPool{size: n} }

// take lends n bytes with arbitrary content.
func (p *bufferPool) take(ctx context.Context, n int) ([]byte, error) {
	if n <= 0 || n > p.size {
		return nil, fmt.Errorf("%d bytes of memory are requested, the pool has %d", n, p.size)
	}
	w := &waiter{n: n, done: make(chan struct{})}
	p.mu.Lock()
	if p.mem == nil {
		p.mem = make([]byte, p.size)
	}
	p.waiting = append(p.waiting, w)
	p.serve()
	p.mu.Unlock()
	select {
	case <-w.done:
		return w.got, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.got != nil {
		p.back(w.got)
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(o *waiter) bool { return o == w })
	p.serve()
	return nil, context.Cause(ctx)
}

// give returns a piece: one that take lent, or a prefix of it.
func (p *bufferPool) give(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.back(b)
	p.serve()
}

func (p *bufferPool) back(b []byte) {
	i := slices.IndexFunc(p.lent, func(e extent) bool { return &p.mem[e.off] == &b[0] })
	if i < 0 {
		panic("chunked: memory given back that was not lent")
	}
	p.lent = slices.Delete(p.lent, i, i+1)
}

// empty frees the memory until the next request, if nothing is lent.
func (p *bufferPool) empty() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lent) == 0 && len(p.waiting) == 0 {
		p.mem = nil
	}
}

// serve lends to the waiting requests, in order, as long as the first fits.
func (p *bufferPool) serve() {
	for len(p.waiting) > 0 {
		w := p.waiting[0]
		at, i := p.find(w.n)
		if i < 0 {
			return
		}
		p.lent = slices.Insert(p.lent, i, extent{at, w.n})
		p.waiting = slices.Delete(p.waiting, 0, 1)
		w.got = p.mem[at : at+w.n : at+w.n]
		close(w.done)
	}
}

// find returns the first gap of n bytes, and its index among the lent extents.
func (p *bufferPool) find(n int) (at, i int) {
	for i, e := range p.lent {
		if e.off-at >= n {
			return at, i
		}
		at = e.off + e.n
	}
	if p.size-at >= n {
		return at, len(p.lent)
	}
	return 0, -1
}
