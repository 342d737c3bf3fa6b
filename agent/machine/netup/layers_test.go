package netup

import (
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

func mac(t *testing.T, s string) net.HardwareAddr {
	t.Helper()
	m, err := net.ParseMAC(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestParseBond(t *testing.T) {
	a, b := mac(t, "52:54:00:00:00:01"), mac(t, "52:54:00:00:00:02")
	got, err := ParseBond(
		"bond0,mode=802.3ad,members=52:54:00:00:00:01+52:54:00:00:00:02,bond_miimon=50,lacp_rate=fast,xmit_hash_policy=layer3+4")
	want := Bond{Name: "bond0", Mode: "802.3ad", Members: []net.HardwareAddr{a, b},
		Options: map[string]string{"miimon": "50", "lacp_rate": "fast", "xmit_hash_policy": "layer3+4"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("ParseBond: %v (-want +got):\n%s", err, diff)
	}
	l, err := got.link(got.address(b))
	if err != nil || l.Mode != netlink.BOND_MODE_802_3AD || l.Miimon != 50 ||
		l.LacpRate != netlink.BOND_LACP_RATE_FAST ||
		l.XmitHashPolicy != netlink.BOND_XMIT_HASH_POLICY_LAYER3_4 || l.HardwareAddr.String() != b.String() {
		t.Errorf("link %+v, %v", l, err)
	}
	if got := got.address(mac(t, "52:54:00:00:00:09")); got.String() != a.String() {
		t.Errorf("booted from elsewhere: the address is %s, want the first member's", got)
	}
	for bad, why := range map[string]string{
		"":                              "no name",
		"a b,members=52:54:00:00:00:01": "no name",
		"bond0":                         "no members",
		"bond0,members=eth0":            "no Ethernet address",
		"bond0,mode=best,members=52:54:00:00:00:01":               "no mode",
		"bond0,members=52:54:00:00:00:01,miimon=x":                "no number",
		"bond0,members=52:54:00:00:00:01,lacp_rate=often":         "slow or fast",
		"bond0,members=52:54:00:00:00:01,xmit_hash_policy=dice":   "xmit_hash_policy",
		"bond0,members=52:54:00:00:00:01,script=/bin/sh":          "not known",
		"bond0,members=52:54:00:00:00:01,address=52:54:00:00:001": "no Ethernet address",
	} {
		if _, err := ParseBond(bad); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("ParseBond(%q) = %v, want %q", bad, err, why)
		}
	}
}

func TestParseVLANs(t *testing.T) {
	got, err := ParseVLANs("eth0.100,52:54:00:AA:00:01.200, eth1,all,")
	want := []VLAN{{On: "eth0", ID: 100}, {On: "52:54:00:aa:00:01", ID: 200}, {On: "eth1"}, {On: "all"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("ParseVLANs: %v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"eth0.0", "eth0.4095", "eth0.x", "eth0.1.2", "all.5", "a/b", "eth0 ,$x"} {
		if got, err := ParseVLANs(bad); err == nil {
			t.Errorf("ParseVLANs(%q) = %v", bad, got)
		}
	}
}
