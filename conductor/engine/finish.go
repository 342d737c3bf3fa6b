package engine

import (
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/engine/record"
	"github.com/ingot-metal/ingot/conductor/node"
)

// finish ends a job whose steps are all done: well, or if it had failed, in the failure state of its phase.
func (e *Engine) finish(n *node.Node, effects *node.SideEffects) error {
	j := n.Job
	if j.Failure != "" {
		return e.finishFailed(n, effects)
	}
	w := workOfJob(j)
	if w.next == nil {
		return fmt.Errorf("finish job of node %s: unknown phase %q", n.UUID, j.Phase)
	}
	verb, err := w.next(e, n, effects)
	if err != nil || verb == "" {
		return err
	}
	if b := n.Boot; b == nil || !b.Kept && !w.opens {
		e.closeBoot(n)
	}
	line := e.doneLine(n, took(j).String())
	if err := e.leave(n, effects, verb); err != nil {
		return err
	}
	line.Event += ", the node is " + string(n.Provision)
	e.write(n, j, effects, line)
	record.Remember(n)
	n.Job = nil
	return nil
}

// fail records why a job failed. A machine on which the agent was booted is turned off first, so that it can't boot
// half an image or go on erasing; then the node enters the failure state.
func (e *Engine) fail(n *node.Node, effects *node.SideEffects, reason string) error {
	j := n.Job
	if j.Failure != "" { // the cleaning up failed, too
		reason = ended(reason)
		e.history(n, effects, "provisioning", "ERROR", "cleaning up failed: "+sentence(reason), "")
		j.Failure += " Besides, " + reason
		if !j.IsAhead() {
			n.SetLastError(j.Failure, "")
		}
		return e.finishFailed(n, effects)
	}
	reason = sentence(reason)
	if s := j.Current(); s != nil {
		s.Status, s.EndedAt = node.StepFailed, time.Now().UTC()
		e.mark(n, effects, node.MarkStepFailed, s.Name+": "+reason)
	}
	if j.Failure = reason; !j.IsAhead() { // no client requested work done ahead: the node is as good as before
		n.SetLastError(reason, "")
	}
	e.write(n, n.Job, effects, e.failedLine(n, reason))
	if s := j.Current(); j.IsAhead() && s != nil && s.InBand && n.Boot != nil && n.Boot.Connected && !n.Boot.Ended {
		n.Boot.Kept, n.Boot.Staged = true, nil // the image could not be written, but the agent is well
		e.mark(n, effects, node.MarkKept, "")
		return e.finishFailed(n, effects)
	}
	if n.Boot != nil && n.Boot.ClosedAt.IsZero() {
		n.Boot.ClosedAt = time.Now().UTC()
	}
	booted := false
	for _, s := range j.Steps {
		booted = booted || catalog.BootsAgent(s) && s.Status != node.StepPending
	}
	if !booted || e.staysOn(n) {
		return e.finishFailed(n, effects)
	}
	j.Steps = append(j.Steps, node.JobStep{Interface: "deploy", Name: stepAfterFail})
	record.ToNext(j)
	j.Index = len(j.Steps) - 1
	return e.resume(n, effects)
}

// finishFailed enters the failure state.
func (e *Engine) finishFailed(n *node.Node, effects *node.SideEffects) error {
	j, w := n.Job, workOfJob(n.Job)
	if b := n.Boot; b == nil || !b.Kept { // a kept agent that the job did not take up waits for the next
		e.closeBoot(n)
	}
	if w.undo != nil {
		w.undo(e, n)
	}
	if w.aside {
		n.Job = nil
		return nil
	}
	verb := node.Fail
	if _, _, err := node.Next(n.Provision, n.TargetProvision, node.Abort); err == nil && j.Abort {
		verb = node.Abort
	}
	if err := e.setState(n, effects, verb); err != nil {
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

// staysOn reports whether a machine's power is never turned off: it must not be, or it can't be.
func (e *Engine) staysOn(n *node.Node) bool {
	return program.StaysOn(n, e.drivers.Interface(n, "power"))
}
