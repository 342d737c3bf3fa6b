package agent

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/ingot-metal/ingot/agent/image"
	"github.com/ingot-metal/ingot/agent/image/swarm"
	"github.com/ingot-metal/ingot/agent/rescue"
	"github.com/ingot-metal/ingot/agent/step"
	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
	"google.golang.org/protobuf/types/known/durationpb"
)

// accept takes a plan from the conductor: each id once per boot, and none of a lower generation than the highest seen.
func (a *Agent) accept(p *agentv1.Plan) {
	log := a.log.With("plan", p.Id, "generation", p.Generation)
	a.mu.Lock()
	switch {
	case slices.Contains(a.st.PlansSeen, p.Id):
		a.mu.Unlock()
		log.Debug("plan is known already")
		return
	case p.Generation < a.st.Highest:
		highest := a.st.Highest
		a.mu.Unlock()
		log.Warn("plan refused: a plan of a higher generation came before it", "highest", highest)
		return
	case a.running != nil && p.Generation == a.st.Plan.Generation:
		a.mu.Unlock()
		log.Warn("plan refused: another plan of this generation is still running")
		return
	}
	a.st.PlansSeen = append(a.st.PlansSeen, p.Id)
	a.st.Highest = p.Generation
	if a.running != nil {
		// The plan of the lower generation has to end first; nothing may run beside it.
		replaced := a.next
		a.next = p
		a.running()
		a.mu.Unlock()
		log.Warn("plan replaces the running one", "running", a.st.Plan.ID)
		if replaced != nil {
			a.finishPlan(replaced.Id, step.End{Cancelled: true})
		}
		a.save()
		return
	}
	a.startLocked(p)
	a.mu.Unlock()
	a.save()
}

// startLocked starts a plan; the lock is held.
func (a *Agent) startLocked(p *agentv1.Plan) {
	if !a.carry || a.phase != p.Phase {
		before := a.facts
		a.facts = &step.Facts{}
		if a.carry && a.phase == phaseWarm && beginsWithImage(p) {
			image.HandOver(before, a.facts)
		}
	}
	if p.Phase == phaseWarm {
		image.Ahead(a.facts)
	}
	swarm.Offer(a.facts, a.swarm)
	if p.Phase == string(step.Rescue) {
		rescue.Offer(a.facts, a.rescue)
	}
	a.facts.Set(step.Node{}, a.st.NodeUUID)
	a.facts.Set(step.During{}, step.Phase(p.Phase))
	facts := a.facts
	a.carry, a.phase = false, p.Phase
	// A plan does not end with the session, so its context comes from none.
	ctx, cancel := context.WithCancel(context.Background())
	a.running = cancel
	a.ended = make(chan struct{})
	ended := a.ended
	a.st.Plan = savedPlan{ID: p.Id, Generation: p.Generation, Running: true}
	a.plans.Go(func() {
		defer close(ended)
		defer cancel()
		a.runPlan(ctx, facts, p)
	})
}

// phaseWarm is that of plans that do ahead what a deployment is likely to want.
const phaseWarm = "warm"

// beginsWithImage tells whether a plan is a deployment whose first step writes the image, so that nothing else comes to
// the disk before it.
func beginsWithImage(p *agentv1.Plan) bool {
	return p.Phase == string(step.Deploy) && len(p.Steps) > 0 && p.Steps[0].Interface == "deploy" &&
		p.Steps[0].Name == "write_image"
}

func (a *Agent) runPlan(ctx context.Context, facts *step.Facts, p *agentv1.Plan) {
	a.log.Info("plan started", "plan", p.Id, "phase", p.Phase, "steps", len(p.Steps))
	a.closeRescue("another plan begins")
	var steps []step.Planned
	for _, s := range p.Steps {
		steps = append(steps,
			step.Planned{Interface: s.Interface, Name: s.Name, Args: json.RawMessage(s.Args),
				Stall: s.Stall.AsDuration()})
	}
	// The agent is up before the storage controllers are; no step may mistake that for a machine without disks.
	if err := a.o.System.Settle(ctx); err != nil && ctx.Err() == nil {
		a.log.Warn("the plan starts although devices may be missing", "err", err)
	}
	end := a.runner.Run(ctx, facts, steps, &planReporter{a: a, id: p.Id})
	a.swarm.Leave()

	a.mu.Lock()
	// A machine that is held stays as it is, and so does what its steps left for each other.
	a.running, a.carry = nil, end.Done || end.Halted == step.Hold
	a.st.Plan.Running = false
	next := a.next
	a.next = nil
	a.mu.Unlock()
	a.finishPlan(p.Id, end)
	a.o.Status.Line("plan %s", endWord(end))
	if next != nil {
		a.mu.Lock()
		a.startLocked(next)
		a.mu.Unlock()
		a.save()
	}
}

func endWord(end step.End) string {
	switch {
	case end.Cancelled:
		return "cancelled"
	case end.Err != nil:
		return "failed: " + end.Err.Error()
	case end.Halted == step.Reboot:
		return "waits for a reboot"
	case end.Halted == step.Hold:
		return "is on hold"
	}
	return "finished"
}

func (a *Agent) finishPlan(id string, end step.End) {
	a.log.Info("plan ended", "plan", id, "how", endWord(end))
	a.q.result(&agentv1.Event{Body: &agentv1.Event_PlanFinished{PlanFinished: &agentv1.PlanFinished{
		PlanId: id, Done: end.Done, Cancelled: end.Cancelled,
	}}})
}

// closeRescue lets nobody log in any more, nor through the next worker.
func (a *Agent) closeRescue(why string) {
	if a.rescue.Close(why) {
		a.save()
	}
}

// cancelPlan stops the running plan, if it is the one named; an empty id means whichever runs.
func (a *Agent) cancelPlan(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running != nil && (id == "" || id == a.st.Plan.ID) {
		a.running()
	}
}

// busy gives the id of the running plan and what is closed at its end, or nothing.
func (a *Agent) busy() (plan string, ended <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running == nil {
		return "", nil
	}
	return a.st.Plan.ID, a.ended
}

// planReporter turns what the runner says into events.
type planReporter struct {
	a  *Agent
	id string
}

func (r *planReporter) StepStarted(i int, s step.Planned) {
	r.a.mu.Lock()
	r.a.st.Plan.Index, r.a.st.Plan.Interface, r.a.st.Plan.Name = i, s.Interface, s.Name
	r.a.mu.Unlock()
	r.a.o.Status.Step(s.Name)
	r.a.q.result(&agentv1.Event{Body: &agentv1.Event_StepStarted{StepStarted: &agentv1.StepStarted{
		PlanId: r.id, StepIndex: uint32(i), Interface: s.Interface, Name: s.Name,
	}}})
}

func (r *planReporter) Progress(i int, s step.Planned, p step.Progress) {
	r.a.o.Status.Progress(s.Name, p)
	m := &agentv1.Progress{PlanId: r.id, StepIndex: uint32(i), Phase: p.Phase, Bytes: p.Bytes, Total: p.Total,
		Rate: p.Rate}
	for _, it := range p.Items[:min(len(p.Items), maxItems)] {
		m.Items = append(m.Items,
			&agentv1.ItemProgress{Name: it.Name, Bytes: it.Bytes, Total: it.Total, Done: it.Done, Error: it.Err})
	}
	r.a.q.report(m)
}

// maxItems is of how many things that a step works on at once the conductor is told.
const maxItems = 256

var outcomes = map[step.Kind]agentv1.Outcome{
	step.Done: agentv1.Outcome_OUTCOME_DONE, step.Rerun: agentv1.Outcome_OUTCOME_RERUN,
	step.RunNext: agentv1.Outcome_OUTCOME_RUN_NEXT, step.Reboot: agentv1.Outcome_OUTCOME_REBOOT,
	step.Hold: agentv1.Outcome_OUTCOME_HOLD,
}

func (r *planReporter) StepFinished(i int, s step.Planned, res step.Result) {
	f := &agentv1.StepFinished{PlanId: r.id, StepIndex: uint32(i), Interface: s.Interface, Name: s.Name,
		Took: durationpb.New(res.Took)}
	if res.Err == nil {
		f.Outcome, f.After = outcomes[res.Outcome.Kind], durationpb.New(res.Outcome.After)
		for _, n := range res.Outcome.Next {
			f.Next = append(f.Next,
				&agentv1.Step{Interface: n.Interface, Name: n.Name, Args: n.Args, Stall: durationpb.New(n.Stall)})
		}
		f.Result = []byte("{}")
		if res.Outcome.Result != nil {
			b, err := json.Marshal(res.Outcome.Result)
			if err != nil {
				res.Err = step.AsError(
					step.Failf("report this as a bug of the agent", "put the result of step %s into JSON: %w", s.Name,
						err))
			} else {
				f.Result = b
			}
		}
	}
	if res.Err != nil {
		f.Result = nil
		if res.Err.Result != nil {
			// That it can't be told is the lesser evil: the failure is what counts.
			f.Result, _ = json.Marshal(res.Err.Result)
		}
		f.Outcome, f.Error, f.Remedy, f.Retryable = agentv1.Outcome_OUTCOME_FAILED, res.Err.Error(), res.Err.Remedy,
			res.Err.Retryable
	}
	r.a.q.result(&agentv1.Event{Body: &agentv1.Event_StepFinished{StepFinished: f}})
}
