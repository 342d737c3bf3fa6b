package engine

import (
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/inspect"
	"github.com/ingot-metal/ingot/conductor/node"
)

// TestInspectionWaitsForSwitches: the agent is told how long to wait, and nothing when it is not to.
func TestInspectionWaitsForSwitches(t *testing.T) {
	for limit, want := range map[time.Duration]string{0: `{}`, 30 * time.Second: `{"lldp_timeout":30}`} {
		e := &Engine{cfg: Config{Inspection: inspect.Options{LLDPTimeout: limit}}}
		got, err := e.stepArgs(&node.Node{}, node.JobStep{Interface: "inspect", Name: "inspect"})
		if err != nil || string(got) != want {
			t.Errorf("%v: %s, %v, want %s", limit, got, err, want)
		}
	}
}
