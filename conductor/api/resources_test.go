package api

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// says wants an answer with a status and a text in its error.
func (f *fixture) says(status int, text, method, path, body string) {
	f.t.Helper()
	out := f.want(status, method, path, body)
	if got := fmt.Sprint(out["error_message"]); !strings.Contains(got, text) {
		f.t.Errorf("%s %s %s says %s, want %q", method, path, body, got, text)
	}
}

// asking sends what follows with another version.
func (f *fixture) asking(v rest.Version) *fixture {
	g := *f
	g.version = v
	return &g
}

func (f *fixture) uuids(path, list string) []string {
	f.t.Helper()
	var ids []string
	for _, o := range f.want(200, "GET", path, "")[list].([]any) {
		ids = append(ids, o.(map[string]any)["uuid"].(string))
	}
	return ids
}

// setNode changes the node called name behind the API's back.
func (f *fixture) setNode(name string, change func(*node.Node)) {
	f.t.Helper()
	n, err := f.st.Node(f.t.Context(), name)
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.st.UpdateNode(f.t.Context(), n.UUID,
		func(n *node.Node) error { change(n); return nil }); err != nil {
		f.t.Fatal(err)
	}
}

const (
	nodeA = "1ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"
	nodeB = "2ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"
)

func twoNodes(t *testing.T) *fixture {
	return newFixture(t, Config{},
		node.Node{UUID: nodeA, Name: "a", Provision: node.Manageable, Shard: "s1"},
		node.Node{UUID: nodeB, Name: "b", Provision: node.Manageable})
}

func (f *fixture) make(path, body string) string {
	f.t.Helper()
	return f.want(201, "POST", path, body)["uuid"].(string)
}

func TestChassisOfNodes(t *testing.T) {
	f := twoNodes(t)
	ch := f.make("/v1/chassis", `{"description":"row 4","uuid":"`+
		strings.ToUpper("aef6a2f6-4f76-4e73-9c2f-fbb5eab89770")+`"}`)
	if ch != "aef6a2f6-4f76-4e73-9c2f-fbb5eab89770" {
		t.Errorf("uuid = %s", ch)
	}
	f.says(400, "could not be found", "PATCH", "/v1/nodes/a", `[{"op":"add","path":"/chassis_uuid","value":"`+nodeB+
		`"}]`)
	f.says(400, "Expected UUID for chassis_uuid: x", "PATCH", "/v1/nodes/a",
		`[{"op":"add","path":"/chassis_uuid","value":"x"}]`)
	if out := f.want(200, "PATCH", "/v1/nodes/a", `[{"op":"add","path":"/chassis_uuid","value":"`+ch+
		`"}]`); out["chassis_uuid"] != ch {
		t.Errorf("chassis_uuid = %v", out["chassis_uuid"])
	}
	for _, patch := range []string{`[{"op":"remove","path":"/chassis_uuid"}]`,
		`[{"op":"replace","path":"/chassis_uuid","value":null}]`} {
		if got := f.at(rest.VersionNoChassis-1, "PATCH", "/v1/nodes/a", patch); got != 406 {
			t.Errorf("PATCH %s in the version before it could be done = %d, want 406", patch, got)
		}
	}
	made := f.make("/v1/nodes", `{"driver":"fake-hardware","chassis_uuid":"`+ch+`"}`)
	f.says(400, "could not be found", "POST", "/v1/nodes", `{"driver":"fake-hardware","chassis_uuid":"`+nodeB+`"}`)
	for _, path := range []string{"/v1/chassis/" + ch + "/nodes", "/v1/chassis/" + ch + "/nodes/detail",
		"/v1/nodes?chassis_uuid=" + ch} {
		if got := f.uuids(path, "nodes"); !slices.Equal(got, []string{nodeA, made}) {
			t.Errorf("GET %s = %v", path, got)
		}
	}
	f.says(404, "could not be found", "GET", "/v1/nodes?chassis_uuid="+nodeB, "")
	f.says(400, "contains nodes", "DELETE", "/v1/chassis/"+ch, "")
	f.want(200, "PATCH", "/v1/nodes/a", `[{"op":"remove","path":"/chassis_uuid"}]`)
	f.want(204, "DELETE", "/v1/nodes/"+made, "")
	f.want(204, "DELETE", "/v1/chassis/"+ch, "")
}

func TestResourceLists(t *testing.T) {
	f := twoNodes(t)
	var made []string
	for _, text := range []string{"c", "a", "", "b", "a"} {
		made = append(made, f.make("/v1/chassis", fmt.Sprintf(`{"description":%q}`, text)))
	}
	for query, want := range map[string][]int{
		"":                                    {0, 1, 2, 3, 4},
		"?sort_dir=desc":                      {4, 3, 2, 1, 0},
		"?sort_key=description":               {2, 1, 4, 3, 0},
		"?sort_key=description&sort_dir=desc": {0, 3, 4, 1, 2},
		"?limit=2&marker=" + made[1]:          {2, 3},
		"?sort_key=description&limit=2&marker=" + made[1]: {4, 3},
		"?detail=true&limit=1":                            {0},
	} {
		var ids []string
		for _, i := range want {
			ids = append(ids, made[i])
		}
		if got := f.uuids("/v1/chassis"+query, "chassis"); !slices.Equal(got, ids) {
			t.Errorf("GET %s = %v, want %v", query, got, ids)
		}
	}
	var walked []string
	for path := "/v1/chassis?limit=2&sort_key=description"; path != ""; {
		out := f.want(200, "GET", path, "")
		for _, o := range out["chassis"].([]any) {
			walked = append(walked, o.(map[string]any)["uuid"].(string))
		}
		path, _ = out["next"].(string)
	}
	if len(walked) != 5 || len(slices.Compact(slices.Sorted(slices.Values(walked)))) != 5 {
		t.Errorf("pages hold %v", walked)
	}
	f.says(400, "invalid field for sorting", "GET", "/v1/chassis?sort_key=extra", "")
	f.says(400, "invalid field for sorting", "GET", "/v1/chassis?sort_key=no_such", "")
	f.says(404, "Chassis "+nodeA, "GET", "/v1/chassis?marker="+nodeA, "")
	f.says(400, "Unexpected arguments: node", "GET", "/v1/chassis?node=a", "")
	f.says(400, "not a valid field", "GET", "/v1/chassis?fields=no_such", "")
	f.says(400, "in the same request", "GET", "/v1/chassis?fields=uuid&detail=1", "")
	f.asking(42).want(400, "GET", "/v1/chassis?detail=1", "")
	f.asking(7).want(406, "GET", "/v1/chassis?fields=uuid", "")
	f.asking(1).want(200, "GET", "/v1/chassis/detail", "")
}

// TestPatchesTogether has many clients add to one resource at once: every one that was told so must be in it.
func TestPatchesTogether(t *testing.T) {
	f := twoNodes(t)
	ch := f.make("/v1/chassis", `{}`)
	port := f.make("/v1/ports", `{"node_uuid":"`+nodeA+`","address":"52:54:00:00:00:01"}`)
	var wg sync.WaitGroup
	for i := range 8 {
		for _, path := range []string{"/v1/chassis/" + ch, "/v1/ports/" + port} {
			wg.Go(func() {
				if code, out := f.call("PATCH", path,
					fmt.Sprintf(`[{"op":"add","path":"/extra/k%d","value":%d}]`, i, i)); code != 200 {
					t.Errorf("PATCH %s = %d %v", path, code, out)
				}
			})
		}
	}
	wg.Wait()
	for _, path := range []string{"/v1/chassis/" + ch, "/v1/ports/" + port} {
		if extra := f.want(200, "GET", path, "")["extra"].(map[string]any); len(extra) != 8 {
			t.Errorf("%s has extra %v, want 8 keys", path, extra)
		}
	}
}

func TestPortgroupFieldsByVersion(t *testing.T) {
	f := twoNodes(t)
	g := f.make("/v1/portgroups", `{"node_uuid":"`+nodeA+`","name":"bond0","category":"fast","physical_network":"p1"}`)
	for v, fields := range map[rest.Version]string{23: "-mode -properties -physical_network -category",
		26: "mode properties -physical_network", 102: "physical_network -category",
		103: "category -dynamic_portgroup"} {
		out := f.asking(v).want(200, "GET", "/v1/portgroups/"+g, "")
		for _, name := range strings.Fields(fields) {
			bare, absent := strings.CutPrefix(name, "-")
			if _, has := out[bare]; has == absent {
				t.Errorf("1.%d: %s shown: %v", v, bare, has)
			}
		}
	}
	if out := f.want(200, "GET", "/v1/portgroups/bond0", ""); out["mode"] != "active-backup" ||
		out["standalone_ports_supported"] != true || out["address"] != nil {
		t.Errorf("defaults: %v", out)
	}
	f.asking(22).want(404, "GET", "/v1/portgroups", "")
	f.asking(23).want(404, "GET", "/v1/nodes/a/portgroups", "")
	f.asking(23).want(404, "GET", "/v1/portgroups/bond0/ports", "")
	f.asking(25).want(406, "POST", "/v1/portgroups", `{"node_uuid":"`+nodeA+`","mode":"802.3ad"}`)
	f.asking(25).want(406, "PATCH", "/v1/portgroups/bond0", `[{"op":"add","path":"/properties/a","value":1}]`)
	f.asking(101).want(406, "PATCH", "/v1/portgroups/bond0", `[{"op":"add","path":"/physical_network","value":"x"}]`)
	f.asking(105).want(406, "GET", "/v1/portgroups?shard=s1", "")
	f.asking(98).want(406, "GET", "/v1/portgroups?conductor_groups=g", "")
	f.asking(102).want(406, "GET", "/v1/portgroups?sort_key=category", "")
	for query, found := range map[string]bool{"shard=s1,s2": true, "shard=s2": false, "conductor_groups=x": false,
		"node=b": false, "node=a": true, "address=52:54:00:00:00:09": false} {
		if got := f.uuids("/v1/portgroups?"+query, "portgroups"); (len(got) == 1) != found {
			t.Errorf("?%s = %v", query, got)
		}
	}
}

func TestPortgroupRules(t *testing.T) {
	f := twoNodes(t)
	g := f.make("/v1/portgroups", `{"node_uuid":"`+nodeA+`","name":"bond0"}`)
	path := "/v1/portgroups/" + g
	f.says(400, "invalid name", "POST", "/v1/portgroups", `{"node_uuid":"`+nodeA+`","name":"a b"}`)
	f.says(400, "Cannot change name to invalid name", "PATCH", path, `[{"op":"replace","path":"/name","value":"a b"}]`)
	f.says(400, "mandatory", "PATCH", path, `[{"op":"remove","path":"/mode"}]`)
	f.says(400, "required property", "PATCH", path, `[{"op":"remove","path":"/node_uuid"}]`)
	f.says(400, "Cannot patch /internal_info", "PATCH", path, `[{"op":"add","path":"/internal_info/a","value":1}]`)
	f.says(400, "Unrecognized value 'maybe'", "PATCH", path,
		`[{"op":"add","path":"/standalone_ports_supported","value":"maybe"}]`)

	port := f.make("/v1/ports", `{"node_uuid":"`+nodeA+`","address":"52:54:00:00:00:01","portgroup_uuid":"`+g+`"}`)
	for _, list := range []string{path + "/ports", "/v1/portgroups/bond0/ports/detail", "/v1/ports?portgroup=bond0"} {
		if got := f.uuids(list, "ports"); !slices.Equal(got, []string{port}) {
			t.Errorf("GET %s = %v", list, got)
		}
	}
	if got := f.uuids("/v1/nodes/a/portgroups", "portgroups"); !slices.Equal(got, []string{g}) {
		t.Errorf("groups of a = %v", got)
	}
	if got := f.uuids("/v1/nodes/b/portgroups/detail", "portgroups"); len(got) != 0 {
		t.Errorf("groups of b = %v", got)
	}
	f.says(400, "contains ports", "DELETE", path, "")
	f.says(400, "because there are ports", "PATCH", path, `[{"op":"replace","path":"/node_uuid","value":"`+nodeB+`"}]`)
	f.says(409, "'pxe_enabled' is set to True", "PATCH", path,
		`[{"op":"replace","path":"/standalone_ports_supported","value":false}]`)

	// The ports of a group are in its network, and go with it to another.
	f.want(200, "PATCH", path, `[{"op":"add","path":"/physical_network","value":"p2"}]`)
	if out := f.want(200, "GET", "/v1/ports/"+port, ""); out["physical_network"] != "p2" {
		t.Errorf("the port stayed in %v", out["physical_network"])
	}
	f.says(409, "physical network None cannot become a member", "POST", "/v1/ports",
		`{"node_uuid":"`+nodeA+`","address":"52:54:00:00:00:02","portgroup_uuid":"`+g+`"}`)

	f.setNode("a", func(n *node.Node) { n.Reservation = "c2" })
	f.says(409, "is locked by host c2", "PATCH", path, `[{"op":"add","path":"/extra/a","value":1}]`)
	f.says(409, "is locked by host c2", "DELETE", path, "")
	f.setNode("a", func(n *node.Node) {
		n.Reservation, n.Provision, n.TargetProvision = "", node.Inspecting, node.Manageable
	})
	f.says(409, `while it is in state \"inspecting\"`, "PATCH", path, `[{"op":"add","path":"/extra/a","value":1}]`)
	f.setNode("a", func(n *node.Node) { n.Provision, n.TargetProvision = node.Available, "" })
	f.want(200, "PATCH", path, `[{"op":"add","path":"/extra/a","value":1}]`)
	f.want(204, "DELETE", "/v1/ports/"+port, "")
	f.setNode("b", func(n *node.Node) { n.Provision = node.Active })
	f.says(409, "Current state is 'active'", "PATCH", path, `[{"op":"replace","path":"/node_uuid","value":"`+nodeB+
		`"}]`)
	f.setNode("b", func(n *node.Node) { n.Maintenance = true })
	if out := f.want(200, "PATCH", path, `[{"op":"replace","path":"/node_uuid","value":"`+nodeB+
		`"}]`); out["node_uuid"] != nodeB {
		t.Errorf("node_uuid = %v", out["node_uuid"])
	}
	f.want(204, "DELETE", path, "")
}

func TestPortFieldsByVersion(t *testing.T) {
	f := twoNodes(t)
	id := f.make("/v1/ports",
		`{"node_ident":"a","address":"52:54:00:00:00:01","name":"eth0","description":"Up-link 50%","vendor":"v","category":"c"}`)
	for field, since := range map[string]rest.Version{"name": 88, "description": 97, "vendor": 100, "category": 101} {
		if _, has := f.asking(since-1).want(200, "GET", "/v1/ports/"+id, "")[field]; has {
			t.Errorf("%s is shown before 1.%d", field, since)
		}
		if out := f.asking(since).want(200, "GET", "/v1/ports/"+id, ""); out[field] == nil {
			t.Errorf("%s is not shown in 1.%d", field, since)
		}
		body := fmt.Sprintf(`{"node_uuid":%q,"address":"52:54:00:00:00:02",%q:"x"}`, nodeA, field)
		f.asking(since-1).want(406, "POST", "/v1/ports", body)
		f.asking(since-1).want(406, "PATCH", "/v1/ports/"+id,
			fmt.Sprintf(`[{"op":"add","path":"/%s","value":"x"}]`, field))
		f.asking(since-1).want(406, "GET", "/v1/ports?fields="+field, "")
		f.asking(since-1).want(406, "GET", "/v1/ports?sort_key="+field, "")
		f.asking(since).want(200, "GET", "/v1/ports?sort_key="+field, "")
	}
	f.asking(93).want(406, "POST", "/v1/ports", `{"node_ident":"a","address":"52:54:00:00:00:02"}`)
	f.says(400, "exclude each other", "POST", "/v1/ports", `{"node_ident":"a","node_uuid":"`+nodeA+
		`","address":"52:54:00:00:00:02"}`)
	f.says(400, "Node x could not be found", "POST", "/v1/ports", `{"node_ident":"x","address":"52:54:00:00:00:02"}`)
	f.says(400, "is too long", "POST", "/v1/ports", `{"node_ident":"a","address":"52:54:00:00:00:02","vendor":"`+
		strings.Repeat("x", 33)+`"}`)

	f.want(200, "GET", "/v1/ports/eth0", "")
	f.asking(87).says(400, "Expected UUID for port_uuid: eth0", "GET", "/v1/ports/eth0", "")
	f.says(404, "Port eth1 could not be found", "GET", "/v1/ports/eth1", "")
	f.says(400, "Expected UUID or name for port_ident", "GET", "/v1/ports/52:54:00:00:00:01", "")
	f.says(409, "A port with name eth0 already exists", "POST", "/v1/ports",
		`{"node_ident":"b","address":"52:54:00:00:00:02","name":"eth0"}`)

	f.make("/v1/ports", `{"node_ident":"b","address":"52:54:00:00:00:02"}`)
	f.setNode("b", func(n *node.Node) { n.ConductorGroup = "east" })
	for query, found := range map[string]int{
		"shard=s1": 1, "shard=s1,s2": 1, "shard=none": 0, "description_contains=UP-LINK": 1,
		"description_contains=50%25": 1, "description_contains=5_": 0, "conductor_groups=East": 1,
		"conductor_groups=west": 0, "node=b": 1, "": 2,
	} {
		if got := f.uuids("/v1/ports?"+query, "ports"); len(got) != found {
			t.Errorf("?%s = %v, want %d", query, got, found)
		}
	}
	f.asking(96).want(406, "GET", "/v1/ports?description_contains=x", "")
	f.asking(98).want(406, "GET", "/v1/ports?conductor_groups=x", "")
	f.asking(81).want(406, "GET", "/v1/ports?shard=x", "")
	f.asking(23).want(406, "GET", "/v1/ports?portgroup=x", "")
	f.asking(4).want(406, "GET", "/v1/ports?node=a", "")
	f.says(404, "Portgroup x could not be found", "GET", "/v1/ports?portgroup=x", "")
	f.want(204, "DELETE", "/v1/ports/eth0", "")
}

func TestPortLinks(t *testing.T) {
	f := twoNodes(t)
	id := f.make("/v1/ports", `{"node_uuid":"`+nodeA+`","address":"52:54:00:00:00:01"}`)
	patch := func(link string) string {
		return `[{"op":"add","path":"/local_link_connection","value":` + link + `}]`
	}
	path := "/v1/ports/" + id
	for _, c := range []struct {
		v          rest.Version
		status     int
		link, want string
	}{
		{110, 200, `{"switch_id":"0A:1B:2C:3D:4E:5F","port_id":"e1"}`, "0a:1b:2c:3d:4e:5f"},
		{110, 200, `{"switch_id":"00:00:0A:1B:2C:3D:4E:5F","port_id":"e1","switch_info":"s"}`,
			"00:00:0a:1b:2c:3d:4e:5f"},
		{110, 400, `{"switch_id":"sw1","port_id":"e1"}`,
			"Expected a MAC address or OpenFlow datapath ID but received sw1"},
		{110, 400, `{"switch_id":"0a:1b:2c:3d:4e:5f"}`, "'port_id' is a required property"},
		{110, 200, `{"port_id":"rep0-0","hostname":"h"}`, "rep0-0"},
		{110, 200, `{"network_type":"unmanaged"}`, "unmanaged"},
		{110, 400, `{"network_type":"managed"}`, "is a required property"},
		{110, 400, `{"network_type":"none"}`, "is not one of"},
		{63, 406, `{"network_type":"unmanaged","port_id":"p"}`, "not acceptable"},
		{90, 200, `{"port_id":"p","vtep-logical-switch":"l","vtep-physical-switch":"p"}`, "vtep-logical"},
		{104, 400, `{"port_id":"p","vtep-logical-switch":"l"}`, "is a dependency of"},
		{105, 406, `{"port_id":"p2","vtep-logical-switch":"l","vtep-physical-switch":"p"}`, "not acceptable"},
		{89, 406, `{"port_id":"p2","vtep-logical-switch":"l","vtep-physical-switch":"p"}`, "not acceptable"},
		{110, 400, `{"bogus":1}`, "Additional properties are not allowed"},
	} {
		code, out := f.asking(c.v).call("PATCH", path, patch(c.link))
		if code != c.status || !strings.Contains(fmt.Sprint(out["local_link_connection"], out["error_message"]),
			c.want) {
			t.Errorf("1.%d %s = %d %v %v, want %d %q", c.v, c.link, code, out["local_link_connection"],
				out["error_message"], c.status, c.want)
		}
	}
	// A link that a version does not know is not shown, and does not stand in the way of other changes.
	if link := f.want(200, "GET", path, "")["local_link_connection"].(map[string]any); len(link) != 0 {
		t.Errorf("1.110 shows %v", link)
	}
	f.want(200, "PATCH", path, `[{"op":"add","path":"/extra/a","value":1}]`)
	if link := f.asking(95).want(200, "GET", path, "")["local_link_connection"].(map[string]any); len(link) != 3 {
		t.Errorf("1.95 shows %v", link)
	}
	f.want(201, "POST", "/v1/ports",
		`{"node_uuid":"`+nodeA+
			`","address":"52:54:00:00:00:02","is_smartnic":true,"local_link_connection":{"port_id":"rep0-0","hostname":"h"}}`)
}

func TestPortRulesByState(t *testing.T) {
	f := twoNodes(t)
	id := f.make("/v1/ports", `{"node_uuid":"`+nodeA+`","address":"52:54:00:00:00:01"}`)
	path := "/v1/ports/" + id
	mac := `[{"op":"replace","path":"/address","value":"52:54:00:00:00:0%d"}]`
	pxe := `[{"op":"replace","path":"/pxe_enabled","value":%v}]`
	extra := `[{"op":"add","path":"/extra/a","value":1}]`
	f.want(200, "PATCH", path, fmt.Sprintf(mac, 2))
	f.want(200, "PATCH", path, fmt.Sprintf(pxe, false))
	f.setNode("a", func(n *node.Node) { n.Provision = node.Active })
	f.says(409, "Cannot update hardware address", "PATCH", path, fmt.Sprintf(mac, 3))
	f.says(409, "can not have any connectivity attributes", "PATCH", path, fmt.Sprintf(pxe, true))
	f.want(200, "PATCH", path, extra)
	f.setNode("a", func(n *node.Node) { n.Maintenance = true })
	f.want(200, "PATCH", path, fmt.Sprintf(mac, 3))
	f.want(200, "PATCH", path, fmt.Sprintf(pxe, true))
	f.setNode("a", func(n *node.Node) { n.Maintenance, n.Provision, n.InstanceUUID = false, node.Available, nodeB })
	f.says(409, "has instance UUID assigned", "PATCH", path, fmt.Sprintf(mac, 4))
	f.setNode("a", func(n *node.Node) {
		n.Provision, n.TargetProvision, n.InstanceUUID = node.Inspecting, node.Manageable, ""
	})
	f.says(409, `while it is in state \"inspecting\"`, "PATCH", path, extra)
	f.asking(38).want(200, "PATCH", path, extra)
	f.setNode("a", func(n *node.Node) { n.Provision, n.TargetProvision, n.Reservation = node.Manageable, "", "c2" })
	f.says(409, "is locked by host c2", "PATCH", path, extra)
	f.says(409, "is locked by host c2", "DELETE", path, "")
	f.setNode("a", func(n *node.Node) { n.Reservation = "" })
	f.says(400, "non-empty value is required", "PATCH", path, `[{"op":"add","path":"/physical_network","value":""}]`)
	f.says(400, "'node_uuid' is a required property", "PATCH", path, `[{"op":"remove","path":"/node_uuid"}]`)

	// Members of port groups.
	g := f.make("/v1/portgroups", `{"node_uuid":"`+nodeA+`","standalone_ports_supported":false}`)
	foreign := f.make("/v1/portgroups", `{"node_uuid":"`+nodeB+`"}`)
	join := `[{"op":"add","path":"/portgroup_uuid","value":"%s"}]`
	f.says(400, "belonging to a different node", "PATCH", path, fmt.Sprintf(join, foreign))
	f.says(400, "Expected UUID for portgroup_uuid: x", "PATCH", path, fmt.Sprintf(join, "x"))
	f.says(400, "Portgroup "+nodeB+" could not be found", "PATCH", path, fmt.Sprintf(join, nodeB))
	f.says(409, "doesn't support standalone ports", "PATCH", path, fmt.Sprintf(join, g))
	f.says(409, "doesn't support standalone ports", "POST", "/v1/ports",
		`{"node_uuid":"`+nodeA+`","address":"52:54:00:00:00:07","pxe_enabled":true,"portgroup_uuid":"`+g+`"}`)
	f.want(200, "PATCH", path, `[{"op":"add","path":"/portgroup_uuid","value":"`+g+
		`"},{"op":"replace","path":"/pxe_enabled","value":false}]`)
	f.says(409, "'pxe_enabled' was set to True", "PATCH", path, fmt.Sprintf(pxe, true))
	f.says(400, "physical_network cannot be changed", "PATCH", path,
		`[{"op":"add","path":"/physical_network","value":"p1"}]`)
	f.says(400, "different node", "PATCH", path, `[{"op":"replace","path":"/node_uuid","value":"`+nodeB+`"}]`)
	f.setNode("a", func(n *node.Node) { n.Provision = node.Available })
	f.says(409, "can not have any connectivity attributes", "PATCH", path, `[{"op":"remove","path":"/portgroup_uuid"}]`)
	f.setNode("a", func(n *node.Node) { n.Provision = node.Manageable })
	out := f.want(200, "PATCH", path,
		`[{"op":"remove","path":"/portgroup_uuid"},{"op":"replace","path":"/node_uuid","value":"`+nodeB+`"}]`)
	if out["node_uuid"] != nodeB || out["portgroup_uuid"] != nil {
		t.Errorf("moved port = %v", out)
	}
}

func TestVolumeRules(t *testing.T) {
	f := twoNodes(t)
	target := f.make("/v1/volume/targets",
		`{"node_uuid":"`+nodeA+
			`","volume_type":"iscsi","volume_id":"v1","boot_index":0,"properties":{"target_iqn":"iqn.x","auth_password":"hush"}}`)
	path := "/v1/volume/targets/" + target
	connector := f.make("/v1/volume/connectors", `{"node_uuid":"`+nodeA+`","type":"iqn","connector_id":"iqn.a"}`)
	for _, p := range []string{path, "/v1/volume/targets?detail=true", "/v1/volume/targets?fields=properties",
		"/v1/nodes/a/volume/targets?detail=1"} {
		if got, _ := json.Marshal(f.want(200, "GET", p, "")); strings.Contains(string(got), "hush") ||
			!strings.Contains(string(got), "******") {
			t.Errorf("GET %s shows %s", p, got)
		}
	}
	f.says(400, `\"volume target update\"`, "PATCH", path, `[{"op":"replace","path":"/volume_id","value":"v2"}]`)
	f.setNode("a", func(n *node.Node) { n.Power = "power on" })
	f.says(400, `in state \"power on\"`, "PATCH", "/v1/volume/connectors/"+connector,
		`[{"op":"replace","path":"/connector_id","value":"iqn.b"}]`)
	f.setNode("a", func(n *node.Node) { n.Power = "power off" })
	f.want(200, "PATCH", path,
		`[{"op":"replace","path":"/properties","value":{"target_iqn":"iqn.y","auth_password":"******"}}]`)
	if v, err := f.st.VolumeTargets().Get(t.Context(), target); err != nil || v.Properties["auth_password"] != "hush" ||
		v.Properties["target_iqn"] != "iqn.y" {
		t.Errorf("stored properties = %v, %v", v.Properties, err)
	}
	f.says(400, `in state \"None\"`, "PATCH", path, `[{"op":"replace","path":"/node_uuid","value":"`+nodeB+`"}]`)
	f.says(400, "Node "+target+" could not be found", "PATCH", path, `[{"op":"replace","path":"/node_uuid","value":"`+
		target+`"}]`)
	f.says(400, "is not of type 'integer'", "PATCH", path, `[{"op":"replace","path":"/boot_index","value":"1"}]`)
	f.setNode("b", func(n *node.Node) { n.Power = "power off" })
	f.make("/v1/volume/targets", `{"node_uuid":"`+nodeB+`","volume_type":"iscsi","volume_id":"v9","boot_index":0}`)
	f.says(409, "boot index '0' for the same node already exists", "PATCH", path,
		`[{"op":"replace","path":"/node_uuid","value":"`+nodeB+`"}]`)
	f.want(200, "PATCH", path, `[{"op":"replace","path":"/node_uuid","value":"`+nodeB+
		`"},{"op":"replace","path":"/boot_index","value":1}]`)
	f.make("/v1/volume/targets", `{"node_uuid":"`+nodeA+`","volume_type":"iscsi","volume_id":"v1","boot_index":0}`)
	if got := f.uuids("/v1/volume/targets?node=b&sort_key=boot_index&sort_dir=desc", "targets"); len(got) != 2 ||
		got[0] != target {
		t.Errorf("targets of b = %v", got)
	}
	if got := f.uuids("/v1/nodes/a/volume/connectors", "connectors"); !slices.Equal(got, []string{connector}) {
		t.Errorf("connectors of a = %v", got)
	}
	f.says(400, "Node "+target+" could not be found", "POST", "/v1/volume/connectors",
		`{"node_uuid":"`+target+`","type":"iqn","connector_id":"x"}`)

	// What a machine may be running from stays; what can be forgotten with its node can be forgotten before.
	f.setNode("a", func(n *node.Node) { n.Power, n.Provision = "power on", node.Active })
	f.says(400, `\"volume connector deletion\"`, "DELETE", "/v1/volume/connectors/"+connector, "")
	f.setNode("a", func(n *node.Node) { n.Reservation = "c2" })
	f.says(409, "is locked by host c2", "DELETE", "/v1/volume/connectors/"+connector, "")
	f.setNode("a", func(n *node.Node) { n.Provision, n.Reservation = node.Manageable, "" })
	f.want(204, "DELETE", "/v1/volume/connectors/"+connector, "")
	f.asking(31).want(404, "GET", "/v1/volume", "")
	f.asking(31).want(404, "GET", "/v1/volume/targets", "")
	f.want(204, "DELETE", "/v1/nodes/b", "")
	f.says(404, "Volume target "+target+" could not be found", "GET", path, "")
}

func TestInspectionRules(t *testing.T) {
	f := twoNodes(t)
	const base = "/v1/inspection_rules"
	rule := `{"description":"bmc","priority":%d,"conditions":[{"op":"!is-empty","args":{"value":"{inventory[bmc_address]}"}}],"actions":[{"op":"set-attribute","args":{"path":"driver_info/ipmi_address","value":"{inventory[bmc_address]}"}}]}`
	made := f.want(201, "POST", base, fmt.Sprintf(rule, 5))
	if made["phase"] != "main" || made["sensitive"] != false || made["priority"] != 5.0 {
		t.Errorf("made %v", made)
	}
	id := made["uuid"].(string)
	other := f.make(base, fmt.Sprintf(rule, 100))
	if got := f.uuids(base+"?sort_key=priority&sort_dir=desc", "inspection_rules"); !slices.Equal(got,
		[]string{other, id}) {
		t.Errorf("by priority: %v", got)
	}
	if got := f.want(200, "GET", base, "")["inspection_rules"].([]any)[0].(map[string]any); len(got) != 5 {
		t.Errorf("a list shows %v", got)
	}
	if got := f.uuids(base+"?phase=early", "inspection_rules"); len(got) != 0 {
		t.Errorf("phase early: %v", got)
	}
	for body, text := range map[string]string{
		`{}`:                          "'actions' is a required property",
		`{"actions":[]}`:              "too short",
		`{"actions":[{"op":"fail"}]}`: "'args' is a required property",
		`{"actions":[{"op":"fail","args":{"msg":"x"}}],"priority":-1}`:       "between 0 and 9999",
		`{"actions":[{"op":"fail","args":{"msg":"x"}}],"priority":10000}`:    "between 0 and 9999",
		`{"actions":[{"op":"fail","args":{"msg":"x"}}],"phase":"early"}`:     "invalid phase",
		`{"actions":[{"op":"format-disk","args":{}}]}`:                       "unsupported action operator",
		`{"actions":[{"op":"fail","args":{}}]}`:                              "missing required argument(s): msg",
		`{"actions":[{"op":"fail","args":{"msg":"x"}}],"scope":"x"}`:         "Additional properties",
		`{"actions":[{"op":"fail","args":{"msg":"x"}}],"sensitive":"maybe"}`: "is not of type",
	} {
		f.says(400, text, "POST", base, body)
	}
	path := base + "/" + id
	f.says(400, "unsupported condition operator", "PATCH", path,
		`[{"op":"replace","path":"/conditions/0/op","value":"ne"}]`)
	out := f.want(200, "PATCH", path,
		`[{"op":"add","path":"/conditions/-","value":{"op":"eq","args":[[1,"{item}"]],"loop":[1,2]}},{"op":"replace","path":"/priority","value":7}]`)
	if c := out["conditions"].([]any); len(c) != 2 || c[1].(map[string]any)["multiple"] != "any" ||
		out["priority"] != 7.0 {
		t.Errorf("patched: %v", out)
	}
	f.want(200, "PATCH", path, `[{"op":"add","path":"/sensitive","value":true}]`)
	if out := f.want(200, "GET", path, ""); out["actions"] != nil || out["conditions"] != nil {
		t.Errorf("a sensitive rule shows %v", out)
	}
	f.says(400, "cannot have the sensitive flag unset", "PATCH", path,
		`[{"op":"replace","path":"/sensitive","value":false}]`)
	f.says(400, "cannot have the sensitive flag unset", "PATCH", path, `[{"op":"remove","path":"/sensitive"}]`)
	f.says(404, "Rule "+nodeA+" could not be found", "GET", base+"/"+nodeA, "")
	f.asking(95).want(404, "GET", base, "")
	f.want(204, "DELETE", path, "")
	f.want(404, "DELETE", path, "")
	if out := f.want(200, "GET", "/v1", ""); out["inspection_rules"] == nil {
		t.Errorf("the version document has no inspection_rules: %v", out)
	}
	if out := f.asking(95).want(200, "GET", "/v1", ""); out["inspection_rules"] != nil {
		t.Errorf("1.95 has inspection_rules")
	}
}

// TestSeeingParts holds who sees and changes what belongs to nodes.
func TestSeeingParts(t *testing.T) {
	f := accessFixture(t)
	var (
		owner   = access.Actor{UserName: "olga", ProjectID: "owner", Role: access.Admin}
		lessee  = access.Actor{UserName: "leo", ProjectID: "lessee", Role: access.Member}
		strange = access.Actor{UserName: "eve", ProjectID: "stranger", Role: access.Admin}
	)
	for _, c := range []struct{ path, list, body string }{
		{"/v1/portgroups", "portgroups", `{"node_uuid":"%s"}`},
		{"/v1/volume/connectors", "connectors", `{"node_uuid":"%s","type":"mac","connector_id":"x"}`},
		{"/v1/volume/targets", "targets", `{"node_uuid":"%s","volume_type":"iscsi","volume_id":"v","boot_index":9}`},
	} {
		for _, who := range []access.Actor{owner, lessee} {
			f.as(who)
			if got := f.uuids(c.path, c.list); !slices.Equal(got, []string{ownedPart}) {
				t.Errorf("%s sees %s %v", who.UserName, c.path, got)
			}
			f.want(200, "GET", c.path+"/"+ownedPart, "")
			f.want(404, "GET", c.path+"/"+otherPart, "")
			f.want(404, "DELETE", c.path+"/"+otherPart, "")
			f.want(404, "GET", c.path+"?node=other", "")
			f.want(404, "GET", c.path+"?marker="+otherPart, "")
		}
		f.as(lessee)
		f.want(403, "POST", c.path, fmt.Sprintf(c.body, ownedNode))
		f.as(owner)
		f.want(400, "POST", c.path, fmt.Sprintf(c.body, otherNode))
		made := f.make(c.path, fmt.Sprintf(c.body, ownedNode))
		// Nothing can be given to a node that is not seen.
		f.setNode("owned", func(n *node.Node) { n.Power, n.Provision = "power off", node.Manageable })
		f.want(400, "PATCH", c.path+"/"+made, `[{"op":"replace","path":"/node_uuid","value":"`+otherNode+`"}]`)
		f.want(204, "DELETE", c.path+"/"+made, "")
		f.as(strange)
		if got := f.uuids(c.path, c.list); len(got) != 0 {
			t.Errorf("a stranger sees %s %v", c.path, got)
		}
		f.want(404, "GET", c.path+"/"+ownedPart, "")
		f.want(404, "PATCH", c.path+"/"+ownedPart, `[]`)
	}
	f.want(404, "GET", "/v1/ports?portgroup="+ownedPart, "")
	f.want(404, "GET", "/v1/portgroups/"+ownedPart+"/ports", "")
	f.as(lessee)
	if out := f.want(200, "GET", "/v1/volume/targets/"+ownedPart, ""); !strings.Contains(fmt.Sprint(out["properties"]),
		"redacted") || strings.Contains(fmt.Sprint(out), "10.0.0.2") {
		t.Errorf("a lessee's member sees properties %v", out["properties"])
	}
	f.as(owner)
	if out := f.want(200, "GET", "/v1/volume/targets/"+ownedPart, ""); !strings.Contains(fmt.Sprint(out["properties"]),
		"10.0.0.2") {
		t.Errorf("an owner's admin sees properties %v", out["properties"])
	}
	f.want(403, "GET", "/v1/inspection_rules", "")
	f.want(403, "POST", "/v1/chassis", "{}")
}
