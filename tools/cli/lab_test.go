package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/initramfs/build"
	"github.com/ingot-metal/ingot/tools/lab/site"
)

func TestRack(t *testing.T) {
	dir := t.TempDir()
	ramdisk := filepath.Join(dir, "ramdisk")
	if err := os.MkdirAll(ramdisk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(ramdisk, "manifest.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := rack{name: "x", dir: filepath.Join(dir, "lab"), subnet: "10.9.8.0/24", firmware: "uefi", accel: "tcg",
		nodes: 2, memory: 768, disks: []string{"nvme:1G", "sata:2G"}, ramdisk: ramdisk, ingotd: "/bin/true",
		api: "127.0.0.1:0"}
	d, err := r.daemon()
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Nodes) != 2 || len(d.Nodes[1].Disks) != 2 || d.Nodes[0].Disks[0].SizeBytes != 1<<30 ||
		d.Nodes[0].MemoryMiB != 768 || len(d.Conductors) != 1 {
		t.Errorf("daemon = %+v", d)
	}
	b, err := os.ReadFile(d.Conductors[0].Config)
	if err != nil {
		t.Fatal(err)
	}
	var conf struct {
		DataDir string `json:"data_dir"`
		Netboot struct {
			RangeStart string `json:"range_start"`
			RamdiskDir string `json:"ramdisk_dir"`
		} `json:"netboot"`
	}
	if err := json.Unmarshal(b, &conf); err != nil || conf.Netboot.RangeStart != "10.9.8.50" ||
		conf.Netboot.RamdiskDir != ramdisk || !filepath.IsAbs(conf.DataDir) {
		t.Errorf("configuration = %s, %v", b, err)
	}
	if err := removeConductor(filepath.Dir(d.Conductors[0].Config)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(d.Conductors[0].Config)); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
	for name, bad := range map[string]func(*rack){
		"--nodes":    func(r *rack) { r.nodes = 0 },
		"--firmware": func(r *rack) { r.firmware = "coreboot" },
		"--accel":    func(r *rack) { r.accel = "xen" },
		"--disk":     func(r *rack) { r.disks = []string{"floppy"} },
		"--subnet":   func(r *rack) { r.subnet = "here" },
		"serial":     func(r *rack) { r.disks = []string{"nvme:1G:S1"} },
		"ramdisk":    func(r *rack) { r.ramdisk = dir },
	} {
		wrong := r
		bad(&wrong)
		if _, err := wrong.daemon(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestToolsAreThere(t *testing.T) {
	u := &user{t: t, url: "http://127.0.0.1:1"}
	for _, line := range []string{"ramdisk build --help", "ramdisk inspect --help", "image build --help",
		"lab up --help", "lab down --help", "lab status --help", "lab console --help", "lab power --help"} {
		u.ok(words(line)...)
	}
	u.fails(words("lab status --name there-is-none"), "ingot lab up --name there-is-none")
	u.fails(words("ramdisk build --profile toaster"), "lab, server")
	u.fails(words("ramdisk build --for nova"), `"nova" is not ironic`)
	u.fails(words("ramdisk build --api-url http://192.0.2.1:6385"), "--api-url is for --for ironic")
	u.fails(words("ramdisk build --for ironic --no-iso"), "leave out --no-iso")
	empty := t.TempDir()
	u.fails([]string{"ramdisk", "inspect", empty}, "inspect ramdisk", "ingot ramdisk build --out "+empty)
	u.fails(words("image build windows"), "debian or tiny")
}

// What the builder advises when there is no ramdisk is a command that this program takes. The conductor, which can't
// import the builder, advises the same one.
func TestAdviceForNoRamdisk(t *testing.T) {
	dir := t.TempDir()
	_, err := build.ReadManifest(dir)
	if err == nil {
		t.Fatal("an empty folder is a ramdisk")
	}
	_, advice, found := strings.Cut(strings.TrimSuffix(err.Error(), ")"), "make one with: ingot ")
	if !found || advice != "ramdisk build --out "+dir {
		t.Fatalf("ReadManifest = %v", err)
	}
	u := &user{t: t, url: "http://127.0.0.1:1"}
	u.ok(words(advice + " --help")...)
}

// The shape of the network becomes the lab's and the conductor's mode, and what can't work is refused in words.
func TestRackInAForeignNetwork(t *testing.T) {
	ramdisk, dir := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(ramdisk, "manifest.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	with := func(s site.Site) rack {
		return rack{name: "x", dir: dir, firmware: "bios", accel: "tcg", nodes: 1, ramdisk: ramdisk,
			ingotd: "/bin/true", api: "127.0.0.1:0", site: s}
	}
	for want, s := range map[string]site.Site{
		`"dhcp": "proxy"`:         {DHCP: site.Kea, Relay: site.Dnsmasq},
		`"dhcp": "off"`:           {DHCP: site.Dhcpd, Netboot: site.Off},
		`"range_end": "10.77.0.1`: {},
	} {
		r := with(s)
		d, err := r.daemon()
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(d.Conductors[0].Config)
		if err != nil || !strings.Contains(string(b), want) ||
			strings.Contains(string(b), "range_end") != (s.DHCP == "") || d.Site.DHCP != s.DHCP {
			t.Errorf("%+v: %v\n%s", s, err, b)
		}
	}
	r := with(site.Site{DHCP: site.Dnsmasq, Netboot: site.Server})
	if _, err := r.daemon(); err == nil || !strings.Contains(err.Error(), "two DHCP servers") {
		t.Errorf("two DHCP servers: %v", err)
	}
	u := &user{t: t, url: "http://127.0.0.1:1"}
	u.fails(words("lab up --dhcp-relay dhcrelay"), "its own segment only")
	u.fails(words("lab up --netboot off"), "no server would give machines an address")
	r = with(site.Site{Netboot: site.Off})
	r.bmc = "redfish"
	if d, err := r.daemon(); err != nil || d.Site.Netboot != site.Off {
		t.Errorf("virtual media alone: %+v, %v", d.Site, err)
	}
}
