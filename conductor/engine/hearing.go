package engine

import (
	"context"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// hearing knows since when this conductor could hear of its agents. Limits on how long an agent may be out of reach, or
// say nothing, count from then at the earliest: what this conductor missed while it was frozen, or while it could not
// renew its lease and so could store nothing, is no fault of an agent's, and its work must not be begun again for that.
type hearing struct {
	mu     sync.Mutex
	looked time.Time // when the process was last seen to run
	from   time.Time
}

// Times of hearing.
const (
	hearingTick = time.Second
	// frozenFor is how long nothing may have looked at the clock before that means that the process did not run.
	frozenFor = 5 * time.Second
)

// look notes that the process runs, and whether this conductor may act.
func (h *hearing) look(now time.Time, able bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !able || !h.looked.IsZero() && now.Sub(h.looked) > frozenFor {
		h.from = now
	}
	h.looked = now
}

// latest returns t, or the time since when this conductor hears if that is later.
func (h *hearing) latest(t time.Time) time.Time {
	h.look(time.Now(), true) // a node may be looked at before the next tick after a freeze
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.from.After(t) {
		return h.from
	}
	return t
}

// hear looks until ctx ends.
func (e *Engine) hear(ctx context.Context) {
	tick := time.NewTicker(hearingTick)
	defer tick.Stop()
	for {
		e.hearing.look(time.Now(), e.conductors.Check() == nil)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// session compares what the store says of the node's agent with the session that it has here, and corrects the store
// when the two have differed for a while: the end of a session may have been impossible to store, or have been stored
// after the next one's beginning. wait says that they differ and for how long that may be a session that just begins or
// ends; until then nothing is to be decided from what the store says. A node that was corrected is returned.
func (e *Engine) session(ctx context.Context, n *node.Node) (wait time.Duration, changed *node.Node, err error) {
	b, id := n.Boot, n.UUID
	_, owned := e.fence(id) // else claiming it says that its agent is not connected
	differs := owned && b != nil && !b.Ended && !b.EnrolledAt.IsZero() && e.agents().Connected(id) != b.Connected
	now := time.Now()
	e.mu.Lock()
	if differs && !b.Connected {
		differs = e.met[id] == b.BootID // else it is about to be taken up
	}
	since, before := e.differs[id]
	switch {
	case !differs:
		delete(e.differs, id)
	case !before:
		since = now
		e.differs[id] = now
	}
	e.mu.Unlock()
	if !differs {
		return 0, nil, nil
	}
	if left := since.Add(e.cfg.sessionSettles).Sub(now); left > 0 {
		return left, nil, nil
	}
	was := b.Connected
	n, err = e.change(ctx, id, func(n *node.Node, effects *node.SideEffects) error {
		b := n.Boot
		if b == nil || b.Connected != was || e.agents().Connected(id) == was {
			return errMoved
		}
		if b.Connected = !was; was {
			b.LostAt = since.UTC()
			e.mark(n, effects, node.MarkSessionLost, "")
		} else {
			b.LostAt = time.Time{}
		}
		return nil
	})
	return 0, n, err
}
