package engine

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/record"
	"github.com/ingot-metal/ingot/conductor/node"
)

// plan looks at a run of in-band steps: makes sure that the agent has its plan and is alive. The results come in by
// AgentEvent.
func (e *Engine) plan(ctx context.Context, p *pass) (time.Duration, error) {
	n, j := p.n, p.n.Job
	connected := n.Boot != nil && n.Boot.Connected && !n.Boot.Ended
	switch {
	case n.Boot == nil || n.Boot.Ended || n.Boot.EnrolledAt.IsZero():
		return 0, p.bootAnew(ctx, cmp.Or(j.Detail, "no agent is running"))

	case !connected:
		if n.Maintenance {
			return never, nil
		}
		if left := e.grace(n.Boot); left > 0 {
			return left, nil
		}
		return 0, p.bootAnew(ctx,
			fmt.Sprintf("the agent was out of reach for %s during step %s", e.cfg.SessionGrace, j.Current().Name))

	case j.PlanID == "":
		_, err := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
			j := n.Job
			n.Generation++
			for i := j.Index; i < len(j.Steps); i++ {
				j.Steps[i].Under = false // steps that those of an earlier plan requested have their own place now
			}
			j.PlanID, j.PlanGen, j.PlanFirst, j.PlanSent = uuid.NewString(), n.Generation, j.Index, time.Time{}
			j.Attempt++
			j.NotBefore, j.Detail = time.Time{}, ""
			return e.waitForAgent(n, effects)
		})
		return 0, err

	case j.PlanSent.IsZero():
		plan, err := e.makePlan(n)
		if err != nil {
			return 0, p.fail(ctx, err.Error())
		}
		if err := e.agents().SendPlan(ctx, n.UUID, plan); err != nil {
			if ctx.Err() != nil || lapsed(err) {
				return never, cmp.Or(ctx.Err(), err)
			}
			// The stream just broke, or is about to be replaced: AgentUp or AgentLost comes, or the next try.
			e.log.Info("the plan could not be sent", "node", n.UUID, "err", err)
			if time.Since(e.lastSign(n.UUID, n.Boot.EnrolledAt)) > e.cfg.SessionGrace {
				return 0, p.bootAnew(ctx, fmt.Sprintf("the agent could not be reached for %s", e.cfg.SessionGrace))
			}
			return e.cfg.RetryBase, nil
		}
		e.lives(n.UUID)
		e.mu.Lock()
		e.sent[n.UUID] = plan.ID
		e.mu.Unlock()
		_, err = p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
			e.planSent(n, effects)
			return nil
		})
		return 0, err
	}

	e.nowIn(n.UUID, j.Current().Name)
	if n.Maintenance {
		return never, nil
	}
	since := j.PlanSent
	if again := j.Current().RunsAgain; again.After(since) {
		since = again // until then there is nothing to say
	}
	if left := time.Until(e.lastSign(n.UUID, since).Add(e.cfg.Silence)); left > 0 {
		return left, nil
	}
	return 0, p.bootAnew(ctx,
		fmt.Sprintf("the agent is connected but said nothing about step %s for %s", j.Current().Name, e.cfg.Silence))
}

// planSent notes that the agent has the plan, unless that was noted: it may be quicker to begin with it than sending it
// is to be recorded.
func (e *Engine) planSent(n *node.Node, effects *node.SideEffects) {
	j := n.Job
	if !j.PlanSent.IsZero() {
		return
	}
	j.PlanSent = time.Now().UTC()
	var names []string
	for from, to := record.PlanRange(j); from < to; from++ {
		if j.Steps[from].Status != node.StepDone {
			names = append(names, j.Steps[from].Name)
		}
	}
	e.mark(n, effects, node.MarkPlan, strings.Join(names, " "))
}

// makePlan makes the agent's form of the job's present plan. Arguments are made here, so that their secrets are stored
// once, with the node.
func (e *Engine) makePlan(n *node.Node) (node.Plan, error) {
	j := n.Job
	from, to := record.PlanRange(j)
	plan := node.Plan{ID: j.PlanID, Generation: j.PlanGen, Phase: j.Phase}
	planner := e.planner()
	for _, s := range j.Steps[from:to] {
		args, err := planner.Args(n, j, s)
		if err != nil {
			return plan, err
		}
		plan.Steps = append(plan.Steps, node.PlanStep{Interface: s.Interface, Name: s.Name, Args: args, Stall: s.Stall})
	}
	return plan, nil
}

// bootAnew restarts the machine with a new boot of the agent, or fails the job when that has been done often enough.
func (p *pass) bootAnew(ctx context.Context, why string) error {
	e := p.e
	_, err := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
		j := n.Job
		boot := -1
		for i, s := range j.Steps {
			if catalog.BootsAgent(s) {
				boot = i
			}
		}
		if boot < 0 {
			return e.fail(n, effects, why)
		}
		if j.Boots >= e.cfg.MaxBoots {
			return e.fail(n, effects,
				fmt.Sprintf("%s; the agent was booted %d times for this job, which is the limit: look at the node's console and its power supply", why, j.Boots))
		}
		if j.PlanID != "" {
			record.PlanAnew(j, e.cfg.AgentSteps, why)
		}
		j.Steps[boot].Status = node.StepPending
		j.Index, j.Note, j.Attempt, j.Detail = boot, "", 0, why
		e.closeBoot(n)
		e.mark(n, effects, node.MarkBootAgain, why)
		e.history(n, effects, "boot", "WARNING", "the agent is booted anew: "+why, "")
		return e.resume(n, effects)
	})
	if err == nil {
		e.agents().CloseSession(p.n.UUID)
		e.endProgress(p.n.UUID)
	}
	return err
}
