package findings

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/inspect"
	"github.com/ingot-metal/ingot/conductor/inspect/hook"
	"github.com/ingot-metal/ingot/conductor/node"
)

// shelf is a store with one node, no ports, and rules.
type shelf struct {
	n     *node.Node
	rules []*node.InspectionRule
}

func (s shelf) Node(_ context.Context, ident string) (*node.Node, error) {
	if ident != s.n.UUID && ident != s.n.Name {
		return nil, node.ErrNotFound
	}
	return s.n.Clone(), nil
}

func (shelf) PortByMAC(context.Context, string) (*node.Port, error)   { return nil, node.ErrNotFound }
func (shelf) PortsOf(context.Context, string) ([]*node.Port, error)   { return nil, nil }
func (shelf) Inventory(context.Context, string) ([]byte, error)       { return nil, node.ErrNotFound }
func (s shelf) Rules(context.Context) ([]*node.InspectionRule, error) { return s.rules, nil }

const inventory = `{"inventory":{"boot":{"current_boot_mode":"uefi"},"interfaces":[],"disks":[]},"seen":1}`

func taker(t *testing.T, rules string) (Taker, *node.Node) {
	t.Helper()
	n := &node.Node{UUID: "u", Name: "n1", Extra: map[string]any{}, Properties: map[string]any{},
		Job: &node.Job{PlanID: "p",
			Steps: []node.JobStep{{Interface: "inspect", Name: "inspect", Result: json.RawMessage(inventory)}}}}
	all, err := inspect.ParseRules([]byte(rules))
	if err != nil {
		t.Fatal(err)
	}
	return Taker{Store: shelf{n, all}, Enabled: func(n *node.Node) bool { return n.Driver != "gone" },
		Options: inspect.Options{}, Log: slog.New(slog.DiscardHandler)}, n
}

// TestTake: what rules make of a node is stored with its inventory, or the inventory alone when they fail.
func TestTake(t *testing.T) {
	for _, c := range []struct {
		name, rules, result string
		failure             string
		inventory           bool
	}{
		{"taken", `[{actions: [{op: set-attribute, args: {path: extra/rack, value: "7"}}]}]`, inventory, "", true},
		{"a rule fails",
			`[{actions: [{op: set-attribute, args: {path: extra/rack, value: "7"}}, {op: fail, args: {msg: "no such rack"}}]}]`, inventory, "no such rack", true},
		{"a driver that there is not", `[{actions: [{op: set-attribute, args: {path: driver, value: gone}}]}]`,
			inventory, "not enabled", true},
		{"too large", `[{actions: [{op: set-attribute, args: {path: extra/rack, value: "7"}}, {op: set-attribute, args: {path: extra/all, value: "{plugin_data[seen]}"}}]}]`,
			strings.Replace(inventory, "1}", `"`+strings.Repeat("x", 70<<10)+`"}`, 1),
			"extra is larger than 65536 bytes", true},
		{"unreadable", `[]`, `{"inventory":7}`, "can't be read", false},
	} {
		tk, n := taker(t, c.rules)
		s := n.Job.Current()
		s.Result = json.RawMessage(c.result)
		job := n.Job
		var effects node.SideEffects
		_, failure, err := tk.Take(t.Context(), n, &effects, s)
		if err != nil || (failure == "") != (c.failure == "") || !strings.Contains(failure, c.failure) {
			t.Errorf("%s: failure %q, %v, want something of %q", c.name, failure, err, c.failure)
		}
		if (effects.Inventory != nil) != c.inventory || n.Job != job {
			t.Errorf("%s: inventory %s", c.name, effects.Inventory)
		}
		if taken := n.Extra["rack"] == "7" && n.BootMode == "uefi"; taken != (c.name == "taken") {
			t.Errorf("%s: the node became %+v", c.name, n)
		}
	}
}

// TestAgentsDoNotChooseTheirChecks: that a controller was asked, which lists less, is not read from a result.
func TestAgentsDoNotChooseTheirChecks(t *testing.T) {
	hooks, err := hook.Prepare(hook.Options{Hooks: []string{"validate-interfaces"}, AddPorts: "pxe", KeepPorts: "all"})
	if err != nil {
		t.Fatal(err)
	}
	for _, outOfBand := range []bool{true, false} {
		tk, n := taker(t, `[]`)
		tk.Options.Hooks, tk.OutOfBand = hooks, outOfBand
		s := n.Job.Current()
		s.Result = json.RawMessage(strings.Replace(inventory, "{",
			`{"inspect_interface":"redfish","out_of_band":true,"OutOfBand":true,`, 1))
		_, failure, err := tk.Take(t.Context(), n, &node.SideEffects{}, s)
		if err != nil || strings.Contains(failure, "no valid network interfaces") == outOfBand ||
			(failure == "") != outOfBand {
			t.Errorf("out of band %v: failure %q, %v", outOfBand, failure, err)
		}
	}
}

// TestCallOut: requests are made before, once, and their outcomes are used in the transaction; one that was not made
// fails the inspection.
func TestCallOut(t *testing.T) {
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer srv.Close()
	rule := `[{actions: [{op: api-call, args: {url: "` + srv.URL + `/{node.name}", retries: 3}}]}]`
	tk, n := taker(t, rule)
	ev := node.AgentEvent{
		NodeUUID: "u", StepFinished: &node.StepResult{StepRef: node.StepRef{PlanID: "p", Name: "inspect"},
			Outcome: node.OutcomeDone, Result: json.RawMessage(inventory)}}
	ctx, err := tk.CallOut(t.Context(), ev)
	if err != nil || asked != 0 {
		t.Fatalf("to this host: %d requests, %v", asked, err)
	}
	if _, failure, err := tk.Take(ctx, n, &node.SideEffects{}, n.Job.Current()); err != nil ||
		!strings.Contains(failure, "loopback") {
		t.Errorf("to this host: failure %q, %v", failure, err)
	}
	tk, n = taker(t, rule)
	tk.Guard = dial.New([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")})
	ctx, err = tk.CallOut(t.Context(), ev)
	if err != nil || asked != 1 {
		t.Fatalf("%d requests, %v", asked, err)
	}
	if _, failure, err := tk.Take(ctx, n, &node.SideEffects{}, n.Job.Current()); err != nil || failure != "" ||
		asked != 1 {
		t.Errorf("failure %q, %v, %d requests", failure, err, asked)
	}
	_, n = taker(t, `[]`)
	if _, failure, err := tk.Take(t.Context(), n, &node.SideEffects{}, n.Job.Current()); err != nil ||
		!strings.Contains(failure, "inspect it again") || asked != 1 {
		t.Errorf("without the requests: failure %q, %v, %d requests", failure, err, asked)
	}
	ev.StepFinished.PlanID = "other"
	if _, err := tk.CallOut(t.Context(), ev); err != nil || asked != 1 {
		t.Errorf("for a plan that is over: %v, %d requests", err, asked)
	}
	ev.NodeUUID = "unknown"
	if _, err := tk.CallOut(t.Context(), ev); !errors.Is(err, node.ErrNotFound) {
		t.Errorf("for an unknown node: %v", err)
	}
}
