package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/u-root/u-root/pkg/boot/kexec"
	"golang.org/x/sys/unix"
)

// LoadKernel loads a kernel for a jump (kexec_file_load), replacing a loaded one. initrd may be nil. The files become
// read-only: the kernel refuses files that are open for writing. An error is a reason for an operator.
//
// The older kexec_load is not used: every kernel of our ramdisks has the newer call, and only that one can be allowed
// under lockdown, because it checks the signature.
func (Machine) LoadKernel(ctx context.Context, kernel, initrd *os.File, cmdline string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := readOnly(kernel); err != nil {
		return fmt.Errorf("load the kernel: %w", err)
	}
	if initrd != nil {
		if err := readOnly(initrd); err != nil {
			return fmt.Errorf("load the initial ramdisk: %w", err)
		}
	}
	err := kexec.FileLoad(kernel, initrd, cmdline)
	if err == nil {
		return nil
	}
	// The library's error has the whole command line, which may contain secrets: only the cause is returned.
	var cause unix.Errno
	if errors.As(err, &cause) {
		err = cause
	}
	return fmt.Errorf("load the kernel: %s (%w)", refusal(err, "/"), err)
}

// readOnly replaces a file's description by a read-only one.
func readOnly(f *os.File) error {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE == unix.O_RDONLY {
		return err
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Dup3(fd, int(f.Fd()), unix.O_CLOEXEC)
}

// refusal explains why the kernel refuses another one.
func refusal(err error, root string) string {
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(root, name))
		return strings.TrimSpace(string(b))
	}
	guarded, locked := "", false
	if b, err := os.ReadFile(
		filepath.Join(root, "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")); err == nil &&
		len(b) == 5 && b[4] == 1 {
		guarded = "Secure Boot is on"
	}
	if l := read("sys/kernel/security/lockdown"); strings.Contains(l, "[integrity]") ||
		strings.Contains(l, "[confidentiality]") {
		if guarded != "" {
			guarded += " and "
		}
		guarded, locked = guarded+"the agent's kernel is locked down", true
	}
	because := func(text string) string {
		if guarded != "" {
			text += "; " + guarded
		}
		return text
	}
	switch {
	case errors.Is(err, unix.EPERM) && locked, // which requires a signature, without details
		errors.Is(err, unix.EKEYREJECTED), errors.Is(err, unix.ENOKEY), errors.Is(err, unix.ENODATA),
		errors.Is(err, unix.EBADMSG), errors.Is(err, unix.ELIBBAD):
		return because("its signature is not one that the agent's kernel trusts")
	case errors.Is(err, unix.EPERM) && read("proc/sys/kernel/kexec_load_disabled") == "1":
		return "the agent's kernel has this switched off (kexec_load_disabled)"
	case errors.Is(err, unix.EPERM):
		return because("the agent's kernel does not allow it")
	case errors.Is(err, unix.ENOSYS):
		return "the agent's kernel can't do that (CONFIG_KEXEC_FILE)"
	case errors.Is(err, unix.ENOEXEC), errors.Is(err, unix.EINVAL):
		return "it is no kernel that the agent's kernel knows how to start"
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EADDRNOTAVAIL):
		return "there is no room for it in memory"
	}
	return "the agent's kernel refuses"
}

// KernelLoaded reports whether a kernel is ready for a jump.
func (Machine) KernelLoaded() bool {
	b, err := os.ReadFile("/sys/kernel/kexec_loaded")
	return err == nil && strings.TrimSpace(string(b)) == "1"
}
