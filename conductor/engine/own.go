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

// errFenced means that the node was claimed anew since this engine claimed it: nothing that was begun before may be
// stored.
var errFenced = errors.New("the node's fencing number has changed")

// errMoved means that the node is no longer where it was when the act began.
var errMoved = errors.New("the node was changed meanwhile")

// HeldError says that a node belongs to another conductor.
type HeldError struct{ Owner string }

func (e *HeldError) Error() string { return fmt.Sprintf("the node belongs to conductor %s", e.Owner) }

func held(err error) bool {
	var h *HeldError
	return errors.As(err, &h)
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

// change is the write of an act: it reads, changes and stores a node that is this conductor's, claiming it in the same
// transaction if it has not yet. A node of another conductor is a *HeldError.
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
	owner := e.cfg.Hostname
	n, err := e.db.Change(ctx, id, func(n *node.Node, effects *node.SideEffects) error {
		if owner = n.Conductor; owner != e.cfg.Hostname {
			return &HeldError{owner}
		}
		if n.Fence != fence {
			return errFenced
		}
		return f(n, effects)
	})
	switch {
	case owner != e.cfg.Hostname && (owner == "" || !e.conductors.Lives(owner)):
		// Another node, made with the UUID of a deleted one; or another conductor had it since, and has died.
		e.disown(id)
		return e.change(ctx, id, f)
	case owner != e.cfg.Hostname:
		e.lose(id)
	case errors.Is(err, errFenced), errors.Is(err, node.ErrNotFound):
		e.disown(id)
	}
	return n, err
}

// request is the write of what a client asked for, which any conductor takes: the node stays its owner's, who goes on
// with it once it is woken. A node that is this conductor's is claimed as for an act. The caller wakes it.
func (e *Engine) request(ctx context.Context, ident string, f func(*node.Node,
	*node.SideEffects) error) (*node.Node, error) {
	n, err := e.db.Node(ctx, ident)
	if err != nil {
		return nil, err
	}
	id := n.UUID
	if !e.Mine(n) {
		return e.db.Change(ctx, id, f)
	}
	n, err = e.change(ctx, id, f)
	switch {
	case errors.Is(err, errFenced): // its lock was broken at another conductor, or it was away and is back
		return e.change(ctx, id, f)
	case held(err):
		return e.db.Change(ctx, id, f)
	}
	return n, err
}

// claimWith makes this conductor the node's owner and changes the node. The caller holds the node's claim lock.
func (e *Engine) claimWith(ctx context.Context, id string, f func(*node.Node,
	*node.SideEffects) error) (*node.Node, error) {
	var from string
	n, err := e.db.Change(ctx, id, func(n *node.Node, effects *node.SideEffects) error {
		if owner := e.ownerOf(n); owner != e.cfg.Hostname {
			return &HeldError{owner}
		}
		from = n.Conductor
		e.takeOver(n, effects)
		return f(n, effects)
	})
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.owned[id] = n.Fence
	if n.Job != nil && from != "" && from != e.cfg.Hostname {
		e.unread[id] = true
	}
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

// takeOver writes this conductor's name and a new fencing number into a node.
func (e *Engine) takeOver(n *node.Node, effects *node.SideEffects) {
	now := time.Now().UTC()
	if from := n.Conductor; from != "" && from != e.cfg.Hostname && (n.Job != nil || hasInstance(n)) {
		e.history(n, effects, "conductor", "WARNING",
			fmt.Sprintf("conductor %s took the node over from %s, which does not answer", e.cfg.Hostname, from), "")
	}
	n.Conductor = e.cfg.Hostname
	n.Fence++
	if n.Reservation != "" && n.Job != nil {
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

// hasInstance reports whether a node is in use, or was when it failed.
func hasInstance(n *node.Node) bool { return n.InstanceUUID != "" || quarantinable(n.Provision) }

// lose leaves a node that is another conductor's now: its agent is to find its way there.
func (e *Engine) lose(id string) {
	e.disown(id)
	e.watches.End(id)
	e.agents().CloseSession(id)
}

// disown drops the data about a node in memory.
func (e *Engine) disown(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.owned, id)
	delete(e.unread, id)
	delete(e.changed, id)
	delete(e.progress, id)
	delete(e.inStep, id)
	delete(e.alive, id)
	delete(e.holds, id)
	delete(e.sent, id)
	delete(e.asked, id)
	delete(e.met, id)
	delete(e.differs, id)
	e.sync.drop(id)
}
