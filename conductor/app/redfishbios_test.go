//go:build !race

package app_test

import (
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit/redfish"
)

// BIOS settings are read when a node is managed, set and reset by steps of cleaning, which restart the machine once,
// and refused before it is touched when the registry forbids them.
func TestBIOSThroughRedfish(t *testing.T) {
	r := newRacked(t)
	for _, name := range []string{"generic", "hpe-ilo5", "dell-idrac10"} {
		b := redfish.Start(t, redfish.Personality(t, name))
		r.enrol(name, b, "")
		r.until("/v1/nodes/"+name+"/bios?detail=true", `"name":"BootRetries"`, `"value":"3"`, `"lower_bound":0`,
			`"upper_bound":10`, `"attribute_type":"Enumeration"`, `"allowable_values":["Enabled","Disabled"]`)
		clean := func(step string) {
			r.ask(202, "PUT", "/v1/nodes/"+name+"/states/provision",
				`{"target":"clean","disable_ramdisk":true,"clean_steps":[{"interface":"bios",`+step+`}]}`)
		}
		setting := func(want string) {
			r.until("/v1/nodes/"+name, `"provision_state":"manageable"`, `"last_error":null`)
			out := r.ask(200, "GET", "/v1/nodes/"+name+"/bios/NumLock", "")
			if !strings.Contains(out, `"value":"`+want+`"`) || b.Service.BIOS().Now()["NumLock"] != want {
				t.Errorf("%s: %s, want %s", name, out, want)
			}
		}
		clean(`"step":"apply_configuration","args":{"settings":[{"name":"NumLock","value":"Disabled"}]}`)
		setting("Disabled")
		clean(`"step":"factory_reset"`)
		setting("Enabled")
		boots := len(b.Machine.Boots())
		if boots != 2 {
			t.Errorf("%s: %d starts", name, boots)
		}
		clean(`"step":"apply_configuration","args":{"settings":[{"name":"NumLock","value":"Broken"}]}`)
		r.until("/v1/nodes/"+name, `"provision_state":"clean failed"`, "NumLock must be one of Enabled, Disabled")
		if len(b.Machine.Boots()) != boots || b.Service.Sessions() > 1 {
			t.Errorf("%s: it was started", name)
		}
	}
}
