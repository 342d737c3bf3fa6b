package engine

import (
	"context"
	"net"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Export is a disk that a machine lends to the host that is to write it (deploy interface iscsi).
type Export struct {
	ID     string // of this run of the step: one in another boot of the agent is another export
	Portal string // HOST:PORT of the machine's target
	*program.Lent
}

// ExportOf returns the disk that the node's machine lends now; nil, if none.
func (e *Engine) ExportOf(n *node.Node) (*Export, error) {
	b := n.Boot
	if n.Job == nil || b == nil || b.Ended || b.Address == "" {
		return nil, nil
	}
	l, err := e.planner().Lent(n)
	if err != nil || l == nil {
		return nil, err
	}
	return &Export{ID: n.Job.PlanID, Portal: net.JoinHostPort(b.Address, strconv.Itoa(l.Port)), Lent: l}, nil
}

// ExportFailed ends a deployment whose disk could not be written, for the reason that the writing host gives. Errors
// are *InvalidError when that is not the export of this moment, or the store's.
func (e *Engine) ExportFailed(ctx context.Context, ident, id, why, user string) error {
	if why = strings.TrimSpace(why); why == "" || len(why) > maxReason {
		return node.Invalidf("the reason must have 1 to %d bytes", maxReason)
	}
	n, err := e.request(ctx, ident, func(n *node.Node, effects *node.SideEffects) error {
		x, err := e.ExportOf(n)
		if err != nil {
			return err
		}
		if x == nil || x.ID != id {
			return node.Invalidf("node %s lends no disk as export %s: that has ended, or the machine was started anew",
				n.UUID, id)
		}
		n.Job.Abort, n.Job.Why = true, "the host that writes the disk could not do it: "+why
		e.history(n, effects, "provisioning", "ERROR", n.Job.Why, user)
		return nil
	})
	if err != nil {
		return err
	}
	e.wake(n.UUID)
	return nil
}
