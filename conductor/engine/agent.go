package engine

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/record"
	"github.com/ingot-metal/ingot/conductor/node"
)

// StaleAgentError says that an agent belongs to a boot that is not the node's newest, or is over. Its stream is to be
// ended.
type StaleAgentError struct{ NodeUUID, BootID string }

func (e *StaleAgentError) Error() string {
	return fmt.Sprintf("boot %s of node %s is over", e.BootID, e.NodeUUID)
}

// AgentUp handles the opening of an agent's session, with the agent's state. When it returns, that is stored, and a
// plan that the agent lacks is on its way.
func (e *Engine) AgentUp(ctx context.Context, a node.AgentState) error {
	other := false // it has been given up because it is of another ramdisk
	back := false  // it had lost its session
	_, err := e.change(ctx, a.NodeUUID, func(n *node.Node, effects *node.SideEffects) error {
		other = false
		b := n.Boot
		if b == nil || b.Ended || b.BootID != a.BootID || a.Generation < b.Generation {
			return &StaleAgentError{a.NodeUUID, a.BootID}
		}
		e.mark(n, effects, node.MarkSession, a.Version)
		back = !b.LostAt.IsZero()
		b.Connected, b.LostAt, b.Address = true, time.Time{}, a.Address
		e.discover(n, effects)
		j := n.Job
		want := e.cfg.StepsDigest
		differs := want != "" && a.StepsDigest != "" && a.StepsDigest != want
		if b.Kept && differs {
			other = true
			why := fmt.Sprintf(
				"the agent that was kept is not of the ramdisk that is configured now (its steps have digest %.12s instead of %.12s)", a.StepsDigest, want)
			if j == nil {
				e.endKept(n, effects, why)
				return nil
			}
			e.history(n, effects, "boot", "WARNING", why+": the machine is booted anew", "")
			e.closeBoot(n)
			return nil
		}
		if j == nil || j.Failure != "" {
			return nil
		}
		if differs {
			if j.IsAhead() {
				e.closeBoot(n) // it is not worth keeping
			}
			return e.fail(n, effects,
				fmt.Sprintf("the agent's steps (digest %.12s) are not those of the configured ramdisk (%.12s); restart ingotd after changing the ramdisk, and make sure that only this ramdisk is served",
					a.StepsDigest, want))
		}
		switch {
		case j.PlanID == "":
		case a.PlanID == j.PlanID:
			e.planSent(n, effects)
		case record.Touched(j):
			// It began the plan and does not have it any more: another boot, or it broke down. Nothing that the steps
			// left for each other is there.
			why := "the agent lost its plan"
			if a.Restarts > 0 {
				why = "the agent broke down and was started again (" + cmp.Or(a.RestartReason, "no reason given") + ")"
			}
			return e.planLost(n, effects, why)
		default:
			j.PlanSent = time.Time{} // it never arrived: send it again
		}
		return nil
	})
	if err != nil {
		return err
	}
	if other {
		e.wake(a.NodeUUID)
		return &StaleAgentError{a.NodeUUID, a.BootID}
	}
	e.mu.Lock()
	e.holds[a.NodeUUID], e.sent[a.NodeUUID] = a.PlanID, a.PlanID
	e.met[a.NodeUUID] = a.BootID
	e.alive[a.NodeUUID] = time.Now()
	if back {
		e.returned = time.Now()
	}
	e.mu.Unlock()
	e.wake(a.NodeUUID)
	return nil
}

// planLost makes a new plan, or fails the job when that was tried often enough in this boot.
func (e *Engine) planLost(n *node.Node, effects *node.SideEffects, why string) error {
	if n.Job.Attempt >= e.cfg.PlanTries {
		return e.fail(n, effects, withRemedy(why, "look at the agent's log and the node's console"))
	}
	if s := n.Job.Current(); s != nil && s.RunsAgain.After(n.Job.NotBefore) {
		n.Job.NotBefore = s.RunsAgain // it wanted to be left alone until then
	}
	record.PlanAnew(n.Job, e.cfg.AgentSteps, why)
	e.history(n, effects, "provisioning", "WARNING", "the steps are run again: "+why, "")
	return nil
}

// AgentLost handles the end of an agent's session. The agent has a grace period to come back.
func (e *Engine) AgentLost(ctx context.Context, nodeUUID, bootID string) {
	_, err := e.change(ctx, nodeUUID, func(n *node.Node, effects *node.SideEffects) error {
		b := n.Boot
		if b == nil || b.BootID != bootID {
			return nil
		}
		if b.Connected || b.LostAt.IsZero() { // else the caller has written it already
			b.Connected, b.LostAt = false, time.Now().UTC()
		}
		if !b.Ended {
			e.mark(n, effects, node.MarkSessionLost, "")
		}
		return nil
	})
	if err != nil && !held(err) {
		e.log.Warn("record that an agent is out of reach", "node", nodeUUID, "err", err)
	}
	e.wake(nodeUUID) // which records it if this could not
}

// The grace of an agent that lost its session is longer while others come back: by a part of it from each of them, and
// by so many times of it at most.
const (
	gracePart = 4
	graceMost = 5
)

// grace is for how long the agent of a boot that has lost its session may still come back; zero: no longer. When
// thousands come back at once, as after a restart of the conductor, it may take longer than the configured time until
// it is the turn of one: their work must not be begun again for that.
func (e *Engine) grace(b *node.Boot) time.Duration {
	e.mu.Lock()
	returned := e.returned
	e.mu.Unlock()
	lost := e.hearing.latest(b.LostAt)
	end, most := lost.Add(e.cfg.SessionGrace), lost.Add(graceMost*e.cfg.SessionGrace)
	if later := returned.Add(e.cfg.SessionGrace / gracePart); later.After(end) {
		end = later
		if end.After(most) {
			end = most
		}
	}
	return max(0, time.Until(end))
}

// AgentProgress records the progress of a running step, in memory only.
func (e *Engine) AgentProgress(nodeUUID string, p node.Progress) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p.At.IsZero() {
		p.At = time.Now().UTC()
	}
	p.Step = cmp.Or(p.Step, e.inStep[nodeUUID])
	// Saying the same again is a sign that it is there, not that it gets on.
	if was, ok := e.progress[nodeUUID]; !ok || was.PlanID != p.PlanID || was.Index != p.Index || was.Phase != p.Phase ||
		was.Bytes != p.Bytes {
		e.alive[nodeUUID] = time.Now()
	}
	e.progress[nodeUUID] = p
}

// Progress returns the progress of the running step of a node.
func (e *Engine) Progress(nodeUUID string) (node.Progress, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p, ok := e.progress[nodeUUID]
	return p, ok
}

func (e *Engine) endProgress(nodeUUID string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.progress, nodeUUID)
}

// nowIn remembers which step runs, for progress, which does not say.
func (e *Engine) nowIn(nodeUUID, step string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inStep[nodeUUID] = step
}

func (e *Engine) lives(nodeUUID string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alive[nodeUUID] = time.Now()
}

// lastSign is when the agent last gave a sign of life, as far as this conductor knows, and neither before since nor
// before this conductor could hear of it.
func (e *Engine) lastSign(nodeUUID string, since time.Time) time.Time {
	since = e.hearing.latest(since)
	e.mu.Lock()
	defer e.mu.Unlock()
	t, ok := e.alive[nodeUUID]
	if !ok { // nothing heard since this conductor started: its time starts now
		t = time.Now()
		e.alive[nodeUUID] = t
	}
	if t.Before(since) {
		return since
	}
	return t
}

// AgentEvent stores a result. When it returns nil the result is stored, counted once however often it arrives, and may
// be acknowledged; results of boots and plans that are over are ignored and acknowledged, too.
func (e *Engine) AgentEvent(ctx context.Context, ev node.AgentEvent) error {
	over := false
	ctx, err := e.taker().CallOut(ctx, ev)
	if err != nil {
		return err
	}
	_, err = e.change(ctx, ev.NodeUUID, func(n *node.Node, effects *node.SideEffects) error {
		over = false
		b := n.Boot
		if b == nil || b.Ended || b.BootID != ev.BootID {
			over = true
			return nil
		}
		if ev.Seq > 0 && ev.Seq <= b.AckedSeq {
			return nil // it came before, and is stored
		}
		b.AckedSeq = max(b.AckedSeq, ev.Seq)
		return e.event(ctx, n, effects, ev)
	})
	if err != nil {
		return err
	}
	if over {
		e.log.Debug("event of a boot that is over", "node", ev.NodeUUID, "boot", ev.BootID, "seq", ev.Seq)
		return nil
	}
	if ev.PlanFinished != nil || ev.StepFinished != nil {
		e.endProgress(ev.NodeUUID)
	}
	if ev.StepStarted != nil {
		e.nowIn(ev.NodeUUID, ev.StepStarted.Name)
	}
	e.lives(ev.NodeUUID)
	e.wake(ev.NodeUUID)
	return nil
}

// event applies a result to the job, inside the transaction that stores it.
func (e *Engine) event(ctx context.Context, n *node.Node, effects *node.SideEffects, ev node.AgentEvent) error {
	j := n.Job
	mine := func(planID string) bool { return j != nil && j.Failure == "" && j.PlanID != "" && j.PlanID == planID }
	switch {
	case ev.StepStarted != nil:
		r := *ev.StepStarted
		if !mine(r.PlanID) {
			return nil
		}
		s, i := record.PlanStep(j, r)
		if s == nil {
			return nil
		}
		// Having begun, it has the plan, whether or not sending it was recorded.
		e.planSent(n, effects)
		if !s.RunsAgain.IsZero() { // its time has come
			s.RunsAgain, j.Detail = time.Time{}, ""
		}
		if s.Status != node.StepPending || i < j.Index {
			return nil
		}
		e.mark(n, effects, node.MarkStepBegan, r.Name)
		s.Status, s.StartedAt, j.Index = node.StepRunning, time.Now().UTC(), i
		return nil

	case ev.StepFinished != nil:
		r := ev.StepFinished
		if !mine(r.PlanID) {
			return nil
		}
		s, i := record.PlanStep(j, r.StepRef)
		if s == nil {
			return nil
		}
		return e.stepResult(ctx, n, effects, s, i, r)

	case ev.PlanFinished != nil:
		if !mine(ev.PlanFinished.PlanID) {
			return nil
		}
		return e.planResult(n, effects, ev.PlanFinished)

	case ev.WorkerRestarted != nil:
		r := ev.WorkerRestarted
		e.history(n, effects, "monitoring", "WARNING", "the agent broke down and was started again: "+
			cmp.Or(r.Reason, "no reason given"), "")
		// If the agent said when it came back that it still holds the plan, this result shows that the plan has ended.
		e.mu.Lock()
		held := e.holds[n.UUID]
		e.mu.Unlock()
		if mine(held) && !j.PlanSent.IsZero() && record.Touched(j) {
			return e.planLost(n, effects, "the agent broke down and was started again ("+
				cmp.Or(r.Reason, "no reason given")+")")
		}
	}
	return nil
}

// stepResult applies how a step ended.
func (e *Engine) stepResult(ctx context.Context, n *node.Node, effects *node.SideEffects, s *node.JobStep, i int,
	r *node.StepResult) error {
	j := n.Job
	e.planSent(n, effects)
	defer func() { // once it was used; steps that were inserted have moved it
		if i < len(j.Steps) {
			record.Shorten(j, i, effects)
		}
	}()
	now := time.Now().UTC()
	switch r.Outcome {
	case node.OutcomeFailed:
		s.SetResult(r.Result) // a step may have found out something all the same
		if j.Abort {
			return nil // the end of the plan follows
		}
		if r.Retryable && j.Attempt < e.cfg.PlanTries {
			e.mark(n, effects, node.MarkStepFailed, r.Name+": "+r.Error)
			j.NotBefore = now.Add(e.cfg.RetryBase)
			return e.planLost(n, effects, fmt.Sprintf("step %s failed: %s", r.Name, r.Error))
		}
		j.Index = i
		return e.fail(n, effects, withRemedy(fmt.Sprintf("%s step %s failed: %s", j.Phase, r.Name, r.Error), r.Remedy))

	case node.OutcomeRerun:
		s.RunsAgain = now.Add(max(r.After, 0))
		s.SetResult(r.Result)
		j.Detail = fmt.Sprintf("step %s runs again after %s", r.Name, r.After)
		return nil

	case node.OutcomeRunNext, node.OutcomeDone, node.OutcomeReboot, node.OutcomeHold:
		e.mark(n, effects, node.MarkStepDone, r.Name)
		if s.Status == node.StepDone {
			return nil
		}
		s.Status, s.EndedAt, s.RunsAgain = node.StepDone, now, time.Time{}
		s.SetResult(r.Result)
		j.Index = max(j.Index, i+1)
		name := s.Name
		switch r.Outcome {
		case node.OutcomeDone:
			return e.useResult(ctx, n, effects, s)
		case node.OutcomeRunNext:
			if err := record.Insert(j, e.cfg.AgentSteps, i+1, r.Next); err != nil {
				return e.fail(n, effects, fmt.Sprintf("step %s asks for too much: %v", name, err))
			}
		case node.OutcomeReboot:
			return e.rebootThenGoOn(n, effects, name)
		case node.OutcomeHold:
			if _, _, err := node.Next(n.Provision, n.TargetProvision, node.Hold); err != nil {
				return e.fail(n, effects,
					fmt.Sprintf("step %s asks to hold the node, which is not possible in phase %s", name, j.Phase))
			}
			record.ToNext(j)
			j.Detail = "held by step " + name + "; unhold goes on, abort ends it"
			return e.leave(n, effects, node.Hold)
		}
		return nil
	}
	return e.fail(n, effects,
		fmt.Sprintf("step %s ended with an outcome that this version of Ingot does not know (%q); use the ramdisk that belongs to it", r.Name, r.Outcome))
}

// rebootThenGoOn boots the agent again for the steps after one that requested it.
func (e *Engine) rebootThenGoOn(n *node.Node, effects *node.SideEffects, name string) error {
	j := n.Job
	for i := range j.Steps {
		if catalog.BootsAgent(j.Steps[i]) {
			j.Steps[i].Status = node.StepPending
		}
	}
	// It was requested, so it does not count against the limit for failed boots.
	j.Boots = max(0, j.Boots-1)
	e.closeBoot(n)
	record.ToNext(j)
	j.Detail = "step " + name + " asked for a restart"
	e.mark(n, effects, node.MarkBootAgain, j.Detail)
	return e.resume(n, effects)
}

// planResult applies how a plan ended.
func (e *Engine) planResult(n *node.Node, effects *node.SideEffects, r *node.PlanResult) error {
	j := n.Job
	if j.Abort {
		return e.fail(n, effects, record.AbortReason(j))
	}
	from, to := record.PlanRange(j)
	for _, s := range j.Steps[from:to] {
		if s.Status != node.StepDone {
			if r.Cancelled {
				return e.planLost(n, effects, "the agent's plan was cancelled without a request")
			}
			return e.fail(n, effects,
				fmt.Sprintf("the agent ended its plan without step %s; look at the agent's log", s.Name))
		}
	}
	if !r.Done {
		return e.fail(n, effects, "the agent says that its plan failed, but not in which step; look at the agent's log")
	}
	if s := j.Current(); s != nil && !s.InBand && s.Status == node.StepRunning {
		return nil // the last result was enough to go on: where in its next step the conductor is must not be forgotten
	}
	record.ToNext(j)
	if err := e.resume(n, effects); err != nil {
		return err
	}
	if j.Current() == nil {
		return e.finish(n, effects)
	}
	return nil
}
