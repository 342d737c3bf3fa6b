package machine

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/u-root/u-root/pkg/cpio"

	"github.com/ingot-metal/ingot/initramfs/build"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

const mib = 1 << 20

// busImage makes a whole-disk image for disks with sectors of one size: a GPT with one partition, data and holes of
// many sizes.
func busImage(size, sector int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{7})
	for off := 0; off < size; {
		n := min(4096*(1+int(r.Uint64()%60)), size-off)
		_, _ = r.Read(b[off : off+n])
		off += n + 4096*int(r.Uint64()%90)
	}
	le := binary.LittleEndian
	last, table := uint64(size/sector)-1, uint64(16384/sector) // sectors of the entries
	clear(b[440 : (2+int(table))*sector])
	b[446+4], b[510], b[511] = 0xee, 0x55, 0xaa
	le.PutUint32(b[446+8:], 1)
	le.PutUint32(b[446+12:], uint32(last))
	entries := b[2*sector : 2*sector+16384]
	copy(entries, "\xa2\xa0\xd0\xeb\xe5\xb9\x33\x44\x87\xc0\x68\xb6\xb7\x26\x99\xc7unique guid 0001")
	le.PutUint64(entries[32:], uint64(mib/sector))
	le.PutUint64(entries[40:], last-table-2)
	header := func(at []byte, mine, other, entriesAt uint64) {
		clear(at[:sector])
		copy(at, "EFI PART\x00\x00\x01\x00\x5c")
		for k, v := range []uint64{mine, other, 2 + table, last - table - 1} {
			le.PutUint64(at[24+8*k:], v)
		}
		copy(at[56:], "the disk's guid.")
		le.PutUint64(at[72:], entriesAt)
		le.PutUint32(at[80:], 128)
		le.PutUint32(at[84:], 128)
		le.PutUint32(at[88:], crc32.ChecksumIEEE(entries))
		le.PutUint32(at[16:], crc32.ChecksumIEEE(at[:92]))
	}
	header(b[sector:], 1, last, 2)
	copy(b[size-int(table+1)*sector:], entries)
	header(b[size-sector:], last, 1, last-table)
	return b
}

// withFiles makes an initramfs of another one and files that are put over it: the kernel unpacks one archive after the
// other.
func withFiles(t *testing.T, initramfs string, files map[string][]byte) string {
	t.Helper()
	data, err := os.ReadFile(initramfs)
	if err != nil {
		t.Fatal(err)
	}
	// An archive begins at a multiple of four bytes.
	out := bytes.NewBuffer(append(data, make([]byte, (4-len(data)%4)%4)...))
	w := cpio.Newc.Writer(out)
	dirs := map[string]bool{".": true}
	for name, data := range files {
		if dir := filepath.Dir(name); !dirs[dir] {
			dirs[dir] = true
			if err := w.WriteRecord(cpio.Directory(dir, 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.WriteRecord(cpio.StaticFile(name, string(data), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := cpio.WriteTrailer(w); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "initramfs")
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestEveryBusInAMachine deploys onto a virtio, an NVMe with large sectors, a SATA and a SCSI disk, inside a virtual
// machine on our own ramdisk: identities from a real sysfs, direct I/O and holes on real drivers, partitions that the
// kernel finds, config drives that it mounts.
func TestEveryBusInAMachine(t *testing.T) {
	kit.NeedPrograms(t, "go", "qemu-system-x86_64", "sgdisk")
	ramdisk := made.Ramdisk(t, made.RamdiskFull) // the cloud kernel has no SATA
	manifest, err := build.ReadManifest(ramdisk)
	if err != nil {
		t.Fatal(err)
	}
	agent := filepath.Join(t.TempDir(), "agent")
	t.Setenv("CGO_ENABLED", "0")
	kit.Run(t, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", agent, "./testdata/buses")
	program, err := os.ReadFile(agent)
	if err != nil {
		t.Fatal(err)
	}
	const imageSize, diskSize = 10 * mib, 5 << 30
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	imgs, over := map[int][]byte{}, map[string][]byte{"init": program}
	for _, sector := range []int{512, 4096} {
		imgs[sector] = busImage(imageSize, sector)
		over[fmt.Sprintf("images/image-%d.zst", sector)] = z.EncodeAll(imgs[sector], nil)
	}

	var args []string
	files := map[string]string{}
	add := func(serial string, devices ...string) {
		path := kit.TempDisk(t, diskSize)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		dirt := bytes.Repeat([]byte{0xa5}, 2*imageSize)
		// What is written to: image, config drive, table.
		for _, off := range []int64{0, diskSize - 70*mib, diskSize - int64(len(dirt))} {
			if _, err := f.WriteAt(dirt, off); err != nil {
				t.Fatal(err)
			}
		}
		files[serial] = path
		args = append(args, "-drive", "if=none,format=raw,cache=unsafe,discard=unmap,id="+serial+",file="+
			kit.Quote(path))
		for _, d := range devices {
			args = append(args, "-device", d)
		}
	}
	add("virtio1", "virtio-blk-pci,drive=virtio1,serial=virtio1,addr=10")
	add("nvme1", "nvme,drive=nvme1,serial=nvme1,logical_block_size=4096,physical_block_size=4096,addr=11")
	add("sata1", "ide-hd,bus=ide.2,drive=sata1,serial=sata1,wwn=0x5000c500a1b2c3d4,rotation_rate=1")
	add("scsi1", "virtio-scsi-pci,id=vs,addr=12",
		"scsi-hd,bus=vs.0,channel=0,scsi-id=3,lun=1,drive=scsi1,serial=scsi1,"+
			"wwn=0x5000c500a1b2c3d5,vendor=INGOT,product=TESTDISK")
	add("spare", "virtio-blk-pci,drive=spare,serial=spare,addr=13")

	console := kit.Boot(t, kit.VM{
		Kernel: filepath.Join(ramdisk, manifest.Kernel.File),
		Initrd: withFiles(t, filepath.Join(ramdisk, manifest.Initramfs.File), over),
		Append: manifest.Cmdline, Args: args, Until: `VM END`, Timeout: bootLimit,
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
		"virtio1": {"tran": "virtio", "by_path": "/dev/disk/by-path/pci-0000:00:10.0", "wwn": nil, "hctl": nil,
			"logical_sectors": 512.0},
		"nvme1": {"tran": "nvme", "by_path": "/dev/disk/by-path/pci-0000:00:11.0-nvme-1", "model": "QEMU NVMe Ctrl",
			"rotational": false, "logical_sectors": 4096.0, "physical_sectors": 4096.0},
		"sata1": {"tran": "sata", "by_path": "/dev/disk/by-path/pci-0000:00:1f.2-ata-3.0", "wwn": "0x5000c500a1b2c3d4",
			"vendor": "ATA", "model": "QEMU HARDDISK", "rotational": false},
		"scsi1": {"tran": nil, "by_path": "/dev/disk/by-path/pci-0000:00:12.0-scsi-0:0:3:1",
			"wwn": "0x5000c500a1b2c3d5", "vendor": "INGOT", "model": "TESTDISK"},
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
