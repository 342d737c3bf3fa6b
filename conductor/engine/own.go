package engine

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
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

// claims lets a node be claimed once, without having claims of different nodes wait for each other.
type claims struct {
	seed  maphash.Seed
	locks [64]sync.Mutex
}

func (c *claims) of(id string) *sync.Mutex {
	return &c.locks[maphash.String(c.seed, id)%uint64(len(c.locks))]
}

// fence is the fencing number under which this engine owns a node.
func (e *Engine) fence(id string) (uint64, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f, ok := e.owned[id]
	return f, ok
}

// change reads, changes and stores a node that this conductor owns, claiming it in the same transaction if it has no
// other owner. Every write of the engine goes through it.
func (e *Engine) change(ctx context.Context, id string, f func(*node.Node,
	*node.SideEffects) error) (*node.Node, error) {
	fence, ok := e.fence(id)
	if !ok {
		l := e.claims.of(id)
		l.Lock()
		defer l.Unlock()
		if fence, ok = e.fence(id); !ok {
			return e.claimWith(ctx, id, f)
		}
	}
	n, err := e.db.Change(ctx, id, func(n *node.Node, effects *node.SideEffects) error {
		if n.Conductor != e.cfg.Hostname {
			return &HeldError{n.Conductor, n.LeaseUntil}
		}
		if n.Fence != fence {
			return errFenced
		}
		if now := time.Now(); n.LeaseUntil.Sub(now) < e.cfg.Lease/2 {
			n.LeaseUntil = now.Add(e.cfg.Lease).UTC()
		}
		return f(n, effects)
	})
	var held *HeldError
	if errors.As(err, &held) || errors.Is(err, node.ErrNotFound) {
		e.disown(id)
	}
	if held != nil && held.Owner == "" {
		return e.change(ctx, id, f) // another node, made with the UUID of a deleted one, which no conductor owns
	}
	return n, err
}

// changeNamed is change of a node by its name or UUID.
func (e *Engine) changeNamed(ctx context.Context, ident string, f func(*node.Node,
	*node.SideEffects) error) (*node.Node,
	error) {
	n, err := e.db.Node(ctx, ident)
	if err != nil {
		return nil, err
	}
	return e.change(ctx, n.UUID, f)
}

// claimWith makes this conductor the node's owner and changes the node. The caller holds the node's claim lock.
func (e *Engine) claimWith(ctx context.Context, id string, f func(*node.Node,
	*node.SideEffects) error) (*node.Node, error) {
	n, err := e.db.Change(ctx, id, func(n *node.Node, effects *node.SideEffects) error {
		now := time.Now().UTC()
		if n.Conductor != "" && n.Conductor != e.cfg.Hostname && n.LeaseUntil.After(now) {
			return &HeldError{n.Conductor, n.LeaseUntil}
		}
		e.takeOver(n, now)
		return f(n, effects)
	})
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.owned[id] = n.Fence
	e.mu.Unlock()
	return n, nil
}

// claim makes this conductor the node's owner, once per node and life of the engine, and returns the node as it then
// is; nil when the node was this conductor's before.
func (e *Engine) claim(ctx context.Context, id string) (*node.Node, error) {
	if _, ok := e.fence(id); ok {
		return nil, nil
	}
	l := e.claims.of(id)
	l.Lock()
	defer l.Unlock()
	if _, ok := e.fence(id); ok {
		return nil, nil
	}
	return e.claimWith(ctx, id, func(*node.Node, *node.SideEffects) error { return nil })
}

// renewLease keeps a node this conductor's while it waits.
func (e *Engine) renewLease(ctx context.Context, n *node.Node) error {
	if time.Until(n.LeaseUntil) >= e.cfg.Lease/2 {
		return nil
	}
	_, err := e.change(ctx, n.UUID, func(*node.Node, *node.SideEffects) error { return nil })
	return err
}

// takeOver writes this conductor's name, lease and fencing number into a node.
func (e *Engine) takeOver(n *node.Node, now time.Time) {
	n.Conductor, n.LeaseUntil = e.cfg.Hostname, now.Add(e.cfg.Lease)
	n.Fence++
	if n.Reservation != "" {
		n.Reservation, n.ReservedAt = e.cfg.Hostname, now
	}
	// An agent that was connected was connected to the previous owner: its time to come back starts now. So does that
	// of a machine that could not boot because no conductor answered.
	if b := n.Boot; b != nil && !b.Ended {
		if b.Connected || !b.LostAt.IsZero() {
			b.Connected, b.LostAt = false, now
		}
		b.ClosesAt = now.Add(e.cfg.BootTimeout)
	}
}

// disown drops the data about a node in memory.
func (e *Engine) disown(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.owned, id)
	delete(e.progress, id)
	delete(e.inStep, id)
	delete(e.alive, id)
	delete(e.holds, id)
	delete(e.asked, id)
	delete(e.met, id)
}
