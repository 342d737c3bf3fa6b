package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Rescue: the agent is booted beside the installed system and lets people log in. The credentials come with the
// request: a password, of which only a hash is ever stored or sent, and the keys of instance_info. The agent's boot
// stays open while the node is in state rescue, with its session, and without a job; unrescue ends it and starts the
// installed system again.
//
// A user who logged in was root in the agent's system, so such a boot is never kept for another job.

// stepEndRescue turns the agent of a rescue off.
const stepEndRescue = "end_rescue"

// hashRescue replaces the password of a request by its stored form.
func (r *Request) hashRescue() (err error) {
	if r.Verb == node.DoRescue {
		r.rescueHash, err = instance.HashRescue(r.RescuePassword)
	}
	return err
}

// rescueLogin is the agent's description of how to log in.
type rescueLogin struct {
	Addresses []string `json:"addresses"`
	Port      int      `json:"port"`
	HostKey   string   `json:"host_key"`
}

// rescued ends the beginning of a rescue.
func rescued(e *Engine, n *node.Node, effects *node.SideEffects) (node.Verb, error) {
	instance.ForgetRescue(n)
	e.tellLogin(n, effects)
	return node.Done, nil
}

// tellLogin writes into the history how to log in to a machine whose rescue has begun.
func (e *Engine) tellLogin(n *node.Node, effects *node.SideEffects) {
	j := n.Job
	i := slices.IndexFunc(j.Steps, func(s node.JobStep) bool {
		return s.InBand && s.Interface == "rescue" && s.Name == "rescue"
	})
	if i < 0 {
		return
	}
	var l rescueLogin
	if json.Unmarshal(j.Steps[i].Result, &l) != nil || len(l.Addresses) == 0 {
		return
	}
	at := make([]string, len(l.Addresses))
	for k, a := range l.Addresses {
		if at[k] = a; l.Port != 22 {
			at[k] = net.JoinHostPort(a, strconv.Itoa(l.Port))
		}
	}
	e.history(n, effects, "provisioning", "INFO",
		fmt.Sprintf("people can log in by ssh as rescue or root at %s; the host key is %s", strings.Join(at, ", "),
			cmp.Or(l.HostKey, "not known")), j.Requester)
}

// inRescue reports whether people can log in to the node's machine: its agent's boot is open for nothing else.
func inRescue(n *node.Node) bool {
	return n.Provision == node.Rescue && n.Boot != nil && !n.Boot.Ended
}

// endRescue turns the agent of a rescue off, so that all logins end even if later steps fail. A machine that must not
// be turned off is restarted by the next step; until then its agent, being refused, admits no login.
func endRescue(ctx context.Context, p *pass) (verdict, error) {
	if p.e.staysOn(p.n) {
		if !p.viaAgent() { // else its session is needed to restart it
			p.e.agents().CloseSession(p.n.UUID)
		}
		return stepDone, nil
	}
	v, err := endAgent(ctx, p)
	if err != nil && ctx.Err() == nil && !lapsed(err) {
		p.e.agents().CloseSession(p.n.UUID) // its boot has ended, so it is refused from now on
	}
	if !v.done || err != nil {
		return v, err
	}
	return stepDone, p.ended(ctx)
}

// watchRescue watches a node in state rescue, which has no job: an agent that stays out of reach is gone, because its
// machine was restarted or lost its power. The conductor can't know which system runs instead, so it reports the loss
// and leaves the rest to a person: only a request leads out of state rescue.
func (e *Engine) watchRescue(ctx context.Context, n *node.Node) (time.Duration, error) {
	return e.watchAgent(ctx, n, inRescue, func(n *node.Node, effects *node.SideEffects) {
		e.rescueLost(n, effects,
			fmt.Sprintf("the agent is out of reach for %s, as when the machine was restarted", e.cfg.SessionGrace))
	})
}

// rescueLost records that a node in state rescue has no agent to log in to any more.
func (e *Engine) rescueLost(n *node.Node, effects *node.SideEffects, why string) {
	e.closeBoot(n)
	n.SetLastError(sentence("the rescue system is gone: "+why+
		"; unrescue starts the installed system, after which rescue may be asked for again"), "")
	e.history(n, effects, "boot", "WARNING", "the rescue system is gone: "+why, "")
}

// ResetNetwork makes the node's agent acquire its links and addresses anew, because its machine's network was switched.
func (e *Engine) ResetNetwork(ctx context.Context, ident, user string) error {
	n, err := e.db.Node(ctx, ident)
	if err != nil {
		return err
	}
	if err := e.Here(n); err != nil {
		return err
	}
	n, err = e.change(ctx, n.UUID, func(n *node.Node, effects *node.SideEffects) error {
		if b := n.Boot; b == nil || b.Ended || !b.Connected {
			return node.Invalidf(
				"node %s has no agent that is connected: a machine that boots acquires its network anyway", n.UUID)
		}
		e.history(n, effects, "boot", "INFO", "the agent is asked to acquire its network anew", user)
		return nil
	})
	if err != nil {
		return err
	}
	if err := e.agents().ResetNetwork(ctx, n.UUID); err != nil {
		return cmp.Or(ctx.Err(), node.Invalidf("the agent of node %s could not be asked: %v", n.UUID, err))
	}
	return nil
}
