package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// SetPlugs sets the implementations of nodes' interfaces; before Run. Without it they bring no steps.
func (e *Engine) SetPlugs(p program.Plugs) { e.plugs = p }

// plugStep does the next act of a step of a node's interface.
func (e *Engine) plugStep(n *node.Node, s *node.JobStep) (func(context.Context, *pass) (verdict, error), bool) {
	if e.plugs == nil {
		return nil, false
	}
	st, ok := e.plugs.Step(n, s.Interface, s.Name)
	if !ok {
		return nil, false
	}
	return func(ctx context.Context, p *pass) (verdict, error) {
		j := p.n.Job
		args, err := program.PlugArgs(j.Current().Args)
		if err != nil {
			return verdict{}, failf("its arguments can't be read: %v", err)
		}
		begun := j.Current().StartedAt
		limit := cmp.Or(st.Limit, e.cfg.CallTimeout)
		cctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		o, err := st.Run(cctx,
			hardware.Call{Node: p.n, Args: args, Begun: begun, ID: fmt.Sprintf("%s/%d", j.ID, j.Index)})
		switch {
		case err != nil && ctx.Err() != nil:
			return verdict{}, ctx.Err()
		case err != nil && cctx.Err() != nil:
			return verdict{}, failf("it did not end within %s", limit)
		case power.KindOf(err) != "": // tried again, if that may help
			return verdict{}, err
		case errors.Is(err, errMoved), errors.Is(err, errFenced):
			return verdict{}, err
		case err != nil:
			return verdict{}, failf("%v", err)
		case o.After <= 0 && !o.Hold:
			return verdict{done: true, apply: o.Apply, found: o.Found}, nil
		}
		// The next move is not the conductor's.
		if p.n.Provision.IsWorking() && canWait(p.n) {
			p.edit(func(n *node.Node, effects *node.SideEffects) error { return e.waitForAgent(n, effects) })
		}
		if o.After <= 0 {
			return again(never), nil
		}
		return again(max(o.After, time.Millisecond)), nil
	}, true
}

// canWait reports whether the node's state has one to wait in.
func canWait(n *node.Node) bool {
	_, _, err := node.Next(n.Provision, n.TargetProvision, node.Wait)
	return err == nil
}
