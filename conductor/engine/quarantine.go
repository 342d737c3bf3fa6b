package engine

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// maxReason is the longest reason of a quarantine, and of a host that could not write a disk, in bytes.
const maxReason = 1024

// quarantinable reports whether a node in a state has an instance, or the rest of one, that goes on while the node is
// marked.
func quarantinable(s node.State) bool {
	return slices.Contains([]node.State{
		node.Active, node.Deploying, node.DeployWait, node.DeployHold, node.DeployFailed, node.Error,
		node.Rescuing, node.RescueWait, node.RescueFailed, node.Rescue, node.Unrescuing, node.UnrescueFailed,
		node.Servicing, node.ServiceWait, node.ServiceHold, node.ServiceFailed,
	}, s)
}

// Quarantine marks a node that is in use as broken, or changes the reason of the mark. The machine is not touched, but
// when it is torn down it does not become available. Errors are *InvalidError or the store's.
func (e *Engine) Quarantine(ctx context.Context, ident, reason, user string) (*node.Node, error) {
	reason = strings.TrimSpace(reason)
	if reason == "" {
		return nil, node.Invalidf("a quarantine needs a reason: say what is wrong with the machine")
	}
	if len(reason) > maxReason {
		return nil, node.Invalidf("the reason has %d bytes; %d are allowed", len(reason), maxReason)
	}
	return e.request(ctx, ident, func(n *node.Node, effects *node.SideEffects) error {
		if n.Quarantine == nil && !quarantinable(n.Provision) {
			return node.Invalidf(
				"node %s is in state %q, without an instance: use its maintenance or retired flag to keep it out of use", n.UUID, n.Provision)
		}
		q := &node.Quarantine{Reason: reason, At: time.Now().UTC(), By: user}
		if n.Quarantine != nil {
			q.At = n.Quarantine.At
		}
		n.Quarantine = q
		n.Fault = cmp.Or(n.Fault, node.FaultQuarantined)
		e.history(n, effects, "monitoring", "ERROR", "the node was put in quarantine: "+reason, user)
		return nil
	})
}

// Unquarantine takes the mark away; a node without one is left as it is.
func (e *Engine) Unquarantine(ctx context.Context, ident, user string) (*node.Node, error) {
	return e.request(ctx, ident, func(n *node.Node, effects *node.SideEffects) error {
		if n.Quarantine == nil {
			return nil
		}
		n.Quarantine = nil
		clearFault(n, node.FaultQuarantined)
		n.TakeBackError(node.FaultQuarantined)
		e.history(n, effects, "monitoring", "INFO", "the quarantine of the node was ended", user)
		return nil
	})
}
