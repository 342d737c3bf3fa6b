//go:build !race

// The programs under test are processes of their own, built without the race detector.

package app_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// TestConductorGroups: nodes of a conductor group belong to its conductor and others to the other one, whichever is
// asked. When the group's only conductor has died, its nodes are left alone, and what is asked of them is done when it
// is back.
func TestConductorGroups(t *testing.T) {
	_, url := pgserver.New(t).Database(t)
	all := map[string]*ingotd.Process{
		"c1": ingotd.Start(t, kit.FreeAddr(t), share(t, url, "c1")...),
		"c2": ingotd.Start(t, kit.FreeAddr(t), share(t, url, "c2", "conductor_group=Rack")...),
	}
	ask := func(at, method, path, body string, want int) string {
		t.Helper()
		status, _, answer := all[at].Ask(method, path, body, nil)
		if status != want {
			t.Fatalf("%s %s at %s: %d %s, want %d", method, path, at, status, answer, want)
		}
		return answer
	}
	conductors := func(at string) (group map[string]string) {
		var got struct {
			Conductors []struct {
				Hostname string
				Group    string `json:"conductor_group"`
				Alive    bool
			}
		}
		if err := json.Unmarshal([]byte(ask(at, "GET", "/v1/conductors", "", 200)), &got); err != nil {
			t.Fatal(err)
		}
		group = map[string]string{}
		for _, c := range got.Conductors {
			if c.Alive {
				group[c.Hostname] = c.Group
			}
		}
		return group
	}
	ingotd.Wait(t, "both know each other",
		func() bool { return len(conductors("c1")) == 2 && len(conductors("c2")) == 2 })
	if got := conductors("c1"); got["c1"] != "" || got["c2"] != "rack" {
		t.Errorf("groups of the conductors: %v", got)
	}
	type shown struct {
		UUID, Conductor string
		State           string `json:"provision_state"`
	}
	node := func(at, name string) (n shown) {
		t.Helper()
		if err := json.Unmarshal([]byte(ask(at, "GET", "/v1/nodes/"+name, "", 200)), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	owners := map[string]string{"plain": "c1", "racked": "c2"}
	for name, owner := range owners {
		group := map[string]string{"c2": "rack"}[owner]
		other := map[string]string{"c1": "c2", "c2": "c1"}[owner]
		ask(other, "POST", "/v1/nodes",
			`{"name": "`+name+`", "driver": "fake-hardware", "conductor_group": "`+group+`"}`, 201)
		for _, step := range [][2]string{{"manage", "manageable"}, {"provide", "available"}} {
			ask(other, "PUT", "/v1/nodes/"+name+"/states/provision", `{"target": "`+step[0]+`"}`, 202)
			ingotd.Wait(t, name+" is "+step[1], func() bool { return node(other, name).State == step[1] })
		}
		if n := node("c1", name); n.Conductor != owner {
			t.Errorf("%s belongs to %s, want %s", name, n.Conductor, owner)
		}
	}

	all["c2"].Kill()
	ingotd.Wait(t, "c2 is taken for dead", func() bool { return len(conductors("c1")) == 1 })
	ask("c1", "PATCH", "/v1/nodes/racked", `[{"op": "add", "path": "/description", "value": "x"}]`, 200)
	status, header, answer := all["c1"].Ask("PUT", "/v1/nodes/racked/states/provision", `{"target": "active"}`, nil)
	if status != http.StatusAccepted && (status != http.StatusServiceUnavailable || header.Get("Retry-After") == "") {
		t.Errorf("a request for a node without a conductor: %d %s", status, answer)
	}
	// As Ironic does, no new node is taken.
	ask("c1", "POST", "/v1/nodes", `{"driver": "fake-hardware", "conductor_group": "rack"}`, 400)
	time.Sleep(5 * time.Second) // in which c1 looks for nodes that have no living owner
	if n := node("c1", "racked"); n.Conductor == "c1" || n.State == "active" {
		t.Errorf("the node of the other group is %+v", n)
	}
	all["c2"].Again()
	if status == http.StatusServiceUnavailable {
		ask("c1", "PUT", "/v1/nodes/racked/states/provision", `{"target": "active"}`, 202)
	}
	ingotd.Wait(t, "the request is carried out", func() bool { return node("c1", "racked").State == "active" })
	if n := node("c1", "racked"); n.Conductor != "c2" {
		t.Errorf("the node belongs to %s", n.Conductor)
	}
	for name, p := range all {
		if did := logged(p, node("c1", "racked").UUID, "power on requested"); did != (name == "c2") {
			t.Errorf("%s has turned the node on: %v", name, did)
		}
	}
	t.Logf("a request without a conductor: %d %s", status, answer)
}
