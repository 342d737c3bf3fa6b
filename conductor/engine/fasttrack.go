package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Fast track: at the end of inspection and cleaning the agent may stay (Boot.Kept), and the next job uses it instead of
// booting the machine. Its stream shows whether it is there, so no job waits for it: only a conductor that was away
// itself gives it the time to come back.

// fastTrack reports whether a node's agent is kept between jobs: the node's own setting, else the configuration's.
func (e *Engine) fastTrack(n *node.Node) (bool, error) {
	switch v := n.DriverInfo["fast_track"].(type) {
	case nil:
		return e.cfg.FastTrack, nil
	case bool:
		return v, nil
	case string:
		switch strings.ToLower(strings.TrimSpace(v)) {
		case "true", "yes", "on", "1":
			return true, nil
		case "false", "no", "off", "0":
			return false, nil
		case "":
			return e.cfg.FastTrack, nil
		}
	}
	return false, node.Invalidf("fast_track in driver_info of node %s is neither true nor false", n.UUID)
}

// agentThere reports whether the newest boot's agent has a session, and if not how long it may still take to come back:
// no time at all, unless this conductor has not heard of it since it started or took the node over.
func (p *pass) agentThere() (there bool, left time.Duration) {
	b := p.n.Boot
	switch {
	case b == nil || b.Ended || b.EnrolledAt.IsZero():
		return false, 0
	case b.Connected:
		return true, 0
	case p.e.heard(p.n.UUID, b.BootID):
		return false, 0
	}
	return false, p.e.grace(b)
}

// heard reports whether an agent's session was opened with this conductor since it owns the node.
func (e *Engine) heard(nodeUUID, bootID string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.met[nodeUUID] == bootID
}

// mayKeep reports whether the agent stays at the end of the present job, if it is there.
func (p *pass) mayKeep() bool {
	n, j := p.n, p.n.Job
	if j.Failure != "" || j.Abort || n.Maintenance || n.Retired || n.Quarantine != nil || !workOfJob(j).keeps {
		return false
	}
	on, err := p.e.fastTrack(n)
	if err != nil { // reported when the job was requested
		p.e.log.Warn("the agent is not kept", "node", n.UUID, "err", err)
	}
	return on
}

// keep ends a job with the agent waiting for the next. taken is false when the agent is to be turned off as usual.
func keep(_ context.Context, p *pass) (v verdict, taken bool) {
	e := p.e
	if !p.mayKeep() {
		return verdict{}, false
	}
	there, left := p.agentThere()
	if there {
		return verdict{done: true, result: json.RawMessage(`{"kept":true}`),
			apply: func(n *node.Node, effects *node.SideEffects) error {
				b := n.Boot
				if b == nil || b.Ended || !b.Connected {
					return errMoved
				}
				b.Kept = true
				e.mark(n, effects, node.MarkKept, "")
				e.history(n, effects, "boot", "INFO", "the agent is kept for what comes next (fast track)", "")
				return nil
			}}, true
	}
	if left > 0 {
		return again(left), true
	}
	return verdict{}, false
}

// takeUp begins a job with the agent that was kept. taken is false when the machine has to be booted.
func takeUp(ctx context.Context, p *pass) (v verdict, taken bool, err error) {
	e := p.e
	if why := p.unfit(); why != "" {
		_, err := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
			e.history(n, effects, "boot", "INFO", "the machine is booted although its agent was kept: "+why, "")
			e.closeBoot(n)
			return nil
		})
		return verdict{}, false, err
	}
	there, left := p.agentThere()
	if there {
		if err := e.attachKept(ctx, p.n, ProvisioningNetwork); err != nil {
			return verdict{}, true, err
		}
		e.lives(p.n.UUID) // it had nothing to say while it waited
		result, err := json.Marshal(map[string]any{"boot_id": p.n.Boot.BootID, "kept": true, "took_ms": 0})
		return verdict{done: true, result: result, apply: func(n *node.Node, effects *node.SideEffects) error {
			b := n.Boot
			if b == nil || b.Ended || !b.Kept || !b.Connected {
				return errMoved
			}
			b.Kept = false
			e.mark(n, effects, node.MarkTakenUp, "")
			return nil
		}}, true, err
	}
	if left > 0 {
		return again(left), true, nil
	}
	_, err = p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
		b := n.Boot
		if b == nil || b.Connected {
			return errMoved
		}
		since := ""
		if !b.LostAt.IsZero() {
			since = " since " + b.LostAt.Format("15:04:05")
		}
		e.history(n, effects, "boot", "WARNING", "the agent that was kept is out of reach"+since+
			": the machine is booted as usual", "")
		e.closeBoot(n)
		return nil
	})
	return verdict{}, false, err
}

// unfit returns why the present job needs a boot of its own, although an agent was kept.
func (p *pass) unfit() string {
	n, j := p.n, p.n.Job
	if mode, from := p.e.site().BootMode(n); mode != "" && n.Boot.Firmware != "" && mode != n.Boot.Firmware {
		return fmt.Sprintf("it was booted by %s firmware, but %s", n.Boot.Firmware, from)
	}
	for _, s := range j.Steps[:j.Index] {
		if s.Plug { // such as settings of the firmware, which hold from the next start
			return fmt.Sprintf("step %s.%s ran before, and may have changed what holds from the next start only",
				s.Interface, s.Name)
		}
	}
	return ""
}

// switcher is a network that knows whether connecting a node to a network moves its ports from another one.
type switcher interface {
	Switches(ctx context.Context, n *node.Node, to NetworkName) (bool, error)
}

// resetter is a link by which an agent can be asked to drop its links and get its addresses anew.
type resetter interface {
	ResetNetwork(ctx context.Context, nodeUUID string) error
}

// attachKept connects a node to a network while its agent runs. If that moves its ports, the agent is asked to get its
// addresses anew.
func (e *Engine) attachKept(ctx context.Context, n *node.Node, to NetworkName) error {
	moves := false
	if s, ok := e.network.(switcher); ok {
		var err error
		if moves, err = s.Switches(ctx, n, to); err != nil {
			return failf("find out which network the machine is on: %v", err)
		}
	}
	if err := e.attach(ctx, n, to); err != nil || !moves {
		return err
	}
	if err := e.agents().ResetNetwork(ctx, n.UUID); err != nil {
		// Its session breaks with the switch, and the agent looks for its network by itself when it can't get back.
		e.log.Info("the agent could not be told that its network was switched", "node", n.UUID, "err", err)
	}
	return nil
}

// watchKept looks after a node on which nothing is under way but that its agent is kept: one that stays out of reach is
// given up.
func (e *Engine) watchKept(ctx context.Context, n *node.Node) (time.Duration, error) {
	kept := func(n *node.Node) bool { return n.Boot != nil && n.Boot.Kept }
	return e.watchAgent(ctx, n, kept, func(n *node.Node, effects *node.SideEffects) {
		e.endKept(n, effects, fmt.Sprintf("the agent that was kept is out of reach for %s", e.cfg.SessionGrace))
	})
}

// watchAgent looks after an agent that waits on a node on which nothing is under way; lost is done when it stays out of
// reach.
func (e *Engine) watchAgent(ctx context.Context, n *node.Node, waits func(*node.Node) bool,
	lost func(*node.Node, *node.SideEffects)) (time.Duration, error) {
	if claimed, err := e.claim(ctx, n.UUID); err != nil {
		return never, err
	} else if claimed != nil {
		n = claimed
	}
	if n.Job != nil || !waits(n) {
		return 0, nil
	}
	mayGo := func(n *node.Node) bool { return !n.Boot.Connected && !n.Maintenance && n.Reservation == "" }
	if !mayGo(n) {
		if n.Boot.Connected {
			return never, nil // the end of its session wakes the node
		}
		return e.pausePoll(), nil
	}
	if left := e.grace(n.Boot); left > 0 {
		return left, nil
	}
	_, err := e.change(ctx, n.UUID, func(n *node.Node, effects *node.SideEffects) error {
		if n.Job != nil || !waits(n) || !mayGo(n) {
			return errMoved
		}
		lost(n, effects)
		return nil
	})
	if err == nil {
		e.agents().CloseSession(n.UUID)
	}
	return 0, err
}

// endKept gives up an agent that was kept, on a node without a job: its machine is turned off, as it would be had the
// agent not been kept.
func (e *Engine) endKept(n *node.Node, effects *node.SideEffects, why string) {
	off := n.Power == string(power.Off) || e.staysOn(n) || n.Maintenance
	then := "its machine is turned off"
	if off {
		then = "the next job boots it as usual"
	}
	e.history(n, effects, "boot", "WARNING", why+": "+then, "")
	e.closeBoot(n)
	if !off {
		n.Job = e.coolJob(n, effects, "")
	}
}

// coolJob turns a machine off on which nothing but the agent runs.
func (e *Engine) coolJob(n *node.Node, effects *node.SideEffects, user string) *node.Job {
	j := newJob(node.PhaseCool, "", e.planner().Conductor(node.PhaseCool), user)
	was := n.Job
	n.Job = j
	e.mark(n, effects, node.MarkRequested, string(j.Phase))
	n.Job = was
	return j
}

// letGo ends the boot of a kept agent, or of a rescue, because the power of its machine changes.
func (e *Engine) letGo(n *node.Node, effects *node.SideEffects, why string) {
	if inRescue(n) {
		e.rescueLost(n, effects, why)
		return
	}
	if b := n.Boot; b == nil || !b.Kept {
		return
	}
	e.history(n, effects, "boot", "INFO", "the agent that was kept ends: "+why, "")
	e.closeBoot(n)
}

// PowerOffDeletedNode asks the agent of a deleted node to turn its machine off: the conductor has no other record of
// it.
func (e *Engine) PowerOffDeletedNode(ctx context.Context, nodeUUID string) {
	if err := e.agents().Power(ctx, nodeUUID, node.AgentOff); err != nil {
		e.log.Warn("a machine whose node was deleted may still be on: its agent can't be asked to turn it off", "node",
			nodeUUID, "err", err)
	}
	e.wake(nodeUUID) // which forgets it
}
