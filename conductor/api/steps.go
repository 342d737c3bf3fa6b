package api

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// planner tells what a request would do.
type planner interface {
	DryRun(ctx context.Context, ident string, r engine.Request) (engine.Dry, error)
}

// stepRoutes show what a node's work consists of: to come, under way, and over.
func (s *Server) stepRoutes() []route {
	return []route{
		{Method: http.MethodGet, Path: "/ingot/v1/nodes/{node}/steps", Access: Read, handle: s.getSteps},
		{Method: http.MethodPost, Path: "/ingot/v1/nodes/{node}/plan", Access: Write, handle: s.postPlan},
	}
}

// getSteps shows the job under way and the newest one of each phase that is over, with what came out of their steps.
func (s *Server) getSteps(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	out := rest.Steps{NodeUUID: n.UUID, Job: showJob(n.Job), Past: []rest.PastJob{}}
	past := slices.SortedFunc(maps.Values(n.Past), func(a, b *node.Job) int { return b.EndedAt.Compare(a.EndedAt) })
	for _, j := range past {
		out.Past = append(out.Past, rest.PastJob{Job: *showJob(j), EndedAt: rest.NullTime{Time: j.EndedAt}, Failure: rest.Null(j.Failure)})
	}
	return &reply{status: http.StatusOK, body: out}, nil
}

// postPlan tells which steps a change of provision state would begin, and changes nothing. The body is that of PUT
// /v1/nodes/{node}/states/provision.
func (s *Server) postPlan(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	b, aerr := c.arguments(append([]string{"target"}, slices.Collect(maps.Keys(rest.ProvisionParameters))...)...)
	if aerr != nil {
		return nil, aerr
	}
	word, _ := b["target"].(string)
	verb, ok := verbOf(word)
	if !ok {
		return nil, rest.BadRequest("target is %q, which is no change of provision state such as clean, provide or active", word)
	}
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	req, aerr := request(c, b, verb)
	if aerr != nil {
		return nil, aerr
	}
	if err := s.useRunbook(ctx, c, b, &req); err != nil {
		return nil, err
	}
	req.User = c.user
	d, err := s.engine.DryRun(ctx, n.UUID, req)
	if err != nil {
		return nil, err
	}
	out := rest.Plan{NodeUUID: n.UUID, Target: word, Steps: []rest.PlanStep{}}
	if d.Refused != nil {
		out.Refused = rest.Null(d.Refused.Error())
	}
	if d.Job != nil {
		out.Phase = string(d.Job.Phase)
		for _, st := range d.Job.Steps {
			args := map[string]any{}
			if len(st.Args) > 0 {
				if err := json.Unmarshal(st.Args, &args); err != nil {
					return nil, err
				}
			}
			out.Steps = append(out.Steps, rest.PlanStep{Interface: st.Interface, Step: st.Name, Priority: st.Priority, InBand: st.InBand,
				Abortable: st.Abortable, Args: rest.Mask(args)})
		}
	}
	return &reply{status: http.StatusOK, body: out}, nil
}

func showItems(items *[]node.ItemProgress) []rest.ItemProgress {
	if items == nil {
		return nil
	}
	var out []rest.ItemProgress
	for _, it := range *items {
		out = append(out, rest.ItemProgress{Name: it.Name, Bytes: it.Bytes, Total: it.Total, Done: it.Done, Error: rest.Null(it.Error)})
	}
	return out
}
