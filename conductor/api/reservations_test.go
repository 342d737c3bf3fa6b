package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
)

func hoursAhead(n int) string {
	return time.Now().UTC().Add(time.Duration(n) * time.Hour).Format(time.RFC3339)
}

func patchEnd(hours int) string {
	return `[{"op":"replace","path":"/end","value":"` + hoursAhead(hours) + `"}]`
}

func TestReservations(t *testing.T) {
	f := newFixture(t, Config{Prepare: time.Hour},
		node.Node{Name: "a", ResourceClass: "large", Provision: node.Available, Power: "power off"},
		node.Node{Name: "b", ResourceClass: "large", Provision: node.Available, Power: "power off"},
		node.Node{Name: "c", ResourceClass: "large", Provision: node.Active, InstanceUUID: "00000000-0000-4000-8000-000000000007"},
		node.Node{Name: "d", ResourceClass: "small", Provision: node.Available, Power: "power off"})
	const all = "/ingot/v1/reservations"
	end := `"end":"` + hoursAhead(5) + `"`
	for body, part := range map[string]string{
		`{` + end + `}`:                                                                        "resource_class",
		`{"resource_class":"large"}`:                                                           "end",
		`{"resource_class":"large","end":"tomorrow"}`:                                          "end is no time",
		`{"resource_class":"large","end":"` + hoursAhead(-1) + `"}`:                            "after start and after now",
		`{"resource_class":"large","end":"2200-01-01T00:00:00Z"}`:                              "five years",
		`{"resource_class":"",` + end + `}`:                                                    "is empty",
		`{"resource_class":"large",` + end + `,"count":0}`:                                     "count is 0",
		`{"resource_class":"large",` + end + `,"count":1001}`:                                  "from 1 to 1000",
		`{"resource_class":"large",` + end + `,"count":1.5}`:                                   "integer",
		`{"resource_class":"large",` + end + `,"traits":["gpu"]}`:                              "gpu",
		`{"resource_class":"large",` + end + `,"name":"no name"}`:                              "invalid name",
		`{"resource_class":"large",` + end + `,"start":"2020-01-01T00:00:00Z"}`:                "which is over",
		`{"resource_class":"large",` + end + `,"tear_down":"maybe"}`:                           "boolean",
		`{"resource_class":"large",` + end + `,"uuid":"00000000-0000-4000-8000-000000000001"}`: "uuid",
		`[]`: "object",
	} {
		code, out := f.call("POST", all, body)
		if text := fmt.Sprint(out["error_message"]); code != 400 || !strings.Contains(text, part) {
			t.Errorf("POST %s = %d %s, want 400 with %q", body, code, text, part)
		}
	}
	if out := f.want(200, "GET", all, ""); len(out["reservations"].([]any)) != 0 {
		t.Errorf("at first: %v", out)
	}
	out := f.want(201, "POST", all, `{"name":"web","resource_class":"large","count":2,"project":"p","start":"`+
		hoursAhead(3)+`",`+end+`,"tear_down":true}`)
	machines, _ := out["machines"].([]any)
	if out["state"] != "planned" || out["project"] != "p" || out["tear_down"] != true || len(machines) != 2 {
		t.Errorf("POST answers %v", out)
	}
	m := machines[0].(map[string]any)
	from, err := time.Parse(time.RFC3339, fmt.Sprint(m["from"]))
	if m["name"] != "a" || m["allocation_uuid"] != out["uuid"] || m["given"] != false || err != nil ||
		time.Until(from) > 2*time.Hour || time.Until(from) < 110*time.Minute {
		t.Errorf("machine %v", m)
	}
	short := f.want(409, "POST", all, `{"resource_class":"large","count":3,`+end+`}`)
	if text := fmt.Sprint(short); !strings.Contains(text, "3 of 3 machines of resource class large are missing") ||
		!strings.Contains(text, "0 can be promised; 2 promised to others in that time, 1 in use without an end") {
		t.Errorf("409 says %s", text)
	}
	if text := fmt.Sprint(f.want(409, "POST", all, `{"resource_class":"large",`+end+`}`)); !strings.Contains(text,
		"As many are free from ") {
		t.Errorf("409 says %s", text)
	}
	f.want(201, "POST", all, `{"resource_class":"large","count":2,"start":"`+hoursAhead(7)+`","end":"`+hoursAhead(9)+`"}`)
	if text := fmt.Sprint(f.want(409, "PATCH", all+"/web", patchEnd(8))); !strings.Contains(text,
		"is promised to reservation") {
		t.Errorf("409 says %s", text)
	}
	f.want(400, "PATCH", all+"/web", `[{"op":"replace","path":"/start","value":"x"}]`)
	f.want(400, "PATCH", all+"/web", `[{"op":"remove","path":"/end"}]`)
	f.want(400, "PATCH", all+"/web", `[{"op":"replace","path":"/tear_down","value":"maybe"}]`)
	f.want(400, "PATCH", all+"/web", patchEnd(-1))
	if out := f.want(200, "PATCH", all+"/web", strings.TrimSuffix(patchEnd(4), "]")+
		`,{"op":"add","path":"/tear_down","value":false}]`); out["tear_down"] != false {
		t.Errorf("changed: %v", out)
	}
	f.want(404, "PATCH", all+"/none", `[]`)
	f.want(404, "GET", all+"/none", "")
	f.want(404, "DELETE", all+"/none", "")
	if list := f.want(200, "GET", all, "")["reservations"].([]any); len(list) != 2 ||
		list[0].(map[string]any)["name"] != "web" {
		t.Errorf("list %v", list)
	}
	// One that has begun ends now, one to come is gone.
	id := fmt.Sprint(out["uuid"])
	if _, err := f.st.Reservations().Update(t.Context(), id, func(r *node.Reservation) error {
		r.State = node.ReservationActive
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if out := f.want(202, "DELETE", all+"/web", ""); out["state"] != "ending" {
		t.Errorf("DELETE answers %v", out)
	}
	f.want(409, "PATCH", all+"/web", patchEnd(6))
	second := f.want(200, "GET", all, "")["reservations"].([]any)[1].(map[string]any)
	f.want(204, "DELETE", all+"/"+fmt.Sprint(second["uuid"]), "")
	f.want(404, "GET", all+"/"+fmt.Sprint(second["uuid"]), "")
}

// TestReservationsOfProjects: a project reserves its own machines only, sees its own reservations only, and of those
// the machines only that it may see.
func TestReservationsOfProjects(t *testing.T) {
	people := map[string]*access.Actor{
		"site": {UserName: "site", System: true, Role: access.Admin},
		"p":    {UserName: "pia", ProjectID: "p", Role: access.Member},
		"r":    {UserName: "rita", ProjectID: "p", Role: access.Reader},
		"q":    {UserName: "quin", ProjectID: "q", Role: access.Admin},
	}
	who := "site"
	f := newFixture(t, Config{Authenticate: func(*http.Request) (*access.Actor, error) { return people[who], nil }},
		node.Node{Name: "a", ResourceClass: "large", Provision: node.Available, Power: "power off"},
		node.Node{Name: "b", ResourceClass: "large", Provision: node.Available, Power: "power off", Owner: "p"})
	const all = "/ingot/v1/reservations"
	body := func(count int, more string) string {
		return fmt.Sprintf(`{"resource_class":"large","count":%d,"start":"%s","end":"%s"%s}`, count, hoursAhead(2),
			hoursAhead(5), more)
	}
	as := func(name string, status int, method, path, body string) map[string]any {
		t.Helper()
		who = name
		return f.want(status, method, path, body)
	}
	as("q", 403, "POST", all, body(1, `,"project":"p"`))
	as("r", 403, "POST", all, body(1, ""))
	if text := fmt.Sprint(as("q", 409, "POST", all, body(1, ""))); strings.Contains(text, "of other projects") ||
		!strings.Contains(text, "0 can be promised") {
		t.Errorf("a project learns of others' machines: %s", text)
	}
	out := as("p", 201, "POST", all, body(1, ""))
	mine := all + "/" + fmt.Sprint(out["uuid"])
	if m := out["machines"].([]any)[0].(map[string]any); m["name"] != "b" || out["project"] != "p" {
		t.Errorf("a project's own machine: %v", out)
	}
	as("p", 409, "POST", all, body(1, ""))
	out = as("site", 201, "POST", all, body(1, `,"project":"q"`))
	theirs := all + "/" + fmt.Sprint(out["uuid"])
	if m := out["machines"].([]any)[0].(map[string]any); m["name"] != "a" {
		t.Errorf("the site sees %v", m)
	}
	out = as("q", 200, "GET", theirs, "")
	if m := out["machines"].([]any)[0].(map[string]any); m["name"] != nil || m["node_uuid"] != nil {
		t.Errorf("before the start a project sees %v", m)
	}
	if list := as("q", 200, "GET", all, "")["reservations"].([]any); len(list) != 1 {
		t.Errorf("project q sees %v", list)
	}
	for _, method := range []string{"GET", "PATCH", "DELETE"} {
		as("p", 404, method, theirs, `[]`)
	}
	as("r", 200, "GET", mine, "")
	as("r", 403, "PATCH", mine, `[{"op":"add","path":"/tear_down","value":true}]`)
	as("r", 403, "DELETE", mine, "")
	// What a project is told of a conflict names no other's reservation.
	later := fmt.Sprintf(`{"resource_class":"large","start":"%s","end":"%s"}`, hoursAhead(6), hoursAhead(7))
	as("site", 201, "POST", all, later)
	text := fmt.Sprint(as("q", 409, "PATCH", theirs, patchEnd(8)))
	if !strings.Contains(text, "promised to others from") || strings.Contains(text, "reservation 0") {
		t.Errorf("409 says %s", text)
	}
	as("p", 204, "DELETE", mine, "")

	// A machine is reserved: no one deploys it by its name, and no instance is put on it.
	id := fmt.Sprint(as("p", 201, "POST", all, fmt.Sprintf(`{"resource_class":"large","end":"%s"}`, hoursAhead(2)))["uuid"])
	const provision, deploy = "/v1/nodes/b/states/provision", `{"target":"active"}`
	for _, c := range []struct{ who, method, path, body, part string }{
		{"site", "PUT", provision, deploy, "is promised to reservation " + id + " until "},
		{"site", "PUT", provision, deploy, "delete that reservation; or set maintenance"},
		{"site", "PATCH", "/v1/nodes/b",
			`[{"op":"add","path":"/instance_uuid","value":"00000000-0000-4000-8000-000000000007"}]`, "is promised to"},
		{"p", "PUT", provision, deploy, "is reserved until "},
	} {
		text := fmt.Sprint(as(c.who, 409, c.method, c.path, c.body))
		if !strings.Contains(text, c.part) || c.who == "p" && strings.Contains(text, id) {
			t.Errorf("%s as %s: 409 says %s", c.method, c.who, text)
		}
	}
	as("p", 202, "DELETE", all+"/"+id, "") // it ends now
	as("site", 202, "PUT", provision, deploy)
}

// TestReservationIsExtendedIntoAnother: the machine of the other one is replaced, if there is one for that.
func TestReservationIsExtendedIntoAnother(t *testing.T) {
	f := newFixture(t, Config{},
		node.Node{Name: "a", ResourceClass: "large", Provision: node.Available, Power: "power off"},
		node.Node{Name: "b", ResourceClass: "large", Provision: node.Available, Power: "power off"})
	const all = "/ingot/v1/reservations"
	f.want(201, "POST", all, `{"name":"first","resource_class":"large","end":"`+hoursAhead(2)+`"}`)
	f.want(201, "POST", all, `{"name":"next","resource_class":"large","start":"`+hoursAhead(2)+`","end":"`+hoursAhead(4)+`"}`)
	machine := func(name string) string {
		machines := f.want(200, "GET", all+"/"+name, "")["machines"].([]any)
		return fmt.Sprint(machines[0].(map[string]any)["name"])
	}
	if machine("first") != "a" || machine("next") != "a" {
		t.Fatalf("the machines are %s and %s, want the same", machine("first"), machine("next"))
	}
	f.want(200, "PATCH", all+"/first", patchEnd(3))
	if machine("first") != "a" || machine("next") != "b" {
		t.Errorf("after the extension the machines are %s and %s", machine("first"), machine("next"))
	}
	f.want(201, "POST", all, `{"name":"last","resource_class":"large","start":"`+hoursAhead(3)+`","end":"`+hoursAhead(4)+`"}`)
	if text := fmt.Sprint(f.want(409, "PATCH", all+"/first", patchEnd(4))); !strings.Contains(text,
		"can't get another: 1 of 1 machines of resource class large") {
		t.Errorf("409 says %s", text)
	}
}
