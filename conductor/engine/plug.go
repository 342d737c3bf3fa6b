package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
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
		if p.n.Job.Note != "" {
			return p.plugRestart(ctx)
		}
		o, err := p.plugCall(ctx, st)
		if err != nil {
			return verdict{}, err
		}
		if o.After <= 0 && !o.Hold && !o.Restart {
			return verdict{done: true, apply: o.Apply, found: o.Found}, nil
		}
		p.plugGoesOn(o)
		switch {
		case o.Restart:
			return p.plugRestart(ctx)
		case o.After <= 0:
			return again(never), nil
		}
		return again(max(o.After, time.Millisecond)), nil
	}, true
}

// plugCall calls a step of an interface.
func (p *pass) plugCall(ctx context.Context, st hardware.Step) (hardware.Outcome, error) {
	j := p.n.Job
	c := j.Current()
	if err := p.e.check(); err != nil {
		return hardware.Outcome{}, err
	}
	args, err := program.PlugArgs(c.Args)
	if err != nil {
		return hardware.Outcome{}, failf("its arguments can't be read: %v", err)
	}
	limit := cmp.Or(st.Limit, p.e.cfg.CallTimeout)
	cctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	o, err := st.Run(cctx, hardware.Call{Node: p.n, Args: args, Begun: c.StartedAt, Memory: c.Memory,
		ID: fmt.Sprintf("%s/%d", j.ID, j.Index)})
	p.e.called(p.n, st.Interface, "step", time.Since(began), err)
	sorted := power.KindOf(err) != "" // by a driver, into what may pass and what does not
	switch {
	case err != nil && ctx.Err() != nil:
		return o, ctx.Err()
	case err != nil && cctx.Err() != nil && (!sorted || st.Limit > 0): // a limit of its own is for all it can do
		return o, failf("it did not end within %s", limit)
	case sorted, errors.Is(err, errMoved), errors.Is(err, errFenced):
		return o, err
	case err != nil:
		return o, failf("%v", err)
	case len(o.Memory) > hardware.MaxMemory:
		return o, failf("it has to remember %d bytes, and may %d", len(o.Memory), hardware.MaxMemory)
	}
	return o, nil
}

// plugGoesOn records the outcome of a call that another one follows. While a step waits, the next move is not the
// conductor's.
func (p *pass) plugGoesOn(o hardware.Outcome) {
	e := p.e
	if working := p.n.Provision.IsWorking(); o.Restart && !working || !o.Restart && working && canWait(p.n) {
		p.edit(func(n *node.Node, effects *node.SideEffects) error {
			if o.Restart {
				return e.resume(n, effects)
			}
			return e.waitForAgent(n, effects)
		})
	}
	j := p.n.Job
	if bytes.Equal(o.Memory, j.Current().Memory) && (o.Detail == "" || o.Detail == j.Detail) && j.Attempt == 0 {
		return
	}
	p.edit(func(n *node.Node, _ *node.SideEffects) error {
		j := n.Job
		if j.Attempt > 0 {
			j.Attempt, j.NotBefore, j.Detail = 0, time.Time{}, "" // the detail is the error of the call before
		}
		j.Current().Memory, j.Detail = o.Memory, cmp.Or(o.Detail, j.Detail)
		return nil
	})
}

// Where a job is while it restarts its machine for a step of an interface.
const (
	plugOff   = "restart off"
	plugOn    = "restart on"
	plugReset = "restart reset"
)

// plugRestart restarts the machine for a step, which is then called again: by booting the agent again if the job works
// with one that runs, else by its power.
func (p *pass) plugRestart(ctx context.Context) (verdict, error) {
	e := p.e
	switch j := p.n.Job; j.Note {
	case "":
		b := p.n.Boot
		if b != nil && !b.Ended && slices.ContainsFunc(j.Steps[:j.Index], catalog.BootsAgent) {
			_, err := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
				return e.rebootThenGoOn(n, effects, n.Job.Current().Name)
			})
			return again(0), err
		}
		note := plugOff
		if e.staysOn(p.n) {
			note = plugReset
		}
		return again(0), p.note(ctx, note, func(n *node.Node, _ *node.SideEffects) error {
			e.closeBoot(n) // an agent that was kept ends with its machine
			return nil
		})

	case plugReset: // of a machine that must not be turned off
		st, err := p.power(ctx)
		if err == nil && st == power.On {
			err = p.setPower(ctx, power.Reset)
		}
		if err != nil {
			return verdict{}, err
		}
		return again(0), p.note(ctx, plugOn)

	case plugOff, plugOff + " asked":
		v, err := p.driveThen(ctx, plugOff, power.TurnOff, plugOn)
		if err == nil && p.n.Job.Note == plugOn {
			e.forgetAsked(p.n.UUID)
		}
		return v, err

	case plugOn, plugOn + " asked":
		return p.driveThen(ctx, plugOn, power.TurnOn, "")
	}
	return verdict{}, failf("it was left at %q, which this version of Ingot does not know; ask for the operation again",
		p.n.Job.Note)
}

// canWait reports whether the node's state has one to wait in.
func canWait(n *node.Node) bool {
	_, _, err := node.Next(n.Provision, n.TargetProvision, node.Wait)
	return err == nil
}
