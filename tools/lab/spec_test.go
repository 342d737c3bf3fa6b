package lab

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

func TestFill(t *testing.T) {
	o, err := Options{Nodes: []NodeSpec{{}, {Name: "big", Firmware: UEFI, Disks: []DiskSpec{{}, {Bus: "nvme"}}}}}.fill()
	if err != nil {
		t.Fatal(err)
	}
	a, b := o.Nodes[0], o.Nodes[1]
	if a.Name != "node-0" || a.MemoryMiB != 512 || a.Firmware != BIOS || len(a.NICs) != 1 ||
		a.NICs[0].MAC != "52:54:00:77:00:01" {
		t.Errorf("machine without wishes: %+v", a)
	}
	if b.NICs[0].MAC == a.NICs[0].MAC || b.UUID == a.UUID || b.UUID == uuid.Nil ||
		b.Disks[0].Serial == b.Disks[1].Serial || b.Disks[0].SizeBytes != 8<<30 {
		t.Errorf("second machine: %+v", b)
	}
	again, err := Options{Nodes: []NodeSpec{{}}}.fill()
	if err != nil || again.Nodes[0].UUID != a.UUID {
		t.Errorf("the UUID of the same machine changed: %v, %v", again.Nodes[0].UUID, err)
	}
}

func TestFillRefuses(t *testing.T) {
	for _, tt := range []struct {
		o    Options
		want string
	}{
		{Options{Name: "Upper"}, "lab name"},
		{Options{Name: "../x"}, "lab name"},
		{Options{Subnet: netip.MustParsePrefix("10.0.0.0/16")}, "subnet"},
		{Options{Subnet: netip.MustParsePrefix("fd00::/24")}, "subnet"},
		{Options{Password: strings.Repeat("x", 21)}, "passwords"},
		{Options{Accel: "warp"}, "accelerator"},
		{Options{Nodes: make([]NodeSpec, 60)}, "at most"},
		{Options{Nodes: []NodeSpec{{Name: "a"}, {Name: "a"}}}, "two machines"},
		{Options{Nodes: []NodeSpec{{Firmware: "coreboot"}}}, "firmware"},
		{Options{Nodes: []NodeSpec{{MemoryMiB: 1}}}, "memory"},
		{Options{Nodes: []NodeSpec{{Disks: []DiskSpec{{Bus: "ide"}}}}}, "bus"},
		{Options{Nodes: []NodeSpec{{Disks: []DiskSpec{{Serial: strings.Repeat("x", 21)}}}}}, "serial number"},
		{Options{Nodes: []NodeSpec{{Disks: []DiskSpec{{WWN: "5000c50015ea71ac"}}}}}, "WWN"},
		{Options{Nodes: []NodeSpec{{Disks: []DiskSpec{{Bus: "sata", WWN: "12"}}}}}, "WWN"},
		{Options{Nodes: []NodeSpec{{NICs: []NICSpec{{Model: "ne2000"}}}}}, "model"},
		{Options{Nodes: []NodeSpec{{NICs: []NICSpec{{MAC: "ff:ff:ff:ff:ff:ff"}}}}}, "address"},
		{Options{Nodes: []NodeSpec{{NICs: []NICSpec{{MAC: "52:54:00:00:00:01"}}},
			{NICs: []NICSpec{{MAC: "52:54:00:00:00:01"}}}}}, "two network cards"},
		{Options{Nodes: []NodeSpec{{NICs: []NICSpec{{ROM: "magic"}}}}}, "ROM"},
	} {
		if _, err := tt.o.fill(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("fill(%+v) = %v, want %q", tt.o, err, tt.want)
		}
	}
}

// QEMU's whole command line, for reading in review: the boot order is the point of it.
func TestQEMUArgs(t *testing.T) {
	o, err := Options{Name: "golden", Nodes: []NodeSpec{{
		Name: "m", Serial: "SN,1",
		Disks: []DiskSpec{
			{File: "/d/a,b.raw", Serial: "A"}, {Bus: "nvme", File: "/d/n.raw"},
			{Bus: "nvme", File: "/d/e.raw", WWN: "0x0123456789abcdef"},
			{Bus: "sata", File: "/d/s.raw", WWN: "5000c50015ea71ac"},
		},
		NICs: []NICSpec{{}, {Model: "e1000", ROM: ROMNone}},
	}}}.fill()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, boot := range []bmc.Boot{{}, {Device: bmc.PXE}, {Device: bmc.Disk}, {Device: bmc.PXE, UEFI: true},
		{Device: bmc.Disk, UEFI: true}, {Device: bmc.CDROM}, {Device: bmc.CDROM, UEFI: true}} {
		for _, accel := range []Accel{TCG, KVM} {
			if accel == KVM && boot != (bmc.Boot{}) {
				continue
			}
			out.WriteString("# " + string(accel) + ", boot " + string(boot.Device))
			if boot.UEFI {
				out.WriteString(", uefi")
			}
			f := files{vars: "/d/vars.fd", kcs: "/run/kcs"}
			if boot.Device == bmc.CDROM {
				f.discs = []discFile{{"/run/m,1.cd0", false}, {"/run/m,1.cd1", true}}
			}
			args := qemuArgs(o.Nodes[0], accel, boot, f, []string{"n0e0", "n0e1"})
			for _, a := range args {
				if strings.HasPrefix(a, "-") {
					out.WriteString("\n" + a)
				} else {
					out.WriteString(" " + a)
				}
			}
			out.WriteString("\n\n")
		}
	}
	kit.Golden(t, "qemu-args", []byte(out.String()))
}

func TestParseDisk(t *testing.T) {
	for s, want := range map[string]DiskSpec{
		"virtio:8G":       {Bus: "virtio", SizeBytes: 8 << 30},
		"nvme:512M:SN-1":  {Bus: "nvme", SizeBytes: 512 << 20, Serial: "SN-1"},
		"sata:2T:a:b":     {Bus: "sata", SizeBytes: 2 << 40, Serial: "a:b"},
		"sata":            {},
		"sata:":           {},
		"sata:8":          {},
		"sata:-8G":        {},
		"sata:99999999T":  {},
		"virtio:eightG:x": {},
	} {
		got, err := ParseDisk(s)
		if (err != nil) != (want == DiskSpec{}) || got != want {
			t.Errorf("ParseDisk(%q) = %+v, %v, want %+v", s, got, err, want)
		}
	}
}

// What a program said goes to terminals and tables.
func TestLastWords(t *testing.T) {
	for said, want := range map[string]string{
		"":                                      "",
		"one\ntwo\n\n\x1b[31mthree\x07\r\nfour": "two; [31mthree; four",
		"a\xff\u202eb\n":                        "a? b",
	} {
		if got := lastWords(said); got != want {
			t.Errorf("lastWords(%q) = %q, want %q", said, got, want)
		}
	}
	if got := lastWords(strings.Repeat("ü", 5000)); len([]rune(got)) != 600 {
		t.Errorf("a long line has %d characters left", len([]rune(got)))
	}
}
