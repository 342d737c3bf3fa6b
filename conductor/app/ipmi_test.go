//go:build !race

package app_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/redfish"
)

// TestIPMIOverREST: a node of type ipmi is interrupted, its controller restarted and sent a command, through the API,
// over real HTTP and real IPMI. What is wrong is said at once, or in the node's record, without the command's bytes.
func TestIPMIOverREST(t *testing.T) {
	t.Parallel()
	b := redfish.StartBoth(t, redfish.Personality(t, "generic"))
	d := ingotd.Start(t, kit.FreeAddr(t), "log_level=debug")
	said := ""
	asked := asking(t, d, &said)
	ask := func(want int, method, path, body string) string {
		t.Helper()
		return strings.ReplaceAll(asked(want, method, path, body), " ", "")
	}
	info, err := json.Marshal(b.IPMI)
	if err != nil {
		t.Fatal(err)
	}
	if made := ask(201, "POST", "/v1/nodes", `{"name":"n","driver":"ipmi","driver_info":`+string(info)+`}`); !strings.
		Contains(made, `"vendor_interface":"ipmitool"`) {
		t.Errorf("the node: %s", made)
	}
	const nmi, vendor = "/v1/nodes/n/management/inject_nmi", "/v1/nodes/n/vendor_passthru"
	ask(400, "PUT", nmi, `{}`) // the machine is off
	if err := b.Machine.Start(); err != nil {
		t.Fatal(err)
	}
	ask(204, "PUT", nmi, `{}`)
	if n := b.Machine.NMIs(); n != 1 {
		t.Errorf("the machine got %d interrupts", n)
	}
	methods := ask(200, "GET", vendor+"/methods", "")
	for _, name := range []string{`"bmc_reset":{`, `"send_raw":{`, `"require_exclusive_lock":true`} {
		if !strings.Contains(methods, name) {
			t.Errorf("the methods lack %s: %s", name, methods)
		}
	}
	free := func() {
		t.Helper()
		ingotd.Wait(t, "the node is free", func() bool {
			return strings.Contains(ask(200, "GET", "/v1/nodes/n", ""), `"reservation":null`)
		})
	}
	for _, body := range []string{`{}`, `{"warm": "false"}`} {
		ask(202, "POST", vendor+"?method=bmc_reset", body)
		free()
	}
	if got := b.BMC.Restarts(); !slices.Equal(got, []string{"warm", "cold"}) {
		t.Errorf("the controller was restarted %v", got)
	}
	ask(202, "POST", vendor+"?method=send_raw", `{"raw_bytes": "0x00 0x02 0x00"}`) // chassis control: power down
	ingotd.Wait(t, "the machine is off", func() bool { return !b.Machine.On() })
	free()
	ask(400, "POST", vendor+"?method=send_raw", `{"raw_bytes": "0x30 0x71 s3cr3t"}`)
	ask(400, "POST", vendor+"?method=bmc_reset", `{"warm": "lukewarm"}`)
	ask(400, "DELETE", vendor+"?method=bmc_reset", "")
	ask(202, "POST", vendor+"?method=send_raw", `{"raw_bytes": "0x30 0x71 115 51 99 114 51 116"}`)
	ingotd.Wait(t, "the refusal is in the node's record", func() bool {
		return strings.Contains(ask(200, "GET", "/v1/nodes/n", ""), `vendormethodsend_rawfailed`)
	})
	free()
	for _, secret := range []string{"s3cr3t", "115 51", "733363723374"} {
		if strings.Contains(said+d.Log.String(), secret) {
			t.Errorf("%q of a command is in an answer or in the log", secret)
		}
	}
	if n := b.BMC.Overlaps(); n != 0 {
		t.Errorf("%d requests at once at the controller", n)
	}
}
