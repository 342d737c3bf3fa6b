package api

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

func (m instant) ImageURL(source string) string { return source }

func (m instant) DryRun(ctx context.Context, ident string, r engine.Request) (engine.Dry, error) {
	return engine.New(m.s, plain{}, nil, nil, engine.Config{Hostname: "c1", AutomatedClean: true}, nil).DryRun(ctx,
		ident, r)
}

// plain has every node use the agent.
type plain struct{}

func (plain) Open(*node.Node) (power.Driver, error) { return nil, &power.Error{Kind: power.Config} }
func (plain) Interface(_ *node.Node, kind string) string {
	return map[string]string{"deploy": "direct", "inspect": "agent"}[kind]
}

func TestPlan(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "free", Provision: node.Manageable},
		node.Node{Name: "used", Provision: node.Active})
	out := f.want(200, "POST", "/ingot/v1/nodes/free/plan",
		`{"target":"clean","clean_steps":[{"interface":"deploy","step":"erase_devices_metadata","args":{"concurrency":2}}]}`)
	b, _ := json.Marshal(out["steps"])
	want := `[{"abortable":true,"args":{},"in_band":false,"interface":"deploy","priority":1000,"step":"boot_agent"},` +
		`{"abortable":true,"args":{"concurrency":2},"in_band":true,"interface":"deploy","priority":99,"step":"erase_devices_metadata"},` +
		`{"abortable":true,"args":{},"in_band":false,"interface":"deploy","priority":-1,"step":"power_off_agent"}]`
	if string(b) != want || out["phase"] != "clean" || out["refused"] != nil {
		t.Errorf("the plan is %v\nwant %s", out, want)
	}
	if out := f.want(200, "POST", "/ingot/v1/nodes/used/plan", `{"target":"provide"}`); out["refused"] == nil ||
		len(out["steps"].([]any)) != 3 {
		t.Errorf("the plan of what the state forbids is %v", out)
	}
	f.want(400, "POST", "/ingot/v1/nodes/free/plan",
		`{"target":"clean","clean_steps":[{"interface":"deploy","step":"erase_devices_metadata","args":{"concurrency":0}}]}`)
	f.want(400, "POST", "/ingot/v1/nodes/free/plan",
		`{"target":"clean","clean_steps":[{"interface":"deploy","step":"dance"}]}`)
	f.want(400, "POST", "/ingot/v1/nodes/free/plan", `{"target":"dance"}`)
	f.want(404, "POST", "/ingot/v1/nodes/missing/plan", `{"target":"provide"}`)
	if n, err := f.st.Node(t.Context(), "free"); err != nil || n.Provision != node.Manageable || n.Job != nil {
		t.Errorf("the node was changed: %+v, %v", n, err)
	}
}

func TestSteps(t *testing.T) {
	ended := time.Date(2025, 5, 1, 12, 0, 0, 0, time.UTC)
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.Manageable, Past: map[node.Phase]*node.Job{
		node.PhaseInspect: {ID: "i", Phase: node.PhaseInspect, EndedAt: ended.Add(-time.Hour)},
		node.PhaseClean: {ID: "c", Phase: node.PhaseClean, EndedAt: ended, Failure: "It broke.", Steps: []node.JobStep{
			{Interface: "deploy", Name: "burnin_disk", InBand: true, Status: node.StepDone,
				Result: json.RawMessage(`{"rate":7}`)}}},
	}})
	out := f.want(200, "GET", "/ingot/v1/nodes/n/steps", "")
	past := out["past"].([]any)
	if out["job"] != nil || len(past) != 2 {
		t.Fatalf("steps are %v", out)
	}
	clean := past[0].(map[string]any)
	st := clean["steps"].([]any)[0].(map[string]any)
	if clean["phase"] != "clean" || clean["failure"] != "It broke." || clean["ended_at"] == nil ||
		st["status"] != "done" || st["result"].(map[string]any)["rate"] != 7.0 {
		t.Errorf("the newest is %v", clean)
	}
	f.want(404, "GET", "/ingot/v1/nodes/missing/steps", "")
	f.want(400, "GET", "/ingot/v1/nodes/n/steps?full=perhaps", "")
}

// TestLargeResults: a result that is stored apart is in the answer when it is asked for, with its passwords masked; one
// of which only a reference is left is shown as its size.
func TestLargeResults(t *testing.T) {
	omitted := json.RawMessage(`{"omitted_bytes":70000}`)
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.Manageable, Past: map[node.Phase]*node.Job{
		node.PhaseClean: {ID: "c", Phase: node.PhaseClean,
			Steps: []node.JobStep{{Name: "a", Result: omitted, ResultRef: "kept"},
				{Name: "b", Result: omitted, ResultRef: "gone"}}},
	}})
	n, err := f.st.Node(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.st.Change(t.Context(), n.UUID, func(_ *node.Node, effects *node.SideEffects) error {
		effects.Results = []node.LargeResult{
			{Ref: "kept", Doc: json.RawMessage(`{"text":"` + strings.Repeat("x", 70_000) +
				`","ipmi_password":"secret"}`)}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]bool{"": false, "?full=false": false, "?full=true": true} {
		past := f.want(200, "GET", "/ingot/v1/nodes/n/steps"+query, "")["past"].([]any)
		steps := past[0].(map[string]any)["steps"].([]any)
		a, b := steps[0].(map[string]any)["result"].(map[string]any),
			steps[1].(map[string]any)["result"].(map[string]any)
		if text, _ := a["text"].(string); (len(text) == 70_000) != want || want && a["ipmi_password"] != "******" ||
			b["omitted_bytes"] != 70_000.0 {
			t.Errorf("steps%s: %.100v and %v", query, a, b)
		}
	}
}
