package engine

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/record"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Work ahead of need: an available node's agent is booted, its machine turned off again, an image written to its disk.
// The node stays available meanwhile, with nothing locked, and every request of a client comes first. A deployment
// takes over the boot that is under way.

// Warm boots the agent of an available node, which stays available. It does nothing when the agent is up, or being
// booted. When it returns nil the intent is stored; if it does not succeed, Node.Warmth and the history say why. Errors
// are as those of Provision.
func (e *Engine) Warm(ctx context.Context, ident, user string) error {
	return e.ahead(ctx, ident, func(n *node.Node, effects *node.SideEffects) error {
		if n.IsWarm() && n.Job == nil || n.Job != nil && n.Job.Phase == node.PhaseWarm && n.Job.Failure == "" {
			return nil
		}
		if err := e.mayWarm(n); err != nil {
			return err
		}
		e.beginAhead(n, effects, &node.Job{Phase: node.PhaseWarm, Steps: e.planner().Conductor(node.PhaseWarm)},
			"to be booted into the agent, for what may come", user)
		return nil
	})
}

// Cool turns a warm node off, or ends its warming; and an available node that is on although no agent is, as when
// turning it off has failed. Else it does nothing. What it returns is as with Warm.
func (e *Engine) Cool(ctx context.Context, ident, user string) error {
	return e.ahead(ctx, ident, func(n *node.Node, effects *node.SideEffects) error {
		switch j := n.Job; {
		case j != nil && j.Phase == node.PhaseCool:
			return nil
		case j != nil && !j.IsAhead():
			return e.locked(n, "it is in state "+string(n.Provision))
		case j == nil && (n.Boot == nil || !n.Boot.Kept) &&
			(n.Provision != node.Available || n.InstanceUUID != "" || n.Power != string(power.On)):
			n.Warmth = nil
			return nil
		}
		n.Warmth = nil
		e.beginAhead(n, effects, &node.Job{Phase: node.PhaseCool, Steps: e.planner().Conductor(node.PhaseCool)},
			"to be turned off again", user)
		return nil
	})
}

// Image is the image to write ahead, by the keys of instance_info that a deployment of it will have: image_source,
// image_os_hash_algo, image_os_hash_value, image_checksum, image_type, root_gb, ...
type Image = map[string]any

// Stage writes an image to the disk of an available node ahead; the node is made warm first if it is not. A deployment
// of the same image in the same boot finds it there; any other writes its own as usual. It returns as Warm does.
func (e *Engine) Stage(ctx context.Context, ident string, image Image, user string) error {
	return e.ahead(ctx, ident, func(n *node.Node, effects *node.SideEffects) error {
		if err := e.mayWarm(n); err != nil {
			return err
		}
		step, err := e.planner().Stage(n, image)
		if err != nil {
			return err
		}
		if j := n.Job; j != nil && j.Phase == node.PhaseWarm && j.Failure == "" {
			if slices.ContainsFunc(j.Steps,
				func(s node.JobStep) bool { return s.InBand && slices.Equal(s.Args, step.Args) }) {
				return nil
			}
			if j.PlanID != "" {
				return e.locked(n, "another image is being written ahead")
			}
			j.Steps = append(slices.DeleteFunc(j.Steps, func(s node.JobStep) bool { return s.InBand }), step)
			return nil
		}
		job := &node.Job{Phase: node.PhaseWarm, Steps: append(e.planner().Conductor(node.PhaseWarm), step)}
		e.beginAhead(n, effects, job, "to be given an image ahead", user)
		return nil
	})
}

// ahead changes the work done ahead on a node, and cancels the plan of the previous job, if it had one.
func (e *Engine) ahead(ctx context.Context, ident string, f func(*node.Node, *node.SideEffects) error) error {
	var gone string
	n, err := e.request(ctx, ident, func(n *node.Node, effects *node.SideEffects) error {
		was := n.Job
		if err := f(n, effects); err != nil {
			return err
		}
		gone = ""
		if was != nil && (n.Job == nil || n.Job.ID != was.ID) {
			gone = was.PlanID
		}
		return nil
	})
	if err != nil {
		return err
	}
	e.cancelGone(ctx, n.UUID, gone)
	e.wake(n.UUID)
	return nil
}

// cancelGone stops the plan of a job that is over, if there is one.
func (e *Engine) cancelGone(ctx context.Context, nodeUUID, planID string) {
	if planID == "" {
		return
	}
	if err := e.agents().CancelPlan(ctx, nodeUUID, planID); err != nil {
		e.log.Debug("cancel plan", "node", nodeUUID, "err", err)
	}
}

// mayWarm refuses to boot a node that is not idle, is faulty, or has no agent.
func (e *Engine) mayWarm(n *node.Node) error {
	switch {
	case n.Job != nil && !n.Job.IsAhead(), n.TargetPower != "", n.Job == nil && n.Reservation != "":
		return e.locked(n, "something is under way in state "+string(n.Provision))
	case n.Provision != node.Available:
		return node.Invalidf("node %s is in state %q: only an available node can be made warm", n.UUID, n.Provision)
	case n.Maintenance:
		return node.Invalidf("node %s can't be made warm because it's in maintenance mode", n.UUID)
	case n.Fault != "":
		return node.Invalidf("node %s can't be made warm while it has a fault (%s)", n.UUID, n.Fault)
	case n.Quarantine != nil, n.Retired:
		return node.Invalidf("node %s can't be made warm: it is retired, or in quarantine", n.UUID)
	case e.drivers.Interface(n, "deploy") == "fake":
		return node.Invalidf("node %s has deploy interface fake, and so no agent that could be booted ahead", n.UUID)
	}
	return nil
}

// beginAhead starts a job ahead of need on a node, in place of a present one of that kind.
func (e *Engine) beginAhead(n *node.Node, effects *node.SideEffects, j *node.Job, what, user string) {
	was := n.Job
	j.ID, j.StartedAt, j.Requester = uuid.NewString(), time.Now().UTC(), user
	n.Job = j
	e.history(n, effects, "provisioning", "INFO", "the node is "+what, user)
	e.mark(n, effects, node.MarkRequested, string(j.Phase))
	if was != nil && j.Phase == node.PhaseWarm && was.Phase == node.PhaseCool {
		e.closeBoot(n) // it is being turned off
	}
}

// takeOverAhead begins a client's job in place of one that was done ahead. A nil job is a change of state only.
func (e *Engine) takeOverAhead(n *node.Node, effects *node.SideEffects, was, job *node.Job) *node.Job {
	booting := was.Phase == node.PhaseWarm && was.Failure == "" && n.Boot != nil && !n.Boot.Ended
	s := was.Current()
	switch {
	case booting && (s == nil || !catalog.BootsAgent(*s)):
		n.Boot.Kept = true // the next boot_agent takes it up
		return job
	case job == nil && was.Phase == node.PhaseWarm && was.Failure == "":
		e.history(n, effects, "boot", "INFO",
			"the boot of the agent that is under way is not wanted any more: the machine is turned off", "")
		e.closeBoot(n)
		return e.coolJob(n, effects, was.Requester)
	case job == nil:
		return was // it turns the machine off
	case booting && s.Status == node.StepRunning && was.Note != "" && len(job.Steps) > 0 &&
		catalog.BootsAgent(job.Steps[0]):
		first := &job.Steps[0]
		first.Status, first.StartedAt = node.StepRunning, time.Now().UTC()
		job.Note, job.Attempt, job.BegunAt, job.NotBefore, job.Boots, job.Systems, job.Detail = was.Note, was.Attempt,
			was.BegunAt, was.NotBefore, was.Boots, was.Systems, was.Detail
		job.Adopted = was.ID
		e.history(n, effects, "boot", "INFO", "the boot of the agent that is under way is taken over", "")
		return job
	}
	return job
}

// cooled ends the turning off of a machine on which nothing but the agent ran.
func cooled(e *Engine, n *node.Node, effects *node.SideEffects) (node.Verb, error) {
	e.closeBoot(n)
	e.history(n, effects, "provisioning", "INFO", "the node is not warm any more", n.Job.Requester)
	n.Job = nil
	return "", nil
}

// warmed leaves the agent waiting for work.
func warmed(e *Engine, n *node.Node, effects *node.SideEffects) (node.Verb, error) {
	j := n.Job
	n.Boot.Kept, n.Warmth = true, nil
	e.mark(n, effects, node.MarkKept, "")
	for _, s := range j.Steps {
		if s.InBand && s.Name == "write_image" {
			n.Boot.Staged = record.Staged(s)
		}
	}
	e.history(n, effects, "provisioning", "INFO",
		"the node is warm after "+took(j).String()+": its agent waits for work", j.Requester)
	record.Remember(n)
	n.Job = nil
	return "", nil
}

// failAhead ends a job that was done ahead and failed: the node is as available as before.
func (e *Engine) failAhead(n *node.Node) {
	n.Warmth = &node.Warmth{Failure: n.Job.Failure, At: time.Now().UTC()}
	if n.Job.Phase == node.PhaseCool {
		n.Warmth = nil // no pool wants it warm
	}
	record.Remember(n)
}
