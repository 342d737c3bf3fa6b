package netup

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/ingot-metal/ingot/proto/netdata"
)

func parse(t *testing.T, text string) *netdata.Data {
	t.Helper()
	d, err := netdata.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// all are a link's addresses but the link-local ones.
func all(t *testing.T, link string) string {
	t.Helper()
	l, err := netlink.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	list, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range list {
		if !a.IP.IsLinkLocalUnicast() {
			out = append(out, a.IPNet.String())
		}
	}
	return strings.Join(out, " ")
}

// TestNetworkData holds that a link has the addresses, routes and name servers of the network data, and no others,
// whatever DHCP servers and routers offer; that a link without network data has none; and that a reset brings them
// again.
func TestNetworkData(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	mac := cable(t, "eth0", "192.0.2.1/24")
	cable(t, "eth1", "198.51.100.1/24")
	dhcp := cable(t, "eth2", "203.0.113.1/24")
	server := func(link, self, addr string) *dhcpServer {
		d := &dhcpServer{link: link, self: netip.MustParseAddr(self), addr: netip.MustParseAddr(addr)}
		d.start(t)
		return d
	}
	given, other := server("eth0", "192.0.2.1", "192.0.2.50"), server("eth1", "198.51.100.1", "198.51.100.50")
	asked := server("eth2", "203.0.113.1", "203.0.113.50")
	for link, prefix := range map[string]string{"eth0s": "2001:db8:bad::/64", "eth1s": "2001:db8:bad::/64",
		"eth2s": "2001:db8:2::/64"} {
		l, err := netlink.LinkByName(link)
		if err != nil {
			t.Fatal(err)
		}
		self := netip.MustParsePrefix("fe80::1/64")
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(self)}); err != nil {
			t.Fatal(err)
		}
		r := &router{}
		r.say(advertisement(0, netip.MustParsePrefix(prefix), prefixOnLink|prefixAutonome))
		r.start(t, link)
	}
	n := up(t, Config{Conductors: []string{"10.9.9.9:6386"}, Data: parse(t, `{
"links": [{"id": "first", "type": "phy", "ethernet_mac_address": "`+mac.String()+`", "mtu": 1400},
          {"id": "second", "type": "phy", "ethernet_mac_address": "`+dhcp.String()+`"}],
"networks": [
 {"type": "ipv4", "link": "first", "ip_address": "192.0.2.77", "netmask": "255.255.255.0",
  "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "192.0.2.254"},
             {"network": "10.0.0.0", "netmask": "255.0.0.0", "gateway": "192.0.9.254"}]},
 {"type": "ipv6", "link": "first", "ip_address": "2001:db8::77/64",
  "routes": [{"network": "2001:db8:9::", "netmask": "ffff:ffff:ffff::", "gateway": "fe80::9"}]},
 {"type": "ipv4_dhcp", "link": "second"}, {"type": "ipv6_slaac", "link": "second"}],
"services": [{"type": "dns", "address": "192.0.2.53"}, {"type": "dns", "address": "2001:db8::53"}]}`)})
	eventually(t, "the router's prefix", func() bool { return strings.Contains(all(t, "eth2"), "2001:db8:2:") })
	for range 2 {
		eventually(t, "the lease", func() bool { return strings.HasPrefix(all(t, "eth2"), "203.0.113.50/24") })
		eventually(t, "the addresses", func() bool { return all(t, "eth0") == "192.0.2.77/24 2001:db8::77/64" })
		l, err := netlink.LinkByName("eth0")
		if err != nil || l.Attrs().MTU != 1400 {
			t.Errorf("%+v, %v", l, err)
		}
		for to, want := range map[string]string{"10.9.9.9": "192.0.9.254", "8.8.8.8": "192.0.2.254",
			"2001:db8:9::1": "fe80::9"} {
			if r, err := netlink.RouteGet(net.ParseIP(to)); err != nil || r[0].Gw.String() != want {
				t.Errorf("the way to %s: %v, %v, want %s", to, r, err, want)
			}
		}
		b, err := os.ReadFile(n.cfg.Resolv)
		if string(b) != "nameserver 192.0.2.53\nnameserver 2001:db8::53\n" {
			t.Errorf("name servers %q, %v", b, err)
		}
		if got := all(t, "eth1"); got != "" || given.count("DISCOVER")+other.count("DISCOVER") > 0 ||
			asked.count("DISCOVER") == 0 {
			t.Errorf("a link without network data has %q; requests %v, %v, %v", got, given.seen, other.seen, asked.seen)
		}
		if !strings.Contains(n.Summary(), "eth0 192.0.2.77/24, eth0 2001:db8::77/64") {
			t.Errorf("summary %q", n.Summary())
		}
		if err := n.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := n.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNetworkDataOfAnotherMachine has network data that names an interface that is not there: the console says so.
func TestNetworkDataOfAnotherMachine(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	mac := cable(t, "eth0", "192.0.2.1/24")
	said := make(chan string, 8)
	n := New(Config{Conductors: []string{"203.0.113.9:6386"}, Resolv: filepath.Join(t.TempDir(), "resolv.conf"),
		Log: slog.New(slog.NewTextHandler(os.Stdout, nil)), Status: func(s string) { said <- s }, Data: parse(t, `{
"links": [{"id": "a", "type": "phy", "ethernet_mac_address": "52:54:00:ff:ff:01"}],
"networks": [{"type": "ipv4", "link": "a", "ip_address": "192.0.2.77/24"}]}`)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	go n.Wait(ctx)
	if got := <-said; !strings.Contains(got, "network_data names 52:54:00:ff:ff:01, which this machine does not have") ||
		!strings.Contains(got, "eth0 "+mac.String()) {
		t.Errorf("said %q", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestLayersOf holds that bonds and VLANs of network data become those that the agent makes.
func TestLayersOf(t *testing.T) {
	bonds, vlans := layersOf(parse(t, `{
"links": [{"id": "a", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:01"},
 {"id": "b", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:02"},
 {"id": "c", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:03"},
 {"id": "the bond of two", "type": "bond", "ethernet_mac_address": "52:54:00:00:00:01", "bond_mode": "802.1ad",
  "bond_links": ["a", "b"], "bond_lacp_rate": "fast"},
 {"id": "v", "type": "vlan", "vlan_mac_address": "52:54:00:00:00:09", "vlan_id": 7, "vlan_link": "the bond of two"},
 {"id": "w", "type": "vlan", "vlan_mac_address": "52:54:00:00:00:03", "vlan_id": 8, "vlan_link": "c"}],
"networks": [{"type": "ipv4_dhcp", "link": "v"}]}`))
	a, b := mac(t, "52:54:00:00:00:01"), mac(t, "52:54:00:00:00:02")
	if diff := cmp.Diff([]Bond{{Name: "bond0", Mode: "802.3ad", Address: a, Members: []net.HardwareAddr{a, b},
		Options: map[string]string{"lacp_rate": "fast"}}}, bonds); diff != "" {
		t.Errorf("bonds (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]VLAN{{On: "bond0", ID: 7, Address: mac(t, "52:54:00:00:00:09")},
		{On: "52:54:00:00:00:03", ID: 8, Address: mac(t, "52:54:00:00:00:03")}}, vlans); diff != "" {
		t.Errorf("VLANs (-want +got):\n%s", diff)
	}
	if _, err := bonds[0].link(a); err != nil {
		t.Error(err)
	}
}
