package own

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// getSteps shows the current job and the newest finished one of each phase, with the results of their steps. Results
// that are stored apart from the node are read if the argument full is set.
func (s *Handlers) getSteps(ctx context.Context, c *call.Call) (*call.Reply, error) {
	full, aerr := c.Flag("full")
	if aerr != nil {
		return nil, aerr
	}
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	v := c.View(n)
	var apart map[string]json.RawMessage
	if full != nil && *full && v.Insides {
		if apart, err = s.store.Results(ctx, n.UUID); err != nil {
			return nil, err
		}
	}
	out := rest.Steps{NodeUUID: n.UUID, Job: showJob(n.Job, v, apart), Past: []rest.PastJob{}}
	past := slices.SortedFunc(maps.Values(n.Past), func(a, b *node.Job) int { return b.EndedAt.Compare(a.EndedAt) })
	for _, j := range past {
		if job := showJob(j, v, apart); job != nil {
			out.Past = append(out.Past,
				rest.PastJob{Job: *job, EndedAt: rest.NullTime{Time: j.EndedAt},
					Failure: rest.Null(v.Error(j.Failure))})
		}
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}
