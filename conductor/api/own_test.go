package api

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// own is a real engine over the store: what is Ingot's own needs no machines.
func (m instant) own() *engine.Engine {
	return engine.New(m.s, nil, nil, nil, engine.Config{Hostname: "c1"}, nil)
}

func (m instant) Quarantine(ctx context.Context, ident, reason, user string) (*node.Node, error) {
	return m.own().Quarantine(ctx, ident, reason, user)
}

func (m instant) Unquarantine(ctx context.Context, ident, user string) (*node.Node, error) {
	return m.own().Unquarantine(ctx, ident, user)
}

func (m instant) PowerOffDeletedNode(ctx context.Context, nodeUUID string) {
	m.own().PowerOffDeletedNode(ctx, nodeUUID)
}

func (m instant) Here(n *node.Node) error { return m.own().Here(n) }

func (m instant) BreakLock(ctx context.Context, ident, user string) (engine.Lock, error) {
	return m.own().BreakLock(ctx, ident, user)
}
func (m instant) ResetNetwork(ctx context.Context, ident, user string) error {
	return m.own().ResetNetwork(ctx, ident, user)
}

func (m instant) SetControllerPassword(ctx context.Context, ident, password, user string) error {
	return m.own().SetControllerPassword(ctx, ident, password, user)
}

func (m instant) ExportOf(n *node.Node) (*engine.Export, error) { return m.own().ExportOf(n) }

func (m instant) ExportFailed(ctx context.Context, ident, id, why, user string) error {
	return m.own().ExportFailed(ctx, ident, id, why, user)
}

// TestExportFailure: what is not lent can't fail, and a report needs its parts.
func TestExportFailure(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "used", Provision: node.Active})
	const path = "/ingot/v1/nodes/used/export_failure"
	if text := fmt.Sprint(f.want(400, "POST", path, `{"export":"x","reason":"y"}`)); !strings.Contains(text,
		"lends no disk") {
		t.Errorf("the refusal says %s", text)
	}
	f.want(400, "POST", path, `{"export":"x","reason":""}`)
	f.want(400, "POST", path, `{"export":"x"}`)
	f.want(404, "POST", "/ingot/v1/nodes/missing/export_failure", `{"export":"x","reason":"y"}`)
	if out := f.want(200, "GET", "/ingot/v1/exports", ""); len(out["exports"].([]any)) != 0 {
		t.Errorf("exports of nothing: %v", out)
	}
}

// TestNetworkReset: without an agent it can't be done, and the answer says so.
func TestNetworkReset(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "used", Provision: node.Active})
	out := f.want(400, "POST", "/ingot/v1/nodes/used/network_reset", "")
	if text := fmt.Sprint(out); !strings.Contains(text, "no agent that is connected") {
		t.Errorf("the refusal says %s", text)
	}
	f.want(404, "POST", "/ingot/v1/nodes/missing/network_reset", "")
}

// TestRescueByKey: Ironic's clients send a password, and without one are refused; where the node has keys none is
// needed.
func TestRescueByKey(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "bare", Provision: node.Active},
		node.Node{Name: "keyed", Provision: node.Active,
			InstanceInfo: map[string]any{
				"rescue_ssh_keys": []any{
					"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGzRr1dU7qV1m3Xx0vQyqzJ4mFm2n0w7Cw8Yk3q1r9aL"}}})
	f.want(400, "PUT", "/v1/nodes/bare/states/provision", `{"target":"rescue"}`)
	f.want(202, "PUT", "/v1/nodes/keyed/states/provision", `{"target":"rescue"}`)
}

// TestHealthWhileLeaving: a server that clients had better leave says so to those who watch over it, and answers the
// rest.
func TestHealthWhileLeaving(t *testing.T) {
	why := ""
	f := newFixture(t, Config{Leaving: func() string { return why }}, node.Node{Name: "n1"})
	f.want(200, "GET", "/ingot/v1/health", "")
	why = "This server is about to stop."
	if out := f.want(503, "GET", "/ingot/v1/health", ""); !strings.Contains(fmt.Sprint(out), why) {
		t.Errorf("health: %v", out)
	}
	f.want(200, "GET", "/v1/nodes/n1", "")
}

// A node's health is that of the last reading; before the first there is none.
func TestMachineHealth(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n1", Provision: node.Manageable})
	const path = "/ingot/v1/nodes/n1/health"
	if out := f.want(200, "GET", path, ""); out["health"] != nil || out["read_at"] != nil ||
		fmt.Sprint(out["log"]) != "[]" {
		t.Errorf("before the first reading: %v", out)
	}
	id := fmt.Sprint(f.want(200, "GET", "/v1/nodes/n1", "")["uuid"])
	at := time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC)
	if err := f.st.KeepReading(t.Context(), node.Reading{NodeUUID: id, At: at, TriedAt: at.Add(time.Minute),
		Error: "no answer", Health: node.HealthWarning, Sensors: []node.Sensor{{Name: "Fan1", Kind: "fan"}},
		Parts: []node.Part{{Kind: "drive", Name: "Bay 1", Predicted: true}},
		Log:   []node.LogEntry{{ID: "7", Message: "Fan lost"}}}); err != nil {
		t.Fatal(err)
	}
	out := fmt.Sprint(f.want(200, "GET", path, ""))
	for _, part := range []string{"health:Warning", "read_at:2026-11-01T10:00:00+00:00", "error:no answer", "name:Fan1",
		"value:<nil>", "predicted:true", "message:Fan lost", "time:<nil>"} {
		if !strings.Contains(out, part) {
			t.Errorf("it lacks %s: %s", part, out)
		}
	}
	f.want(404, "GET", "/ingot/v1/nodes/none/health", "")
}

func TestQuarantine(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "used", Provision: node.Active},
		node.Node{Name: "free", Provision: node.Available})
	const path = "/ingot/v1/nodes/used/quarantine"
	if out := f.want(200, "GET", path, ""); out["quarantined"] != false || out["reason"] != nil {
		t.Errorf("before: %v", out)
	}
	f.want(400, "POST", path, ``)
	f.want(400, "POST", path, `{"reason":""}`)
	f.want(400, "POST", path, `{"reason":7}`)
	f.want(400, "POST", path, `{"reason":"x","more":1}`)
	f.want(400, "POST", "/ingot/v1/nodes/free/quarantine", `{"reason":"x"}`)
	f.want(404, "POST", "/ingot/v1/nodes/missing/quarantine", `{"reason":"x"}`)
	if out := f.want(200, "POST", path, `{"reason":"disk fails"}`); out["quarantined"] != true ||
		out["reason"] != "disk fails" || out["since"] == nil {
		t.Errorf("POST answers %v", out)
	}
	// The clients of Ironic see an active node that has a fault.
	if out := f.want(200, "GET", "/v1/nodes/used", ""); out["provision_state"] != "active" ||
		out["fault"] != "quarantined" || out["maintenance"] != false {
		t.Errorf("/v1 shows state %v, fault %v, maintenance %v", out["provision_state"], out["fault"],
			out["maintenance"])
	}
	if out := f.want(200, "GET", "/v1/nodes?fault=quarantined", ""); len(out["nodes"].([]any)) != 1 {
		t.Errorf("nodes with the fault: %v", out)
	}
	f.want(204, "DELETE", path, "")
	f.want(204, "DELETE", path, "") // as often as one likes
	if out := f.want(200, "GET", "/v1/nodes/used", ""); out["fault"] != nil {
		t.Errorf("afterwards the fault is %v", out["fault"])
	}
}

func TestLock(t *testing.T) {
	since := time.Now().Add(-time.Minute).UTC()
	f := newFixture(t, Config{}, node.Node{Name: "free"},
		node.Node{Name: "held", Provision: node.Deploying, TargetProvision: node.Active, Reservation: "c9",
			ReservedAt: since, Conductor: "c9", Fence: 7,
			Job: &node.Job{ID: "j", Phase: node.PhaseDeploy,
				Steps: []node.JobStep{{Interface: "deploy", Name: "write_image"}}}})
	if out := f.want(200, "GET", "/ingot/v1/nodes/free/lock", ""); out["locked"] != false || out["holder"] != nil {
		t.Errorf("a free node: %v", out)
	}
	f.want(400, "DELETE", "/ingot/v1/nodes/free/lock", "")
	for _, method := range []string{"GET", "DELETE"} {
		out := f.want(200, method, "/ingot/v1/nodes/held/lock", "")
		age, _ := out["age_seconds"].(float64)
		if purpose, _ := out["purpose"].(string); out["holder"] != "c9" || !strings.Contains(purpose, "deploy") ||
			!strings.Contains(purpose, "write_image") || age < 59 || age > 300 {
			t.Errorf("%s answers %v", method, out)
		}
	}
	n, err := f.st.Node(t.Context(), "held")
	if err != nil || n.Reservation != "" || n.Provision != node.DeployFailed || n.Job != nil || n.Fence != 8 ||
		n.Conductor != "c1" || !strings.Contains(n.LastError, "was broken by") {
		t.Errorf("after breaking: %+v, %v", n, err)
	}
	f.want(400, "DELETE", "/ingot/v1/nodes/held/lock", "")
}

// TestAccess: what a page may offer to whom.
func TestAccess(t *testing.T) {
	f := newFixture(t, Config{})
	out := f.want(200, "GET", "/ingot/v1/access", "")
	everywhere, verbs := fmt.Sprint(out["everywhere"]), fmt.Sprint(out["verbs"])
	if !strings.Contains(everywhere, "node:set_provision_state") || !strings.Contains(everywhere, "ingot:admin") {
		t.Errorf("without authentication: %s", everywhere)
	}
	if !strings.Contains(verbs, "available:[manage active]") || strings.Contains(verbs, "deleting:") {
		t.Errorf("verbs: %s", verbs)
	}
}

// TestRootDisk: the disk that a deployment would take, and why not the others.
func TestRootDisk(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "found", Provision: node.Available,
		Properties: map[string]any{"root_device": map[string]any{"size": ">= 100"}}}, node.Node{Name: "new"})
	f.want(404, "GET", "/ingot/v1/nodes/new/root_disk", "")
	n, err := f.st.Node(t.Context(), "found")
	if err != nil {
		t.Fatal(err)
	}
	doc := `{"inventory":{"disks":[{"name":"/dev/sda","size":64424509440,"model":"small","serial":"1"},` +
		`{"name":"/dev/sdb","size":1000204886016,"model":"large","serial":"2"}]}}`
	if err := f.st.SetInventory(t.Context(), n.UUID, []byte(doc)); err != nil {
		t.Fatal(err)
	}
	out := f.want(200, "GET", "/ingot/v1/nodes/found/root_disk", "")
	chosen, _ := out["chosen"].(map[string]any)
	if out["hints_from"] != "properties" || chosen["name"] != "/dev/sdb" ||
		!strings.Contains(fmt.Sprint(out["disks"]), "size") {
		t.Errorf("root_disk = %v", out)
	}
}

// TestSettings: they are shown as the conductor gives them.
func TestSettings(t *testing.T) {
	f := newFixture(t,
		Config{Settings: func() []rest.Setting { return []rest.Setting{{Key: "api.auth", Value: "none"}} }})
	if out := fmt.Sprint(f.want(200, "GET", "/ingot/v1/settings", "")); !strings.Contains(out, "api.auth") {
		t.Errorf("settings = %s", out)
	}
}

// TestImageFiles: they are shown as the conductor gives them; one that serves none has none.
func TestImageFiles(t *testing.T) {
	f := newFixture(t, Config{ImageFiles: func() (rest.ImageFiles, error) {
		return rest.ImageFiles{Images: []rest.ImageFile{{Name: "debian.raw", Size: 7}}, More: true}, nil
	}})
	if out := fmt.Sprint(f.want(200, "GET", "/ingot/v1/images", "")); !strings.Contains(out, "debian.raw") ||
		!strings.Contains(out, "more:true") {
		t.Errorf("images = %s", out)
	}
	f = newFixture(t, Config{})
	if out := fmt.Sprint(f.want(200, "GET", "/ingot/v1/images", "")); !strings.Contains(out, "images:[]") {
		t.Errorf("images = %s", out)
	}
}
