package neutron

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/netdata"
)

// read has the agent's own reader read what is made.
func (w *world) read() (*netdata.Data, error) {
	made, err := w.s.NetworkData(w.t.Context(), w.n)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(made)
	if err != nil {
		w.t.Fatal(err)
	}
	return netdata.Parse(text)
}

// TestNetworkData: the config drive has addresses, routes and name servers of the subnets that are attached, on a card
// or a bond; a subnet with DHCP is left to that.
func TestNetworkData(t *testing.T) {
	w := begin(t)
	w.f.ports[vif]["mac_address"] = mac
	sub := object{"id": "sub4", "cidr": "192.0.2.0/24", "gateway_ip": "192.0.2.1", "ip_version": 4,
		"dns_nameservers": []any{"192.0.2.53"}, "enable_dhcp": false,
		"host_routes": []any{object{"destination": "198.51.100.0/24", "nexthop": "192.0.2.9"}}}
	w.f.subnets = []object{sub, {"id": "sub6", "cidr": "2001:db8::/64", "ip_version": 6, "enable_dhcp": true,
		"ipv6_address_mode": "slaac"}}
	w.f.ports[vif]["fixed_ips"] = []any{object{"subnet_id": "sub4", "ip_address": "192.0.2.7"},
		object{"subnet_id": "sub6", "ip_address": "2001:db8::7"}}
	d, err := w.read()
	if err != nil {
		t.Fatal(err)
	}
	l := d.Links[0]
	got := fmt.Sprint(len(d.Links), l.MAC, l.MTU, l.Addrs, l.Routes, l.Auto6, l.DHCP4, d.DNS)
	want := "1" + mac + " 1500 [192.0.2.7/24] [{0.0.0.0/0 192.0.2.1} {198.51.100.0/24 192.0.2.9}] true false" +
		" [192.0.2.53]"
	if strings.ReplaceAll(got, "1 52", "152") != want {
		t.Errorf("network data = %s, want %s", got, want)
	}

	sub["enable_dhcp"] = true
	if d, err = w.read(); err != nil || !d.Links[0].DHCP4 || len(d.Links[0].Addrs) > 0 {
		t.Errorf("with DHCP: %+v, %v", d, err)
	}

	g := &node.Portgroup{Mode: "802.3ad", Address: mac, Properties: object{"miimon": "100"},
		InternalInfo: object{vifKey: vif}}
	g.UUID = "g1"
	w.bonds = []*node.Portgroup{g}
	for _, p := range w.cards {
		p.PortgroupUUID, p.InternalInfo = "g1", nil
	}
	if d, err = w.read(); err != nil || len(d.Links) != 3 || d.Links[2].Bond == nil ||
		d.Links[2].Bond.Mode != "802.3ad" || len(d.Links[2].Bond.Members) != 2 ||
		d.Links[2].Bond.Options["miimon"] != "100" {
		t.Errorf("of a bond: %+v, %v", d, err)
	}
}

// TestNetworkDataOfAHostileService: what no system could use is refused, and named without its text.
func TestNetworkDataOfAHostileService(t *testing.T) {
	for name, change := range map[string]func(*world){
		"no CIDR": func(w *world) { w.f.subnets[0]["cidr"] = "\x1b[2J" + strings.Repeat("x", 1<<20) },
		"an address": func(w *world) {
			w.f.ports[vif]["fixed_ips"] = []any{object{"subnet_id": "sub4", "ip_address": "x\ny"}}
		},
		"its subnet":  func(w *world) { w.f.subnets = nil },
		"its network": func(w *world) { w.f.networks = nil },
		"a wrong mode": func(w *world) {
			w.f.subnets[0]["enable_dhcp"], w.f.subnets[0]["ipv6_address_mode"] = true, "\x00"
		},
		"thousands of servers": func(w *world) {
			w.f.subnets[0]["dns_nameservers"] = strings.Split(strings.Repeat("192.0.2.1,", 5000)+"192.0.2.2", ",")
		},
	} {
		w := begin(t)
		w.f.subnets = []object{{"id": "sub4", "cidr": "192.0.2.0/24", "ip_version": 4, "enable_dhcp": false}}
		if name == "a wrong mode" {
			w.f.subnets[0]["cidr"] = "2001:db8::/64"
		}
		change(w)
		_, err := w.s.NetworkData(t.Context(), w.n)
		if err == nil || len(err.Error()) > 700 || strings.ContainsAny(err.Error(), "\x1b\n\x00") {
			t.Errorf("%s: %v", name, err)
		}
	}
	w := begin(t)
	delete(w.f.ports, vif)
	var invalid *node.InvalidError
	if _, err := w.s.NetworkData(t.Context(), w.n); !errors.As(err, &invalid) {
		t.Errorf("without the port: %v", err)
	}
	w.s.c.Client.HTTPClient.Transport = roundTrip(func(*http.Request) (*http.Response, error) {
		return nil, errors.New("cut off")
	})
	if _, err := w.s.NetworkData(t.Context(), w.n); err == nil {
		t.Error("without Neutron there is network data")
	}
}
