package cloudrack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/test/kit/cloudsim"
)

type object = map[string]any

func spec(nodes int) Spec {
	return Spec{Name: "rack", Nodes: nodes, Flavor: "bm", Image: "debian", BootImage: cloudsim.IPXE,
		Subnet: "10.77.0.0/24"}
}

func open(t *testing.T, c *cloudsim.Cloud, name string) *Builder {
	t.Helper()
	b, err := Open(t.Context(), oscloud.NewCloud(c.File(t, "lab"), "lab"), name,
		func(format string, args ...any) { t.Logf(format, args...) })
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// whole checks that the cloud has a rack of so many machines, and nothing twice.
func whole(t *testing.T, c *cloudsim.Cloud, r *Rack, nodes int) {
	t.Helper()
	if len(r.Nodes) != nodes || r.BootImage != cloudsim.IPXE {
		t.Fatalf("the rack is %+v", r)
	}
	for kind, want := range map[string]int{"networks": 1, "subnets": 1, "ports": nodes} {
		all := c.Net(kind)
		if len(all) != want {
			t.Errorf("%d %s, want %d: %v", len(all), kind, want, all)
		}
		for _, o := range all {
			if o["description"] != "ingot-lab-rack" {
				t.Errorf("one of the %s has no tag: %v", kind, o)
			}
		}
	}
	if s := c.Net("subnets")[0]; s["enable_dhcp"] != false || s["gateway_ip"] != nil || s["cidr"] != "10.77.0.0/24" {
		t.Errorf("the subnet is %v", s)
	}
	if all := c.Servers(); len(all) != nodes {
		t.Errorf("%d servers, want %d", len(all), nodes)
	}
	for _, n := range r.Nodes {
		s := c.Server(n.Server)
		if s.Name != n.Name || s.Status != "SHUTOFF" || fmt.Sprint(s.Tags) != "[ingot-lab-rack]" ||
			len(s.Metadata) > 0 {
			t.Errorf("%s is %+v", n.Name, s)
		}
		found := false
		for _, p := range c.Net("ports") {
			found = found || p["device_id"] == n.Server && p["mac_address"] == n.MAC
		}
		if !found {
			t.Errorf("%s has no port with %s", n.Name, n.MAC)
		}
	}
}

func TestUpAndDown(t *testing.T) {
	c := cloudsim.New(t)
	theirs := c.AddNet("networks", object{"name": "rack", "description": "theirs"})
	// A network that another project shares with the tag, and its port, which an administrator sees.
	shared := object{"name": "rack", "description": "ingot-lab-rack", "shared": true, "project_id": "another"}
	c.AddNet("networks", shared)
	c.AddNet("ports", object{"name": "rack-0", "description": "ingot-lab-rack", "project_id": "another",
		"network_id": shared["id"]})
	c.AddNet("ports", object{"name": "rack-0", "description": "ingot-lab-rack2", "network_id": theirs})
	other := c.Add(func(s *cloudsim.Server) { s.Name, s.Tags = "rack-0", []string{"ingot-lab-rack2"} })
	foreign := func() string { return fmt.Sprint(c.Net("networks")[:2], c.Net("ports")[:2], c.Server(other)) }
	before := foreign()

	r, err := open(t, c, "rack").Up(t.Context(), spec(2))
	if err != nil {
		t.Fatal(err)
	}
	if n := c.Net("networks")[2]; n["port_security_enabled"] != false || r.Network != n["id"] {
		t.Errorf("the network is %v", n)
	}
	c.Edit(r.Nodes[0].Server, func(s *cloudsim.Server) { s.Status, s.Power = "ACTIVE", 1 }) // it is in use
	c.Requests()
	more, err := open(t, c, "rack").Up(t.Context(), spec(3))
	if err != nil {
		t.Fatal(err)
	}
	if s := c.Server(r.Nodes[0].Server); s.Status != "ACTIVE" || len(more.Nodes) != 3 || more.Nodes[1] != r.Nodes[1] {
		t.Errorf("the first machine is %s, and the rack %+v after %+v", s.Status, more, r)
	}
	made := 0
	for _, q := range c.Requests() {
		if strings.HasPrefix(q, "POST /network") || q == "POST /compute/v2.1/servers" {
			made++
		}
	}
	if made != 2 {
		t.Errorf("%d things were made for one more machine, want a port and a server", made)
	}
	if err := open(t, c, "rack").Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(c.Servers()) != 1 || len(c.Net("networks")) != 2 || len(c.Net("ports")) != 2 || len(c.Net("subnets")) != 0 ||
		foreign() != before {
		t.Errorf("after down there are %v, %v, %v", c.Servers(), c.Net("networks"), c.Net("ports"))
	}
	if err := open(t, c, "rack").Down(t.Context()); err != nil {
		t.Errorf("down again: %v", err)
	}
}

// TestInterrupted: wherever Up or Down ends, before or after the cloud did what was asked last, the next one completes
// it.
func TestInterrupted(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for end := 1; ; end++ {
			c := cloudsim.New(t)
			var changes atomic.Int64 // the cloud's goroutines count
			var hit atomic.Bool
			c.NoPortSecurity()
			interrupt := func() {
				changes.Store(0)
				due := func(method, path string) bool {
					if method == http.MethodGet || strings.HasSuffix(path, "/tokens") {
						return false
					}
					if changes.Add(1) != int64(end) {
						return false
					}
					hit.Store(true)
					return true
				}
				if lost {
					c.Lose(due)
					return
				}
				c.Fail(func(method, path string) int {
					if due(method, path) {
						return http.StatusServiceUnavailable
					}
					return 0
				})
			}
			clear := func() { c.Fail(nil); c.Lose(nil) }
			b := open(t, c, "rack")
			interrupt()
			if _, err := b.Up(t.Context(), spec(2)); err == nil && hit.Load() && !lost {
				t.Errorf("up went well without change %d", end)
			}
			clear()
			r, err := open(t, c, "rack").Up(t.Context(), spec(2))
			if err != nil {
				t.Fatalf("after an end at change %d: %v", end, err)
			}
			whole(t, c, r, 2)
			interrupt()
			if err := open(t, c, "rack").Down(t.Context()); err != nil && !hit.Load() {
				t.Error(err)
			}
			clear()
			if err := open(t, c, "rack").Down(t.Context()); err != nil {
				t.Fatalf("down after an end at change %d: %v", end, err)
			}
			if n := len(c.Servers()) + len(c.Net("networks")) + len(c.Net("ports")) + len(c.Net("subnets")); n > 0 {
				t.Errorf("%d things are left", n)
			}
			if !hit.Load() {
				if end <= 10 { // network and subnet, and four for each machine
					t.Errorf("only %d changes", end-1)
				}
				break
			}
		}
	}
}

func TestQuota(t *testing.T) {
	for of, want := range map[string]string{"instances": "made so far: 1 networks, 3 ports, 2 servers",
		"ports": "made so far: 1 networks, 2 ports, 2 servers",
		"late":  "could not be made: Quota exceeded for instances: Requested 1, but already used 2 of 2 instances; made so"} {
		c := cloudsim.New(t)
		c.Quota(of, 2)
		b := open(t, c, "rack")
		_, err := b.Up(t.Context(), spec(4))
		if err == nil || !strings.Contains(err.Error(), "Quota exceeded") || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "rack-2") || !strings.Contains(err.Error(), "tag ingot-lab-rack") {
			t.Errorf("with a quota of 2 %s: %v", of, err)
		}
		c.Quota(of, 10)
		r, err := b.Up(t.Context(), spec(4))
		if err != nil {
			t.Fatal(err)
		}
		whole(t, c, r, 4)
	}
}

func TestWhatCanNotBeMade(t *testing.T) {
	c := cloudsim.New(t)
	b := open(t, c, "rack")
	for want, edit := range map[string]func(*Spec){
		`no flavor "huge"`: func(s *Spec) { s.Flavor = "huge" },
		`no image "none"`:  func(s *Spec) { s.Image = "none" },
		`no image "ab-12"`: func(s *Spec) { s.BootImage = "ab-12" },
	} {
		s := spec(1)
		edit(&s)
		if _, err := b.Up(t.Context(), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if n := len(c.Servers()) + len(c.Net("networks")); n > 0 {
		t.Errorf("%d things were made", n)
	}
	r, err := b.Up(t.Context(), spec(1))
	if err != nil {
		t.Fatal(err)
	}
	c.Edit(r.Nodes[0].Server, func(s *cloudsim.Server) { s.Status, s.Fault = "ERROR", "the host failed" })
	if again, err := b.Up(t.Context(), spec(1)); err != nil || again.Nodes[0] != r.Nodes[0] {
		t.Errorf("with a server that failed in use: %v, %v", again, err)
	}
	c.Edit(r.Nodes[0].Server, func(s *cloudsim.Server) { s.Task = "deleting" })
	if _, err = b.Up(t.Context(), spec(1)); err == nil || !strings.Contains(err.Error(), "rack-0 is still being deleted") {
		t.Errorf("with a server that is being deleted: %v", err)
	}
	c.AddNet("ports", object{"network_id": r.Network, "description": "theirs"})
	err = b.Down(t.Context())
	if !oscloud.Is(err, http.StatusConflict) || !strings.Contains(err.Error(), "ports still in use") {
		t.Errorf("down with somebody's port in the network: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Up(ctx, spec(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	c.Newest(51)
	if _, err := Open(t.Context(), oscloud.NewCloud(c.File(t, "lab"), "lab"), "rack", nil); err == nil ||
		!strings.Contains(err.Error(), "2.52") {
		t.Errorf("with an old Nova: %v", err)
	}
}
