package build

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	backend "github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/fat32"
	gptlib "github.com/diskfs/go-diskfs/partition/gpt"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/ingot-metal/ingot/images/gpt"
	"github.com/ingot-metal/ingot/initramfs/kernel"
	"github.com/ingot-metal/ingot/test/kit"
)

const userData = "#cloud-config\nhello: world\n"

// drive makes a folder with the content of a config drive.
func drive(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	latest := filepath.Join(dir, "openstack/latest")
	if err := os.MkdirAll(latest, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"meta_data.json": `{"uuid": "0b0e1f3c-52a5-4a55-9f44-8a4f2a2f6a11", "hostname": "tiny-one", "name": "tiny",
			"public_keys": {"a": "ssh-ed25519 AAAAC3Nz one", "b": "ssh-rsa AAAAB3Nz two"}, "keys": [{"type": "ssh", "name": "a"}]}`,
		"user_data": userData,
	} {
		if err := os.WriteFile(filepath.Join(latest, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// vfatDrive and isoDrive write a config drive as a file system.
func vfatDrive(t *testing.T) string {
	kit.NeedPrograms(t, "mkfs.vfat", "mcopy")
	f := kit.TempDisk(t, 4*mib)
	kit.Run(t, "mkfs.vfat", "-n", "config-2", f)
	kit.Run(t, "mcopy", "-i", f, "-s", filepath.Join(drive(t), "openstack"), "::/")
	return f
}

func isoDrive(t *testing.T) string {
	kit.NeedPrograms(t, "genisoimage")
	f := filepath.Join(t.TempDir(), "cfg.iso")
	kit.Run(t, "genisoimage", "-quiet", "-R", "-J", "-V", "config-2", "-o", f, drive(t))
	return f
}

// deployed copies an image to a larger disk and puts a config drive into a partition at its end, as a deployment does.
func deployed(t *testing.T, raw, image string, parts []partition, cfg string, grow int64) string {
	t.Helper()
	fi, err := os.Stat(raw)
	if err != nil {
		t.Fatal(err)
	}
	size := fi.Size() + grow
	disk := kit.TempDisk(t, size)
	f, err := os.OpenFile(disk, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := copySparse(f, 0, raw); err != nil {
		t.Fatal(err)
	}
	p := partition{kind: gpt.Linux, name: "config-2", start: size - 6*mib, size: 4 * mib}
	if err := writeGPT(f, size, sector, image, append(parts, p)); err != nil {
		t.Fatal(err)
	}
	if err := copySparse(f, p.start, cfg); err != nil {
		t.Fatal(err)
	}
	return disk
}

// copySparse copies a file into disk at an offset, without its zeros. disk must be zero there.
func copySparse(disk io.WriterAt, at int64, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	buf, zero := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := io.ReadFull(f, buf)
		if n > 0 && !bytes.Equal(buf[:n], zero[:n]) {
			if _, err := disk.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func TestTiny(t *testing.T) {
	kit.NeedPrograms(t, "apt-get", "apt-cache", "mke2fs", "mkfs.vfat", "mcopy", "grub-mkimage", "busybox", "qemu-img",
		"e2fsck")
	kit.NeedFiles(t, "grub-pc-bin", grubBoot)
	kit.NeedFiles(t, "grub-efi-amd64-signed", grubEFI)
	kit.NeedFiles(t, "shim-signed", shimEFI)
	dir := "../../build/test/made/tiny" // made once for all tests
	r, err := Tiny(t.Context(), Options{Out: dir, Qcow2: true})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	t.Log(b.String())
	parts, size := tinyLayout("").parts()
	if r.VirtualSize != size || r.File(r.Zst).Size > 24e6 {
		t.Errorf("virtual size = %d, want %d; compressed %d", r.VirtualSize, size, r.File(r.Zst).Size)
	}

	t.Run("is sound", func(t *testing.T) {
		kit.NeedPrograms(t, "sgdisk", "fsck.vfat")
		if out := kit.Run(t, "sgdisk", "--verify", r.Raw); !strings.Contains(out, "No problems found") {
			t.Errorf("sgdisk: %s", out)
		}
		for _, p := range []struct {
			partition
			check []string
		}{{parts[1], []string{"fsck.vfat", "-n"}}, {parts[2], []string{"e2fsck", "-fn"}}} {
			f := kit.TempDisk(t, p.size)
			kit.Run(t, "dd", "if="+r.Raw, "of="+f, "bs=1M", "iflag=skip_bytes,count_bytes", "conv=sparse,notrunc",
				"skip="+strconv.FormatInt(p.start, 10), "count="+strconv.FormatInt(p.size, 10), "status=none")
			kit.Run(t, p.check[0], p.check[1], f)
		}
		kit.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "qcow2", r.Raw, r.Qcow2)
		kit.Run(t, "sh", "-c", "cd "+dir+" && sha256sum -c --quiet "+sumsFile)
	})
	t.Run("read by another library", func(t *testing.T) {
		f, err := os.Open(r.Raw)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		table, err := gptlib.Read(backend.New(f, true), sector, sector)
		if err != nil || len(table.Partitions) != len(parts) {
			t.Fatalf("%+v, %v", table, err)
		}
		esp := table.Partitions[1]
		fs, err := fat32.Read(backend.New(f, true), parts[1].size, int64(esp.Start)*sector, sector)
		if err != nil {
			t.Fatal(err)
		}
		for name, from := range map[string]string{"EFI/BOOT/BOOTX64.EFI": shimEFI, "EFI/debian/grubx64.efi": grubEFI} {
			want, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := fs.ReadFile(name); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s has %d bytes, %v, want %d", name, len(got), err, len(want))
			}
		}
	})
	t.Run("compressed is the same", func(t *testing.T) {
		f, err := os.Open(r.Zst)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := zstd.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		h := sha256.New()
		if _, err := io.Copy(h, z); err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != r.File(r.Raw).SHA256 {
			t.Errorf("unpacked digest = %s, want %s", got, r.File(r.Raw).SHA256)
		}
	})
	t.Run("second run reuses", func(t *testing.T) {
		again, err := Tiny(t.Context(), Options{Out: dir, Qcow2: true})
		if err != nil || !again.Reused || again.Raw != r.Raw {
			t.Errorf("second run = %+v, %v", again, err)
		}
	})
	elsewhere := t.TempDir()
	t.Run("same bytes elsewhere, by two at once", func(t *testing.T) {
		var again [2]*Result
		var both errgroup.Group
		for i := range again {
			both.Go(func() (err error) {
				again[i], err = Tiny(t.Context(), Options{Out: elsewhere})
				return err
			})
		}
		if err := both.Wait(); err != nil {
			t.Fatal(err)
		}
		if again[0].Reused == again[1].Reused {
			t.Errorf("one of two makes it, the other waits for it: reused %v, %v", again[0].Reused, again[1].Reused)
		}
		for _, a := range again {
			if a.File(a.Raw).SHA256 != r.File(r.Raw).SHA256 {
				t.Errorf("two builds differ (has builderState to change?): %+v, %+v", a.Files, r.Files)
			}
		}
	})
	t.Run("damaged is made again", func(t *testing.T) {
		f, err := os.OpenFile(filepath.Join(elsewhere, filepath.Base(r.Zst)), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{1, 2, 3}, 1000); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := Tiny(t.Context(), Options{Out: elsewhere})
		if err != nil || again.Reused {
			t.Errorf("after damage: %+v, %v", again, err)
		}
	})

	sum := sha256.Sum256([]byte(userData))
	line := regexp.MustCompile(
		`INGOT-TINY up=\S+ host=(\S+) uuid=(\S+) ssh_keys=(\d+) user_data=(\S+) root=(\S+) cfg=(\S+) efi=(\d) boots=(\S+)`)
	for _, tc := range []struct {
		name string
		vm   kit.VM
		cfg  func(*testing.T) string
		want string // the rest after user data
	}{
		{"BIOS, vfat", kit.VM{}, vfatDrive, "/dev/vda3 /dev/vda4 0 1"},
		{"UEFI, ISO 9660", kit.VM{UEFI: true}, isoDrive, "/dev/vda3 /dev/vda4 1 1"},
		{"BIOS, NVMe", kit.VM{Args: []string{"-device", "nvme,drive=n0,serial=n0,bootindex=1", "-drive"}}, vfatDrive,
			"/dev/nvme0n1p3 /dev/nvme0n1p4 0 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			disk := deployed(t, r.Raw, "tiny", parts, tc.cfg(t), 16*mib)
			if len(tc.vm.Args) > 0 {
				tc.vm.Args = append(tc.vm.Args, "if=none,id=n0,format=raw,file="+kit.Quote(disk))
			} else {
				tc.vm.Disks = []string{disk}
			}
			tc.vm.Until = `(?s)INGOT-TINY up.*login: `
			tc.vm.MemoryMiB = 256
			got := line.FindStringSubmatch(kit.Boot(t, tc.vm))
			want := "tiny-one 0b0e1f3c-52a5-4a55-9f44-8a4f2a2f6a11 2 " + hex.EncodeToString(sum[:]) + " " + tc.want
			if len(got) == 0 || strings.Join(got[1:], " ") != want {
				t.Errorf("console says %q, want %q", got, want)
			}
		})
	}
	t.Run("no config drive, second boot", func(t *testing.T) {
		disk := kit.TempDisk(t, size)
		f, err := os.OpenFile(disk, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := copySparse(f, 0, r.Raw); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"boots=1", "boots=2"} {
			kit.Boot(t, kit.VM{
				Disks: []string{disk},
				Until: `host=none uuid=none ssh_keys=0 user_data=none root=/dev/vda3 cfg=none efi=0 ` + want +
					`(?s).*NET eth0 10.0.2.15`,
				Args: []string{"-nic", "user,model=virtio-net-pci"},
			})
		}
	})
}

// TestTinyFullKernel starts the tiny image from a SATA disk, for which it needs the kernel with all drivers.
func TestTinyFullKernel(t *testing.T) {
	kit.NeedPrograms(t, "apt-get", "apt-cache", "mke2fs", "mkfs.vfat", "mcopy", "grub-mkimage", "busybox")
	r, err := Tiny(t.Context(), Options{Out: t.TempDir(), Kernel: kernel.Full})
	if err != nil {
		t.Fatal(err)
	}
	parts, _ := tinyLayout("").parts()
	disk := deployed(t, r.Raw, "tiny", parts, isoDrive(t), 16*mib)
	kit.Boot(t, kit.VM{
		Args: []string{"-device", "ide-hd,drive=s0,serial=s0,bootindex=1", "-drive", "if=none,id=s0,format=raw,file=" +
			kit.Quote(disk)},
		Until: `INGOT-TINY .* host=tiny-one .* root=/dev/sda3 cfg=/dev/sda4 efi=0`,
	})
}
