package agents

import (
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/agentv1"
)

// What an agent sends as the result of a step is bounded on arrival; one that is too large is a failure, since nothing
// can follow from it.
func TestResultsAreBounded(t *testing.T) {
	result := func(size int) []byte { return []byte(`"` + strings.Repeat("x", size-2) + `"`) }
	for _, tt := range []struct {
		step   string
		result []byte
		next   int
		want   node.Outcome
	}{
		{"burnin_cpu", result(1 << 20), 0, node.OutcomeDone},
		{"burnin_cpu", result(1<<20 + 1), 0, node.OutcomeFailed},
		{"inspect", result(8 << 20), 0, node.OutcomeDone},
		{"inspect", result(8<<20 + 1), 0, node.OutcomeFailed},
		{"burnin_cpu", nil, limit.NextSteps, node.OutcomeDone},
		{"burnin_cpu", nil, limit.NextSteps + 1, node.OutcomeFailed},
	} {
		ev, ok := agentEvent(identity{},
			&agentv1.Event{Body: &agentv1.Event_StepFinished{StepFinished: &agentv1.StepFinished{
				Name: tt.step, Outcome: agentv1.Outcome_OUTCOME_DONE, Result: tt.result,
				Next: slices.Repeat([]*agentv1.Step{{Name: "x"}}, tt.next)}}})
		r := ev.StepFinished
		if !ok || r.Outcome != tt.want || tt.want == node.OutcomeFailed &&
			(r.Retryable || len(r.Result) > 0 || len(r.Next) > 0 || !strings.Contains(r.Error, "allowed")) {
			t.Errorf("%s with %d bytes and %d steps = %s %q, %d bytes, want %s", tt.step, len(tt.result), tt.next,
				r.Outcome, r.Error, len(r.Result), tt.want)
		}
	}
}
