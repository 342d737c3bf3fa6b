package compat

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/openstack"
)

// TestReservations: a reservation service such as Blazar takes its steps with the openstack client, as at Ironic, and
// Ingot takes the same steps for a reservation of its own, beside it.
func TestReservations(t *testing.T) {
	p := ingotd.Start(t, kit.FreeAddr(t), "reservations.interval=1s")
	o := &ironic{t, openstack.Start(t), p.URL}
	env := []string{"INGOT_ENDPOINT=" + p.URL}
	reserve := func(args ...string) (r rest.Reservation) {
		t.Helper()
		out, err := ingot(t, env, append([]string{"reservation", "-o", "json"}, args...)...)
		if err == nil {
			err = json.Unmarshal([]byte(out), &r)
		}
		if err != nil {
			t.Fatalf("ingot reservation %v: %v\n%s", args, err, out)
		}
		return r
	}
	until := func(what string, f func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !f(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within a minute: %s", what)
			}
		}
	}
	for _, name := range []string{"n1", "n2"} {
		o.run("node", "create", "--driver", "fake-hardware", "--name", name, "--resource-class", "gold",
			"--property", "cpus=4")
		o.run("node", "manage", name, "--wait", "60")
		o.run("node", "provide", name, "--wait", "60")
	}

	// Ingot's own reservation of one machine: the allocation has its UUID, and the project is the lessee.
	r := reserve("create", "--resource-class", "gold", "--for", "8h", "--project", "p1", "--name", "own", "--tear-down")
	until("the project has the machine", func() bool {
		r = reserve("show", "own")
		return len(r.Machines) == 1 && r.Machines[0].Given
	})
	own := string(r.Machines[0].Name)
	var a map[string]any
	if o.json(&a, "allocation", "show", r.UUID); a["state"] != "active" || a["owner"] != "p1" ||
		a["node_uuid"] != string(r.Machines[0].NodeUUID) {
		t.Errorf("the allocation of the reservation is %v", a)
	}
	o.wantField(own, "lessee", "p1")
	o.wantField(own, "allocation_uuid", r.UUID)
	o.run("node", "set", own, "--instance-info", "image_source=http://127.0.0.1:1/x", "--instance-info",
		"image_os_hash_algo=sha256", "--instance-info", "image_os_hash_value="+strings.Repeat("0", 64))
	o.run("node", "deploy", own, "--wait", "60")

	// The steps of a service: the candidates, an allocation with the service's own UUID, the lessee; and back.
	var candidates []map[string]any
	o.json(&candidates, "node", "list", "--resource-class", "gold", "--provision-state", "available", "--unassociated",
		"--fields", "uuid", "name")
	if len(candidates) != 1 || candidates[0]["Name"] == own {
		t.Fatalf("the candidates are %v", candidates)
	}
	const lease = "8c9a4b5e-0000-4000-8000-0000000000ff"
	other := candidates[0]["Name"].(string)
	o.run("allocation", "create", "--resource-class", "gold", "--uuid", lease, "--candidate-node", other, "--wait",
		"60")
	o.run("node", "set", other, "--lessee", "p2")
	o.wantField(other, "instance_uuid", lease)
	o.wantField(other, "lessee", "p2")
	if out, err := ingot(t, env, "reservation", "create", "--resource-class", "gold", "--for", "1h"); err == nil ||
		!strings.Contains(err.Error(), "1 of 1 machines of resource class gold are missing") {
		t.Errorf("with all machines in use: %v\n%s", err, out)
	}
	o.run("node", "unset", other, "--lessee")
	o.run("allocation", "delete", lease)
	o.wantField(other, "instance_uuid", nil)

	// What is promised for later is given to no one now. The machine in use can be promised, as its instance goes.
	reserve("create", "--resource-class", "gold", "--start", time.Now().AddDate(0, 0, 7).Format(time.RFC3339),
		"--for", "1h", "--count", "2", "--name", "later")
	o.fails("no available nodes match the resource class gold", "allocation", "create", "--resource-class", "gold",
		"--wait", "60")
	if out, err := ingot(t, env, "reservation", "delete", "later"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	// The end: no lessee, no allocation, no instance.
	if out, err := ingot(t, env, "reservation", "delete", "own"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	until("the reservation has ended", func() bool { return reserve("show", "own").State == "ended" })
	until("its instance is removed", func() bool { return o.field(own, "provision_state") == "available" })
	o.wantField(own, "lessee", nil)
	o.wantField(own, "instance_uuid", nil)
	o.fails("could not be found", "allocation", "show", r.UUID)
}
