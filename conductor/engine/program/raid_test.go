package program

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/node"
)

// TestRAIDIsRefused: what can't be made is refused with the request, before the machine is booted for it.
func TestRAIDIsRefused(t *testing.T) {
	m := Planner{AgentSteps: catalog.BuiltinSteps()}
	n := &node.Node{
		TargetRAID: map[string]any{
			"logical_disks": []any{map[string]any{"raid_level": "5", "size_gb": "MAX", "controller": "software"}}}}
	create := []node.JobStep{{Interface: "raid", Name: "create_configuration", InBand: true}}
	if err := m.Check(n, create); err == nil || !strings.Contains(err.Error(), "requires RAID-1 for the first") {
		t.Errorf("create_configuration: %v", err)
	}
	apply := []node.JobStep{{Interface: "raid", Name: "apply_configuration", InBand: true,
		Args: json.RawMessage(
			`{"raid_config":{"logical_disks":[{"raid_level":"1","size_gb":"MAX"},{"raid_level":"1","size_gb":1}]}}`)}}
	if err := m.Check(n, apply); err == nil || !strings.Contains(err.Error(), "MAX") {
		t.Errorf("apply_configuration: %v", err)
	}
	n.TargetRAID = map[string]any{"logical_disks": []any{map[string]any{"raid_level": "1", "size_gb": "MAX"}}}
	if err := m.Check(n, create); err != nil {
		t.Errorf("what can be made: %v", err)
	}
}
