package inspect

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

func rule(t *testing.T, conditions, actions string) *node.InspectionRule {
	t.Helper()
	r := &node.InspectionRule{Phase: PhaseMain}
	for text, to := range map[string]*[]map[string]any{conditions: &r.Conditions, actions: &r.Actions} {
		if err := json.Unmarshal([]byte(text), to); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return r
}

func TestValidate(t *testing.T) {
	const (
		fail = `[{"op":"fail","args":{"msg":"no"}}]`
		none = `[ ]`
	)
	for _, c := range []struct{ conditions, actions, want string }{
		{none, fail, ""},
		{`[{"op":"eq","args":{"values":["{inventory[cpu][count]}",4]}}]`, fail, ""},
		{`[{"op":"!eq","args":{"values":[1,2],"force_strings":true}}]`, fail, ""},
		{`[{"op":"eq","args":[[1,2]]}]`, fail, ""},
		{`[{"op":"eq","args":[[1,2],true,3]}]`, fail, "takes no more than values, force_strings"},
		{`[{"op":"eq","args":{"values":4}}]`, fail, "values must be a list"},
		{`[{"op":"ne","args":{"values":[1]}}]`, fail, `unsupported condition operator "ne"`},
		{`[{"op":"!!eq","args":{"values":[1]}}]`, fail, `unsupported condition operator "!!eq"`},
		{`[{"op":"matches","args":{"value":"{node.name}","regex":"^web-[0-9]+"}}]`, fail, ""},
		{`[{"op":"matches","args":{"value":"x","regex":"["}}]`, fail, "invalid regular expression"},
		{`[{"op":"contains","args":{"value":"x","regex":"{item[re]}"},"loop":[{"re":"a"}],"multiple":"all"}]`, fail,
			""},
		{`[{"op":"contains","args":{"value":"x","regex":"a"},"loop":["b"],"multiple":"some"}]`, fail,
			"multiple must be one of"},
		{`[{"op":"in-net","args":{"address":"{inventory[bmc_address]}","subnet":"192.0.2.0/24"}}]`, fail, ""},
		{`[{"op":"in-net","args":{"address":"{inventory[bmc_address]}","subnet":"192.0.2.0/240"}}]`, fail,
			"is not a network"},
		{`[{"op":"is-empty","args":{}}]`, fail, "missing required argument(s): value"},
		{`[{"op":"is-empty","args":{"value":1,"val":2}}]`, fail, "unexpected argument(s): val"},
		{`[{"op":"one-of","args":["a",["a","b"]]}]`, fail, ""},
		{none, none, "at least one action"},
		{none, `[{"op":"explode","args":{}}]`, `unsupported action operator "explode"`},
		{none, `[{"op":"!fail","args":{"msg":"x"}}]`, "unsupported action operator"},
		{none, `[{"op":"fail","args":"no"}]`, "args must be either a list or an object"},
		{none, `[{"op":"log","args":{"msg":"x","level":"loud"}}]`, `invalid log level "loud"`},
		{none, `[{"op":"set-attribute","args":{"path":"/","value":1}}]`, "path must be"},
		{none, `[{"op":"set-attribute","args":{"path":"{item[path]}","value":"{item[value]}"},"loop":[{"path":"driver_info/a","value":1}]}]`, ""},
		{none, `[{"op":"set-attribute","args":{"path":"extra/a","value":1},"loop":4}]`, "loop must be"},
		{none, `[{"op":"set-port-attribute","args":["p","extra/a"]}]`, "missing required argument(s): value"},
		{none, `[{"op":"api-call","args":{"url":"http://x","timeout":3}}]`, ""},
	} {
		err := Validate(rule(t, c.conditions, c.actions))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("Validate(%s, %s) = %v, want %q", c.conditions, c.actions, err, c.want)
		}
	}
}

func TestPhaseAndPriority(t *testing.T) {
	good := func() *node.InspectionRule { return rule(t, `[ ]`, `[{"op":"fail","args":{"msg":"no"}}]`) }
	for _, change := range []func(*node.InspectionRule){
		func(r *node.InspectionRule) { r.Phase = "early" },
		func(r *node.InspectionRule) { r.Priority = -1 },
		func(r *node.InspectionRule) { r.Priority = MaxPriority + 1 },
	} {
		r := good()
		change(r)
		if Validate(r) == nil {
			t.Errorf("phase %q, priority %d is valid", r.Phase, r.Priority)
		}
	}
	r := good()
	r.Priority = MaxPriority
	if err := Validate(r); err != nil {
		t.Error(err)
	}
}

// TestEveryOperator has each operator refuse what it does not take and accept what it needs.
func TestEveryOperator(t *testing.T) {
	for _, table := range []map[string]operator{conditions, actions} {
		for name, op := range table {
			if _, err := op.named(map[string]any{"no_such": 1}); err == nil {
				t.Errorf("%s takes an argument that it does not have", name)
			}
			if _, err := op.named([]any{}); err == nil {
				t.Errorf("%s needs no arguments", name)
			}
			args := map[string]any{}
			for _, a := range append(op.required, op.optional...) {
				args[a] = "{item}"
			}
			if err := op.validate(map[string]any{"args": args, "loop": []any{"x"}}); err != nil {
				t.Errorf("%s with all its arguments: %v", name, err)
			}
		}
	}
}

func TestOrder(t *testing.T) {
	rules := []*node.InspectionRule{{Priority: 0, Description: "c"}, {Priority: 9, Description: "a"},
		{Priority: 5, Description: "b"}, {Priority: 0, Description: "d"}}
	Order(rules)
	got := ""
	for _, r := range rules {
		got += r.Description
	}
	if got != "abcd" {
		t.Errorf("order %s, want abcd", got)
	}
}
