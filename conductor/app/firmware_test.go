//go:build !race

// The program under test is a process of its own, built without the race detector.

package app_test

import (
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
)

// TestFirmwareOfTwoConductors: real firmware on a network with two conductors, each on a host of its own. One of them
// answers it and the iPXE that it loads, and it comes to its agent; and so it does at the other one while the first
// stands still.
func TestFirmwareOfTwoConductors(t *testing.T) {
	bootOfTwo(t, "server", kit.VM{UEFI: true}, ",romfile=")
}

// TestFirmwareOfTwoProxies: the same beside a foreign DHCP server.
func TestFirmwareOfTwoProxies(t *testing.T) { bootOfTwo(t, "proxy", kit.VM{}, "") }

func bootOfTwo(t *testing.T, mode string, vm kit.VM, device string) {
	kit.NeedPrograms(t, "qemu-system-x86_64", "dnsmasq")
	kit.NeedFiles(t, "ipxe", "/usr/lib/ipxe/snponly.efi", "/usr/lib/ipxe/undionly.kpxe")
	spaces := onTwoHosts(t)
	if spaces == nil {
		return
	}
	dir := t.TempDir()
	writeBootFiles(t, dir)
	settings := []string{"netboot.dhcp=" + mode, "netboot.loader_dir=/usr/lib/ipxe"}
	if mode == "server" {
		settings = append(settings, "netboot.range_start=10.77.0.50", "netboot.range_end=10.77.0.90")
	} else {
		kit.Dnsmasq(t, "", "interface=eth0", "no-ping", "dhcp-range=10.77.0.200,10.77.0.210,10m", "dhcp-boot=pxelinux.0")
	}
	r := startOnTwoHosts(t, spaces, dir, settings...)
	kit.Run(t, "ip", "tuntap", "add", "tap0", "mode", "tap")
	kit.Run(t, "ip", "link", "set", "tap0", "master", "eth0", "up")

	var node struct{ UUID string }
	r.decode(r.ask(0, 201, "POST", "/v1/nodes", `{"name": "n", "driver": "fake-hardware",
		"inspect_interface": "agent"}`), &node)
	r.verb("manage", "manageable")
	mac := net.HardwareAddr{0x52, 0x54, 0, 0, 5, 1}
	r.ask(1, 201, "POST", "/v1/ports", fmt.Sprintf(`{"node_uuid": %q, "address": %q}`, node.UUID, mac))
	r.verb("inspect", "inspect wait")

	vm.Args = []string{"-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no",
		"-device", "virtio-net-pci,netdev=n0,bootindex=1,mac=" + mac.String() + device,
		"-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n"}
	vm.Until, vm.Timeout = `vmlinuz\.\.\. ok|Ingot: starting`, 2*time.Minute
	served := func() (by []int) {
		for _, log := range r.logs {
			by = append(by, strings.Count(log.String(), `msg="boot script served"`))
		}
		return by
	}
	kit.Boot(t, vm)
	first := served()
	if first[0]+first[1] != 1 {
		t.Fatalf("boot scripts served by each conductor: %v, want one in all", first)
	}
	by := 0
	if first[1] == 1 {
		by = 1
	}
	if err := syscall.Kill(r.pids[by], syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	kit.Boot(t, vm)
	if got := served(); got[by] != 1 || got[1-by] == 0 {
		t.Errorf("boot scripts served by each conductor: %v, when %d stood still", got, by)
	}
	for _, pid := range r.pids { // in order they would wait for the machine first
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
}
