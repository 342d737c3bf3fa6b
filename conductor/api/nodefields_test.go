package api

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (f *fixture) names(path string) string {
	f.t.Helper()
	var names []string
	for _, n := range f.want(200, "GET", path, "")["nodes"].([]any) {
		names = append(names, fmt.Sprint(n.(map[string]any)["name"]))
	}
	return strings.Join(names, " ")
}

func TestChildren(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "host"}, node.Node{Name: "dpu"}, node.Node{Name: "nic"},
		node.Node{Name: "theirs", Owner: "p2"})
	uuid := map[string]string{}
	for _, name := range []string{"host", "dpu", "nic", "theirs"} {
		uuid[name] = f.want(200, "GET", "/v1/nodes/"+name, "")["uuid"].(string)
	}
	parent := func(status int, child, parent string) map[string]any {
		t.Helper()
		return f.want(status, "PATCH", "/v1/nodes/"+child, `[{"op":"add","path":"/parent_node","value":"`+parent+`"}]`)
	}
	if out := parent(200, "dpu", "host"); out["parent_node"] != uuid["host"] {
		t.Errorf("parent_node = %v, want the UUID of host", out["parent_node"])
	}
	parent(200, "nic", uuid["dpu"])
	// itself, a circle, another owner
	for child, p := range map[string]string{"host": "host", "dpu": "nic", "nic": "theirs"} {
		if out := parent(400, child, p); !strings.Contains(out["error_message"].(string),
			"Unable to apply the requested parent_node") {
			t.Errorf("%s below %s: %v", child, p, out)
		}
	}
	parent(400, "host", "nic")
	parent(400, "nic", "missing")
	made := f.want(201, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"born","parent_node":"host"}`)
	if made["parent_node"] != uuid["host"] {
		t.Errorf("a node born below host has parent %v", made["parent_node"])
	}
	f.want(400, "POST", "/v1/nodes", `{"driver":"fake-hardware","parent_node":"missing"}`)

	for path, want := range map[string]string{
		"/v1/nodes":                                          "host theirs",
		"/v1/nodes?include_children=true":                    "host dpu nic theirs born",
		"/v1/nodes?include_children=false":                   "host theirs",
		"/v1/nodes/detail?parent_node=host":                  "dpu born",
		"/v1/nodes?parent_node=" + uuid["dpu"]:               "nic",
		"/v1/nodes?parent_node=missing":                      "",
		"/v1/nodes?include_children=1&sort_key=name&limit=9": "born dpu host nic theirs",
	} {
		if got := f.names(path); got != want {
			t.Errorf("GET %s = %s, want %s", path, got, want)
		}
	}
	if out := f.want(409, "DELETE", "/v1/nodes/host", ""); !strings.Contains(out["error_message"].(string),
		"has children") {
		t.Errorf("delete a parent: %v", out)
	}
	f.want(204, "DELETE", "/v1/nodes/nic", "")
	f.want(204, "DELETE", "/v1/nodes/dpu", "")
	if out := f.want(200, "PATCH", "/v1/nodes/born",
		`[{"op":"remove","path":"/parent_node"}]`); out["parent_node"] != nil {
		t.Errorf("parent_node = %v after it was removed", out["parent_node"])
	}
	f.want(204, "DELETE", "/v1/nodes/host", "")

	f.version = 82
	f.want(406, "GET", "/v1/nodes?parent_node=x", "")
	f.want(406, "PATCH", "/v1/nodes/born", `[{"op":"add","path":"/parent_node","value":"theirs"}]`)
}

func TestInstanceName(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n"}, node.Node{Name: "m"})
	for _, c := range []struct {
		patch    string
		name, in any // instance_name, instance_info.display_name
	}{
		{`[{"op":"add","path":"/instance_info/display_name","value":"web1"}]`, "web1", "web1"},
		{`[{"op":"add","path":"/instance_name","value":"web2"}]`, "web2", "web2"},
		{`[{"op":"add","path":"/instance_info/root_gb","value":10}]`, "web2", "web2"},
		{`[{"op":"add","path":"/instance_info/display_name","value":"web3"},{"op":"add","path":"/instance_name","value":"web4"}]`, "web4", "web4"},
		{`[{"op":"replace","path":"/instance_info","value":{"display_name":"web5"}}]`, "web5", "web5"},
		{`[{"op":"replace","path":"/instance_info","value":{}}]`, nil, nil},
		{`[{"op":"add","path":"/instance_name","value":"web6"}]`, "web6", "web6"},
		{`[{"op":"remove","path":"/instance_name"}]`, nil, nil},
	} {
		out := f.want(200, "PATCH", "/v1/nodes/n", c.patch)
		if got := out["instance_info"].(map[string]any)["display_name"]; out["instance_name"] != c.name || got != c.in {
			t.Errorf("after %s: instance_name = %v, display_name = %v, want %v", c.patch, out["instance_name"], got,
				c.name)
		}
	}
	f.want(400, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/instance_name","value":""}]`)
	f.want(400, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/instance_name","value":"`+strings.Repeat("x", 256)+`"}]`)
	f.want(200, "PATCH", "/v1/nodes/m", `[{"op":"add","path":"/instance_name","value":"db"}]`)
	if got := f.names("/v1/nodes?instance_name=db"); got != "m" {
		t.Errorf("nodes of instance db = %s", got)
	}
	f.version = 103
	f.want(406, "GET", "/v1/nodes?instance_name=db", "")
}

// TestFieldsAppearWithTheirVersion walks through all fields of a node, one version before each and at it.
func TestFieldsAppearWithTheirVersion(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n"})
	id := f.want(200, "GET", "/v1/nodes/n", "")["uuid"].(string)
	for _, field := range rest.NodeFields {
		for _, v := range []rest.Version{field.Since - 1, field.Since} {
			if v < rest.MinVersion {
				continue
			}
			f.version = v
			if _, has := f.want(200, "GET", "/v1/nodes/"+id, "")[field.Name]; has != (v >= field.Since) {
				t.Errorf("%s at %s: %v", field.Name, v, has)
			}
			if v < field.Since && v >= rest.VersionSelectFields {
				want := 406
				switch field.Name {
				case "ports", "portgroups", "states", "volume":
					want = 400 // never selected
				}
				f.want(want, "GET", "/v1/nodes?fields="+field.Name, "")
			}
		}
	}
}

// TestSelectedFieldsOfNodes holds what a real Ironic answers to ?fields=.
func TestSelectedFieldsOfNodes(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n"})
	for _, path := range []string{"/v1/nodes", "/v1/nodes/n"} {
		for _, c := range []struct {
			version rest.Version
			fields  string
			want    int
			says    string
		}{
			{82, "created_at", 400, "Field created_at is not a valid field."},
			{82, "uuid,updated_at", 400, "Field updated_at is not a valid field."},
			{82, ",links", 400, "Field links is not a valid field."},
			{82, "ports", 400, "Field ports is not a valid field."},
			{82, "volume", 400, "Field volume is not a valid field."},
			{13, "states", 400, "Field states is not a valid field."},
			{20, "bogus,retired", 406, "Request not acceptable."},
			{20, "created_at,retired", 406, "Request not acceptable."},
			{82, "uuid,,uuid", 200, ""}, {82, "chassis_uuid", 200, ""},
		} {
			f.version = c.version
			out := f.want(c.want, "GET", path+"?fields="+c.fields, "")
			if !strings.Contains(fmt.Sprint(out["error_message"]), c.says) {
				t.Errorf("%s?fields=%s in 1.%d: %v", path, c.fields, c.version, out)
			}
		}
	}
	f.version = 20
	f.want(406, "GET", "/v1/ports?fields=bogus,physical_network", "")
}

// TestMissingMarkerAndNoField has a marker that is not there and a key that lists can't be sorted by.
func TestMissingMarkerAndNoField(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n"})
	const missing = "&marker=5eed0000-0000-4000-8000-0000000000ff"
	f.version = 82
	for path, want := range map[string]int{
		"/v1/nodes?sort_key=bogus": 404, "/v1/nodes?sort_key=links": 404, "/v1/nodes?sort_key=name": 404,
		"/v1/nodes?sort_key=id": 404, "/v1/nodes?sort_key=properties": 400,
		"/v1/conductors?sort_key=bogus": 404, "/v1/conductors?sort_key=hostname": 404,
		"/v1/ports?sort_key=bogus": 404, "/v1/ports?sort_key=extra": 404, "/v1/chassis?sort_key=links": 404,
	} {
		f.want(want, "GET", path+missing, "")
	}
}

// TestNoGroupInOldVersions has the empty conductor group, which old versions take, and null, which they do not.
func TestNoGroupInOldVersions(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n"})
	f.version, f.srv.odd = 1, true // the description has no attributes of later versions
	f.want(201, "POST", "/v1/nodes", `{"driver":"fake-hardware","conductor_group":""}`)
	f.want(406, "POST", "/v1/nodes", `{"driver":"fake-hardware","conductor_group":null}`)
	f.want(406, "POST", "/v1/nodes", `{"driver":"fake-hardware","conductor_group":"x"}`)
	f.want(201, "POST", "/v1/nodes", `{"driver":"fake-hardware","owner":null}`)
}

func TestReasonsNeedTheirFlags(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.Active})
	f.want(400, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/protected_reason","value":"why"}]`)
	f.want(400, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/retired_reason","value":"why"}]`)
	f.want(200, "PATCH", "/v1/nodes/n",
		`[{"op":"add","path":"/retired","value":true},{"op":"add","path":"/retired_reason","value":"old"}]`)
	out := f.want(200, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/retired","value":false}]`)
	if out["retired_reason"] != nil {
		t.Errorf("retired_reason = %v of a node that is not retired", out["retired_reason"])
	}
	for _, flag := range []string{"protected", "retired"} {
		f.want(200, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/`+flag+`","value":true}]`)
		if out := f.want(200, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/`+flag+`","value":false},
			{"op":"add","path":"/`+flag+`_reason","value":"why"}]`); out[flag+"_reason"] != nil {
			t.Errorf("the reason that comes with the end of %s is kept: %v", flag, out[flag+"_reason"])
		}
	}
	f.want(201, "POST", "/v1/nodes", `{"name":"o","driver":"fake-hardware","retired_reason":"old"}`)
	for _, step := range []struct {
		op   string
		want any
	}{{`{"op":"replace","path":"/retired","value":false}`, "old"}, {`{"op":"remove","path":"/retired"}`, nil}} {
		if out := f.want(200, "PATCH", "/v1/nodes/o", "["+step.op+"]"); out["retired_reason"] != step.want {
			t.Errorf("after %s the reason is %v, want %v", step.op, out["retired_reason"], step.want)
		}
	}
	if out := f.want(200, "PATCH", "/v1/nodes/n",
		`[{"op":"add","path":"/disable_power_off","value":"yes"}]`); out["disable_power_off"] != true {
		t.Errorf("disable_power_off = %v", out["disable_power_off"])
	}
}

func TestPatchWhileInspecting(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.Inspecting, TargetProvision: node.Manageable})
	extra := `[{"op":"add","path":"/extra/a","value":1}]`
	f.want(409, "PATCH", "/v1/nodes/n", extra)
	f.version = 38 // waiting had no name of its own
	f.want(200, "PATCH", "/v1/nodes/n", extra)
}

func TestSuffix(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n"}, node.Node{Name: "m.json"})
	f.want(200, "GET", "/v1/nodes/m.json", "")
	f.want(404, "GET", "/v1/nodes/n.json", "")
	f.version = 90
	f.want(200, "GET", "/v1/nodes/n.json", "")
	f.want(200, "GET", "/v1/nodes/m.json", "")
}

// TestOneClaimWins lets many clients put their instance on the same node, and the same instance on many nodes, at once.
func TestOneClaimWins(t *testing.T) {
	var nodes []node.Node
	for i := range 8 {
		nodes = append(nodes, node.Node{Name: fmt.Sprintf("n%d", i), Provision: node.Available})
	}
	f := newFixture(t, Config{}, nodes...)
	claim := func(n, instance string) int {
		r := httptest.NewRequest("PATCH", "/v1/nodes/"+n,
			strings.NewReader(`[{"op":"add","path":"/instance_uuid","value":"`+instance+`"}]`))
		r.Header.Set(rest.VersionHeader, "1.82")
		w := httptest.NewRecorder()
		f.srv.ServeHTTP(w, r)
		return w.Code
	}
	race := func(what string, try func(i int) int) {
		var wg sync.WaitGroup
		codes := make([]int, 8)
		for i := range codes {
			wg.Go(func() { codes[i] = try(i) })
		}
		wg.Wait()
		won := 0
		for _, code := range codes {
			if code == 200 {
				won++
			} else if code != 409 {
				t.Errorf("%s: a claim got %d", what, code)
			}
		}
		if won != 1 {
			t.Errorf("%s: %d claims won: %v", what, won, codes)
		}
	}
	for round := range 10 {
		f.want(200, "PATCH", "/v1/nodes/n0", `[{"op":"remove","path":"/instance_uuid"}]`)
		race("one node", func(i int) int {
			return claim("n0", fmt.Sprintf("00000000-0000-4000-8000-%06d%06d", round, i))
		})
	}
	race("one instance", func(i int) int {
		return claim(fmt.Sprintf("n%d", i), "11111111-1111-4111-8111-111111111111")
	})
}

func TestRequestIDAndPinnedVersion(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n"})
	get := func(version string) map[string][]string {
		r := httptest.NewRequest("GET", "/v1/nodes/n", nil)
		r.Header.Set(rest.VersionHeader, version)
		w := httptest.NewRecorder()
		f.srv.ServeHTTP(w, r)
		return w.Header()
	}
	if h := get("1.107"); len(h["X-Openstack-Request-Id"]) != 1 ||
		h["X-Openstack-Request-Id"][0] != h["Openstack-Request-Id"][0] {
		t.Errorf("headers at 1.107 = %v", h)
	}
	if h := get("1.106"); len(h["X-Openstack-Request-Id"]) != 0 {
		t.Errorf("headers at 1.106 = %v", h)
	}
	f.srv.cfg.MaxVersion = 82
	f.reassemble()
	if h := get("1.83"); h["X-Openstack-Ironic-Api-Maximum-Version"][0] != "1.82" {
		t.Errorf("headers of a server pinned to 1.82 = %v", h)
	}
	f.version = 82
	out := f.want(400, "GET", "/v1/nodes?parent_node=x", "") // newer than all that is offered: not known
	if !strings.Contains(out["error_message"].(string), "Unexpected arguments") {
		t.Errorf("a filter that is not offered: %v", out)
	}
}

// TestNetworkDataOfNodes: what does not have the shape of network_data.json is refused, new and changed; what is stored
// already stands in the way of nothing else.
func TestNetworkDataOfNodes(t *testing.T) {
	old := map[string]any{"links": "from before it was checked"}
	f := newFixture(t, Config{}, node.Node{Name: "n", NetworkData: old})
	const good = `{"links":[{"id":"eth0","type":"phy","ethernet_mac_address":"52:54:00:00:00:01"}],"networks":[{"id":"n","type":"ipv4","link":"eth0","network_id":"n","ip_address":"192.0.2.7","netmask":"255.255.255.0"}],"services":[]}`
	bad := strings.Replace(good, "192.0.2.7", "192.0.2", 1)
	if out := f.want(400, "POST", "/v1/nodes", `{"driver":"fake-hardware","network_data":`+bad+`}`); !strings.Contains(
		fault(out), "networks[0].ip_address: '192.0.2' is not an IPv4 address") {
		t.Errorf("a node with bad network_data: %s", fault(out))
	}
	f.want(201, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"made","network_data":`+good+`}`)
	f.want(201, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"without","network_data":null}`)
	f.want(200, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/extra/a","value":1}]`)
	f.want(400, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/network_data/networks","value":[]}]`)
	f.want(200, "PATCH", "/v1/nodes/n", `[{"op":"replace","path":"/network_data","value":`+good+`}]`)
	f.want(400, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/network_data/networks/-","value":{"id":"m"}}]`)
	f.want(200, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/network_data/links/0/mtu","value":1500}]`)
	f.want(200, "PATCH", "/v1/nodes/n", `[{"op":"remove","path":"/network_data"}]`)
	if out := f.want(200, "GET", "/v1/nodes/n", ""); len(out["network_data"].(map[string]any)) != 0 {
		t.Errorf("network_data after it was removed = %v", out["network_data"])
	}
}
