package netdata

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// whole has everything that is read.
const whole = `{
"links": [
 {"id": "vlan0", "type": "vlan", "vlan_link": "bond", "vlan_id": 101, "vlan_mac_address": "52:54:00:00:00:03", "mtu": 1400},
 {"id": "bond", "type": "bond", "bond_links": ["a", "b"], "ethernet_mac_address": "52:54:00:00:00:02", "bond_mode": "802.1ad",
  "bond_xmit_hash_policy": "layer3+4", "bond_miimon": 100},
 {"id": "a", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:01", "mtu": null, "vif_id": "x"},
 {"id": "b", "type": "vif", "ethernet_mac_address": "52-54-00-00-00-02", "mtu": 9000},
 {"id": "c", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:09", "other": {"x": []}}],
"networks": [
 {"id": "n0", "type": "ipv4", "link": "bond", "network_id": "x", "ip_address": "192.0.2.5", "netmask": "255.255.255.128",
  "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "192.0.2.1", "services": [{"type": "dns", "address": "192.0.2.53"}]},
             {"network": "10.1.2.3", "netmask": "255.0.0.0", "gateway": "192.0.2.2"}], "dns_nameservers": ["192.0.2.53"]},
 {"id": "n1", "type": "ipv6", "link": "vlan0", "network_id": "y", "ip_address": "2001:db8::5/64",
  "routes": [{"network": "::", "netmask": "::", "gateway": "fe80::1"}],
  "services": [{"type": "dns", "address": "2001:db8::53/64"}]},
 {"id": "n2", "type": "ipv6", "link": "vlan0", "ip_address": "2001:db8:1::5", "netmask": "ffff:ffff:ffff::"},
 {"id": "n3", "type": "ipv4_dhcp", "link": "c"}, {"id": "n4", "type": "ipv6_slaac", "link": "c"}],
"services": [{"type": "dns", "address": "192.0.2.53"}, {"type": "ntp", "address": "?"}, {"type": "dns", "address": "192.0.2.54"}]}`

func mac(last byte) net.HardwareAddr { return net.HardwareAddr{0x52, 0x54, 0, 0, 0, last} }

func TestParse(t *testing.T) {
	got, err := Parse([]byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	want := &Data{
		Links: []Link{
			{ID: "a", MAC: mac(1)}, {ID: "b", MAC: mac(2), MTU: 9000},
			{ID: "c", MAC: mac(9), DHCP4: true, Auto6: true},
			{ID: "bond", MAC: mac(2), Bond: &Bond{Mode: "802.3ad", Members: []string{"a", "b"},
				Options: map[string]string{"xmit_hash_policy": "layer3+4", "miimon": "100"}},
				Addrs: []netip.Prefix{prefix("192.0.2.5/25")},
				Routes: []Route{{prefix("0.0.0.0/0"), addr("192.0.2.1")},
					{prefix("10.0.0.0/8"), addr("192.0.2.2")}}},
			{ID: "vlan0", MAC: mac(3), MTU: 1400, VLAN: &VLAN{On: "bond", ID: 101},
				Addrs:  []netip.Prefix{prefix("2001:db8::5/64"), prefix("2001:db8:1::5/48")},
				Routes: []Route{{prefix("::/0"), addr("fe80::1")}}},
		},
		DNS: []netip.Addr{addr("192.0.2.53"), addr("2001:db8::53"), addr("192.0.2.54")},
	}
	compare := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if diff := cmp.Diff(want, got, compare, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("Parse (-want +got):\n%s", diff)
	}
	if !got.Member("a") || got.Member("c") || got.Link("bond") == nil || got.Link("d") != nil {
		t.Errorf("members and links of %+v", got)
	}
}

// What can't be set up is refused where it is given, and the error names the place.
func TestParseRefuses(t *testing.T) {
	links := func(more string) string {
		return `{"links": [{"id": "a", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:01"}` + more +
			`], "networks": [{"id": "n", "type": "ipv4_dhcp", "link": "a"}], "services": []}`
	}
	network := func(more string) string {
		return `{"links": [{"id": "a", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:01"}],
"networks": [{"id": "n", "link": "a", ` + more + `}], "services": []}`
	}
	bond := func(more string) string {
		return links(`, {"id": "b", "type": "bond", "ethernet_mac_address": "52:54:00:00:00:01", ` + more + `}`)
	}
	vlan := func(more string) string {
		return `, {"id": "v", "type": "vlan", "vlan_mac_address": "52:54:00:00:00:01", ` + more + `}`
	}
	v4 := func(more string) string {
		return network(`"type": "ipv4", "ip_address": "192.0.2.5", "netmask": "255.255.255.0", ` + more)
	}
	via := func(gateway string) string {
		return v4(`"routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "` + gateway + `"}]`)
	}
	for text, want := range map[string]string{
		"":                              "it is not JSON",
		"[]":                            "it is not JSON",
		"{}":                            "0 links",
		strings.Repeat(" ", 50<<10):     "bytes are too many",
		links(`, {"id": "a"}`):          `link "a": it has no type`,
		links(`, 7`):                    "link number 2",
		links(`, {"type": "phy"}`):      "link number 2: its id has 0 bytes",
		links(strings.Repeat(`,0`, 64)): "65 links",
		links(`, {"id": "a", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:02"}`): "two of this id",
		links(`, {"id": "b", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:01"}`): "same ethernet_mac_address",
		links(`, {"id": "b", "type": "phy", "ethernet_mac_address": "01:00:5e:00:00:01"}`): "no address of an interface",
		links(`, {"id": "b", "type": "phy", "ethernet_mac_address": "x", "mtu": 1e9}`):     "MTU",
		bond(`"bond_mode": "best", "bond_links": ["a"]`):                                   `no bond_mode "best"`,
		bond(`"bond_mode": "active-backup", "bond_links": []`):                             "no bond_links",
		bond(`"bond_mode": "active-backup", "bond_links": ["z"]`):                          `no link "z"`,
		bond(`"bond_mode": "active-backup", "bond_links": ["b"]`):                          "can't be one of its bond_links",
		bond(`"bond_mode": "active-backup", "bond_links": ["a", "a"]`):                     "can't be one of its bond_links",
		bond(`"bond_mode": "active-backup", "bond_links": ["a"]`):                          "put the network on the bond",
		bond(`"bond_mode": "active-backup", "bond_links": ["a"], "bond_mimon": 1`):         `"bond_mimon" is not known`,
		bond(`"bond_mode": "active-backup", "bond_links": ["a"], "bond_miimon": []`):       "neither a number nor a text",
		links(vlan(`"vlan_link": "a", "vlan_id": 4095`)):                                   "vlan_id of 4095",
		links(vlan(`"vlan_link": "a", "vlan_id": 7.5`)):                                    "vlan_id of 7.5",
		links(vlan(`"vlan_link": "z", "vlan_id": 1`)):                                      `no link "z"`,
		links(vlan(`"vlan_link": "v", "vlan_id": 1`)):                                      "is a VLAN or part of a bond",
		links(vlan(`"vlan_link": "a", "vlan_id": 1`) + strings.ReplaceAll(
			vlan(`"vlan_link": "a", "vlan_id": 1`), `"v"`, `"w"`)): "is the same VLAN",
		network(`"type": "ipx"`): `no type "ipx"`,
		strings.Replace(network(`"type": "ipv4_dhcp"`), `"link": "a"`, `"link": "z"`, 1): `network "n": there is no link "z"`,
		network(`"type": "ipv4"`):                                                      "ip_address",
		network(`"type": "ipv4", "ip_address": "192.0.2.5"`):                           "netmask",
		network(`"type": "ipv4", "ip_address": "192.0.2.5", "netmask": "255.0.255.0"`): "ones after zeros",
		network(`"type": "ipv4", "ip_address": "192.0.2.5/33"`):                        "length of a prefix",
		network(`"type": "ipv4", "ip_address": "2001:db8::1/64"`):                      "no address of IPv4",
		network(`"type": "ipv6", "ip_address": "192.0.2.5/24"`):                        "no address of IPv6",
		network(`"type": "ipv6", "ip_address": "fe80::1%eth0", "netmask": "ffff::"`):   "no address of IPv6",
		network(`"type": "ipv4", "ip_address": "0.0.0.0/0"`):                           "no address of a machine",
		network(`"type": "ipv4", "ip_address": "224.0.0.1/24"`):                        "no address of a machine",
		via("0.0.0.0"): "route 1: 0.0.0.0 is no gateway",
		via("::1"):     "route 1",
		v4(`"routes": [` + strings.Repeat(`{},`, 64) + `{}]`):                   "65 routes",
		v4(`"dns_nameservers": ["ns1"]`):                                        "no address of a name server",
		v4(`"dns_nameservers": ["` + strings.Join(addresses(17), `","`) + `"]`): "more than 16 name servers",
	} {
		if d, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "network_data: ") || len(err.Error()) > 400 {
			t.Errorf("Parse(%.300s) = %+v, %v, want %q", text, d, err, want)
		}
	}
}

func addresses(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("192.0.2.%d", i+1))
	}
	return out
}

// Whatever the text is, links are only made of links before them.
func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte(`{"links":[{"id":"a","type":"bond","bond_links":["a"]}],"networks":[{}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := Parse(text)
		if err != nil {
			return
		}
		if !json.Valid(bytes.TrimSpace(text)) {
			t.Errorf("%q is no JSON", text)
		}
		seen := map[string]bool{}
		for _, l := range d.Links {
			of := []string{}
			if l.Bond != nil {
				of = l.Bond.Members
			}
			if l.VLAN != nil {
				of = []string{l.VLAN.On}
			}
			for _, id := range of {
				if !seen[id] {
					t.Errorf("link %q is made of %q, which is not before it", l.ID, id)
				}
			}
			seen[l.ID] = true
		}
	})
}
