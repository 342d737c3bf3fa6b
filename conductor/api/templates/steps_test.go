package templates

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
)

// TestUnreadableArguments: arguments that can't be read are not taken for none, which a change of something else would
// then store.
func TestUnreadableArguments(t *testing.T) {
	stored := []node.TemplateStep{
		{Interface: "deploy", Step: "write_image", Args: json.RawMessage(`{"password": "x"`), Priority: 80}}
	d := stepDocuments(stored, "priority")
	if args := d[0].(map[string]any)["args"]; args != nil {
		t.Errorf("args of the document = %v, want null", args)
	}
	if fault := stepSchema("priority", "args", "priority").Check(d[0]); !strings.Contains(fault,
		"None is not of type 'object'") {
		t.Errorf("a PATCH of such a step is refused with %q", fault)
	}
	b, err := json.Marshal(showSteps(stored, "priority"))
	if err != nil || !strings.Contains(string(b), `"args":null`) {
		t.Errorf("shown as %s, %v", b, err)
	}
	sent := map[string]any{
		"steps": []any{map[string]any{"interface": "deploy", "step": "write_image",
			"args": map[string]any{"password": "******"}, "priority": 80.0}}}
	if _, err := stepsIn(&call.Call{Actor: access.Anybody()}, sent, "priority", stored); err == nil ||
		!strings.Contains(err.Message, "read stored arguments of step deploy.write_image") {
		t.Errorf("a mask that stands for what can't be read: %v", err)
	}
	stored[0].Args = json.RawMessage(`{"password": "x"}`)
	if steps, err := stepsIn(&call.Call{Actor: access.Anybody()}, sent, "priority", stored); err != nil ||
		string(steps[0].Args) != `{"password":"x"}` {
		t.Errorf("steps with a mask = %v, %v", steps, err)
	}
}
