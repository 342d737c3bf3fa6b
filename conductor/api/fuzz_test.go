package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// fuzzServer is a server over a real store, with a node of each of several kinds, a port, a chassis and a port group.
// One store for all inputs: what earlier requests left in it makes the later ones more interesting.
func fuzzServer(f *testing.F) *watched {
	f.Helper()
	st := openStore(f)
	const id = "1ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"
	if err := stored(st, node.Node{UUID: id, Name: "n", Provision: node.Available},
		node.Node{Name: "m", Provision: node.Manageable},
		node.Node{Name: "a", Provision: node.Active, Interfaces: map[string]string{"network": "flat"}},
		node.Node{Name: "w", Provision: node.CleanWait, TargetProvision: node.Available}); err != nil {
		f.Fatal(err)
	}
	if err := st.CreatePort(f.Context(), &node.Port{NodeUUID: id, Address: "52:54:00:00:00:01"}); err != nil {
		f.Fatal(err)
	}
	srv := newServer(f, st, instant{st},
		Config{Hostname: "c1", MaxVersion: rest.NewestVersion, Hardware: fakeHardware()}, nil)
	return srv
}

// ask sends what a fuzzer made up, and wants an answer that is not the server's fault.
func ask(t *testing.T, srv *watched, method, target, body string, h http.Header) {
	r, err := http.NewRequest(method, "http://h/"+strings.TrimPrefix(target, "/"), strings.NewReader(body))
	if err != nil {
		return
	}
	for k, v := range h {
		r.Header[http.CanonicalHeaderKey(k)] = v
	}
	w := httptest.NewRecorder()
	(&watched{Server: srv.Server, t: t, odd: true}).ServeHTTP(w, r)
	if w.Code >= 500 {
		t.Errorf("%s %s %v %s = %d %s", method, target, h, body, w.Code, w.Body)
	}
}

func newest() http.Header { return http.Header{rest.VersionHeader: {rest.NewestVersion.String()}} }

func FuzzNodePatch(f *testing.F) {
	for _, s := range []string{
		`[{"op":"add","path":"/extra/a","value":1}]`, `[{"op":"add","path":"/instance_info/display_name","value":[]}]`,
		`[{"op":"replace","path":"/driver_info","value":{"ipmi_password":"******"}}]`,
		`[{"op":"add","path":"/network_data","value":{}}]`, `[{"op":"add","path":"/parent_node","value":"m"}]`,
		`[{"op":"add","path":"/extra/a~1b","value":{}},{"op":"remove","path":"/extra/a~1b"}]`,
		`[{"op":"add","path":"/instance_uuid","value":"5b1d39b6-3d5b-4b52-9b70-5a9e6bb4b1c1"}]`,
		`[{"op":"remove","path":"/driver"}]`, `[{"op":"add","path":"/automated_clean","value":"maybe"}]`,
		`[{"op":"add","path":"/properties/root_device","value":{"size":"> 1"}}]`,
		`[{"op":"add","path":"/bios_interface","value":"fake"}]`, `[{"op":"add","path":"/chassis_uuid","value":null}]`,
		`{}`, `[null]`, `[[]]`,
	} {
		f.Add("n", s)
		f.Add("a", s)
	}
	srv := fuzzServer(f)
	f.Fuzz(func(t *testing.T, name, body string) {
		if strings.ContainsAny(name, "/?#") {
			return
		}
		ask(t, srv, "PATCH", "/v1/nodes/"+name, body, newest())
		ask(t, srv, "GET", "/v1/nodes/n", "", newest()) // what is stored can still be shown
		ask(t, srv, "GET", "/v1/nodes/detail", "", newest())
	})
}

func FuzzBodies(f *testing.F) {
	for _, s := range [][3]string{
		{"POST", "nodes", `{"driver":"fake-hardware","name":"x","parent_node":"n"}`},
		{"POST", "ports", `{"node_uuid":"","address":":::"}`},
		{"PUT", "nodes/n/states/provision",
			`{"target":"active","configdrive":{"user_data":[]},"deploy_steps":[{"interface":"bios","step":"x","args":{},"priority":"1"}]}`},
		{"PUT", "nodes/m/states/provision",
			`{"target":"clean","clean_steps":[{"interface":"bios","step":"x","order":1e99}],"runbook":[]}`},
		{"PUT", "nodes/n/states/power", `{"target":"power on","timeout":1e300}`},
		{"PUT", "nodes/n/states/raid", `{"logical_disks":[{"size_gb":{},"raid_level":1}]}`},
		{"PUT", "nodes/n/states/boot_mode", `{"target":{}}`}, {"PUT", "nodes/n/states/console", `{"enabled":[]}`},
		{"PUT", "nodes/n/traits", `{"traits":[{}]}`}, {"POST", "nodes/a/vifs", `{"id":"x","port_uuid":[]}`},
		{"POST", "nodes/n/vmedia", `{"device_type":"cdrom","image_url":"http://[::1"}`},
		{"POST", "nodes/n/vendor_passthru?method=third_method_sync", `{"bar":{}}`},
		{"PUT", "nodes/n/management/indicators/led@system", `{"state":"ON"}`},
		{"POST", "heartbeat/w", `{"callback_url":"http://%zz","agent_token":[]}`},
		{"POST", "continue_inspection", `{"inventory":{"interfaces":[{"mac_address":"52:54:00:00:00:01"}]}}`},
		{"POST", "events", `{"events":[{"event":"network.bind_port","port_id":1}]}`},
		{"POST", "allocations", `{"resource_class":{},"candidate_nodes":[1]}`},
		{"POST", "deploy_templates", `{"name":"CUSTOM_A","steps":[{}]}`},
		{"POST", "runbooks", `{"name":"CUSTOM_A","steps":[{"order":[]}]}`}, {"POST", "chassis", `{"extra":[]}`},
		{"POST", "portgroups", `{"node_uuid":{},"mode":1}`}, {"POST", "volume/targets", `{"boot_index":"x"}`},
		{"POST", "inspection_rules", `{"conditions":[{"op":"eq","args":{}}],"actions":[{}]}`},
	} {
		f.Add(s[0], s[1], s[2])
	}
	srv := fuzzServer(f)
	f.Fuzz(func(t *testing.T, method, path, body string) {
		if method != "POST" && method != "PUT" && method != "PATCH" {
			return
		}
		ask(t, srv, method, "/v1/"+path, body, newest())
	})
}

func FuzzQueries(f *testing.F) {
	for _, path := range []string{"nodes", "nodes/detail", "nodes/n", "ports", "drivers", "conductors", "lookup",
		"nodes/n/history", "nodes/n/bios", "allocations", "chassis", "shards"} {
		for _, q := range []string{"limit=1&marker=x&fields=uuid", "sort_key=last_error&sort_dir=desc&limit=2",
			"detail=True&fields=a", "fault=x&conductor_group=%00", "parent_node=&include_children=maybe",
			"addresses=52:54:00:00:00:01,x&node_uuid=", "shard=a,,b&sharded=1", "provision_state=none", "a=1&a=2",
			"%zz", ";"} {
			f.Add(path, q)
		}
	}
	srv := fuzzServer(f)
	f.Fuzz(func(t *testing.T, path, query string) {
		if strings.ContainsAny(path, "?#") {
			return
		}
		ask(t, srv, "GET", "/v1/"+path+"?"+query, "", newest())
		ask(t, srv, "DELETE", "/v1/nodes/n/vmedia?"+query, "", newest())
	})
}

func FuzzHeaders(f *testing.F) {
	for _, v := range []string{"1.82", "latest", "1.0", "9999999999.1", "1.1.1", "-1.1", "", "١.٥"} {
		f.Add(v, "baremetal "+v, "application/json", "h:1")
		f.Add("", "compute 2.1,baremetal "+v+" ,", "text/html, */*;q=0", "[::1]:1")
	}
	srv := fuzzServer(f)
	f.Fuzz(func(t *testing.T, own, whole, accept, host string) {
		h := http.Header{rest.VersionHeader: {own}, rest.ServiceHeader: {whole, whole}, "Accept": {accept},
			"Host": {host}, "Authorization": {accept}}
		for _, path := range []string{"/", "/v1", "/v1/nodes", "/v1/nodes/n", "/v1/nodes/n/states"} {
			ask(t, srv, "GET", path, "", h)
		}
	})
}
