package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/record"
	"github.com/ingot-metal/ingot/conductor/node"
)

// abort ends a job on request, now or as soon as its step allows it.
func (e *Engine) abort(ctx context.Context, p *pass) (time.Duration, error) {
	j, b := p.n.Job, p.n.Boot
	s := j.Current()
	if s != nil && s.Plug && s.Status == node.StepRunning && !s.Abortable {
		return e.conductorStep(ctx, p, s) // stepDone sees to it
	}
	if s == nil || !s.InBand || j.PlanID == "" || j.PlanSent.IsZero() || b == nil || b.Ended {
		return 0, p.fail(ctx, record.AbortReason(j))
	}
	if b.Connected {
		err := e.agents().CancelPlan(ctx, p.n.UUID, j.PlanID)
		switch {
		case lapsed(err):
			return never, err
		case err != nil:
			e.log.Warn("cancel plan", "node", p.n.UUID, "err", err)
		case !s.Abortable:
			return e.cfg.SessionGrace, nil // the plan ends with this step, and says so
		}
	}
	// An agent that can't be reached goes on with its step: one that must not be stopped gets the time in which the
	// agent may come back.
	if !s.Abortable {
		if b.Connected {
			return e.cfg.RetryBase, nil
		}
		if left := e.grace(b); left > 0 {
			return left, nil
		}
	}
	return 0, p.fail(ctx, record.AbortReason(j))
}

// orphan fails a node that is in a working state without a job: nothing here makes one, so another program did.
func (e *Engine) orphan(ctx context.Context, n *node.Node) (time.Duration, error) {
	_, err := e.change(ctx, n.UUID, func(n *node.Node, effects *node.SideEffects) error {
		if n.Job != nil || n.Provision.IsStable() {
			return errMoved
		}
		n.SetLastError(fmt.Sprintf(
			"The node was in state %s with no record of what was to be done; ask for the operation again.",
			n.Provision), "")
		return e.setState(n, effects, node.Fail)
	})
	return never, err
}

// longestLock is how long a conductor that lives may hold a lock without a job, as for a call of a vendor's method.
const longestLock = 15 * time.Minute

// orphanLock frees a lock whose holder is gone: a conductor of this one's name from before its start, or one that does
// not live.
func (e *Engine) orphanLock(ctx context.Context, n *node.Node) (time.Duration, error) {
	gone := n.Reservation == e.cfg.Hostname && n.ReservedAt.Before(e.began) || !e.conductors.Lives(n.Reservation)
	if left := time.Until(n.ReservedAt.Add(longestLock)); left > 0 && !gone {
		return left, nil
	}
	_, err := e.change(ctx, n.UUID, func(n *node.Node, effects *node.SideEffects) error {
		if n.Job != nil || n.Reservation == "" {
			return nil
		}
		e.history(n, effects, "conductor", "WARNING", fmt.Sprintf("the lock that %s left behind was freed", n.Reservation),
			"")
		e.reserve(n, false)
		return nil
	})
	return never, err
}
