package doctor

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BecomeOwner makes root's process one of the user that a data directory belongs to, for good, with the capabilities of
// the packaged service. So it sees what the conductor sees: root would take keys that only the conductor can read for
// faults, ports below 1024 for free, and could leave files that the conductor can't open. It does nothing for other
// users, for a folder that is not there or is root's own, and where this root may not change its user.
func BecomeOwner(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || os.Geteuid() != 0 {
		return nil
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid == 0 {
		return nil
	}
	groups := []int{int(st.Gid)}
	if u, err := user.LookupId(strconv.Itoa(int(st.Uid))); err == nil {
		ids, err := u.GroupIds()
		if err != nil {
			return fmt.Errorf("look up groups of %s: %w", u.Username, err)
		}
		for _, id := range ids {
			if n, err := strconv.Atoi(id); err == nil {
				groups = append(groups, n)
			}
		}
	}
	// These act on all threads. A program with cgo can't, and such a one is not shipped.
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0); e != 0 {
		return nil
	}
	if syscall.Setgroups(groups) != nil {
		return nil
	}
	if err := syscall.Setresgid(int(st.Gid), int(st.Gid), int(st.Gid)); err != nil {
		return fmt.Errorf("change to the group of %s: %w", dir, err)
	}
	if err := syscall.Setresuid(int(st.Uid), int(st.Uid), int(st.Uid)); err != nil {
		return fmt.Errorf("change to the owner of %s: %w", dir, err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	for _, caps := range []uint32{1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_NET_RAW, 0} { // 0: a root without them
		data := [2]unix.CapUserData{{Effective: caps, Permitted: caps}}
		if _, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
			uintptr(unsafe.Pointer(&data[0])), 0); e == 0 {
			return nil
		}
	}
	return fmt.Errorf("give up root's rights: %w", unix.EPERM)
}
