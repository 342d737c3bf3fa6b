package machine

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// TestInventoryInMachine boots the ramdisk on a machine with a disk of every kind, with sectors of 512 and of 4096
// bytes, with three kinds of network card, two NUMA nodes, a display, a USB device and a switch at one of its ports.
// The inventory must match QEMU's configuration exactly. Two of the network cards are bonded, and there are two VLANs,
// one from the boot parameters and one announced by the switch: the traffic at the other end of the cable must show
// that.
func TestInventoryInMachine(t *testing.T) {
	kit.NeedPrograms(t, "qemu-system-x86_64")
	d := newDesk(t, plan("inspect-1", node.PhaseInspect, node.PlanStep{Interface: "inspect", Name: "inspect",
		Args: json.RawMessage(`{"root_device":{"serial":"SCSI-4K"},"lldp_timeout":5}`)}))

	type disk struct {
		Model     any    `json:"model"`
		Vendor    any    `json:"vendor"`
		Serial    string `json:"serial"`
		WWN       any    `json:"wwn"`
		Size      int64  `json:"size"`
		Rotating  bool   `json:"rotational"`
		Tran      any    `json:"tran"`
		ByPath    string `json:"by_path"`
		HCTL      bool   // it has one; its host number depends on the order of drivers
		Logical   int    `json:"logical_sectors"`
		Physical  int    `json:"physical_sectors"`
		Health    string
		Firmware  string
		Extension any `json:"wwn_with_extension"`
	}
	var args []string
	want := map[string]disk{}
	add := func(w disk, devices ...string) {
		args = append(args, "-drive", "if=none,format=raw,cache=unsafe,id="+w.Serial+",file="+
			kit.Quote(kit.TempDisk(t, w.Size)))
		for _, dev := range devices {
			args = append(args, "-device", dev)
		}
		w.Extension = w.WWN
		want[w.Serial] = w
	}
	// QEMU's NVMe disks have no name of their own that the kernel trusts; it makes one of vendor, serial number, model
	// and namespace. The version of their firmware is QEMU's.
	nvmeName := func(serial string) string { return fmt.Sprintf("nvme.1b36-%x-%x-00000001", serial, "QEMU NVMe Ctrl") }
	qemuVersion := regexp.MustCompile(`version (\S+)`).FindStringSubmatch(
		kit.Run(t, "qemu-system-x86_64", "--version"))[1]
	const mib, path = 1 << 20, "/dev/disk/by-path/pci-0000:00:"
	add(disk{Serial: "VIRTIO-512", Vendor: "0x1af4", Size: 5120 * mib, Rotating: true, Tran: "virtio",
		ByPath: path + "10.0", Logical: 512, Physical: 512},
		"virtio-blk-pci,drive=VIRTIO-512,serial=VIRTIO-512,addr=10")
	add(disk{Serial: "VIRTIO-4K", Vendor: "0x1af4", Size: 5124 * mib, Rotating: true, Tran: "virtio",
		ByPath: path + "11.0", Logical: 4096, Physical: 4096},
		"virtio-blk-pci,drive=VIRTIO-4K,serial=VIRTIO-4K,addr=11,logical_block_size=4096,physical_block_size=4096")
	// ATA disks of QEMU have sectors of 512 bytes alone.
	add(disk{Serial: "SATA-512", Vendor: "ATA", Model: "INGOT SATA DISK", WWN: "0x5000c50015ea71aa", Size: 5128 * mib,
		Tran: "sata", ByPath: path + "1f.2-ata-1.0", HCTL: true, Logical: 512, Physical: 512, Health: "passed",
		Firmware: "FW-1.0"},
		"ide-hd,bus=ide.0,drive=SATA-512,serial=SATA-512,wwn=0x5000c50015ea71aa,rotation_rate=1,model=INGOT SATA DISK,ver=FW-1.0")
	add(disk{Serial: "SATA-512E", Vendor: "ATA", Model: "QEMU HARDDISK", WWN: "0x5000c50015ea71ab", Size: 5132 * mib,
		Rotating: true, Tran: "sata", ByPath: path + "1f.2-ata-3.0", HCTL: true, Logical: 512, Physical: 4096,
		Health: "passed", Firmware: "FW-2.0"},
		"ide-hd,bus=ide.2,drive=SATA-512E,serial=SATA-512E,wwn=0x5000c50015ea71ab,rotation_rate=7200,physical_block_size=4096,ver=FW-2.0")
	add(disk{Serial: "SCSI-512", Vendor: "INGOT", Model: "TESTDISK", WWN: "0x5000c500a1b2c3d5", Size: 5136 * mib,
		ByPath: path + "12.0-scsi-0:0:3:1", HCTL: true, Rotating: true, Logical: 512, Physical: 512, Firmware: "R1"},
		"virtio-scsi-pci,id=vs,addr=12",
		"scsi-hd,bus=vs.0,channel=0,scsi-id=3,lun=1,drive=SCSI-512,serial=SCSI-512,wwn=0x5000c500a1b2c3d5,vendor=INGOT,product=TESTDISK,ver=R1")
	add(disk{Serial: "SCSI-4K", Vendor: "QEMU", Model: "QEMU HARDDISK", WWN: "0x5000c500a1b2c3d6", Size: 5140 * mib,
		ByPath: path + "12.0-scsi-0:0:4:0", HCTL: true, Logical: 4096, Physical: 4096, Firmware: "R2"},
		"scsi-hd,bus=vs.0,channel=0,scsi-id=4,lun=0,drive=SCSI-4K,serial=SCSI-4K,wwn=0x5000c500a1b2c3d6,ver=R2,rotation_rate=1,logical_block_size=4096,physical_block_size=4096")
	add(disk{Serial: "NVME-512", Model: "QEMU NVMe Ctrl", WWN: nvmeName("NVME-512"), Size: 5144 * mib, Tran: "nvme",
		ByPath: path + "13.0-nvme-1", Logical: 512, Physical: 512, Health: "passed", Firmware: qemuVersion},
		"nvme,id=nc1,serial=NVME-512,addr=13", "nvme-ns,drive=NVME-512,bus=nc1,nsid=1")
	add(disk{Serial: "NVME-4K", Model: "QEMU NVMe Ctrl", WWN: nvmeName("NVME-4K"), Size: 5148 * mib, Tran: "nvme",
		ByPath: path + "14.0-nvme-1", Logical: 4096, Physical: 4096, Health: "passed", Firmware: qemuVersion},
		"nvme,id=nc2,serial=NVME-4K,addr=14",
		"nvme-ns,drive=NVME-4K,bus=nc2,nsid=1,logical_block_size=4096,physical_block_size=4096")

	neighbour, left, right := newSwitch(t, true), newSwitch(t, false), newSwitch(t, false)
	args = append(args,
		"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,mac=52:54:00:aa:00:01,addr=2",
		"-netdev", neighbour.netdev("n1"), "-device", "e1000e,netdev=n1,mac=52:54:00:aa:00:02,addr=3",
		"-netdev", "user,id=n2,restrict=on,net=10.0.3.0/24", "-device", "e1000,netdev=n2,mac=52:54:00:aa:00:03,addr=4",
		"-netdev", left.netdev("n3"), "-device",
		"virtio-net-pci,netdev=n3,speed=1000,duplex=full,mac=52:54:00:aa:00:04,addr=7", "-netdev", right.netdev("n4"),
		"-device", "virtio-net-pci,netdev=n4,speed=1000,duplex=full,mac=52:54:00:aa:00:05,addr=8", "-device",
		"bochs-display,addr=5", "-device", "qemu-xhci,id=usb,addr=6", "-device",
		"usb-tablet,bus=usb.0,port=2,serial=USB-1", "-object", "memory-backend-ram,id=m0,size=384M", "-object",
		"memory-backend-ram,id=m1,size=128M", "-numa", "node,nodeid=0,memdev=m0,cpus=0", "-numa",
		"node,nodeid=1,memdev=m1", "-smbios", "type=0,vendor=Ingot BIOS,version=7.1,date=02/29/2024,release=7.1",
		"-smbios", "type=1,manufacturer=Ingot,product=Testbench,version=2,serial=BENCH-1,uuid=4c4c4544-0042-3510-8051-b4c04f4d3732,sku=SKU7,family=Bench",
		"-smbios", "type=2,manufacturer=Ingot,product=Board,serial=BOARD-1", "-smbios",
		"type=3,manufacturer=Ingot,serial=CASE-1,asset=ASSET-9", "-smbios",
		"type=4,manufacturer=Ingot CPUs,serial=CPU-1", "-smbios", "type=11,value=rack 7", "-smbios",
		"type=17,manufacturer=Ingot DIMMs,serial=DIMM-1,part=PART-1,speed=3200")
	vm := agentOf(t, made.RamdiskFull, d, args...)
	vm.Append += " ipa-enable-vlan-interfaces=52:54:00:aa:00:02.102,52:54:00:aa:00:02" +
		" ingot.bond=bond0,mode=802.3ad,members=52:54:00:aa:00:04+52:54:00:aa:00:05,lacp_rate=fast"
	console := kit.Boot(t, vm)

	// The bond speaks LACP over both cables (on links that report full duplex, which virtio's don't by themselves), and
	// requests an address over one of them; the VLANs' requests are tagged.
	if left.saw("LACP from 52:54:00:aa:00:04") == 0 || right.saw("LACP from 52:54:00:aa:00:05") == 0 {
		t.Errorf("no bond: the switches saw %v and %v; the console:\n%s", left.all(), right.all(), console)
	}
	if left.saw("DHCP from 52:54:00:aa:00:04")+right.saw("DHCP from 52:54:00:aa:00:04") == 0 ||
		right.saw("DHCP from 52:54:00:aa:00:05") > 0 {
		t.Errorf("the bond does not ask for an address: the switches saw %v and %v", left.all(), right.all())
	}
	for _, what := range []string{"DHCP from 52:54:00:aa:00:02", "DHCP from 52:54:00:aa:00:02 in VLAN 102",
		"DHCP from 52:54:00:aa:00:02 in VLAN 103"} {
		if neighbour.saw(what) == 0 {
			t.Errorf("no %s: the switch saw %v", what, neighbour.all())
		}
	}
	if neighbour.saw("two tags from 52:54:00:aa:00:02") > 0 {
		t.Errorf("VLANs on VLANs: the switch saw %v", neighbour.all())
	}

	var raw json.RawMessage
	d.result("inspect", &raw)
	var r struct {
		Inventory struct {
			Disks      []json.RawMessage `json:"disks"`
			Interfaces []map[string]any  `json:"interfaces"`
			System     any               `json:"system_vendor"`
			Memory     struct {
				PhysicalMB int `json:"physical_mb"`
			} `json:"memory"`
			CPU struct {
				Count   int    `json:"count"`
				Sockets int    `json:"socket_count"`
				Arch    string `json:"architecture"`
			} `json:"cpu"`
			Boot any `json:"boot"`
		} `json:"inventory"`
		Root     struct{ Serial string }                     `json:"root_disk"`
		Health   []struct{ Serial, Status string }           `json:"disk_health"`
		Firmware []struct{ Component, Name, Version string } `json:"firmware_versions"`
		PCI      []map[string]any                            `json:"pci_devices"`
		USB      []map[string]any                            `json:"usb_devices"`
		NUMA     struct {
			RAM []struct {
				Node int   `json:"numa_node"`
				KB   int64 `json:"size_kb"`
			}
			CPUs any
		} `json:"numa_topology"`
		DMI          map[string]any   `json:"dmi"`
		Accelerators []map[string]any `json:"accelerators"`
		TPM          map[string]any   `json:"tpm"`
		LLDP         map[string]any   `json:"parsed_lldp"`
		Raw          map[string]any   `json:"lldp_raw"`
		Errors       []string         `json:"errors"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Errors) > 0 {
		t.Errorf("errors: %q", r.Errors)
	}
	versions := map[string]string{}
	for _, f := range r.Firmware {
		versions[f.Component+" "+f.Name] = f.Version
	}
	got := map[string]disk{}
	for _, b := range r.Inventory.Disks {
		var g disk
		var report struct{ Name, HCTL string }
		if err := json.Unmarshal(b, &report); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(noHCTL(t, b), &g); err != nil {
			t.Fatal(err)
		}
		g.HCTL, g.Firmware = report.HCTL != "", versions["disk "+report.Name]
		for _, h := range r.Health {
			if h.Serial == g.Serial {
				g.Health = h.Status
			}
		}
		got[g.Serial] = g
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("disks (-want +got):\n%s", diff)
	}
	if r.Root.Serial != "SCSI-4K" {
		t.Errorf("root disk %+v", r.Root)
	}

	var nics []map[string]any
	for _, i := range r.Inventory.Interfaces {
		nics = append(nics, map[string]any{"mac": i["mac_address"], "driver": i["driver"], "pci": i["pci_address"],
			"speed": i["speed_mbps"], "carrier": i["has_carrier"], "vendor": i["vendor"], "product": i["product"]})
		if i["mac_address"] == "52:54:00:aa:00:01" && i["ipv4_address"] != "10.0.2.15" {
			t.Errorf("the interface that leads to the conductor: %v", i)
		}
	}
	byMAC := func(m map[string]any) string { return m["mac"].(string) }
	if diff := cmp.Diff([]map[string]any{
		{"mac": "52:54:00:aa:00:01", "driver": "virtio_net", "pci": "0000:00:02.0", "speed": nil, "carrier": true,
			"vendor": "0x1af4", "product": "0x0001"},
		{"mac": "52:54:00:aa:00:02", "driver": "e1000e", "pci": "0000:00:03.0", "speed": 1000.0, "carrier": true,
			"vendor": "0x8086", "product": "0x10d3"},
		{"mac": "52:54:00:aa:00:03", "driver": "e1000", "pci": "0000:00:04.0", "speed": 1000.0, "carrier": true,
			"vendor": "0x8086", "product": "0x100e"},
		{"mac": "52:54:00:aa:00:04", "driver": "virtio_net", "pci": "0000:00:07.0", "speed": 1000.0, "carrier": true,
			"vendor": "0x1af4", "product": "0x0001"},
		{"mac": "52:54:00:aa:00:05", "driver": "virtio_net", "pci": "0000:00:08.0", "speed": 1000.0, "carrier": true,
			"vendor": "0x1af4", "product": "0x0001"},
	}, sorted(nics, byMAC)); diff != "" {
		t.Errorf("interfaces (-want +got):\n%s", diff)
	}
	for _, i := range r.Inventory.Interfaces {
		name := i["name"].(string)
		if i["mac_address"] != "52:54:00:aa:00:02" {
			if i["lldp"] != nil || r.LLDP[name] != nil || !cmp.Equal(r.Raw[name], any([]any{})) {
				t.Errorf("%s hears a switch that is not there: %v, %v, %v", name, i["lldp"], r.LLDP[name], r.Raw[name])
			}
			continue
		}
		if diff := cmp.Diff(
			any(map[string]any{"switch_chassis_id": "11:22:33:aa:bb:cc", "switch_port_id": "Ethernet7",
				"switch_system_name": "tor-1", "switch_port_untagged_vlan_id": 102.0,
				"switch_port_vlans": []any{map[string]any{"id": 103.0, "name": "blue"}}, "ttl": 120.0}),
			r.LLDP[name]); diff != "" {
			t.Errorf("%s: what the switch says (-want +got):\n%s", name, diff)
		}
		if !cmp.Equal(i["lldp"], r.Raw[name]) || len(r.Raw[name].([]any)) != 7 {
			t.Errorf("%s: raw %v, in the interface %v", name, r.Raw[name], i["lldp"])
		}
	}

	if diff := cmp.Diff(
		any(map[string]any{"manufacturer": "Ingot", "product_name": "Testbench", "serial_number": "BENCH-1",
			"firmware": map[string]any{"vendor": "Ingot BIOS", "version": "7.1", "build_date": "02/29/2024"}}),
		r.Inventory.System); diff != "" {
		t.Errorf("system (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(
		any(map[string]any{"current_boot_mode": "bios", "pxe_interface": nil, "secure_boot": nil, "setup_mode": nil,
			"firmware_bits": 0.0}), r.Inventory.Boot); diff != "" {
		t.Errorf("boot (-want +got):\n%s", diff)
	}
	if c := r.Inventory.CPU; c.Count != 1 || c.Sockets != 1 || c.Arch != "x86_64" ||
		r.Inventory.Memory.PhysicalMB != 512 {
		t.Errorf("cpu %+v, memory %+v", c, r.Inventory.Memory)
	}
	if n := r.NUMA.RAM; len(n) != 2 || n[0].KB <= n[1].KB || n[1].KB > 128<<10 || n[1].KB < 64<<10 ||
		!cmp.Equal(r.NUMA.CPUs,
			any([]any{map[string]any{"cpu": 0.0, "numa_node": 0.0, "thread_siblings": []any{0.0}}})) {
		t.Errorf("numa %+v", r.NUMA)
	}
	for path, want := range map[string]any{
		"bios.Vendor": "Ingot BIOS", "bios.BIOS Revision": "7.1", "system.SKU Number": "SKU7", "system.Family": "Bench",
		"system.UUID": "4c4c4544-0042-3510-8051-b4c04f4d3732", "baseboard.0.Serial Number": "BOARD-1",
		"chassis.0.Asset Tag": "ASSET-9", "cpu.0.Manufacturer": "Ingot CPUs", "cpu.0.Serial Number": "CPU-1",
		"memory.Number Of Devices": 1.0, "memory.devices.0.Size": "512 MB", "memory.devices.0.Serial Number": "DIMM-1",
		"memory.devices.0.Part Number": "PART-1", "memory.devices.0.Speed": "3200 MT/s", "oem_strings.0": "rack 7",
	} {
		if got := lookup(any(r.DMI), path); got != want {
			t.Errorf("dmi %s = %v, want %v", path, got, want)
		}
	}
	if diff := cmp.Diff(
		[]map[string]any{
			{"type": "GPU", "vendor_id": "1234", "device_id": "1111", "class": "038000", "pci_address": "0000:00:05.0",
				"numa_node_id": nil, "driver": nil}}, r.Accelerators); diff != "" {
		t.Errorf("accelerators (-want +got):\n%s", diff)
	}
	var tablet map[string]any
	for _, u := range r.USB {
		if u["serial"] == "USB-1" {
			tablet = u
		}
	}
	if tablet["vendor_id"] != "0627" || tablet["product_id"] != "0001" || tablet["vendor"] != "QEMU" ||
		tablet["product"] != "QEMU USB Tablet" ||
		!strings.HasSuffix(tablet["path"].(string), "-2") {
		t.Errorf("USB devices %v", r.USB)
	}
	classes := map[string]string{}
	for _, p := range r.PCI {
		classes[p["bus"].(string)], _ = p["class"].(string)
	}
	for at, class := range map[string]string{"02": "020000", "05": "038000", "06": "0c0330", "10": "010000",
		"12": "010000", "13": "010802", "1f": ""} {
		if got := classes["0000:00:"+at+".0"]; class != "" && got != class {
			t.Errorf("PCI device %s has class %s, want %s", at, got, class)
		}
	}
	if r.TPM["present"] != false {
		t.Errorf("TPM %v", r.TPM)
	}
}

// noHCTL makes true or false of what the type disk has no text for.
func noHCTL(t *testing.T, b []byte) []byte {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	delete(m, "hctl")
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sorted orders by a key.
func sorted(all []map[string]any, key func(map[string]any) string) []map[string]any {
	for i := range all {
		for j := i; j > 0 && key(all[j]) < key(all[j-1]); j-- {
			all[j], all[j-1] = all[j-1], all[j]
		}
	}
	return all
}

// lookup follows a path of names and indexes.
func lookup(v any, path string) any {
	for _, p := range strings.Split(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[p]
		case []any:
			if len(p) != 1 || int(p[0]-'0') >= len(x) {
				return nil
			}
			v = x[p[0]-'0']
		default:
			return nil
		}
	}
	return v
}

// cableEnd is a switch at the other end of a machine's cable: it records traffic, and may announce itself, five times a
// second.
type cableEnd struct {
	own, machine string

	mu   sync.Mutex
	seen map[string]int
}

func newSwitch(t *testing.T, speaks bool) *cableEnd {
	t.Helper()
	dir := t.TempDir()
	s := &cableEnd{own: filepath.Join(dir, "switch"), machine: filepath.Join(dir, "machine"), seen: map[string]int{}}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.own, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	frame := []byte("\x01\x80\xc2\x00\x00\x0e\x11\x22\x33\xaa\xbb\xcc\x88\xcc" +
		"\x02\x07\x04\x11\x22\x33\xaa\xbb\xcc" + "\x04\x0a\x05Ethernet7" +
		"\x06\x02\x00\x78" + "\x0a\x05tor-1" + "\xfe\x06\x00\x80\xc2\x01\x00\x66" +
		"\xfe\x0b\x00\x80\xc2\x03\x00\x67\x04blue" + "\x00\x00")
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 65536)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			if what := s.name(buf[:n]); what != "" {
				s.mu.Lock()
				s.seen[what]++
				s.mu.Unlock()
			}
		}
	})
	wg.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for speaks {
			select {
			case <-tick.C:
				// fails until the machine is there
				_, _ = conn.WriteTo(frame, &net.UnixAddr{Name: s.machine, Net: "unixgram"})
			case <-ctx.Done():
				return
			}
		}
	})
	t.Cleanup(func() { cancel(); conn.Close(); wg.Wait() })
	return s
}

// name returns the kind of a frame that the test expects; empty for others.
func (s *cableEnd) name(b []byte) string {
	if len(b) < 60 {
		b = append(b, make([]byte, 60-len(b))...)
	}
	from, kind, rest := net.HardwareAddr(b[6:12]).String(), binary.BigEndian.Uint16(b[12:]), b[14:]
	where := ""
	if kind == 0x8100 {
		where = fmt.Sprintf(" in VLAN %d", binary.BigEndian.Uint16(rest)&0xfff)
		kind, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
	}
	switch {
	case kind == 0x8100:
		return "two tags from " + from
	case kind == 0x86dd: // by which a link makes sure of its address
		return "IPv6 from " + from + where
	case kind == 0x8809 && rest[0] == 1: // slow protocols; LACP
		return "LACP from " + from + where
	// UDP to a DHCP server
	case kind == 0x0800 && rest[0] == 0x45 && rest[9] == 17 && binary.BigEndian.Uint16(rest[22:]) == 67:
		return "DHCP from " + from + where
	}
	return ""
}

func (s *cableEnd) saw(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[what]
}

func (s *cableEnd) all() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.seen)
}

// netdev is QEMU's option for the machine's end.
func (s *cableEnd) netdev(id string) string {
	return "dgram,id=" + id + ",local.type=unix,local.path=" + kit.Quote(s.machine) + ",remote.type=unix,remote.path=" +
		kit.Quote(s.own)
}
