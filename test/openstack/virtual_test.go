package openstack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	virtual "github.com/ingot-metal/ingot/conductor/hardware/openstack"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/test/kit/cloud"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/tools/lab/cloudrack"
)

// The project whose servers are machines, and its user, who has the role member and no other.
const (
	project = "virtual"
	member  = "member-of-virtual"
)

// writeClouds writes the file of clouds: this one, the same with a wrong password, and with the administrator.
func (s *site) writeClouds(keystone string) {
	s.t.Helper()
	s.clouds = filepath.Join(s.t.TempDir(), "clouds.yaml")
	text := "clouds:\n"
	for name, as := range map[string][3]string{"here": {member, cloud.Password, project},
		"wrong": {member, "not it", project}, "operator": {"admin", "admin", "admin"}} {
		text += fmt.Sprintf("  %s:\n    region_name: RegionOne\n    auth: {auth_url: %q, username: %q, password: %q, "+
			"project_name: %q, user_domain_id: default, project_domain_id: default}\n", name, keystone, as[0], as[1], as[2])
	}
	if err := os.WriteFile(s.clouds, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// TestVirtualBareMetal has servers of the cloud as machines: they are made, turned on and off, rescued and rebuilt by
// Nova's real API, whose virtualisation is the fake one, so that nothing boots.
func TestVirtualBareMetal(t *testing.T) {
	if os.Getenv("INGOT_FULL") == "" {
		return // all services, and one more
	}
	s := services(t)
	if err := s.cloud.Again(t.Context(), cloud.Virtual); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.cloud.Keystone.AddUser(t.Context(), member, cloud.Password),
		s.cloud.Keystone.Grant(t.Context(), member, project, "member")); err != nil {
		t.Fatal(err)
	}
	ipxe := s.image("ipxe", []byte("iPXE"))
	s.openstack("flavor", "create", "vm", "--ram", "64", "--disk", "1", "--vcpus", "1")
	ingotd.Wait(t, "Nova knows the host of virtual machines", func() bool {
		return strings.Contains(fmt.Sprint(s.get("compute", "/os-hypervisors", "hypervisors")), "virtual")
	})

	// A lab, for which the quota is too small at first.
	s.openstack("quota", "set", "--instances", "2", project)
	builder := func(cloud string) *cloudrack.Builder {
		t.Helper()
		b, err := cloudrack.Open(t.Context(), oscloud.NewCloud(s.clouds, cloud), "rack", t.Logf)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := builder("here")
	spec := cloudrack.Spec{Name: "rack", Nodes: 3, Flavor: "vm", Image: "ipxe", BootImage: ipxe,
		Subnet: "203.0.113.0/24"}
	_, err := b.Up(t.Context(), spec)
	for _, want := range []string{"Quota exceeded for instances", "server rack-", "made so far: 1 networks"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with a quota of two: %v, want %q", err, want)
		}
	}
	s.openstack("quota", "set", "--instances", "10", project)
	rack, err := b.Up(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range rack.Nodes {
		now := s.server(n.Server)
		if now["status"] != "SHUTOFF" || !strings.Contains(fmt.Sprint(now["addresses"]), n.MAC) ||
			len(now["metadata"].(object)) > 0 {
			t.Errorf("%s is %v", n.Name, now)
		}
	}

	all := virtual.New(s.clouds)
	open := func(cloud, way, server string) power.Driver {
		t.Helper()
		info := power.Info{"openstack_cloud": cloud, "openstack_server": server, "openstack_boot": way}
		if way != virtual.ByMetadata {
			info["openstack_boot_image"] = ipxe
		}
		d, err := all.Open(info, nil)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	do := func(d power.Driver, a power.Action, want power.State) {
		t.Helper()
		if err := d.SetPower(t.Context(), a); err != nil {
			t.Fatalf("power %s: %v", a, err)
		}
		ingotd.Wait(t, string(want)+" after "+string(a), func() bool {
			st, err := d.Power(t.Context())
			time.Sleep(200 * time.Millisecond)
			return err == nil && st == want
		})
	}
	set := func(d power.Driver, b power.Boot) {
		t.Helper()
		if err := d.SetBoot(t.Context(), b); err != nil {
			t.Fatalf("boot %s: %v", b.Device, err)
		}
	}
	refused := func(what string, err error, kind power.Kind, word string) {
		t.Helper()
		if power.KindOf(err) != kind || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: kind %q, want %q with %q: %v", what, power.KindOf(err), kind, word, err)
		}
	}
	// ways to boot the network: what Nova's server is then
	for i, want := range map[int]struct{ way, status string }{
		0: {virtual.ByRescue, "RESCUE"}, 1: {virtual.ByRebuild, "ACTIVE"}, 2: {virtual.ByMetadata, "ACTIVE"}} {
		id := rack.Nodes[i].Server
		d := open("here", want.way, id)
		set(d, power.Boot{Device: power.BootPXE})
		if want.way == virtual.ByMetadata && s.server(id)["metadata"].(object)["libvirt:pxe-first"] != "1" {
			t.Errorf("the metadata are %v", s.server(id)["metadata"])
		}
		do(d, power.TurnOn, power.On)
		if now := s.wait(id, want.status); want.way == virtual.ByMetadata &&
			now["metadata"].(object)["libvirt:pxe-first"] != "" {
			t.Errorf("%s: the server has %v", want.way, now["metadata"])
		}
		set(d, power.Boot{Device: power.BootDisk, Persistent: true})
		do(d, power.TurnOff, power.Off)
		s.wait(id, "SHUTOFF")
		do(d, power.TurnOn, power.On)
		do(d, power.Reset, power.On)
		s.wait(id, "ACTIVE")
		if b, err := d.Boot(t.Context()); err != nil || b.Device != power.BootDisk {
			t.Errorf("%s: at last it boots from %+v, %v", want.way, b, err)
		}
	}

	id := rack.Nodes[2].Server
	d := open("here", virtual.ByMetadata, id)
	s.openstack("server", "pause", id)
	s.wait(id, "PAUSED")
	refused("a paused server", d.SetPower(t.Context(), power.TurnOff), power.Refused, "vm_state paused")
	s.openstack("server", "unpause", id)
	s.wait(id, "ACTIVE")
	s.openstack("server", "lock", id)
	other := power.Boot{Device: power.BootPXE}
	refused("a locked server", d.SetBoot(t.Context(), other), power.Refused, "locked")
	_, err = open("wrong", virtual.ByMetadata, id).Power(t.Context())
	refused("a wrong password", err, power.Auth, "Keystone refuses")
	_, err = open("here", virtual.ByMetadata, rack.Network).Power(t.Context())
	refused("a server that is not there", err, power.Config, "could not be found")
	s.openstack("server", "unlock", id)
	gone, err := all.Open(power.Info{"openstack_cloud": "here", "openstack_server": id,
		"openstack_boot": virtual.ByRescue, "openstack_boot_image": "44444444-4444-4444-8444-444444444444"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	set(gone, other)
	refused("an image that is not there", gone.SetPower(t.Context(), power.Reset), power.Refused, "is not supported")
	gone, err = all.Open(power.Info{"openstack_cloud": "here", "openstack_server": id,
		"openstack_boot": virtual.ByRebuild, "openstack_boot_image": "44444444-4444-4444-8444-444444444444"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	set(gone, other)
	refused("an image that is not there", gone.SetPower(t.Context(), power.Reset), power.Refused, "Cannot find image")

	// A node of the ingotd: its cards come from Neutron, its power is Nova's.
	n, err := s.ingot.API.CreateNode(t.Context(), client.NewNode{Name: "vm", Driver: "openstack",
		DriverInfo: object{"openstack_cloud": "here", "openstack_server": rack.Nodes[0].Server,
			"openstack_boot": virtual.ByRescue, "openstack_boot_image": ipxe}})
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"manage", "inspect"} {
		if err := s.ingot.API.Provision(t.Context(), n.UUID, client.ProvisionRequest{Target: verb}); err != nil {
			t.Fatal(err)
		}
		ingotd.Wait(t, "the node is manageable after "+verb, func() bool {
			now, err := s.ingot.API.Node(t.Context(), n.UUID)
			return err == nil && now.ProvisionState == "manageable" && (verb == "manage" || len(now.Properties) > 0)
		})
	}
	cards, err := s.ingot.API.Ports(t.Context(), n.UUID)
	if err != nil || len(cards) != 1 || cards[0].Address != rack.Nodes[0].MAC {
		t.Errorf("the node has the ports %v, %v; want one with %s", cards, err, rack.Nodes[0].MAC)
	}
	if err := s.ingot.API.Power(t.Context(), n.UUID, "power off", 0); err != nil {
		t.Fatal(err)
	}
	s.wait(rack.Nodes[0].Server, "SHUTOFF")
	ingotd.Wait(t, "the node is off", func() bool {
		now, err := s.ingot.API.Node(t.Context(), n.UUID)
		return err == nil && now.PowerState == "power off"
	})
	if err := s.ingot.API.DeleteNode(t.Context(), n.UUID); err != nil {
		t.Fatal(err)
	}

	// The administrator, who sees all, takes down a rack of this name in another project: nothing of this one goes.
	for _, row := range []struct {
		cloud              string
		machines, networks int
	}{{"operator", 3, 1}, {"here", 0, 0}, {"here", 0, 0}} {
		if err := builder(row.cloud).Down(t.Context()); err != nil {
			t.Fatal(err)
		}
		servers, _ := s.get("compute", "/servers?all_tenants=1", "servers").([]any)
		ports, _ := s.get("network", "/v2.0/ports", "ports").([]any)
		nets, _ := s.get("network", "/v2.0/networks", "networks").([]any)
		if len(servers) != row.machines || len(ports) != row.machines || len(nets) != row.networks {
			t.Errorf("after down by %s there are the servers %v, ports %v and networks %v; want %d, %d and %d", row.cloud,
				servers, ports, nets, row.machines, row.machines, row.networks)
		}
	}
}
