package demo_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/tools/demo"
)

// demoLimit is for one demo, which is two deployments, with the image of Debian built for the first time.
const demoLimit = 30 * time.Minute

// TestDemo runs what `make demo` runs. Its Debian image is the demo's own, in build/images.
func TestDemo(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "qemu-system-x86_64", "ip")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	made.Image(t, made.Debian)
	ingot := made.Program(t, "ingot") // it looks for ingotd beside it

	firmwares := []string{"bios"}
	if os.Getenv("INGOT_FULL") != "" {
		firmwares = append(firmwares, "uefi") // two or three minutes more
	}
	for _, firmware := range firmwares {
		t.Run(firmware, func(t *testing.T) {
			d := startDemo(t, ingot, firmware, "ipmi")
			if err := d.wait(demoLimit); err != nil {
				t.Fatalf("ingot lab demo: %v", err)
			}
			said := d.out.String()
			for _, want := range []string{
				firmware + ` firmware, `,
				// Whether KVM works was tried out, and the result is told.
				`accelerator +(kvm: KVM booted a kernel in \S+|tcg: software emulation: KVM does not work here \(.+\))\n`,
				`\n  .*web-1 login:`,
				`\n  .*Ingot demo: cloud-init has applied the config drive`,
				`== Where the time went ==\n`,
				`deploy: \S+ s, 2 times through the firmware, \S+ % of the time is attributed`,
				`deploy: \S+ s, no firmware ran, started by kexec, \S+ % of the time is attributed`,
				`\n +firmware +\d+\.\d\d s`,
				`\n +write_image +\d+\.\d\d s`,
				`\n +OS boot: until login prompt +\d+\.\d\d s`,
				`\n +\d+\.\d s  2 times through the firmware  Ordinary`,
				`\n +\d+\.\d s  0 times through the firmware  Without a reboot`,
				`\nTaking the rack down\.\n`,
			} {
				if !regexp.MustCompile(want).MatchString(said) {
					t.Errorf("the demo does not say %s", want)
				}
			}
			d.leftNothing()
			if left, err := filepath.Glob(filepath.Join(root, "build", "demo", "server-1*")); err != nil ||
				len(left) > 0 {
				t.Errorf("disk and console of the machine are still there after a demo that went well: %v (%v)", left,
					err)
			}
		})
	}

	t.Run("interrupted", func(t *testing.T) {
		d := startDemo(t, ingot, "bios", "redfish")
		kit.Eventually(t, demoLimit, "the image is being written", func() bool {
			return strings.Contains(d.out.String(), "write_image") || d.over()
		})
		if !strings.Contains(d.out.String(), "speaks Redfish") {
			t.Error("the machine's controller does not speak Redfish")
		}
		if err := d.cmd.Process.Signal(unix.SIGINT); err != nil {
			t.Fatal(err)
		}
		err := d.wait(5 * time.Minute)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() <= 0 {
			t.Errorf("after Ctrl-C the demo ended with %v, want an exit status that is not zero", err)
		}
		d.leftNothing()
	})
}

// demoRun is a demo that runs.
type demoRun struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *output
	done chan struct{}
	err  error // once done is closed
}

// output is the output of a process so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func startDemo(t *testing.T, ingot, firmware, bmc string) *demoRun {
	t.Helper()
	d := &demoRun{t: t,
		cmd: exec.Command(ingot, "lab", "demo", "--down", "--dir", "../../build", "--firmware", firmware,
			"--bmc", bmc),
		out: &output{}, done: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("---- what the demo said ----\n%s", d.out)
		}
		if d.over() {
			return
		}
		_ = d.cmd.Process.Kill() // it may have ended just now
		<-d.done
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
		defer cancel()
		if err := demo.Down(ctx); err != nil {
			t.Errorf("take the demo's rack down: %v", err)
		}
	})
	return d
}

func (d *demoRun) over() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// wait waits for the end of the demo.
func (d *demoRun) wait(limit time.Duration) error {
	d.t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-d.done:
		return d.err
	case <-timer.C:
		d.t.Fatalf("the demo has not ended after %v", limit)
		return nil
	}
}

// leftNothing checks that the demo's rack is gone: network, files of the running lab, processes.
func (d *demoRun) leftNothing() {
	d.t.Helper()
	if _, err := os.Stat("/run/netns/ingot-" + demo.Name); !errors.Is(err, fs.ErrNotExist) {
		d.t.Errorf("the demo's network namespace is still there: %v", err)
	}
	if left, err := filepath.Glob("/run/ingot-lab/" + demo.Name + "*"); err != nil || len(left) > 0 {
		d.t.Errorf("the demo left %v (%v)", left, err)
	}
	dir, err := filepath.Abs("../../build/demo")
	if err != nil {
		d.t.Fatal(err)
	}
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, file := range all {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// The machine has the disk's path on its command line, the conductor its configuration's.
		if line := string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})); strings.Contains(line, dir+"/") {
			d.t.Errorf("a process of the demo still runs: %s: %s", file, line)
		}
	}
}
