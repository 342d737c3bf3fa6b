package nodes

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestNetworkData(t *testing.T) {
	const (
		link    = `{"id": "eth0", "type": "phy", "ethernet_mac_address": "fa:16:3e:9c:bf:3d", "mtu": 9000}`
		bond    = `{"id": "b", "type": "bond", "ethernet_mac_address": "fa-16-3e-9c-bf-3d", "bond_mode": "802.1ad", "bond_links": ["eth0"], "bond_miimon": 100}`
		vlan    = `{"id": "v", "type": "vlan", "vlan_mac_address": "FA:16:3E:9C:BF:3D", "vlan_link": "b", "vlan_id": 7, "mtu": null}`
		network = `{"id": "n", "type": "ipv4", "link": "v", "network_id": "x", "ip_address": "192.0.2.7", "netmask": "255.255.252.0",
			"routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "192.0.2.1", "services": [{"type": "dns", "address": "192.0.2.2"}]}]}`
		six = `{"id": "m", "type": "ipv6", "link": "v", "network_id": "x", "ip_address": "2001:db8::7/64", "netmask": "ffff:ffff:ffff:ffff::",
			"routes": [{"network": "::", "netmask": "::", "gateway": "fe80::1"}]}`
		dns = `{"type": "dns", "address": "2001:db8::2"}`
	)
	data := func(links, networks, services string) string {
		return `{"links": [` + links + `], "networks": [` + networks + `], "services": [` + services + `]}`
	}
	with := func(s, old, now string) string {
		if !strings.Contains(s, old) {
			t.Fatalf("%s has no %s", s, old)
		}
		return strings.Replace(s, old, now, 1)
	}
	for _, c := range []struct{ sent, want string }{
		{`{}`, ""},
		{data("", "", ""), ""},
		{data(link+","+bond+","+vlan, network+","+six, dns), ""},
		{data(link, `{"id": "n", "type": "ipv4_dhcp", "link": "eth0", "network_id": "x"}`,
			`{"type": "dns", "address": "192.0.2.2"}`), ""},
		{`{"links": [], "networks": []}`, "'services' is a required property"},
		{`{"links": {}, "networks": [], "services": []}`, "links: {} is not of type 'array'"},
		{data(`"eth0"`, "", ""), "links[0]: 'eth0' is not of type 'object'"},
		{data(link+`,{"id": "x"}`, "", ""), "links[1]: 'type' is a required property"},
		{data(with(link, "phy", "token-ring"), "", ""), "links[0].type: 'token-ring' is not one of ['bridge', 'dvs'"},
		{data(with(link, `"type": "phy", `, `"type": ["phy"], `), "", ""), "links[0].type: ['phy'] is not one of"},
		{data(with(link, `"id": "eth0"`, `"id": 0`), "", ""), "links[0].id: 0 is not of type 'string'"},
		{data(with(link, "fa:16", "16"), "", ""), "links[0].ethernet_mac_address: '16:3e:9c:bf:3d' does not match"},
		{data(with(link, "9000", "65536"), "", ""), "links[0].mtu: 65536 is not from 1 to 65535"},
		{data(with(link, "9000", `"big"`), "", ""), "links[0].mtu: 'big' is not of type 'number'"},
		{data(with(bond, "802.1ad", "fast"), "", ""), "links[0].bond_mode: 'fast' is not one of"},
		{data(with(bond, `["eth0"]`, `[1]`), "", ""), "links[0].bond_links[0]: 1 is not of type 'string'"},
		{data(with(vlan, "vlan_mac_address", "ethernet_mac_address"), "", ""),
			"links[0]: 'vlan_mac_address' is a required property"},
		{data(with(vlan, "7", "7.5"), "", ""), "links[0].vlan_id: 7.5 is not of type 'integer'"},
		{data("", with(network, "192.0.2.7", "192.0.2.700"), ""),
			"networks[0].ip_address: '192.0.2.700' is not an IPv4 address"},
		{data("", with(network, "192.0.2.7", "2001:db8::7"), ""),
			"networks[0].ip_address: '2001:db8::7' is not an IPv4 address"},
		{data("", with(network, "255.255.252.0", "255.0.252.0"), ""),
			"networks[0].netmask: '255.0.252.0' is not an IPv4 network mask"},
		{data("", with(network, "192.0.2.1\"", "gateway\""), ""),
			"networks[0].routes[0].gateway: 'gateway' is not an IPv4 address"},
		{data("", with(network, "\"192.0.2.2\"", "1"), ""),
			"networks[0].routes[0].services[0].address: 1 is not an IPv4 address"},
		{data("", with(six, "ffff:ffff:ffff:ffff::", "64"), ""),
			"networks[0].netmask: '64' is not an IPv6 network mask"},
		{data("", with(six, "/64", "/129"), ""), "networks[0].ip_address: '2001:db8::7/129' is not an IPv6 address"},
		{data("", with(six, `"link": "v", `, ""), ""), "networks[0]: 'link' is a required property"},
		{data("", "", with(dns, "dns", "ntp")), "services[0].type: 'ntp' is not one of ['dns']"},
		{data("", "", with(dns, "2001:db8::2", "ns.example")),
			"services[0].address: 'ns.example' is not an IP address"},
	} {
		var d map[string]any
		if err := json.Unmarshal([]byte(c.sent), &d); err != nil {
			t.Fatalf("%s: %v", c.sent, err)
		}
		switch err := checkNetworkData(d); {
		case err == nil && c.want != "":
			t.Errorf("%s is taken, want %q", c.sent, c.want)
		case err != nil &&
			(c.want == "" || err.Status != 400 || !strings.HasPrefix(err.Message, "Invalid network_data: "+c.want)):
			t.Errorf("%s = %d %q, want %q", c.sent, err.Status, err.Message, c.want)
		}
	}
}
