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
)

// took is what one run of a command cost.
type took struct {
	wall   time.Duration
	cpu    time.Duration // of all its processes; not of the kernel's workers
	rss    int64         // of its largest process, bytes
	landed int64         // bytes of data that came to the device; 0: nobody counted
	out    []byte
}

// timed runs a command, with everything that it starts.
func timed(ctx context.Context, env []string, name string, args ...string) (took, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	began := time.Now()
	err := cmd.Run()
	t := took{wall: time.Since(began), out: out.Bytes()}
	if err != nil {
		return t, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, errs.Bytes())
	}
	u := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	t.cpu, t.rss = time.Duration(u.Utime.Nano()+u.Stime.Nano()), u.Maxrss<<10
	return t, nil
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
