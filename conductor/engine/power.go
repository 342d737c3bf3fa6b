package engine

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// powerTargets maps the words of clients to steps.
var powerTargets = map[string][]string{
	"power on":       {"power_on"},
	"power off":      {"power_off"},
	"rebooting":      {"power_off", "power_on"},
	"soft power off": {"soft_power_off"},
	"soft rebooting": {"soft_power_off", "power_on"},
}

// SetPower begins a power action: target is one of Ironic's words, timeout how long each of its parts may take (zero:
// as configured). When it returns nil the intent is stored. Errors are as those of Provision.
func (e *Engine) SetPower(ctx context.Context, ident, target string, timeout time.Duration, user string) error {
	steps, ok := powerTargets[target]
	if !ok {
		return node.Invalidf(
			"power target %q is not known; use power on, power off, rebooting, soft power off or soft rebooting",
			target)
	}
	if timeout < 0 {
		return node.Invalidf("timeout %s is negative", timeout)
	}
	var args json.RawMessage
	if timeout > 0 {
		args = json.RawMessage(`{"timeout":` + strconv.FormatInt(int64(timeout), 10) + `}`)
	}
	var gone string // plan of a job that this one takes the place of
	n, err := e.request(ctx, ident, func(n *node.Node, effects *node.SideEffects) error {
		switch {
		case n.TargetPower != "":
			return e.locked(n, "a power action is under way ("+n.TargetPower+")")
		case n.Provision == node.Cleaning || n.Provision == node.CleanWait || n.Provision == node.CleanHold:
			return node.Invalidf(
				"node %s is being cleaned, during which its power can't be changed: abort the cleaning first", n.UUID)
		case n.Job != nil && !n.Job.IsAhead():
			return e.locked(n, "it is in state "+string(n.Provision))
		case n.DisablePowerOff && (target == "power off" || target == "soft power off"):
			return node.Invalidf("node %s has disable_power_off set: its power can't be turned off", n.UUID)
		case e.drivers.Interface(n, "power") == program.AgentPower && len(steps) == 1:
			return node.Invalidf(
				"node %s has no controller but its agent (power interface agent), which can restart the machine, not turn it on or off: ask for rebooting", n.UUID)
		}
		gone = ""
		if j := n.Job; j.IsAhead() {
			gone = j.PlanID
			n.Job = nil
			if !n.IsWarm() {
				e.closeBoot(n)
			}
		}
		if target != "power on" {
			e.letGo(n, effects, target+" was asked for")
		}
		e.beginPower(n, effects, target, args, user)
		noteProject(ctx, n.Job)
		return nil
	})
	if err != nil {
		return err
	}
	e.cancelGone(ctx, n.UUID, gone)
	// else its session is needed to act
	if b := n.Boot; (b == nil || b.Ended) && e.drivers.Interface(n, "power") != program.AgentPower {
		e.agents().CloseSession(n.UUID)
	}
	e.wake(n.UUID)
	return nil
}

// beginPower starts the job of a power action on a node.
func (e *Engine) beginPower(n *node.Node, effects *node.SideEffects, target string, args json.RawMessage, user string) {
	j := &node.Job{ID: uuid.NewString(), Phase: node.PhasePower, StartedAt: time.Now().UTC(), Requester: user}
	steps := powerTargets[target]
	if e.staysOn(n) && len(steps) == 2 {
		steps = []string{"reset"}
	}
	for _, s := range steps {
		j.Steps = append(j.Steps, node.JobStep{Interface: "power", Name: s, Args: args, Abortable: true})
	}
	n.Job, n.TargetPower = j, target
	n.SetLastError("", "")
	e.reserve(n, true)
	e.mark(n, effects, node.MarkRequested, string(j.Phase)+": "+target)
	e.history(n, effects, "power", "INFO", target+" requested", user)
}

// reset restarts a machine that is never turned off.
func reset(ctx context.Context, p *pass) (verdict, error) {
	st, err := p.power(ctx)
	if err != nil {
		return verdict{}, err
	}
	if st == power.Off {
		return powerOn(ctx, p)
	}
	if p.n.Job.Note == "" {
		if err := p.note(ctx, "reset asked", func(n *node.Node, _ *node.SideEffects) error {
			p.e.openDrive(n)
			return nil
		}); err != nil {
			return verdict{}, err
		}
		return stepDone,
			p.setPower(ctx, power.Reset)
	}
	// The conductor died between asking and recording. Restarting a machine twice would be worse than once too few.
	return stepDone, nil
}
