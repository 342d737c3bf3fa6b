package program

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/node"
)

// TestTrustIsTheNodes: who deploys can't put other keys or certificates over those of the node by giving them with a
// step.
func TestTrustIsTheNodes(t *testing.T) {
	m := Planner{AgentSteps: catalog.BuiltinSteps(), Drivers: defaults{}}
	for _, args := range []string{`{"image_keys":["mine"]}`, `{"image_keys":[]}`, `{"image_keys":null}`,
		`{"Image_Keys":["mine"]}`, `{"image_ca":"mine"}`} {
		s := node.JobStep{Interface: "deploy", Name: "write_image", Priority: 80, Args: json.RawMessage(args)}
		var invalid *node.InvalidError
		if _, err := m.AgentSteps.Ask(s); !errors.As(err, &invalid) || !strings.Contains(err.Error(), "driver_info") &&
			!strings.Contains(err.Error(), "no argument") {
			t.Errorf("deploying with the arguments %s: %v, want an InvalidError", args, err)
		}
		if _, err := m.Listed(&node.Node{}, node.PhaseClean, []node.JobStep{s}, false); !errors.As(err, &invalid) {
			t.Errorf("cleaning with the arguments %s: %v, want an InvalidError", args, err)
		}
	}
}

// defaults are nodes that use the interfaces of their types.
type defaults struct{}

func (defaults) Interface(*node.Node, string) string { return "" }

// TestDriveFromAURL: the agent gets the certificates that the node's operator trusts for a config drive that it
// fetches.
func TestDriveFromAURL(t *testing.T) {
	for drive, want := range map[any]string{"https://h/drive": "pem", "H4sI": "", any(nil): ""} {
		n := &node.Node{DriverInfo: map[string]any{"image_ca": "pem"},
			InstanceInfo: map[string]any{"configdrive": drive}}
		raw, err := Planner{}.stepArgs(n, node.JobStep{Interface: "deploy", Name: "write_configdrive"})
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			CA string `json:"image_ca"`
		}
		if err := json.Unmarshal(raw, &got); err != nil || got.CA != want {
			t.Errorf("%v: %s", drive, raw)
		}
	}
}
