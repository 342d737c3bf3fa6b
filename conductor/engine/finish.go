package engine

import (
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Faults of a node, in Ironic's words.
const (
	faultPower = "power failure"
	faultClean = "clean failure"
)

// finish ends a job whose steps are all done: well, or if it had failed, in the failure state of its phase.
func (e *Engine) finish(n *node.Node, also *node.Also) error {
	j := n.Job
	if j.Failure != "" {
		return e.finishFailed(n, also)
	}
	took := time.Since(j.StartedAt).Round(time.Millisecond)
	ended := func(verb node.Verb) error {
		e.closeBoot(n)
		if err := e.resume(n, also); err != nil {
			return err
		}
		if err := e.setState(n, also, verb); err != nil {
			return err
		}
		e.history(n, also, "provisioning", "INFO", fmt.Sprintf("%s is done after %s, the node is %s", j.Phase, took, n.Provision), j.Requester)
		n.Job = nil
		return nil
	}
	switch j.Phase {
	case node.PhasePower:
		e.history(n, also, "power", "INFO", fmt.Sprintf("%s is done after %s", n.TargetPower, took), j.Requester)
		n.Job, n.TargetPower = nil, ""
		e.reserve(n, false)
		return nil
	case node.PhaseVerify, node.PhaseDeploy, node.PhaseAdopt:
		return ended(node.Done)
	case node.PhaseInspect:
		n.InspectionFinishedAt = time.Now().UTC()
		return ended(node.Done)
	case node.PhaseClean:
		if n.Fault == faultClean {
			n.Fault = ""
		}
		if j.Target == node.Manageable || n.Retired {
			return ended(node.ToMgmt)
		}
		return ended(node.Done)
	case node.PhaseDelete:
		e.closeBoot(n)
		n.InstanceInfo, n.InstanceUUID, n.InstanceName = nil, "", ""
		e.history(n, also, "provisioning", "INFO", fmt.Sprintf("%s is done after %s, cleaning follows", j.Phase, took), j.Requester)
		n.Job = e.cleanJob(n, j.Requester)
		if err := e.setState(n, also, node.Clean); err != nil {
			return err
		}
		if len(n.Job.Steps) == 0 {
			return e.finish(n, also)
		}
		e.mark(n, also, node.MarkRequested, string(n.Job.Phase))
		return nil
	}
	return fmt.Errorf("finish job of node %s: unknown phase %q", n.UUID, j.Phase)
}

// fail records why a job failed. A machine on which the agent was booted is turned off first, so that it can't boot half an image
// or go on erasing; then the node enters the failure state.
func (e *Engine) fail(n *node.Node, also *node.Also, reason string) error {
	j := n.Job
	reason = sentence(reason)
	if j.Failure != "" { // the cleaning up failed, too
		n.LastError = j.Failure + " Besides, " + lowerFirst(reason)
		e.history(n, also, "provisioning", "ERROR", "cleaning up failed: "+reason, "")
		j.Failure = n.LastError
		return e.finishFailed(n, also)
	}
	if s := j.Current(); s != nil {
		s.Status, s.EndedAt = node.StepFailed, time.Now().UTC()
		e.mark(n, also, node.MarkStepFailed, s.Name+": "+reason)
	}
	j.Failure, n.LastError = reason, reason
	e.history(n, also, map[bool]string{true: "power", false: "provisioning"}[j.Phase == node.PhasePower], "ERROR",
		fmt.Sprintf("%s failed: %s", j.Phase, reason), j.Requester)
	if n.Boot != nil && n.Boot.ClosedAt.IsZero() {
		n.Boot.ClosedAt = time.Now().UTC()
	}
	booted := false
	for _, s := range j.Steps {
		booted = booted || (s.Name == stepBoot || s.Name == stepBootAgent) && s.Interface == "deploy" && s.Status != node.StepPending
	}
	if !booted || n.DisablePowerOff {
		return e.finishFailed(n, also)
	}
	j.Steps = append(j.Steps, node.JobStep{Interface: "deploy", Name: stepAfterFail})
	e.toNext(j)
	j.Index = len(j.Steps) - 1
	return e.resume(n, also)
}

// finishFailed enters the failure state.
func (e *Engine) finishFailed(n *node.Node, also *node.Also) error {
	j := n.Job
	e.closeBoot(n)
	if j.Phase == node.PhasePower {
		n.Job, n.TargetPower = nil, ""
		e.reserve(n, false)
		return nil
	}
	if j.Phase == node.PhaseClean {
		n.Fault = faultClean
	}
	if err := e.setState(n, also, node.Fail); err != nil {
		return err
	}
	n.Job = nil
	return nil
}

// closeBoot ends the newest boot of the agent: its window is closed, its certificate void.
func (e *Engine) closeBoot(n *node.Node) {
	if n.Boot == nil {
		return
	}
	if n.Boot.ClosedAt.IsZero() {
		n.Boot.ClosedAt = time.Now().UTC()
	}
	n.Boot.Ended, n.Boot.Connected = true, false
}
