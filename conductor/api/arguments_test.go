package api

import (
	"fmt"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// routesFixture has one object at least in every list, and fill puts the names of such objects into the path of a
// route.
func routesFixture(t *testing.T) (f *fixture, fill func(path string) string) {
	t.Helper()
	f = accessFixture(t)
	f.setNode("owned", func(n *node.Node) { n.Shard, n.Power = "s1", "power off" })
	values := map[string]string{"node": ownedNode, "port": ownedPort, "portgroup": ownedPart, "connector": ownedPart,
		"target": ownedPart, "driver": "fake-hardware", "conductor": "c1", "trait": "CUSTOM_A", "vif": "v",
		"method": "first_method"}
	values["chassis"] = f.make("/v1/chassis", `{}`)
	f.want(200, "PATCH", "/v1/nodes/owned", `[{"op":"add","path":"/chassis_uuid","value":"`+values["chassis"]+`"}]`)
	if _, err := f.st.UpdatePort(t.Context(), ownedPort,
		func(p *node.Port) error { p.PortgroupUUID = ownedPart; return nil }); err != nil {
		t.Fatal(err)
	}
	values["allocation"] = f.make("/v1/allocations", `{"resource_class":"x"}`)
	values["template"] = f.make("/v1/deploy_templates",
		`{"name":"CUSTOM_T","steps":[{"interface":"deploy","step":"x","args":{},"priority":1}]}`)
	values["runbook"] = f.make("/v1/runbooks",
		`{"name":"CUSTOM_R","steps":[{"interface":"deploy","step":"x","args":{},"order":1}]}`)
	values["rule"] = f.make("/v1/inspection_rules",
		`{"actions":[{"op":"set-attribute","args":{"path":"/extra/a","value":1}}]}`)
	r := &node.Reservation{End: time.Now().Add(time.Hour)}
	if err := f.st.Reserve(t.Context(), r, store.MostReservations{All: 1},
		func(*node.Reservation, []store.Reservable) ([]string, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	values["reservation"] = r.UUID
	name := regexp.MustCompile(`\{(\w+)\}`)
	return f, func(path string) string {
		return name.ReplaceAllStringFunc(path, func(seg string) string {
			if v := values[seg[1:len(seg)-1]]; v != "" {
				return v
			}
			return "x"
		})
	}
}

// send is call with headers.
func (f *fixture) send(method, path, kind, body string) (int, string) {
	f.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set(rest.VersionHeader, f.version.String())
	r.Header.Set("Content-Type", kind)
	w := httptest.NewRecorder()
	f.srv.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

const form = "application/x-www-form-urlencoded"

// TestEveryRouteRefusesUnknownArguments walks the table of routes: a new one refuses what it does not know, too.
func TestEveryRouteRefusesUnknownArguments(t *testing.T) {
	f, fill := routesFixture(t)
	for _, rt := range f.srv.table() {
		f.says(400, "Unexpected arguments: no_such_argument", rt.Method, fill(rt.Path)+"?no_such_argument=1", "")
		if rt.Method == "DELETE" && rt.Takes == nil {
			f.says(400, "Unexpected arguments: no_such_member", rt.Method, fill(rt.Path), `{"no_such_member": 1}`)
		}
	}
	f.says(400, "Unexpected arguments: x, y", "DELETE", "/v1/ports/"+ownedPort+"?y=1&x=2", "")
	f.want(200, "GET", "/v1/ports/"+ownedPort, "") // which is still there
}

// TestEveryPatchWantsABody: no body is no list; a byte order mark before it does no harm.
func TestEveryPatchWantsABody(t *testing.T) {
	f, fill := routesFixture(t)
	n := 0
	for _, rt := range f.srv.table() {
		if rt.Method != "PATCH" {
			continue
		}
		n++
		f.says(400, "Schema error for patch: {} is not of type 'array'", "PATCH", fill(rt.Path), "")
		f.want(200, "PATCH", fill(rt.Path), "\xef\xbb\xbf[]")
	}
	if n < 9 {
		t.Errorf("%d routes take a PATCH", n)
	}
}

// TestFormsAreArguments: the members of a form are arguments like those of the query, and JSON that is said to be a
// form is refused.
func TestFormsAreArguments(t *testing.T) {
	f, fill := routesFixture(t)
	for _, rt := range f.srv.table() {
		if !slices.Contains([]string{"POST", "PUT", "PATCH"}, rt.Method) || rt.Form || rt.Parts {
			continue
		}
		for _, body := range []string{`{"password": "hush"}`, `[{"op": "hush"}]`} {
			if code, text := f.send(rt.Method, fill(rt.Path), form, body); code != 400 ||
				!strings.Contains(text, "Unexpected arguments: "+body[:1]) || strings.Contains(text, "hush") {
				t.Errorf("%s %s with JSON as a form = %d %s", rt.Method, rt.Path, code, text)
			}
		}
		if code, text := f.send(rt.Method, fill(rt.Path), form+"; charset=utf-8", "no_such=1"); code != 400 ||
			!strings.Contains(text, "Unexpected arguments: no_such") {
			t.Errorf("%s %s with a form = %d %s", rt.Method, rt.Path, code, text)
		}
	}
	for _, tt := range []struct {
		path, body string
		status     int
	}{
		{"/v1/nodes/owned/states/power", "target=power+on", 202},
		{"/v1/nodes/owned/maintenance", "reason=form", 202},
		{"/v1/nodes/owned/maintenance?reason=a", "reason=b", 400},
		{"/v1/nodes/owned/maintenance", strings.Repeat("&a=1", maxMembers), 400},
		{"/v1/nodes/owned/maintenance", "reason=%zz", 400},
	} {
		if code, text := f.send("PUT", tt.path, form, tt.body); code != tt.status {
			t.Errorf("PUT %s %.40s = %d %s, want %d", tt.path, tt.body, code, text, tt.status)
		}
	}
	if out := f.want(200, "GET", "/v1/nodes/owned", ""); out["maintenance_reason"] != "form" {
		t.Errorf("maintenance_reason = %v", out["maintenance_reason"])
	}
	if code, text := f.send("PUT", "/v1/nodes/owned/maintenance", "text/plain", `{"reason": "plain"}`); code != 202 {
		t.Errorf("JSON said to be text = %d %s", code, text)
	}
}

// TestMembersInTheQuery: what these calls take in their body they take in the query, each member in either place.
func TestMembersInTheQuery(t *testing.T) {
	f, _ := routesFixture(t)
	queries := map[string]string{
		"states/power": "target=power%20on&timeout=5", "states/console": "enabled=true",
		"states/boot_mode": "target=uefi", "states/secure_boot": "target=false",
		"management/boot_device": "boot_device=pxe&persistent=true", "maintenance": "reason=query",
		"states/provision": "target=manage", "/v1/heartbeat/{node}": "callback_url=http://192.0.2.1:9999&agent_token=x",
	}
	for _, rt := range f.srv.table() {
		if rt.Query != call.Members {
			continue
		}
		part := strings.TrimPrefix(rt.Path, "/v1/nodes/{node}/")
		query := queries[part]
		delete(queries, part)
		if query == "" {
			t.Errorf("no request is known for %s", rt.Path)
			continue
		}
		name, value, _ := strings.Cut(strings.Split(query, "&")[0], "=")
		path := strings.Replace(rt.Path, "{node}", "other", 1)
		f.says(400, "Expected string for "+name, rt.Method, path+"?"+query, fmt.Sprintf(`{%q:%q}`, name, value))
		f.says(400, "Unexpected arguments: no_such", rt.Method, path+"?"+query, `{"no_such":1}`)
		code, out := f.call(rt.Method, path+"?"+query, "")
		if code != 202 && code != 204 && rt.Access != call.Public { // a stock agent is not driven
			t.Errorf("%s %s?%s = %d %v", rt.Method, path, query, code, out)
		}
	}
	if len(queries) > 0 {
		t.Errorf("these take nothing in the query: %v", queries)
	}
	out := f.want(200, "GET", "/v1/nodes/other", "")
	if out["maintenance_reason"] != "query" || out["console_enabled"] != true {
		t.Errorf("maintenance_reason, console_enabled = %v, %v", out["maintenance_reason"], out["console_enabled"])
	}
	// Members in both places together.
	f.says(400, "timeout has to be positive integer", "PUT", "/v1/nodes/other/states/power?timeout=0",
		`{"target":"power on"}`)
	f.want(202, "PUT", "/v1/nodes/other/states/power?timeout=1", `{"target":"power on"}`)
}

// TestEveryListPagesAlike walks all routes that have pages.
func TestEveryListPagesAlike(t *testing.T) {
	f, fill := routesFixture(t)
	n := 0
	for _, rt := range f.srv.table() {
		if rt.Method != "GET" || rt.Query != call.Named || rt.Stream || strings.HasPrefix(rt.Path, "/ingot/") {
			continue
		}
		path := fill(rt.Path)
		if _, out := f.call("GET", path+"?sort_dir=asc", ""); strings.Contains(fmt.Sprint(out["error_message"]),
			"Unexpected arguments") {
			continue // no list, or one without pages
		}
		n++
		f.says(400, "Invalid sort direction: . Acceptable values are 'asc' or 'desc'", "GET", path+"?sort_dir=", "")
		f.says(400, "Invalid sort direction: x.", "GET", path+"?sort_dir=x", "")
		f.says(400, `The sort_key value \"bogus\" is an invalid field for sorting`, "GET", path+"?sort_key=bogus", "")
		f.says(400, "Limit must be positive", "GET", path+"?limit=-1", "")
		f.says(400, "Expected an integer for limit: abc", "GET", path+"?limit=abc", "")
		f.want(200, "GET", path+"?sort_key=", "")
		if strings.HasSuffix(rt.Path, "/history") {
			continue // there Ironic's is malformed
		}
		shown := `fields=[a-z_,]+&`
		switch {
		case strings.HasSuffix(path, "/detail"), path == "/v1/allocations":
			shown = ""
		default:
			asked, kept := ",links,created_at,", "created_at"
			if strings.HasSuffix(path, "/nodes") { // which have not these
				asked, kept = ",uuid,uuid,", "uuid"
			}
			next := fmt.Sprint(f.want(200, "GET", path+"?limit=1&sort_dir=desc&fields="+asked, "")["next"])
			if want := path + "?sort_key=id&sort_dir=desc&fields=" + kept + "&limit=1&marker="; !strings.Contains(next,
				want) {
				t.Errorf("next of %s with fields = %s, want %s", path, next, want)
			}
		}
		next := fmt.Sprint(f.want(200, "GET", path+"?limit=1", "")["next"])
		if !regexp.MustCompile(`^http://[^/]+` + regexp.QuoteMeta(path) + `\?sort_key=id&sort_dir=asc&` + shown +
			`limit=1&marker=(c1|[0-9a-f-]{36})$`).MatchString(next) {
			t.Errorf("next of %s = %s", path, next)
		}
		f.want(200, "GET", strings.TrimPrefix(next, "http://localhost"), "")
	}
	if n < 20 {
		t.Errorf("%d lists have pages", n)
	}
	for path, want := range map[string]string{
		"/v1/nodes?limit=1":                                    "/v1/nodes?sort_key=id&sort_dir=asc&fields=instance_uuid,maintenance,power_state,provision_state,uuid,name&limit=1&marker=",
		"/v1/nodes?limit=1&detail=true":                        "/v1/nodes?sort_key=id&sort_dir=asc&detail=True&limit=1&marker=",
		"/v1/nodes?limit=1&fields=name&sort_key=name":          "/v1/nodes?sort_key=name&sort_dir=asc&fields=name&limit=1&marker=",
		"/v1/nodes?limit=1&fields=name&description_contains=&": "",
		"/v1/nodes?limit=1&fields=name&maintenance=no":         "/v1/nodes?sort_key=id&sort_dir=asc&fields=name&maintenance=no&limit=1&marker=",
		"/v1/conductors?limit=1":                               "/v1/conductors?sort_key=id&sort_dir=asc&fields=hostname,conductor_group,alive&limit=1&marker=c1",
		"/v1/volume/targets?limit=1":                           "/v1/volume/targets?sort_key=id&sort_dir=asc&fields=uuid,node_uuid,volume_type,boot_index,volume_id&limit=1&marker=",
	} {
		next, _ := f.want(200, "GET", path, "")["next"].(string)
		if next = strings.TrimPrefix(next, "http://localhost"); !strings.HasPrefix(next, want) || want == "" &&
			next != "" {
			t.Errorf("next of %s = %s, want %s", path, next, want)
		}
	}
	if next, _ := f.asking(7).want(200, "GET", "/v1/nodes?limit=1", "")["next"].(string); strings.Contains(next,
		"fields") {
		t.Errorf("next in a version without fields = %s", next)
	}
	f.says(400, "The sort_key value drivers is an invalid field for sorting", "GET", "/v1/conductors?sort_key=drivers",
		"")
	f.want(200, "GET", "/v1/nodes?sort_key=description", "")
	f.asking(50).want(406, "GET", "/v1/nodes?sort_key=description", "")
	f.says(404, "Deploy template CUSTOM_A could not be found.", "GET", "/v1/deploy_templates?marker=CUSTOM_A", "")
	f.says(400, "for marker", "GET", "/v1/deploy_templates?marker=a%20b", "")
	f.says(400, "Expected UUID for marker", "GET", "/v1/chassis?marker=a", "")
}

// TestEmptyFilters: an empty filter is compared with what is set; an empty list is none.
func TestEmptyFilters(t *testing.T) {
	f := newFixture(t, Config{},
		node.Node{UUID: nodeA, Name: "full", Owner: "o", Lessee: "l", Description: "d", Shard: "s"},
		node.Node{UUID: nodeB, Name: "bare"})
	f.make("/v1/ports", `{"node_uuid":"`+nodeA+`","address":"52:54:00:00:00:01"}`)
	f.make("/v1/ports", `{"node_uuid":"`+nodeB+`","address":"52:54:00:00:00:02"}`)
	for path, want := range map[string]int{
		"/v1/nodes?owner=": 0, "/v1/nodes?lessee=": 0, "/v1/nodes?project=": 0, "/v1/nodes?shard=": 0,
		"/v1/nodes?description_contains=": 1, "/v1/nodes?resource_class=": 0, "/v1/nodes?shard=s": 1,
		"/v1/nodes?owner=o": 1, "/v1/ports?shard=": 2, "/v1/ports?shard=s": 1, "/v1/ports/detail?shard=,": 2,
	} {
		list := "nodes"
		if strings.HasPrefix(path, "/v1/ports") {
			list = "ports"
		}
		if got := f.uuids(path, list); len(got) != want {
			t.Errorf("GET %s = %v, want %d of them", path, got, want)
		}
	}
}

// TestWhosePorts: an argument called ..._uuid takes no name, and ports are asked for in one way.
func TestWhosePorts(t *testing.T) {
	f, _ := routesFixture(t)
	for _, path := range []string{"/v1/ports", "/v1/ports/detail", "/v1/nodes/validate"} {
		f.says(400, "Expected UUID for node_uuid: owned", "GET", path+"?node_uuid=owned", "")
		f.says(400, "Expected UUID for node_uuid: ", "GET", path+"?node_uuid=", "")
		f.want(200, "GET", path+"?node=owned", "")
		f.want(200, "GET", path+"?node_uuid="+ownedNode, "")
	}
	for _, path := range []string{"/v1/ports?", "/v1/ports/detail?"} {
		for _, two := range []string{"portgroup=" + ownedPart + "&node=owned",
			"portgroup=" + ownedPart + "&node_uuid=" + ownedNode, "shard=s1&node=owned",
			"shard=s1&portgroup=" + ownedPart} {
			f.says(403, "Operation not permitted.", "GET", path+two, "")
		}
		f.want(200, "GET", path+"portgroup="+ownedPart, "")
	}
	f.says(403, "Operation not permitted.", "GET", "/v1/nodes/owned/ports?portgroup="+ownedPart, "")
	if got := f.uuids("/v1/ports?node=owned&address=52:54:00:00:00:99", "ports"); len(got) != 0 {
		t.Errorf("the address beside a node is not looked at: %v", got)
	}
}

// TestArgumentsOfCalls has the values that calls take beside the usual ones.
func TestArgumentsOfCalls(t *testing.T) {
	const id = "/v1/nodes/n/"
	for _, tt := range []struct {
		path, body string
		status     int
	}{
		{"states/power", `{"target":"power on","timeout":1.5}`, 202},
		{"states/power", `{"target":"rebooting","timeout":2.5}`, 202},
		{"states/power", `{"target":"power on","timeout":true}`, 202},
		{"states/power", `{"target":"power on","timeout":"5"}`, 202},
		{"states/power", `{"target":"power on","timeout":0.5}`, 400},
		{"states/power", `{"target":"power on","timeout":false}`, 400},
		{"states/power", `{"target":"power on","timeout":"1.5"}`, 400},
		{"states/power", `{"target":"power on","timeout":-1}`, 400},
		{"states/power", `{"target":"power on","timeout":10000000000}`, 202}, {"states/power", `[]`, 400},
		{"states/console", `{"enabled":1}`, 202}, {"states/console", `{"enabled":0}`, 202},
		{"states/console", `{"enabled":null}`, 202}, {"states/console", `{"enabled":2}`, 400},
		{"states/console", `{"enabled":[]}`, 400}, {"states/console", `{}`, 400},
		{"states/secure_boot", `{"target":1}`, 202}, {"states/secure_boot", `{"target":0}`, 202},
		{"states/secure_boot", `{"target":null}`, 400},
		{"management/boot_device", `{"boot_device":"pxe","persistent":0}`, 204},
		{"management/boot_device", `{"boot_device":"pxe","persistent":2}`, 400}, {"maintenance", `{"reason":5}`, 400},
		{"maintenance", `{"reason":true}`, 400}, {"maintenance", `{"reason":[]}`, 400},
		{"maintenance", `{"reason":null}`, 202}, {"maintenance", `[]`, 202}, {"maintenance", `"x"`, 202},
		{"states/raid", ``, 400}, {"states/raid", `null`, 400}, {"states/raid", `{}`, 204},
	} {
		f := newFixture(t, Config{},
			node.Node{Name: "n", Provision: node.Manageable, Driver: "fake-hardware", Maintenance: true,
				MaintenanceReason: "was"})
		f.srv.odd = true
		f.want(tt.status, "PUT", id+tt.path, tt.body)
		if reason := f.want(200, "GET", "/v1/nodes/n", "")["maintenance_reason"]; tt.path == "maintenance" &&
			(tt.status == 202) != (reason == nil) {
			t.Errorf("after PUT %s %s the reason is %v", tt.path, tt.body, reason)
		}
	}
	for _, tt := range []struct {
		state  node.State
		target string
		status int
	}{
		{node.Manageable, "provide", 202}, {node.Available, "active", 202}, {node.Available, "manage", 202},
		{node.Active, "deleted", 202}, {node.Active, "rebuild", 202}, {node.Manageable, "clean", 400},
	} {
		for _, with := range []string{`"clean_steps":[]`, `"deploy_steps":[]`, `"service_steps":[]`, `"configdrive":""`,
			`"configdrive":{}`} {
			f := newFixture(t, Config{}, node.Node{Name: "n", Provision: tt.state, Driver: "fake-hardware"})
			f.want(tt.status, "PUT", id+"states/provision", `{"target":"`+tt.target+`",`+with+`}`)
		}
	}
}
