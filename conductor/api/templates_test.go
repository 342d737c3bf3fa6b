package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func TestDeployTemplates(t *testing.T) {
	f := newFixture(t, Config{})
	const steps = `[{"interface":"deploy","step":"write_image","args":{"image_pull_secret":"hunter2","verify":true},"priority":"85"}]`
	out := f.want(201, "POST", "/v1/deploy_templates", `{"name":"CUSTOM_A","steps":`+steps+
		`,"extra":{"ingot:drivers":["ipmi"]}}`)
	if got, _ := json.Marshal(out["steps"]); string(
		got) != `[{"args":{"image_pull_secret":"******","verify":true},"interface":"deploy","priority":85,"step":"write_image"}]` {
		t.Errorf("steps = %s", got)
	}
	// What comes back as it was shown does not lose its secret.
	f.want(200, "PATCH", "/v1/deploy_templates/CUSTOM_A",
		`[{"op":"replace","path":"/steps","value":[{"interface":"deploy","step":"write_image","args":{"image_pull_secret":"******","verify":false},"priority":84}]}]`)
	tpl, err := f.st.DeployTemplates().Get(t.Context(), "CUSTOM_A")
	if err != nil || string(tpl.Steps[0].Args) != `{"image_pull_secret":"hunter2","verify":false}` ||
		tpl.Steps[0].Priority != 84 || len(tpl.Drivers) != 1 {
		t.Errorf("stored: %+v, %v", tpl, err)
	}
	f.want(200, "PATCH", "/v1/deploy_templates/CUSTOM_A", `[{"op":"remove","path":"/extra"}]`)
	if tpl, err = f.st.DeployTemplates().Get(t.Context(), "CUSTOM_A"); err != nil || tpl.Drivers != nil {
		t.Errorf("for drivers %v: %v", tpl.Drivers, err)
	}
	for _, c := range []struct{ body, want string }{
		{`{"name":"CUSTOM_B","steps":` + steps + `,"extra":{"ingot:drivers":"ipmi"}}`,
			"is not a list of hardware types"},
		{`{"name":"CUSTOM_B","steps":` + steps + `,"extra":{"ingot:drivers":[]}}`, "is not a list of hardware types"},
		{`{"name":"CUSTOM_B","steps":` + steps + `,"extra":{"ingot:drivers":["ilo"]}}`, "names hardware type 'ilo'"},
		{`{"name":"CUSTOM_B","steps":[{"interface":"deploy","step":"x","args":{},"priority":"99999999999"}]}`,
			"'99999999999' is too large"},
		{`{"name":"CUSTOM_B","steps":[{"interface":"deploy","step":"x","args":{},"priority":1.5}]}`,
			"1.5 is not of type"},
		{`{"name":"CUSTOM_B","steps":[{"interface":"deploy","step":"x","args":[],"priority":1}]}`,
			"is not of type 'object'"},
		{`{"name":"CUSTOM_B","steps":"x"}`, "is not of type 'array'"},
		{`{"name":"CUSTOM_B","steps":` + steps + `,"uuid":"x"}`, "Expected UUID for uuid: x"},
		{`{"name":"CUSTOM_B","description":"x","steps":` + steps + `}`, "Additional properties"},
	} {
		if out := f.want(400, "POST", "/v1/deploy_templates", c.body); !strings.Contains(fault(out), c.want) {
			t.Errorf("POST %s = %s, want %q", c.body, fault(out), c.want)
		}
	}
	f.want(400, "PATCH", "/v1/deploy_templates/CUSTOM_A", `[{"op":"replace","path":"/name","value":"a"}]`)
	f.want(400, "PATCH", "/v1/deploy_templates/CUSTOM_A",
		`[{"op":"add","path":"/steps/-","value":{"interface":"deploy","step":"write_image","args":{},"priority":1}}]`)
	for _, c := range []struct {
		v            rest.Version
		method, path string
		want         int
	}{
		{54, "GET", "/v1/deploy_templates", 404}, {54, "POST", "/v1/deploy_templates", 405},
		{54, "DELETE", "/v1/deploy_templates/CUSTOM_A", 405}, {55, "GET", "/v1/deploy_templates/CUSTOM_A", 200},
		{91, "GET", "/v1/runbooks", 404}, {91, "POST", "/v1/runbooks", 405}, {92, "GET", "/v1/runbooks", 200},
		{92, "GET", "/v1/runbooks/a b", 400}, {92, "GET", "/v1/runbooks/CUSTOM_A", 404},
		{92, "GET", "/v1/runbooks/CUSTOM_A/traits", 404},
	} {
		if got := f.at(c.v, c.method, strings.ReplaceAll(c.path, " ", "%20"), ""); got != c.want {
			t.Errorf("%s %s of version %s = %d, want %d", c.method, c.path, c.v, got, c.want)
		}
	}
}

func TestRunbooks(t *testing.T) {
	f := newFixture(t, Config{})
	f.version = rest.VersionRunbooks
	const steps = `[{"interface":"deploy","step":"erase_devices_metadata","order":2},{"interface":"bios","step":"apply_configuration","args":{"password":"x"},"order":1}]`
	out := f.want(201, "POST", "/v1/runbooks", `{"name":"CUSTOM_R","steps":`+steps+
		`,"disable_ramdisk":true,"extra":{"a":1}}`)
	delete(out, "links")
	delete(out, "uuid")
	delete(out, "created_at")
	if got, _ := json.Marshal(out); string(
		got) != `{"disable_ramdisk":true,"extra":{"a":1},"name":"CUSTOM_R","owner":null,"public":false,`+
		`"steps":[{"args":{},"interface":"deploy","order":2,"step":"erase_devices_metadata"},{"args":{"password":"******"},"interface":"bios","order":1,"step":"apply_configuration"}],"updated_at":null}` {
		t.Errorf("POST = %s", got)
	}
	f.want(409, "POST", "/v1/runbooks", `{"name":"CUSTOM_R","steps":`+steps+`}`)
	for _, c := range []struct{ body, want string }{
		{`{"name":"r","steps":` + steps + `}`, "'r' is not valid under any of the given schemas"},
		{`{"name":"CUSTOM_S","steps":[{"interface":"deploy","step":"x"}]}`, "'order' is a required property"},
		{`{"name":"CUSTOM_S","steps":[{"interface":"deploy","step":"x","order":-1}]}`,
			"-1 is less than the minimum of 0"},
		{`{"name":"CUSTOM_S","steps":[{"interface":"deploy","step":"x","order":1},{"interface":"deploy","step":"x","order":2}]}`, "Runbook invalid: Duplicate steps"},
		{`{"name":"CUSTOM_S","steps":[]}`, "too short"},
		{`{"name":"CUSTOM_S","steps":` + steps + `,"traits":["CUSTOM_X"]}`, "Additional properties"},
	} {
		if out := f.want(400, "POST", "/v1/runbooks", c.body); !strings.Contains(fault(out), c.want) {
			t.Errorf("POST %s = %s, want %q", c.body, fault(out), c.want)
		}
	}
	f.want(200, "PATCH", "/v1/runbooks/CUSTOM_R", `[{"op":"replace","path":"/owner","value":"p1"}]`)
	f.want(400, "PATCH", "/v1/runbooks/CUSTOM_R",
		`[{"op":"replace","path":"/owner","value":"p2"},{"op":"replace","path":"/public","value":true}]`)
	if out := f.want(200, "PATCH", "/v1/runbooks/CUSTOM_R",
		`[{"op":"replace","path":"/public","value":true}]`); out["public"] != true || out["owner"] != nil {
		t.Errorf("made public: %v", out)
	}
	f.want(400, "PATCH", "/v1/runbooks/CUSTOM_R", `[{"op":"replace","path":"/owner","value":"p2"}]`)
	f.want(200, "PATCH", "/v1/runbooks/CUSTOM_R",
		`[{"op":"replace","path":"/owner","value":"p2"},{"op":"replace","path":"/public","value":false}]`)
	if all := f.want(200, "GET", "/v1/runbooks", "")["runbooks"].([]any); len(all) != 1 ||
		len(all[0].(map[string]any)) != 3 {
		t.Errorf("list = %v", all)
	}
	if all := f.want(200, "GET", "/v1/runbooks?detail=true", "")["runbooks"].([]any); len(all) != 1 ||
		all[0].(map[string]any)["steps"] == nil {
		t.Errorf("list with detail = %v", all)
	}
	f.want(204, "DELETE", "/v1/runbooks/CUSTOM_R", "")
	f.want(404, "DELETE", "/v1/runbooks/CUSTOM_R", "")
}

// TestRunbooksOfProjects: a project's runbooks are its own; public ones, which the system's members make, are
// everybody's to read.
func TestRunbooksOfProjects(t *testing.T) {
	f := newFixture(t, Config{})
	f.version = rest.VersionRunbooks
	steps := `"steps":[{"interface":"deploy","step":"x","order":1}]`
	in := func(project string, r access.Role) access.Actor { return access.Actor{ProjectID: project, Role: r} }
	system := access.Actor{System: true, Role: access.Member}
	f.as(in("p1", access.Member)).want(403, "POST", "/v1/runbooks", `{"name":"CUSTOM_1",`+steps+`}`)
	if out := f.as(in("p1", access.Manager)).want(201, "POST", "/v1/runbooks", `{"name":"CUSTOM_1",`+steps+
		`}`); out["owner"] != "p1" {
		t.Errorf("a project's runbook: %v", out)
	}
	f.want(400, "POST", "/v1/runbooks", `{"name":"CUSTOM_2","owner":"p2",`+steps+`}`)
	f.want(400, "POST", "/v1/runbooks", `{"name":"CUSTOM_2","public":true,`+steps+`}`)
	f.want(403, "PATCH", "/v1/runbooks/CUSTOM_1", `[{"op":"replace","path":"/public","value":true}]`)
	f.want(403, "PATCH", "/v1/runbooks/CUSTOM_1", `[{"op":"replace","path":"/owner","value":"p2"}]`)
	f.want(200, "PATCH", "/v1/runbooks/CUSTOM_1", `[{"op":"add","path":"/extra/a","value":1}]`)
	f.as(system).want(201, "POST", "/v1/runbooks", `{"name":"CUSTOM_3","public":true,`+steps+`}`)
	f.want(201, "POST", "/v1/runbooks", `{"name":"CUSTOM_4",`+steps+`}`)
	names := func() string {
		var got []string
		for _, o := range f.want(200, "GET", "/v1/runbooks", "")["runbooks"].([]any) {
			got = append(got, fmt.Sprint(o.(map[string]any)["name"]))
		}
		return strings.Join(got, " ")
	}
	for _, c := range []struct {
		who  access.Actor
		want string
	}{{system, "CUSTOM_1 CUSTOM_3 CUSTOM_4"}, {in("p1", access.Reader), "CUSTOM_1 CUSTOM_3"},
		{in("p2", access.Admin), "CUSTOM_3"}} {
		f.as(c.who)
		if got := names(); got != c.want {
			t.Errorf("%+v sees %s, want %s", c.who, got, c.want)
		}
	}
	f.want(404, "GET", "/v1/runbooks/CUSTOM_1", "")
	f.want(404, "GET", "/v1/runbooks?marker=CUSTOM_1", "")
	f.want(404, "DELETE", "/v1/runbooks/CUSTOM_1", "")
	f.want(200, "GET", "/v1/runbooks/CUSTOM_3", "")
	f.want(403, "DELETE", "/v1/runbooks/CUSTOM_3", "")
	f.as(in("p1", access.Manager)).want(204, "DELETE", "/v1/runbooks/CUSTOM_1", "")
	f.as(in("p1", access.Admin)).want(403, "GET", "/v1/deploy_templates", "")
}
