package boot

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/ext4"
	"github.com/ingot-metal/ingot/images/fs/fat"
	"github.com/ingot-metal/ingot/test/kit"
)

const rootUUID = "6f1b8a1e-0000-4000-8000-00000000beef"

// rootImage makes the image of a root file system; a value that begins with "->" is a symbolic link.
func rootImage(t *testing.T, files map[string]string) string {
	t.Helper()
	kit.NeedPrograms(t, "mke2fs")
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if target, ok := strings.CutPrefix(text, "->"); ok {
			if err := os.Symlink(target, p); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	img := kit.TempDisk(t, 64<<20)
	kit.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-U", rootUUID, "-d", dir, img)
	return img
}

func planOf(t *testing.T, files map[string]string, a arch) (*esp, error) {
	t.Helper()
	f, err := os.Open(rootImage(t, files))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	fs, err := ext4.Open(f, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	return espOf(fs, a)
}

func grubBinary(dir string) string { return "MZ grub\x00(,gpt1)/" + dir + "\x00" }

const stubOf = "search.fs_uuid " + rootUUID + " root\nset prefix=($root)/boot/%s\nconfigfile $prefix/grub.cfg\n"

// TestESPOf holds what goes onto the system partition, from the ways in which systems keep their boot loaders.
func TestESPOf(t *testing.T) {
	stub, stub2 := fmt.Sprintf(stubOf, "grub"), fmt.Sprintf(stubOf, "grub2")
	debianCSV := string(utf16File("shimx64.efi,debian,,This is the boot entry for debian\r\n"))
	for _, c := range []struct {
		name  string
		files map[string]string
		arch  string
		want  map[string]string
		err   string
		check func(t *testing.T, e *esp)
	}{
		{name: "Debian, from the packages", arch: "amd64", files: map[string]string{
			"etc/os-release": "->../usr/lib/os-release", "usr/lib/os-release": "NAME=x\nID=\"debian\"\n",
			"boot/grub/grub.cfg":              "linux /vmlinuz root=PARTUUID=0a0b0c0d-1111-2222-3333-444455556666 ro\n",
			"usr/lib/shim/shimx64.efi.signed": "shim", "usr/lib/shim/mmx64.efi.signed": "mm",
			"usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed": grubBinary("EFI/debian"),
			"usr/lib/grub/arm64-efi-signed/grubaa64.efi.signed": "wrong",
		}, want: map[string]string{
			"EFI/debian/shimx64.efi": "shim", "EFI/debian/mmx64.efi": "mm",
			"EFI/debian/grubx64.efi": grubBinary("EFI/debian"), "EFI/debian/BOOTX64.CSV": debianCSV,
			"EFI/debian/grub.cfg": stub, "EFI/BOOT/BOOTX64.EFI": "shim",
			"EFI/BOOT/grubx64.efi": grubBinary("EFI/debian"), "EFI/BOOT/grub.cfg": stub,
		}, check: func(t *testing.T, e *esp) {
			if e.rootGUID != "0A0B0C0D-1111-2222-3333-444455556666" || e.espGUID != "" || e.label != "EFI-PART" {
				t.Errorf("names: %+v", e)
			}
		}},
		{name: "a derivative of Ubuntu, whose GRUB looks in ubuntu, through alternatives", arch: "amd64",
			files: map[string]string{
				"etc/os-release": "ID=pop\n", "boot/grub/grub.cfg": "x",
				"usr/lib/shim/shimx64.efi.signed":                   "->/etc/alternatives/shim",
				"etc/alternatives/shim":                             "->/usr/lib/shim/shimx64.efi.signed.latest",
				"usr/lib/shim/shimx64.efi.signed.latest":            "shim",
				"usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed": grubBinary("EFI/ubuntu"),
				"etc/fstab": "# comment\nLABEL=cloudimg-rootfs / ext4 x 0 1\nLABEL=UEFI /boot/efi vfat umask=0077 0 1\n",
			}, want: map[string]string{
				"EFI/pop/shimx64.efi": "shim", "EFI/pop/grubx64.efi": grubBinary("EFI/ubuntu"),
				"EFI/pop/grub.cfg": stub, "EFI/ubuntu/grub.cfg": stub,
				"EFI/pop/BOOTX64.CSV":  string(utf16File("shimx64.efi,pop,,This is the boot entry for pop\r\n")),
				"EFI/BOOT/BOOTX64.EFI": "shim", "EFI/BOOT/grubx64.efi": grubBinary("EFI/ubuntu"),
				"EFI/BOOT/grub.cfg": stub,
			}, check: func(t *testing.T, e *esp) {
				if e.rootGUID != "" || e.label != "UEFI" {
					t.Errorf("names: %+v", e)
				}
			}},
		{name: "Rocky, from /boot/efi", arch: "amd64", files: map[string]string{
			"usr/lib/os-release": "ID=rocky\n", "boot/grub2/grub.cfg": "x", "boot/efi/EFI/BOOT/BOOTX64.EFI": "shim",
			"boot/efi/EFI/BOOT/fbx64.efi": "fb", "boot/efi/EFI/rocky/shimx64.efi": "shim",
			"boot/efi/EFI/rocky/grubx64.efi": grubBinary("EFI/rocky"),
			"boot/efi/EFI/rocky/grub.cfg":    "of the build host", "boot/efi/EFI/rocky/BOOTX64.CSV": "csv",
			"etc/fstab": "PARTUUID=0a0b0c0d-1111-2222-3333-444455556666 / ext4\nUUID=7B77-95E7 /boot/efi vfat\n",
		}, want: map[string]string{
			"EFI/BOOT/BOOTX64.EFI": "shim", "EFI/BOOT/fbx64.efi": "fb", "EFI/rocky/shimx64.efi": "shim",
			"EFI/rocky/grubx64.efi": grubBinary("EFI/rocky"), "EFI/rocky/grub.cfg": stub2,
			"EFI/rocky/BOOTX64.CSV": "csv",
		}, check: func(t *testing.T, e *esp) {
			if e.serial != 0x7b7795e7 || e.rootGUID != "0A0B0C0D-1111-2222-3333-444455556666" {
				t.Errorf("names: %+v", e)
			}
		}},
		{name: "GRUB without shim, on ARM", arch: "arm64", files: map[string]string{
			"boot/grub/grub.cfg": "x", "usr/lib/grub/arm64-efi/monolithic/grubaa64.efi": grubBinary("EFI/debian"),
			"etc/fstab": "PARTUUID=0a0b0c0d-1111-2222-3333-444455556666 / ext4\nPARTUUID=0a0b0c0d-1111-2222-3333-444455556667 /boot/efi vfat\n",
		}, want: map[string]string{
			"EFI/linux/grubaa64.efi": grubBinary("EFI/debian"),
			"EFI/linux/BOOTAA64.CSV": string(utf16File("grubaa64.efi,linux,,This is the boot entry for linux\r\n")),
			"EFI/linux/grub.cfg":     stub, "EFI/debian/grub.cfg": stub,
			"EFI/BOOT/BOOTAA64.EFI": grubBinary("EFI/debian"), "EFI/BOOT/grub.cfg": stub,
		}, check: func(t *testing.T, e *esp) {
			if e.espGUID != "0A0B0C0D-1111-2222-3333-444455556667" {
				t.Errorf("names: %+v", e)
			}
		}},
		{name: "systemd-boot in /boot/efi is left as it is", arch: "amd64", files: map[string]string{
			"boot/efi/EFI/BOOT/BOOTX64.EFI": "systemd-boot", "boot/efi/loader/loader.conf": "timeout 1\n",
		}, want: map[string]string{"EFI/BOOT/BOOTX64.EFI": "systemd-boot", "loader/loader.conf": "timeout 1\n"}},
		{name: "no boot loader", arch: "amd64", files: map[string]string{"boot/grub/grub.cfg": "x"},
			err: "no boot loader for UEFI on x86-64"},
		{name: "of another kind of machine", arch: "arm64", files: map[string]string{
			"boot/grub/grub.cfg": "x", "usr/lib/grub/x86_64-efi/monolithic/grubx64.efi": grubBinary("EFI/debian")},
			err: "no boot loader for UEFI on arm64"},
		{name: "no configuration", arch: "amd64",
			files: map[string]string{"usr/lib/grub/x86_64-efi/monolithic/grubx64.efi": grubBinary("EFI/debian")},
			err:   "neither /boot/grub/grub.cfg nor"},
		{name: "too much", arch: "amd64",
			files: map[string]string{"boot/efi/a": strings.Repeat("x", 20<<20),
				"boot/efi/b": strings.Repeat("x", 20<<20)}, err: "more than 500 files or 32 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := planOf(t, c.files, archs[c.arch])
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || step.AsError(err).Remedy == "" {
					t.Errorf("%v, want %q and a remedy", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			total := 0
			for _, f := range e.files {
				got[f.Path] = string(f.Data)
				total += len(f.Data)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if int64(total) != e.total {
				t.Errorf("total = %d, want %d", e.total, total)
			}
			if c.check != nil {
				c.check(t, e)
			}
		})
	}
}

// newUEFI is a machine with one disk.
func newUEFI(t *testing.T, efi bool) (*fake.Machine, *fake.Disk, disk.Disk) {
	t.Helper()
	m := fake.NewMachine(t.TempDir())
	f := m.Add(fake.DiskSpec{Name: "vda", Size: 4 << 30, Serial: "one"})
	if efi {
		efiFolder(t, m.Root())
		m.EFI = &fake.Variables{}
	}
	disks, err := disk.List(t.Context(), m.Root())
	if err != nil {
		t.Fatal(err)
	}
	return m, f, disks[0]
}

// deployPartition does what the image writer does with a partition image.
func deployPartition(t *testing.T, m *fake.Machine, d disk.Disk, img string, l disk.Layout) *step.Facts {
	t.Helper()
	b, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	dev, _, err := disk.OpenVerified(t.Context(), m, d.Identity())
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	x, err := disk.Divide(dev, d, l)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Begin(t.Context(), b[:1<<20], int64(len(b))); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Root().WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	facts := &step.Facts{}
	disk.SetPending(facts, x.Pending(int64(len(b))))
	return facts
}

func prepare(t *testing.T, m *fake.Machine, facts *step.Facts) (Result, error) {
	t.Helper()
	out, err := PrepareStep(m)(t.Context(),
		&step.Call{Args: json.RawMessage(`{}`), Log: slog.New(slog.DiscardHandler), Facts: facts,
			Report: func(step.Progress) {}})
	r, _ := out.Result.(Result)
	return r, err
}

// TestPrepareAPartitionImage goes the whole way: the table, a system partition that firmware can read, and a boot entry
// for it.
func TestPrepareAPartitionImage(t *testing.T) {
	img := rootImage(t,
		map[string]string{"etc/os-release": "ID=debian\n", "boot/grub/grub.cfg": "x",
			"usr/lib/shim/shimx64.efi.signed":                   "shim",
			"usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed": grubBinary("EFI/debian"),
			"usr/lib/shim/shimaa64.efi.signed":                  "shim",
			"usr/lib/grub/arm64-efi-signed/grubaa64.efi.signed": grubBinary("EFI/debian")})

	m, f, d := newUEFI(t, false)
	facts := deployPartition(t, m, d, img, disk.Layout{})
	if _, err := prepare(t, m, facts); err == nil || !strings.Contains(err.Error(), "boots by BIOS") ||
		step.AsError(err).Remedy == "" {
		t.Errorf("on a BIOS machine: %v", err)
	}
	head := make([]byte, 1<<20)
	if _, err := f.ReadAt(head, 0); err != nil || disk.HasTable(head, 512) {
		t.Errorf("on a BIOS machine there is a table, %v", err)
	}
	if err := disk.CanDivide(m); err == nil {
		t.Error("CanDivide passes on a BIOS machine")
	}

	m, f, d = newUEFI(t, true)
	if err := disk.CanDivide(m); err != nil {
		t.Error(err)
	}
	facts = deployPartition(t, m, d, img, disk.Layout{RootGB: 1, SwapMB: 16})
	p, err := disk.PendingOf(facts)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r, err := prepare(t, m, facts)
		if err != nil {
			t.Fatal(err)
		}
		if !r.Committed || r.BootEntry == nil || r.BootEntry.Label != "debian" ||
			!strings.HasPrefix(r.BootEntry.Loader, `\EFI\debian\shim`) || r.BootEntry.Name != "Boot0000" {
			t.Errorf("result = %+v, %+v", r, r.BootEntry)
		}
	}
	part, _ := p.Division().Partition(disk.RoleESP)
	fs, err := fat.Open(sectionOf{f, part.Start}, part.Size)
	if err != nil {
		t.Fatal(err)
	}
	if label, err := fs.Label(); label != "EFI-PART" || err != nil {
		t.Errorf("label %q, %v", label, err)
	}
	e, err := fs.Find("EFI", "debian", "grub.cfg")
	if err != nil || e == nil {
		t.Fatalf("grub.cfg: %v, %v", e, err)
	}
	if b, err := fs.Read(e, 1000); err != nil || string(b) != fmt.Sprintf(stubOf, "grub") {
		t.Errorf("grub.cfg: %s, %v", b, err)
	}
}

type sectionOf struct {
	d     *fake.Disk
	start int64
}

func (s sectionOf) ReadAt(b []byte, off int64) (int, error) { return s.d.ReadAt(b, s.start+off) }

// TestLoadOptionOnMBR takes the node apart by the UEFI specification: signature type 1, four bytes.
func TestLoadOptionOnMBR(t *testing.T) {
	p := disk.Partition{Number: 1, Type: "0xef", StartLBA: 0x800, Sectors: 0x1000}
	got, err := loadOption("x", `\a`, p, 0xdeadbeef)
	if err != nil {
		t.Fatal(err)
	}
	const hd = "04012a00" + "01000000" + "0008000000000000" + "0010000000000000" + "efbeadde" +
		"000000000000000000000000" + "0101"
	if !strings.Contains(hex.EncodeToString(got), hd) {
		t.Errorf("%x lacks %s", got, hd)
	}
	if _, err := loadOption("x", `\a`, p, 0); err == nil || !strings.Contains(err.Error(), "no disk signature") {
		t.Errorf("without a signature: %v", err)
	}
	if n := partitionName(p, 0xdeadbeef); n != "deadbeef-01" {
		t.Errorf("name = %s", n)
	}
}

// TestDuplicatesGo holds that an entry for the same file under another label goes, and others stay.
func TestDuplicatesGo(t *testing.T) {
	n := newNVRAM(t)
	option := func(label, path string, p disk.Partition) []byte {
		b, err := loadOption(label, path, p, 0)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	other := espPart
	other.GUID = "00112233-4455-6677-8899-AABBCCDDEE00"
	n.put("Boot0000", option("old name", `\EFI\debian\shimx64.efi`, espPart))
	n.put("Boot0001", option("another disk", `\EFI\debian\shimx64.efi`, other))
	n.put("Boot0002", option("another file", `\EFI\debian\grubx64.efi`, espPart))
	n.put("Boot0003", option("debian", `\EFI\x`, other))
	n.put("Boot0004", []byte{1, 0, 0, 0, 0xff, 0xff, 'x', 0}) // damaged
	n.put("BootOrder", []byte{4, 0, 3, 0, 0, 0, 1, 0, 2, 0})
	num, err := n.vars().install("debian", option("debian", `\EFI\debian\shimx64.efi`, espPart))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(num, n.order()); got != "0 [0 4 1 2]" {
		t.Errorf("entry and order: %s", got)
	}
}

// TestEntriesOfOtherMachines holds that a loader for another kind of machine is not taken, from a BOOT.CSV for all of
// them neither.
func TestEntriesOfOtherMachines(t *testing.T) {
	files := map[string]string{
		"EFI/centos/BOOT.CSV": csv(
			"shimia32.efi,CentOS 32,,x\nshimx64.efi,CentOS,,x\nshimaa64.efi,CentOS ARM,,x\n"),
		"EFI/centos/shimia32.efi": "i", "EFI/centos/shimx64.efi": "x", "EFI/centos/shimaa64.efi": "a",
		"EFI/BOOT/BOOTAA64.EFI": "b",
	}
	fs := espImage(t, 8, nil, files)
	for name, want := range map[string]loader{"amd64": {`\EFI\centos\shimx64.efi`, "CentOS"},
		"arm64": {`\EFI\centos\shimaa64.efi`, "CentOS ARM"}} {
		got, fallback, err := findLoader(fs, archs[name])
		if err != nil || got != want || fallback != (name == "arm64") {
			t.Errorf("%s: %+v, %v, %v", name, got, fallback, err)
		}
	}
}
