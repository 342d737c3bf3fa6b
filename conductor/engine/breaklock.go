package engine

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Lock says who holds a node, for what, and since when. Holder is empty if the node is free.
type Lock struct {
	Holder  string
	Purpose string
	Since   time.Time
}

// LockOf returns the lock of a node.
func LockOf(n *node.Node) Lock {
	l := Lock{Holder: n.Reservation, Since: n.ReservedAt}
	j := n.Job
	switch {
	case l.Holder == "":
		return Lock{}
	case j == nil:
		l.Purpose = "not known"
	case isPowerJob(j):
		l.Purpose = "power action " + n.TargetPower
	default:
		l.Purpose = fmt.Sprintf("%s in state %s", j.Phase, n.Provision)
	}
	if s := j.Current(); s != nil {
		l.Purpose += ", step " + s.Name
	}
	if j != nil && j.Detail != "" {
		l.Purpose += " (" + j.Detail + ")"
	}
	return l
}

// BreakLock breaks a node's lock, even if its holder is another conductor that is alive. The work under way fails in
// its present state: nothing is done to the machine. The fencing number makes sure that the former holder stores
// nothing of what it is at. A node of another conductor that lives stays its own. Errors are *InvalidError when the
// node is not locked, or the store's.
func (e *Engine) BreakLock(ctx context.Context, ident, user string) (Lock, error) {
	n, err := e.db.Node(ctx, ident)
	if err != nil {
		return Lock{}, err
	}
	l := e.claims.of(n.UUID)
	l.Lock()
	defer l.Unlock()
	var broken Lock
	mine := false
	n, err = e.db.Change(ctx, n.UUID, func(n *node.Node, effects *node.SideEffects) error {
		if broken = LockOf(n); broken.Holder == "" {
			return node.Invalidf("node %s is not locked", n.UUID)
		}
		why := fmt.Sprintf("the lock of %s, held since %s for %s, was broken by %s", broken.Holder,
			broken.Since.Format(time.RFC3339), broken.Purpose, cmp.Or(user, "request"))
		e.history(n, effects, "conductor", "ERROR", why, user)
		if mine = e.Mine(n); mine {
			e.takeOver(n, effects)
		} else {
			n.Fence++
		}
		n.SetLastError(sentence(why+"; the state of the machine is not known"), "")
		if j := n.Job; j != nil {
			if s := j.Current(); s != nil {
				s.Status, s.EndedAt = node.StepFailed, time.Now().UTC()
				e.mark(n, effects, node.MarkStepFailed, s.Name+": "+why)
			}
			j.Failure = n.LastError
			return e.finishFailed(n, effects)
		}
		if n.Provision.IsWorking() {
			return e.setState(n, effects, node.Fail)
		}
		n.TargetPower = ""
		e.reserve(n, false)
		return nil
	})
	if err != nil {
		return Lock{}, err
	}
	e.disown(n.UUID)
	if mine {
		e.mu.Lock()
		e.owned[n.UUID] = n.Fence
		e.mu.Unlock()
	}
	e.agents().CloseSession(n.UUID)
	e.wake(n.UUID)
	return broken, nil
}
