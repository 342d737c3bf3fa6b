package kit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Firmware files of Debian's package ovmf.
const (
	ovmfCode = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	ovmfVars = "/usr/share/OVMF/OVMF_VARS_4M.fd"
)

// VM is a machine to boot once: a kernel passed to QEMU directly, or a system on its disks. One processor in software
// emulation, a random number device, no network unless Args defines one.
type VM struct {
	Kernel, Initrd, Append string // empty Kernel: boot from the first disk
	UEFI                   bool
	MemoryMiB              int      // default 512
	NoRandom               bool     // without RDRAND and the random number device
	Disks                  []string // raw files as virtio disks; what the guest writes is kept
	Sector                 int      // size of the disks' sectors; default 512
	Args                   []string // more arguments of QEMU
	// regular expression on the serial console; empty: until the machine switches off
	Until   string
	Timeout time.Duration // default 10 minutes; software emulation on a busy machine is slow
}

// Boot runs the machine until its console shows the expected text, ends it, and returns all output of its serial
// console. It fails the test, with the console's text, if the machine ends or time runs out before.
func Boot(t testing.TB, m VM) string {
	t.Helper()
	r := Start(t, m)
	select {
	case <-r.console.found:
		r.End()
	case <-r.Ended:
		select {
		case <-r.console.found: // it printed that as its last words
			return r.Console()
		default:
		}
		if r.ctx.Err() != nil {
			t.Fatalf("the machine did not print %q within %v; its console:\n%s", m.Until, r.limit, r.console)
		}
		if r.err != nil || m.Until != "" {
			t.Fatalf("the machine ended (%v) before it printed %q: %s\nits console:\n%s", r.err, m.Until, &r.errs, r.console)
		}
	}
	return r.Console()
}

// Running is a machine that was started.
type Running struct {
	Ended   <-chan struct{} // closed when the machine has ended
	ctx     context.Context
	cancel  context.CancelFunc
	limit   time.Duration
	console *watch
	errs    bytes.Buffer // read only after Ended
	err     error        // likewise
}

// Console returns what the machine has printed on its serial console so far.
func (r *Running) Console() string { return r.console.String() }

// End cuts the machine's power.
func (r *Running) End() {
	r.cancel()
	<-r.Ended
}

// Start starts the machine. It ends with the test, or when m.Timeout is over.
func Start(t testing.TB, m VM) *Running {
	t.Helper()
	NeedPrograms(t, "qemu-system-x86_64")
	if m.MemoryMiB == 0 {
		m.MemoryMiB = 512
	}
	if m.Timeout == 0 {
		m.Timeout = 10 * time.Minute
	}
	cpu := "qemu64"
	if !m.NoRandom {
		cpu += ",+rdrand"
	}
	args := []string{
		"-M", "q35,graphics=off", "-accel", "tcg,thread=multi", "-cpu", cpu, "-smp", "1", "-m",
		strconv.Itoa(m.MemoryMiB), "-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-serial",
		"stdio", "-no-reboot",
	}
	if !m.NoRandom {
		args = append(args, "-device", "virtio-rng-pci")
	}
	if m.UEFI {
		NeedFiles(t, "ovmf", ovmfCode, ovmfVars)
		vars := filepath.Join(t.TempDir(), "vars.fd")
		data, err := os.ReadFile(ovmfVars)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(vars, data, 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-drive", "if=pflash,unit=0,format=raw,readonly=on,file="+ovmfCode, "-drive",
			"if=pflash,unit=1,format=raw,file="+Quote(vars))
	}
	for i, d := range m.Disks {
		id := "disk" + strconv.Itoa(i)
		sector := strconv.Itoa(cmp.Or(m.Sector, 512))
		args = append(args, "-drive", "if=none,format=raw,cache=unsafe,id="+id+",file="+Quote(d), "-device",
			"virtio-blk-pci,drive="+id+
				",bootindex="+strconv.Itoa(i+1)+",serial="+id+",logical_block_size="+sector+",physical_block_size="+
				sector)
	}
	if m.Kernel != "" {
		// Where the emulator does not get a processor for long, the kernel takes its timer for broken, and panics. The
		// others save time.
		args = append(args, "-kernel", m.Kernel, "-append",
			"console=ttyS0,115200n8 panic=-1 no_timer_check mitigations=off cryptomgr.notests "+m.Append)
		if m.Initrd != "" {
			args = append(args, "-initrd", m.Initrd)
		}
	}
	ended := make(chan struct{})
	r := &Running{Ended: ended, limit: m.Timeout, console: &watch{found: make(chan struct{})}}
	r.ctx, r.cancel = context.WithTimeout(t.Context(), m.Timeout)
	cmd := exec.CommandContext(r.ctx, "qemu-system-x86_64", append(args, m.Args...)...)
	if m.Until != "" {
		r.console.until = regexp.MustCompile(m.Until)
	}
	cmd.Stdout, cmd.Stderr = r.console, &r.errs
	// When the time for all tests is up, nothing is cleaned up. The signal comes with the end of this thread, which is
	// therefore kept.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		r.cancel()
		t.Fatal(err)
	}
	go func() {
		r.err = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(r.End)
	return r
}

// Quote writes a value as it stands in QEMU's comma-separated options.
func Quote(value string) string { return strings.ReplaceAll(value, ",", ",,") }

// BootKernel boots a kernel with a ramdisk and waits for until on its console; see Boot.
func BootKernel(t testing.TB, kernel, initrd, cmdline, until string) string {
	t.Helper()
	return Boot(t, VM{Kernel: kernel, Initrd: initrd, Append: cmdline, Until: until})
}

// watch keeps its input and reports when that matches.
type watch struct {
	until *regexp.Regexp
	found chan struct{}

	mu   sync.Mutex
	data []byte
	done bool
}

var _ io.Writer = (*watch)(nil)

func (w *watch) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.data)+len(p) > 64<<20 {
		return 0, errors.New("the console printed more than 64 MiB")
	}
	w.data = append(w.data, p...)
	if w.until != nil && !w.done && w.until.Match(w.data[max(0, len(w.data)-len(p)-4096):]) {
		w.done = true
		close(w.found)
	}
	return len(p), nil
}

func (w *watch) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.data)
}
