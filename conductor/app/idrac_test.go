//go:build !race

package app_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
)

// A node of type idrac has Ironic's interface names, and those that the type shares with redfish; Dell's steps bring
// its controller into a known state without the agent.
func TestIDRAC(t *testing.T) {
	r := newRacked(t)
	const name = "dell-idrac10"
	b := redfish.Start(t, redfish.Personality(t, name), func(c *service.Config) { c.Down = 200 * time.Millisecond })
	r.enrol(name, b, "")
	shown := r.ask(200, "GET", "/v1/nodes/"+name, "")
	for kind, iface := range map[string]string{"power": "idrac-redfish", "management": "idrac-redfish",
		"bios": "idrac-redfish", "boot": "ipxe", "inspect": "agent", "deploy": "direct"} {
		if !strings.Contains(shown, `"`+kind+`_interface":"`+iface+`"`) {
			t.Errorf("the %s interface is not %s: %s", kind, iface, shown)
		}
	}
	patch := func(want int, kind, iface string) {
		t.Helper()
		r.ask(want, "PATCH", "/v1/nodes/"+name, `[{"op":"add","path":"/`+kind+`_interface","value":"`+iface+`"}]`)
	}
	for kind, iface := range map[string]string{"power": "redfish", "bios": "redfish", "inspect": "idrac-redfish",
		"boot": "idrac-redfish-virtual-media"} {
		patch(200, kind, iface)
	}
	patch(400, "management", "redfish")
	patch(400, "boot", "redfish-virtual-media")
	b.Service.Dell().Leave()
	r.ask(202, "PUT", "/v1/nodes/"+name+"/states/provision",
		`{"target":"clean","disable_ramdisk":true,"clean_steps":[{"interface":"management","step":"known_good_state"}]}`)
	r.until("/v1/nodes/"+name, `"provision_state":"manageable"`, `"last_error":null`)
	if jobs, n := b.Service.Tasks().Unfinished(), b.Service.Restarts(); len(jobs) != 0 || n != 1 {
		t.Errorf("jobs %v, %d restarts of the controller", jobs, n)
	}
}
