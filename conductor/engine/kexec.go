package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/start"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

func (e *Engine) signTimeout(a start.Args) time.Duration {
	if a.Seconds > 0 {
		return time.Duration(a.Seconds) * time.Second
	}
	return e.cfg.SignTimeout
}

// noteKexec is the note of tear_down_agent once the jump is about to be requested.
const noteKexec = "kexec asked"

// beginKexec decides, when the boot device is set, whether the machine jumps. If it does not although it should, the
// history says why.
func beginKexec(ctx context.Context, p *pass) (begun bool, err error) {
	e := p.e
	if start.Of(p.n.Job.Steps).Method != start.Kexec || p.n.Job.Failure != "" {
		return false, nil
	}
	ok, why := start.Loaded(p.n.Job)
	if b := p.n.Boot; ok && (b == nil || b.Ended) {
		ok, why = false, "the agent that had loaded the system's kernel is gone"
	}
	if !ok {
		return false, p.note(ctx, "agent off", func(n *node.Node, effects *node.SideEffects) error {
			e.history(n, effects, "boot", "WARNING",
				"the installed system is not started by kexec but by the machine's firmware: "+why, "")
			return nil
		})
	}
	return true, p.note(ctx, noteKexec, func(n *node.Node, effects *node.SideEffects) error {
		e.mark(n, effects, node.MarkKexecAsked, "")
		return nil
	})
}

// kexec has the agent jump into the installed system. Over is false when the agent would not, and the machine has to be
// restarted the ordinary way.
func kexec(ctx context.Context, p *pass) (v verdict, over bool, err error) {
	e, b := p.e, p.n.Boot
	// The started system may be seen before this conductor has stored that the agent was told to start it.
	if err := e.watch(ctx, p, false); err != nil {
		return verdict{}, true, err
	}
	left := verdict{done: true, result: json.RawMessage(`{"kexec":true}`),
		apply: func(n *node.Node, effects *node.SideEffects) error {
			e.closeBoot(n)
			e.mark(n, effects, node.MarkKexec, "")
			e.history(n, effects, "boot", "INFO",
				"the agent has left and starts the installed system by kexec, without the machine's firmware",
				n.Job.Requester)
			return nil
		}}
	if b == nil || b.Ended || p.n.Job.Sign != nil {
		e.agents().CloseSession(p.n.UUID)
		return left, true, nil
	}
	if !b.Connected {
		// It may have jumped, or be about to come back to a conductor that was away, not knowing that it is to jump.
		if wait := e.grace(b); wait > 0 {
			return again(wait), true, nil
		}
		return left, true, nil
	}
	cctx, cancel := context.WithTimeout(ctx, e.cfg.AgentOff)
	err = e.agents().Kexec(cctx, p.n.UUID, e.kexecDelay(p.n))
	stayed := cctx.Err() != nil
	cancel()
	switch {
	case err == nil:
		return left, true, nil
	case ctx.Err() != nil:
		return verdict{}, true, ctx.Err()
	case lapsed(err):
		return verdict{}, true, err
	case !stayed:
		// No session, or one that broke off. The record says connected when the conductor before this one died: as
		// above.
		e.log.Info("the agent could not be asked to start the installed system by kexec", "node", p.n.UUID, "err", err)
		if time.Since(e.lastSign(p.n.UUID, p.n.Job.BegunAt)) > e.cfg.SessionGrace {
			return left, true, nil
		}
		return again(e.cfg.RetryBase), true, nil
	}
	_, cerr := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
		if n.Boot != nil && !n.Boot.Connected {
			return nil // it has gone, in whatever way: see above
		}
		n.Job.Note, n.Job.BegunAt = "agent off", time.Now().UTC()
		e.history(n, effects, "boot", "WARNING",
			fmt.Sprintf("the installed system is not started by kexec but by the machine's firmware: the agent did not leave: %v", err), "")
		return nil
	})
	if cerr != nil {
		return verdict{}, true, cerr
	}
	return again(0), p.n.Job.Note == noteKexec, nil
}

// AgentStale handles an agent that asks for a session of a boot that is over: it still runs. That matters where it is
// thought to have jumped: after a session that broke off and did not come back in time, that is uncertain. In this case
// no system runs on the machine, and it is started the ordinary way.
func (e *Engine) AgentStale(ctx context.Context, nodeUUID, bootID string) {
	const why = "the agent still runs, although it was asked to start the installed system by kexec: the machine is restarted and boots from its disk"
	_, err := e.request(ctx, nodeUUID, func(n *node.Node, effects *node.SideEffects) error {
		b, j := n.Boot, n.Job
		if b == nil || !b.Ended || b.BootID != bootID {
			return errMoved
		}
		switch past := n.Past[node.PhaseDeploy]; {
		case j != nil && j.Phase == node.PhaseDeploy && j.Failure == "" && j.Sign == nil && start.Jumped(j) &&
			j.Note == "sign":
			j.Note, j.BegunAt = "cold off", time.Now().UTC()
			e.history(n, effects, "boot", "WARNING", why, "")
			return e.resume(n, effects)
		case j == nil && n.Provision == node.Active && past != nil && start.Jumped(past) && n.TargetPower == "" &&
			!n.Maintenance && past.Sign == nil && b.EnrolledAt.Before(past.EndedAt):
			e.history(n, effects, "boot", "WARNING", why, "")
			b.BootID = "" // once
			e.beginPower(n, effects, "rebooting", nil, "kexec")
			return nil
		}
		return errMoved
	})
	switch {
	case err == nil:
		e.wake(nodeUUID)
	case !errors.Is(err, errMoved):
		e.log.Warn("record that an agent still runs", "node", nodeUUID, "err", err)
	}
}

// kexecDelay is how long the agent waits between its leave and the jump: the time in which the machine's network is
// switched, where it is.
func (e *Engine) kexecDelay(n *node.Node) time.Duration {
	if slices.Contains([]string{"", "noop", "flat"}, e.drivers.Interface(n, "network")) {
		return 0
	}
	return e.cfg.KexecDelay
}

// bootInstance starts the installed system, unless the agent has jumped into it, and waits for its sign of life, if one
// is required. A system that was started by kexec and shows none is started once more, by the machine's firmware.
func bootInstance(ctx context.Context, p *pass) (verdict, error) {
	e, j := p.e, p.n.Job
	a := start.Of(j.Steps)
	hot := start.Jumped(j)
	if err := e.watch(ctx, p, false); err != nil { // before it can show itself
		return verdict{}, err
	}
	switch j.Note {
	case "", "on asked":
		if !hot {
			v, err := powerOn(ctx, p)
			if err != nil || !v.done {
				return v, err
			}
		}
		if len(a.Signs) == 0 {
			return verdict{done: true, result: start.Result(hot, false, nil)}, nil
		}
		return again(0), p.note(ctx, "sign", e.waitForSign)

	case "sign", "sign after cold boot":
		if j.Sign != nil {
			e.watches.End(p.n.UUID)
			return verdict{done: true, result: start.Result(hot, j.Note != "sign", j.Sign)}, nil
		}
		if err := e.watch(ctx, p, true); err != nil {
			return verdict{}, err
		}
		from := j.BegunAt
		if e.began.After(from) {
			from = e.began // no conductor listened before
		}
		limit := e.signTimeout(a)
		if left := time.Until(from.Add(limit)); left > 0 {
			return again(left), nil
		}
		if p.n.Maintenance {
			return again(e.pausePoll()), nil
		}
		none := fmt.Sprintf("the deployed system gave no sign of life (%s) within %s", strings.Join(a.Signs, ", "),
			limit)
		if !hot || j.Note != "sign" {
			if j.Note != "sign" {
				none += ", neither after kexec nor after a start by the machine's firmware"
			}
			return verdict{},
				failf("%s: look at the machine's console; if the system runs well, correct %s", none, start.KeySigns)
		}
		if p.viaAgent() {
			return verdict{},
				failf("%s after kexec, and there is no controller to restart the machine with (power interface agent): look at its console, restart it by hand and deploy again", none)
		}
		return again(0), p.note(ctx, "cold off", func(n *node.Node, effects *node.SideEffects) error {
			if n.Job.Sign != nil {
				return errMoved // just in time
			}
			e.history(n, effects, "boot", "WARNING", none+" after kexec; the machine is restarted and boots from its disk",
				"")
			return e.resume(n, effects)
		})

	case "cold off", "cold off asked":
		if j.Sign != nil && j.Note == "cold off" {
			return again(0), p.note(ctx, "sign") // late, and still before anything was done
		}
		if !e.staysOn(p.n) {
			v, err := p.drivePower(ctx, "cold off", power.TurnOff, e.cfg.PowerTimeout)
			if !v.done || err != nil {
				return v, err
			}
		}
		return again(0), p.note(ctx, "cold disk")

	case "cold disk": // many controllers forget the setting from before the jump
		if err := p.bootFromDisk(ctx); err != nil {
			return verdict{}, err
		}
		e.forgetAsked(p.n.UUID)
		next := "cold on"
		if e.staysOn(p.n) {
			next = "cold reset"
		}
		return again(0), p.note(ctx, next, func(n *node.Node, _ *node.SideEffects) error {
			if next == "cold reset" {
				e.openDrive(n)
			}
			return nil
		})

	case "cold reset":
		if err := p.setPower(ctx, power.Reset); err != nil {
			return verdict{}, err
		}
		return again(0), p.note(ctx, "cold on")

	case "cold on", "cold on asked":
		return p.driveThen(ctx, "cold on", power.TurnOn, "sign after cold boot", e.waitForSign)
	}
	return verdict{}, failf("it was left at %q, which this version of Ingot does not know; ask for the operation again",
		j.Note)
}

// waitForSign leaves the next move to the system that starts.
func (e *Engine) waitForSign(n *node.Node, effects *node.SideEffects) error {
	n.Job.Detail = "waiting for a sign of life of the deployed system (" +
		strings.Join(start.Of(n.Job.Steps).Signs, ", ") + ")"
	return e.waitForAgent(n, effects)
}

// bootFromDisk makes the machine boot from its disk from now on. One without a way to set that does so by itself, most
// likely: the choice of the network held for one boot only.
func (p *pass) bootFromDisk(ctx context.Context) error {
	if p.e.planner().FromMemory(p.n) {
		return p.bootFromMemory(ctx)
	}
	err := p.setBoot(ctx, power.Boot{Device: power.BootDisk, Persistent: true, Mode: p.bootMode()})
	if k := power.KindOf(err); k == power.Unsupported || k == power.Refused {
		reason := err.Error()
		_, err = p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
			p.e.history(n, effects, "boot", "WARNING", "the boot device was not set to disk: "+reason, "")
			return nil
		})
	}
	return err
}
