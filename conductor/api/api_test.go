package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/hardware/fake"
	powerfake "github.com/ingot-metal/ingot/conductor/hardware/power/fake"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

type fixture struct {
	t   *testing.T
	st  *store.Store
	srv *watched
	// version is the version that call requests: the newest unless a test sets another.
	version rest.Version
}

// reassemble takes over what a test has changed in the server's configuration.
func (f *fixture) reassemble() {
	f.t.Helper()
	if err := f.srv.assemble(); err != nil {
		f.t.Fatal(err)
	}
}

func newFixture(t *testing.T, cfg Config, nodes ...node.Node) *fixture {
	t.Helper()
	st := openStore(t)
	if err := stored(st, nodes...); err != nil {
		t.Fatal(err)
	}
	cfg.Hostname, cfg.MaxVersion = "c1", rest.NewestVersion
	if cfg.Hardware == nil {
		cfg.Hardware = fakeHardware()
	}
	srv := newServer(t, st, instant{st}, cfg, slog.New(slog.DiscardHandler))
	return &fixture{t, st, srv, rest.NewestVersion}
}

// fakeHardware implements the interfaces of fake-hardware.
func fakeHardware() *hardware.Set {
	return hardware.New(func(n *node.Node, kind string) string { return driver.Interfaces(n)[kind] },
		fake.New(new(powerfake.Machines), nil).Plugs())
}

// Call sends a request with the newest version and returns status and decoded body.
func (f *fixture) call(method, path, body string) (int, map[string]any) {
	f.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set(rest.VersionHeader, f.version.String())
	w := httptest.NewRecorder()
	f.srv.ServeHTTP(w, r)
	var out map[string]any
	if w.Body.Len() > 0 {
		if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
			f.t.Fatalf("%s %s answered %s: %v", method, path, w.Body, err)
		}
	}
	return w.Code, out
}

func (f *fixture) want(status int, method, path, body string) map[string]any {
	f.t.Helper()
	code, out := f.call(method, path, body)
	if code != status {
		f.t.Fatalf("%s %s = %d %v, want %d", method, path, code, out, status)
	}
	return out
}

func TestRouteWithoutAccessRefusesToStart(t *testing.T) {
	good := (&Server{}).table()
	if _, err := newRouter(good); err != nil {
		t.Fatalf("the table: %v", err)
	}
	good[3].Access = 0
	if _, err := newRouter(good); err == nil || !strings.Contains(err.Error(), "no access rule") {
		t.Errorf("a route without access: %v", err)
	}
	twice := (&Server{}).table()
	if _, err := newRouter(append(twice, twice[2])); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a route that is there twice: %v", err)
	}
}

func TestBodyLimits(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.Available})
	f.want(413, "POST", "/v1/nodes", `{"driver":"`+strings.Repeat("x", limit.RequestBody)+`"}`)
	f.want(400, "POST", "/v1/nodes", `{"driver":"ipmi","extra":`+strings.Repeat(`{"a":`, 30)+"1"+
		strings.Repeat("}", 31))
	// A config drive may be larger than other bodies.
	drive := strings.Repeat("QUJD", 1<<19)
	f.want(202, "PUT", "/v1/nodes/n/states/provision", `{"target":"active","configdrive":"`+drive+`"}`)
}

func TestSecretsStayInside(t *testing.T) {
	f := newFixture(t, Config{})
	f.want(201, "POST", "/v1/nodes",
		`{"driver":"ipmi","name":"n","driver_info":{"ipmi_address":"192.0.2.1","ipmi_password":"hush"}}`)
	for _, path := range []string{"/v1/nodes/n", "/v1/nodes/detail", "/v1/nodes?detail=true",
		"/v1/nodes/n?fields=driver_info"} {
		if got, _ := json.Marshal(f.want(200, "GET", path, "")); bytes.Contains(got, []byte("hush")) ||
			!bytes.Contains(got, []byte("******")) {
			t.Errorf("GET %s shows %s", path, got)
		}
	}
	// Read, change, write back: the mask keeps the secret.
	f.want(200, "PATCH", "/v1/nodes/n",
		`[{"op":"replace","path":"/driver_info","value":{"ipmi_address":"192.0.2.9","ipmi_password":"******"}}]`)
	n, err := f.st.Node(t.Context(), "n")
	if err != nil || n.DriverInfo["ipmi_password"] != "hush" || n.DriverInfo["ipmi_address"] != "192.0.2.9" {
		t.Errorf("driver_info = %v, %v", n.DriverInfo, err)
	}
}

func TestPatchInTransition(t *testing.T) {
	f := newFixture(t, Config{},
		node.Node{Name: "busy", Provision: node.DeployWait, TargetProvision: node.Active,
			InstanceUUID: "5b1d39b6-3d5b-4b52-9b70-5a9e6bb4b1c1"},
		node.Node{Name: "failed", Provision: node.DeployFailed, TargetProvision: node.Active},
		node.Node{Name: "locked", Reservation: "c1"},
		node.Node{Name: "active", Provision: node.Active, ResourceClass: "gold"},
		node.Node{Name: "avail", Provision: node.Available})
	extra := `[{"op":"add","path":"/extra/a","value":1}]`
	f.want(409, "PATCH", "/v1/nodes/busy", extra)
	f.want(200, "PATCH", "/v1/nodes/failed", extra)
	f.want(409, "PATCH", "/v1/nodes/locked", extra)
	f.want(409, "DELETE", "/v1/nodes/locked", "")
	f.want(409, "PATCH", "/v1/nodes/active", `[{"op":"add","path":"/deploy_interface","value":"direct"}]`)
	f.want(409, "PATCH", "/v1/nodes/active", `[{"op":"replace","path":"/resource_class","value":"tin"}]`)
	f.want(200, "PATCH", "/v1/nodes/active",
		`[{"op":"add","path":"/protected","value":"yes"},{"op":"add","path":"/protected_reason","value":"mine"}]`)
	f.want(403, "PUT", "/v1/nodes/active/states/provision", `{"target":"deleted"}`)
	f.want(409, "PATCH", "/v1/nodes/avail", `[{"op":"add","path":"/protected","value":true}]`)
	f.want(409, "PATCH", "/v1/nodes/avail", `[{"op":"add","path":"/retired","value":true}]`)
	f.want(202, "PUT", "/v1/nodes/busy/maintenance", `{"reason":"broken"}`)
	f.want(200, "PATCH", "/v1/nodes/busy", `[{"op":"remove","path":"/instance_uuid"}]`)
	out := f.want(200, "PATCH", "/v1/nodes/failed", `[{"op":"add","path":"/maintenance","value":true}]`)
	if out["maintenance"] != true {
		t.Errorf("maintenance = %v", out["maintenance"])
	}
	f.want(204, "DELETE", "/v1/nodes/failed", "")
}

func TestPagesFitTogether(t *testing.T) {
	var nodes []node.Node
	for i := range 7 {
		nodes = append(nodes, node.Node{Name: "n" + strconv.Itoa(6-i)})
	}
	f := newFixture(t, Config{}, nodes...)
	var got []string
	path := "/v1/nodes?limit=3&sort_key=name&fields=name"
	for path != "" {
		out := f.want(200, "GET", path, "")
		for _, n := range out["nodes"].([]any) {
			got = append(got, n.(map[string]any)["name"].(string))
		}
		path, _ = out["next"].(string)
	}
	if want := "n0 n1 n2 n3 n4 n5 n6"; strings.Join(got, " ") != want {
		t.Errorf("pages = %v, want %s", got, want)
	}
}

func TestVIFsOnAFlatNetwork(t *testing.T) {
	const id = "1ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"
	f := newFixture(t, Config{}, node.Node{UUID: id, Name: "n", Interfaces: map[string]string{"network": "flat"}})
	f.want(400, "POST", "/v1/nodes/n/vifs", `{"id":"vif-1"}`) // no port
	port := f.want(201, "POST", "/v1/ports", `{"node_uuid":"`+id+`","address":"52:54:00:00:00:01"}`)["uuid"].(string)
	f.want(204, "POST", "/v1/nodes/n/vifs", `{"id":"vif-1"}`)
	f.want(409, "POST", "/v1/nodes/n/vifs", `{"id":"vif-1"}`)
	f.want(400, "POST", "/v1/nodes/n/vifs", `{"id":"vif-2"}`)
	if out := f.want(200, "GET", "/v1/nodes/n/vifs", ""); len(out["vifs"].([]any)) != 1 {
		t.Errorf("vifs = %v", out)
	}
	f.want(409, "DELETE", "/v1/ports/"+port, "")
	f.want(204, "DELETE", "/v1/nodes/n/vifs/vif-1", "")
	f.want(400, "DELETE", "/v1/nodes/n/vifs/vif-1", "")
	f.want(204, "DELETE", "/v1/ports/"+port, "")
}

func TestIngotPart(t *testing.T) {
	f := newFixture(t, Config{Logs: func(_ string, after uint64) []rest.LogLine {
		return []rest.LogLine{{Seq: after + 1, Text: "hello"}}
	}}, node.Node{Name: "n", Provision: node.DeployWait, TargetProvision: node.Active, Job: &node.Job{ID: "j",
		Phase: node.PhaseDeploy, PlanID: "plan",
		Steps: []node.JobStep{
			{Interface: "deploy", Name: "write_image", Status: node.StepRunning,
				Args: json.RawMessage(`{"configdrive":"secret"}`)}}}})
	out := f.want(200, "GET", "/ingot/v1/nodes/n/progress", "")
	if got, _ := json.Marshal(out); !bytes.Contains(got, []byte(`"bytes":10`)) ||
		!bytes.Contains(got, []byte(`"step":"write_image"`)) || bytes.Contains(got, []byte("secret")) {
		t.Errorf("progress = %s", got)
	}
	if out := f.want(200, "GET", "/ingot/v1/nodes/n/logs?after=4", ""); out["next"] != 5.0 {
		t.Errorf("logs = %v", out)
	}
	if out := f.want(200, "GET", "/ingot/v1/nodes/n/timeline", ""); len(out["marks"].([]any)) != 0 ||
		len(out["traces"].([]any)) != 0 {
		t.Errorf("timeline = %v", out)
	}
	f.want(404, "GET", "/ingot/v1/nodes/other/progress", "")
	f.want(404, "GET", "/ingot/v1/nothing", "")
}

func TestUnsupportedIsSaidSo(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n", Shard: "s1", Driver: "ipmi"}, node.Node{Name: "m"},
		node.Node{Name: "o", Shard: "s1"})
	for _, call := range []string{
		"GET states/console ", `PUT states/console {"enabled":true}`, `PUT states/boot_mode {"target":"uefi"}`,
		`PUT states/secure_boot {"target":true}`, "PUT management/inject_nmi ", "GET management/indicators ",
		"GET management/indicators/led@system ", `PUT management/indicators/led@system {"state":"on"}`, "GET vmedia ",
	} {
		method, rest, _ := strings.Cut(call, " ")
		path, body, _ := strings.Cut(rest, " ")
		out := f.want(400, method, "/v1/nodes/n/"+path, body)
		if !strings.Contains(out["error_message"].(string), "Driver ipmi does not support") {
			t.Errorf("%s = %v", call, out)
		}
		f.want(404, method, "/v1/nodes/missing/"+path, body)
	}
	// What is done behind the answer says it where it can.
	for call, what := range map[string]string{`POST {"device_type":"cdrom","image_url":"http://h/i.iso"}`: "attach",
		"DELETE ": "detach"} {
		method, body, _ := strings.Cut(call, " ")
		f.want(204, method, "/v1/nodes/n/vmedia", body)
		f.srv.parts.Wait()
		want := what + " virtual media: Driver ipmi does not support " + what +
			"_virtual_media (disabled or not implemented)."
		if out := f.want(200, "GET", "/v1/nodes/n", ""); out["last_error"] != want || out["reservation"] != nil {
			t.Errorf("after %s of virtual media: %v, lock %v, want %s", method, out["last_error"], out["reservation"],
				want)
		}
		if out, _ := json.Marshal(f.want(200, "GET", "/v1/nodes/n/history?detail=true", "")); !bytes.Contains(out,
			[]byte(want)) {
			t.Errorf("the history does not tell that %s", want)
		}
		f.want(404, method, "/v1/nodes/missing/vmedia", body)
	}
	f.want(404, "PUT", "/v1/nodes/n/states/raid", `{"logical_disks":[{"size_gb":10,"raid_level":"1"}]}`)
	f.want(204, "PUT", "/v1/nodes/n/states/raid", `{}`)
	f.want(404, "GET", "/v1/drivers/ipmi/raid/logical_disk_properties", "")
	f.want(400, "POST", "/v1/nodes/n/vendor_passthru?method=x", "{}")
	f.want(400, "POST", "/v1/drivers/ipmi/vendor_passthru", "{}")
	f.want(200, "GET", "/v1/nodes/n/vendor_passthru/methods", "")
	f.want(200, "GET", "/v1/nodes/n/bios", "")
	f.want(404, "GET", "/v1/nodes/n/bios/x", "")
	if got, _ := json.Marshal(f.want(200, "GET", "/v1/shards", "")); string(
		got) != `{"shards":[{"count":1,"name":"None"},{"count":2,"name":"s1"}]}` {
		t.Errorf("shards = %s", got)
	}
	for _, path := range []string{"/v1/nodes/n/allocation"} {
		f.want(404, "GET", path, "")
	}
}

func TestInventory(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n"})
	n, _ := f.st.Node(t.Context(), "n")
	if err := f.st.SetInventory(t.Context(), n.UUID,
		[]byte(`{"inventory":{"hostname":"h"},"boot_interface":"aa:bb:cc:dd:ee:ff"}`)); err != nil {
		t.Fatal(err)
	}
	out := f.want(200, "GET", "/v1/nodes/n/inventory", "")
	if out["inventory"].(map[string]any)["hostname"] != "h" ||
		out["plugin_data"].(map[string]any)["boot_interface"] != "aa:bb:cc:dd:ee:ff" {
		t.Errorf("inventory = %v", out)
	}
}

func TestPanicIsAnAnswer(t *testing.T) {
	f := newFixture(t, Config{Logs: func(string, uint64) []rest.LogLine { panic("bug") }}, node.Node{Name: "n"})
	var log bytes.Buffer
	f.srv.log = slog.New(slog.NewTextHandler(&log, nil))
	code, out := f.call("GET", "/ingot/v1/nodes/n/logs", "")
	if code != 500 || !strings.Contains(out["error_message"].(string), "req-") ||
		!strings.Contains(log.String(), "bug") {
		t.Errorf("a panic = %d %v, log %s", code, out, log.String())
	}
}

// TestGivenUpRequestIsNoFault: what goes wrong because the client is gone is not the server's fault, whatever a
// database calls it.
func TestGivenUpRequestIsNoFault(t *testing.T) {
	f := newFixture(t, Config{Authenticate: func(r *http.Request) (*access.Actor, error) {
		if r.Context().Err() != nil {
			return nil, errors.New("read: connection reset")
		}
		return &access.Actor{All: true}, nil
	}}, node.Node{Name: "n"})
	var log bytes.Buffer
	f.srv.log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	ctx, stop := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, "GET", "/v1/nodes/n", nil)
	interrupted := errors.New("interrupted (9)")
	if e := f.srv.translate(interrupted, &call.Call{Request: r}, "req-1"); e.Status != 500 ||
		!strings.Contains(log.String(), "interrupted") {
		t.Errorf("a database's error = %d, log %q", e.Status, log.String())
	}
	log.Reset()
	stop()
	if e := f.srv.translate(interrupted, &call.Call{Request: r}, "req-2"); e.Status != 503 {
		t.Errorf("the same after the client went = %d", e.Status)
	}
	w := httptest.NewRecorder()
	f.srv.ServeHTTP(w, r)
	if w.Code != 503 || log.Len() > 0 {
		t.Errorf("a request of a client that is gone = %d, log %s", w.Code, log.String())
	}
}

func TestConnectionOverTLSHasSecureLinks(t *testing.T) {
	f := newFixture(t, Config{})
	ts := httptest.NewTLSServer(f.srv)
	defer ts.Close()
	resp, err := ts.Client().Get(ts.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); !bytes.Contains(b, []byte(ts.URL+"/v1/")) {
		t.Errorf("root = %s", b)
	}
}

func FuzzRequests(f *testing.F) {
	f.Add("GET", "/v1/nodes?limit=1&marker=x&fields=uuid", "", "1.82")
	f.Add("PUT", "/v1/nodes/n/states/provision", `{"target":"active","configdrive":{"user_data":[]}}`, "latest")
	f.Add("PATCH", "/v1/nodes/n", `[{"op":"add","path":"/instance_info/a","value":{}}]`, "1.50")
	f.Add("POST", "/v1/ports", `{"node_uuid":"","address":":::"}`, "")
	f.Add("PUT", "/v1/nodes/n/traits", `{"traits":[{}]}`, "1.37")
	// One store for all: what earlier requests left in it makes the later ones more interesting.
	st := openStore(f)
	if err := stored(st, node.Node{Name: "n", Provision: node.Available}); err != nil {
		f.Fatal(err)
	}
	srv := newServer(f, st, instant{st}, Config{}, nil)
	f.Fuzz(func(t *testing.T, method, path, body, version string) {
		r, err := http.NewRequest(method, "http://h/"+strings.TrimPrefix(path, "/"), strings.NewReader(body))
		if err != nil {
			return
		}
		r.Header.Set(rest.VersionHeader, version)
		w := httptest.NewRecorder()
		(&watched{Server: srv.Server, t: t, odd: true}).ServeHTTP(w, r)
		if w.Code >= 500 {
			t.Errorf("%s %s %s = %d %s", method, path, body, w.Code, w.Body)
		}
	})
}
