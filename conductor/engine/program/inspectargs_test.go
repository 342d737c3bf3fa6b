package program

import (
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestInspectionWaitsForSwitches: the agent is told how long to wait, and nothing when it is not to.
func TestInspectionWaitsForSwitches(t *testing.T) {
	for limit, want := range map[time.Duration]string{0: `{}`, 30 * time.Second: `{"lldp_timeout":30}`} {
		got, err := Planner{LLDPTimeout: limit}.stepArgs(&node.Node{},
			node.JobStep{Interface: "inspect", Name: "inspect"})
		if err != nil || string(got) != want {
			t.Errorf("%v: %s, %v, want %s", limit, got, err, want)
		}
	}
}
