package engine

import (
	"context"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// meter counts what the engine does. Its methods are called after the change is stored, and must not wait.
type meter interface {
	// StateLeft is called when a node has left a state.
	StateLeft(state node.State, after time.Duration)
	// JobEnded is called with a job that is over, and its node as it is then. Neither may be changed.
	JobEnded(n *node.Node, j *node.Job)
	// Called is called after a call to a node's controller, through an interface ("ipmitool").
	Called(iface, vendor, call string, took time.Duration, err error)
}

type noMeter struct{}

func (noMeter) StateLeft(node.State, time.Duration)             {}
func (noMeter) JobEnded(*node.Node, *node.Job)                  {}
func (noMeter) Called(_, _, _ string, _ time.Duration, _ error) {}

// metered is a store that counts states and jobs in what passes through it.
type metered struct {
	db
	meter meter
}

// Change counts the node's changes once they are stored.
func (m metered) Change(ctx context.Context, uuid string,
	change func(*node.Node, *node.SideEffects) error) (*node.Node, error) {
	var was node.Node
	n, err := m.db.Change(ctx, uuid, func(n *node.Node, effects *node.SideEffects) error {
		was.Provision, was.ProvisionUpdatedAt, was.Job = n.Provision, n.ProvisionUpdatedAt, n.Job
		return change(n, effects)
	})
	if err != nil || n == nil {
		return n, err
	}
	if n.Provision != was.Provision && !was.ProvisionUpdatedAt.IsZero() {
		m.meter.StateLeft(was.Provision, n.ProvisionUpdatedAt.Sub(was.ProvisionUpdatedAt))
	}
	if j := was.Job; j != nil && (n.Job == nil || n.Job.ID != j.ID) {
		m.meter.JobEnded(n, j)
	}
	return n, nil
}

// called counts a call to a node's controller through its interface of a kind.
func (e *Engine) called(n *node.Node, kind, call string, took time.Duration, err error) {
	vendor, _ := n.Properties["vendor"].(string)
	e.cfg.Meter.Called(e.drivers.Interface(n, kind), vendor, call, took, err)
}
