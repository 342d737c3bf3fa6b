//go:build !race

package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/redfish"
)

// asking returns a function that sends a request, of which a status is wanted, adds the answer to all that was said,
// and returns it.
func asking(t *testing.T, d *ingotd.Process, said *string) func(want int, method, path, body string) string {
	return func(want int, method, path, body string) string {
		t.Helper()
		status, _, out := d.Ask(method, path, body, nil)
		if status != want {
			t.Fatalf("%s %s %s = %d %s, want %d", method, path, body, status, out, want)
		}
		*said += out
		return out
	}
}

// TestRedfishOverREST: a node of type redfish is enrolled, turned on and off, told what to boot and interrupted through
// the API, over real HTTP on both sides; the password is nowhere, and when the conductor stops no session is left.
func TestRedfishOverREST(t *testing.T) {
	for _, name := range []string{"generic", "dell-idrac10", "hpe-ilo6", "ami"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := redfish.Start(t, redfish.Personality(t, name))
			d := ingotd.Start(t, kit.FreeAddr(t), "fetch.allow=127.0.0.0/8", "log_level=debug")
			said := ""
			ask := asking(t, d, &said)
			info, err := json.Marshal(b.Info)
			if err != nil {
				t.Fatal(err)
			}
			made := ask(201, "POST", "/v1/nodes",
				`{"name":"n","driver":"`+driverOf(name)+`","driver_info":`+string(info)+`}`)
			if iface := interfaceOf(name, "redfish"); !strings.Contains(made, `"power_interface":"`+iface+`"`) ||
				!strings.Contains(made, `"management_interface":"`+iface+`"`) {
				t.Errorf("the interfaces are not %s: %s", iface, made)
			}
			if out := ask(200, "GET", "/v1/nodes/n/validate", ""); !strings.Contains(out, `"power":{"result":true`) {
				t.Errorf("validate: %s", out)
			}
			until := func(what string) {
				t.Helper()
				ingotd.Wait(t, what, func() bool {
					states := ask(200, "GET", "/v1/nodes/n/states", "")
					return strings.Contains(strings.ReplaceAll(states, " ", ""), what)
				})
			}
			power := func(target, state string) {
				t.Helper()
				ask(202, "PUT", "/v1/nodes/n/states/power", `{"target":"`+target+`"}`)
				until(`"target_power_state":null`)
				until(`"power_state":"` + strings.ReplaceAll(state, " ", "") + `"`)
			}
			ask(202, "PUT", "/v1/nodes/n/states/provision", `{"target":"manage"}`)
			until(`"provision_state":"manageable"`)
			rows := map[string]string{"dell-idrac10": "idrac10-on-after-off", "hpe-ilo6": "hpe-connections",
				"ami": "ami-whole-boot"}
			out := ask(200, "GET", "/v1/nodes/n", "")
			if strings.Contains(out, `"redfish_rows":["`) == (name == "generic") || !strings.Contains(out, rows[name]) {
				t.Errorf("the node does not show its rows: %s", out)
			}
			power("power on", "power on")
			if !b.Machine.On() {
				t.Error("the machine is off")
			}
			for _, target := range []string{"rebooting", "soft rebooting"} {
				if target == "soft rebooting" && name == "ami" {
					continue
				}
				starts := len(b.Machine.Boots())
				power(target, "power on")
				if now := len(b.Machine.Boots()); now <= starts {
					t.Errorf("%s: the machine was not started again", target)
				}
			}
			devices := ask(200, "GET", "/v1/nodes/n/management/boot_device/supported", "")
			for _, device := range []string{"pxe", "disk", "cdrom", "bios"} {
				if !strings.Contains(devices, `"`+device+`"`) {
					t.Errorf("supported devices: %s", devices)
				}
				for _, persistent := range []bool{true, false} {
					ask(204, "PUT", "/v1/nodes/n/management/boot_device",
						fmt.Sprintf(`{"boot_device":"%s","persistent":%v}`, device, persistent))
					out := strings.ReplaceAll(ask(200, "GET", "/v1/nodes/n/management/boot_device", ""), " ", "")
					if !strings.Contains(out, fmt.Sprintf(`"boot_device":"%s"`, device)) ||
						!strings.Contains(out, fmt.Sprintf(`"persistent":%v`, persistent)) {
						t.Errorf("boot device: %s, want %s, persistent %v", out, device, persistent)
					}
				}
			}
			ask(202, "PUT", "/v1/nodes/n/states/boot_mode", `{"target":"uefi"}`)
			ask(202, "PUT", "/v1/nodes/n/states/secure_boot", `{"target":true}`)
			if boot, _ := b.BMC.Boot(); !boot.UEFI {
				t.Error("the boot mode is not UEFI")
			}
			if name != "ami" { // which has no NMI
				ask(204, "PUT", "/v1/nodes/n/management/inject_nmi", `{}`)
				if n := b.Machine.NMIs(); n != 1 {
					t.Errorf("the machine got %d interrupts", n)
				}
			} else {
				ask(400, "PUT", "/v1/nodes/n/management/inject_nmi", `{}`)
			}
			power("soft power off", "power off")
			power("power on", "power on")
			power("power off", "power off")
			if b.Machine.On() {
				t.Error("the machine is on")
			}
			if n := b.Service.Sessions(); n != 1 {
				t.Errorf("%d sessions, want 1", n)
			}
			if n := b.Service.MostAtOnce(); n != 1 {
				t.Errorf("%d requests at once, want 1", n)
			}
			ask(201, "POST", "/v1/nodes", `{"name":"bad","driver":"redfish","driver_info":{"redfish_auth_type":"x"}}`)
			if out := ask(200, "GET", "/v1/nodes/bad/validate", ""); !strings.Contains(out,
				"Missing the following Redfish properties") || !strings.Contains(out, "redfish_auth_type") {
				t.Errorf("validate of a node without address: %s", out)
			}
			if err := syscall.Kill(d.PID, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			ingotd.Wait(t, "all sessions are deleted", func() bool { return b.Service.Sessions() == 0 })
			if said += d.Log.String(); strings.Contains(said, redfish.Password) {
				t.Error("the password is in an answer or in the log")
			}
			if _, err := http.Get(d.URL); err == nil && b.Service.Sessions() > 0 {
				t.Error("there is a session again")
			}
		})
	}
}
