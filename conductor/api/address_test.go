package api

import (
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// TestOddAddressesLeadToTheirRoute walks the table of routes: however an address is written, it is the same route that
// is asked, with its access rule, its limits and its values; and an address that is in the table is left as it is.
func TestOddAddressesLeadToTheirRoute(t *testing.T) {
	f, fill := routesFixture(t)
	routes := f.srv.routes
	leads := func(method string, v rest.Version, odd, query, wantQuery string, want *call.Route,
		values map[string]string) {
		t.Helper()
		path, _ := normalise(odd)
		path, q := routes.usual(method, v, path, query)
		if rt, got, err := routes.find(method, path); err != nil || rt.Path != want.Path || rt.Method != want.Method ||
			!maps.Equal(got, values) || q != wantQuery {
			t.Errorf("%s %s?%s leads to %v with %v and query %q, %v, want %s with %v and %q", method, odd, query, rt,
				got, q, err, want.Path, values, wantQuery)
		}
	}
	suffixes, moved, fields := 0, 0, 0
	for _, rt := range f.srv.table() {
		usual := fill(rt.Path)
		path, ours := normalise(usual)
		if ours || len(path) < 2 {
			continue
		}
		_, values, err := routes.find(rt.Method, path)
		if err != nil {
			t.Fatal(rt.Path, err)
		}
		for _, v := range []rest.Version{1, 82, rest.MaxVersion} {
			leads(rt.Method, v, usual, "a=1", "a=1", &rt, values)
		}
		// Names that may end in .json are looked up as they are first; these here are UUIDs but for some.
		last := path[len(path)-1]
		if above, _ := routes.walk(path[:len(path)-1]); last != "x" || !slices.Contains(suffixed, above.name) {
			leads(rt.Method, 82, usual+".json", "", "", &rt, values)
			suffixes++
		}
		if what, ok := strings.CutPrefix(rt.Path, "/v1/nodes/{node}/"); ok &&
			slices.Contains([]string{"GET", "PUT", "DELETE"}, rt.Method) {
			if slices.Contains(aboutNode, what) {
				leads(rt.Method, 82, "/v1/nodes/"+what+"/"+ownedNode, "a=1", "a=1", &rt, values)
				moved++
			}
			if slices.Contains(slices.Concat(aboutNode, aboutAsked), what) {
				leads(rt.Method, 82, "/v1/nodes/"+what, "a=1&node_ident="+ownedNode, "a=1", &rt, values)
			}
		}
		if rt.Fields {
			leads("GET", 82, usual+"/a%2Cb%26c", "x=1", "x=1&fields=a%2Cb%26c", &rt, values)
			fields++
		}
	}
	if suffixes < 120 || moved < 11 || fields < 10 {
		t.Errorf("%d routes with a suffix, %d with the node in another place, %d that show an object", suffixes, moved,
			fields)
	}
}

// TestAddresses has what is answered at odd addresses.
func TestAddresses(t *testing.T) {
	f, _ := routesFixture(t)
	n, p := ownedNode, ownedPort
	f.make("/v1/nodes", `{"driver": "fake-hardware", "name": "x.json"}`)
	for _, tt := range []struct {
		method, version, path string
		status                int
		says                  string
	}{
		{"GET", "1.82", "/v1/nodes/states/console/" + n, 200, `"console_enabled"`},
		{"GET", "1.82", "/v1/nodes/states/" + n, 200, `"target_provision_state"`},
		{"GET", "1.82", "/v1/nodes/states/owned", 200, `"target_provision_state"`},
		{"GET", "1.82", "/v1/nodes/states/missing", 404, "Node missing could not be found."},
		{"GET", "1.82", "/v1/nodes/management/boot_device?node_ident=" + n, 200, `"boot_device"`},
		{"GET", "1.82", "/v1/nodes/management/boot_device/supported?node_ident=" + n, 200, `"supported_boot_devices"`},
		{"GET", "1.82", "/v1/nodes/management/boot_device/" + n, 200, `"boot_device"`},
		{"GET", "1.82", "/v1/nodes/vendor_passthru/methods?node_ident=" + n, 200, `"third_method_sync"`},
		{"PUT", "1.82", "/v1/nodes/maintenance/" + n, 202, ""},
		{"DELETE", "1.82", "/v1/nodes/maintenance/" + n, 202, ""},
		{"GET", "1.82", "/v1/nodes/" + n + "/driver", 200, `{"driver":"fake-hardware","links":[`},
		{"GET", "1.82", "/v1/nodes/" + n + "/driver?fields=name", 400, "Expected string for fields"},
		{"GET", "1.82", "/v1/nodes/" + n + "/foo", 400, "Field foo is not a valid field."},
		{"GET", "1.82", "/v1/nodes/" + n + "/foo/bar", 404, ""},
		{"GET", "1.82", "/v1/nodes/" + n + "/management", 404, ""},
		{"GET", "1.82", "/v1/nodes/" + n + "/network_data", 200, `{"network_data":{},"links":[`},
		{"GET", "1.7", "/v1/nodes/" + n + "/driver", 406, ""},
		{"GET", "1.82", "/v1/ports/" + p + "/address", 200, `"address":"52:54`},
		{"GET", "1.82", "/v1/drivers/fake-hardware/foo", 400, "foo"},
		{"GET", "1.82", "/v1/conductors/c1/alive", 200, `"alive":true`},
		{"PATCH", "1.82", "/v1/nodes/" + n + "/driver", 404, ""},
		{"GET", "1.82", "/v1/nodes.json", 200, `{"nodes":[`},
		{"GET", "1.82", "/v1/ports/" + p + ".json", 200, `"address"`},
		{"GET", "1.82", "/v1/nodes/" + n + "/states.json", 200, `"target_provision_state"`},
		{"GET", "1.82", "/v1/drivers/fake-hardware.json", 200, `"hosts"`},
		{"PUT", "1.82", "/v1/nodes/" + n + "/maintenance.json", 202, ""},
		{"GET", "1.82", "/v1/nodes/detail.json", 200, `"driver_info"`},
		{"GET", "1.82", "/v1/nodes.json.json", 404, ""},
		{"GET", "1.82", "/v1/nodes/x.json", 200, `"name":"x.json"`},
		{"GET", "1.82", "/v1/nodes/owned.json", 200, `"name":"owned"`},
		{"GET", "1.91", "/v1/nodes.json", 404, ""},
		{"GET", "1.91", "/v1/nodes/x.json", 200, `"name":"x.json"`},
		{"GET", "1.91", "/v1/nodes/owned.json", 404, ""},
		{"HEAD", "1.82", "/", 200, ""},
		{"HEAD", "1.82", "/v1", 405, ""},
		{"DELETE", "1.82", "/v1", 405, "faultstring"},
		{"GET", "1.9999", "/v1", 406, "faultstring"},
		{"GET", "1.9999", "/v1/nodes", 406, `code\":406`},
		// Traits are not there before 1.37, in three ways.
		{"GET", "1.36", "/v1/nodes/" + n + "/traits", 406, ""},
		{"PUT", "1.36", "/v1/nodes/" + n + "/traits", 405, ""},
		{"PUT", "1.36", "/v1/nodes/" + n + "/traits/CUSTOM_A", 405, ""},
		{"DELETE", "1.36", "/v1/nodes/" + n + "/traits", 404, "Resource could not be found."},
		{"DELETE", "1.36", "/v1/nodes/" + n + "/traits/CUSTOM_A", 404, "Resource could not be found."},
		// Where ".json" is not at the end it is a part of a name.
		{"GET", "1.82", "/v1/nodes/owned.json/states", 404, "Node owned.json could not be found."},
		{"DELETE", "1.82", "/v1/nodes/owned.json/traits", 404, "Node owned.json could not be found."},
		{"GET", "1.82", "/v1/ports?node=owned.json", 404, "Node owned.json could not be found."},
		{"GET", "1.82", "/v1/nodes/x.json/states", 200, `"target_provision_state"`},
		// A word of the table is a name where the word leads nowhere.
		{"DELETE", "1.82", "/v1/nodes/detail", 404, "Node detail could not be found."},
		{"PUT", "1.82", "/v1/nodes/detail/maintenance", 404, "Node detail could not be found."},
		{"GET", "1.82", "/v1/nodes/detail/ports/detail", 404, "Node detail could not be found."},
		{"GET", "1.82", "/v1/chassis/detail/nodes", 400, "Expected UUID for chassis_uuid: detail"},
		{"DELETE", "1.82", "/v1/portgroups/detail", 404, "Portgroup detail could not be found."},
		{"DELETE", "1.82", "/v1/ports/detail", 400, "detail"},
		{"POST", "1.82", "/v1/nodes/detail", 405, ""},
		{"GET", "1.82", "/v1/nodes/detail", 200, `"nodes":[`},
		// What no name can be is refused by the routing, before what is too new, or by the handler.
		{"GET", "1.1", "/v1/nodes/a%20b?fields=driver", 400, `code\":400`},
		{"GET", "1.9", "/v1/nodes/a%20b/volume/connectors", 400, `code\":400`},
		{"GET", "1.82", "/v1/nodes/a%20b/allocation?bogus=1", 400, `code\":400`},
		{"PUT", "1.82", "/v1/nodes/a%20b/states/power", 400, "faultstring"},
		{"DELETE", "1.82", "/v1/nodes/a%20b/maintenance", 400, "faultstring"},
		{"GET", "1.82", "/v1/nodes/a%20b/validate", 400, "faultstring"},
		{"DELETE", "1.82", "/v1/portgroups/a%20b", 400, `code\":400`},
		{"DELETE", "1.22", "/v1/portgroups/a%20b", 404, `code\":404`},
		{"GET", "1.82", "/v1/ports/a%20b", 400, "faultstring"},
		// Arguments are checked for what they can be before the object is looked for, and fields after it.
		{"GET", "1.82", "/v1/nodes/missing/ports?address=x", 400, "Expected valid MAC address for address: x"},
		{"GET", "1.82", "/v1/nodes/missing/portgroups?limit=x", 400, "Expected an integer for limit: x"},
		{"GET", "1.82", "/v1/portgroups/missing/ports?detail=x", 400, "Invalid detail"},
		{"GET", "1.82", "/v1/nodes/missing/ports?bogus=x", 400, "Unexpected arguments: bogus"},
		{"GET", "1.51", "/v1/nodes?retired=2", 400, "Invalid retired"},
		{"GET", "1.51", "/v1/nodes?retired=1", 406, ""},
		{"GET", "1.82", "/v1/allocations/missing?fields=bogus", 404, "Allocation missing could not be found."},
		{"GET", "1.82", "/v1/ports/" + n + "?fields=bogus", 404, ""},
		{"GET", "1.82", "/v1/nodes/owned/allocation?fields=bogus", 404, ""},
		{"GET", "1.7", "/v1/chassis/" + n + "?fields=bogus", 406, ""},
		{"GET", "1.82", "/v1/chassis/" + n + "?fields=bogus", 404, ""},
		// What is too new says so in the shape of its controller, or of the routing.
		{"GET", "1.22", "/v1/portgroups", 404, "faultstring"},
		{"GET", "1.22", "/v1/portgroups/" + p, 404, `code\":404`},
		{"DELETE", "1.22", "/v1/portgroups/" + p, 404, `code\":404`},
		{"GET", "1.22", "/v1/portgroups/" + p + "/ports", 404, `code\":404`},
		{"GET", "1.23", "/v1/nodes/" + n + "/portgroups", 404, `code\":404`},
		{"GET", "1.31", "/v1/volume", 404, "faultstring"},
		{"POST", "1.31", "/v1/volume/connectors", 404, `code\":404`},
		{"DELETE", "1.31", "/v1/volume/targets/" + p, 404, `code\":404`},
		{"GET", "1.31", "/v1/nodes/" + n + "/volume/targets", 404, `code\":404`},
		{"GET", "1.39", "/v1/nodes/" + n + "/bios", 404, `code\":404`},
		{"POST", "1.27", "/v1/nodes/" + n + "/vifs", 404, `code\":404`},
		{"DELETE", "1.51", "/v1/nodes/" + n + "/allocation", 404, `code\":404`},
		{"GET", "1.77", "/v1/nodes/" + n + "/history", 404, `code\":404`},
		{"GET", "1.80", "/v1/nodes/" + n + "/inventory", 404, `code\":404`},
		{"GET", "1.54", "/v1/deploy_templates", 404, "The API version does not allow deploy templates"},
		{"POST", "1.54", "/v1/deploy_templates", 405, "The API version does not allow deploy templates"},
		{"DELETE", "1.51", "/v1/allocations/" + p, 405, "The API version does not allow allocations"},
	} {
		r := httptest.NewRequest(tt.method, tt.path, nil)
		r.Header.Set(rest.VersionHeader, tt.version)
		w := httptest.NewRecorder()
		f.srv.ServeHTTP(w, r)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.says) {
			t.Errorf("%s %s (%s) = %d %.400s, want %d %s", tt.method, tt.path, tt.version, w.Code, w.Body, tt.status,
				tt.says)
		}
	}
}

// TestPatchOfNothing: what is first, that there is no such resource or that it has no such attribute, goes by the kind
// of resource.
func TestPatchOfNothing(t *testing.T) {
	f, _ := routesFixture(t)
	id := "5eedffff-0000-4000-8000-000000000000"
	for _, tt := range []struct {
		path   string
		status int
	}{
		{"/v1/allocations/missing", 404},
		{"/v1/portgroups/missing", 404},
		{"/v1/volume/connectors/" + id, 404},
		{"/v1/volume/targets/" + id, 404},
		{"/v1/volume/targets/missing", 400},
		{"/v1/chassis/" + id, 400},
		{"/v1/deploy_templates/missing", 400},
	} {
		f.want(tt.status, "PATCH", tt.path, `[{"op": "replace", "path": "/created_at", "value": "x"}]`)
		f.want(400, "PATCH", tt.path, `[{"op": "bogus"}]`)
	}
	f.want(404, "PATCH", "/v1/chassis/missing", `[{"op": "replace", "path": "/description", "value": "x"}]`)
	f.want(400, "DELETE", "/v1/chassis/missing", "")
}

// TestInterfaceToItself: in every state an interface may be "changed" to what it is.
func TestInterfaceToItself(t *testing.T) {
	f := accessFixture(t)
	for _, state := range []string{"active", "rescue", "deploy failed"} {
		f.setNode("owned", func(n *node.Node) { n.Provision, n.Interfaces = node.State(state), nil })
		before := f.want(200, "GET", "/v1/nodes/owned", "")
		for name, used := range before {
			if !strings.HasSuffix(name, "_interface") {
				continue
			}
			f.want(200, "PATCH", "/v1/nodes/owned", `[{"op": "replace", "path": "/`+name+`", "value": "`+used.(string)+
				`"}]`)
			f.says(409, "can not have "+name+" updated unless", "PATCH", "/v1/nodes/owned",
				`[{"op": "remove", "path": "/`+name+`"}]`)
		}
	}
}
