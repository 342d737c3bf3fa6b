package swarm

import (
	"context"
	"errors"

	"github.com/ingot-metal/ingot/images/index"
)

// sums verifies chunks against the image's block lists. It fetches each list once, on first use, and keeps for each
// chunk only a digest of its part of the list: chunks come in any order, and the lists of a large image are too large
// to keep.
type sums struct {
	x    *index.Index
	from Origin

	busy chan struct{} // full while the other fields are in use, also during the fetch of a list
	all  [][sumSize]byte
	seen []bool       // lists
	left int          // of them
	list index.Blocks // memory for one list
}

// sumSize is the kept length of a SHA-256. Finding other content with 16 given bytes is infeasible.
const sumSize = 16

func newSums(x *index.Index, from Origin) *sums {
	return &sums{x: x, from: from, busy: make(chan struct{}, 1)}
}

var errContent = errors.New("its content is not the image's")

// check verifies a chunk's content. errContent means that it is wrong; another error, that it is unknown.
func (s *sums) check(ctx context.Context, chunk int, data []byte) error {
	want, err := s.of(ctx, chunk)
	if err != nil {
		return err
	}
	if short(index.AppendSums(nil, data)) != want {
		return errContent
	}
	return nil
}

func (s *sums) of(ctx context.Context, chunk int) ([sumSize]byte, error) {
	select {
	case s.busy <- struct{}{}:
		defer func() { <-s.busy }()
	case <-ctx.Done(): // another goroutine may wait for an unreachable origin
		return [sumSize]byte{}, context.Cause(ctx)
	}
	if s.all == nil {
		s.all, s.seen, s.left = make([][sumSize]byte, len(s.x.Chunks)), make([]bool, len(s.x.Lists)), len(s.x.Lists)
	}
	if list := chunk / index.ListChunks; !s.seen[list] {
		if err := s.fetch(ctx, list); err != nil {
			return [sumSize]byte{}, err
		}
		s.seen[list] = true
		if s.left--; s.left == 0 {
			s.list = nil
		}
	}
	return s.all[chunk], nil
}

func (s *sums) fetch(ctx context.Context, list int) error {
	var stored []byte
	if o := s.x.Lists[list]; o.Len > 0 {
		stored = make([]byte, o.Len)
		if err := s.from.Object(ctx, o, stored); err != nil {
			return err
		}
	}
	blocks, err := index.ParseBlocksInto(s.list, stored, s.x.ListBytes(list))
	if err != nil {
		return err
	}
	s.list = blocks
	first := list * index.ListChunks
	for i := range s.x.ListLen(list) {
		if s.x.Chunks[first+i].Len > 0 {
			s.all[first+i] = short(blocks.Chunk(i))
		}
	}
	return nil
}
