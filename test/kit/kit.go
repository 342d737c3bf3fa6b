// Package kit is the shared part of tests: asking for root and programs, temporary disks, loop devices, golden files,
// waiting, and booting a kernel or a disk in QEMU. Only tests import it.
//
// Sizes are bytes. Everything it makes is removed when the test ends. A missing prerequisite skips the test with a
// reason; where tests must run (environment CI or INGOT_MUST_RUN) it fails the test instead.
package kit

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write golden files instead of comparing with them")

// packages says which Debian package brings a program, where the name does not say it.
var packages = map[string]string{
	"apt-cache": "apt", "apt-get": "apt", "dpkg-deb": "dpkg", "dd": "coreutils", "sha256sum": "coreutils",
	"losetup": "mount", "mount": "mount", "mke2fs": "e2fsprogs", "debugfs": "e2fsprogs", "e2fsck": "e2fsprogs",
	"mkfs.ext4": "e2fsprogs", "mkfs.vfat": "dosfstools", "fsck.vfat": "dosfstools", "fsck.fat": "dosfstools",
	"isoinfo": "genisoimage", "blkid": "util-linux", "mkfs.xfs": "xfsprogs", "xfs_db": "xfsprogs",
	"mkfs.btrfs": "btrfs-progs", "btrfs": "btrfs-progs", "btrfstune": "btrfs-progs", "mcopy": "mtools",
	"mformat": "mtools", "mmd": "mtools", "mdir": "mtools", "mtype": "mtools", "qemu-system-x86_64": "qemu-system-x86",
	"qemu-img": "qemu-utils", "qemu-nbd": "qemu-utils", "grub-mkimage": "grub-common", "sgdisk": "gdisk",
	"sfdisk": "fdisk", "ip": "iproute2", "dnsmasq": "dnsmasq-base", "setpriv": "util-linux",
	"busybox": "busybox-static", "protoc": "protobuf-compiler", "openstack": "python3-openstackclient",
	"man": "man-db", "xz": "xz-utils", "depmod": "kmod", "modprobe": "kmod",
}

// MustRun reports whether a test may not be skipped.
func MustRun() bool { return os.Getenv("CI") != "" || os.Getenv("INGOT_MUST_RUN") != "" }

// missing ends a test that lacks something.
func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if MustRun() {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// fromNow keeps go from taking the test's result from its cache: what it finds outside of Go is not among the things
// that go compares, but the environment that it reads is, and INGOT_RUN names the run.
func fromNow() { os.Getenv("INGOT_RUN") }

// NeedRoot ends the test unless it runs as root.
func NeedRoot(t testing.TB) {
	t.Helper()
	fromNow()
	if os.Geteuid() != 0 {
		missing(t, "this test needs root")
	}
}

// NeedPrograms ends the test unless all programs are installed, and says which packages bring them.
func NeedPrograms(t testing.TB, names ...string) {
	t.Helper()
	fromNow()
	var lacking, from []string
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			p := packages[n]
			if p == "" {
				p = n
			}
			lacking, from = append(lacking, n), append(from, p)
		}
	}
	if lacking != nil {
		missing(t, "this test needs %s: apt-get install %s", strings.Join(lacking, ", "), strings.Join(from, " "))
	}
}

// NeedFiles ends the test unless all files are there; pkg is the Debian package that brings them.
func NeedFiles(t testing.TB, pkg string, files ...string) {
	t.Helper()
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			missing(t, "this test needs %s: apt-get install %s", f, pkg)
		}
	}
}

// Run runs a program to its end and gives what it printed on standard output. A failure ends the test with all output.
func Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	var out, errs strings.Builder
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, &out, &errs)
	}
	return out.String()
}

// TempDisk makes a sparse file of size bytes and gives its path.
func TempDisk(t testing.TB, size int64) string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "disk-*.raw")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// Loop binds file to a loop device for the length of the test and gives the device. More arguments go to losetup.
func Loop(t testing.TB, file string, args ...string) string {
	t.Helper()
	NeedRoot(t)
	NeedPrograms(t, "losetup")
	dev := strings.TrimSpace(Run(t, "losetup", append(append([]string{"--find", "--show"}, args...), file)...))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", dev).CombinedOutput(); err != nil {
			t.Errorf("detach %s: %v: %s", dev, err, out)
		}
	})
	return dev
}

// MountPoint returns a directory to mount a file system on. Other tests make mount namespaces at the same time (ip
// netns exec does), which get copies of the mounts: the file system would stay mounted as long as they exist. An
// unmount here is propagated to them.
func MountPoint(t testing.TB) string {
	t.Helper()
	NeedRoot(t)
	NeedPrograms(t, "mount", "umount")
	base := t.TempDir()
	Run(t, "mount", "--bind", base, base)
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", base).CombinedOutput(); err != nil {
			t.Errorf("unmount %s: %v: %s", base, err, out)
		}
	})
	Run(t, "mount", "--make-shared", base)
	dir := filepath.Join(base, "fs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// WriteProgram writes a program that the test will start. Another test that starts one at this moment would have the
// file open for writing, too, from its fork to its exec, and the kernel does not start what somebody may write ("text
// file busy").
func WriteProgram(t testing.TB, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// Golden compares got with a file, by a name below testdata. Run the test with -update to write the file.
func Golden(t testing.TB, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", filepath.FromSlash(name))
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (write it with: go test -run '^%s$' -update)", err, t.Name())
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("differs from %s (-want +got); if it should, run with -update:\n%s", file, d)
	}
}

// Document compares a page of docs/reference, which is made by the test, with what it should be. Run the test with
// -update to write it; want "" removes it.
func Document(t testing.TB, file, want string) {
	t.Helper()
	got, err := os.ReadFile(file)
	switch {
	case err == nil && string(got) == want:
	case !*update:
		t.Errorf("%s is not what it is made from; run go test -run '^%s$' -update (-page +made):\n%s", file, t.Name(),
			cmp.Diff(string(got), want))
	case want == "":
		err = os.Remove(file)
	default:
		err = os.WriteFile(file, []byte(want), 0o644)
	}
	if *update && err != nil {
		t.Fatal(err)
	}
}

// Eventually waits until cond holds and fails the test after timeout; what describes the condition. It polls every 10
// ms, and after two seconds every 50: long processes, such as a booting machine, should not be slowed down by polling.
func Eventually(t testing.TB, timeout time.Duration, what string, cond func() bool) {
	t.Helper()
	began := time.Now()
	for !cond() {
		waited := time.Since(began)
		if waited > timeout {
			t.Fatalf("%s: not so after %v", what, timeout)
		}
		pause := 10 * time.Millisecond
		if waited > 2*time.Second {
			pause = 50 * time.Millisecond
		}
		select {
		case <-time.After(pause):
		case <-t.Context().Done():
			t.Fatalf("%s: the test ended", what)
		}
	}
}
