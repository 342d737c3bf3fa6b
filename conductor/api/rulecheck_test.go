package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestRuleCheck: a rule is tried out on what was found, stored or not, and nothing is changed by it.
func TestRuleCheck(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.Manageable})
	n, err := f.st.Node(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	const path = "/ingot/v1/nodes/n/rule_check"
	const rule = `{"actions":[{"op":"set-attribute","args":{"path":"extra/class","value":"of {inventory[cpu][count]}"}},{"op":"log","args":{"msg":"seen {node.name}"}},
		{"op":"api-call","args":{"url":"http://hooks.example/{node.name}"}}],"conditions":[{"op":"gt","args":{"values":["{inventory[cpu][count]}",2]}}]%s}`
	f.want(404, "POST", path, fmt.Sprintf(`{"rule":`+rule+`}`, ""))
	if err := f.st.SetInventory(t.Context(), n.UUID,
		[]byte(`{"inventory":{"cpu":{"count":4},"interfaces":[]},"all_interfaces":{}}`)); err != nil {
		t.Fatal(err)
	}
	out := f.want(200, "POST", path, fmt.Sprintf(`{"rule":`+rule+`}`, ""))
	if got := fmt.Sprint(out["matched"], out["conditions"], out["changes"], out["calls"], out["notes"],
		out["failure"]); got !=
		"true [true] [map[from:<nil> path:node/extra/class to:of 4]] [http://hooks.example/n] [map[severity:INFO text:seen n]] <nil>" {
		t.Errorf("checked: %s", got)
	}
	stored := f.want(201, "POST", "/v1/inspection_rules", fmt.Sprintf(rule, `,"sensitive":true`))
	out = f.want(200, "POST", path, `{"rule":"`+stored["uuid"].(string)+`"}`)
	if got := fmt.Sprint(out); strings.Contains(got, "of 4") || strings.Contains(got, "seen n") ||
		strings.Contains(got, "hooks.example") || out["matched"] != true {
		t.Errorf("a sensitive rule: %s", got)
	}
	out = f.want(200, "POST", path, `{"rule":{"actions":[{"op":"fail","args":{"msg":"no"}}]}}`)
	if out["failure"] != "inspection rule (not stored): action 1 (fail): no" {
		t.Errorf("a rule that fails: %v", out)
	}
	if n := f.want(200, "GET", "/v1/nodes/n", ""); len(n["extra"].(map[string]any)) != 0 ||
		n["provision_state"] != "manageable" {
		t.Errorf("the node has become %v", n)
	}
	for body, want := range map[string]int{
		`{}`: 400, `{"rule":5}`: 400, `{"rule":"1be26c0b-03f2-4d2e-ae87-c02d7f33c123"}`: 404, `{"rule":{}}`: 400,
		`{"rule":{"actions":[{"op":"frob","args":{}}]}}`: 400, `{"other":1}`: 400} {
		f.want(want, "POST", path, body)
	}
	f.want(404, "POST", "/ingot/v1/nodes/other/rule_check", `{"rule":{"actions":[{"op":"fail","args":{"msg":"no"}}]}}`)
}
