package own

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/trace"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// showJob makes the representation of the work in progress under /ingot/v1; nil when it is not visible. Arguments of
// steps are left out: they hold the tenant's data. Results that are stored apart from the node are shown if they are in
// apart.
func showJob(j *node.Job, v call.View, apart map[string]json.RawMessage) *rest.Job {
	if j == nil || !v.Sees(j.StartedAt) {
		return nil
	}
	out := &rest.Job{
		ID: j.ID, Phase: string(j.Phase), StartedAt: rest.NullTime{Time: j.StartedAt},
		Requester: rest.Null(j.Requester), Index: j.Index, Detail: rest.Null(v.Inside(j.Detail)),
		Steps: make([]rest.JobStep, len(j.Steps)),
	}
	for i, st := range j.Steps {
		js := rest.JobStep{
			Interface: st.Interface, Step: st.Name, Priority: st.Priority, InBand: st.InBand, Status: string(st.Status),
			StartedAt: rest.NullTime{Time: st.StartedAt}, EndedAt: rest.NullTime{Time: st.EndedAt},
		}
		js.Status = cmp.Or(js.Status, "pending")
		if v.Insides {
			js.Result = redact.JSON(st.Result)
			if doc := apart[st.ResultRef]; doc != nil {
				js.Result = redact.JSON(doc)
			}
		}
		out.Steps[i] = js
	}
	return out
}

func (s *Handlers) getProgress(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	v := c.View(n)
	out := rest.Progress{
		NodeUUID: n.UUID, ProvisionState: string(n.Provision), TargetProvisionState: rest.Null(n.TargetProvision),
		PowerState: rest.Null(n.Power), LastError: rest.Null(n.LastError), Job: showJob(n.Job, v, nil),
		AgentConnected: n.Boot != nil && n.Boot.Connected && !n.Boot.Ended,
	}
	if !v.Insides {
		out.LastError = call.RedactedError
	}
	if v.Insides || n.Past[node.PhaseDeploy] != nil && v.Sees(n.Past[node.PhaseDeploy].StartedAt) {
		out.DeployedBy = rest.Null(n.DeployedBy)
	}
	rep := &call.Reply{Status: http.StatusOK, Body: &out}
	if other := (*engine.ElsewhereError)(nil); out.Job != nil && errors.As(s.engine.Here(n), &other) {
		return nil, &call.LesserError{Err: other, Reply: rep} // its owner knows how far the work is
	}
	if p, ok := s.engine.Progress(n.UUID); ok && current(n.Job, p) && out.Job != nil {
		out.Running = transfer(p)
		out.Running.Items = showItems(p.Items, v)
	}
	return rep, nil
}

// transfer is the representation of a progress, without its items.
func transfer(p node.Progress) *rest.Transfer {
	return &rest.Transfer{Step: p.Step, Phase: p.Phase, Bytes: p.Bytes, Total: p.Total, Rate: p.Rate,
		At: rest.NullTime{Time: p.At}}
}

// getRunning lists how far all running work is that the caller may see, or that of one conductor.
func (s *Handlers) getRunning(ctx context.Context, c *call.Call) (*call.Reply, error) {
	out := rest.Running{Progress: []rest.NodeTransfer{}}
	var running map[string]node.Progress
	of := c.Query.Get("conductor")
	switch {
	case s.cfg.Progress == nil:
	case of == s.cfg.Hostname: // other conductors ask this
		running = s.cfg.Progress.Local()
	default:
		running = s.cfg.Progress.Now(ctx)
	}
	for _, id := range slices.Sorted(maps.Keys(running)) {
		n, err := s.store.Node(ctx, id)
		if err != nil || of != "" && n.Conductor != of || !current(n.Job, running[id]) {
			continue
		}
		if v := c.View(n); !c.Actor.May(access.IngotProgress, access.Of(n)) || !v.Sees(n.Job.StartedAt) {
			continue
		}
		out.Progress = append(out.Progress, rest.NodeTransfer{NodeUUID: n.UUID, NodeName: rest.Null(n.Name),
			Conductor: rest.Null(n.Conductor), PlanID: n.Job.PlanID, Transfer: *transfer(running[id])})
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}

// current reports whether a progress is of the plan that the job runs, and not one left over from before.
func current(j *node.Job, p node.Progress) bool { return j != nil && j.PlanID == p.PlanID }

func (s *Handlers) getTimeline(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	marks, err := s.store.Marks(ctx, n.UUID, c.Query.Get("job"))
	if err != nil {
		return nil, err
	}
	v := c.View(n)
	began := map[string]time.Time{} // jobs by ID: their first marks
	for _, m := range marks {
		if at, ok := began[m.JobID]; m.JobID != "" && (!ok || m.At.Before(at)) {
			began[m.JobID] = m.At
		}
	}
	marks = slices.DeleteFunc(slices.Clone(marks),
		func(m node.Mark) bool { return !v.Sees(m.At) || m.JobID != "" && !v.Sees(began[m.JobID]) })
	jobs := []*node.Job{n.Job}
	for _, j := range n.Past {
		jobs = append(jobs, j)
	}
	out := rest.Timeline{NodeUUID: n.UUID, Marks: make([]rest.Mark, len(marks)),
		Traces: trace.Of(marks, jobs, time.Now().UTC())}
	for i, m := range marks {
		out.Marks[i] = rest.Mark{JobID: rest.Null(m.JobID), Name: m.Name, At: m.At.UTC().Format(time.RFC3339Nano),
			Detail: rest.Null(v.Inside(m.Detail))}
	}
	if !v.Insides {
		for i := range out.Traces {
			blank(out.Traces[i].Spans)
		}
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}

// blank takes the details out of spans, which are addresses, versions and errors.
func blank(spans []rest.Span) {
	for i := range spans {
		spans[i].Detail = ""
		blank(spans[i].Spans)
	}
}

func (s *Handlers) getLogs(ctx context.Context, c *call.Call) (*call.Reply, error) {
	var after uint64
	if a := c.Text("after"); a != nil {
		n, err := strconv.ParseUint(*a, 10, 64)
		if err != nil {
			return nil, rest.BadRequest("Expected an integer for after: %s", *a)
		}
		after = n
	}
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := s.engine.Here(n); err != nil { // its agent sends them to the owner
		return nil, err
	}
	out := rest.Logs{NodeUUID: n.UUID, Lines: []rest.LogLine{}, Next: after}
	if s.cfg.Logs != nil {
		out.Lines = append(out.Lines, s.cfg.Logs(n.UUID, after)...)
	}
	if len(out.Lines) > 0 {
		out.Next = out.Lines[len(out.Lines)-1].Seq
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}

func showItems(items *[]node.ItemProgress, v call.View) []rest.ItemProgress {
	if items == nil {
		return nil
	}
	var out []rest.ItemProgress
	for _, it := range *items {
		out = append(out,
			rest.ItemProgress{Name: it.Name, Bytes: it.Bytes, Total: it.Total, Done: it.Done,
				Error: rest.Null(v.Error(it.Error))})
	}
	return out
}
