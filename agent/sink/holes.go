package sink

import (
	"cmp"
	"slices"
)

const (
	maxHoles = 64      // ranges that still may grow: far more than there are pieces in flight
	maxHole  = 1 << 30 // beyond it a range gains nothing by growing
)

// holes gathers neighbouring zeros into few and large ranges, the one that grew last at the end.
type holes struct{ spans []span }

// add takes in a range. When there are too many, or one is large enough, it gives one back to be made a hole.
func (h *holes) add(s span) (old span, full bool) {
	for i := len(h.spans) - 1; i >= 0; i-- {
		if o := h.spans[i]; o.end() == s.off || s.end() == o.off {
			s = span{min(o.off, s.off), o.n + s.n}
			h.spans = slices.Delete(h.spans, i, i+1)
		}
	}
	if s.n >= maxHole {
		return s, true
	}
	h.spans = append(h.spans, s)
	if len(h.spans) <= maxHoles {
		return span{}, false
	}
	old = h.spans[0]
	h.spans = slices.Delete(h.spans, 0, 1)
	return old, true
}

// rest gives all that is left, in the order of the disk.
func (h *holes) rest() []span {
	left := h.spans
	h.spans = nil
	slices.SortFunc(left, func(a, b span) int { return cmp.Compare(a.off, b.off) })
	return left
}
