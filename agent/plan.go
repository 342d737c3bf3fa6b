package agent

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"

	"github.com/ingot-metal/ingot/agent/image"
	"github.com/ingot-metal/ingot/agent/image/swarm"
	"github.com/ingot-metal/ingot/agent/rescue"
	"github.com/ingot-metal/ingot/agent/step"
	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
	"google.golang.org/protobuf/types/known/durationpb"
)

// plans accepts the conductor's plans and executes them, one at a time. A plan does not end with the session that
// brought it; its events go to the queue.
type plans struct {
	runner *step.Runner
	log    *slog.Logger
	status *Status
	q      *queue
	mem    *memory
	swarm  *swarm.Node
	rescue *rescue.Host
	settle func(context.Context) error
	work   sync.WaitGroup

	mu      sync.Mutex
	running context.CancelFunc // cancels the running plan; nil when none runs
	ended   chan struct{}      // closed when the running plan has ended
	next    *agentv1.Plan      // starts when the running plan has ended
	facts   *step.Facts        // of the work in progress, which may come in several plans
	phase   string             // of the plan the facts belong to
	carry   bool               // the last plan was done, so its facts are kept for the next one
}

// accept accepts a plan of the conductor: each id once per boot, and no lower generation than the highest seen.
func (ps *plans) accept(p *agentv1.Plan) {
	log := ps.log.With("plan", p.Id, "generation", p.Generation)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	st := ps.mem.read()
	switch {
	case slices.Contains(st.PlansSeen, p.Id):
		log.Debug("plan is known already")
		return
	case p.Generation < st.Highest:
		log.Warn("plan refused: a plan of a higher generation came before it", "highest", st.Highest)
		return
	case ps.running != nil && p.Generation == st.Plan.Generation:
		log.Warn("plan refused: another plan of this generation is still running")
		return
	}
	ps.mem.edit(func(s *saved) { s.PlansSeen, s.Highest = append(slices.Clip(s.PlansSeen), p.Id), p.Generation })
	if ps.running == nil {
		ps.startLocked(p)
		return
	}
	// The plan of the lower generation must end first; plans never overlap.
	replaced := ps.next
	ps.next = p
	ps.running()
	log.Warn("plan replaces the running one", "running", st.Plan.ID)
	if replaced != nil {
		ps.finish(replaced.Id, step.End{Cancelled: true})
	}
	ps.mem.save()
}

// startLocked starts a plan; the lock is held.
//
//nolint:contextcheck a plan outlives the session that brought it
func (ps *plans) startLocked(p *agentv1.Plan) {
	if !ps.carry || ps.phase != p.Phase {
		before := ps.facts
		ps.facts = &step.Facts{}
		if ps.carry && ps.phase == phaseWarm && beginsWithImage(p) {
			image.HandOver(before, ps.facts)
		}
	}
	if p.Phase == phaseWarm {
		image.Ahead(ps.facts)
	}
	swarm.Offer(ps.facts, ps.swarm)
	if p.Phase == string(step.Rescue) {
		rescue.Offer(ps.facts, ps.rescue)
	}
	ps.facts.Set(step.Node{}, ps.mem.read().NodeUUID)
	ps.facts.Set(step.During{}, step.Phase(p.Phase))
	facts := ps.facts
	ps.carry, ps.phase = false, p.Phase
	// A plan does not end with the session, so its context is a new one.
	ctx, cancel := context.WithCancel(context.Background())
	ps.running = cancel
	ps.ended = make(chan struct{})
	ended := ps.ended
	ps.mem.change(func(s *saved) { s.Plan = savedPlan{ID: p.Id, Generation: p.Generation, Running: true} })
	ps.work.Go(func() {
		defer close(ended)
		defer cancel()
		ps.run(ctx, facts, p)
	})
}

// phaseWarm is the phase of plans that prepare a likely deployment.
const phaseWarm = "warm"

// beginsWithImage reports whether a plan is a deployment whose first step writes the image, so that no earlier step
// changes the disk.
func beginsWithImage(p *agentv1.Plan) bool {
	return p.Phase == string(step.Deploy) && len(p.Steps) > 0 && p.Steps[0].Interface == "deploy" &&
		p.Steps[0].Name == "write_image"
}

func (ps *plans) run(ctx context.Context, facts *step.Facts, p *agentv1.Plan) {
	ps.log.Info("plan started", "plan", p.Id, "phase", p.Phase, "steps", len(p.Steps))
	ps.closeRescue("another plan begins")
	var steps []step.Planned
	for _, s := range p.Steps {
		steps = append(steps,
			step.Planned{Interface: s.Interface, Name: s.Name, Args: json.RawMessage(s.Args),
				Stall: s.Stall.AsDuration()})
	}
	// The agent starts before the storage controllers are ready; steps must not take that for a machine without disks.
	if err := ps.settle(ctx); err != nil && ctx.Err() == nil {
		ps.log.Warn("the plan starts although devices may be missing", "err", err)
	}
	end := ps.runner.Run(ctx, facts, steps, &planReporter{ps: ps, id: p.Id})
	ps.swarm.Leave()

	ps.mu.Lock()
	// A held machine keeps its state, including its steps' facts.
	ps.running, ps.carry = nil, end.Done || end.Halted == step.Hold
	ps.mem.edit(func(s *saved) { s.Plan.Running = false })
	next := ps.next
	ps.next = nil
	ps.mu.Unlock()
	ps.finish(p.Id, end)
	ps.status.Line("plan %s", endWord(end))
	if next != nil {
		ps.mu.Lock()
		ps.startLocked(next)
		ps.mu.Unlock()
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

func (ps *plans) finish(id string, end step.End) {
	ps.log.Info("plan ended", "plan", id, "how", endWord(end))
	ps.q.result(&agentv1.Event{Body: &agentv1.Event_PlanFinished{PlanFinished: &agentv1.PlanFinished{
		PlanId: id, Done: end.Done, Cancelled: end.Cancelled,
	}}})
}

// closeRescue ends logins, for the next worker too.
func (ps *plans) closeRescue(why string) {
	if ps.rescue.Close(why) {
		ps.mem.save()
	}
}

// cancel stops the running plan, if it is the named one; an empty id means any.
func (ps *plans) cancel(id string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.running != nil && (id == "" || id == ps.mem.read().Plan.ID) {
		ps.running()
	}
}

// busy returns the id of the running plan and the channel that is closed at its end, or nothing.
func (ps *plans) busy() (plan string, ended <-chan struct{}) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.running == nil {
		return "", nil
	}
	return ps.mem.read().Plan.ID, ps.ended
}

// planReporter converts the runner's reports to events.
type planReporter struct {
	ps *plans
	id string
}

func (r *planReporter) StepStarted(i int, s step.Planned) {
	r.ps.mem.edit(func(st *saved) { st.Plan.Index, st.Plan.Interface, st.Plan.Name = i, s.Interface, s.Name })
	r.ps.status.Step(s.Name)
	r.ps.q.result(&agentv1.Event{Body: &agentv1.Event_StepStarted{StepStarted: &agentv1.StepStarted{
		PlanId: r.id, StepIndex: uint32(i), Interface: s.Interface, Name: s.Name,
	}}})
}

func (r *planReporter) Progress(i int, s step.Planned, p step.Progress) {
	r.ps.status.Progress(s.Name, p)
	m := &agentv1.Progress{PlanId: r.id, StepIndex: uint32(i), Phase: p.Phase, Bytes: p.Bytes, Total: p.Total,
		Rate: p.Rate}
	for _, it := range p.Items[:min(len(p.Items), maxItems)] {
		m.Items = append(m.Items,
			&agentv1.ItemProgress{Name: it.Name, Bytes: it.Bytes, Total: it.Total, Done: it.Done, Error: it.Err})
	}
	r.ps.q.report(m)
}

// maxItems is the maximum number of a step's items in a progress report to the conductor.
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
			// A result that can't be encoded is dropped: the failure matters more.
			f.Result, _ = json.Marshal(res.Err.Result)
		}
		f.Outcome, f.Error, f.Remedy, f.Retryable = agentv1.Outcome_OUTCOME_FAILED, res.Err.Error(), res.Err.Remedy,
			res.Err.Retryable
	}
	r.ps.q.result(&agentv1.Event{Body: &agentv1.Event_StepFinished{StepFinished: f}})
}
