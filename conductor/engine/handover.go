package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// HandOver makes another conductor, which takes nodes, the owner of a node of this one, and sends the node's agent
// there. The node may have a job: it goes on there as after a restart. Errors are *LockedError while this conductor is
// in an act on the node, *HeldError when the node is another's, *InvalidError, or the store's.
func (e *Engine) HandOver(ctx context.Context, nodeUUID, to string) error {
	if to == e.cfg.Hostname {
		return nil
	}
	busy := func() error { return &LockedError{nodeUUID, e.cfg.Hostname, "it is being worked on"} }
	if e.watches.Reads(nodeUUID) { // what the console says while the node changes hands would be lost
		return &LockedError{nodeUUID, e.cfg.Hostname, "its console is read for a sign of life of its system"}
	}
	if !e.queue.Take(nodeUUID) {
		return busy()
	}
	defer e.queue.Done(nodeUUID, never)
	me := "hand over " + nodeUUID
	if !e.takeController(ctx, nodeUUID, me) {
		return &LockedError{nodeUUID, e.cfg.Hostname, "its controller is in use"}
	}
	defer e.bmcs.Release(me)
	_, err := e.change(ctx, nodeUUID, func(n *node.Node, effects *node.SideEffects) error {
		switch {
		case !e.conductors.Takes(to):
			return node.Invalidf("there is no conductor %s that takes nodes: node %s can't be handed over to it", to, n.UUID)
		case n.Job == nil && n.Reservation != "":
			return busy()
		}
		if n.Job != nil || hasInstance(n) {
			e.history(n, effects, "conductor", "INFO", "the node is handed over to conductor "+to, "")
		}
		n.Conductor = to
		n.Fence++
		if n.Reservation != "" {
			n.Reservation, n.ReservedAt = to, time.Now().UTC()
		}
		if b := n.Boot; b != nil && b.Connected {
			b.Connected, b.LostAt = false, time.Now().UTC()
		}
		return nil
	})
	if err == nil {
		e.disown(nodeUUID)
		e.watches.End(nodeUUID)
		e.redirect(ctx, nodeUUID)
	}
	return err
}

// takeController takes the lock of a node's controller for id, and reports whether it was free: a client of this
// conductor may wait for an answer, and the new owner would ask meanwhile. A node whose controller can't be opened has
// none to take.
func (e *Engine) takeController(ctx context.Context, nodeUUID, id string) bool {
	n, err := e.db.Node(ctx, nodeUUID)
	if err != nil {
		return true // the change that follows meets it again
	}
	d, err := e.drivers.Open(n)
	if err != nil {
		return true
	}
	defer d.Close()
	return e.bmcs.TryNow(d.Key(), id)
}

// redirectLimit bounds how long the agent of a node that was handed over is waited for.
const redirectLimit = 10 * time.Second

// redirect sends the agent of a node that was handed over to the new owner. One that can't be sent finds its own way.
func (e *Engine) redirect(ctx context.Context, nodeUUID string) {
	soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), redirectLimit)
	defer cancel()
	if err := e.agents().Redirect(soon, nodeUUID); err != nil {
		e.log.Warn("send an agent to the new owner of its node", "node", nodeUUID, "err", err)
	}
}

// Left is a node that HandAway has left with this conductor.
type Left struct {
	UUID, Name string
	Why        string
	Nowhere    bool // no other conductor can have it: it stays
}

// Owned lists the nodes of this conductor, whatever their state is.
func (e *Engine) Owned(ctx context.Context) ([]string, error) { return e.db.Owned(ctx, e.cfg.Hostname) }

// HandAway hands a node of this conductor over to the one that is to have it once this one drains. It returns nil when
// the node is not this conductor's any more. An error is the store's, or a *LapsedError.
func (e *Engine) HandAway(ctx context.Context, nodeUUID string) (*Left, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	n, err := e.db.Node(ctx, nodeUUID)
	switch {
	case errors.Is(err, node.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case n.Conductor != e.cfg.Hostname:
		return nil, nil
	}
	left := &Left{UUID: n.UUID, Name: n.Name}
	to := e.conductors.Owner(n)
	if to == e.cfg.Hostname || !e.conductors.Takes(to) {
		left.Why, left.Nowhere = fmt.Sprintf("no other conductor takes nodes of conductor group %q with hardware type %s",
			n.ConductorGroup, n.Driver), true
		return left, nil
	}
	err = e.HandOver(ctx, nodeUUID, to)
	var locked *LockedError
	var invalid *InvalidError
	switch {
	case err == nil, held(err), errors.Is(err, node.ErrNotFound):
		return nil, nil
	case errors.As(err, &locked):
		left.Why = locked.Doing
		if n.Job != nil && n.Job.Current() != nil {
			left.Why += fmt.Sprintf(" (%s, step %s)", n.Job.Phase, n.Job.Current().Name)
		}
	case errors.As(err, &invalid), errors.Is(err, errFenced): // the conductor has just gone; another claim
		left.Why = err.Error()
	default:
		return nil, err
	}
	return left, nil
}

// handedPerRound bounds how many nodes are handed over between two searches of the store: a conductor that joins is not
// to get its share of thousands at once.
const handedPerRound = 100

// rebalance hands nodes over on which nothing is under way and which are to be another conductor's: one has joined.
// From one that drains HandAway takes them all.
func (e *Engine) rebalance(ctx context.Context) error {
	if e.cfg.Conductors == nil || e.check() != nil || !e.conductors.Takes(e.cfg.Hostname) {
		return nil
	}
	idle, err := e.db.Idle(ctx)
	if err != nil {
		return err
	}
	e.sync.forget(idle)
	moved := 0
	for _, r := range idle {
		if r.Conductor != e.cfg.Hostname {
			continue
		}
		h, err := e.handle(ctx, r)
		if errors.Is(err, node.ErrNotFound) {
			continue
		} else if err != nil {
			return err
		}
		to := e.conductors.Owner(h)
		if to == e.cfg.Hostname || !e.conductors.Takes(to) {
			continue
		}
		if err := e.HandOver(ctx, r.UUID, to); err != nil {
			e.log.Debug("hand over", "node", r.UUID, "to", to, "err", err)
			continue
		}
		if moved++; moved == handedPerRound {
			break
		}
	}
	if moved > 0 {
		e.log.Info("nodes were handed over to other conductors", "nodes", moved)
	}
	return nil
}

// takeChanged reports whether a node may have been changed by another conductor since it was looked at.
func (e *Engine) takeChanged(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.changed[id]
	delete(e.changed, id)
	return was
}

// settle does for a node that another conductor may have changed what that one could not, having no session with the
// agent: it cancels the plan of a job that is over, and ends the session of a boot that is.
func (e *Engine) settle(ctx context.Context, n *node.Node) error {
	if !e.takeChanged(n.UUID) {
		return nil
	}
	e.mu.Lock()
	sent, met := e.sent[n.UUID], e.met[n.UUID]
	e.mu.Unlock()
	if sent != "" && (n.Job == nil || n.Job.PlanID != sent) {
		if err := e.check(); err != nil {
			return err // the rescan comes
		}
		e.cancelGone(ctx, n.UUID, sent)
		e.mu.Lock()
		delete(e.sent, n.UUID)
		e.mu.Unlock()
	}
	over := n.Boot == nil || n.Boot.Ended || n.Boot.BootID != met
	if met != "" && over && e.drivers.Interface(n, "power") != program.AgentPower { // else it is needed to act
		e.agents().CloseSession(n.UUID)
		e.mu.Lock()
		delete(e.met, n.UUID)
		e.mu.Unlock()
	}
	return nil
}

// firstRead reads the power of a machine whose job another conductor had: that one may have acted until just now. wait
// says that the controller is in use.
func (p *pass) firstRead(ctx context.Context) (wait bool, err error) {
	e, id := p.e, p.n.UUID
	e.mu.Lock()
	unread := e.unread[id]
	e.mu.Unlock()
	if !unread {
		return false, nil
	}
	if s := p.n.Job.Current(); s != nil && !s.InBand {
		st, err := p.power(ctx)
		switch {
		case errors.Is(err, errLineUp):
			return true, nil // the node that has the controller wakes this one
		case err != nil && power.KindOf(err) == "":
			return false, fmt.Errorf("read the power before going on: %w", err)
		case err == nil:
			err = p.correctLate(ctx, s, st)
		default: // the step meets the controller's fault again, and counts it
			err = nil
		}
		if err != nil {
			return false, err
		}
	}
	e.mu.Lock()
	delete(e.unread, id)
	e.mu.Unlock()
	return false, nil
}

// correctLate begins anew to turn a machine off, or to boot its agent, when a late request of the former owner has
// turned it on, or off, meanwhile: no boot would come of it.
func (p *pass) correctLate(ctx context.Context, s *node.JobStep, st power.State) error {
	if p.n.Job.Failure != "" || !catalog.BootsAgent(*s) || p.e.staysOn(p.n) || p.viaAgent() {
		return nil
	}
	const late = "which the conductor before may have requested late"
	switch note := p.n.Job.Note; {
	case st == power.On && slices.Contains([]string{"device", "image inserted"}, note):
		return p.note(ctx, "off", func(n *node.Node, effects *node.SideEffects) error {
			p.e.history(n, effects, "power", "WARNING", "the machine is on, "+late+": it is turned off again", "")
			return nil
		})
	case st == power.Off && note == "wait":
		return p.bootAnew(ctx, "the machine is off, "+late)
	}
	return nil
}
