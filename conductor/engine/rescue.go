package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/crypto/ssh"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Rescue: the agent is booted beside the installed system and lets people log in. What lets them is given with the request: a password, of
// which only a hash is ever stored or sent, and the keys of instance_info. The agent's boot stays open while the node is in state rescue, with
// its session, and nothing under way; unrescue ends it and starts the installed system again.
//
// Whoever has logged in was root where the agent lives, so such a boot is never kept for another job.

// Keys of instance_info that say who may log in. Both go when the rescue has begun, or failed.
const (
	rescuePassword = "hashed_rescue_password" // bcrypt
	rescueKeys     = "rescue_ssh_keys"        // lines of an authorized_keys file, as a list or one text
)

// maxRescueKeys is what the agent takes.
const maxRescueKeys = 64

// stepEndRescue turns the agent of a rescue off.
const stepEndRescue = "end_rescue"

// hashRescue makes of the password of a request what is stored. It takes a while, so no transaction waits for it.
func (r *Request) hashRescue() error {
	if r.Verb != node.DoRescue || strings.TrimSpace(r.RescuePassword) == "" {
		return nil
	}
	if len(r.RescuePassword) > 72 {
		return invalidf("the rescue password has %d bytes, and may have 72", len(r.RescuePassword))
	}
	b, err := bcrypt.GenerateFromPassword([]byte(r.RescuePassword), bcrypt.DefaultCost)
	if err != nil {
		return fmt.Errorf("hash the rescue password: %w", err)
	}
	r.rescueHash = string(b)
	return nil
}

// beginRescue puts into the node what opens it.
func (r Request) beginRescue(n *node.Node) error {
	keys, err := RescueKeys(n)
	if err != nil {
		return err
	}
	if r.rescueHash == "" && len(keys) == 0 {
		return invalidf("rescue needs a rescue_password that is not empty, or ssh keys in instance_info's %s", rescueKeys)
	}
	if r.rescueHash == "" {
		return nil
	}
	n.InstanceInfo = maps.Clone(n.InstanceInfo)
	if n.InstanceInfo == nil {
		n.InstanceInfo = map[string]any{}
	}
	n.InstanceInfo[rescuePassword] = r.rescueHash
	return nil
}

func forgetRescue(n *node.Node) {
	n.InstanceInfo = maps.Clone(n.InstanceInfo)
	delete(n.InstanceInfo, rescuePassword)
	delete(n.InstanceInfo, rescueKeys)
}

// RescueKeys are the keys of instance_info that open a machine that is being rescued; an *InvalidError names one that is none.
func RescueKeys(n *node.Node) ([]string, error) {
	var lines []string
	switch v := n.InstanceInfo[rescueKeys].(type) {
	case nil:
	case string:
		lines = strings.Split(v, "\n")
	case []any:
		for _, item := range v {
			line, ok := item.(string)
			if !ok {
				return nil, invalidf("instance_info's %s is neither a list of keys nor a text with one a line", rescueKeys)
			}
			lines = append(lines, line)
		}
	default:
		return nil, invalidf("instance_info's %s is neither a list of keys nor a text with one a line", rescueKeys)
	}
	var keys []string
	for _, line := range lines {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		k, _, options, _, err := ssh.ParseAuthorizedKey([]byte(line))
		switch {
		case err != nil || strings.Contains(line, "\n"):
			return nil, invalidf("key %d of instance_info's %s is no line of an authorized_keys file", len(keys)+1, rescueKeys)
		case len(options) > 0:
			return nil, invalidf("key %d of instance_info's %s has options, which are not supported", len(keys)+1, rescueKeys)
		}
		if _, ok := k.(*ssh.Certificate); ok {
			return nil, invalidf("key %d of instance_info's %s is a certificate, which is not supported", len(keys)+1, rescueKeys)
		}
		if keys = append(keys, line); len(keys) > maxRescueKeys {
			return nil, invalidf("instance_info's %s has more than %d keys", rescueKeys, maxRescueKeys)
		}
	}
	return keys, nil
}

// rescueArgs are the arguments of the agent's step rescue.rescue.
func rescueArgs(n *node.Node, args map[string]any) error {
	if hash, _ := n.InstanceInfo[rescuePassword].(string); hash != "" {
		args["password_hash"] = hash
	}
	keys, err := RescueKeys(n)
	if err == nil && len(keys) > 0 {
		args["ssh_keys"] = keys
	}
	return err
}

// rescueSteps are the steps that bring a node into rescue, or back.
func (e *Engine) rescueSteps(n *node.Node, phase node.Phase) ([]node.JobStep, error) {
	switch name := e.drivers.Interface(n, "rescue"); name {
	case "", "no-rescue":
		return nil, invalidf("Driver %s does not support rescue (disabled or not implemented).", n.Driver)
	case "fake":
		return ordered(e.plugSteps(n, phase)), nil
	case "agent":
	default:
		return nil, invalidf("rescue interface %s of node %s can't be used by this version of Ingot", name, n.UUID)
	}
	if phase == node.PhaseUnresc {
		return conductorPhase(phase), nil
	}
	if _, ok := e.agentTable("rescue", "rescue"); !ok {
		return nil, invalidf("the ramdisk's agent has no step rescue.rescue: use a ramdisk that was built with this release")
	}
	return e.agentPhase(n, "rescue", phase), nil
}

// rescueLogin is what the agent told of how to log in.
type rescueLogin struct {
	Addresses []string `json:"addresses"`
	Port      int      `json:"port"`
	HostKey   string   `json:"host_key"`
}

// rescued writes into the history how to log in to a machine whose rescue has begun.
func (e *Engine) rescued(n *node.Node, also *node.Also) {
	j := n.Job
	i := slices.IndexFunc(j.Steps, func(s node.JobStep) bool { return s.InBand && s.Interface == "rescue" && s.Name == "rescue" })
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
	e.history(n, also, "provisioning", "INFO", fmt.Sprintf("people can log in by ssh as rescue or root at %s; the host key is %s", strings.Join(at, ", "), orElse(l.HostKey, "not known")), j.Requester)
}

// inRescue tells whether people can log in to the node's machine: its agent's boot is open for nothing else.
func inRescue(n *node.Node) bool {
	return n.Provision == node.Rescue && n.Boot != nil && !n.Boot.Ended
}

// endRescue turns the agent of a rescue off, so that nobody is logged in any more whatever becomes of the rest. A machine that must not be
// turned off is restarted by the step behind; until then its agent, being refused, lets nobody in.
func endRescue(ctx context.Context, p *pass) (verdict, error) {
	if p.e.staysOn(p.n) {
		if !p.viaAgent() { // else its session is what restarts it
			p.e.agents().CloseSession(p.n.UUID)
		}
		return stepDone, nil
	}
	ok, v, err := endAgent(ctx, p)
	if err != nil && ctx.Err() == nil {
		p.e.agents().CloseSession(p.n.UUID) // its boot has ended, so it is refused from now on
	}
	if !ok || err != nil {
		return v, err
	}
	return stepDone, p.ended(ctx)
}

// watchRescue looks after a node in state rescue, on which nothing is under way: an agent that stays out of reach is one that is not there any
// more, because its machine was restarted or lost its power. What runs instead is nobody's to guess, so that is said and the rest is left to a
// person: no state leads out of rescue but by request.
func (e *Engine) watchRescue(ctx context.Context, n *node.Node) (time.Duration, error) {
	if claimed, err := e.claim(ctx, n.UUID); err != nil {
		return never, err
	} else if claimed != nil {
		n = claimed
	}
	if n.Job != nil || !inRescue(n) {
		return 0, nil
	}
	if n.Boot.Connected || n.Maintenance {
		if time.Until(n.LeaseUntil) < e.cfg.Lease/2 {
			if _, err := e.change(ctx, n.UUID, func(*node.Node, *node.Also) error { return nil }); err != nil {
				return never, err
			}
		}
		return e.cfg.Lease / 3, nil
	}
	if left := time.Until(n.Boot.LostAt.Add(e.cfg.SessionGrace)); left > 0 {
		return left, nil
	}
	_, err := e.change(ctx, n.UUID, func(n *node.Node, also *node.Also) error {
		if n.Job != nil || !inRescue(n) || n.Boot.Connected || n.Maintenance {
			return errMoved
		}
		e.rescueLost(n, also, fmt.Sprintf("the agent is out of reach for %s, as when the machine was restarted", e.cfg.SessionGrace))
		return nil
	})
	if err == nil {
		e.agents().CloseSession(n.UUID)
	}
	return never, err
}

// rescueLost says that a node in state rescue has nobody to log in to any more.
func (e *Engine) rescueLost(n *node.Node, also *node.Also, why string) {
	e.closeBoot(n)
	n.LastError = sentence("the rescue system is gone: " + why + "; unrescue starts the installed system, after which rescue may be asked for again")
	e.history(n, also, "boot", "WARNING", "the rescue system is gone: "+why, "")
}

// ResetNetwork has the node's agent acquire its links and addresses anew, because somebody has switched the network behind its machine.
func (e *Engine) ResetNetwork(ctx context.Context, ident, user string) error {
	n, err := e.db.Node(ctx, ident)
	if err != nil {
		return err
	}
	n, err = e.change(ctx, n.UUID, func(n *node.Node, also *node.Also) error {
		if b := n.Boot; b == nil || b.Ended || !b.Connected {
			return invalidf("node %s has no agent that is connected, so there is nobody to ask: a machine that boots acquires its network anyway", n.UUID)
		}
		e.history(n, also, "boot", "INFO", "the agent is asked to acquire its network anew", user)
		return nil
	})
	if err != nil {
		return err
	}
	r, ok := e.agents().(resetter)
	if !ok {
		return errNoLink
	}
	if err := r.ResetNetwork(ctx, n.UUID); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return invalidf("the agent of node %s could not be asked: %v", n.UUID, err)
	}
	return nil
}
