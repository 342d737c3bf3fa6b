package agents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/agentv1"
)

// work reports the agent to the engine, then takes its events in order until the session ends. Results have a queue of
// their own, so that progress and log lines after a result don't wait for the disk.
func (s *Server) work(ss *session, hello *agentv1.Hello, received <-chan message) {
	if err := s.engine.AgentUp(ss.ctx, agentState(ss.id, hello, address(ss.ctx))); err != nil {
		if stale := s.check(ss.ctx, ss); stale != nil {
			ss.end(stale)
			return
		}
		if s.handedOver(ss) {
			return
		}
		ss.log.Error("take up an agent's session", "err", err)
		ss.end(status.Error(codes.Unavailable, "the conductor can't take this agent now, try again"))
		return
	}
	var results chan message // made with the first result, which most of thousands of idle agents never have
	done := make(chan struct{})
	defer func() {
		if results != nil {
			close(results)
			<-done
		}
	}()
	for {
		select {
		case <-ss.ctx.Done():
			return
		case m := <-received:
			e := m.GetEvent()
			switch {
			case e == nil:
				ss.meter.Free(m.size)
				ss.end(status.Error(codes.InvalidArgument, "only events may follow hello"))
				return
			case e.Seq > 0:
				if results == nil {
					results = make(chan message, 64)
					go s.storing(ss, results, done)
				}
				select {
				case results <- m:
				case <-ss.ctx.Done():
					ss.meter.Free(m.size)
					return
				}
			default:
				s.notice(ss, e)
				ss.meter.Free(m.size)
			}
		}
	}
}

// storing takes results until there are no more.
func (s *Server) storing(ss *session, results <-chan message, done chan<- struct{}) {
	defer close(done)
	on := true
	for m := range results {
		on = on && s.result(ss, m.GetEvent())
		ss.meter.Free(m.size)
	}
}

// result stores one result and acknowledges it. It reports whether the session goes on.
func (s *Server) result(ss *session, e *agentv1.Event) bool {
	ss.ackMu.Lock()
	acked := ss.acked
	ss.ackMu.Unlock()
	if e.Seq <= acked {
		ss.ack(acked) // sent again after a reconnect
		return true
	}
	if e.Seq != acked+1 {
		ss.odd("agent skipped results", "have", acked, "next", e.Seq)
	}
	if e.GetStepFinished().GetOutcome() == agentv1.Outcome_OUTCOME_FAILED {
		s.collect(ss)
	}
	stop := func(doing string, err error) bool {
		if ss.ctx.Err() == nil && !s.handedOver(ss) {
			ss.log.Error(doing, "seq", e.Seq, "err", err)
			ss.end(status.Error(codes.Unavailable, "the conductor can't store a result now, try again"))
		}
		return false
	}
	f := e.GetStepFinished()
	fits := f != nil && len(f.Result) <= maxResult(f.Name)
	if fits {
		f.Result = cleanResult(f)
	}
	if fits && s.cfg.Erased != nil {
		if err := s.cfg.Erased(ss.ctx, ss.id.node, f.Result); err != nil {
			return stop("store a step's report of erased disks", err)
		}
	}
	if b := e.GetLogBundle(); b != nil {
		s.keepBundle(ss, b)
	} else if ev, ok := agentEvent(ss.id, e); !ok {
		ss.odd("result of an unknown kind", "seq", e.Seq)
	} else if err := s.engine.AgentEvent(ss.ctx, ev); err != nil {
		return stop("store an agent's result", err)
	}
	_, err := s.store.UpdateNode(ss.ctx, ss.id.node, func(n *node.Node) error {
		b := n.Boot
		if b == nil || b.BootID != ss.id.boot || b.Generation != ss.id.generation {
			return errOldBoot
		}
		b.AckedSeq = max(b.AckedSeq, e.Seq)
		return nil
	})
	if errors.Is(err, errOldBoot) {
		ss.end(errOldBoot)
		return false
	}
	if err != nil {
		return stop("store an acknowledgement", err)
	}
	ss.ack(e.Seq)
	return true
}

// maxItems bounds what one progress may hold.
const maxItems = 256

// notice handles events that are not stored: progress, log lines, and log bundles, which go to a file.
func (s *Server) notice(ss *session, e *agentv1.Event) {
	switch b := e.Body.(type) {
	case *agentv1.Event_Progress:
		p := b.Progress
		var items *[]node.ItemProgress
		if len(p.Items) > 0 {
			items = &[]node.ItemProgress{}
		}
		for _, it := range p.Items[:min(len(p.Items), maxItems)] {
			*items = append(*items,
				node.ItemProgress{Name: clip(it.Name), Bytes: it.Bytes, Total: it.Total, Done: it.Done,
					Error: clip(it.Error)})
		}
		s.engine.AgentProgress(ss.id.node,
			node.Progress{PlanID: p.PlanId, Index: int(p.StepIndex), Phase: clip(p.Phase),
				Bytes: p.Bytes, Total: p.Total, Rate: p.Rate, At: s.now().UTC(), Items: items})
	case *agentv1.Event_Log:
		s.logLine(ss, e, b.Log)
	case *agentv1.Event_LogBundle:
		s.keepBundle(ss, b.LogBundle)
	case *agentv1.Event_SwarmState:
		s.swarmState(ss, b.SwarmState)
	default:
		ss.odd("event of an unknown kind")
	}
}

func (s *Server) logLine(ss *session, e *agentv1.Event, l *agentv1.LogLine) {
	now := s.now().UTC()
	line := LogLine{At: now, Level: clip(l.Level), Message: cut(l.Message), Lost: l.Lost}
	if e.Time != nil {
		line.At = e.Time.AsTime()
	}
	for _, a := range l.Attrs[:min(len(l.Attrs), maxAttrs)] {
		line.Attrs = append(line.Attrs, cut(a))
	}
	s.logs.add(ss.id.node, line, now)

	if !ss.logs.take(now) {
		ss.skipped++
		return
	}
	if ss.skipped > 0 {
		ss.log.Warn("agent logs too much, lines left out here", "lines", ss.skipped)
		ss.skipped = 0
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		level = slog.LevelInfo
	}
	args := []any{"from", "agent"}
	if len(line.Attrs) > 0 {
		args = append(args, "attrs", strings.Join(line.Attrs, " "))
	}
	if l.Lost > 0 {
		args = append(args, "lost", l.Lost)
	}
	ss.log.Log(ss.ctx, level, line.Message, args...)
}

// cut is clip for whole sentences, which may have been made from anything.
func cut(s string) string { return redact.Text(clean.Line(s, limit.LogLine)) }

// Limits of texts in a step's result. Results of an inspection are names and numbers; other steps may return a
// program's output.
const (
	foundText  = 4 << 10
	resultText = 64 << 10
)

// cleanResult is a step's result as it may be stored and shown. One that is no JSON stays as it is, and is refused
// later.
func cleanResult(f *agentv1.StepFinished) []byte {
	most, breaks := resultText, true
	if f.Name == "inspect" {
		most, breaks = foundText, false
	}
	if doc := clean.JSON(f.Result, most, breaks); doc != nil {
		return doc
	}
	return f.Result
}

// bundleWait is how long a failure waits for the agent's logs. They are made in memory, so an agent that is well takes
// moments.
const bundleWait = 5 * time.Second

// collect fetches the logs of an agent one of whose steps has failed, before the engine learns of it: the engine then
// turns the machine off, and the logs are lost.
func (s *Server) collect(ss *session) {
	select {
	case <-ss.bundled: // one that came before
	default:
	}
	ctx, cancel := context.WithTimeout(ss.ctx, bundleWait)
	defer cancel()
	if err := s.CollectLogs(ctx, ss.id.node); err != nil {
		return // the session is over: the next one reports the failure again
	}
	select {
	case <-ss.bundled:
	case <-ctx.Done():
		ss.log.Warn("the agent's logs did not come in time", "took", bundleWait)
	}
}

func (s *Server) keepBundle(ss *session, b *agentv1.LogBundle) {
	if err := s.saveBundle(ss.ctx, ss.id.node, b.TarGz); err != nil {
		ss.log.Error("keep the agent's logs", "err", err)
	}
	select {
	case ss.bundled <- struct{}{}:
	default:
	}
}

// saveBundle writes a log bundle into the data directory and removes the oldest beyond limit.LogBundles,
// and once a day those of deleted nodes.
func (s *Server) saveBundle(ctx context.Context, nodeUUID string, data []byte) error {
	s.bundle.Lock()
	defer s.bundle.Unlock()
	dir := s.bundleDir(nodeUUID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder for logs: %w", err)
	}
	name := s.now().UTC().Format("20060102T150405.000000") + ".tar.gz"
	if err := keyfile.Write(filepath.Join(dir, name), data, 0o600); err != nil {
		return fmt.Errorf("write logs: %w", err)
	}
	s.log.Info("agent's logs kept", "node", nodeUUID, "file", filepath.Join(dir, name), "bytes", len(data))
	names, err := filepath.Glob(filepath.Join(dir, "*.tar.gz"))
	if err != nil {
		return fmt.Errorf("list logs: %w", err)
	}
	slices.Sort(names)
	for _, old := range names[:max(0, len(names)-limit.LogBundles)] {
		if err := os.Remove(old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove old logs: %w", err)
		}
	}
	if now := s.now(); now.Sub(s.swept).Abs() >= 24*time.Hour {
		s.swept = now
		return s.sweepBundles(ctx, now)
	}
	return nil
}

// sweepBundles removes the bundles of nodes that are deleted, and whose last one is older than limit.LogBundleTime:
// until then they may explain why the node was deleted.
func (s *Server) sweepBundles(ctx context.Context, now time.Time) error {
	folders, err := os.ReadDir(s.bundleDir(""))
	if err != nil {
		return fmt.Errorf("list logs: %w", err)
	}
	for _, f := range folders {
		info, err := f.Info()
		if err != nil || !f.IsDir() || now.Sub(info.ModTime()) < limit.LogBundleTime {
			continue
		}
		if id, err := uuid.Parse(f.Name()); err != nil || id.String() != f.Name() {
			continue // not made here
		}
		_, err = s.store.Node(ctx, f.Name())
		switch {
		case err == nil:
			continue
		case !s.cfg.NotFound(err):
			return fmt.Errorf("remove logs of deleted nodes: %w", err)
		}
		if err := os.RemoveAll(s.bundleDir(f.Name())); err != nil {
			return fmt.Errorf("remove logs of a deleted node: %w", err)
		}
		s.log.Info("logs of a deleted node removed", "node", f.Name())
	}
	return nil
}

func agentState(id identity, h *agentv1.Hello, from netip.Addr) node.AgentState {
	s := node.AgentState{NodeUUID: id.node, BootID: id.boot, Generation: id.generation, Version: clip(h.AgentVersion),
		PlanID: h.PlanId, PlanGeneration: h.PlanGeneration, StepIndex: int(h.StepIndex), PlanRunning: h.PlanRunning,
		StepsDigest: clip(h.StepsDigest), Restarts: int(h.WorkerRestarts), RestartReason: cut(h.RestartReason)}
	if from.IsValid() {
		s.Address = from.String()
	}
	return s
}

var outcomes = map[agentv1.Outcome]node.Outcome{
	agentv1.Outcome_OUTCOME_DONE:     node.OutcomeDone,
	agentv1.Outcome_OUTCOME_FAILED:   node.OutcomeFailed,
	agentv1.Outcome_OUTCOME_RERUN:    node.OutcomeRerun,
	agentv1.Outcome_OUTCOME_RUN_NEXT: node.OutcomeRunNext,
	agentv1.Outcome_OUTCOME_REBOOT:   node.OutcomeReboot,
	agentv1.Outcome_OUTCOME_HOLD:     node.OutcomeHold,
}

var powerActions = map[node.PowerAction]agentv1.PowerAction{
	node.AgentReboot: agentv1.PowerAction_POWER_ACTION_REBOOT,
	node.AgentOff:    agentv1.PowerAction_POWER_ACTION_OFF,
}

func maxResult(step string) int {
	if step == "inspect" {
		return limit.Inventory
	}
	return limit.StepResult
}

// agentEvent translates a result; false means that this conductor does not know its kind.
func agentEvent(id identity, e *agentv1.Event) (node.AgentEvent, bool) {
	ev := node.AgentEvent{NodeUUID: id.node, BootID: id.boot, Seq: e.Seq}
	if e.Time != nil {
		ev.At = e.Time.AsTime()
	}
	switch b := e.Body.(type) {
	case *agentv1.Event_StepStarted:
		ev.StepStarted = &node.StepRef{PlanID: b.StepStarted.PlanId, Index: int(b.StepStarted.StepIndex),
			Name: clip(b.StepStarted.Name)}
	case *agentv1.Event_StepFinished:
		f := b.StepFinished
		r := &node.StepResult{StepRef: node.StepRef{PlanID: f.PlanId, Index: int(f.StepIndex), Name: clip(f.Name)},
			Error: cut(f.Error), Remedy: cut(f.Remedy), Retryable: f.Retryable, After: f.After.AsDuration(),
			Took: f.Took.AsDuration()}
		if json.Valid(f.Result) {
			r.Result = f.Result
		}
		o, ok := outcomes[f.Outcome]
		if !ok {
			// An outcome of a newer agent must not pass for success.
			o, r.Error = node.OutcomeFailed,
				fmt.Sprintf("the agent ended step %s with outcome %d, which this conductor does not know", clip(f.Name),
					f.Outcome)
			r.Remedy = "build the ramdisk from the conductor's release"
		}
		if most := maxResult(f.Name); len(f.Result) > most {
			// Not stored, so not done: what should follow from it can't.
			o, r.Result, r.Retryable = node.OutcomeFailed, nil, false
			r.Error = fmt.Sprintf("the result of step %s has %d bytes, more than the %d allowed", clip(f.Name),
				len(f.Result), most)
		}
		if len(f.Next) > limit.NextSteps {
			o, r.Retryable = node.OutcomeFailed, false
			r.Error = fmt.Sprintf("step %s wants %d other steps to follow, more than the %d allowed", clip(f.Name),
				len(f.Next), limit.NextSteps)
			f.Next = nil
		}
		r.Outcome = o
		for _, n := range f.Next {
			r.Next = append(r.Next,
				node.PlanStep{Interface: clip(n.Interface), Name: clip(n.Name), Args: n.Args,
					Stall: n.Stall.AsDuration()})
		}
		ev.StepFinished = r
	case *agentv1.Event_PlanFinished:
		ev.PlanFinished = &node.PlanResult{PlanID: b.PlanFinished.PlanId, Done: b.PlanFinished.Done,
			Cancelled: b.PlanFinished.Cancelled}
	case *agentv1.Event_WorkerRestarted:
		ev.WorkerRestarted = &node.WorkerRestart{Reason: cut(b.WorkerRestarted.Reason),
			Count: int(b.WorkerRestarted.Count)}
	default:
		return ev, false
	}
	return ev, true
}

func planMessage(p node.Plan) *agentv1.Plan {
	m := &agentv1.Plan{Id: p.ID, Generation: p.Generation, Phase: string(p.Phase)}
	for _, st := range p.Steps {
		step := &agentv1.Step{Interface: st.Interface, Name: st.Name, Args: st.Args}
		if st.Stall > 0 {
			step.Stall = durationpb.New(st.Stall)
		}
		m.Steps = append(m.Steps, step)
	}
	return m
}
