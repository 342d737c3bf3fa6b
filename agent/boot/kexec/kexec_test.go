package kexec

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/fat"
	"github.com/ingot-metal/ingot/test/kit"
)

const rootID = "6f1b8a1e-0000-4000-8000-00000000beef"

// folder makes a folder with files.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
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
	return dir
}

// extImage makes an ext4 file system with files.
func extImage(t *testing.T, size int64, files map[string]string) []byte {
	t.Helper()
	kit.NeedPrograms(t, "mke2fs")
	img := kit.TempDisk(t, size)
	kit.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-U", rootID, "-L", "root", "-d", folder(t, files),
		img)
	b, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// btrfsImage makes a btrfs file system with files; mixed, so that it may be small.
func btrfsImage(t *testing.T, files map[string]string) []byte {
	t.Helper()
	kit.NeedPrograms(t, "mkfs.btrfs")
	img := kit.TempDisk(t, 64<<20)
	kit.Run(t, "mkfs.btrfs", "-q", "-M", "-U", rootID, "-L", "root", "--rootdir", folder(t, files), img)
	b, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// xfsImage makes an XFS file system with files. Its programs take a small one only from the tests of XFS itself, which
// say so in their environment.
func xfsImage(t *testing.T, files map[string]string) []byte {
	t.Helper()
	kit.NeedPrograms(t, "mkfs.xfs")
	dir, n := t.TempDir(), 0
	var proto strings.Builder
	var folder func(prefix string)
	folder = func(prefix string) {
		names := map[string]bool{}
		for name := range files {
			rest, ok := strings.CutPrefix(name, prefix)
			if !ok {
				continue
			}
			first, _, deep := strings.Cut(rest, "/")
			if names[first] {
				continue
			}
			names[first] = true
			if target, ok := strings.CutPrefix(files[name], "->"); deep {
				fmt.Fprintf(&proto, "%s d--755 0 0\n", first)
				folder(prefix + first + "/")
			} else if ok {
				fmt.Fprintf(&proto, "%s l--777 0 0 %s\n", first, target)
			} else {
				n++
				from := filepath.Join(dir, fmt.Sprint(n))
				if err := os.WriteFile(from, []byte(files[name]), 0o644); err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&proto, "%s ---644 0 0 %s\n", first, from)
			}
		}
		proto.WriteString("$\n")
	}
	proto.WriteString("/\n0 0\nd--755 0 0\n")
	folder("")
	if err := os.WriteFile(filepath.Join(dir, "proto"), []byte(proto.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	img := kit.TempDisk(t, 40<<20)
	cmd := exec.CommandContext(t.Context(), "mkfs.xfs", "-q", "-f", "-L", "root", "-m", "uuid="+rootID, "-p",
		filepath.Join(dir, "proto"), img)
	cmd.Env = append(os.Environ(), "TEST_DIR=/", "TEST_DEV=/", "QA_CHECK_FS=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mkfs.xfs: %v: %s", err, out)
	}
	b, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func fatImage(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var list []fat.File
	for name, text := range files {
		list = append(list, fat.File{Path: name, Data: []byte(text)})
	}
	img, err := fat.Make(list, fat.Options{Sector: 512, Serial: 0xab1234cd})
	if err != nil {
		t.Fatal(err)
	}
	return img.Bytes()
}

// mirror wraps a file system as a member of an array of a level, with metadata of format 1.2.
func mirror(fs []byte, level int32) []byte {
	le := binary.LittleEndian
	b := make([]byte, 1<<20, 1<<20+len(fs))
	m := b[4096:]
	le.PutUint32(m, 0xa92b4efc)
	le.PutUint32(m[4:], 1)
	le.PutUint32(m[72:], uint32(level))
	le.PutUint64(m[128:], 2048)
	le.PutUint64(m[136:], uint64(len(fs)/512))
	return append(b, fs...)
}

// machineOf is a machine with one disk that holds an EFI system partition and another one.
func machineOf(t *testing.T, esp, root []byte, availableKiB int) *fake.Machine {
	t.Helper()
	m := fake.NewMachine(t.TempDir())
	proc := filepath.Join(m.Root(), "proc")
	if err := os.MkdirAll(proc, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(proc, "meminfo"),
		fmt.Appendf(nil, "MemTotal:  999999999 kB\nMemAvailable: %d kB\n", availableKiB), 0o644); err != nil {
		t.Fatal(err)
	}
	const mib = 1 << 20
	up := func(n int) int64 { return int64(n+mib-1) / mib * mib }
	espSize, rootSize := up(len(esp)), up(len(root))
	m.Add(fake.DiskSpec{Name: "vda", Size: 6 << 30, Serial: "S1"})
	dev, err := m.OpenExclusive(t.Context(), "/dev/vda")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	err = disk.WriteTable(t.Context(), dev, nil, []disk.NewPartition{
		{Name: "esp", Type: disk.TypeESP, Start: mib, Size: espSize},
		{Name: "root", Type: "0FC63DAF-8483-4772-8E79-3D69D8477DE4", Start: mib + espSize, Size: rootSize},
	})
	if err != nil {
		t.Fatal(err)
	}
	for at, data := range map[int64][]byte{mib: esp, mib + espSize: root} {
		padded := append(bytes.Clone(data), make([]byte, up(len(data))-int64(len(data)))...)
		for off := 0; off < len(padded); off += mib {
			if _, err := dev.WriteAt(padded[off:off+mib], at+int64(off)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return m
}

// load runs the step.
func load(t *testing.T, m *fake.Machine, args string) (Result, error) {
	t.Helper()
	out, err := LoadStep(m)(t.Context(),
		&step.Call{Args: json.RawMessage(args), Log: slog.New(slog.DiscardHandler), Facts: &step.Facts{},
			Report: func(step.Progress) {}})
	r, _ := out.Result.(Result)
	r.TookMS = 0
	return r, err
}

// pattern is content of which no two pieces are the same.
func pattern(n int) string {
	b := make([]byte, 0, n+8)
	for i := uint64(1); len(b) < n; i++ {
		b = binary.LittleEndian.AppendUint64(b, i*0x9e3779b97f4a7c15)
	}
	return string(b[:n])
}

// TestLoad holds that what the disk would start is loaded, byte for byte, and that what stands in the way is a reason,
// never a failure.
func TestLoad(t *testing.T) {
	kernel, initrd := pattern(5<<20+17), pattern(9<<20+3)
	const plenty = 4 << 20
	root := map[string]string{
		"boot/grub/grub.cfg": "menuentry 'Some Linux' {\nsearch --no-floppy --fs-uuid --set=root " + rootID +
			"\nlinux /vmlinuz root=UUID=" + rootID + " ro quiet\ninitrd /boot/early.cpio /initrd.img\n}\n",
		"vmlinuz": "->boot/vmlinuz-6.1", "initrd.img": "->/boot/initrd.img-6.1", "boot/vmlinuz-6.1": kernel,
		"boot/initrd.img-6.1": initrd, "boot/early.cpio": "early",
	}
	stub := map[string]string{
		"EFI/debian/grub.cfg": "search.fs_uuid " + rootID +
			" root\nset prefix=($root)'/boot/grub'\nconfigfile $prefix/grub.cfg\n"}
	onESP := map[string]string{"EFI/systemd/systemd-bootx64.efi": "x", "EFI/Linux/linux.efi": "",
		"loader/entries/a.conf": "title A\nlinux /a/linux\ninitrd /a/initrd\noptions root=LABEL=x\n", "a/linux": kernel,
		"a/initrd": initrd}
	ext := extImage(t, 40<<20, root)
	grub := Result{Loaded: true, Kernel: "partition 2: /vmlinuz",
		Initrd: []string{"partition 2: /boot/early.cpio", "partition 2: /initrd.img"}, From: "grub.cfg",
		Config: "boot/grub/grub.cfg", Title: "Some Linux", Cmdline: "BOOT_IMAGE=/vmlinuz root=UUID=" + rootID +
			" ro quiet",
		Bytes: int64(len(kernel) + len(initrd) + 5)}
	more := grub
	more.Cmdline += " console=ttyS1,115200"
	for _, c := range []struct {
		name    string
		esp     map[string]string
		root    []byte
		uefi    bool
		memory  int
		args    string
		refuse  error
		want    Result
		reason  string
		failure string
	}{
		{name: "GRUB", root: ext, want: grub},
		{name: "GRUB, UEFI, more words", esp: stub, root: ext, uefi: true,
			args: `{"kernel_append_params":"console=ttyS1,115200","root_device":{"serial":"S1"}}`, want: more},
		{name: "a mirror", root: mirror(ext, 1), want: grub},
		{name: "XFS", root: xfsImage(t, root), want: grub},
		{name: "btrfs", root: btrfsImage(t, root), want: grub},
		{name: "systemd-boot on the system partition", esp: onESP, uefi: true,
			want: Result{Loaded: true, Kernel: "partition 1: /a/linux", Initrd: []string{"partition 1: /a/initrd"},
				From: "systemd-boot", Config: "loader/entries/a.conf", Title: "A", Cmdline: "root=LABEL=x",
				Bytes: int64(len(kernel) + len(initrd))}},
		{name: "too little memory", root: ext, memory: 20 << 10, reason: "do not fit into the machine's memory"},
		{name: "the kernel may not", root: ext,
			refuse: errors.New("load the kernel: its signature is not one that the agent's kernel trusts"),
			reason: "its signature"},
		{name: "striped", root: mirror(ext, 0), reason: "of level 0, which can't be read from one disk"},
		{name: "encrypted", root: []byte("LUKS\xba\xbe" + strings.Repeat("\x00", 1<<20)),
			reason: "partition 2 was not read: it is an encrypted volume (LUKS)"},
		{name: "LVM", root: []byte(strings.Repeat("\x00", 512) + "LABELONE" + strings.Repeat("\x00", 1<<20)),
			reason: "LVM"},
		{name: "a damaged XFS", root: []byte("XFSB" + strings.Repeat("\x00", 1<<20)),
			reason: "it looks like an XFS file system: not an XFS file system"},
		{name: "a damaged btrfs",
			root:   []byte(strings.Repeat("\x00", 64<<10+0x40) + "_BHRfS_M" + strings.Repeat("\x00", 1<<20)),
			reason: "it looks like a btrfs file system: not a btrfs file system"},
		{name: "F2FS", root: []byte(strings.Repeat("\x00", 1024) + "\x10\x20\xf5\xf2" + strings.Repeat("\x00", 1<<20)),
			reason: "it is an F2FS file system, which is not read here"},
		{name: "no loader", root: extImage(t, 8<<20, map[string]string{"etc/x": "y"}),
			reason: "no boot configuration was found"},
		{name: "a wrong argument", root: ext, args: `{"kernel_append_params":"a b;c"}`,
			failure: "characters other than"},
		{name: "an unknown argument", root: ext, args: `{"x":1}`, failure: "read arguments"},
		{name: "no such disk", root: ext, args: `{"root_device":{"serial":"other"}}`, failure: "disk"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.memory == 0 {
				c.memory = plenty
			}
			if c.esp == nil {
				c.esp = map[string]string{"nothing": "x"}
			}
			m := machineOf(t, fatImage(t, c.esp), append(bytes.Clone(c.root), make([]byte, 1<<20)...), c.memory)
			m.RefuseKernel = c.refuse
			if c.uefi {
				if err := os.MkdirAll(filepath.Join(m.Root(), "sys/firmware/efi"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			r, err := load(t, m, c.args)
			if c.failure != "" {
				if err == nil || !strings.Contains(err.Error(), c.failure) {
					t.Fatalf("%+v, %v; want a failure with %q", r, err, c.failure)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.reason != "" {
				if r.Loaded || !strings.Contains(r.Reason, c.reason) || m.KernelLoaded() {
					t.Fatalf("%+v; want a reason with %q", r, c.reason)
				}
				return
			}
			if d := cmp.Diff(c.want, r); d != "" {
				t.Errorf("result (-want +got):\n%s", d)
			}
			wantInitrd := initrd
			if len(r.Initrd) == 2 {
				wantInitrd = "early\x00\x00\x00" + initrd
			}
			k := m.Kernel()
			if k == nil || string(k.Kernel) != kernel || string(k.Initrd) != wantInitrd || k.Cmdline != r.Cmdline {
				t.Errorf("what was loaded is not what is on the disk")
			}
			if left, err := os.ReadDir(filepath.Join(m.Root(), "tmp")); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
			// The disk is free again.
			dev, err := m.OpenExclusive(t.Context(), "/dev/vda")
			if err != nil {
				t.Fatal(err)
			}
			dev.Close()
		})
	}
}

// TestLoadFromSnapshot holds that SUSE's layout works: the system in a snapshot that is the default subvolume, the boot
// loader's modules in another one, and the choice of the system in the sectors before the file system.
func TestLoadFromSnapshot(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "mkfs.btrfs", "btrfs", "mount", "umount", "losetup")
	kernel, initrd := pattern(3<<20+17), strings.Repeat("an initial ramdisk, packed", 200_000)
	img, dir := kit.TempDisk(t, 200<<20), kit.MountPoint(t)
	kit.Run(t, "mkfs.btrfs", "-q", "-M", "-U", rootID, img)
	kit.Run(t, "mount", "-o", "compress=zstd", kit.Loop(t, img), dir)
	mounted := true
	defer func() {
		if mounted {
			_ = exec.Command("umount", "-l", dir).Run()
		}
	}()
	for _, sub := range []string{"@", "@/.snapshots", "@/boot/grub2/x86_64-efi"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, sub)), 0o755); err != nil {
			t.Fatal(err)
		}
		kit.Run(t, "btrfs", "subvolume", "create", filepath.Join(dir, sub))
	}
	system := filepath.Join(dir, "@/.snapshots/1/snapshot")
	if err := os.Mkdir(filepath.Dir(system), 0o755); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "btrfs", "subvolume", "snapshot", filepath.Join(dir, "@"), system)
	for name, text := range map[string]string{"boot/vmlinuz-6": kernel, "boot/initrd-6": initrd,
		"boot/grub2/grubenv": "# GRUB Environment Block\nenv_block=512+1\n" + strings.Repeat("#", 900),
		"boot/grub2/grub.cfg": "load_env\nif [ \"${env_block}\" ]; then\nset env_block=\"(${root})${env_block}\"\nload_env -f \"${env_block}\"\nfi\nset default=\"${saved_entry}\"\nset btrfs_relative_path=\"yes\"\n" +
			"menuentry first {\nlinux /boot/gone\n}\nmenuentry openSUSE {\nsearch --no-floppy --fs-uuid --set=root " +
			rootID + "\nlinux /boot/vmlinuz root=UUID=" + rootID + " quiet\ninitrd /boot/initrd-6\n}\n"} {
		if err := os.WriteFile(filepath.Join(system, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("vmlinuz-6", filepath.Join(system, "boot/vmlinuz")); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "btrfs", "subvolume", "set-default", system)
	kit.Run(t, "umount", dir)
	mounted = false
	root, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	copy(root[512*512:], "# GRUB Environment Block\nsaved_entry=openSUSE\n"+strings.Repeat("#", 400))
	esp := fatImage(t,
		map[string]string{"EFI/opensuse/grub.cfg": "set btrfs_relative_path=\"yes\"\nsearch --fs-uuid --set=root " +
			rootID + "\nset prefix=(${root})/boot/grub2\n" +
			"btrfs-mount-subvol ($root) /boot/grub2/x86_64-efi /@/boot/grub2/x86_64-efi\nsource \"${prefix}/grub.cfg\"\n"})
	for _, uefi := range []bool{false, true} {
		m := machineOf(t, esp, root, 4<<20)
		if uefi {
			if err := os.MkdirAll(filepath.Join(m.Root(), "sys/firmware/efi"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		r, err := load(t, m, "")
		if err != nil {
			t.Fatal(err)
		}
		want := Result{Loaded: true, Kernel: "partition 2: /boot/vmlinuz",
			Initrd: []string{"partition 2: /boot/initrd-6"}, From: "grub.cfg", Config: "boot/grub2/grub.cfg",
			Title: "openSUSE", Cmdline: "BOOT_IMAGE=/boot/vmlinuz root=UUID=" + rootID + " quiet",
			Bytes: int64(len(kernel) + len(initrd))}
		if d := cmp.Diff(want, r); d != "" {
			t.Errorf("UEFI %v (-want +got):\n%s", uefi, d)
		}
		if k := m.Kernel(); k == nil || string(k.Kernel) != kernel || string(k.Initrd) != initrd {
			t.Errorf("UEFI %v: what was loaded is not what is on the disk", uefi)
		}
	}
}

// TestLoadStops holds that the step fails when it is cancelled: cancellation is not a reason against loading.
func TestLoadStops(t *testing.T) {
	m := machineOf(t, fatImage(t, map[string]string{"a": "b"}), extImage(t, 8<<20, map[string]string{"x": "y"}), 1<<20)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := LoadStep(m)(ctx,
		&step.Call{Log: slog.New(slog.DiscardHandler), Facts: &step.Facts{}, Report: func(step.Progress) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
}

// TestLoadTooEarly holds that nothing is loaded from a disk whose table is still withheld: its old content is not the
// system that will start.
func TestLoadTooEarly(t *testing.T) {
	m := machineOf(t, fatImage(t, map[string]string{"a": "b"}), extImage(t, 8<<20, map[string]string{"x": "y"}), 1<<20)
	disks, err := disk.List(t.Context(), m.Root())
	if err != nil || len(disks) != 1 {
		t.Fatalf("%v, %v", disks, err)
	}
	dev, err := m.OpenExclusive(t.Context(), "/dev/vda")
	if err != nil {
		t.Fatal(err)
	}
	head := disk.Aligned(disk.HeadSize)
	_, err = dev.ReadAt(head, 0)
	if err := errors.Join(err, dev.Close()); err != nil {
		t.Fatal(err)
	}
	p, err := disk.NewPending(disks[0], head, nil, disks[0].Size, disks[0].Size)
	if err != nil {
		t.Fatal(err)
	}
	facts := &step.Facts{}
	disk.SetPending(facts, p)
	_, err = LoadStep(m)(t.Context(),
		&step.Call{Log: slog.New(slog.DiscardHandler), Facts: facts, Report: func(step.Progress) {}})
	if err == nil || !strings.Contains(err.Error(), "is not committed yet") || m.KernelLoaded() {
		t.Errorf("%v, want a failure", err)
	}
}

// FuzzVolume holds that no partition makes the readers panic or run away.
func FuzzVolume(f *testing.F) {
	f.Add([]byte("LUKS\xba\xbe"))
	f.Add([]byte(strings.Repeat("\x00", 64<<10+0x40) + "_BHRfS_M" + strings.Repeat("\x00", 4096)))
	f.Add(mirror([]byte(strings.Repeat("x", 4096)), 1))
	f.Add(mirror(mirror(make([]byte, 8192), 1), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		vols, err := volumes(t.Context(), plain(b))
		if err != nil {
			return
		}
		for _, v := range vols {
			if v.FS == nil && v.Fault == "" {
				continue
			}
			if v.FS != nil {
				if d, err := v.FS.Open("."); err == nil {
					d.Close()
				}
			}
		}
	})
}

// plain is a disk in memory.
type plain []byte

func (p plain) ReadAt(b []byte, off int64) (int, error)  { return bytes.NewReader(p).ReadAt(b, off) }
func (p plain) WriteAt(b []byte, off int64) (int, error) { return 0, errors.ErrUnsupported }
func (p plain) Size() int64                              { return int64(len(p)) / 512 * 512 }
func (p plain) SectorSize() int                          { return 512 }
func (p plain) Number() (uint32, uint32)                 { return 0, 0 }
func (p plain) Punch(off, n int64) error                 { return errors.ErrUnsupported }
func (p plain) Sync() error                              { return nil }
func (p plain) RereadPartitions() error                  { return nil }
func (p plain) Close() error                             { return nil }
