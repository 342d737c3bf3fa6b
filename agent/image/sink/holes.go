package sink

import (
	"cmp"
	"slices"
)

const (
	maxHoles = 1024     // ranges that may still grow: far more than pieces in flight
	large    = 64 << 20 // size from which growing gains nothing
	settling = 32 << 20 // data written since a range last grew: pieces in flight at that time have arrived
)

// holes merges neighbouring zeros into few large ranges, in the order of the disk.
type holes struct{ spans []hole }

// hole is a range that may grow, and the amount of data written when it last did.
type hole struct {
	span
	at int64
}

// add adds a range at the given amount of written data. If there are too many, it returns one to be made a hole.
func (h *holes) add(s span, at int64) (old span, full bool) {
	i, _ := slices.BinarySearchFunc(h.spans, s.off, func(o hole, off int64) int { return cmp.Compare(o.off, off) })
	before := i > 0 && h.spans[i-1].end() == s.off
	behind := i < len(h.spans) && s.end() == h.spans[i].off
	switch {
	case before && behind:
		h.spans[i-1] = hole{span{h.spans[i-1].off, h.spans[i-1].n + s.n + h.spans[i].n}, at}
		h.spans = slices.Delete(h.spans, i, i+1)
	case before:
		h.spans[i-1].n, h.spans[i-1].at = h.spans[i-1].n+s.n, at
	case behind:
		h.spans[i] = hole{span{s.off, s.n + h.spans[i].n}, at}
	default:
		h.spans = slices.Insert(h.spans, i, hole{s, at})
	}
	if len(h.spans) <= maxHoles {
		return span{}, false
	}
	return h.take(h.oldest()), true
}

// ripe returns a range that will not grow any more, or is large enough.
func (h *holes) ripe(at int64) (span, bool) {
	for i, s := range h.spans {
		if s.n >= large || at-s.at >= settling {
			return h.take(i), true
		}
	}
	return span{}, false
}

// oldest returns the index of the range that has not grown for longest.
func (h *holes) oldest() (i int) {
	for j, s := range h.spans {
		if s.at < h.spans[i].at {
			i = j
		}
	}
	return i
}

func (h *holes) take(i int) span {
	s := h.spans[i].span
	h.spans = slices.Delete(h.spans, i, i+1)
	return s
}

// first returns the first range on the disk.
func (h *holes) first() (span, bool) {
	if len(h.spans) == 0 {
		return span{}, false
	}
	return h.take(0), true
}
