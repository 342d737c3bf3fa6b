package disk

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ingot-metal/ingot/agent/machine/fake"
)

func TestListReadsEveryBus(t *testing.T) {
	m := fake.NewDisks(t.TempDir())
	m.Add(fake.DiskSpec{Name: "vda", Size: 10 << 30, Serial: "ingot-1", Rotational: true})
	m.Add(fake.DiskSpec{Name: "nvme0n1", Size: 20 << 30, Bus: "nvme", Model: "KXG60ZNV256G  TOSHIBA ",
		Serial: "  79A7P1 ", WWN: "eui.0025385b21404321", SectorSize: 4096})
	m.Add(fake.DiskSpec{Name: "sda", Size: 30 << 30, Bus: "sata", Model: "QEMU HARDDISK", Serial: "      QM00001",
		WWN: "5000c500a1b2c3d4", Rotational: true})
	m.Add(fake.DiskSpec{Name: "sdb", Size: 40 << 30, Bus: "scsi", Vendor: "LIO-ORG", Model: "disk", Serial: "abc",
		WWN: "6001405f00000001000000000000beef", ReadOnly: true})
	got, err := List(t.Context(), m.Root())
	if err != nil {
		t.Fatal(err)
	}
	want := []Disk{
		{Name: "/dev/nvme0n1", Model: "KXG60ZNV256G TOSHIBA", Serial: "79A7P1", Size: 20 << 30,
			WWN: "eui.0025385b21404321", WWNWithExtension: "eui.0025385b21404321",
			ByPath: "/dev/disk/by-path/pci-0000:00:05.0-nvme-1", Tran: "nvme", LogicalSectors: 4096,
			PhysicalSectors: 4096},
		{Name: "/dev/sda", Vendor: "ATA", Model: "QEMU HARDDISK", Serial: "QM00001", Size: 30 << 30, Rotational: true,
			WWN: "0x5000c500a1b2c3d4", WWNWithExtension: "0x5000c500a1b2c3d4", HCTL: "3:0:0:0", Tran: "sata",
			ByPath:     "/dev/disk/by-path/pci-0000:00:06.0-ata-1.0",
			ByPathAlso: []string{"/dev/disk/by-path/pci-0000:00:06.0-ata-1"}, LogicalSectors: 512,
			PhysicalSectors: 512},
		{Name: "/dev/sdb", Vendor: "LIO-ORG", Model: "disk", Serial: "abc", Size: 40 << 30, WWN: "0x6001405f00000001",
			WWNWithExtension: "0x6001405f00000001000000000000beef", WWNVendorExtension: "0x000000000000beef",
			HCTL: "4:0:0:0", ByPath: "/dev/disk/by-path/pci-0000:00:07.0-scsi-0:0:0:0", ReadOnly: true,
			LogicalSectors: 512, PhysicalSectors: 512},
		{Name: "/dev/vda", Vendor: "0x1af4", Serial: "ingot-1", Size: 10 << 30, Rotational: true, Tran: "virtio",
			ByPath: "/dev/disk/by-path/pci-0000:00:04.0", LogicalSectors: 512, PhysicalSectors: 512},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Disk{}, "Number")); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
}

func TestListSkipsWhatIsNoDisk(t *testing.T) {
	m := fake.NewDisks(t.TempDir())
	m.Add(fake.DiskSpec{Name: "vda", Size: 1 << 30})
	for _, name := range []string{"loop0", "ram1", "zram0", "sr0", "fd0", "dm-0", "md127", "nbd0", "mmcblk0boot0",
		"nvme0c0n1"} {
		m.Add(fake.DiskSpec{Name: name, Size: 1 << 30})
	}
	m.Add(fake.DiskSpec{Name: "sda", Size: 0, Bus: "scsi", Model: "card reader", Removable: true})
	m.Add(fake.DiskSpec{Name: "sdb", Size: 1 << 30, Bus: "scsi", Vendor: "iDRAC", Model: "Virtual Floppy",
		Removable: true})
	got, err := List(t.Context(), m.Root())
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Name != "/dev/vda" {
		t.Errorf("List = %v, want vda alone", got)
	}
	if got, err := List(t.Context(), t.TempDir()); err != nil || len(got) != 0 {
		t.Errorf("List of a machine without block devices = %v, %v", got, err)
	}
}

func TestParseNumber(t *testing.T) {
	for s, want := range map[string]int64{"": 0, "x": 0, "12": 12, "-1": -1, "9223372036854775807": 1<<63 - 1,
		"9223372036854775808": 0, "-9223372036854775809": 0} {
		if got := ParseNumber(s); got != want {
			t.Errorf("ParseNumber(%q) = %d, want %d", s, got, want)
		}
	}
}

func TestDiskOrder(t *testing.T) {
	names := []string{"mmcblk0", "nvme2n1", "nvme10n1", "sda", "sdb", "sdaa", "vda"}
	for i := range names[1:] {
		if !nameLess("/dev/"+names[i], "/dev/"+names[i+1]) || nameLess("/dev/"+names[i+1], "/dev/"+names[i]) {
			t.Errorf("%s must come before %s", names[i], names[i+1])
		}
	}
}

func TestDiskJSONHasIronicNames(t *testing.T) {
	b, err := json.Marshal(Disk{Name: "/dev/vda", Size: 5, Serial: "x", LogicalSectors: 512, PhysicalSectors: 4096})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"name":"/dev/vda","model":null,"size":5,"rotational":false,"wwn":null,"serial":"x","vendor":null,` +
		`"wwn_with_extension":null,"wwn_vendor_extension":null,"hctl":null,"by_path":null,"logical_sectors":512,"physical_sectors":4096,"tran":null}`
	if string(b) != want {
		t.Errorf("JSON = %s\nwant   %s", b, want)
	}
}

// TestTopology holds paths against what path_id says on real machines; folders and files are made from the table.
func TestTopology(t *testing.T) {
	cases := []struct {
		name, dir string
		files     map[string]string
		want      where
	}{
		{"usb stick", "devices/pci0000:00/0000:00:14.0/usb1/1-3/1-3:1.0/host6/target6:0:0/6:0:0:0/block/sdc", nil,
			where{path: "pci-0000:00:14.0-usb-0:3:1.0-scsi-0:0:0:0", hctl: "6:0:0:0", tran: "usb"}},
		{"usb behind a hub",
			"devices/pci0000:00/0000:00:14.0/usb1/1-3/1-3.2/1-3.2:1.0/host6/target6:0:0/6:0:0:1/block/sdc", nil,
			where{path: "pci-0000:00:14.0-usb-0:3.2:1.0-scsi-0:0:0:1", hctl: "6:0:0:1", tran: "usb"}},
		{"nvme behind a bridge", "devices/pci0000:00/0000:00:1c.4/0000:02:00.0/nvme/nvme0/nvme0n1",
			map[string]string{"nvme0n1/nsid": "1"}, where{path: "pci-0000:02:00.0-nvme-1", tran: "nvme"}},
		{"nvme in a VMD domain",
			"devices/pci0000:7c/0000:7c:00.5/pci10000:00/10000:00:02.0/10000:01:00.0/nvme/nvme1/nvme1n1", nil,
			where{path: "pci-10000:01:00.0-nvme-1", tran: "nvme"}},
		{"multipath nvme has no place", "devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1", nil,
			where{tran: "nvme"}},
		{"raid controller, second host",
			"devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/host1/target1:2:0/1:2:0:0/block/sda",
			map[string]string{"0000:3b:00.0/host0/x": ""},
			where{path: "pci-0000:3b:00.0-scsi-1:2:0:0", hctl: "1:2:0:0"}},
		{"sas disk", "devices/pci0000:00/0000:00:02.0/0000:03:00.0/host0/port-0:2/end_device-0:2/target0:0:2/0:0:2:0/block/sdb",
			map[string]string{"end_device-0:2/sas_device/end_device-0:2/sas_address": "0x5000c500a1b2c3d5",
				"end_device-0:2/sas_device/end_device-0:2/phy_identifier": "2",
				"port-0:2/sas_port/port-0:2/num_phys":                     "1"},
			where{path: "pci-0000:03:00.0-sas-phy2-lun-0", hctl: "0:0:2:0", tran: "sas"}},
		{"sas disk behind an expander",
			"devices/pci0000:00/0000:03:00.0/host0/port-0:0/expander-0:0/port-0:0:5/end_device-0:0:5/target0:0:2/0:0:2:0/block/sdb",
			map[string]string{"end_device-0:0:5/sas_device/end_device-0:0:5/sas_address": "0x5000c500a1b2c3d5",
				"end_device-0:0:5/sas_device/end_device-0:0:5/phy_identifier": "5",
				"port-0:0:5/sas_port/port-0:0:5/num_phys":                     "1",
				"expander-0:0/sas_device/expander-0:0/sas_address":            "0x500056b36789abff"},
			where{path: "pci-0000:03:00.0-sas-exp0x500056b36789abff-phy5-lun-0", hctl: "0:0:2:0", tran: "sas"}},
		{"fibre channel", "devices/pci0000:00/0000:04:00.0/host7/rport-7:0-2/target7:0:0/7:0:0:1/block/sdd",
			map[string]string{"rport-7:0-2/fc_remote_ports/rport-7:0-2/port_name": "0x50060e801049cfd1"},
			where{path: "pci-0000:04:00.0-fc-0x50060e801049cfd1-lun-1", hctl: "7:0:0:1", tran: "fc"}},
		{"sata behind a port multiplier", "devices/pci0000:00/0000:00:1f.2/ata3/host2/target2:4:0/2:4:0:0/block/sde",
			map[string]string{"ata3/ata_port/ata3/port_no": "3"},
			where{path: "pci-0000:00:1f.2-ata-3.4.0", also: []string{"pci-0000:00:1f.2-ata-3"}, hctl: "2:4:0:0",
				tran: "sata"}},
		{"emmc on a platform bus", "devices/platform/fe340000.mmc/mmc_host/mmc0/mmc0:0001/block/mmcblk0", nil,
			where{path: "platform-fe340000.mmc", tran: "mmc"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			base := t.TempDir()
			real := filepath.Join(base, c.dir)
			if err := os.MkdirAll(real, 0o755); err != nil {
				t.Fatal(err)
			}
			for name, content := range c.files {
				first := filepath.Clean(name)
				for filepath.Dir(first) != "." {
					first = filepath.Dir(first)
				}
				dir := real
				for filepath.Base(dir) != first {
					if dir = filepath.Dir(dir); dir == base {
						t.Fatalf("%s is not on the way", first)
					}
				}
				path := filepath.Join(filepath.Dir(dir), name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(c.want, topology(base, real), cmp.AllowUnexported(where{})); diff != "" {
				t.Errorf("topology (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVitalProductData(t *testing.T) {
	// A disk with a T10 name, an EUI-64, an 8-byte NAA name, and the 8-byte NAA name of its port, which is not its own.
	page := "\x00\x83\x00\x34" +
		"\x02\x01\x00\x08vendor--" +
		"\x01\x02\x00\x08\x00\x11\x22\x33\x44\x55\x66\x77" +
		"\x01\x03\x00\x08\x50\x00\xc5\x00\xa1\xb2\xc3\xd4" +
		"\x01\x13\x00\x08\x50\x00\xc5\x00\xff\xff\xff\xff" + "\x00\x00\x00\x00"
	if got := wwnOfPage83([]byte(page)); got != "5000c500a1b2c3d4" {
		t.Errorf("wwnOfPage83 = %q", got)
	}
	if got := serialOfPage80([]byte("\x00\x80\x00\x0a  Z1F ABC\x00 trailing")); got != "Z1F ABC" {
		t.Errorf("serialOfPage80 = %q", got)
	}
	for _, bad := range []string{"", "\x00\x83", "\x00\x83\xff\xff\x01\x03\x00\xff", "\x00\x80\x00\x08"} {
		if got := wwnOfPage83([]byte(bad)); got != "" {
			t.Errorf("wwnOfPage83(%q) = %q", bad, got)
		}
	}
}

func FuzzVitalProductData(f *testing.F) {
	f.Add([]byte("\x00\x83\x00\x0c\x01\x03\x00\x08\x50\x00\xc5\x00\xa1\xb2\xc3\xd4"))
	f.Add([]byte("\x00\x80\x00\x04Z1F "))
	f.Fuzz(func(t *testing.T, page []byte) {
		wwnOfPage83(page)
		serialOfPage80(page)
	})
}
