package chunked

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/ingot-metal/ingot/images/index"
)

// lists gives the digests of blocks. Block lists are fetched when they are asked for, and a few are kept: those of neighbouring chunks are
// in the same one.
type lists struct {
	x       *index.Index
	objects Objects
	room    *room
	keep    int

	mu   sync.Mutex
	kept []*list // the one used last is first
}

type list struct {
	i      int
	mu     sync.Mutex // held while it is fetched
	blocks index.Blocks
}

// newLists makes a store that keeps two lists, of 2 MiB each.
func newLists(x *index.Index, o Objects, room *room) *lists {
	return &lists{x: x, objects: o, room: room, keep: 2}
}

func (l *lists) widen(keep int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keep = keep
}

// of gives the digests of the blocks of a chunk.
func (l *lists) of(ctx context.Context, chunk int) (index.Blocks, error) {
	e := l.entry(chunk / index.ListChunks)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.blocks == nil {
		b, err := l.fetch(ctx, e.i)
		if err != nil {
			return nil, err
		}
		e.blocks = b
	}
	return e.blocks.Chunk(chunk % index.ListChunks), nil
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
	l.kept = l.kept[:min(len(l.kept), l.keep)]
	return e
}

func (l *lists) fetch(ctx context.Context, i int) (index.Blocks, error) {
	o := l.x.Lists[i]
	if o.Len == 0 {
		return index.ParseBlocks(nil, l.x.ListBytes(i))
	}
	stored, err := l.room.take(ctx, int(o.Len))
	if err != nil {
		return nil, err
	}
	defer l.room.give(stored)
	if err := l.objects.Object(ctx, o, stored); err != nil {
		return nil, fmt.Errorf("block list %d of the image: %w", i, err)
	}
	b, err := index.ParseBlocks(stored, l.x.ListBytes(i))
	if err != nil {
		return nil, fmt.Errorf("block list %d of the image: %w", i, err)
	}
	return b, nil
}
