package api

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (s *Server) getProgress(ctx context.Context, c *call) (*reply, error) {
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	out := rest.Progress{
		NodeUUID: n.UUID, ProvisionState: string(n.Provision), TargetProvisionState: rest.Null(n.TargetProvision),
		PowerState: rest.Null(n.Power), LastError: rest.Null(n.LastError), DeployedBy: rest.Null(n.DeployedBy), Job: showJob(n.Job),
		AgentConnected: n.Boot != nil && n.Boot.Connected && !n.Boot.Ended,
	}
	if !c.actor.May(access.NodeGetLastError, access.Of(n)) {
		out.LastError = redactedError
	}
	if p, ok := s.engine.Progress(n.UUID); ok && current(n.Job, p) {
		out.Running = &rest.Transfer{Step: p.Step, Phase: p.Phase, Bytes: p.Bytes, Total: p.Total, Rate: p.Rate, At: rest.NullTime{Time: p.At}, Items: showItems(p.Items)}
	}
	return &reply{status: http.StatusOK, body: out}, nil
}

// current tells whether a progress is of the plan that the job runs, and not one left over from before.
func current(j *node.Job, p node.Progress) bool { return j != nil && j.PlanID == p.PlanID }

func (s *Server) getTimeline(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow("job"); err != nil {
		return nil, err
	}
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	marks, err := s.store.Marks(ctx, n.UUID, c.query.Get("job"))
	if err != nil {
		return nil, err
	}
	out := rest.Timeline{NodeUUID: n.UUID, Marks: make([]rest.Mark, len(marks))}
	for i, m := range marks {
		out.Marks[i] = rest.Mark{JobID: rest.Null(m.JobID), Name: m.Name, At: m.At.UTC().Format(time.RFC3339Nano), Detail: rest.Null(m.Detail)}
	}
	return &reply{status: http.StatusOK, body: out}, nil
}

func (s *Server) getLogs(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow("after"); err != nil {
		return nil, err
	}
	var after uint64
	if a := c.text("after"); a != nil {
		n, err := strconv.ParseUint(*a, 10, 64)
		if err != nil {
			return nil, rest.BadRequest("Expected an integer for after: %s", *a)
		}
		after = n
	}
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	out := rest.Logs{NodeUUID: n.UUID, Lines: []rest.LogLine{}, Next: after}
	if s.cfg.Logs != nil {
		out.Lines = append(out.Lines, s.cfg.Logs(n.UUID, after)...)
	}
	if len(out.Lines) > 0 {
		out.Next = out.Lines[len(out.Lines)-1].Seq
	}
	return &reply{status: http.StatusOK, body: out}, nil
}
