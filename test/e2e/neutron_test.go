package e2e

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/cloudsim"
	"github.com/ingot-metal/ingot/tools/lab"
)

// dhcpAgent does what Neutron's DHCP agent does for a network: it makes files for dnsmasq of the network's ports.
type dhcpAgent struct {
	network, subnet string // by ID
	dir             string
}

func (a dhcpAgent) file(name string) string { return filepath.Join(a.dir, name) }

// write writes the files. A port's address is for its MAC alone, and its extra_dhcp_opts are for the tag that this
// machine then has; a tag in an option's name, such as tag:!ipxe,67, comes in addition.
func (a dhcpAgent) write(ports []map[string]any) error {
	var hosts strings.Builder
	opts := []string{"tag:subnet-" + a.subnet + ",option:router"} // the subnet has no gateway
	for _, p := range ports {
		fixed, _ := p["fixed_ips"].([]any)
		if p["network_id"] != a.network || len(fixed) == 0 {
			continue
		}
		ip := fmt.Sprint(fixed[0].(map[string]any)["ip_address"])
		fmt.Fprintf(&hosts, "%s,host-%s.openstacklocal,%s", p["mac_address"], strings.ReplaceAll(ip, ".", "-"), ip)
		extra, _ := p["extra_dhcp_opts"].([]any)
		if len(extra) > 0 {
			fmt.Fprintf(&hosts, ",set:port-%s", p["id"])
		}
		hosts.WriteString("\n")
		for _, e := range extra {
			o := e.(map[string]any)
			tags, name := []string{"tag:port-" + fmt.Sprint(p["id"])}, fmt.Sprint(o["opt_name"])
			if i := strings.LastIndexByte(name, ','); strings.HasPrefix(name, "tag:") && i > 0 {
				tags, name = append(tags, name[:i]), name[i+1:]
			}
			if strings.Trim(name, "0123456789") != "" {
				name = "option:" + name
			}
			opts = append(opts, strings.Join(append(tags, name, fmt.Sprint(o["opt_value"])), ","))
		}
	}
	return cmp.Or(os.WriteFile(a.file("host"), []byte(hosts.String()), 0o644),
		os.WriteFile(a.file("opts"), []byte(strings.Join(opts, "\n")), 0o644))
}

// serve runs dnsmasq as the agent does, in a namespace of its own that has an address in the rack's network.
func (a dhcpAgent) serve(t *testing.T, l *lab.Lab) *kit.DHCPServer {
	t.Helper()
	space := l.Namespace + "-q"
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	ip("netns", "add", space)
	t.Cleanup(func() { ip("netns", "del", space) })
	ip("-n", l.Namespace, "link", "add", "q", "type", "veth", "peer", "name", "tap", "netns", space)
	ip("-n", l.Namespace, "link", "set", "q", "master", "prov", "up")
	ip("-n", space, "addr", "add", "10.77.0.2/24", "dev", "tap")
	ip("-n", space, "link", "set", "tap", "up")
	return kit.Dnsmasq(t, space, "no-hosts", "no-resolv", "dhcp-hostsfile="+a.file("host"),
		"dhcp-optsfile="+a.file("opts"), "dhcp-match=set:ipxe,175", "dhcp-userclass=set:ipxe6,iPXE", "local-service",
		"bind-dynamic", "dhcp-range=set:subnet-"+a.subnet+",10.77.0.0,static,255.255.255.0,86400s",
		"dhcp-option-force=option:mtu,1500", "dhcp-lease-max=256")
}

// TestNeutronsDHCP: where Neutron's DHCP serves the network of ramdisks, the options of the port that is made for a
// card bring a machine from its UEFI firmware through iPXE, by TFTP, to the agent; afterwards the server does not
// answer it any more.
func TestNeutronsDHCP(t *testing.T) {
	t.Parallel()
	const at = "10.77.0.1:5000"
	machine := lab.NodeSpec{Name: "m", Firmware: lab.UEFI, Disks: disk6(), NICs: []lab.NICSpec{{ROM: lab.ROMNone}}}
	r := newRig(t, []lab.NodeSpec{machine},
		set("netboot.dhcp", "off"), set("api.auth", "keystone"), set("api.keystone.auth_url", "http://"+at+"/identity"),
		set("api.keystone.username", cloudsim.User), set("api.keystone.password", cloudsim.Password),
		set("neutron.url", "http://"+at+"/network"), set("neutron.dhcp_options", true),
		set("neutron.inspection_network", "ramdisks"), set("hardware.default_network_interface", "neutron"))
	l, err := r.lab.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	cloud := cloudsim.NewAt(t, l)
	r.headers = []string{"X-Auth-Token", cloud.Token()}
	a := dhcpAgent{dir: t.TempDir()}
	a.network = cloud.AddNet("networks", map[string]any{"name": "ramdisks"})
	a.subnet = cloud.AddNet("subnets", map[string]any{"network_id": a.network, "cidr": "10.77.0.0/24"})
	if err := a.write(nil); err != nil {
		t.Fatal(err)
	}
	dhcp := a.serve(t, r.lab)
	cloud.Watch(func(ports []map[string]any) {
		if err := a.write(ports); err != nil {
			t.Error(err)
		}
		dhcp.Reload()
	})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("---- dnsmasq ----\n%s", dhcp.Log())
		}
	})

	m := r.lab.Node("m")
	n := r.must("POST", "/v1/nodes", object{"name": "m", "driver": "ipmi", "driver_info": controller(m),
		"inspect_interface": "agent", "properties": object{"capabilities": "boot_mode:uefi"}})
	r.must("POST", "/v1/ports", object{"node_uuid": n.str("uuid"), "address": m.MAC,
		"local_link_connection": object{"switch_id": "00:1c:73:00:00:01", "port_id": "Ethernet1"}})
	r.provision("m", "manage", nil)
	r.wait("m", "manageable", stateLimit)
	r.provision("m", "inspect", nil)
	r.wait("m", "manageable", bootLimit)
	if m.Starts() != 1 {
		t.Errorf("the machine was started %d times", m.Starts())
	}
	for _, want := range []string{"next server: 10.77.0.1\n", "bootfile-name  snponly.efi\n",
		"bootfile-name  http://10.77.0.1:8080/boot.ipxe?mac="} {
		if !strings.Contains(dhcp.Log(), want) {
			t.Errorf("dnsmasq did not send %q", want)
		}
	}
	if n := r.must("GET", "/v1/nodes/m", nil); n.str("inspection_finished_at") == "" {
		t.Errorf("the machine was not inspected: %v", n)
	}
	kit.Eventually(t, stateLimit, "Neutron has no port of Ingot's", func() bool { return len(cloud.Net("ports")) == 0 })
	hosts, err := os.ReadFile(a.file("host"))
	if err != nil || len(hosts) > 0 {
		t.Errorf("dnsmasq still has %q, %v", hosts, err)
	}
}
