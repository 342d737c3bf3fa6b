package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/engine/record"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// hold parks the node until a client sends unhold. With the parking the step is done, so that unhold continues after
// it.
func hold(ctx context.Context, p *pass) (verdict, error) {
	_, err := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
		j := n.Job
		c := j.Current()
		c.Status, c.EndedAt = node.StepDone, time.Now().UTC()
		p.e.mark(n, effects, node.MarkStepDone, c.Name)
		record.ToNext(j)
		j.Detail = "held by step hold; unhold goes on, abort ends it"
		return p.e.leave(n, effects, node.Hold)
	})
	return again(never), err
}

// wait does nothing for a while. Ironic waits for the next heartbeat if no time is given; here agents are connected all
// the time, so that is now.
func wait(ctx context.Context, p *pass) (verdict, error) {
	d, err := program.WaitFor(p.n.Job.Current().Args)
	if err != nil {
		return verdict{}, failf("%s", err)
	}
	if d == 0 {
		return stepDone, nil
	}
	if p.n.Job.Note == "" {
		err := p.note(ctx, "waiting", func(n *node.Node, effects *node.SideEffects) error {
			n.Job.Detail = fmt.Sprintf("waiting for %s, as step wait asks", d)
			return p.e.waitForAgent(n, effects)
		})
		if err != nil {
			return verdict{}, err
		}
	}
	if left := time.Until(p.n.Job.BegunAt.Add(d)); left > 0 {
		return again(left), nil
	}
	return stepDone, nil
}

// bootsAgent reports whether the job works with an agent, which a machine that is turned on then boots.
func (p *pass) bootsAgent() bool { return slices.ContainsFunc(p.n.Job.Steps, catalog.BootsAgent) }

// bootAgain ends the step by having the agent booted for what follows.
func (p *pass) bootAgain(ctx context.Context) (verdict, error) {
	_, err := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
		c := n.Job.Current()
		c.Status, c.EndedAt = node.StepDone, time.Now().UTC()
		p.e.mark(n, effects, node.MarkStepDone, c.Name)
		return p.e.rebootThenGoOn(n, effects, c.Name)
	})
	return again(0), err
}

// turnOn is the step power_on.
func turnOn(ctx context.Context, p *pass) (verdict, error) {
	if !p.bootsAgent() {
		return powerOn(ctx, p)
	}
	if b := p.n.Boot; b != nil && b.Connected && !b.Ended {
		return stepDone, nil
	}
	return p.bootAgain(ctx)
}

// turnOff is the step power_off.
func turnOff(ctx context.Context, p *pass) (verdict, error) {
	if !p.bootsAgent() {
		return powerOff(ctx, p)
	}
	v, err := endAgent(ctx, p)
	if !v.done || err != nil {
		return v, err
	}
	p.e.agents().CloseSession(p.n.UUID)
	return verdict{done: true, apply: func(n *node.Node, _ *node.SideEffects) error {
		p.e.closeBoot(n)
		n.Job.Boots = max(0, n.Job.Boots-1) // that it has to be booted again is not its fault
		return nil
	}}, nil
}

// reboot is the step of that name.
func reboot(ctx context.Context, p *pass) (verdict, error) {
	e := p.e
	if p.bootsAgent() {
		return p.bootAgain(ctx)
	}
	if e.staysOn(p.n) {
		return reset(ctx, p)
	}
	if note := p.n.Job.Note; note == "" || note == "off asked" {
		v, err := p.drivePower(ctx, "off", power.TurnOff, e.cfg.PowerTimeout)
		if !v.done || err != nil {
			return v, err
		}
		e.forgetAsked(p.n.UUID)
		if err := p.note(ctx, "on"); err != nil {
			return verdict{}, err
		}
	}
	return p.drivePower(ctx, "on", power.TurnOn, e.cfg.PowerTimeout)
}

func isPowerJob(j *node.Job) bool { return j != nil && j.Phase == node.PhasePower }
