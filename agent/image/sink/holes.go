package sink

import (
	"cmp"
	"slices"
)

const (
	maxHoles = 1024     // ranges that still may grow: far more than there are pieces in flight
	large    = 64 << 20 // beyond it a range gains nothing by growing
	settling = 32 << 20 // of data that was written since a range grew: what was in flight beside it then has come
)

// holes gathers neighbouring zeros into few and large ranges, in the order of the disk.
type holes struct{ spans []hole }

// hole is a range that may grow, and how much data had been written when it last did.
type hole struct {
	span
	at int64
}

// add takes in a range, when so much data has been written. When there are too many, it gives one back to be made a
// hole.
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

// ripe gives back a range that will not grow any more, or is large enough.
func (h *holes) ripe(at int64) (span, bool) {
	for i, s := range h.spans {
		if s.n >= large || at-s.at >= settling {
			return h.take(i), true
		}
	}
	return span{}, false
}

// oldest is the place of the range that has not grown for longest.
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

// first gives back the first on the disk.
func (h *holes) first() (span, bool) {
	if len(h.spans) == 0 {
		return span{}, false
	}
	return h.take(0), true
}
