package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// errFenced means that a later conductor has claimed the node: nothing this one does to it may be stored.
var errFenced = errors.New("the node's fencing number is another conductor's")

// errMoved means that the node is no longer where it was when the act began.
var errMoved = errors.New("the node was changed meanwhile")

// HeldError says that a node belongs to another conductor.
type HeldError struct {
	Owner string
	Until time.Time
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("the node belongs to conductor %s until %s", e.Owner, e.Until.Format(time.RFC3339))
}

// change reads, changes and stores a node that this conductor owns, claiming it if nobody else does. Every write of the engine
// goes through it.
func (e *Engine) change(ctx context.Context, id string, f func(*node.Node, *node.Also) error) (*node.Node, error) {
	fence, err := e.claim(ctx, id)
	if err != nil {
		return nil, err
	}
	n, err := e.db.Change(ctx, id, func(n *node.Node, also *node.Also) error {
		if n.Conductor != e.cfg.Hostname {
			return &HeldError{n.Conductor, n.LeaseUntil}
		}
		if n.Fence != fence {
			return errFenced
		}
		if now := time.Now(); n.LeaseUntil.Sub(now) < e.cfg.Lease/2 {
			n.LeaseUntil = now.Add(e.cfg.Lease).UTC()
		}
		return f(n, also)
	})
	var held *HeldError
	if errors.As(err, &held) || errors.Is(err, node.ErrNotFound) {
		e.disown(id)
	}
	return n, err
}

// claim makes this conductor the node's owner, once per node and life of the engine, and returns the fencing number.
func (e *Engine) claim(ctx context.Context, id string) (uint64, error) {
	e.mu.Lock()
	fence, ok := e.owned[id]
	e.mu.Unlock()
	if ok {
		return fence, nil
	}
	e.claimMu.Lock()
	defer e.claimMu.Unlock()
	e.mu.Lock()
	fence, ok = e.owned[id]
	e.mu.Unlock()
	if ok {
		return fence, nil
	}
	n, err := e.db.Change(ctx, id, func(n *node.Node, _ *node.Also) error {
		now := time.Now().UTC()
		if n.Conductor != "" && n.Conductor != e.cfg.Hostname && n.LeaseUntil.After(now) {
			return &HeldError{n.Conductor, n.LeaseUntil}
		}
		n.Conductor, n.LeaseUntil = e.cfg.Hostname, now.Add(e.cfg.Lease)
		n.Fence++
		if n.Reservation != "" {
			n.Reservation, n.ReservedAt = e.cfg.Hostname, now
		}
		// Whoever was connected was connected to the owner before: its time to come back starts now. So does that of a machine
		// that could not boot because nobody answered.
		if b := n.Boot; b != nil && !b.Ended {
			if b.Connected || !b.LostAt.IsZero() {
				b.Connected, b.LostAt = false, now
			}
			b.ClosesAt = now.Add(e.cfg.BootTimeout)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	e.mu.Lock()
	e.owned[id] = n.Fence
	e.mu.Unlock()
	return n.Fence, nil
}

// disown forgets what is kept in memory about a node.
func (e *Engine) disown(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.owned, id)
	delete(e.progress, id)
	delete(e.inStep, id)
	delete(e.alive, id)
	delete(e.holds, id)
	delete(e.asked, id)
	delete(e.badReads, id)
}
