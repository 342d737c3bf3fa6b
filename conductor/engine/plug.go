package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Plugs brings the steps of what is behind a node's interfaces. *hardware.Set is one.
type Plugs interface {
	Steps(n *node.Node) []hardware.Step
	// All are the steps of any interface, whether a node uses it or not.
	All() []hardware.Step
	Step(n *node.Node, iface, name string) (hardware.Step, bool)
}

// SetPlugs tells the engine what is behind nodes' interfaces; before Run. Without it they bring no steps.
func (e *Engine) SetPlugs(p Plugs) { e.plugs = p }

// plugSteps are the steps that a node's interfaces have in a phase by themselves.
func (e *Engine) plugSteps(n *node.Node, phase node.Phase) []node.JobStep {
	if e.plugs == nil {
		return nil
	}
	var steps []node.JobStep
	for _, s := range e.plugs.Steps(n) {
		own, may := s.Priority[phase]
		if !may {
			continue
		}
		if p := e.priority(phase, s.Interface, s.Name, own); p > 0 {
			steps = append(steps, node.JobStep{Interface: s.Interface, Name: s.Name, Priority: p, Abortable: s.Abortable, Plug: true})
		}
	}
	return steps
}

// askPlug checks a step that a client asks for, if it is one of the node's interfaces.
func (e *Engine) askPlug(n *node.Node, phase node.Phase, a node.JobStep) (s node.JobStep, ok bool, err error) {
	if e.plugs == nil {
		return s, false, nil
	}
	st, ok := e.plugs.Step(n, a.Interface, a.Name)
	if !ok {
		return s, false, nil
	}
	if _, may := st.Priority[phase]; !may {
		return s, true, invalidf("step %s.%s can't run in phase %s", a.Interface, a.Name, phase)
	}
	args, err := plugArgs(a.Args)
	if err != nil {
		return s, true, invalidf("arguments of step %s.%s are not a JSON object: %v", a.Interface, a.Name, err)
	}
	if err := st.CheckArgs(n, args); err != nil {
		return s, true, &InvalidError{Reason: err.Error()}
	}
	return node.JobStep{Interface: a.Interface, Name: a.Name, Args: a.Args, Priority: a.Priority, Abortable: st.Abortable, Plug: true}, true, nil
}

func plugArgs(raw json.RawMessage) (map[string]any, error) {
	args := map[string]any{}
	if len(raw) == 0 {
		return args, nil
	}
	return args, json.Unmarshal(raw, &args)
}

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
		args, err := plugArgs(j.Current().Args)
		if err != nil {
			return verdict{}, failf("its arguments can't be read: %v", err)
		}
		begun := j.Current().StartedAt
		cctx, cancel := context.WithTimeout(ctx, e.cfg.CallTimeout)
		defer cancel()
		o, err := st.Run(cctx, hardware.Call{Node: p.n, Args: args, Begun: begun, ID: fmt.Sprintf("%s/%d", j.ID, j.Index)})
		switch {
		case err != nil && ctx.Err() != nil:
			return verdict{}, ctx.Err()
		case err != nil && cctx.Err() != nil:
			return verdict{}, failf("it did not end within %s", e.cfg.CallTimeout)
		case errors.Is(err, errMoved), errors.Is(err, errFenced):
			return verdict{}, err
		case err != nil:
			return verdict{}, failf("%v", err)
		case o.After <= 0 && !o.Hold:
			return verdict{done: true, apply: o.Apply}, nil
		}
		// The next move is not the conductor's.
		if p.n.Provision.IsWorking() && canWait(p.n) {
			p.edit(func(n *node.Node, also *node.Also) error { return e.waitForAgent(n, also) })
		}
		if o.After <= 0 {
			return again(never), nil
		}
		return again(max(o.After, time.Millisecond)), nil
	}, true
}

// canWait tells whether the node's state has one to wait in.
func canWait(n *node.Node) bool {
	_, _, err := node.Next(n.Provision, n.TargetProvision, node.Wait)
	return err == nil
}
