package arch

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/agent/linux"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/conductor/engine"
)

// TestBuiltinSteps binds the conductor's idea of the agent's steps, which it uses where no ramdisk's manifest is at hand, to the agent's
// own table: names, arguments, priorities, and what may be stopped when. An argument that only one of them has is refused, or never sent.
func TestBuiltinSteps(t *testing.T) {
	m, err := step.Describe(agent.Steps(linux.Machine{}, nil))
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(m.Steps)
	if err != nil {
		t.Fatal(err)
	}
	agents, err := engine.ParseAgentSteps(b)
	if err != nil {
		t.Fatal(err)
	}
	byName := func(steps []engine.AgentStep) map[string]engine.AgentStep {
		out := map[string]engine.AgentStep{}
		for _, s := range steps {
			args := make([]engine.AgentStepArg, 0, len(s.Args))
			for _, a := range s.Args {
				a.Description = "" // is for people, who read the manifest's
				args = append(args, a)
			}
			s.Args = args
			out[s.Interface+"."+s.Name] = s
		}
		return out
	}
	if diff := cmp.Diff(byName(agents), byName(engine.BuiltinSteps())); diff != "" {
		t.Errorf("conductor/engine's BuiltinSteps are not the table of agent/steps.go (-agent +conductor):\n%s", diff)
	}
}
