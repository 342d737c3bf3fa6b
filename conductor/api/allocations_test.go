package api

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/schedule/alloc"
)

// allocating processes allocations before their POST is answered, as it were.
func (f *fixture) allocating() *fixture {
	f.srv.cfg.Allocate = func(uuid string) { alloc.New(f.st, nil).Process(f.t.Context(), uuid) }
	f.reassemble()
	return f
}

func free(name string, change func(*node.Node)) node.Node {
	n := node.Node{Name: name, ResourceClass: "rc", Provision: node.Available, Power: "power off"}
	if change != nil {
		change(&n)
	}
	return n
}

// at sends a request with a version and returns the status.
func (f *fixture) at(v rest.Version, method, path, body string) int {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set(rest.VersionHeader, v.String())
	w := httptest.NewRecorder()
	f.srv.ServeHTTP(w, r)
	return w.Code
}

func fault(out map[string]any) string { return fmt.Sprint(out["error_message"]) }

func TestAllocationVersions(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.Active, ResourceClass: "rc"}).allocating()
	f.want(201, "POST", "/v1/allocations", `{"resource_class":"rc","name":"a"}`)
	for _, c := range []struct {
		v            rest.Version
		method, path string
		body         string
		want         int
	}{
		{51, "GET", "/v1/allocations", "", 404}, {51, "GET", "/v1/allocations/a", "", 404},
		{51, "GET", "/v1/nodes/n/allocation", "", 404}, {51, "POST", "/v1/allocations", `{"resource_class":"rc"}`, 405},
		{51, "DELETE", "/v1/allocations/a", "", 405}, {52, "GET", "/v1/allocations", "", 200},
		{52, "GET", "/v1/allocations/a", "", 200}, {52, "POST", "/v1/allocations", `{"resource_class":"rc"}`, 201},
		{56, "PATCH", "/v1/allocations/a", `[{"op":"add","path":"/extra/x","value":1}]`, 405},
		{57, "PATCH", "/v1/allocations/a", `[{"op":"add","path":"/extra/x","value":1}]`, 200},
		{57, "POST", "/v1/allocations", `{"node":"n"}`, 400}, {58, "POST", "/v1/allocations", `{"node":"n"}`, 201},
		{59, "POST", "/v1/allocations", `{"resource_class":"rc","owner":"p"}`, 406},
		{60, "POST", "/v1/allocations", `{"resource_class":"rc","owner":"p"}`, 201},
		{59, "GET", "/v1/allocations?owner=p", "", 406}, {60, "GET", "/v1/allocations?owner=p", "", 200},
		{59, "GET", "/v1/allocations?fields=owner", "", 406}, {59, "GET", "/v1/allocations?fields=name", "", 200},
		{60, "GET", "/v1/allocations?fields=no_such", "", 400}, {60, "GET", "/v1/allocations?detail=true", "", 400},
		{60, "GET", "/v1/allocations/detail", "", 404}, {60, "GET", "/v1/allocations?sort_key=traits", "", 400},
		{60, "GET", "/v1/allocations?sort_key=name&sort_dir=desc&limit=1", "", 200},
		{60, "GET", "/v1/allocations?node=missing", "", 400}, {60, "GET", "/v1/nodes/missing/allocation", "", 404},
		{52, "DELETE", "/v1/allocations/a", "", 204},
	} {
		if got := f.at(c.v, c.method, c.path, c.body); got != c.want {
			t.Errorf("%s %s %s of version %s = %d, want %d", c.method, c.path, c.body, c.v, got, c.want)
		}
	}
	r := httptest.NewRequest("GET", "/v1/allocations", nil)
	r.Header.Set(rest.VersionHeader, "1.59")
	w := httptest.NewRecorder()
	f.srv.ServeHTTP(w, r)
	if strings.Contains(w.Body.String(), `"owner"`) {
		t.Errorf("version 1.59 shows the owner: %s", w.Body)
	}
}

func TestAllocationRules(t *testing.T) {
	const instance = "0a0a0a0a-1111-4222-8333-444444444444"
	f := newFixture(t, Config{},
		free("small", func(n *node.Node) { n.Properties = map[string]any{"memory_mb": 16384.0} }),
		free("large", func(n *node.Node) { n.Properties = map[string]any{"memory_mb": 131072.0} }),
		node.Node{Name: "idle", Provision: node.Manageable, ResourceClass: "rc"},
		node.Node{Name: "live", Provision: node.Active, ResourceClass: "rc", InstanceUUID: instance},
	).allocating()
	for _, body := range []string{
		`{"resource_class":"rc","extra":{"ingot:properties":"memory_mb=16384"}}`,
		`{"resource_class":"rc","extra":{"ingot:properties":{"memory_mb":null}}}`, `{"resource_class":"rc","uuid":"x"}`,
		`{"resource_class":5}`, `{"resource_class":"` + strings.Repeat("x", 81) + `"}`,
		`{"resource_class":"rc","traits":["x"]}`, `[]`,
	} {
		f.want(400, "POST", "/v1/allocations", body)
	}
	a := f.want(201, "POST", "/v1/allocations",
		`{"resource_class":"rc","extra":{"ingot:properties":{"memory_mb":16384}},"traits":[],"candidate_nodes":["large","small","small"]}`)
	if a["state"] != "allocating" || len(a["candidate_nodes"].([]any)) != 2 {
		t.Errorf("accepted: %v", a)
	}
	id := a["uuid"].(string)
	small, _ := f.st.Node(t.Context(), "small")
	if a := f.want(200, "GET", "/v1/allocations/"+id, ""); a["state"] != "active" || a["node_uuid"] != small.UUID {
		t.Errorf("16 GB were asked for, given was %v", a)
	}
	if out := f.want(201, "POST", "/v1/allocations",
		`{"resource_class":"rc","extra":{"ingot:properties":{"memory_mb":16384}}}`); true {
		got := f.want(200, "GET", "/v1/allocations/"+out["uuid"].(string), "")
		if got["state"] != "error" ||
			!strings.Contains(fmt.Sprint(got["last_error"]), "exactly the requested properties memory_mb = 16384") {
			t.Errorf("a node of 128 GB for 16 GB: %v", got)
		}
	}
	// What the choice went by stays what it was.
	if out := f.want(400, "PATCH", "/v1/allocations/"+id, `[{"op":"remove","path":"/extra"}]`); !strings.Contains(
		fault(out), "can't be changed") {
		t.Error(out)
	}
	f.want(200, "PATCH", "/v1/allocations/"+id,
		`[{"op":"add","path":"/extra/note","value":"x"},{"op":"add","path":"/name","value":"mine"}]`)
	f.want(400, "PATCH", "/v1/allocations/mine", `[{"op":"add","path":"/name","value":"not mine"}]`)
	f.want(400, "PATCH", "/v1/allocations/mine", `[{"op":"add","path":"/owner","value":"p"}]`)

	// Backfilling.
	if out := f.want(409, "POST", "/v1/allocations", `{"node":"idle"}`); !strings.Contains(fault(out),
		`state, but the current state is \"manageable\"`) {
		t.Error(out)
	}
	f.want(409, "POST", "/v1/allocations", `{"node":"live","resource_class":"other"}`)
	f.want(409, "POST", "/v1/allocations", `{"node":"live","uuid":"1b1b1b1b-1111-4222-8333-444444444444"}`)
	if all := f.want(200, "GET", "/v1/allocations?node=live", "")["allocations"].([]any); len(all) != 0 {
		t.Errorf("refused backfills left %v", all)
	}
	if a := f.want(201, "POST", "/v1/allocations", `{"node":"live","name":"old"}`); a["uuid"] != instance ||
		a["state"] != "active" || a["resource_class"] != "rc" {
		t.Errorf("backfilled: %v", a)
	}
	f.want(409, "DELETE", "/v1/allocations/old", "")
	f.want(202, "PUT", "/v1/nodes/live/maintenance", "")
	f.want(204, "DELETE", "/v1/nodes/live/allocation", "")
	f.want(404, "DELETE", "/v1/nodes/live/allocation", "")
	f.want(404, "GET", "/v1/nodes/live/allocation", "")
	if n, _ := f.st.Node(t.Context(), "live"); n.InstanceUUID != "" {
		t.Errorf("the node has instance %q", n.InstanceUUID)
	}

	// A node that is on its way somewhere, or locked, is not taken away.
	change := func(f2 func(*node.Node)) {
		t.Helper()
		if _, err := f.st.UpdateNode(t.Context(), small.UUID,
			func(n *node.Node) error { f2(n); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	change(func(n *node.Node) { n.Provision, n.TargetProvision = node.DeployWait, node.Active })
	if out := f.want(409, "DELETE", "/v1/allocations/mine", ""); !strings.Contains(fault(out),
		"in state wait call-back where updates are not allowed") {
		t.Error(out)
	}
	change(func(n *node.Node) { n.Provision, n.Reservation = node.DeployFailed, "c2" })
	if out := f.want(409, "DELETE", "/v1/allocations/mine", ""); !strings.Contains(fault(out), "is locked by host c2") {
		t.Error(out)
	}
	change(func(n *node.Node) { n.Reservation = "" })
	f.want(204, "DELETE", "/v1/allocations/mine", "")
	f.want(404, "DELETE", "/v1/allocations/mine", "")

	// Who takes an instance off a node ends its allocation.
	b := f.want(201, "POST", "/v1/allocations", `{"resource_class":"rc"}`)
	f.want(200, "GET", "/v1/nodes/large/allocation?fields=state", "")
	change2 := func(st node.State) {
		if _, err := f.st.UpdateNode(t.Context(), mustNode(t, f, "large").UUID,
			func(n *node.Node) error { n.Provision = st; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	change2(node.Active)
	f.want(409, "PATCH", "/v1/nodes/large", `[{"op":"remove","path":"/instance_uuid"}]`)
	change2(node.Available)
	f.want(200, "PATCH", "/v1/nodes/large", `[{"op":"remove","path":"/instance_uuid"}]`)
	f.want(404, "GET", "/v1/allocations/"+b["uuid"].(string), "")
}

func mustNode(t *testing.T, f *fixture, name string) *node.Node {
	t.Helper()
	n, err := f.st.Node(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAllocationsOfProjects: a project allocates nodes that it owns or leases, and sees its own allocations alone.
func TestAllocationsOfProjects(t *testing.T) {
	f := newFixture(t, Config{},
		free("owned", func(n *node.Node) { n.Owner = "p1" }),
		free("leased", func(n *node.Node) { n.Owner, n.Lessee = "p2", "p1" }),
		free("theirs", func(n *node.Node) { n.Owner = "p2" }), free("nobodys", nil)).allocating()
	member := func(project string) access.Actor {
		return access.Actor{UserName: "m", ProjectID: project, Role: access.Member}
	}
	system := access.Actor{UserName: "s", System: true, Role: access.Member}

	f.as(access.Actor{ProjectID: "p1", Role: access.Reader}).want(403, "POST", "/v1/allocations",
		`{"resource_class":"rc"}`)
	f.as(member("p1")).want(403, "POST", "/v1/allocations", `{"resource_class":"rc","owner":"p2"}`)
	if out := f.want(400, "POST", "/v1/allocations",
		`{"resource_class":"rc","candidate_nodes":["theirs"]}`); !strings.Contains(fault(out),
		"Nodes cannot be found: theirs") {
		t.Error(out)
	}
	f.want(400, "POST", "/v1/allocations", `{"node":"theirs"}`)
	got := map[string]bool{}
	var last string
	for i := range 3 {
		out := f.want(201, "POST", "/v1/allocations", fmt.Sprintf(`{"resource_class":"rc","name":"a%d"}`, i))
		if out["owner"] != "p1" {
			t.Errorf("the owner is %v", out["owner"])
		}
		last = out["uuid"].(string)
		a := f.want(200, "GET", "/v1/allocations/"+last, "")
		got[fmt.Sprint(a["node_uuid"])] = true
		if failed := a["state"] == "error"; failed != (i == 2) {
			t.Errorf("allocation %d: %v", i, a)
		}
	}
	if !got[mustNode(t, f, "owned").UUID] || !got[mustNode(t, f, "leased").UUID] {
		t.Errorf("given were %v", got)
	}
	if all := f.want(200, "GET", "/v1/allocations", "")["allocations"].([]any); len(all) != 3 {
		t.Errorf("its owner sees %d allocations", len(all))
	}
	f.as(member("p2"))
	if all := f.want(200, "GET", "/v1/allocations", "")["allocations"].([]any); len(all) != 0 {
		t.Errorf("a stranger sees %v", all)
	}
	f.want(403, "GET", "/v1/allocations?owner=p1", "")
	for method, body := range map[string]string{"GET": "", "PATCH": "[]", "DELETE": ""} {
		f.want(404, method, "/v1/allocations/"+last, body)
	}
	f.want(403, "GET", "/v1/nodes/leased/allocation", "") // p2 owns the node, the allocation is p1's
	f.want(403, "DELETE", "/v1/nodes/leased/allocation", "")
	f.as(access.Actor{ProjectID: "p2", Role: access.Reader})
	f.want(404, "DELETE", "/v1/nodes/theirs/allocation", "") // there is none, whatever the role
	f.want(404, "GET", "/v1/nodes/owned/allocation", "")     // the node is not seen
	f.as(access.Actor{ProjectID: "p1", Role: access.Reader})
	f.want(403, "PATCH", "/v1/allocations/a0", `[{"op":"add","path":"/extra/a","value":1}]`)
	f.want(403, "DELETE", "/v1/allocations/a0", "")
	f.as(system)
	if all := f.want(200, "GET", "/v1/allocations?owner=p1", "")["allocations"].([]any); len(all) != 3 {
		t.Errorf("the system sees %d allocations of p1", len(all))
	}
	if out := f.want(201, "POST", "/v1/allocations",
		`{"resource_class":"rc","owner":"p2","name":"for-p2"}`); out["owner"] != "p2" {
		t.Errorf("made for p2: %v", out)
	}
	f.as(member("p2")).want(200, "GET", "/v1/allocations/for-p2", "")
	f.want(200, "GET", "/v1/nodes/theirs/allocation", "")
	f.want(204, "DELETE", "/v1/allocations/for-p2", "")
}

// TestManyClientsAllocate: clients allocate, patch and delete through the API at the same time, with a runner in the
// background.
func TestManyClientsAllocate(t *testing.T) {
	var nodes []node.Node
	for i := range 30 {
		nodes = append(nodes, free(fmt.Sprint("n", i), nil))
	}
	f := newFixture(t, Config{}, nodes...)
	runner := alloc.New(f.st, nil)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); runner.Run(ctx) }()
	defer func() { stop(); <-done }()
	f.srv.cfg.Allocate = runner.Wake
	f.reassemble()
	var wg sync.WaitGroup
	for client := range 40 {
		wg.Go(func() {
			for round := range 5 {
				name := fmt.Sprintf("c%d-%d", client, round)
				for _, c := range []struct{ method, path, body string }{
					{"POST", "/v1/allocations", `{"resource_class":"rc","name":"` + name + `"}`},
					{"PATCH", "/v1/allocations/" + name, `[{"op":"add","path":"/extra/a","value":1}]`},
					{"GET", "/v1/allocations?state=active", ""},
					{"DELETE", "/v1/allocations/" + name, ""},
				} {
					if c.method == "DELETE" && round == 4 {
						break
					}
					if code := f.at(rest.MaxVersion, c.method, c.path, c.body); code >= 400 {
						t.Errorf("%s %s = %d", c.method, c.path, code)
					}
				}
			}
		})
	}
	wg.Wait()
	for {
		ids, err := f.st.Allocating(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(ids) == 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	of := map[any]string{}
	for _, o := range f.want(200, "GET", "/v1/allocations?state=active", "")["allocations"].([]any) {
		a := o.(map[string]any)
		if other, ok := of[a["node_uuid"]]; ok {
			t.Errorf("node %v was given to %s and %v", a["node_uuid"], other, a["name"])
		}
		of[a["node_uuid"]] = fmt.Sprint(a["name"])
		if a["extra"].(map[string]any)["a"] != 1.0 {
			t.Errorf("the patch of %v is lost: %v", a["name"], a["extra"])
		}
		if n, err := f.st.Node(t.Context(), fmt.Sprint(a["node_uuid"])); err != nil || n.AllocationUUID != a["uuid"] ||
			n.InstanceUUID != a["uuid"] {
			t.Errorf("allocation %v and node %+v: %v", a, n, err)
		}
	}
	if len(of) == 0 {
		t.Error("no allocation is left to look at")
	}
}
