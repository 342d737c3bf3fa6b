package image

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/initramfs/build"
	"github.com/ingot-metal/ingot/initramfs/kernel"
	"github.com/ingot-metal/ingot/test/kit"
)

// TestEveryBusInAMachine deploys onto a virtio, an NVMe with large sectors, a SATA and a SCSI disk, inside a virtual machine on our own
// ramdisk: identities from a real sysfs, direct I/O and holes on real drivers, partitions that the kernel finds, config drives that it
// mounts.
func TestEveryBusInAMachine(t *testing.T) {
	kit.NeedPrograms(t, "apt-get", "apt-cache", "go", "qemu-system-x86_64")
	agent := filepath.Join(t.TempDir(), "agent")
	t.Setenv("CGO_ENABLED", "0")
	kit.Run(t, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", agent, "./testdata/vm")

	const imageSize, diskSize = 24 * mib, 5 << 30
	imgs := map[int][]byte{512: gptImageFor(imageSize, 512, false), 4096: gptImageFor(imageSize, 4096, false)}
	overlay := t.TempDir()
	if err := os.Mkdir(filepath.Join(overlay, "images"), 0o755); err != nil {
		t.Fatal(err)
	}
	for sector, img := range imgs {
		name := map[int]string{512: "image-512.zst", 4096: "image-4096.zst"}[sector]
		if err := os.WriteFile(filepath.Join(overlay, "images", name), packed(t, img), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The full kernel: the cloud kernel has no SATA.
	r, err := build.Build(t.Context(), build.Options{Profile: "lab", Kernel: kernel.Full, Out: t.TempDir(), Agent: agent, Overlay: []string{overlay}})
	if err != nil {
		t.Fatal(err)
	}

	var args []string
	files := map[string]string{}
	add := func(serial, drive string, devices ...string) {
		path := kit.TempDisk(t, diskSize)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		dirt := bytes.Repeat([]byte{0xa5}, 40*mib)
		for _, off := range []int64{0, diskSize - 70*mib} {
			if _, err := f.WriteAt(dirt[:min(len(dirt), diskSize)], off); err != nil {
				t.Fatal(err)
			}
		}
		files[serial] = path
		args = append(args, "-drive", "if=none,format=raw,cache=unsafe,discard=unmap,id="+serial+",file="+kit.Quote(path)+drive)
		for _, d := range devices {
			args = append(args, "-device", d)
		}
	}
	add("virtio1", "", "virtio-blk-pci,drive=virtio1,serial=virtio1,addr=10")
	add("nvme1", "", "nvme,drive=nvme1,serial=nvme1,logical_block_size=4096,physical_block_size=4096,addr=11")
	add("sata1", "", "ide-hd,bus=ide.2,drive=sata1,serial=sata1,wwn=0x5000c500a1b2c3d4,rotation_rate=1")
	add("scsi1", "", "virtio-scsi-pci,id=vs,addr=12", "scsi-hd,bus=vs.0,channel=0,scsi-id=3,lun=1,drive=scsi1,serial=scsi1,wwn=0x5000c500a1b2c3d5,vendor=INGOT,product=TESTDISK")
	add("spare", "", "virtio-blk-pci,drive=spare,serial=spare,addr=13")

	console := kit.Boot(t, kit.VM{
		Kernel: filepath.Join(r.Dir, r.Manifest.Kernel.File), Initrd: filepath.Join(r.Dir, r.Manifest.Initramfs.File), Append: r.Manifest.Cmdline,
		Args: args, Until: `VM END`, Timeout: 8 * time.Minute,
	})
	said := map[string][]string{}
	for line := range strings.Lines(console) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "VM "); ok {
			what, v, _ := strings.Cut(rest, " ")
			said[what] = append(said[what], v)
		}
	}
	if said["FAILED"] != nil {
		t.Fatalf("%s\nconsole:\n%s", said["FAILED"], console)
	}

	var disks []map[string]any
	if len(said["DISKS"]) != 1 || json.Unmarshal([]byte(said["DISKS"][0]), &disks) != nil {
		t.Fatalf("disks: %s", said["DISKS"])
	}
	got := map[string]map[string]any{}
	for _, d := range disks {
		got[d["serial"].(string)] = d
	}
	for serial, want := range map[string]map[string]any{
		"virtio1": {"tran": "virtio", "by_path": "/dev/disk/by-path/pci-0000:00:10.0", "wwn": nil, "hctl": nil, "logical_sectors": 512.0},
		"nvme1": {"tran": "nvme", "by_path": "/dev/disk/by-path/pci-0000:00:11.0-nvme-1", "model": "QEMU NVMe Ctrl", "rotational": false,
			"logical_sectors": 4096.0, "physical_sectors": 4096.0},
		"sata1": {"tran": "sata", "by_path": "/dev/disk/by-path/pci-0000:00:1f.2-ata-3.0", "wwn": "0x5000c500a1b2c3d4", "vendor": "ATA",
			"model": "QEMU HARDDISK", "rotational": false},
		"scsi1": {"tran": nil, "by_path": "/dev/disk/by-path/pci-0000:00:12.0-scsi-0:0:3:1", "wwn": "0x5000c500a1b2c3d5", "vendor": "INGOT",
			"model": "TESTDISK"},
		"spare": {"tran": "virtio"},
	} {
		for k, v := range want {
			if got[serial][k] != v {
				t.Errorf("%s: %s = %v, want %v (%v)", serial, k, got[serial][k], v, got[serial])
			}
		}
	}
	if hctl, _ := got["scsi1"]["hctl"].(string); !strings.HasSuffix(hctl, ":0:3:1") {
		t.Errorf("scsi1: hctl = %q", hctl)
	}

	if len(said["WROTE"]) != 4 || len(said["DRIVE"]) != 4 {
		t.Fatalf("wrote %s, drives %s", said["WROTE"], said["DRIVE"])
	}
	for _, line := range said["WROTE"] {
		t.Log(line)
	}
	for _, line := range said["DRIVE"] {
		var d struct {
			Serial string
			Drive  struct {
				Format string
				Start  int64
			}
			UserData string `json:"user_data"`
		}
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatal(err)
		}
		format, sector := "iso9660", 512
		if d.Serial == "nvme1" {
			format, sector = "vfat", 4096
		}
		if d.UserData != "for "+d.Serial || d.Drive.Format != format {
			t.Errorf("config drive: %s", line)
		}
		f, err := os.Open(files[d.Serial])
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		content := make([]byte, imageSize)
		if _, err := f.ReadAt(content, 0); err != nil {
			t.Fatal(err)
		}
		want := imgs[sector]
		for off := 6 * sector; off < imageSize-64<<10; off += 512 {
			if off >= 34*512 && !bytes.Equal(content[off:off+512], want[off:off+512]) {
				t.Fatalf("%s: byte %d and following: %x, want %x", d.Serial, off, content[off:off+8], want[off:off+8])
			}
		}
		if sector == 512 {
			kit.NeedPrograms(t, "sgdisk")
			if out := kit.Run(t, "sgdisk", "-v", files[d.Serial]); !strings.Contains(out, "No problems found") {
				t.Errorf("%s: %s", d.Serial, out)
			}
		}
	}
	// The disk that was to be left alone.
	f, err := os.Open(files["spare"])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	first := make([]byte, 4096)
	if _, err := f.ReadAt(first, 0); err != nil || first[0] != 0xa5 {
		t.Errorf("the skipped disk was touched: %x, %v", first[:8], err)
	}
}
