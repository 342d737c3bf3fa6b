package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// given sends a request with one header more, and gives the whole answer.
func (f *fixture) given(method, path, body, header, value string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set(rest.VersionHeader, f.version.String())
	if header != "" {
		r.Header.Set(header, value)
	}
	w := httptest.NewRecorder()
	f.srv.ServeHTTP(w, r)
	return w
}

// tagOf is the ETag that GET shows.
func (f *fixture) tagOf(path string) string {
	f.t.Helper()
	w := f.given("GET", path, "", "", "")
	if w.Code != 200 || w.Header().Get("ETag") == "" {
		f.t.Fatalf("GET %s = %d with ETag %q", path, w.Code, w.Header().Get("ETag"))
	}
	return w.Header().Get("ETag")
}

// TestIfMatch: every kind of resource has an ETag, which is another one after every change, and If-Match refuses what
// was decided by another state.
func TestIfMatch(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{UUID: nodeA, Name: "a", Provision: node.Manageable, Power: "power off"})
	for _, k := range []struct{ path, body, member string }{
		{"/v1/nodes", `{"driver":"fake-hardware","name":"n","driver_info":{"password":"hush"}}`, "/extra/a"},
		{"/v1/ports", `{"node_uuid":"` + nodeA + `","address":"52:54:00:00:00:01"}`, "/extra/a"},
		{"/v1/portgroups", `{"node_uuid":"` + nodeA + `"}`, "/extra/a"},
		{"/v1/chassis", `{}`, "/extra/a"},
		{"/v1/allocations", `{"resource_class":"x"}`, "/extra/a"},
		{"/v1/volume/connectors", `{"node_uuid":"` + nodeA + `","type":"iqn","connector_id":"i"}`, "/extra/a"},
		{"/v1/volume/targets", `{"node_uuid":"` + nodeA + `","volume_type":"iscsi","volume_id":"v","boot_index":0}`,
			"/extra/a"},
		{"/v1/deploy_templates",
			`{"name":"CUSTOM_T","steps":[{"interface":"deploy","step":"x","args":{},"priority":1}]}`, "/extra/a"},
		{"/v1/runbooks", `{"name":"CUSTOM_R","steps":[{"interface":"deploy","step":"x","args":{},"order":1}]}`,
			"/extra/a"},
		{"/v1/inspection_rules", `{"actions":[{"op":"set-attribute","args":{"path":"/extra/a","value":1}}]}`,
			"/description"},
	} {
		t.Run(k.path, func(t *testing.T) {
			made := f.given("POST", k.path, k.body, "", "")
			if made.Code != 201 {
				t.Fatalf("POST = %d %s", made.Code, made.Body)
			}
			one := made.Header().Get("Location")
			one = one[strings.Index(one, "/v1/"):]
			old := f.tagOf(one)
			if got := made.Header().Get("ETag"); got != old || !strings.HasPrefix(got, `"`) || len(got) > 60 ||
				strings.Contains(strings.ToLower(made.Body.String()), "etag") {
				t.Errorf("POST has ETag %s, GET %s", got, old)
			}
			values := 0
			patch := func(match string) *httptest.ResponseRecorder {
				values++
				header := "If-Match"
				if match == "" {
					header = ""
				}
				return f.given("PATCH", one, fmt.Sprintf(`[{"op":"add","path":"%s","value":"v%d"}]`, k.member, values),
					header, match)
			}
			now := old
			for _, match := range []string{"", old, "*", "list"} {
				if match == old {
					match = now
				}
				if match == "list" {
					match = old + ", W/" + now + " ," + now
				}
				w := patch(match)
				if w.Code != 200 || w.Header().Get("ETag") == now || w.Header().Get("ETag") != f.tagOf(one) {
					t.Fatalf("PATCH with If-Match %q = %d, ETag %s after %s; %s", match, w.Code, w.Header().Get("ETag"),
						now, w.Body)
				}
				now = w.Header().Get("ETag")
			}
			before := f.given("GET", one, "", "", "").Body.String()
			refused := func(method, match string, want int) {
				t.Helper()
				w := f.given(method, one, fmt.Sprintf(`[{"op":"add","path":"%s","value":"never"}]`, k.member),
					"If-Match", match)
				text := rest.DecodeError(w.Code, w.Body.Bytes()).Message
				if w.Code != want || want == 412 && !strings.Contains(text, "Read it again") ||
					!strings.Contains(w.Body.String(), `{"error_message"`) {
					t.Errorf("%s with If-Match %q = %d %s, want %d", method, match, w.Code, w.Body, want)
				}
				if after := f.given("GET", one, "", "", "").Body.String(); after != before {
					t.Errorf("%s with If-Match %q changed %s to %s", method, match, before, after)
				}
			}
			for _, method := range []string{"PATCH", "DELETE"} {
				for _, match := range []string{old, "W/" + now, old + ", " + `"x"`} {
					refused(method, match, 412)
				}
				for _, match := range []string{"", strings.Trim(now, `"`), "*, " + now, now + now} {
					refused(method, match, 400)
				}
			}
			for _, tt := range []struct {
				match string
				want  int
			}{{now, 304}, {"W/" + now, 304}, {`"x", ` + now, 304}, {"*", 304}, {old, 200}, {"garbage", 200},
				{"", 200}} {
				w := f.given("GET", one, "", "If-None-Match", tt.match)
				if w.Code != tt.want || w.Header().Get("ETag") != now || (w.Body.Len() == 0) != (tt.want == 304) ||
					w.Header().Get("Vary") == "" {
					t.Errorf("GET with If-None-Match %q = %d %v", tt.match, w.Code, w.Header())
				}
			}
			if w := f.given("DELETE", one, "", "If-Match", now); w.Code != 204 {
				t.Fatalf("DELETE = %d %s", w.Code, w.Body)
			}
			for _, method := range []string{"PATCH", "DELETE"} {
				if w := f.given(method, one, "[]", "If-Match", now); w.Code != 404 {
					t.Errorf("%s of what is gone = %d %s", method, w.Code, w.Body)
				}
			}
		})
	}
}

// TestEveryRouteKnowsIfMatch walks the table of routes: whatever changes something compares If-Match, or says that
// there is nothing to compare.
func TestEveryRouteKnowsIfMatch(t *testing.T) {
	f, fill := routesFixture(t)
	f.setNode("owned", func(n *node.Node) { n.Provision, n.ResourceClass = node.Active, "x" })
	f.want(201, "POST", "/v1/allocations", `{"resource_class":"x","node":"owned"}`)
	for _, rt := range f.srv.table() {
		if rt.Method == "GET" {
			continue
		}
		w := f.given(rt.Method, fill(rt.Path), "", "If-Match", `"old"`)
		want := 412
		if !strings.Contains(rt.Path, "{") || rt.Access == call.Public || strings.Contains(rt.Path, "{driver}") ||
			strings.Contains(rt.Path, "{pool}") || strings.Contains(rt.Path, "{reservation}") {
			want = 400
		}
		if w.Code != want || want == 400 && !strings.Contains(w.Body.String(), "has no ETag") {
			t.Errorf("%s %s = %d %s, want %d", rt.Method, rt.Path, w.Code, w.Body, want)
		}
	}
	for route := range actFirst {
		method, path, _ := strings.Cut(route, " ")
		if rt, _, err := f.srv.routes.find(method, strings.Split(strings.Trim(path, "/"), "/")); err != nil ||
			rt.Path != path {
			t.Errorf("%s is no route", route)
		}
	}
}

// TestBelowTheNode: what is done below a node is compared with the node's ETag.
func TestBelowTheNode(t *testing.T) {
	f := newFixture(t, Config{})
	for i, tt := range []struct {
		method, path, body string
		want               int
		is                 node.Node
	}{
		{"PUT", "states/provision", `{"target":"manage"}`, 202, node.Node{Provision: node.Enroll}},
		{"PUT", "states/power", `{"target":"power on"}`, 202, node.Node{}},
		{"PUT", "states/raid", `{"logical_disks":[{"size_gb":"MAX","raid_level":"1"}]}`, 204,
			node.Node{Provision: node.Manageable}},
		{"PUT", "maintenance", `{"reason":"x"}`, 202, node.Node{}},
		{"DELETE", "maintenance", "", 202, node.Node{Maintenance: true}},
		{"PUT", "traits", `{"traits":["CUSTOM_A"]}`, 204, node.Node{}},
		{"PUT", "traits/CUSTOM_B", "", 204, node.Node{}},
		{"DELETE", "traits/CUSTOM_B", "", 204, node.Node{Traits: []string{"CUSTOM_B"}}},
		{"DELETE", "traits", "", 204, node.Node{Traits: []string{"CUSTOM_B"}}},
		{"PUT", "states/boot_mode", `{"target":"uefi"}`, 202, node.Node{Provision: node.Manageable, BootMode: "bios"}},
		{"PUT", "states/console", `{"enabled":true}`, 202, node.Node{}},
	} {
		tt.is.Name = fmt.Sprint("n", i)
		if err := stored(f.st, tt.is); err != nil {
			t.Fatal(err)
		}
		one := "/v1/nodes/" + tt.is.Name
		old := f.tagOf(one)
		f.setNode(tt.is.Name, func(n *node.Node) { n.Description = "somebody else's" })
		before := f.given("GET", one, "", "", "").Body.String()
		if w := f.given(tt.method, one+"/"+tt.path, tt.body, "If-Match", old); w.Code != 412 {
			t.Errorf("%s %s with an old tag = %d %s", tt.method, tt.path, w.Code, w.Body)
		}
		if after := f.given("GET", one, "", "", "").Body.String(); after != before {
			t.Errorf("%s %s with an old tag changed %s to %s", tt.method, tt.path, before, after)
		}
		tag := f.tagOf(one)
		if w := f.given(tt.method, one+"/"+tt.path, tt.body, "If-Match", tag); w.Code != tt.want {
			t.Errorf("%s %s = %d %s, want %d", tt.method, tt.path, w.Code, w.Body, tt.want)
		}
		if f.tagOf(one) == tag {
			t.Errorf("%s %s leaves the tag as it was", tt.method, tt.path)
		}
	}
}

// TestOneOfManyWins: of many clients that change what they read at the same time, one does so, and all others are told.
func TestOneOfManyWins(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{UUID: nodeA, Name: "a", Provision: node.Manageable})
	port := "/v1/ports/" + f.make("/v1/ports", `{"node_uuid":"`+nodeA+`","address":"52:54:00:00:00:01"}`)
	chassis := "/v1/chassis/" + f.make("/v1/chassis", `{}`)
	for _, one := range []struct{ path, read, method, body string }{
		{"/v1/nodes/a", "/v1/nodes/a", "PATCH", `[{"op":"add","path":"/extra/by","value":"%d"}]`},
		{"/v1/nodes/a/traits/CUSTOM_%d", "/v1/nodes/a", "PUT", ""},
		{port, port, "PATCH", `[{"op":"add","path":"/extra/by","value":"%d"}]`},
		{chassis, chassis, "PATCH", `[{"op":"add","path":"/extra/by","value":"%d"}]`},
	} {
		for round := range 10 {
			const clients = 12
			tag := f.tagOf(one.read)
			var codes [clients]int
			var all sync.WaitGroup
			start := make(chan struct{})
			for i := range clients {
				all.Go(func() {
					path, body := one.path, one.body
					if strings.Contains(path, "%d") {
						path = fmt.Sprintf(path, round*clients+i)
					} else {
						body = fmt.Sprintf(body, round*clients+i)
					}
					<-start
					codes[i] = f.given(one.method, path, body, "If-Match", tag).Code
				})
			}
			close(start)
			all.Wait()
			done := map[int]int{}
			for _, code := range codes {
				done[code]++
			}
			if done[412] != clients-1 || done[200]+done[204] != 1 {
				t.Fatalf("%s %s by %d clients at once = %v", one.method, one.path, clients, done)
			}
		}
	}
}

// TestTagChangesWithTheNode sets every attribute of a node that the store keeps: after each the ETag is another one.
func TestTagChangesWithTheNode(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{UUID: nodeA, Name: "a"})
	skip := map[string]bool{"UUID": true, "Version": true, "CreatedAt": true, "UpdatedAt": true, // the store's own
		"LeasedAt": true, "AllocationUUID": true, // the store derives them
		"ChassisUUID": true, "ParentNode": true} // name what must be there: below
	seen := map[string]string{f.tagOf("/v1/nodes/" + nodeA): "nothing"}
	changed := func(what string) {
		t.Helper()
		tag := f.tagOf("/v1/nodes/" + nodeA)
		if other, twice := seen[tag]; twice {
			t.Errorf("after %s the tag %s is that after %s", what, tag, other)
		}
		seen[tag] = what
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[node.Node]()) {
		if skip[field.Name] || !field.IsExported() {
			continue
		}
		f.setNode(nodeA, func(n *node.Node) {
			switch v := reflect.ValueOf(n).Elem().FieldByIndex(field.Index); v.Kind() {
			case reflect.String:
				v.SetString(v.String() + "x")
			case reflect.Bool:
				v.SetBool(!v.Bool())
			case reflect.Int, reflect.Int64:
				v.SetInt(v.Int() + 1)
			case reflect.Uint64:
				v.SetUint(v.Uint() + 1)
			case reflect.Pointer:
				v.Set(reflect.New(v.Type().Elem()))
			case reflect.Slice:
				v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			case reflect.Map:
				m := reflect.MakeMap(v.Type())
				m.SetMapIndex(reflect.ValueOf("x").Convert(v.Type().Key()), reflect.Zero(v.Type().Elem()))
				v.Set(m)
			default:
				if v.Type() != reflect.TypeFor[time.Time]() {
					t.Fatalf("%s has type %s", field.Name, v.Type())
				}
				v.Set(reflect.ValueOf(time.Now()))
			}
		})
		changed(field.Name)
		f.setNode(nodeA, func(n *node.Node) { reflect.ValueOf(n).Elem().FieldByIndex(field.Index).SetZero() })
		changed("no " + field.Name)
	}
	if len(seen) < 80 {
		t.Errorf("%d changes of a node", len(seen))
	}
	ch := f.make("/v1/chassis", `{}`)
	f.setNode(nodeA, func(n *node.Node) { n.Provision, n.Driver, n.ChassisUUID = node.Manageable, "fake-hardware", ch })
	changed("chassis_uuid")
	f.want(204, "PUT", "/v1/nodes/"+nodeA+"/traits/CUSTOM_A", "")
	changed("a trait")
	f.want(202, "PUT", "/v1/nodes/"+nodeA+"/states/power", `{"target":"power on"}`)
	changed("power on")
	f.want(202, "PUT", "/v1/nodes/"+nodeA+"/states/provision", `{"target":"provide"}`)
	changed("provide")

	tag := f.tagOf("/v1/nodes/" + nodeA)
	f.want(202, "DELETE", "/v1/nodes/"+nodeA+"/maintenance", "")
	if now := f.tagOf("/v1/nodes/" + nodeA); now != tag {
		t.Errorf("a change that changes nothing makes %s of %s", now, tag)
	}
	f.version = 1
	if w := f.given("GET", "/v1/nodes/"+nodeA, "", "", ""); w.Code != http.StatusOK || w.Header().Get("ETag") != tag {
		t.Errorf("in version 1.1 = %d %s, else %s", w.Code, w.Header().Get("ETag"), tag)
	}
	// One that is made anew under the same UUID is another one, although it has been changed as often.
	f.version = rest.NewestVersion
	f.setNode(nodeA, func(n *node.Node) { n.Maintenance, n.InstanceUUID = true, "" })
	f.want(204, "DELETE", "/v1/nodes/"+nodeA, "")
	if err := stored(f.st, node.Node{UUID: nodeA, Name: "a"}); err != nil {
		t.Fatal(err)
	}
	changed("being made anew")
}
