package api

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// change is the difference that a version made in the answer to one request.
type change struct {
	method, path, body string

	status int    // from the version on
	says   string // part of the error
	field  string // of the answer, and in no answer of the version before; in lists of each member
	want   any    // its value; nil: it is not shown by this request either

	before       int // status in the version before
	beforeSaying string

	after  string // address of what the request changed, in either version,
	stored any    // and the value of field in it then
}

// holdChanges sends each request in version v and in the one before it, to a server of its own.
func holdChanges(t *testing.T, v rest.Version, setup func(*testing.T) *fixture, changes []change) {
	t.Helper()
	for _, c := range changes {
		t.Run(strings.Trim(c.method+" "+c.path+" "+c.body, " "), func(t *testing.T) {
			for version, status := range map[rest.Version]int{v: c.status, v - 1: c.before} {
				f := setup(t)
				f.srv.cfg.MaxVersion = max(f.srv.cfg.MaxVersion, v) // what is built may be promised later
				says, want := c.says, c.want
				if version < v {
					says, want = c.beforeSaying, nil
				}
				out := f.asking(version).want(status, c.method, c.path, c.body)
				if status >= 400 {
					if text, _ := out["error_message"].(string); says == "" || !strings.Contains(text, says) {
						t.Errorf("%s says %q, want %q", version, text, says)
					}
				} else if got := valuesOf(out, c.field); want == nil && len(got) > 0 {
					t.Errorf("%s shows %s = %v", version, c.field, got)
				} else if want != nil && (len(got) == 0 ||
					slices.ContainsFunc(got, func(g any) bool { return !reflect.DeepEqual(g, want) })) {
					t.Errorf("%s: %s = %v, want %v", version, c.field, got, want)
				}
				if c.after != "" {
					if got := f.asking(v).want(200, "GET", c.after, "")[c.field]; got != c.stored {
						t.Errorf("%s: %s is %v in %s afterwards, want %v", version, c.field, got, c.after, c.stored)
					}
				}
			}
		})
	}
}

// valuesOf finds the values that a member has anywhere in an answer.
func valuesOf(v any, name string) (found []any) {
	switch v := v.(type) {
	case map[string]any:
		for key, member := range v {
			if key == name {
				found = append(found, member)
			}
			found = append(found, valuesOf(member, name)...)
		}
	case []any:
		for _, item := range v {
			found = append(found, valuesOf(item, name)...)
		}
	}
	return found
}

// Ports and port groups of TestDynamicPortgroups.
const (
	// may be in dynamic groups; its document is as all were before there was the flag
	freePort  = "3ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"
	keptPort  = "4ef6a2f6-4f76-4e73-9c2f-fbb5eab89770" // may not
	bondGroup = "5ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"
)

func bondedPorts(t *testing.T) *fixture {
	f := twoNodes(t)
	if err := f.st.Portgroups().Create(t.Context(),
		&node.Portgroup{Head: node.Head{UUID: bondGroup, NodeUUID: nodeA}, Mode: "802.3ad"}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []node.Port{
		{UUID: freePort, NodeUUID: nodeA, Address: "52:54:00:00:00:01", PortgroupUUID: bondGroup},
		{UUID: keptPort, NodeUUID: nodeB, Address: "52:54:00:00:00:02", NoDynamicPortgroup: true},
	} {
		if err := f.st.CreatePort(t.Context(), &p); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestDynamicPortgroups is the table of 1.111.
func TestDynamicPortgroups(t *testing.T) {
	const (
		flag  = "available_for_dynamic_portgroup"
		group = "dynamic_portgroup"
		free  = "/v1/ports/" + freePort
		kept  = "/v1/ports/" + keptPort
		bond  = "/v1/portgroups/" + bondGroup
		no    = "Request not acceptable."
		only  = "Cannot patch /dynamic_portgroup. Only the following can be updated: address, extra, mode, name, node_uuid, properties, " +
			"standalone_ports_supported, physical_network, category"
	)
	post := func(value string) string {
		return `{"node_uuid":"` + nodeA + `","address":"52:54:00:00:00:03","` + flag + `":` + value + `}`
	}
	patch := func(op, value string) string {
		if value != "" {
			value = `,"value":` + value
		}
		return `[{"op":"` + op + `","path":"/` + flag + `"` + value + `}]`
	}
	changes := []change{
		{method: "GET", path: free, status: 200, field: flag, want: true, before: 200},
		{method: "GET", path: kept, status: 200, field: flag, want: false, before: 200},
		{method: "GET", path: "/v1/ports", status: 200, field: flag, before: 200},
		{method: "GET", path: "/v1/ports?detail=true&node=a", status: 200, field: flag, want: true, before: 200},
		{method: "GET", path: "/v1/ports/detail?node=b", status: 200, field: flag, want: false, before: 200},
		{method: "GET", path: "/v1/nodes/a/ports", status: 200, field: flag, before: 200},
		{method: "GET", path: "/v1/nodes/a/ports/detail", status: 200, field: flag, want: true, before: 200},
		{method: "GET", path: bond + "/ports", status: 200, field: flag, before: 200},
		{method: "GET", path: bond + "/ports/detail", status: 200, field: flag, want: true, before: 200},
		{method: "GET", path: "/v1/ports?node=a&fields=" + flag, status: 200, field: flag, want: true, before: 406,
			beforeSaying: no},
		{method: "GET", path: free + "?fields=" + flag, status: 200, field: flag, want: true, before: 406,
			beforeSaying: no},
		{method: "GET", path: "/v1/ports?sort_key=" + flag, status: 200, field: flag, before: 406, beforeSaying: no},
		{method: "POST", path: "/v1/ports", body: `{"node_uuid":"` + nodeA + `","address":"52:54:00:00:00:03"}`,
			status: 201, field: flag, want: true, before: 201},
		{method: "POST", path: "/v1/ports", body: post("true"), status: 201, field: flag, want: true, before: 406,
			beforeSaying: no},
		{method: "POST", path: "/v1/ports", body: post("false"), status: 201, field: flag, want: false, before: 406,
			beforeSaying: no},
		// Any version may change what it is not shown.
		{method: "PATCH", path: free, body: patch("add", "false"), status: 200, field: flag, want: false, before: 200,
			after: free, stored: false},
		{method: "PATCH", path: free, body: patch("replace", "false"), status: 200, field: flag, want: false,
			before: 200, after: free, stored: false},
		{method: "PATCH", path: kept, body: patch("replace", "true"), status: 200, field: flag, want: true, before: 200,
			after: kept, stored: true},
		{method: "PATCH", path: kept, body: patch("remove", ""), status: 200, field: flag, want: true, before: 200,
			after: kept, stored: true},
		{method: "PATCH", path: kept, body: `[{"op":"add","path":"/extra/a","value":1}]`, status: 200, field: flag,
			want: false, before: 200, after: kept, stored: false},

		{method: "GET", path: bond, status: 200, field: group, want: false, before: 200},
		{method: "GET", path: "/v1/portgroups", status: 200, field: group, before: 200},
		{method: "GET", path: "/v1/portgroups?detail=true", status: 200, field: group, want: false, before: 200},
		{method: "GET", path: "/v1/portgroups/detail", status: 200, field: group, want: false, before: 200},
		{method: "GET", path: "/v1/nodes/a/portgroups", status: 200, field: group, before: 200},
		{method: "GET", path: "/v1/nodes/a/portgroups/detail", status: 200, field: group, want: false, before: 200},
		{method: "GET", path: "/v1/portgroups?fields=" + group, status: 200, field: group, want: false, before: 406,
			beforeSaying: no},
		{method: "GET", path: bond + "?fields=" + group, status: 200, field: group, want: false, before: 406,
			beforeSaying: no},
		{method: "GET", path: "/v1/portgroups?sort_key=" + group, status: 200, field: group, before: 406,
			beforeSaying: no},
		{method: "POST", path: "/v1/portgroups", body: `{"node_uuid":"` + nodeA + `"}`, status: 201, field: group,
			want: false, before: 201},
	}
	for _, value := range []string{`"yes"`, "1", "null"} {
		changes = append(changes,
			change{method: "POST", path: "/v1/ports", body: post(value), status: 400, says: "Schema error for port",
				before: 400, beforeSaying: "Schema error for port"},
			change{method: "PATCH", path: kept, body: patch("add", value), status: 400, says: "Schema error for patch",
				before: 400, beforeSaying: "Schema error for patch", field: flag, after: kept, stored: false})
	}
	for _, value := range []string{"true", "false", "null"} {
		unknown := "Additional properties are not allowed ('dynamic_portgroup' was unexpected)"
		changes = append(changes,
			change{method: "POST", path: "/v1/portgroups", body: `{"node_uuid":"` + nodeA + `","dynamic_portgroup":` +
				value + `}`, status: 400, says: unknown, before: 400, beforeSaying: unknown},
			change{method: "PATCH", path: bond, body: `[{"op":"add","path":"/dynamic_portgroup","value":` + value +
				`}]`, status: 400, says: only, before: 400, beforeSaying: only,
				field: group, after: bond, stored: false})
	}
	holdChanges(t, rest.VersionDynamicGroups, bondedPorts, changes)

	f := bondedPorts(t)
	for query, want := range map[string][]string{
		"?sort_key=" + flag: {keptPort, freePort}, "?sort_dir=desc&sort_key=" + flag: {freePort, keptPort},
		"?sort_key=" + flag + "&marker=" + keptPort: {freePort},
	} {
		if got := f.uuids("/v1/ports"+query, "ports"); !slices.Equal(got, want) {
			t.Errorf("%s = %v, want %v", query, got, want)
		}
	}
}

// TestDynamicGroupEndsWithItsVIF: a group that another Ironic made for one attachment, and that was imported, is gone
// when the VIF is detached. None is made here.
func TestDynamicGroupEndsWithItsVIF(t *testing.T) {
	f := bondedPorts(t)
	f.setNode("a", func(n *node.Node) { n.Interfaces = map[string]string{"network": "flat"} })
	dynamic := func(is bool, vif string) {
		t.Helper()
		if _, err := f.st.UpdatePortgroup(t.Context(), bondGroup, func(g *node.Portgroup) error {
			g.DynamicPortgroup, g.InternalInfo = is, map[string]any{"tenant_vif_port_id": vif}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	dynamic(false, "v1")
	f.want(204, "DELETE", "/v1/nodes/a/vifs/v1", "")
	if out := f.want(200, "GET", "/v1/ports/"+freePort, ""); out["portgroup_uuid"] != bondGroup {
		t.Errorf("a member left a group that somebody made: %v", out)
	}
	dynamic(true, "v2")
	if out := f.want(200, "GET", "/v1/portgroups/"+bondGroup, ""); out["dynamic_portgroup"] != true {
		t.Errorf("the group = %v", out)
	}
	f.want(204, "DELETE", "/v1/nodes/a/vifs/v2", "")
	f.want(404, "GET", "/v1/portgroups/"+bondGroup, "")
	if out := f.want(200, "GET", "/v1/ports/"+freePort, ""); out["portgroup_uuid"] != nil ||
		out["available_for_dynamic_portgroup"] != true {
		t.Errorf("the member afterwards = %v", out)
	}
	f.want(204, "POST", "/v1/nodes/a/vifs", `{"id":"v3"}`)
	if got := f.uuids("/v1/portgroups", "portgroups"); len(got) > 0 {
		t.Errorf("attaching a VIF made port groups: %v", got)
	}
}

// TestFirmwareIdentity is the table of 1.114.
func TestFirmwareIdentity(t *testing.T) {
	const (
		path = "/v1/nodes/n/firmware"
		need = "are not allowed in this API version. They require at least API version 1.114."
	)
	of := func(c node.FirmwareComponent) func(*testing.T) *fixture {
		return func(t *testing.T) *fixture {
			return newFixture(t, Config{}, node.Node{Name: "n", Firmware: []node.FirmwareComponent{c}})
		}
	}
	var changes []change
	for field, want := range map[string]any{"vendor": "Ingot", "model": "Fake NIC", "serial_number": "A1"} {
		changes = append(changes,
			change{method: "GET", path: path, status: 200, field: field, want: want, before: 200},
			change{method: "GET", path: path + "?detail=true", status: 200, field: field, want: want, before: 200},
			change{method: "GET", path: path + "?fields=" + field, status: 200, field: field, want: want, before: 400,
				beforeSaying: "Fields " + field + " " + need},
			change{method: "GET", path: path + "?fields=component", status: 200, field: field, before: 200})
	}
	for query, names := range map[string]string{
		"vendor,model": "model, vendor", "component,vendor,serial_number,model": "model, serial_number, vendor",
		"vendor,vendor": "vendor",
	} {
		changes = append(changes,
			change{method: "GET", path: path + "?fields=" + query, status: 200, before: 400,
				beforeSaying: "Fields " + names + " " + need})
	}
	changes = append(changes,
		change{method: "GET", path: path + "?fields=maker", status: 400, says: "maker", before: 400,
			beforeSaying: "maker"})
	holdChanges(t, rest.VersionFirmwareNames,
		of(node.FirmwareComponent{Component: "nic:A1", CurrentVersion: "2", Vendor: "Ingot", Model: "Fake NIC",
			SerialNumber: "A1"}), changes)

	// What was stored before has none of it. Times are always there.
	f := of(node.FirmwareComponent{Component: "bios", CurrentVersion: "2"})(t)
	f.srv.cfg.MaxVersion = max(f.srv.cfg.MaxVersion, rest.VersionFirmwareNames)
	for query, want := range map[string]string{
		"":               "component created_at current_version initial_version last_version_flashed model serial_number updated_at vendor",
		"?fields=vendor": "created_at updated_at vendor",
	} {
		list := f.asking(rest.VersionFirmwareNames).want(200, "GET", path+query, "")["firmware"].([]any)
		shown := list[0].(map[string]any)
		var names []string
		for name := range shown {
			names = append(names, name)
		}
		if slices.Sort(names); strings.Join(names, " ") != want || shown["vendor"] != nil || shown["model"] != nil ||
			shown["serial_number"] != nil {
			t.Errorf("%s shows %v, want %s", query, shown, want)
		}
	}
	f.asking(rest.VersionFirmware-1).text(404, "GET", path+"?fields=vendor", "", "")
}
