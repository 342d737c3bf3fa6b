package engine

import (
	"fmt"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/engine/record"
	"github.com/ingot-metal/ingot/conductor/node"
)

// finish ends a job whose steps are all done: well, or if it had failed, in the failure state of its phase.
func (e *Engine) finish(n *node.Node, also *node.Also) error {
	j := n.Job
	if j.Failure != "" {
		return e.finishFailed(n, also)
	}
	took := time.Since(j.StartedAt).Round(time.Millisecond)
	ended := func(verb node.Verb) error {
		if b := n.Boot; b == nil || !b.Kept && j.Phase != node.PhaseRescue {
			e.closeBoot(n)
		}
		line := e.doneLine(n, took.String())
		if err := e.leave(n, also, verb); err != nil {
			return err
		}
		line.Event += ", the node is " + string(n.Provision)
		e.write(n, also, line)
		if j.Phase == node.PhaseDeploy || j.Phase == node.PhaseAdopt {
			n.DeployedBy = j.Requester
		}
		record.Remember(n)
		n.Job = nil
		return nil
	}
	switch j.Phase {
	case node.PhaseWarm, node.PhaseCool:
		e.finishAhead(n, also, took)
		return nil
	case node.PhasePower:
		e.history(n, also, "power", "INFO", fmt.Sprintf("%s is done after %s", n.TargetPower, took), j.Requester)
		n.Job, n.TargetPower = nil, ""
		e.reserve(n, false)
		return nil
	case node.PhaseVerify, node.PhaseDeploy, node.PhaseAdopt, node.PhaseUnresc:
		return ended(node.Done)
	case node.PhaseRescue:
		instance.ForgetRescue(n)
		e.rescued(n, also)
		return ended(node.Done)
	case node.PhaseService:
		clearFault(n, node.FaultService)
		return ended(node.Done)
	case node.PhaseDiscover:
		e.endDiscovery(n, also)
		return nil
	case node.PhaseInspect:
		n.InspectionFinishedAt = time.Now().UTC()
		return ended(node.Done)
	case node.PhaseClean:
		clearFault(n, node.FaultClean)
		if q := n.Quarantine; q != nil && j.Target == node.Available {
			n.LastError = fmt.Sprintf(
				quarantineWords+
					"%s (%s), so it stays manageable instead of becoming available; end the quarantine when the machine is well again.",
				q.At.Format(time.RFC3339), strings.TrimSuffix(q.Reason, "."))
			e.history(n, also, "provisioning", "WARNING", "the node does not become available: it is in quarantine ("+
				q.Reason+")", j.Requester)
			return ended(node.ToMgmt)
		}
		if j.Target == node.Manageable || n.Retired {
			return ended(node.ToMgmt)
		}
		return ended(node.Done)
	case node.PhaseDelete:
		e.closeBoot(n)
		n.InstanceInfo, n.InstanceUUID, n.InstanceName, n.DeployedBy, n.DriveWindow = nil, "", "", "", nil
		e.history(n, also, "provisioning", "INFO", fmt.Sprintf("%s is done after %s, cleaning follows", j.Phase, took),
			j.Requester)
		record.Remember(n)
		n.Job = e.planner().CleanJob(n, j.Requester)
		n.Job.Project = j.Project
		if err := e.setState(n, also, node.Clean); err != nil {
			return err
		}
		if len(n.Job.Steps) == 0 {
			return e.finish(n, also)
		}
		e.mark(n, also, node.MarkRequested, string(n.Job.Phase))
		e.startFlow(n, also)
		return nil
	}
	return fmt.Errorf("finish job of node %s: unknown phase %q", n.UUID, j.Phase)
}

// fail records why a job failed. A machine on which the agent was booted is turned off first, so that it can't boot
// half an image or go on erasing; then the node enters the failure state.
func (e *Engine) fail(n *node.Node, also *node.Also, reason string) error {
	j := n.Job
	reason = sentence(reason)
	if j.Failure != "" { // the cleaning up failed, too
		e.history(n, also, "provisioning", "ERROR", "cleaning up failed: "+reason, "")
		j.Failure += " Besides, " + lowerFirst(reason)
		if !j.IsAhead() {
			n.LastError = j.Failure
		}
		return e.finishFailed(n, also)
	}
	if s := j.Current(); s != nil {
		s.Status, s.EndedAt = node.StepFailed, time.Now().UTC()
		e.mark(n, also, node.MarkStepFailed, s.Name+": "+reason)
	}
	if j.Failure = reason; !j.IsAhead() { // nobody asked for what is done ahead: the node is as good as before
		n.LastError = reason
	}
	e.write(n, also, e.failedLine(n, reason))
	if s := j.Current(); j.IsAhead() && s != nil && s.InBand && n.Boot != nil && n.Boot.Connected && !n.Boot.Ended {
		n.Boot.Kept, n.Boot.Staged = true, nil // the image could not be written, but the agent is well
		e.mark(n, also, node.MarkKept, "")
		return e.finishFailed(n, also)
	}
	if n.Boot != nil && n.Boot.ClosedAt.IsZero() {
		n.Boot.ClosedAt = time.Now().UTC()
	}
	booted := false
	for _, s := range j.Steps {
		booted = booted || catalog.BootsAgent(s) && s.Status != node.StepPending
	}
	if !booted || e.staysOn(n) {
		return e.finishFailed(n, also)
	}
	j.Steps = append(j.Steps, node.JobStep{Interface: "deploy", Name: stepAfterFail})
	record.ToNext(j)
	j.Index = len(j.Steps) - 1
	return e.resume(n, also)
}

// finishFailed enters the failure state.
func (e *Engine) finishFailed(n *node.Node, also *node.Also) error {
	j := n.Job
	if j.IsAhead() {
		e.failAhead(n)
		return nil
	}
	if b := n.Boot; b == nil || !b.Kept { // a kept agent that the job did not take up waits for the next
		e.closeBoot(n)
	}
	if j.Phase == node.PhaseDiscover {
		n.Job = nil
		return nil
	}
	if j.Phase == node.PhasePower {
		n.Job, n.TargetPower = nil, ""
		e.reserve(n, false)
		return nil
	}
	switch j.Phase {
	case node.PhaseClean:
		n.Fault = node.FaultClean
	case node.PhaseService:
		n.Fault = node.FaultService
	case node.PhaseRescue:
		instance.ForgetRescue(n)
	}
	verb := node.Fail
	if _, _, err := node.Next(n.Provision, n.TargetProvision, node.Abort); err == nil && j.Abort {
		verb = node.Abort
	}
	if err := e.setState(n, also, verb); err != nil {
		return err
	}
	record.Remember(n)
	n.Job = nil
	return nil
}

// clearFault takes back a fault that has been overcome, if it is that one.
func clearFault(n *node.Node, fault string) {
	if n.Fault == fault {
		n.Fault = n.StandingFault()
	}
}

// closeBoot ends the newest boot of the agent: its window is closed, its certificate void.
func (e *Engine) closeBoot(n *node.Node) {
	if n.Boot == nil {
		return
	}
	if n.Boot.ClosedAt.IsZero() {
		n.Boot.ClosedAt = time.Now().UTC()
	}
	n.Boot.Ended, n.Boot.Connected, n.Boot.Kept, n.Boot.Staged = true, false, false, nil
}

// staysOn tells whether a machine's power is never turned off: it must not be, or it can't be.
func (e *Engine) staysOn(n *node.Node) bool {
	return program.StaysOn(n, e.drivers.Interface(n, "power"))
}
