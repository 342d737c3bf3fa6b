package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/record"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// pass is one look at one node: the node as read, and its driver once it was needed.
type pass struct {
	e *Engine
	n *node.Node
	d power.Driver
	// later holds changes that are already true of n and still have to be stored: they go with the next change, so that
	// several in a row cost one write. Before an action whose intent is among them, change or flush must store them.
	later []func(*node.Node, *node.SideEffects) error
	// stored is the job as it is in the store, as far as this pass knows.
	stored *node.Job
}

// verdict is the result of a look at a step.
type verdict struct {
	done   bool                                      // the step is done
	result json.RawMessage                           // its result
	apply  func(*node.Node, *node.SideEffects) error // the changes that are stored together with its end
	found  json.RawMessage                           // by an inspection; hooks and rules decide whether it is done
	after  time.Duration                             // not done: look again after this long; never: when woken
}

func again(after time.Duration) verdict { return verdict{after: after} }

var stepDone = verdict{done: true}

// failure is an error that trying again won't cure. Its text is for an operator.
type failure struct{ reason string }

func (f *failure) Error() string { return f.reason }

func failf(format string, args ...any) error { return &failure{fmt.Sprintf(format, args...)} }

// advance does the next action on a node and returns after how long to look again.
func (e *Engine) advance(ctx context.Context, id string) (time.Duration, error) {
	n, err := e.db.Node(ctx, id)
	if err != nil {
		if errors.Is(err, node.ErrNotFound) {
			e.disown(id)
		}
		return never, err
	}
	if !e.Mine(n) {
		if _, ok := e.fence(id); ok {
			e.lose(id)
		}
		e.takeChanged(id)
		return never, nil
	}
	if err := e.settle(ctx, n); err != nil {
		return never, err
	}
	if changed, err := e.afterClockSetBack(ctx, n); err != nil {
		return never, err
	} else if changed != nil {
		n = changed
	}
	if wait, changed, err := e.session(ctx, n); wait > 0 || err != nil {
		return wait, err
	} else if changed != nil {
		n = changed
	}
	if n.Job == nil {
		switch {
		case !n.Provision.IsStable():
			return e.orphan(ctx, n)
		case n.Reservation != "":
			return e.orphanLock(ctx, n)
		case inRescue(n):
			return e.watchRescue(ctx, n)
		case n.Boot != nil && n.Boot.Kept:
			return e.watchKept(ctx, n)
		}
		return never, nil
	}
	// Claiming can change the node (which agent is connected), which matters below.
	if claimed, err := e.claim(ctx, id); err != nil {
		return never, err
	} else if claimed != nil {
		n = claimed
	}
	p := &pass{e: e, n: n, stored: n.Job}
	defer p.close()
	if wait, err := p.firstRead(ctx); wait || err != nil {
		return never, err
	}
	var after time.Duration
	for range actsPerLook {
		if p.n.Job == nil {
			return 0, nil
		}
		if wait := time.Until(p.n.Job.NotBefore); wait > 0 && !p.n.Job.Abort {
			return wait, nil
		}
		if after, err = e.step(ctx, p); err != nil || after != 0 {
			break
		}
	}
	if err == nil {
		err = p.flush(ctx)
	}
	if p.n.Job == nil { // done: power is watched by powerSync
		return never, err
	}
	return after, err
}

// actsPerLook is how many acts a worker does on a node before it looks at others.
const actsPerLook = 16

// step looks at the step that the job is at.
func (e *Engine) step(ctx context.Context, p *pass) (time.Duration, error) {
	if err := e.check(); err != nil {
		return never, err
	}
	j := p.n.Job
	s := j.Current()
	switch {
	case j.Abort && j.Failure == "":
		return e.abort(ctx, p)
	case p.n.Provision.IsHeld() && j.Failure == "":
		return never, nil
	case s == nil:
		_, err := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error { return e.finish(n, effects) })
		return 0, err
	case p.n.Maintenance && workOfJob(j).pauses && record.Pausable(p.n, s):
		return e.pause(ctx, p)
	case s.InBand:
		return e.plan(ctx, p)
	}
	return e.conductorStep(ctx, p, s)
}

// conductorStep does one act of a step of the conductor's.
func (e *Engine) conductorStep(ctx context.Context, p *pass, s *node.JobStep) (time.Duration, error) {
	run, ok := e.findStep(p.n, s)
	if !ok {
		return 0, p.fail(ctx,
			fmt.Sprintf("this version of Ingot has no step %s.%s; ask for the operation again", s.Interface, s.Name))
	}
	if s.Status != node.StepRunning {
		p.edit(func(n *node.Node, effects *node.SideEffects) error {
			j := n.Job
			c := j.Current()
			c.Status, c.StartedAt = node.StepRunning, time.Now().UTC()
			c.SetResult(nil)
			c.Memory = nil
			j.Note, j.Attempt, j.BegunAt = "", 0, c.StartedAt
			if j.Detail == pausedDetail {
				j.Detail = ""
			}
			e.mark(n, effects, node.MarkStepBegan, c.Name)
			if c.Name == catalog.StepHold {
				return nil // it has no work to do
			}
			return e.resume(n, effects)
		})
	}
	v, err := run(ctx, p)
	switch {
	case err == nil && v.done && v.found != nil:
		return 0, p.takeFound(ctx, v.found)
	case err == nil && v.done && v.apply == nil && p.goesOn():
		p.edit(func(n *node.Node, effects *node.SideEffects) error { return e.stepDone(n, effects, v.result) })
		return 0, nil
	case err == nil && v.done:
		_, err := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
			if v.apply != nil {
				if err := v.apply(n, effects); err != nil {
					return err
				}
			}
			return e.stepDone(n, effects, v.result)
		})
		return 0, err
	case err == nil:
		return v.after, p.flush(ctx)
	}
	return e.stepError(ctx, p, s, err)
}

// stepError decides about an error of a conductor step: the store's and the engine's own are passed on, transient ones
// are tried again a few times with growing pauses, all others fail the job.
func (e *Engine) stepError(ctx context.Context, p *pass, s *node.JobStep, err error) (time.Duration, error) {
	var f *failure
	var pe *power.Error
	var down *ServiceError
	switch {
	case ctx.Err() != nil:
		return never, ctx.Err()
	case lapsed(err):
		return 0, err
	case errors.Is(err, errLineUp):
		return never, nil // the node that has the controller wakes this one
	case errors.As(err, &f):
		return 0, p.fail(ctx, fmt.Sprintf("%s: %s", stepTitle(s.Name), f.reason))
	case errors.As(err, &down):
	case !errors.As(err, &pe):
		return 0, err
	}
	tries, most := p.n.Job.Attempt+1, e.cfg.RetryTries
	if down != nil {
		most = max(most, serviceTries)
	}
	if down == nil && !power.Retryable(err) || tries >= most {
		reason := err.Error()
		if tries > 1 {
			reason += fmt.Sprintf(" (tried %d times)", tries)
		}
		return 0, p.fail(ctx, fmt.Sprintf("%s: %s", stepTitle(s.Name), reason))
	}
	pause := e.cfg.RetryBase << (tries - 1)
	if down != nil {
		pause = min(pause, longestPause)
	}
	e.log.Warn("a controller or a service does not do as asked, trying again", "node", p.n.UUID, "step", s.Name, "err", err, "pause",
		pause)
	_, err = p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
		n.Job.Attempt, n.Job.NotBefore = tries, time.Now().Add(pause).UTC()
		n.Job.Detail = err.Error()
		e.mark(n, effects, node.MarkRetry, err.Error())
		return nil
	})
	return pause, err
}

// A service that does not answer is asked again for some two minutes: as long as it takes to be started anew.
const (
	serviceTries = 10
	longestPause = 20 * time.Second
)

// stepTitle names a step in the sentence that says how it failed.
func stepTitle(name string) string {
	switch name {
	case catalog.StepBootAgent, catalog.StepBoot:
		return "booting the agent failed"
	case "verify":
		return "verifying the controller failed"
	}
	return "step " + name + " failed"
}

// change stores a change if the job is still where this pass read it; a pass whose node has moved on ends with
// errMoved.
//
//nolint:unparam the pass has the node as well; callers of Engine.change read it
func (p *pass) change(ctx context.Context, f func(*node.Node, *node.SideEffects) error) (*node.Node, error) {
	was, fence := p.stored, p.n.Fence
	n, err := p.e.change(ctx, p.n.UUID, func(n *node.Node, effects *node.SideEffects) error {
		j := n.Job
		if n.Fence != fence || j == nil || j.ID != was.ID || j.Index != was.Index || j.Note != was.Note ||
			j.PlanID != was.PlanID ||
			j.Abort != was.Abort || j.Failure != was.Failure || len(j.Steps) != len(was.Steps) {
			return errMoved
		}
		for _, l := range p.later {
			if err := l(n, effects); err != nil {
				return err
			}
		}
		return f(n, effects)
	})
	if err != nil {
		return nil, err
	}
	p.n, p.stored, p.later = n, n.Job, nil
	return n, nil
}

// edit changes this pass's copy of the node now, and the node in the store with the next change. f is called for both.
func (p *pass) edit(f func(*node.Node, *node.SideEffects) error) {
	c := *p.n
	if c.Job != nil {
		j := *c.Job
		j.Steps = slices.Clone(j.Steps)
		c.Job = &j
	}
	if c.Boot != nil {
		b := *c.Boot
		c.Boot = &b
	}
	at := time.Now().UTC() // of the marks: the event happened now
	p.later = append(p.later, func(n *node.Node, effects *node.SideEffects) error {
		first := len(effects.Marks)
		err := f(n, effects)
		for i := first; i < len(effects.Marks); i++ {
			if m := &effects.Marks[i]; m.At.After(at) {
				m.At = at
			}
		}
		return err
	})
	if err := f(&c, &node.SideEffects{}); err == nil { // an error comes again, with the change
		p.n = &c
	}
}

// goesOn reports whether the conductor itself does the next step in this same pass: then the end of this one may be
// stored with the beginning of the next. If the conductor dies in between, the action is repeated, as any may be.
func (p *pass) goesOn() bool {
	j := p.n.Job
	return j.Failure == "" && !j.Abort && !p.n.Maintenance && j.Index+1 < len(j.Steps) && !j.Steps[j.Index+1].InBand &&
		j.Steps[j.Index+1].Status == node.StepPending
}

// flush stores the postponed changes.
func (p *pass) flush(ctx context.Context) error {
	if len(p.later) == 0 {
		return nil
	}
	_, err := p.change(ctx, func(*node.Node, *node.SideEffects) error { return nil })
	return err
}

// note stores where in its step the job is, before what follows is done.
func (p *pass) note(ctx context.Context, note string, more ...func(*node.Node, *node.SideEffects) error) error {
	_, err := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
		n.Job.Note, n.Job.Attempt, n.Job.BegunAt = note, 0, time.Now().UTC()
		n.Job.NotBefore = time.Time{}
		for _, f := range more {
			if err := f(n, effects); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// fail stores that the job has failed.
func (p *pass) fail(ctx context.Context, reason string) error {
	_, err := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error { return p.e.fail(n, effects, reason) })
	return err
}

// stepDone moves a job past its step.
func (e *Engine) stepDone(n *node.Node, effects *node.SideEffects, result json.RawMessage) error {
	j := n.Job
	c := j.Current()
	c.Status, c.EndedAt, c.Memory = node.StepDone, time.Now().UTC(), nil
	c.SetResult(result)
	record.Shorten(j, j.Index, effects)
	e.mark(n, effects, node.MarkStepDone, c.Name)
	detail := j.Detail
	record.ToNext(j)
	if j.Abort && j.Failure == "" { // requested while the step could not be stopped
		j.Detail = detail
		return e.fail(n, effects, record.AbortReason(j))
	}
	if j.Failure != "" || j.Current() == nil {
		return e.finish(n, effects)
	}
	return e.resume(n, effects)
}

// setState moves a node by the one table of states. The reservation follows: filled while the conductor has the next
// move.
func (e *Engine) setState(n *node.Node, effects *node.SideEffects, v node.Verb) error {
	to, target, err := node.Next(n.Provision, n.TargetProvision, v)
	if err != nil {
		return err
	}
	if e.onState != nil {
		e.onState(node.Transition{From: n.Provision, Verb: v, To: to, Target: target})
	}
	now := time.Now().UTC()
	if n.Provision, n.TargetProvision, n.ProvisionUpdatedAt = to, target, now; to == node.Manageable ||
		to == node.InspectFailed {
		n.InspectionStartedAt = time.Time{} // set only while an inspection goes on, as in Ironic
	}
	e.reserve(n, to.IsWorking())
	e.mark(n, effects, node.MarkState, string(to))
	return nil
}

// leave moves a node by a verb of the work's end, from the waiting state itself if that has the verb, else by way of
// the working one.
func (e *Engine) leave(n *node.Node, effects *node.SideEffects, v node.Verb) error {
	if n.Provision.IsWaiting() {
		if _, _, err := node.Next(n.Provision, n.TargetProvision, v); err != nil {
			if err := e.resume(n, effects); err != nil {
				return err
			}
		}
	}
	return e.setState(n, effects, v)
}

func (e *Engine) reserve(n *node.Node, on bool) {
	switch {
	case !on:
		n.Reservation, n.ReservedAt = "", time.Time{}
	case n.Reservation == "":
		n.Reservation, n.ReservedAt = e.ownerOf(n), time.Now().UTC()
	}
}

// resume takes the next move back from the agent.
func (e *Engine) resume(n *node.Node, effects *node.SideEffects) error {
	if !n.Provision.IsWaiting() {
		return nil
	}
	return e.setState(n, effects, node.Resume)
}

// waitForAgent leaves the next move to the agent.
func (e *Engine) waitForAgent(n *node.Node, effects *node.SideEffects) error {
	if !n.Provision.IsWorking() {
		return nil
	}
	return e.setState(n, effects, node.Wait)
}

func (e *Engine) mark(n *node.Node, effects *node.SideEffects, name, detail string) {
	m := node.Mark{Name: name, At: time.Now().UTC(), Detail: detail}
	if n.Job != nil {
		m.JobID = n.Job.ID
	}
	effects.Marks = append(effects.Marks, m)
}

func (e *Engine) history(n *node.Node, effects *node.SideEffects, kind, severity, event, user string) {
	e.write(n, n.Job, effects, e.line(n, kind, severity, event, user))
}

// line is a line of the history about a node as it is now.
func (e *Engine) line(n *node.Node, kind, severity, event, user string) node.HistoryEntry {
	now := time.Now().UTC()
	l := node.HistoryEntry{Type: kind, Severity: severity, Event: event, Conductor: e.cfg.Hostname, User: user, At: now,
		State: n.Provision, Target: n.TargetProvision, Seconds: node.WholeSeconds(n.ProvisionUpdatedAt, now)}
	if n.Job != nil && user != "" && user == n.Job.Requester {
		l.Project = n.Job.Project
	}
	return l
}

// loggedEvent is how much of an event the log shows; the history has more.
const loggedEvent = 4 << 10

// write adds a line to the history, and to the log, where it names the trace of the job that it is about, if any.
func (e *Engine) write(n *node.Node, j *node.Job, effects *node.SideEffects, l node.HistoryEntry) {
	effects.History = append(effects.History, l)
	level := e.log.Info
	if l.Severity == "ERROR" {
		level = e.log.Error
	}
	about := []any{"node", n.UUID, "user", l.User}
	if j != nil && e.cfg.TraceID != nil {
		about = append(about, "trace", e.cfg.TraceID(j.ID))
	}
	level(strings.ToValidUTF8(l.Event[:min(len(l.Event), loggedEvent)], ""), about...)
}
