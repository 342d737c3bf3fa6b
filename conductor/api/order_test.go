package api

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// TestOrderOfChecks sends requests with two faults: the one is told that Ironic finds first.
func TestOrderOfChecks(t *testing.T) {
	const nowhere = "9ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"
	f := newFixture(t, Config{}, node.Node{UUID: ownedNode, Name: "n", Provision: node.Active, Driver: "fake-hardware"})
	for _, c := range []struct {
		what               string
		v                  rest.Version
		method, path, body string
		want               int
	}{
		{"a type, before the version", 50, "PUT", "/v1/nodes/n/states/boot_mode", `{"target":5}`, 400},
		{"the node, before the version", 50, "PUT", "/v1/nodes/none/states/boot_mode", `{"target":"uefi"}`, 404},
		{"the version", 50, "PUT", "/v1/nodes/n/states/boot_mode", `{"target":"uefi"}`, 404},
		{"the node, before the version", 11, "PUT", "/v1/nodes/none/states/raid", `{}`, 404},
		{"the version, when the node is there", 11, "PUT", "/v1/nodes/n/states/raid", `{}`, 406},
		{"a type, before the node", 82, "PUT", "/v1/nodes/none/states/provision",
			`{"target":"clean","clean_steps":"x"}`, 400},
		{"the version of a sort key, before the limit", 82, "GET", "/v1/ports?sort_key=description&limit=0", "", 406},
		{"the limit, before the marker", 82, "GET", "/v1/ports?limit=0&marker=" + nowhere, "", 400},
		{"the marker, before the sort key", 82, "GET", "/v1/ports?sort_key=bogus&marker=" + nowhere, "", 404},
		{"the marker, before whose ports", 82, "GET", "/v1/ports?node=n&portgroup=g&marker=" + nowhere, "", 404},
		{"the sort key, before the node", 82, "GET", "/v1/portgroups?node=none&sort_key=bogus", "", 400},
		{"the direction, before the node", 82, "GET", "/v1/volume/targets?node=none&sort_dir=up", "", 400},
		{"the form of a name, before whose ports", 82, "GET", "/v1/ports?node=a%20b&portgroup=g", "", 400},
		{"the form of a marker, before the version of an argument", 22, "GET", "/v1/ports?portgroup=g&marker=x", "",
			400},
		{"the marker, before the sort key", 82, "GET", "/v1/deploy_templates?sort_key=bogus&marker=" + nowhere, "", 404},
		{"the body, before the version", 22, "POST", "/v1/portgroups", `{"node_uuid":"n","mode":true}`, 400},
		{"the body, before the version", 53, "POST", "/v1/events", `{"events":1}`, 400},
		{"the node, before unknown fields", 82, "GET", "/v1/nodes/none?fields=bogus", "", 404},
		{"the version of a field, before the node", 1, "GET", "/v1/nodes/none?fields=uuid", "", 406},
		{"nothing in a field that the version does not have", 1, "POST", "/v1/nodes",
			`{"driver":"fake-hardware","network_interface":null}`, 201},
		{"something in it", 1, "POST", "/v1/nodes", `{"driver":"fake-hardware","network_interface":"noop"}`, 406},
		{"a member, before the version", 21, "POST", "/v1/heartbeat/n?bogus=1", `{"callback_url":"http://h"}`, 400},
		{"the version", 21, "POST", "/v1/heartbeat/n?callback_url=http://h", ``, 404},
		{"the version", 22, "POST", "/v1/portgroups", `{"node_uuid":"n"}`, 404},
		{"the form of a host's name", 82, "GET", "/v1/conductors/a%20b", "", 400},
		{"a state, before an interface that there is not", 82, "PATCH", "/v1/nodes/n",
			`[{"op":"replace","path":"/boot_interface","value":"none"}]`, 409},
	} {
		f.srv.odd = strings.HasPrefix(c.what, "nothing in a field") // which the description does not have
		if got := f.at(c.v, c.method, c.path, c.body); got != c.want {
			t.Errorf("%s: %s %s in %s = %d, want %d", c.what, c.method, c.path, c.v, got, c.want)
		}
	}
}

// TestWaysToWriteFields: names of fields may be in any case, and a slash of an address may be encoded.
func TestWaysToWriteFields(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{UUID: ownedNode, Name: "n", Driver: "fake-hardware"})
	for _, path := range []string{"/v1/nodes/n?fields=UUID,%20name", "/v1/nodes%2fn?fields=uuid,name",
		"/v1%2Fnodes/n?fields=NAME,uuid,,"} {
		if out := f.want(200, "GET", path, ""); len(out) != 3 || out["uuid"] != ownedNode || out["name"] != "n" {
			t.Errorf("GET %s = %v, want uuid, name and links", path, out)
		}
	}
	w := httptest.NewRecorder()
	f.srv.ServeHTTP(w, httptest.NewRequest("OPTIONS", "/", nil))
	if w.Code != 200 || w.Body.Len() == 0 {
		t.Errorf("OPTIONS / = %d %q, want the body of GET", w.Code, w.Body)
	}
}

// TestReasonsOfNewNodesStay: why a node is retired is known from the start, and until it no longer is.
func TestReasonsOfNewNodesStay(t *testing.T) {
	f := newFixture(t, Config{})
	f.want(201, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"n","retired_reason":"old"}`)
	for _, c := range []struct {
		patch string
		want  any
	}{
		{`[{"op":"add","path":"/extra/a","value":1}]`, "old"},
		{`[{"op":"replace","path":"/retired","value":true}]`, "old"},
		{`[{"op":"replace","path":"/retired","value":false}]`, nil},
	} {
		if out := f.want(200, "PATCH", "/v1/nodes/n", c.patch); out["retired_reason"] != c.want {
			t.Errorf("after %s the reason is %v, want %v", c.patch, out["retired_reason"], c.want)
		}
	}
}
