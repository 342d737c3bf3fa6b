package api

import (
	"context"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// wanted is an engine that only remembers what it was asked for.
type wanted struct {
	instant
	last *engine.Request
}

func (a wanted) Provision(_ context.Context, _ string, r engine.Request) error {
	*a.last = r
	return nil
}

func TestProvisionRequests(t *testing.T) {
	var got engine.Request
	f := newFixture(t, Config{}, node.Node{Name: "avail", Provision: node.Available},
		node.Node{Name: "mgmt", Provision: node.Manageable}, node.Node{Name: "active", Provision: node.Active},
		node.Node{Name: "held", Provision: node.CleanHold, TargetProvision: node.Manageable},
		node.Node{Name: "wait", Provision: node.DeployWait, TargetProvision: node.Active},
		node.Node{Name: "sw", Provision: node.ServiceWait, TargetProvision: node.Active},
		node.Node{Name: "broken", Provision: node.Available, Maintenance: true},
		node.Node{Name: "locked", Provision: node.Available, Reservation: "c2"})
	f.srv.engine = wanted{instant{f.st}, &got}
	f.reassemble()
	if err := f.st.Runbooks().Create(t.Context(),
		&node.Runbook{Head: node.Head{Name: "CUSTOM_RB"},
			Steps: []node.TemplateStep{{Interface: "bios", Step: "x"}}}); err != nil {
		t.Fatal(err)
	}
	put := func(status int, name, body, part string) {
		t.Helper()
		got = engine.Request{}
		out := f.want(status, "PUT", "/v1/nodes/"+name+"/states/provision", body)
		if part != "" && !strings.Contains(out["error_message"].(string), part) {
			t.Errorf("%s = %v, want %q", body, out, part)
		}
	}
	put(202, "active",
		`{"target":"service","service_steps":[{"interface":"firmware","step":"update","args":{"a":1}},{"interface":"bios","step":"hold"}],"disable_ramdisk":true}`, "")
	if len(got.ServiceSteps) != 2 || got.ServiceSteps[0].Name != "update" ||
		string(got.ServiceSteps[0].Args) != `{"a":1}` || !got.DisableRamdisk || got.Verb != node.Service {
		t.Errorf("service asked for %+v", got)
	}
	put(400, "active", `{"target":"service"}`,
		`\"service_steps\" is required when setting target provision state to service`)
	put(400, "mgmt",
		`{"target":"clean","service_steps":[{"interface":"bios","step":"x"}],"clean_steps":[{"interface":"bios","step":"x"}]}`, `\"service_steps\" is only valid`)
	put(202, "mgmt",
		`{"target":"clean","clean_steps":[{"interface":"bios","step":"second","order":2},{"interface":"raid","step":"first","order":"1"}]}`, "")
	if len(got.CleanSteps) != 2 || got.CleanSteps[0].Name != "first" {
		t.Errorf("clean asked for %+v", got.CleanSteps)
	}
	put(400, "mgmt", `{"target":"clean","clean_steps":[{"interface":"bios","step":"x","order":-1}]}`,
		"less than the minimum")
	put(400, "mgmt", `{"target":"clean","clean_steps":[{"interface":"bios","step":"x","execute_on_child_nodes":true}]}`,
		"child nodes")
	put(202, "mgmt", `{"target":"clean","runbook":"CUSTOM_RB"}`, "")
	if !document.IsUUID(got.Runbook) {
		t.Errorf("runbook = %q", got.Runbook)
	}
	put(404, "mgmt", `{"target":"clean","runbook":"CUSTOM_NO"}`, "could not be found")
	put(400, "mgmt", `{"target":"clean","runbook":"CUSTOM_RB","clean_steps":[{"interface":"bios","step":"x"}]}`,
		"but not both")
	put(400, "avail", `{"target":"active","runbook":"CUSTOM_RB"}`, `\"runbooks\" is only valid`)
	put(400, "avail", `{"target":"active","disable_ramdisk":true}`, "disable_ramdisk is supported only")
	put(202, "active", `{"target":"rescue","rescue_password":"pw"}`, "")
	if got.RescuePassword != "pw" {
		t.Errorf("rescue_password = %q", got.RescuePassword)
	}
	put(202, "held", `{"target":"unhold"}`, "")
	put(202, "wait", `{"target":"abort"}`, "")
	put(202, "avail", `{"target":"deploy","configdrive":"http://192.0.2.1/drive"}`, "")
	if got.Verb != node.Deploy || got.ConfigDrive != "http://192.0.2.1/drive" {
		t.Errorf("deploy asked for %+v", got)
	}
	put(400, "broken", `{"target":"active"}`, "because it's in maintenance mode")
	put(409, "locked", `{"target":"active"}`, "is locked by host c2")
	put(400, "avail", `{"target":"done"}`, "can not be performed") // the engine's own verbs are not for clients
	put(400, "avail", `{"target":"wait"}`, "can not be performed")

	for _, c := range []struct {
		name, body string
		since      rest.Version
	}{
		{"held", `{"target":"unhold"}`, 85},
		{"held", `{"target":"abort"}`, 85},
		{"active", `{"target":"service","service_steps":[{"interface":"bios","step":"x"}]}`, 87},
		{"sw", `{"target":"abort"}`, 87},
		{"mgmt", `{"target":"clean","runbook":"CUSTOM_RB"}`, 92},
		{"active", `{"target":"service","disable_ramdisk":true,"service_steps":[{"interface":"bios","step":"x"}]}`,
			108},
		{"wait", `{"target":"abort"}`, 110},
		{"mgmt", `{"target":"clean","disable_ramdisk":true,"clean_steps":[{"interface":"bios","step":"x"}]}`, 70},
		{"avail", `{"target":"active","deploy_steps":[{"interface":"bios","step":"x","args":{},"priority":1}]}`, 69},
		{"avail", `{"target":"deploy"}`, 73},
	} {
		f.version = c.since - 1
		put(406, c.name, c.body, "")
		f.version = c.since
		put(202, c.name, c.body, "")
	}
}

func TestPowerOffCanBeForbidden(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n", DisablePowerOff: true})
	f.text(409, "PUT", "/v1/nodes/n/states/power", `{"target":"power off"}`,
		"Failed to set node power state to power off.")
	f.text(409, "PUT", "/v1/nodes/n/states/power", `{"target":"soft power off"}`, "Failed to set node power state")
	f.want(202, "PUT", "/v1/nodes/n/states/power", `{"target":"rebooting"}`)
}
