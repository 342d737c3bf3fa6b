package engine

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestTrustIsTheNodes: who deploys can't put other keys or certificates over those of the node by giving them with a step.
func TestTrustIsTheNodes(t *testing.T) {
	e := &Engine{cfg: Config{}.withDefaults(), drivers: drivers{}}
	for _, args := range []string{`{"image_keys":["mine"]}`, `{"image_keys":[]}`, `{"image_keys":null}`, `{"Image_Keys":["mine"]}`, `{"image_ca":"mine"}`} {
		s := node.JobStep{Interface: "deploy", Name: "write_image", Priority: 80, Args: json.RawMessage(args)}
		var invalid *InvalidError
		if _, err := e.agentStep(s); !errors.As(err, &invalid) || !strings.Contains(err.Error(), "driver_info") && !strings.Contains(err.Error(), "no argument") {
			t.Errorf("deploying with the arguments %s: %v, want an InvalidError", args, err)
		}
		if _, err := e.listedSteps(&node.Node{}, node.PhaseClean, []node.JobStep{s}, false); !errors.As(err, &invalid) {
			t.Errorf("cleaning with the arguments %s: %v, want an InvalidError", args, err)
		}
	}
}
