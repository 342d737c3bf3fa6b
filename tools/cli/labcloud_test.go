package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/hardware/openstack"
	testkit "github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/cloudsim"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// TestLabInACloud: servers are made, enrolled and turned on by the conductor; up can be repeated, and down removes
// nodes, servers and network.
func TestLabInACloud(t *testing.T) {
	if !slices.Equal(slices.Sorted(slices.Values(bootWays)), slices.Sorted(slices.Values(openstack.Ways))) {
		t.Errorf("--boot is one of %v, the driver knows %v", bootWays, openstack.Ways)
	}
	c := cloudsim.New(t)
	file := c.File(t, "mine")
	u := &user{t: t, url: ingotd.Start(t, testkit.FreeAddr(t), "openstack.clouds_file="+file).URL,
		env: map[string]string{"OS_CLIENT_CONFIG_FILE": file}}
	up := func(more string) []string {
		return words("lab up --cloud mine --name l --flavor bm --boot rescue --boot-image ipxe " + more)
	}
	for args, want := range map[string]string{
		"lab up --cloud mine":                                                "--flavor",
		"lab up --cloud mine --flavor bm":                                    "metadata, rescue, rebuild",
		"lab up --cloud mine --flavor bm --boot rescue":                      "--boot-image",
		"lab up --cloud mine --flavor bm --boot metadata":                    "--image",
		"lab up --cloud mine --flavor bm --boot metadata --boot-image x":     "no --boot-image",
		"lab up --cloud mine --flavor bm --boot metadata --image x --name A": "--name",
		"lab up --cloud other --flavor bm --boot metadata --image x":         "no cloud of this name",
		"lab up --flavor bm":                                                 "--cloud",
		"lab up --cloud mine --ramdisk x":                                    "--ramdisk",
		"lab down --cloud mine --name a,b":                                   "--name",
		"lab down --cloud mine --keep":                                       "--keep",
	} {
		u.fails(words(args), want)
	}
	c.Quota("instances", 1)
	u.fails(up("--nodes 2"), "Quota exceeded", "1 servers", "lab down --cloud mine --name l")
	if out := u.ok(words("node list -o json")...); strings.Contains(out, "l-0") {
		t.Errorf("machines of half a lab were enrolled: %s", out)
	}
	c.Quota("instances", 10)
	u.ok(up("--nodes 2")...)
	out := u.ok(append(up("--nodes 2"), "-o", "json")...)
	var machines []machine
	if err := json.Unmarshal([]byte(out), &machines); err != nil || len(machines) != 2 || machines[1].Name != "l-1" {
		t.Fatalf("up again: %v %s", err, out)
	}
	server := func() cloudsim.Server { return c.Server(machines[0].Server) }
	if s := server(); s.Status != "SHUTOFF" || len(c.Servers()) != 2 {
		t.Errorf("the server is %+v, of %d", s, len(c.Servers()))
	}
	u.ok(words("node manage l-0 --wait")...)
	u.ok(words("node inspect l-0 --wait")...)
	if out := u.ok(words("node show l-0 -o json")...); !strings.Contains(out, `"memory_mb": "8192"`) &&
		!strings.Contains(out, `"memory_mb": 8192`) || server().Status != "SHUTOFF" {
		t.Errorf("inspected without booting, the server is %s and the node %s", server().Status, out)
	}
	u.ok(words("node power on l-0 --wait")...)
	ingotd.Wait(t, "the server is on", func() bool { return server().Status == "ACTIVE" })
	if out := u.ok(words("port list --node l-0 -o json")...); !strings.Contains(out, machines[0].MAC) {
		t.Errorf("its ports are %s", out)
	}
	u.ok(words("node create other --driver openstack --driver-info openstack_cloud=mine --driver-info openstack_boot=metadata --driver-info openstack_server=7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c")...)
	u.ok(words("lab down --cloud mine --name l")...)
	if n := len(c.Servers()) + len(c.Net("networks")) + len(c.Net("ports")); n > 0 {
		t.Errorf("%d things are left", n)
	}
	if out := u.ok(words("node list -o json")...); strings.Contains(out, `"l-`) || !strings.Contains(out, `"other"`) {
		t.Errorf("the nodes left are %s", out)
	}
	u.ok(words("lab down --cloud mine --name l")...)
}
