package own

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/trace"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// comparedJobs is how many nodes are looked at for a median: those whose state changed last.
const comparedJobs = 100

// getMedian answers how long jobs of a phase that went well took on the nodes that the caller sees, and the parts of
// them.
func (s *Handlers) getMedian(ctx context.Context, c *call.Call) (*call.Reply, error) {
	phase := node.Phase(c.Query.Get("phase"))
	if phase == "" {
		phase = node.PhaseDeploy
	}
	list, err := s.store.Nodes(ctx, store.Query{Project: c.Scope(), Sort: "provision_updated_at", Desc: true,
		Limit: comparedJobs})
	if err != nil {
		return nil, err
	}
	var traces []rest.Trace
	for _, n := range list {
		j := n.Past[phase]
		if j == nil || j.Failure != "" || !c.View(n).Sees(j.StartedAt) ||
			!c.Actor.May(access.IngotProgress, access.Of(n)) {
			continue
		}
		marks, err := s.store.Marks(ctx, n.UUID, j.ID)
		if err != nil {
			return nil, err
		}
		for _, t := range trace.Of(marks, []*node.Job{j}, time.Now().UTC()) {
			if !t.Open {
				traces = append(traces, t)
			}
		}
	}
	return &call.Reply{Status: http.StatusOK, Body: medians(string(phase), traces)}, nil
}

// medians compares traces of one phase. A span is the same as another if it has the same name at the same depth; of
// several in one trace the sum counts.
func medians(phase string, traces []rest.Trace) rest.Medians {
	type place struct {
		depth int
		name  string
	}
	var order []place
	all := map[place][]float64{}
	var whole []float64
	for _, t := range traces {
		whole = append(whole, t.Seconds)
		sums := map[place]float64{}
		var add func(spans []rest.Span, depth int)
		add = func(spans []rest.Span, depth int) {
			for _, sp := range spans {
				at := place{depth, sp.Name}
				if all[at] == nil && sums[at] == 0 {
					order = append(order, at)
				}
				sums[at] += sp.Seconds
				add(sp.Spans, depth+1)
			}
		}
		add(t.Spans, 0)
		for at, sum := range sums {
			all[at] = append(all[at], sum)
		}
	}
	out := rest.Medians{Phase: phase, Jobs: len(traces), Seconds: median(whole), Spans: []rest.Median{}}
	for _, at := range order {
		if len(all[at])*2 >= len(traces) { // one that most jobs lack says nothing of the others
			out.Spans = append(out.Spans, rest.Median{Name: at.name, Depth: at.depth, Jobs: len(all[at]),
				Seconds: median(all[at])})
		}
	}
	return out
}

// median is the one in the middle, or between the two there; 0 of none.
func median(of []float64) float64 {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return (of[(len(of)-1)/2] + of[len(of)/2]) / 2
}
