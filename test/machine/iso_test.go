package machine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// TestISO boots the image that `ingot ramdisk iso` writes from a CD drive, by a BIOS and by UEFI: the agent enrols with
// a token that is in its own part of the ramdisk and on no command line.
func TestISO(t *testing.T) {
	for _, uefi := range []bool{false, true} {
		t.Run(map[bool]string{false: "bios", true: "uefi"}[uefi], func(t *testing.T) {
			d := newDesk(t)
			params := filepath.Join(t.TempDir(), "params")
			secrets := fmt.Sprintf("ingot.conductor=%s ingot.ca=%s ingot.token=%s", host(d.addr), d.ca.Fingerprint(),
				d.token)
			if err := os.WriteFile(params, []byte(secrets), 0o600); err != nil {
				t.Fatal(err)
			}
			iso := filepath.Join(t.TempDir(), "agent.iso")
			kit.Run(t, made.Program(t, "ingot"), "ramdisk", "iso", "--ramdisk",
				made.Ramdisk(t, made.RamdiskLab), "--params", params, "--append", "mitigations=off no_timer_check", "--out", iso)
			console := kit.Boot(t, kit.VM{UEFI: uefi, Timeout: bootLimit, Args: append(nic(), "-cdrom", iso)})
			for _, want := range []string{"ingot: network: eth0 10.0.2.15/24", "ingot: node " + d.node.UUID} {
				if !strings.Contains(console, want) {
					t.Errorf("the console does not say %q:\n%s", want, console)
				}
			}
			if strings.Contains(console, d.token) {
				t.Error("the token is on the console")
			}
		})
	}
}

// TestNetworkDataInMachine boots an image with network data, on a network that would give another address by DHCP: the
// agent enrols from the address of the data, on a bond, and there is a VLAN on another bond and on an interface.
func TestNetworkDataInMachine(t *testing.T) {
	// The inspection gives the VLANs time to make sure of their addresses, which the switches see.
	d := newDesk(t, plan("inspect-1", node.PhaseInspect, node.PlanStep{Interface: "inspect", Name: "inspect",
		Args: json.RawMessage(`{"lldp_timeout":5}`)}))
	bonded, plain := newSwitch(t, false), newSwitch(t, false)
	dir := t.TempDir()
	files := map[string]string{
		"params": fmt.Sprintf("ingot.conductor=%s ingot.ca=%s ingot.token=%s", host(d.addr), d.ca.Fingerprint(), d.token),
		"network": `{"links": [
 {"id": "a", "type": "phy", "ethernet_mac_address": "52:54:00:aa:00:01"},
 {"id": "b", "type": "phy", "ethernet_mac_address": "52:54:00:aa:00:02"},
 {"id": "pair", "type": "bond", "ethernet_mac_address": "52:54:00:aa:00:09", "bond_mode": "active-backup",
  "bond_links": ["a"], "bond_miimon": 50},
 {"id": "c", "type": "phy", "ethernet_mac_address": "52:54:00:aa:00:03"},
 {"id": "second", "type": "bond", "ethernet_mac_address": "52:54:00:aa:00:02", "bond_mode": "802.1ad", "bond_links": ["b"]},
 {"id": "v", "type": "vlan", "vlan_mac_address": "52:54:00:aa:00:22", "vlan_link": "second", "vlan_id": 102},
 {"id": "w", "type": "vlan", "vlan_mac_address": "52:54:00:aa:00:03", "vlan_link": "c", "vlan_id": 103}],
"networks": [
 {"type": "ipv4", "link": "pair", "ip_address": "10.0.2.77", "netmask": "255.255.255.0",
  "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.2.2"}]},
 {"type": "ipv6", "link": "v", "ip_address": "2001:db8::5/64"},
 {"type": "ipv6", "link": "w", "ip_address": "2001:db8:1::5/64"}], "services": []}`,
	}
	args := []string{"ramdisk", "iso", "--ramdisk", made.Ramdisk(t, made.RamdiskFull), "--append",
		"mitigations=off no_timer_check", "--out", filepath.Join(dir, "agent.iso"), "--params",
		filepath.Join(dir, "params"), "--network-data", filepath.Join(dir, "network")}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kit.Run(t, made.Program(t, "ingot"), args...)
	console := kit.Boot(t, kit.VM{Timeout: bootLimit, Args: []string{"-cdrom", filepath.Join(dir, "agent.iso"),
		"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,mac=52:54:00:aa:00:01",
		"-netdev", bonded.netdev("n1"), "-device", "virtio-net-pci,netdev=n1,mac=52:54:00:aa:00:02,speed=1000,duplex=full",
		"-netdev", plain.netdev("n2"), "-device", "virtio-net-pci,netdev=n2,mac=52:54:00:aa:00:03"}})
	for _, want := range []string{"bond0 10.0.2.77/24", "ingot: node " + d.node.UUID} {
		if !strings.Contains(console, want) {
			t.Errorf("the console does not say %q:\n%s", want, console)
		}
	}
	if strings.Contains(console, "10.0.2.15") || plain.saw("DHCP from 52:54:00:aa:00:03") > 0 {
		t.Errorf("the agent asks for addresses; the console:\n%s", console)
	}
	if bonded.saw("IPv6 from 52:54:00:aa:00:22 in VLAN 102") == 0 || bonded.saw("LACP from 52:54:00:aa:00:02") == 0 {
		t.Errorf("no VLAN on the bond: the switch saw %v", bonded.all())
	}
	if plain.saw("IPv6 from 52:54:00:aa:00:03 in VLAN 103") == 0 || plain.saw("two tags from 52:54:00:aa:00:03") > 0 {
		t.Errorf("no VLAN, or more than one: the switch saw %v", plain.all())
	}
}
