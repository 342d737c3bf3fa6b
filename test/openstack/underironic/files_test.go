package main

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/images/fs/iso9660"
	"github.com/ingot-metal/ingot/initramfs/archive"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/openstack"
)

// TestFilesForIronic runs the how-to's commands that make the files: boot loaders can boot them, all users may read
// them, and the archive has them by the names that Metal3's image downloader looks for.
func TestFilesForIronic(t *testing.T) {
	kit.NeedPrograms(t, "tar")
	dir := t.TempDir()
	// The other profile has the same files, and a kernel that is fetched sooner.
	commands := openstack.Commands(t, "../../../docs/howto/under-ironic.md", "--for ironic",
		"--for ironic --profile lab --agent "+made.Program(t, "ingot-agent"))
	path := "PATH=" + filepath.Dir(made.Program(t, "ingot")) + ":" + os.Getenv("PATH")
	command(t, dir, []string{path}, "bash", "-e", "-c", commands)
	kernel, initramfs := read(t, dir, "ramdisk/vmlinuz"), read(t, dir, "ramdisk/initramfs.cpio.zst")
	// Documentation/arch/x86/boot.rst
	if len(kernel) < 0x238 || string(kernel[0x202:0x206]) != "HdrS" ||
		binary.LittleEndian.Uint16(kernel[0x206:]) < 0x20c {
		t.Error("vmlinuz is no kernel that EFI and BIOS boot")
	}
	files, _, err := archive.Read(bytes.NewReader(initramfs))
	if init := files["init"]; err != nil || init.Mode&0o111 == 0 || len(init.Data) == 0 {
		t.Errorf("initramfs.cpio.zst is no archive with a program init: %v, %v", init.Mode, err)
	}
	for _, name := range []string{"vmlinuz", "initramfs.cpio.zst"} {
		if info, err := os.Stat(filepath.Join(dir, "ramdisk", name)); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("the web server may not read it: %v, %v", info.Mode(), err)
		}
	}
	iso, err := iso9660.Open(bytes.NewReader(read(t, dir, "ramdisk/ironic.iso")))
	if err != nil {
		t.Fatal(err)
	}
	words := ""
	if err := fs.WalkDir(iso, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(name, ".cfg") {
			return err
		}
		b, err := fs.ReadFile(iso, name)
		words += string(b)
		return err
	}); err != nil || !strings.Contains(words, " boot_method=vmedia") {
		t.Errorf("ironic.iso boots with %q, %v", words, err)
	}

	// The downloader unpacks the archive with tar, and takes the two files whose names begin with the archive's.
	unpacked := t.TempDir()
	command(t, unpacked, nil, "tar", "-xaf", filepath.Join(dir, "ipa-ingot-1.tar.gz"))
	for name, want := range map[string][]byte{"kernel": kernel, "initramfs": initramfs} {
		file := "ipa-ingot-1." + name
		if info, err := os.Lstat(filepath.Join(unpacked, file)); err != nil || !info.Mode().IsRegular() ||
			!bytes.Equal(read(t, unpacked, file), want) {
			t.Errorf("the archive has another %s: %v", name, err)
		}
	}
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// command runs a program in a folder, with more of an environment.
func command(t *testing.T, dir string, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}
