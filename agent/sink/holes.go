package sink

import (
	"cmp"
	"slices"
)

const (
	maxHoles = 64       // ranges that still may grow: far more than there are pieces in flight
	maxHole  = 1 << 30  // beyond it a range gains nothing by growing
	settling = 32 << 20 // of data that was written since a range grew: what was in flight beside it then has come
)

// holes gathers neighbouring zeros into few and large ranges, the one that grew last at the end.
type holes struct{ spans []hole }

// hole is a range that may grow, and how much data had been written when it last did.
type hole struct {
	span
	at int64
}

// add takes in a range, when so much data has been written. When there are too many, or one is large enough, it gives one back to be made a hole.
func (h *holes) add(s span, at int64) (old span, full bool) {
	for i := len(h.spans) - 1; i >= 0; i-- {
		if o := h.spans[i]; o.end() == s.off || s.end() == o.off {
			s = span{min(o.off, s.off), o.n + s.n}
			h.spans = slices.Delete(h.spans, i, i+1)
		}
	}
	if s.n >= maxHole {
		return s, true
	}
	h.spans = append(h.spans, hole{s, at})
	if len(h.spans) <= maxHoles {
		return span{}, false
	}
	return h.oldest(), true
}

// settled gives back the range that has not grown for longest, when that is long ago.
func (h *holes) settled(at int64) (span, bool) {
	if len(h.spans) == 0 || at-h.spans[0].at < settling {
		return span{}, false
	}
	return h.oldest(), true
}

func (h *holes) oldest() span {
	old := h.spans[0].span
	h.spans = slices.Delete(h.spans, 0, 1)
	return old
}

// rest gives all that is left, in the order of the disk.
func (h *holes) rest() []span {
	var left []span
	for _, s := range h.spans {
		left = append(left, s.span)
	}
	h.spans = nil
	slices.SortFunc(left, func(a, b span) int { return cmp.Compare(a.off, b.off) })
	return left
}
