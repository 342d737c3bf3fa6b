package openstack

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// TestServicesAreKilled: while a machine is deployed for Nova, each of the services around it dies in turn and comes
// back. The server comes up, or is in ERROR with a reason, and after its deletion the machine can be used again and no
// port and no allocation is left.
func TestServicesAreKilled(t *testing.T) {
	if os.Getenv("INGOT_FULL") == "" {
		return // four deployments, and services of OpenStack that start again
	}
	s := start(t, 1)
	s.image("system", []byte(strings.Repeat("a system ", 10_000)))
	s.flavor()
	s.waitInventory(0)
	for _, row := range []struct {
		name        string
		kill, again func() error
		mayFail     bool
	}{
		{"ingotd", func() error { s.ingot.Kill(); return nil }, func() error { s.ingot.Again(); return nil }, false},
		{"placement-api", nil, nil, false},
		{"neutron-server", nil, nil, false},
		{"nova-compute", nil, nil, true}, // it gives up what it was building when it starts
	} {
		if row.kill == nil {
			row.kill = func() error { return s.cloud.Kill(row.name) }
			row.again = func() error { return s.cloud.Again(t.Context(), row.name) }
		}
		id := s.create(row.name)
		node := s.deploying()
		if err := row.kill(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s was killed during a deployment", row.name)
		if err := row.again(); err != nil {
			t.Fatal(err)
		}
		now := s.ended(id)
		t.Logf("the server is %v: %v", now["status"], now["fault"])
		if now["status"] != "ACTIVE" && !row.mayFail {
			t.Errorf("%s was killed during a deployment: the server is %v: %v", row.name, now["status"], now["fault"])
		}
		s.delete(id, node)
	}
}

// flavor makes the flavor bm: one machine of the fleet.
func (s *site) flavor() {
	s.t.Helper()
	s.openstack("flavor", "create", "bm", "--ram", "1024", "--disk", "10", "--vcpus", "1", "--property",
		"resources:CUSTOM_FLEET=1", "--property", "resources:VCPU=0", "--property", "resources:MEMORY_MB=0",
		"--property", "resources:DISK_GB=0")
}

// create asks Nova for a server with the image system in the network tenant, and returns its ID.
func (s *site) create(name string) string {
	s.t.Helper()
	return s.openstack("server", "create", name, "--flavor", "bm", "--image", "system", "--network", "tenant", "-f",
		"value", "-c", "id")
}

// deploying waits until the site's node is being deployed, and returns its UUID.
func (s *site) deploying() (node string) {
	s.t.Helper()
	ingotd.Wait(s.t, "the machine is being deployed", func() bool {
		for _, v := range s.get("baremetal", "/v1/nodes?fields=uuid,provision_state", "nodes").([]any) {
			n := v.(object)
			if state := fmt.Sprint(n["provision_state"]); state == "deploying" || state == "wait call-back" {
				node = fmt.Sprint(n["uuid"])
			}
		}
		return node != ""
	})
	return node
}

// ended waits until a server is up or has failed.
func (s *site) ended(id string) (now object) {
	s.t.Helper()
	ingotd.Wait(s.t, "the server is up or has failed", func() bool {
		now = s.server(id)
		return (now["status"] == "ACTIVE" || now["status"] == "ERROR") && now["OS-EXT-STS:task_state"] == nil
	})
	return now
}
