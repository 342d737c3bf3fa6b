package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// kvmLimit is how long a kernel may take under KVM to get to where it looks for its root file system. With working KVM
// it takes about one second.
const kvmLimit = 5 * time.Second

// kvmProof is the last message of a kernel without initramfs and disk. Earlier messages prove nothing: on hosts with a
// partial KVM (nested, or without VMX and SVM) firmware runs and the kernel hangs later.
const kvmProof = "Unable to mount root fs"

// chooseAccel decides what machines run on, and says why.
func chooseAccel(ctx context.Context, o Options) (Accel, string) {
	if o.Accel != Auto {
		return o.Accel, "as asked for"
	}
	if o.ProbeKernel == "" {
		return TCG, "software emulation: no kernel was given to try KVM with"
	}
	start := time.Now()
	if err := ProbeKVM(ctx, o.ProbeKernel); err != nil {
		return TCG, fmt.Sprintf("software emulation: KVM does not work here (%v)", err)
	}
	return KVM, fmt.Sprintf("KVM booted a kernel in %s", time.Since(start).Round(100*time.Millisecond))
}

// ProbeKVM boots a kernel under KVM and returns within five seconds why it cannot be used; nil if it can.
func ProbeKVM(ctx context.Context, kernel string) error {
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/kvm: %w", err)
	}
	unix.Close(fd)
	if _, err := os.Stat(kernel); err != nil {
		return fmt.Errorf("kernel for the trial: %w", err)
	}
	return probe(ctx, kvmLimit, kernel, "-accel", "kvm", "-cpu", "host")
}

// probe boots a kernel with neither initramfs nor disk and waits for its last words.
func probe(ctx context.Context, limit time.Duration, kernel string, accel ...string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		append([]string{"-M", "q35,graphics=off", "-smp", "1", "-m", "256",
			"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
			"-kernel", kernel, "-append", "console=ttyS0 panic=-1 no_timer_check"}, accel...)...)
	// A guest that hangs must not outlive us. The signal comes with the end of this thread, which is therefore kept
	// until Run is done.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	var errs lastBytes
	out := &proof{want: []byte(kvmProof), found: cancel}
	cmd.Stdout, cmd.Stderr = out, &errs
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case out.ok:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("a kernel hung for %s", limit)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("QEMU: %w: %s", err, errs.words())
	}
	return errors.New("a kernel stopped before it was up")
}

// proof looks for a text in a stream.
type proof struct {
	want, seen []byte
	ok         bool
	found      func()
}

func (p *proof) Write(b []byte) (int, error) {
	p.seen = append(p.seen, b...)
	if !p.ok && bytes.Contains(p.seen, p.want) {
		p.ok = true
		p.found()
	}
	p.seen = tail(p.seen, len(p.want))
	return len(b), nil
}
