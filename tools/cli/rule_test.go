package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/compat/bench"
)

func TestRules(t *testing.T) {
	c := bench.Start(t, nil)
	u := &user{t: t, url: c.URL}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`
- description: roomy machines get a trait
  priority: 100
  conditions:
    - {op: gt, args: {values: ["{inventory[memory][physical_mb]}", 1024]}}
  actions:
    - {op: add-trait, args: {name: CUSTOM_ROOMY}}
    - {op: set-attribute, args: {path: driver_info/ipmi_password, value: hush}}
- description: few processors are not enough
  actions: [{op: fail, args: {msg: "only {inventory[cpu][count]} processors"}}]
  conditions: [{op: lt, args: {values: ["{inventory[cpu][count]}", 8]}}]
- actions: [{op: log, args: {msg: vault}}]
  conditions: [{op: eq, args: {values: ["{node.name}", other]}}]
  priority: 200
  sensitive: true
`)
	if out := u.ok("rule", "create", file); strings.Count(out, "is made") != 3 {
		t.Errorf("create says %q", out)
	}
	var rules []rest.InspectionRule
	if out := u.ok("-o", "json", "rule", "list"); json.Unmarshal([]byte(out), &rules) != nil || len(rules) != 3 ||
		rules[0].Priority != 200 || rules[2].Priority != 0 {
		t.Fatalf("list: %s", out)
	}
	secret, roomy, few := rules[0].UUID, rules[1].UUID, rules[2].UUID
	if out := u.ok("rule", "list"); !strings.Contains(out, "(sensitive)") ||
		!strings.Contains(out, "add-trait set-attribute") {
		t.Errorf("list says %q", out)
	}
	if out := u.ok("rule", "show", roomy); !strings.Contains(out,
		`gt {"values":["{inventory[memory][physical_mb]}",1024]}`) || !strings.Contains(out, "roomy machines") {
		t.Errorf("show says %q", out)
	}
	if out := u.ok("rule", "show", secret); strings.Contains(out, "vault") || !strings.Contains(out, "not shown") {
		t.Errorf("show of a sensitive rule says %q", out)
	}

	u.ok(words("node create n1 --driver fake-hardware")...)
	u.fails([]string{"rule", "check", roomy, "--node", "n1"}, "ingot node inspect n1")
	n, err := c.Store.Node(t.Context(), "n1")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Store.SetInventory(t.Context(), n.UUID,
		[]byte(`{"inventory":{"memory":{"physical_mb":2048},"cpu":{"count":4}}}`)); err != nil {
		t.Fatal(err)
	}
	out := u.ok("rule", "check", roomy, "--node", "n1")
	if !strings.Contains(out, "node/traits") || !strings.Contains(out, "CUSTOM_ROOMY") ||
		!strings.Contains(out, "node/driver_info/ipmi_password") || strings.Contains(out, "hush") {
		t.Errorf("check says %q", out)
	}
	if out := u.ok("rule", "check", secret, "--node", "n1"); !strings.Contains(out,
		"condition 1 does not hold: nothing is done") {
		t.Errorf("check says %q", out)
	}
	u.fails([]string{"rule", "check", few, "--node", "n1"}, "would fail")
	u.fails([]string{"rule", "check", few}, "--node is missing")
	away := &user{t: t, url: "http://127.0.0.1:1"} // what can be said without the conductor is said without it
	away.fails([]string{"rule", "check", "no-such-rule.yaml", "--node", "n1"}, "no-such-rule.yaml is neither",
		"no such file")
	away.fails([]string{"rule", "check", few}, "--node is missing")
	u.fails([]string{"rule", "check", few, "--node", "nobody"}, "could not be found")
	write(`{actions: [{op: set-capability, args: {name: a, value: b}}]}`)
	if out := u.ok("rule", "check", file, "--node", "n1"); !strings.Contains(out, "node/properties/capabilities") ||
		!strings.Contains(out, "a:b") {
		t.Errorf("check of a file says %q", out)
	}

	u.ok("rule", "set", few, "--priority", "7", "--description", "renamed")
	u.ok("rule", "set", roomy, "--file", file)
	if out := u.ok("rule", "show", roomy); !strings.Contains(out, "set-capability") ||
		strings.Contains(out, "add-trait") || !strings.Contains(out, "roomy machines") {
		t.Errorf("after set: %q", out)
	}
	if out := u.ok("rule", "show", few); !strings.Contains(out, "renamed") || !strings.Contains(out, "7") {
		t.Errorf("after set: %q", out)
	}
	u.fails([]string{"rule", "set", few}, "nothing to change")
	u.fails([]string{"rule", "set", secret, "--sensitive=false"}, "sensitive flag")
	u.ok("rule", "delete", few)
	u.fails([]string{"rule", "show", few}, "could not be found")
	u.fails([]string{"rule", "show"}, "ingot rule list")
	write(`{actions: [{op: frobnicate, args: {}}]}`)
	u.fails([]string{"rule", "create", file}, "rule 1 of", "frobnicate")
	write(`[]`)
	u.fails([]string{"rule", "create", file}, "there are none")
	// The machine as a whole is as it was.
	if out := u.ok(words("node show n1")...); strings.Contains(out, "CUSTOM_ROOMY") || strings.Contains(out, "a:b") {
		t.Errorf("the node has become %q", out)
	}
}
