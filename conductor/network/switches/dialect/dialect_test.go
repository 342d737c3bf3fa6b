package dialect

import (
	"maps"
	"slices"
	"testing"
)

// TestWhatSwitchesShow: configuration in the form in which the switches show it (the sources are named in the dialects)
// is read as it is meant, defaults included.
func TestWhatSwitchesShow(t *testing.T) {
	const nxosHead = "\n!Command: show running-config interface Ethernet1/1\n!Running configuration last done at: Sun Aug" +
		" 18 23:22:42 2019\n!Time: Tue Sep  3 23:25:59 2019\n\nversion 7.0(3)I7(6) Bios:version 08.35\n\n"
	for _, c := range []struct {
		dialect, port, text, want string
	}{
		{"cisco_nxos", "Ethernet1/1", nxosHead + "interface Ethernet1/1\n", "in VLAN 1"},
		{"cisco_nxos", "Ethernet1/1",
			nxosHead + "interface Ethernet1/1\n  description web1\n  switchport access vlan 200\n" +
				"  no shutdown\n", "in VLAN 200"},
		{"cisco_nxos", "Ethernet1/1", nxosHead + "interface Ethernet1/1\n  switchport mode trunk\n" +
			"  switchport trunk native vlan 6\n  switchport trunk allowed vlan 15-20,100\n  no shutdown\n",
			"a trunk of VLANs 15-20,100 with native VLAN 6"},
		{"cisco_nxos", "Ethernet1/1", nxosHead + "interface Ethernet1/1\n  switchport\n  switchport mode trunk\n" +
			"  switchport trunk allowed vlan 521,542,578-581\n  switchport trunk allowed vlan add 658,675\n",
			"a trunk of VLANs 521,542,578-581,658,675 with native VLAN 1"},
		{"cisco_nxos", "Ethernet1/1", nxosHead + "interface Ethernet1/1\n  switchport mode trunk\n",
			"a trunk of all VLANs"},
		{"cisco_nxos", "Ethernet1/1",
			nxosHead + "interface Ethernet1/1\n  switchport mode trunk\n  channel-group 12 mode" +
				" active\n  no shutdown\n", "a member of LAG 12"},
		{"cisco_nxos", "Ethernet1/1", nxosHead + "interface Ethernet1/1\n  no switchport\n  ip address 192.0.2.1/24\n",
			"a routed port"},
		{"cisco_nxos", "Ethernet1/1", nxosHead + "interface Ethernet1/1\n  shutdown\n", "shut down"},
		{"cisco_nxos", "Ethernet1/1", nxosHead + "interface Ethernet1/11\n  switchport access vlan 200\n", "not there"},
		{"cisco_nxos", "Ethernet1/1", nxosHead + "interface Ethernet1/1\n  switchport mode fex-fabric\n",
			"in mode fex-fabric"},
		{"arista_eos", "Ethernet2", "interface Ethernet2\n", "in VLAN 1"},
		{"arista_eos", "Ethernet2", "interface Ethernet2\n   description web1\n   switchport access vlan 10\n",
			"in VLAN 10"},
		{"arista_eos", "Ethernet2", "interface Ethernet2\n   switchport trunk native vlan 999\n" +
			"   switchport trunk allowed vlan 10-12\n   switchport mode trunk\n",
			"a trunk of VLANs 10-12 with native VLAN 999"},
		{"arista_eos", "Ethernet2",
			"interface Ethernet2\n   switchport trunk allowed vlan none\n   switchport mode trunk\n",
			"a trunk of VLANs  with native VLAN 1"},
		{"arista_eos", "Port-Channel10", "interface Port-Channel10\n   switchport access vlan 10\n", "in VLAN 10"},
		{"arista_eos", "Ethernet2", "interface Ethernet2\n   channel-group 10 mode active\n", "a member of LAG 10"},
		{"arista_eos", "Ethernet2", "interface Ethernet2\n   shutdown\n", "shut down"},
		{"arista_eos", "Ethernet2", "", "not there"},
	} {
		got, err := Find(c.dialect).Parse(c.port, c.text)
		if err != nil || got.String() != c.want {
			t.Errorf("%s: %q is %q, %v; want %q", c.dialect, c.text, got, err, c.want)
		}
	}
	for _, text := range []string{"interface Ethernet2\ninterface Ethernet2\n",
		"interface Ethernet2\n   switchport access vlan 99999999999999999999\n",
		"interface Ethernet2\n   switchport trunk allowed vlan 1-99999\n"} {
		if got, err := Find("arista_eos").Parse("Ethernet2", text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
	vlans := "VLAN  Name                             Status    Ports\n" +
		"----- -------------------------------- --------- -------------------------------\n" +
		"1     default                          active    Et1\n10    Test1                            active    Et1, Et2\n" +
		"20    Test2                            suspended\n200   act                              act/lshut\n"
	for name, d := range all {
		if got := slices.Sorted(maps.Keys(d.ActiveVLANs(vlans))); !slices.Equal(got, []int{1, 10}) {
			t.Errorf("%s: active VLANs %v", name, got)
		}
	}
}

// TestNamesOfPorts: the forms in which tables and LLDP have a port's name, and nothing else.
func TestNamesOfPorts(t *testing.T) {
	for dialect, names := range map[string]map[string]string{
		"cisco_nxos": {"Ethernet1/1": "Ethernet1/1", "Eth1/1": "Ethernet1/1", "ethernet 1/1/2": "Ethernet1/1/2",
			"mgmt0": "", "Vlan1": "", "Ethernet1/1 ": "", "Ethernet1/1\n": "", "Ethernet1": "", "xEth1/1": ""},
		"arista_eos": {"Ethernet1": "Ethernet1", "Et1": "Ethernet1", "Ethernet3/1/4": "Ethernet3/1/4",
			"Management1":       "",
			"Ethernet1\nreload": "", "Ethernet1;": "", "": ""},
	} {
		for name, want := range names {
			if got, _ := Find(dialect).Canonical(name); got != want {
				t.Errorf("%s: %q is %q, want %q", dialect, name, got, want)
			}
		}
	}
}

// TestDialectsAreWhole: one that lacks a part, or has one that is not known, is refused, not half used.
func TestDialectsAreWhole(t *testing.T) {
	whole, err := files.ReadFile("files/arista_eos.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseDialect(whole); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "about: x\n", string(whole) + "reboot: reload\n"} {
		if _, err := parseDialect([]byte(text)); err == nil {
			t.Errorf("%.40q is taken for a dialect", text)
		}
	}
}

// FuzzRead: no output of a switch can do more than be refused.
func FuzzRead(f *testing.F) {
	f.Add("interface Ethernet1/1\n  switchport trunk allowed vlan 1-4094\n")
	f.Add("interface Ethernet1/1\n  channel-group 1 mode active\n\x1b[2J")
	f.Fuzz(func(t *testing.T, text string) {
		for _, d := range all {
			_, err := d.Parse("Ethernet1/1", text)
			if err != nil && len(err.Error()) > 400 {
				t.Errorf("the error is %q", err)
			}
			d.ActiveVLANs(text)
		}
	})
}
