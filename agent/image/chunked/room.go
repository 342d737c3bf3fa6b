package chunked

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// A room is a fixed amount of memory that is lent in pieces of any size. Who asks waits until there is a piece, in the
// order of asking, so that large pieces are not starved by small ones. Whoever holds a piece must not wait for another.
type room struct {
	size int
	mem  []byte // nil: nobody has asked yet

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

// newRoom makes a room of n bytes.
func newRoom(n int) *room { return &room{size: n} }

// take lends n bytes, which hold whatever they held before.
func (r *room) take(ctx context.Context, n int) ([]byte, error) {
	if n <= 0 || n > r.size {
		return nil, fmt.Errorf("%d bytes of memory are asked for where there are %d", n, r.size)
	}
	w := &waiter{n: n, done: make(chan struct{})}
	r.mu.Lock()
	if r.mem == nil {
		r.mem = make([]byte, r.size)
	}
	r.waiting = append(r.waiting, w)
	r.serve()
	r.mu.Unlock()
	select {
	case <-w.done:
		return w.got, nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.got != nil {
		r.back(w.got)
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(o *waiter) bool { return o == w })
	r.serve()
	return nil, context.Cause(ctx)
}

// give takes a piece back: one that take lent, or a beginning of it.
func (r *room) give(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.back(b)
	r.serve()
}

func (r *room) back(b []byte) {
	i := slices.IndexFunc(r.lent, func(e extent) bool { return &r.mem[e.off] == &b[0] })
	if i < 0 {
		panic("chunked: memory given back that was not lent")
	}
	r.lent = slices.Delete(r.lent, i, i+1)
}

// empty gives the memory back for as long as nobody asks for any, if all is there.
func (r *room) empty() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lent) == 0 && len(r.waiting) == 0 {
		r.mem = nil
	}
}

// serve lends to those who wait for as long as there is room for the first of them.
func (r *room) serve() {
	for len(r.waiting) > 0 {
		w := r.waiting[0]
		at, i := r.find(w.n)
		if i < 0 {
			return
		}
		r.lent = slices.Insert(r.lent, i, extent{at, w.n})
		r.waiting = slices.Delete(r.waiting, 0, 1)
		w.got = r.mem[at : at+w.n : at+w.n]
		close(w.done)
	}
}

// find looks for the first gap of n bytes, and its place among what is lent.
func (r *room) find(n int) (at, i int) {
	for i, e := range r.lent {
		if e.off-at >= n {
			return at, i
		}
		at = e.off + e.n
	}
	if r.size-at >= n {
		return at, len(r.lent)
	}
	return 0, -1
}
