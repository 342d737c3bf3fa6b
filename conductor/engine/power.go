package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/power"
)

// powerTargets are the words a client can ask for, and the steps they mean.
var powerTargets = map[string][]string{
	"power on":       {"power_on"},
	"power off":      {"power_off"},
	"rebooting":      {"power_off", "power_on"},
	"soft power off": {"soft_power_off"},
	"soft rebooting": {"soft_power_off", "power_on"},
}

// SetPower begins a power action: target is one of Ironic's words, timeout how long each of its parts may take (zero: as
// configured). When it returns nil the intent is stored. Errors are as those of Provision.
func (e *Engine) SetPower(ctx context.Context, ident, target string, timeout time.Duration, user string) error {
	steps, ok := powerTargets[target]
	if !ok {
		return invalidf("power target %q is not known; use power on, power off, rebooting, soft power off or soft rebooting", target)
	}
	n, err := e.db.Node(ctx, ident)
	if err != nil {
		return err
	}
	if timeout < 0 {
		return invalidf("timeout %s is negative", timeout)
	}
	var args json.RawMessage
	if timeout > 0 {
		args = json.RawMessage(`{"timeout":` + strconv.FormatInt(int64(timeout), 10) + `}`)
	}
	_, err = e.change(ctx, n.UUID, func(n *node.Node, also *node.Also) error {
		switch {
		case n.TargetPower != "":
			return &LockedError{n.UUID, e.cfg.Hostname, "a power action is under way (" + n.TargetPower + ")"}
		case n.Provision == node.Cleaning || n.Provision == node.CleanWait || n.Provision == node.CleanHold:
			return invalidf("node %s is being cleaned, during which its power can't be changed: abort the cleaning first", n.UUID)
		case n.Job != nil:
			return &LockedError{n.UUID, e.cfg.Hostname, "it is in state " + string(n.Provision)}
		case n.DisablePowerOff && (target == "power off" || target == "soft power off"):
			return invalidf("node %s has disable_power_off set: its power can't be turned off", n.UUID)
		}
		j := &node.Job{ID: uuid.NewString(), Phase: node.PhasePower, StartedAt: time.Now().UTC(), Requester: user}
		for _, s := range steps {
			j.Steps = append(j.Steps, node.JobStep{Interface: "power", Name: s, Args: args})
		}
		if n.DisablePowerOff && len(steps) == 2 {
			j.Steps = []node.JobStep{{Interface: "power", Name: "reset", Args: args}}
		}
		n.Job, n.TargetPower, n.LastError = j, target, ""
		e.reserve(n, true)
		e.mark(n, also, node.MarkRequested, string(j.Phase)+": "+target)
		e.history(n, also, "power", "INFO", target+" requested", user)
		return nil
	})
	if err != nil {
		return err
	}
	e.wake(n.UUID)
	return nil
}

// reset restarts a machine that must not be turned off.
func reset(ctx context.Context, p *pass) (verdict, error) {
	st, err := p.power(ctx)
	if err != nil {
		return verdict{}, err
	}
	if st != power.On {
		return powerOn(ctx, p)
	}
	if p.n.Job.Note == "" {
		if err := p.note(ctx, "reset asked"); err != nil {
			return verdict{}, err
		}
		return stepDone, p.call(ctx, "reset", func(ctx context.Context, d power.Driver) error { return d.SetPower(ctx, power.Reset) })
	}
	// The conductor died between asking and recording. Restarting a machine twice would be worse than once too few.
	return stepDone, nil
}

// syncLoop has every machine's power read from time to time.
func (e *Engine) syncLoop(ctx context.Context) {
	e.every(ctx, e.cfg.PowerSync, false, func(ids []string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, id := range ids {
			e.syncing[id] = true
		}
	})
}

// badReadsBeforeFault is how many readings of a machine's power must fail in a row before that is a fault.
const badReadsBeforeFault = 3

// syncOne reads the power of a node on which nothing is under way and corrects the record. It never changes the power: whoever
// pressed the button had a reason.
func (e *Engine) syncOne(ctx context.Context, n *node.Node) (time.Duration, error) {
	e.mu.Lock()
	asked := e.syncing[n.UUID]
	delete(e.syncing, n.UUID)
	e.mu.Unlock()
	if !asked || n.Maintenance || n.Provision == node.Enroll || n.Provision == node.AdoptFailed {
		return never, nil
	}
	p := &pass{e: e, n: n}
	defer p.close()
	var st power.State
	err := p.call(ctx, "read power state", func(ctx context.Context, d power.Driver) (err error) {
		st, err = d.Power(ctx)
		return err
	})
	if ctx.Err() != nil || err == errLineUp {
		return never, nil // the next round comes
	}
	e.mu.Lock()
	if err != nil {
		e.badReads[n.UUID]++
	} else {
		delete(e.badReads, n.UUID)
	}
	bad := e.badReads[n.UUID]
	e.mu.Unlock()
	switch {
	case err != nil && (bad < badReadsBeforeFault || n.Fault == faultPower):
		e.log.Debug("power can't be read", "node", n.UUID, "err", err, "times", bad)
		return never, nil
	case err == nil && string(st) == n.Power && n.Fault != faultPower:
		return never, nil
	}
	_, cerr := e.change(ctx, n.UUID, func(n *node.Node, also *node.Also) error {
		if n.Job != nil {
			return errMoved
		}
		if err != nil {
			n.Fault, n.Power, n.LastError = faultPower, string(power.Unknown), sentence(err.Error())
			e.history(n, also, "monitoring", "ERROR", fmt.Sprintf("power could not be read %d times in a row: %v", bad, err), "")
			return nil
		}
		if n.Fault == faultPower {
			n.Fault = ""
			e.history(n, also, "monitoring", "INFO", "power can be read again", "")
		}
		if n.Power != string(st) {
			e.history(n, also, "power", "WARNING", fmt.Sprintf("power was %q and is now %q, which was not asked for here", n.Power, st), "")
			e.recordPower(n, also, st)
		}
		return nil
	})
	return never, cerr
}
