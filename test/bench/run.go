package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/agent/image/trace"
)

// took is the cost of one run of a command.
type took struct {
	wall   time.Duration
	cpu    time.Duration // of all its processes; not of the kernel's workers
	rss    int64         // of the process itself, not of what it starts; bytes
	landed int64         // bytes of data that reached the device; 0: not counted
	busy   float64       // share of all processors in use, by whomever, while it ran
	out    []byte
}

// timed runs a command, with everything that it starts.
func timed(ctx context.Context, env []string, name string, args ...string) (took, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	before := trace.ReadCores()
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return took{}, err
	}
	peak := make(chan int64)
	stop := make(chan struct{})
	go watch(cmd.Process.Pid, stop, peak)
	err := cmd.Wait()
	t := took{wall: time.Since(began), out: out.Bytes(), busy: trace.ReadCores().Since(before)}
	close(stop)
	t.rss = <-peak
	if err != nil {
		return t, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, errs.Bytes())
	}
	u := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	t.cpu = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return t, nil
}

// watch looks at the most memory that a process has had; rusage can't tell, because it counts what the process was
// forked from.
func watch(pid int, stop <-chan struct{}, peak chan<- int64) {
	var most int64
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case <-stop:
			peak <- most
			return
		case <-again.C:
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(b)) {
			var n int64
			if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &n); err == nil {
				most = max(most, n<<10)
			}
		}
	}
}

func run(name string, args ...string) error {
	_, err := output(name, args...)
	return err
}

func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, text)
	}
	return text, nil
}
