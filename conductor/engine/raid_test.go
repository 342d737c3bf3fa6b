package engine

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
)

// What the agent made is kept, its root volume becomes the root device; what it took apart is forgotten, an operator's
// own hint is not.
func TestRAIDResult(t *testing.T) {
	n := &node.Node{Properties: map[string]any{"cpus": 4.0},
		TargetRAID: map[string]any{"logical_disks": []any{map[string]any{"raid_level": "1", "size_gb": "MAX"}}}}
	result := func(s string) *node.JobStep {
		return &node.JobStep{Interface: "raid", Name: "create_configuration", Result: json.RawMessage(s)}
	}
	e := &Engine{}
	use := func(s *node.JobStep) {
		t.Helper()
		if err := e.useResult(t.Context(), n, &node.SideEffects{}, s); err != nil {
			t.Fatal(err)
		}
	}
	before := n.Properties
	use(result(`{"raid_config":{"logical_disks":[{"raid_level":"1","uuid":"u","root_device_hint":{"serial":"u"}}]},"root_device":{"serial":"u"}}`))
	if len(before) != 1 {
		t.Error("the properties were changed in place")
	}
	if d := cmp.Diff(map[string]any{"cpus": 4.0, "root_device": map[string]any{"serial": "u"}}, n.Properties); d != "" {
		t.Errorf("properties (-want +got):\n%s", d)
	}
	for _, name := range []string{"erase_devices_metadata", "erase_devices", "erase_devices_express", "burnin_disk"} {
		args, err := e.planner().Args(n, &node.Job{}, node.JobStep{Interface: "deploy", Name: name})
		if err != nil || string(args) != `{"arrays":["u"]}` {
			t.Errorf("%s runs with %s, %v", name, args, err)
		}
	}
	disks, _ := n.RAIDConfig["logical_disks"].([]any)
	if len(disks) != 1 || n.RAIDConfig["last_updated"] == nil {
		t.Errorf("raid_config = %v", n.RAIDConfig)
	}
	use(result(`{"raid_config":{"logical_disks":[]}}`))
	if n.Properties["root_device"] != nil || len(n.RAIDConfig["logical_disks"].([]any)) != 0 {
		t.Errorf("after removal: %v, %v", n.Properties, n.RAIDConfig)
	}
	n.Properties = map[string]any{"root_device": map[string]any{"wwn": "0x5"}}
	use(result(`{"raid_config":{"logical_disks":[]}}`))
	if n.Properties["root_device"] == nil {
		t.Error("an operator's hint was taken away")
	}

	args, err := e.planner().Args(n, &node.Job{},
		node.JobStep{Interface: "raid", Name: "create_configuration",
			Args: json.RawMessage(`{"delete_existing":true}`)})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(args, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]any{"target_raid_config": n.TargetRAID, "delete_existing": true}, got); d != "" {
		t.Errorf("arguments (-want +got):\n%s", d)
	}
}

// TestRAIDConfigIsBounded: what an agent says of arrays becomes a field of the node, and may be as long as any.
func TestRAIDConfigIsBounded(t *testing.T) {
	for _, over := range []int{0, 1} {
		head, tail := `{"raid_config":{"logical_disks":[{"name":"`, `"}]}}`
		s := node.JobStep{Interface: "raid", Name: "create_configuration", Status: node.StepRunning,
			Result: json.RawMessage(head + strings.Repeat("x", limit.Attribute+over-len(head)-len(tail)) + tail)}
		n := &node.Node{Provision: node.Cleaning, TargetProvision: node.Manageable,
			Job: &node.Job{Phase: node.PhaseClean, Steps: []node.JobStep{s}}}
		if err := (&Engine{log: slog.New(slog.DiscardHandler)}).useResult(t.Context(), n, &node.SideEffects{},
			&n.Job.Steps[0]); err != nil {
			t.Fatal(err)
		}
		if refused := strings.Contains(n.LastError, "65537 bytes, more than the 65536"); refused != (over > 0) ||
			(n.RAIDConfig == nil) != refused {
			t.Errorf("%d bytes too many: %q, raid_config of %d disks", over, n.LastError, len(n.RAIDConfig))
		}
	}
}
