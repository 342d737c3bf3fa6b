package chunked

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/ingot-metal/ingot/images/index"
)

// lists returns the digests of blocks. Block lists are fetched on demand, and a few are cached: neighbouring chunks
// share a list.
type lists struct {
	x       *index.Index
	objects Objects
	pool    *bufferPool
	keep    int // number of cached lists, of up to 2 MiB each

	mu   sync.Mutex
	kept []*list      // most recently used first
	free index.Blocks // memory of a dropped list
}

type list struct {
	i      int
	mu     sync.RWMutex // held during the fetch, and by readers during use
	blocks index.Blocks
}

func newLists(x *index.Index, o Objects, pool *bufferPool, keep int) *lists {
	return &lists{x: x, objects: o, pool: pool, keep: keep}
}

// forget ends the caching after the last use.
func (l *lists) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept, l.free = nil, nil
}

// of returns the digests of the blocks of a chunk, which are valid until done is called. Any number of goroutines may
// hold those of one list.
func (l *lists) of(ctx context.Context, chunk int) (sums index.Blocks, done func(), err error) {
	for {
		e := l.entry(chunk / index.ListChunks)
		e.mu.RLock()
		if e.blocks != nil {
			return e.blocks.Chunk(chunk % index.ListChunks), e.mu.RUnlock, nil
		}
		e.mu.RUnlock() // not fetched yet, or its memory was reused
		if err := l.fill(ctx, e); err != nil {
			return nil, nil, err
		}
	}
}

// fill fetches a list, unless another goroutine just did.
func (l *lists) fill(ctx context.Context, e *list) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.blocks != nil {
		return nil
	}
	b, err := l.fetch(ctx, e.i)
	if err != nil {
		return err
	}
	e.blocks = b
	return nil
}

func (l *lists) entry(i int) *list {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.IndexFunc(l.kept, func(e *list) bool { return e.i == i })
	e := &list{i: i}
	if at >= 0 {
		e = l.kept[at]
		l.kept = slices.Delete(l.kept, at, at+1)
	}
	l.kept = slices.Insert(l.kept, 0, e)
	for len(l.kept) > l.keep {
		last := len(l.kept) - 1
		if old := l.kept[last]; old.mu.TryLock() { // not in use
			l.free, old.blocks = old.blocks, nil
			old.mu.Unlock()
		}
		l.kept = l.kept[:last]
	}
	return e
}

func (l *lists) fetch(ctx context.Context, i int) (index.Blocks, error) {
	o := l.x.Lists[i]
	if o.Len == 0 {
		return index.ParseBlocks(nil, l.x.ListBytes(i))
	}
	stored, err := l.pool.take(ctx, int(o.Len))
	if err != nil {
		return nil, err
	}
	defer l.pool.give(stored)
	if err := l.objects.Object(ctx, o, stored); err != nil {
		return nil, fmt.Errorf("block list %d of the image: %w", i, err)
	}
	l.mu.Lock()
	free := l.free
	l.free = nil
	l.mu.Unlock()
	b, err := index.ParseBlocksInto(free, stored, l.x.ListBytes(i))
	if err != nil {
		return nil, fmt.Errorf("block list %d of the image: %w", i, err)
	}
	return b, nil
}
