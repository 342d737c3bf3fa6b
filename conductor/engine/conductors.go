package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Conductors says which conductors live and whose nodes are.
type Conductors interface {
	// Check is nil while this conductor may act: its lease has not ended by its own monotonic clock. It is asked
	// before each packet to a controller and each plan to an agent.
	Check() error
	// Lives reports whether the conductor of a name lives (this one does): its nodes are its own. Inside a change of
	// the store it is exact.
	Lives(name string) bool
	// Takes reports whether the conductor of a name lives and takes nodes, that is, does not drain. Inside a change of
	// the store it is exact.
	Takes(name string) bool
	// Owner names the living conductor whose a node is to be that no living conductor owns. While another can have it
	// that is none that drains.
	Owner(n *node.Node) string
}

// alone is the one conductor of an installation, by its name. The lock of its data directory sees to that.
type alone string

func (alone) Check() error              { return nil }
func (a alone) Lives(name string) bool  { return name == string(a) }
func (a alone) Takes(name string) bool  { return name == string(a) }
func (a alone) Owner(*node.Node) string { return string(a) }

// LapsedError says that this conductor may not act now: it can't prove that it is still taken to be alive, and another
// may have its nodes. It counts as no failure of a machine.
type LapsedError struct{ Err error }

func (e *LapsedError) Error() string {
	return fmt.Sprintf("this conductor may not act at present: %v", e.Err)
}

func (e *LapsedError) Unwrap() error { return e.Err }

// ElsewhereError says that only another conductor, which lives, can do what was requested: it owns the node.
type ElsewhereError struct{ Node, Conductor string }

func (e *ElsewhereError) Error() string {
	return fmt.Sprintf("node %s belongs to conductor %s, which has to be asked", e.Node, e.Conductor)
}

// check is nil while this conductor may act, else a *LapsedError.
func (e *Engine) check() error {
	if err := e.conductors.Check(); err != nil {
		return &LapsedError{err}
	}
	return nil
}

func lapsed(err error) bool {
	var l *LapsedError
	return errors.As(err, &l)
}

// ownerOf names the living conductor that a node belongs to, or is to belong to.
func (e *Engine) ownerOf(n *node.Node) string {
	if n.Conductor == e.cfg.Hostname || n.Conductor != "" && e.conductors.Lives(n.Conductor) {
		return n.Conductor
	}
	return e.conductors.Owner(n)
}

// Mine reports whether a node is this conductor's, or is to be.
func (e *Engine) Mine(n *node.Node) bool { return e.ownerOf(n) == e.cfg.Hostname }

// Here is nil when this conductor may ask the node's controller or agent, else an *ElsewhereError or a *LapsedError.
func (e *Engine) Here(n *node.Node) error {
	if owner := e.ownerOf(n); owner != e.cfg.Hostname {
		return &ElsewhereError{n.UUID, owner}
	}
	return e.check()
}

// checkedDrivers opens drivers that ask before each call whether this conductor may act.
type checkedDrivers struct {
	Drivers
	check func() error
	done  func(n *node.Node, call string, took time.Duration, err error)
}

// Open opens the driver of a node.
func (c checkedDrivers) Open(n *node.Node) (power.Driver, error) {
	d, err := c.Drivers.Open(n)
	if err != nil {
		return nil, err
	}
	done := func(call string, took time.Duration, err error) { c.done(n, call, took, err) }
	return power.Checked(d, c.check, done), nil
}

// checkedLink asks before it has agents do something whether this conductor may act.
type checkedLink struct {
	AgentLink
	check func() error
}

func (c checkedLink) SendPlan(ctx context.Context, nodeUUID string, p node.Plan) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.AgentLink.SendPlan(ctx, nodeUUID, p)
}

func (c checkedLink) CancelPlan(ctx context.Context, nodeUUID, planID string) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.AgentLink.CancelPlan(ctx, nodeUUID, planID)
}

func (c checkedLink) Power(ctx context.Context, nodeUUID string, a node.PowerAction) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.AgentLink.Power(ctx, nodeUUID, a)
}

func (c checkedLink) Kexec(ctx context.Context, nodeUUID string, delay time.Duration) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.AgentLink.Kexec(ctx, nodeUUID, delay)
}

// ResetNetwork has the agent get its addresses anew, where the link can ask it to.
func (c checkedLink) ResetNetwork(ctx context.Context, nodeUUID string) error {
	r, ok := c.AgentLink.(resetter)
	if !ok {
		return errNoLink
	}
	if err := c.check(); err != nil {
		return err
	}
	return r.ResetNetwork(ctx, nodeUUID)
}
