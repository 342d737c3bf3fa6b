package states

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// postPlan returns the steps that a change of provision state would begin, and changes nothing. The body is that of PUT
// /v1/nodes/{node}/states/provision.
func (s *Handlers) postPlan(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, aerr := c.Arguments(append([]string{"target"}, slices.Collect(maps.Keys(rest.ProvisionParameters))...)...)
	if aerr != nil {
		return nil, aerr
	}
	word, _ := b["target"].(string)
	verb, ok := verbOf(word)
	if !ok {
		return nil, rest.BadRequest(
			"target is %q, which is no change of provision state such as clean, provide or active", word)
	}
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	req, aerr := request(c, n, b, verb)
	if aerr != nil {
		return nil, aerr
	}
	if err := s.templates.UseRunbook(ctx, c, b, &req); err != nil {
		return nil, err
	}
	req.User = c.User
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
				if err := exact.Unmarshal(st.Args, &args); err != nil {
					return nil, err
				}
			}
			out.Steps = append(out.Steps,
				rest.PlanStep{Interface: st.Interface, Step: st.Name, Priority: st.Priority, InBand: st.InBand,
					Abortable: st.Abortable, Args: args})
		}
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}
