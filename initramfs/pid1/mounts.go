package pid1

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/mount"
	"golang.org/x/sys/unix"
)

// point is a mount point of the ramdisk.
type point struct {
	source, target, kind string
	flags                uintptr
	options              string
}

const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// earlyMounts need no modules. The order matters: /dev/pts is in /dev.
var earlyMounts = []point{
	{"proc", "/proc", "proc", quiet, ""},
	{"sysfs", "/sys", "sysfs", quiet, ""},
	{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
	{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0620,ptmxmode=0666"},
	{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	{"tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
}

// lateMounts need drivers; where a folder is not there, the machine or its kernel has no such thing.
var lateMounts = []struct {
	point
	where, without string
}{
	{point{"efivarfs", efiVars, "efivarfs", quiet, ""}, efiFirmware, "boot entries can't be written"},
	{point{"securityfs", securityDir, "securityfs", quiet, ""}, securityDir,
		"the state of the kernel's lockdown is unknown"},
	{point{"pstore", pstoreDir, "pstore", quiet, ""}, pstoreDir,
		"the kernel's persistent store can't be emptied"},
}

const (
	securityDir = "/sys/kernel/security"
	pstoreDir   = "/sys/fs/pstore"
	efiFirmware = "/sys/firmware/efi"
	efiVars     = efiFirmware + "/efivars"
)

// mountAll mounts all it can and returns all errors: a ramdisk without /tmp is still usable.
func mountAll(list []point) error {
	var errs []error
	for _, m := range list {
		errs = append(errs, m.do())
	}
	return errors.Join(errs...)
}

func (m point) do() error {
	folder := func() error { return os.MkdirAll(m.target, 0o755) }
	// EBUSY: already mounted by the kernel (CONFIG_DEVTMPFS_MOUNT).
	if _, err := mount.Mount(m.source, m.target, m.kind, m.options, m.flags, folder); !errors.Is(err, unix.EBUSY) {
		return err
	}
	return nil
}

// linkAll creates the few links that programs expect.
func linkAll() {
	for link, to := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1",
		"/dev/stderr": "/proc/self/fd/2", "/dev/ptmx": "pts/ptmx", "/sbin/modprobe": "/init",
		"/etc/mtab": "/proc/self/mounts",
	} {
		if _, err := os.Lstat(link); err == nil {
			continue
		}
		if os.MkdirAll(filepath.Dir(link), 0o755) == nil {
			_ = os.Symlink(to, link) // a convenience only
		}
	}
}

// unmountDisks unmounts everything on a block device, last mounted first. Busy mounts stay.
func unmountDisks() {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return
	}
	for _, line := range slices.Backward(strings.Split(string(b), "\n")) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[0], "/dev/") {
			_ = unix.Unmount(f[1], 0)
		}
	}
}
