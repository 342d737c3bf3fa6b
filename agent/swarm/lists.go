package swarm

import (
	"context"
	"slices"
	"sync"

	"github.com/ingot-metal/ingot/images/index"
)

// keptLists bounds the block lists in memory; one is up to 2 MiB, for 4 GiB of the disk.
const keptLists = 2

// lists is the image's block lists, fetched from the origin when they are needed.
type lists struct {
	x    *index.Index
	from Origin

	mu   sync.Mutex // also held while one is fetched, so that it is fetched once
	kept []list     // the one used last is last
}

type list struct {
	number int
	blocks index.Blocks
}

// of is the digests of a chunk's blocks.
func (l *lists) of(ctx context.Context, chunk int) (index.Blocks, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	number := chunk / index.ListChunks
	at := slices.IndexFunc(l.kept, func(e list) bool { return e.number == number })
	if at >= 0 {
		e := l.kept[at]
		l.kept = append(slices.Delete(l.kept, at, at+1), e)
		return e.blocks.Chunk(chunk % index.ListChunks), nil
	}
	var stored []byte
	if o := l.x.Lists[number]; o.Len > 0 {
		stored = make([]byte, o.Len)
		if err := l.from.Object(ctx, o, stored); err != nil {
			return nil, err
		}
	}
	blocks, err := index.ParseBlocks(stored, l.x.ListBytes(number))
	if err != nil {
		return nil, err
	}
	if len(l.kept) >= keptLists {
		l.kept = slices.Delete(l.kept, 0, 1)
	}
	l.kept = append(l.kept, list{number, blocks})
	return blocks.Chunk(chunk % index.ListChunks), nil
}
