package inventory

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/initramfs/build"
	"github.com/ingot-metal/ingot/initramfs/kernel"
	"github.com/ingot-metal/ingot/test/kit"
)

// machines are kinds of virtual machines whose captures lie in testdata, by the name of their file, with what QEMU was
// told. Each has its own way of hanging disks and network cards onto a bus.
var machines = map[string]struct {
	machine string // besides what kit.Boot says
	uefi    bool
	disks   []string // DRIVE stands for the name of a new drive, AGAIN for another way to the one before
	rest    []string
}{
	"i440fx-ide": {"pc,graphics=off", false,
		[]string{"ide-hd,bus=ide.0,unit=0,drive=DRIVE,serial=IDE-1",
			"ide-hd,bus=ide.1,unit=1,drive=DRIVE,serial=IDE-2,wwn=0x5000c50015ea71ac"},
		[]string{"-netdev", "user,id=n0", "-device", "e1000,netdev=n0,mac=52:54:00:01:00:01", "-smp", "2,sockets=2"}},
	"i440fx-virtio": {"pc,graphics=off", false,
		[]string{"virtio-blk-pci,drive=DRIVE,serial=BLK-1",
			"virtio-blk-pci,drive=DRIVE,serial=BLK-2,logical_block_size=4096,physical_block_size=4096"},
		[]string{"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,mac=52:54:00:02:00:01", "-device",
			"piix3-usb-uhci"}},
	"q35-ahci": {"q35,graphics=off", false,
		[]string{"ide-hd,bus=ide.0,drive=DRIVE,serial=SATA-1,wwn=0x5000c50015ea71aa,rotation_rate=1",
			"ide-hd,bus=ide.3,drive=DRIVE,serial=SATA-2,physical_block_size=4096"},
		[]string{"-netdev", "user,id=n0", "-device", "e1000e,netdev=n0,mac=52:54:00:03:00:01", "-device", "VGA"}},
	"q35-scsi": {"q35,graphics=off", false,
		[]string{"virtio-scsi-pci,id=a",
			"scsi-hd,bus=a.0,scsi-id=1,lun=0,drive=DRIVE,serial=SCSI-1,wwn=0x5000c500a1b2c3d5", "virtio-scsi-pci,id=b",
			"scsi-hd,bus=b.0,scsi-id=0,lun=300,drive=DRIVE,serial=SCSI-2,logical_block_size=4096,physical_block_size=4096"},
		[]string{"-netdev", "user,id=n0", "-device", "pcie-root-port,id=rp,chassis=1", "-device",
			"virtio-net-pci,bus=rp,netdev=n0,mac=52:54:00:04:00:01"}},
	// One volume, reached over two controllers.
	"q35-multipath": {"q35,graphics=off", false,
		[]string{"virtio-scsi-pci,id=a",
			"scsi-hd,bus=a.0,scsi-id=1,lun=2,drive=DRIVE,serial=VOL-1,wwn=0x5000c500a1b2c3d5,vendor=INGOT,product=VOLUME,share-rw=on",
			"virtio-scsi-pci,id=b",
			"scsi-hd,bus=b.0,scsi-id=1,lun=2,drive=AGAIN,serial=VOL-1,wwn=0x5000c500a1b2c3d5,vendor=INGOT,product=VOLUME,share-rw=on",
			"scsi-hd,bus=b.0,scsi-id=2,lun=0,drive=DRIVE,serial=OWN-1,wwn=0x5000c500a1b2c3d7,vendor=INGOT,product=DISK"}, nil},
	"q35-nvme-uefi": {"q35,graphics=off", true,
		[]string{"nvme,id=c,serial=NVME-1", "nvme-ns,bus=c,nsid=1,drive=DRIVE",
			"nvme-ns,bus=c,nsid=2,drive=DRIVE,logical_block_size=4096,physical_block_size=4096"},
		[]string{"-netdev", "user,id=n0", "-device", "e1000e,netdev=n0,mac=52:54:00:05:00:01", "-smp",
			"4,sockets=2,cores=1,threads=2", "-object", "memory-backend-ram,id=m0,size=256M", "-object",
			"memory-backend-ram,id=m1,size=256M", "-numa", "node,nodeid=0,memdev=m0,cpus=0-1", "-numa",
			"node,nodeid=1,memdev=m1,cpus=2-3"}},
}

// TestMachines gives the inventories of captured machines. To make captures again, of the machines whose names fit:
// INGOT_CAPTURE=q35 go test -run TestMachines -update.
func TestMachines(t *testing.T) {
	if which := os.Getenv("INGOT_CAPTURE"); which != "" {
		recapture(t, which)
	}
	for name := range machines {
		t.Run(name, func(t *testing.T) {
			f, err := os.Open(filepath.Join("testdata", name+".tar.gz"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			z, err := gzip.NewReader(f)
			if err != nil {
				t.Fatal(err)
			}
			kit.Golden(t, name+".json", report(t, bare{unpack(t, z)}))
		})
	}
}

// recapture boots every machine on our own ramdisk and keeps what it captures of itself.
func recapture(t *testing.T, which string) {
	agent := filepath.Join(t.TempDir(), "agent")
	t.Setenv("CGO_ENABLED", "0")
	kit.Run(t, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", agent, "./testdata/vm")
	r, err := build.Build(t.Context(),
		build.Options{Profile: "lab", Kernel: kernel.Full, Modules: []string{"uhci_hcd", "ehci_pci"}, Out: t.TempDir(),
			Agent: agent})
	if err != nil {
		t.Fatal(err)
	}
	for name, k := range machines {
		if !strings.Contains(name, which) {
			continue
		}
		var args []string
		var file string
		drives := 0
		for _, d := range k.disks {
			if again := strings.Contains(d, "AGAIN"); again || strings.Contains(d, "DRIVE") {
				drives++
				if !again {
					file = kit.TempDisk(t, int64(drives)<<30)
				}
				id := "drive" + strconv.Itoa(drives)
				args = append(args, "-drive", "if=none,format=raw,cache=unsafe,file.locking=off,id="+id+
					",file.filename="+kit.Quote(file))
				d = strings.NewReplacer("DRIVE", id, "AGAIN", id).Replace(d)
			}
			args = append(args, "-device", d)
		}
		console := kit.Boot(t, kit.VM{
			Kernel: filepath.Join(r.Dir, r.Manifest.Kernel.File),
			Initrd: filepath.Join(r.Dir, r.Manifest.Initramfs.File), Append: r.Manifest.Cmdline, UEFI: k.uefi,
			Args: append([]string{"-M", k.machine}, append(args, k.rest...)...), Until: `VM END`,
			Timeout: 5 * time.Minute,
		})
		m := regexp.MustCompile(`VM CAPTURE "([A-Za-z0-9+/=]+)"`).FindStringSubmatch(console)
		if m == nil {
			t.Fatalf("%s: no capture:\n%s", name, console)
		}
		b, err := base64.StdEncoding.DecodeString(m[1])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := gzip.NewReader(bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join("testdata", name+".tar.gz"), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
