//go:build !race

package app_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
)

// racked is a conductor, and controllers that it knows as nodes of the same names.
type racked struct {
	*testing.T
	d *ingotd.Process
}

func newRacked(t *testing.T, settings ...string) *racked {
	return &racked{t, ingotd.Start(t, kit.FreeAddr(t), append([]string{"fetch.allow=127.0.0.0/8"}, settings...)...)}
}

func (r *racked) ask(want int, method, path, body string) string {
	r.Helper()
	status, _, out := r.d.Ask(method, path, body, map[string]string{"X-OpenStack-Ironic-API-Version": "latest"})
	if status != want {
		r.Fatalf("%s %s %s = %d %s, want %d", method, path, body, status, out, want)
	}
	return strings.NewReplacer(`": "`, `":"`, `": `, `":`).Replace(out)
}

// until waits until an answer has all the parts.
func (r *racked) until(path string, parts ...string) {
	r.Helper()
	ingotd.Wait(r, path+" has "+strings.Join(parts, " "), func() bool {
		out := r.ask(200, "GET", path, "")
		for _, part := range parts {
			if !strings.Contains(out, part) {
				return false
			}
		}
		return true
	})
}

// driverOf is the hardware type of machines of a personality; interfaceOf is the name of an interface in that type.
func driverOf(personality string) string {
	if strings.HasPrefix(personality, "dell-") {
		return "idrac"
	}
	return "redfish"
}

func interfaceOf(personality, of string) string {
	if driverOf(personality) == "idrac" {
		return "idrac-" + of
	}
	return of
}

// enrol makes a node of a controller, with more attributes, and manages it.
func (r *racked) enrol(name string, b *redfish.Bench, more string) {
	r.Helper()
	info, err := json.Marshal(b.Info)
	if err != nil {
		r.Fatal(err)
	}
	r.ask(201, "POST", "/v1/nodes",
		`{"name":"`+name+`","driver":"`+driverOf(name)+`","driver_info":`+string(info)+more+`}`)
	r.ask(202, "PUT", "/v1/nodes/"+name+"/states/provision", `{"target":"manage"}`)
	r.until("/v1/nodes/"+name, `"provision_state":"manageable"`)
}

// A node is inspected through its controller: properties, capabilities, ports and inventory are there, the machine is
// untouched, rules run, and the lamps can be switched.
func TestInspectionThroughRedfish(t *testing.T) {
	r := newRacked(t)
	r.ask(201, "POST", "/v1/inspection_rules", `{"conditions":[{"op":"eq","args":{"values":["{inventory[cpu][count]}",64]}}],
		"actions":[{"op":"set-attribute","args":{"path":"/extra/seen","value":"by a rule"}}]}`)
	for _, name := range []string{"generic", "dell-idrac9", "supermicro"} {
		mac := map[string]string{"generic": "52:54:00:00:00:01", "dell-idrac9": "52:54:00:00:00:02",
			"supermicro": "52:54:00:00:00:03"}[name]
		b := redfish.Start(t, redfish.Personality(t, name), func(c *service.Config) { c.MACs = []string{mac} })
		r.enrol(name, b, `,"inspect_interface":"`+interfaceOf(name, "redfish")+`"`)
		r.until("/v1/nodes/"+name, `"vendor":"`+redfish.Personality(t, name).Manufacturer+`"`)
		r.ask(202, "PUT", "/v1/nodes/"+name+"/states/provision", `{"target":"inspect"}`)
		r.until("/v1/nodes/"+name, `"provision_state":"manageable"`, `"memory_mb":`, `"cpus":`, `"cpu_arch":"x86_64"`,
			`"local_gb":`, `boot_mode:bios`, `secure_boot:false`)
		out := r.ask(200, "GET", "/v1/nodes/"+name, "")
		if (name != "supermicro") != strings.Contains(out, "by a rule") {
			t.Errorf("the rule: %s", out)
		}
		if out := r.ask(200, "GET", "/v1/nodes/"+name+"/ports?fields=address,pxe_enabled", ""); !strings.Contains(out, mac) ||
			!strings.Contains(out, `"pxe_enabled":true`) {
			t.Errorf("ports: %s", out)
		}
		if out := r.ask(200, "GET", "/v1/nodes/"+name+"/inventory", ""); !strings.Contains(out, "Lab CPU") {
			t.Errorf("inventory: %s", out)
		}
		if len(b.Machine.Boots()) > 0 {
			t.Error("the machine was started")
		}
		lamps := r.ask(200, "GET", "/v1/nodes/"+name+"/management/indicators", "")
		if !strings.Contains(lamps, `"1@chassis"`) || !strings.Contains(lamps, `"disk"`) {
			t.Errorf("indicators: %s", lamps)
		}
		for _, state := range []string{"on", "off"} {
			r.ask(204, "PUT", "/v1/nodes/"+name+"/management/indicators/1@chassis", `{"state":"`+state+`"}`)
			if out := r.ask(200, "GET", "/v1/nodes/"+name+"/management/indicators/1@chassis", ""); !strings.Contains(out,
				`"state":"`+state+`"`) {
				t.Errorf("the lamp: %s, want %s", out, state)
			}
		}
		r.ask(400, "PUT", "/v1/nodes/"+name+"/management/indicators/9@chassis", `{"state":"on"}`)
	}
}

// eventually waits until something is so.
func (r *racked) eventually(what string, ok func() bool) {
	r.Helper()
	ingotd.Wait(r, what, ok)
}
