package api

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (f *fixture) text(status int, method, path, body, part string) {
	f.t.Helper()
	if out := f.want(status, method, path, body); !strings.Contains(out["error_message"].(string), part) {
		f.t.Errorf("%s %s = %v, want %q", method, path, out, part)
	}
}

func TestPartsOfAFakeNode(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n"})
	f.want(202, "PUT", "/v1/nodes/n/states/console", `{"enabled":"yes"}`)
	if out := f.want(200, "GET", "/v1/nodes/n/states/console", ""); out["console_enabled"] != true ||
		out["console_info"] == nil {
		t.Errorf("console = %v", out)
	}
	f.text(409, "PATCH", "/v1/nodes/n", `[{"op":"replace","path":"/driver","value":"ipmi"}]`, "stop the console first")
	f.want(202, "PUT", "/v1/nodes/n/states/console", `{"enabled":false}`)
	f.text(400, "PUT", "/v1/nodes/n/states/console", `{}`, "enabled")

	f.want(202, "PUT", "/v1/nodes/n/states/boot_mode", `{"target":"uefi"}`)
	f.want(202, "PUT", "/v1/nodes/n/states/secure_boot", `{"target":"on"}`)
	if out := f.want(200, "GET", "/v1/nodes/n/states", ""); out["boot_mode"] != "uefi" || out["secure_boot"] != true {
		t.Errorf("states = %v", out)
	}
	f.text(400, "PUT", "/v1/nodes/n/states/boot_mode", `{"target":null}`, "Invalid boot mode None")
	f.text(400, "PUT", "/v1/nodes/n/states/secure_boot", `{"target":null}`, "Invalid secure_boot None")

	f.want(204, "PUT", "/v1/nodes/n/management/indicators/led@system", `{"state":"blinking"}`)
	if out := f.want(200, "GET", "/v1/nodes/n/management/indicators/led@system", ""); out["state"] != "blinking" {
		t.Errorf("lamp = %v", out)
	}
	f.want(400, "PUT", "/v1/nodes/n/management/indicators/led-0@chassis", `{"state":"on"}`) // can only be read
	f.want(400, "GET", "/v1/nodes/n/management/indicators/no@system", "")
	f.text(400, "PUT", "/v1/nodes/n/management/indicators/led", `{"state":"on"}`, "Malformed indicator name")

	f.want(204, "PUT", "/v1/nodes/n/states/raid", `{"logical_disks":[{"size_gb":"MAX","raid_level":"1+0"}]}`)
	if got, _ := json.Marshal(f.want(200, "GET", "/v1/nodes/n", "")["target_raid_config"]); string(
		got) != `{"logical_disks":[{"raid_level":"1+0","size_gb":"MAX"}]}` {
		t.Errorf("target_raid_config = %s", got)
	}
	f.want(400, "PUT", "/v1/nodes/n/states/raid", `{"logical_disks":[{"size_gb":10}]}`)
	f.want(400, "PUT", "/v1/nodes/n/states/raid", `[]`)
	if out := f.want(200, "GET", "/v1/drivers/fake-hardware/raid/logical_disk_properties",
		""); out["raid_level"] == nil {
		t.Errorf("properties of logical disks = %v", out)
	}
	f.want(404, "GET", "/v1/drivers/missing/raid/logical_disk_properties", "")

	f.text(400, "POST", "/v1/nodes/n/vmedia", `{"device_type":"tape","image_url":"http://h/i"}`, "not one of")
	f.text(400, "POST", "/v1/nodes/n/vmedia", `{"device_type":"cdrom","image_url":"file:///etc/passwd"}`,
		"Unsupported or missing URL scheme: file")
	f.text(400, "POST", "/v1/nodes/n/vmedia", `{"device_type":"cdrom","image_url":"/etc/passwd"}`,
		"Unsupported or missing URL scheme: ")
	f.text(400, "DELETE", "/v1/nodes/n/vmedia?device_types=cdrom,tape", "", "Invalid device type(s) tape")
	f.text(400, "DELETE", "/v1/nodes/n/vmedia", `{"device_types":"cdrom,tape"}`, "Invalid device type(s) tape")

	// A vendor's method is named in the address or in the query.
	for _, address := range []string{"vendor_passthru/second_method", "vendor_passthru?method=second_method"} {
		f.want(202, "POST", "/v1/nodes/n/"+address, `{"bar":"kazoo"}`)
		f.srv.parts.Wait()
	}
	f.text(400, "POST", "/v1/nodes/n/vendor_passthru/no_such", "{}", "No handler for method no_such")
	f.text(400, "POST", "/v1/drivers/fake-hardware/vendor_passthru/no_such", "{}", "No handler for method no_such")
	f.want(404, "POST", "/v1/drivers/missing/vendor_passthru/no_such", "{}")

	if got, _ := json.Marshal(f.want(200, "GET", "/v1/nodes/n/firmware", "")); string(got) != `{"firmware":[]}` {
		t.Errorf("firmware = %s", got)
	}
	for _, e := range f.want(200, "GET", "/v1/nodes/n/history?detail=true", "")["history"].([]any) {
		if e.(map[string]any)["event"] == "boot mode set to uefi" {
			return
		}
	}
	t.Error("the history does not tell of the boot mode")
}

func TestPartsNeedTheirVersion(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n"})
	for _, c := range []struct {
		method, path, body string
		since              rest.Version
		status             int
	}{
		{"PUT", "states/raid", "{}", 12, 406},
		{"PUT", "management/inject_nmi", "", 29, 404},
		{"GET", "bios", "", 40, 404},
		{"GET", "management/indicators", "", 63, 404},
		{"GET", "bios?detail=true", "", 74, 400},
		{"PUT", "states/boot_mode", `{"target":"bios"}`, 76, 404},
		{"PUT", "states/secure_boot", `{"target":false}`, 76, 404},
		{"GET", "children", "", 83, 404},
		{"GET", "firmware", "", 86, 404},
		{"DELETE", "vmedia", "", 89, 404},
	} {
		f.version = c.since - 1
		f.want(c.status, c.method, "/v1/nodes/n/"+c.path, c.body)
		f.version = c.since
		if code, out := f.call(c.method, "/v1/nodes/n/"+c.path, c.body); code >= 404 {
			t.Errorf("%s %s at %s = %d %v", c.method, c.path, c.since, code, out)
		}
	}
}

func TestVirtualMedia(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n"})
	get := func(version string) (int, []map[string]any) {
		r := httptest.NewRequest("GET", "/v1/nodes/n/vmedia", nil)
		r.Header.Set(rest.VersionHeader, version)
		w := httptest.NewRecorder()
		f.srv.ServeHTTP(w, r)
		var out []map[string]any
		json.Unmarshal(w.Body.Bytes(), &out) // an error's body is no list
		return w.Code, out
	}
	if code, _ := get("1.92"); code != 404 {
		t.Errorf("virtual media at 1.92 = %d", code)
	}
	inserted := func() (n int) {
		code, out := get("1.93")
		if code != 200 || len(out) == 0 {
			t.Fatalf("virtual media = %d %v", code, out)
		}
		for _, m := range out {
			if m["inserted"] == true {
				n++
			}
		}
		return n
	}
	f.want(204, "POST", "/v1/nodes/n/vmedia", `{"device_type":"cdrom","image_url":"http://192.0.2.1/i.iso"}`)
	f.want(204, "POST", "/v1/nodes/n/vmedia",
		`{"device_type":"floppy","image_url":"http://192.0.2.1/f.img","image_download_source":"http"}`)
	if n := inserted(); n != 2 {
		t.Errorf("%d images are in, want 2", n)
	}
	f.want(204, "DELETE", "/v1/nodes/n/vmedia?device_types=cdrom", "")
	if n := inserted(); n != 1 {
		t.Errorf("%d images are in, want 1", n)
	}
	f.want(204, "DELETE", "/v1/nodes/n/vmedia", "")
	if n := inserted(); n != 0 {
		t.Errorf("%d images are in, want none", n)
	}
}

func TestBIOSSettings(t *testing.T) {
	yes, at := true, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f := newFixture(t, Config{}, node.Node{Name: "n", BIOS: []node.BIOSSetting{
		{Name: "boot", Value: "uefi", CreatedAt: at, AttributeType: "Enumeration", Allowable: []string{"bios", "uefi"},
			ReadOnly: &yes}, {Name: "virt", CreatedAt: at},
	}})
	short := f.want(200, "GET", "/v1/nodes/n/bios", "")["bios"].([]any)[0].(map[string]any)
	if len(short) != 5 || short["value"] != "uefi" {
		t.Errorf("a setting in a list = %v", short)
	}
	long := f.want(200, "GET", "/v1/nodes/n/bios?detail=true", "")["bios"].([]any)[0].(map[string]any)
	if long["attribute_type"] != "Enumeration" || long["read_only"] != true || long["lower_bound"] != nil {
		t.Errorf("a setting in detail = %v", long)
	}
	one := f.want(200, "GET", "/v1/nodes/n/bios?fields=name,unique", "")["bios"].([]any)[1].(map[string]any)
	if _, ok := one["unique"]; !ok || one["name"] != "virt" || len(one) != 5 {
		t.Errorf("a setting by fields = %v", one)
	}
	f.text(400, "GET", "/v1/nodes/n/bios?fields=name&detail=true", "", "Can not specify")
	f.want(400, "GET", "/v1/nodes/n/bios?fields=no_such", "")
	f.version = 73
	if out := f.want(200, "GET", "/v1/nodes/n/bios/boot", "")["boot"].(map[string]any); len(out) != 5 {
		t.Errorf("a setting at 1.73 = %v", out)
	}
}

func TestVendorMethods(t *testing.T) {
	gate := make(chan struct{})
	f := newFixture(t, Config{Hardware: gatedHardware(gate)}, node.Node{Name: "n"})
	f.text(400, "POST", "/v1/nodes/n/vendor_passthru?method=second_method", `{}`, "Parameter 'bar' not passed")
	f.text(400, "GET", "/v1/nodes/n/vendor_passthru?method=second_method", "", "does not support HTTP GET")
	f.text(400, "POST", "/v1/nodes/n/vendor_passthru", `{}`, "Missing mandatory parameter: method")
	f.want(202, "POST", "/v1/nodes/n/vendor_passthru?method=second_method", `{"bar":"kazoo"}`)
	// The method holds the lock until it ends.
	for _, c := range []struct{ method, path, body string }{
		{"POST", "vendor_passthru?method=second_method", `{"bar":"kazoo"}`},
		{"PUT", "states/power", `{"target":"power on"}`}, {"PUT", "states/provision", `{"target":"manage"}`},
		{"PUT", "states/console", `{"enabled":true}`}, {"PUT", "states/raid", `{}`},
		{"PUT", "states/boot_mode", `{"target":"bios"}`}, {"PUT", "traits/CUSTOM_A", ""},
	} {
		f.text(409, c.method, "/v1/nodes/n/"+c.path, c.body, "is locked by host c1")
	}
	f.text(409, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/extra/a","value":1}]`, "is locked by host c1")
	f.text(409, "DELETE", "/v1/nodes/n", "", "is locked by host c1")
	f.want(202, "POST", "/v1/nodes/n/vendor_passthru?method=fourth_method_shared_lock", `{"bar":"woof"}`)
	gate <- struct{}{}
	gate <- struct{}{}
	f.srv.parts.Wait()
	if out := f.want(200, "GET", "/v1/nodes/n", ""); out["reservation"] != nil {
		t.Errorf("reservation = %v when all has ended", out["reservation"])
	}
	close(gate)
	r := httptest.NewRequest("POST", "/v1/nodes/n/vendor_passthru?method=third_method_sync",
		strings.NewReader(`{"bar":"meow"}`))
	r.Header.Set(rest.VersionHeader, "1.82")
	w := httptest.NewRecorder()
	f.srv.ServeHTTP(w, r)
	if w.Code != 200 || w.Body.String() != "true" {
		t.Errorf("a synchronous method = %d %s", w.Code, w.Body)
	}
}

func TestStockAgent(t *testing.T) {
	const mac = "52:54:00:00:00:01"
	f := newFixture(t, Config{},
		node.Node{Name: "n", Provision: node.DeployWait, TargetProvision: node.Active,
			Job: &node.Job{ID: "j1", Phase: node.PhaseDeploy}, InstanceInfo: map[string]any{"configdrive": "secret"}})
	n, _ := f.st.Node(t.Context(), "n")
	if err := f.st.CreatePort(t.Context(), &node.Port{NodeUUID: n.UUID, Address: mac}); err != nil {
		t.Fatal(err)
	}
	token := func(query string) string {
		t.Helper()
		out := f.want(200, "GET", "/v1/lookup?"+query, "")
		if b, _ := json.Marshal(out); strings.Contains(string(b), "secret\"") ||
			strings.Contains(string(b), `"secret`) {
			t.Errorf("lookup shows %s", b)
		}
		return out["config"].(map[string]any)["agent_token"].(string)
	}
	good := token("addresses=bogus," + strings.ToUpper(mac))
	if len(good) != 43 {
		t.Errorf("token = %q", good)
	}
	if again := token("node_uuid=" + n.UUID); again != rest.Masked {
		t.Errorf("the second lookup gave %q", again)
	}
	beat := func(token, url, part string) {
		t.Helper()
		f.text(400, "POST", "/v1/heartbeat/"+n.UUID, `{"callback_url":"`+url+`","agent_version":"9","agent_token":"`+
			token+`"}`, part)
	}
	beat("wrong", "http://192.0.2.1:9999", "Invalid or missing agent token")
	beat(good, "ftp://192.0.2.1", "callback_url")
	beat(good, "http://192.0.2.1:9999", "drives its own agent only")
	beat(good, "http://192.0.2.1:9999", "drives its own agent only")
	beat(good, "http://192.0.2.2:9999", "Detected change")
	count := 0
	for _, e := range f.want(200, "GET", "/v1/nodes/n/history", "")["history"].([]any) {
		if strings.Contains(e.(map[string]any)["event"].(string), "foreign agent") {
			count++
		}
	}
	if count != 1 {
		t.Errorf("the history mentions the agent %d times", count)
	}
	// Another job is another boot: the token is void.
	if _, err := f.st.UpdateNode(t.Context(), n.UUID,
		func(n *node.Node) error { n.Job.ID = "j2"; return nil }); err != nil {
		t.Fatal(err)
	}
	beat(good, "http://192.0.2.1:9999", "Invalid or missing agent token")
	if fresh := token("node_uuid=" + n.UUID); fresh == good || len(fresh) != 43 {
		t.Errorf("the token of another job = %q", fresh)
	}
	if _, err := f.st.UpdateNode(t.Context(), n.UUID,
		func(n *node.Node) error { n.Provision = node.Active; return nil }); err != nil {
		t.Fatal(err)
	}
	f.text(404, "GET", "/v1/lookup?node_uuid="+n.UUID, "", "Resource could not be found.")
	f.text(404, "GET", "/v1/lookup?node_uuid=00000000-0000-4000-8000-000000000000", "", "Resource could not be found.")
}

func TestContinueInspection(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.InspectWait, TargetProvision: node.Manageable})
	n, _ := f.st.Node(t.Context(), "n")
	if err := f.st.CreatePort(t.Context(), &node.Port{NodeUUID: n.UUID, Address: "52:54:00:00:00:01"}); err != nil {
		t.Fatal(err)
	}
	body := `{"inventory":{"interfaces":[{"mac_address":"52:54:00:00:00:01"}]}}`
	f.text(400, "POST", "/v1/continue_inspection", `{"inventory":{"interfaces":[]}}`, "too short")
	f.text(400, "POST", "/v1/continue_inspection", `{}`, "'inventory' is a required property")
	f.text(400, "POST", "/v1/continue_inspection", body, "drives its own agent only")
	f.text(404, "POST", "/v1/continue_inspection", strings.ReplaceAll(body, "01", "02"), "Resource could not be found.")
	f.text(400, "POST", "/v1/continue_inspection", `{"inventory":{"interfaces":[{"mac_address":"x"}]}}`,
		"No lookup information")
	f.want(413, "POST", "/v1/continue_inspection", `{"x":"`+strings.Repeat("x", limit.Inspection)+`"}`)
	f.version = 83
	f.want(404, "POST", "/v1/continue_inspection", body)
	f.version = 1
	f.want(400, "POST", "/v1/continue_inspection", body)
}
