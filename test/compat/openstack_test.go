// Package compat runs clients that others wrote, unmodified, against the conductor's API.
package compat

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/compat/bench"
	"github.com/ingot-metal/ingot/test/kit/openstack"
)

// ironic is `openstack baremetal` for an endpoint without a login.
type ironic struct {
	t        *testing.T
	client   *openstack.Client
	endpoint string
}

// try runs `openstack baremetal ARGS` and returns what it printed.
func (o *ironic) try(args ...string) (stdout, stderr string, err error) {
	o.t.Helper()
	env := []string{"OS_AUTH_TYPE=none", "OS_ENDPOINT=" + o.endpoint}
	return o.client.Run(env, append([]string{"baremetal"}, args...)...)
}

func (o *ironic) run(args ...string) string {
	o.t.Helper()
	out, _, err := o.try(args...)
	if err != nil {
		o.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// json runs a command that shows something and decodes it.
func (o *ironic) json(into any, args ...string) {
	o.t.Helper()
	out := o.run(append(args, "-f", "json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		o.t.Fatalf("openstack baremetal %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// field shows one field of a node.
func (o *ironic) field(name, field string) any {
	o.t.Helper()
	var n map[string]any
	o.json(&n, "node", "show", name, "--fields", field)
	return n[field]
}

func (o *ironic) wantField(name, field string, want any) {
	o.t.Helper()
	if got := o.field(name, field); got != want {
		o.t.Fatalf("%s of %s = %v, want %v", field, name, got, want)
	}
}

// fails runs a command that has to fail and say why.
func (o *ironic) fails(text string, args ...string) {
	o.t.Helper()
	out, errs, err := o.try(args...)
	if err == nil || !strings.Contains(errs, text) {
		o.t.Fatalf("openstack baremetal %s: %v, want a failure with %q\n%s%s", strings.Join(args, " "), err, text, out,
			errs)
	}
}

// TestOpenstackClient walks a machine through its life as a user of `openstack baremetal` does.
func TestOpenstackClient(t *testing.T) {
	var mu sync.Mutex
	faults := map[string]int{}
	c := bench.Start(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rec := &statusRecorder{ResponseWriter: w}
			h.ServeHTTP(rec, r)
			if rec.status >= 500 {
				mu.Lock()
				faults[r.Method+" "+r.URL.Path] = rec.status
				mu.Unlock()
			}
		})
	})
	o := &ironic{t, openstack.Start(t), c.URL}

	var drivers []map[string]any
	o.json(&drivers, "driver", "list")
	if len(drivers) != 6 {
		t.Errorf("driver list = %v", drivers)
	}
	o.run("driver", "show", "ipmi")
	var conductors []map[string]any
	o.json(&conductors, "conductor", "list")
	if len(conductors) != 1 || conductors[0]["Alive"] != true {
		t.Errorf("conductor list = %v", conductors)
	}

	var made map[string]any
	o.json(&made, "node", "create", "--driver", "fake-hardware", "--name", "n1", "--driver-info", "fake_delay=10ms",
		"--property", "cpus=4", "--resource-class", "gold")
	id := made["uuid"].(string)
	if made["provision_state"] != "enroll" || made["name"] != "n1" {
		t.Errorf("node create = %v", made)
	}
	o.fails("already exists", "node", "create", "--driver", "fake-hardware", "--name", "n1")
	o.fails("could not be found", "node", "show", "missing")
	o.fails("No valid host was found", "node", "create", "--driver", "nonsense")

	var port map[string]any
	o.json(&port, "port", "create", "52:54:00:12:34:56", "--node", id)
	if port["address"] != "52:54:00:12:34:56" || port["node_uuid"] != id {
		t.Errorf("port create = %v", port)
	}
	var ports []map[string]any
	o.json(&ports, "port", "list", "--node", "n1")
	if len(ports) != 1 {
		t.Errorf("port list = %v", ports)
	}
	o.run("port", "show", port["uuid"].(string))
	o.run("port", "set", port["uuid"].(string), "--extra", "a=b")
	o.run("port", "unset", port["uuid"].(string), "--extra", "a")

	o.run("node", "set", "n1", "--description", "the first", "--extra", "rack=r1", "--property",
		"capabilities=boot_mode:bios")
	o.run("node", "unset", "n1", "--extra", "rack")
	o.wantField("n1", "description", "the first")
	o.fails("can not be performed", "node", "provide", "n1")

	o.run("node", "manage", "n1", "--wait", "300")
	o.wantField("n1", "provision_state", "manageable")
	o.wantField("n1", "power_state", "power off")
	o.run("node", "validate", "n1")
	o.run("node", "inspect", "n1", "--wait", "300")
	o.run("node", "provide", "n1", "--wait", "300")
	o.wantField("n1", "provision_state", "available")

	o.run("node", "power", "on", "n1", "--power-timeout", "300")
	waitField(t, o, "n1", "power_state", "power on")
	o.run("node", "reboot", "n1")
	waitField(t, o, "n1", "target_power_state", nil)
	o.run("node", "power", "off", "n1", "--soft")
	waitField(t, o, "n1", "power_state", "power off")
	o.run("node", "boot", "device", "set", "n1", "pxe", "--persistent")
	var device map[string]any
	o.json(&device, "node", "boot", "device", "show", "n1")
	if device["boot_device"] != "pxe" || device["persistent"] != true {
		t.Errorf("boot device = %v", device)
	}
	o.run("node", "boot", "device", "show", "n1", "--supported")

	o.run("node", "maintenance", "set", "n1", "--reason", "looking at it")
	o.wantField("n1", "maintenance_reason", "looking at it")
	o.run("node", "maintenance", "unset", "n1")
	o.wantField("n1", "maintenance", false)

	o.run("node", "add", "trait", "n1", "CUSTOM_FAST")
	o.run("node", "trait", "list", "n1")
	o.run("node", "remove", "trait", "n1", "CUSTOM_FAST")
	o.run("node", "vif", "list", "n1")

	o.run("node", "set", "n1", "--instance-info", "image_source=http://example.org/image.raw.zst", "--instance-info",
		"image_os_hash_algo=sha256", "--instance-info", "image_os_hash_value="+strings.Repeat("0", 64))
	o.run("node", "deploy", "n1", "--config-drive", `{"meta_data": {"hostname": "n1"}, "user_data": "#cloud-config"}`,
		"--wait", "300")
	o.wantField("n1", "provision_state", "active")
	o.wantField("n1", "power_state", "power on")
	var shown map[string]any
	o.json(&shown, "node", "show", "n1", "--fields", "instance_info")
	if info := shown["instance_info"].(map[string]any); info["configdrive"] != "******" {
		t.Errorf("instance_info = %v", info)
	}
	o.fails("Can not delete node", "node", "delete", "n1")
	o.run("node", "undeploy", "n1", "--wait", "300")
	o.wantField("n1", "provision_state", "available")
	o.wantField("n1", "power_state", "power off")

	var list []map[string]any
	o.json(&list, "node", "list", "--long", "--provision-state", "available")
	if len(list) != 1 {
		t.Errorf("node list = %v", list)
	}
	o.json(&list, "node", "list", "--fields", "uuid", "name", "--resource-class", "tin")
	if len(list) != 0 {
		t.Errorf("node list of another class = %v", list)
	}
	var history []map[string]any
	o.json(&history, "node", "history", "list", "n1")
	if len(history) == 0 {
		t.Error("history is empty")
	}
	o.run("node", "history", "get", "n1", history[0]["UUID"].(string))
	o.run("port", "delete", port["uuid"].(string))
	o.run("node", "delete", "n1")
	o.json(&list, "node", "list")
	if len(list) != 0 {
		t.Errorf("node list = %v after the delete", list)
	}

	mu.Lock()
	defer mu.Unlock()
	if len(faults) > 0 {
		t.Errorf("the API had faults: %v", faults)
	}
}

func waitField(t *testing.T, o *ironic, name, field string, want any) {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for {
		got := o.field(name, field)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s of %s = %v, want %v", field, name, got, want)
		}
	}
}

type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (r *statusRecorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}
