//go:build !race

package app_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/redfish"
)

// TestActiveNodeMovesToRedfishAndBack: the hardware type of a node in use is changed by one PATCH in maintenance; the
// machine runs on untouched, is turned off and on by the other service, and the password of the first is still there
// for the way back.
func TestActiveNodeMovesToRedfishAndBack(t *testing.T) {
	t.Parallel()
	b := redfish.StartBoth(t, redfish.Personality(t, "hpe-ilo6"))
	d := ingotd.Start(t, kit.FreeAddr(t), "fetch.allow=127.0.0.0/8", "log_level=debug", "power.sync_interval=1s")
	asked := asking(t, d, new(string))
	ask := func(want int, method, path, body string) string {
		t.Helper()
		return strings.ReplaceAll(asked(want, method, path, body), " ", "")
	}
	shows := func(words ...string) {
		t.Helper()
		for _, w := range words {
			ingotd.Wait(t, w, func() bool { return strings.Contains(ask(200, "GET", "/v1/nodes/n", ""), w) })
		}
	}
	text := func(v any) string {
		t.Helper()
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	ask(201, "POST", "/v1/nodes", `{"name":"n","driver":"ipmi","driver_info":`+text(b.IPMI)+
		`,"instance_info":{"image_source":"https://images.example/x.raw","image_checksum":"`+strings.Repeat("0", 64)+`"}}`)
	ask(202, "PUT", "/v1/nodes/n/states/provision", `{"target":"manage"}`)
	shows(`"provision_state":"manageable"`)
	ask(202, "PUT", "/v1/nodes/n/states/power", `{"target":"power on"}`)
	shows(`"power_state":"poweron"`)
	ask(202, "PUT", "/v1/nodes/n/states/provision", `{"target":"adopt"}`)
	shows(`"provision_state":"active"`)
	boots := len(b.Machine.Boots())

	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value,omitempty"`
	}
	patch := func(driver string, info map[string]any) string {
		ops := []op{{"add", "/driver", driver}}
		for key, v := range info {
			ops = append(ops, op{"add", "/driver_info/" + key, v})
		}
		return text(ops)
	}
	const at = "/v1/nodes/n?reset_interfaces=true"
	ask(409, "PATCH", at, patch("redfish", b.Info))
	move := func(driver string, info map[string]any) {
		t.Helper()
		ask(202, "PUT", "/v1/nodes/n/maintenance", `{"reason":"move"}`)
		if out := ask(200, "PATCH", at, patch(driver, info)); !strings.Contains(out, `"driver":"`+driver+`"`) {
			t.Errorf("after the move: %s", out)
		}
		ask(202, "DELETE", "/v1/nodes/n/maintenance", "")
		if out := ask(200, "GET", "/v1/nodes/n/validate", ""); !strings.Contains(out, `"power":{"result":true`) ||
			!strings.Contains(out, `"management":{"result":true`) {
			t.Errorf("validate: %s", out)
		}
	}
	move("redfish", b.Info)
	shows(`"power_interface":"redfish"`, `"management_interface":"redfish"`, `"redfish_rows":["hpe-`,
		`"provision_state":"active"`, `"power_state":"poweron"`)
	move("ipmi", nil)
	ingotd.Wait(t, "the rows are gone", func() bool {
		return !strings.Contains(ask(200, "GET", "/v1/nodes/n", ""), "redfish_rows")
	})
	shows(`"power_interface":"ipmitool"`, `"provision_state":"active"`, `"power_state":"poweron"`, `"fault":null`)
	if now := len(b.Machine.Boots()); now != boots || !b.Machine.On() {
		t.Errorf("the machine was started %d times more, and is on: %v", now-boots, b.Machine.On())
	}
	move("redfish", nil)
	ask(202, "PUT", "/v1/nodes/n/states/power", `{"target":"power off"}`)
	shows(`"power_state":"poweroff"`)
	if b.Machine.On() {
		t.Error("the machine is on")
	}
}
