// Command demo shows `openstack server create` on bare metal: a real OpenStack (package cloud) beside a virtual rack
// whose conductor is an ingotd in Ironic's place. It runs the commands that a user would type, and says how long each
// took.
//
// It needs root, for the rack. At its end, or when it is interrupted, nothing is left; with -stay all goes on until an
// interrupt, to look around.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// pidFile has the process of a demo that is up; its folder has what is of interest afterwards.
const pidFile = "build/demo-openstack/pid"

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	image := flags.String("image", "debian", "debian, or tiny, which has no sshd and starts sooner")
	stay := flags.Bool("stay", false, "go on at the end until an interrupt")
	down := flags.Bool("down", false, "end a demo that is up, and wait until nothing of it is left")
	verbose := flags.Bool("v", false, "log what the rack does")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *down {
		return end(ctx, out)
	}
	if err := (&demo{image: *image}).check(); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("the rack needs root: run it with sudo")
	}
	if err := claim(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(pidFile)) }()
	log := slog.New(slog.DiscardHandler)
	if *verbose {
		log = slog.New(slog.NewTextHandler(out, nil))
	}
	dir, err := os.MkdirTemp("", "os-") // short: MariaDB's socket is in it
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	d := &demo{out: out, log: log, dir: dir, image: *image}
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = errors.New("it was interrupted")
		} else if err != nil {
			to, kerr := keepLogs(dir)
			if kerr != nil {
				err = errors.Join(err, fmt.Errorf("keep the logs: %w", kerr))
			} else {
				fmt.Fprintf(out, "\nThe logs are kept in %s.\n", to)
			}
		}
		err = errors.Join(err, d.close(), os.RemoveAll(dir))
	}()
	if err := d.up(ctx); err != nil {
		return err
	}
	if err := d.life(ctx); err != nil {
		return err
	}
	if !*stay {
		return nil
	}
	file, err := d.openrc()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nAll stays up. In another terminal: . %s, then openstack server create ... as above.\n"+
		"Ctrl-C, or make demo-openstack-down, ends it.\n", file)
	<-ctx.Done()
	return nil
}

// claim refuses a second demo: both would want the rack of the same name.
func claim() error {
	if pid, ok := running(); ok {
		return fmt.Errorf("a demo is up already (process %d): end it with make demo-openstack-down", pid)
	}
	if err := os.MkdirAll(filepath.Dir(pidFile), 0o755); err != nil {
		return err
	}
	return os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())), 0o644)
}

// running returns the process of a demo that is up. A number that another program has by now is not taken for it.
func running() (pid int, ok bool) {
	b, err := os.ReadFile(pidFile)
	if err != nil {
		return 0, false
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil || pid <= 0 {
		return 0, false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return pid, err == nil && strings.Contains(string(line), "demo")
}

// end interrupts a demo and waits for its end.
func end(ctx context.Context, out io.Writer) error {
	pid, ok := running()
	if !ok {
		fmt.Fprintln(out, "No demo is up.")
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("end the demo, process %d: %w", pid, err)
	}
	for ; ok; _, ok = running() {
		if err := pause(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "The demo has ended.")
	return nil
}

// keepLogs copies the logs to where they survive the demo.
func keepLogs(dir string) (to string, err error) {
	to = filepath.Join(filepath.Dir(pidFile), "logs")
	if err := os.RemoveAll(to); err != nil {
		return to, err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return to, err
	}
	for _, pattern := range []string{"*.log", "lab/*.log", "keystone/keystone.log"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return to, err
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err == nil {
				err = os.WriteFile(filepath.Join(to, filepath.Base(f)), b, 0o644)
			}
			if err != nil {
				return to, err
			}
		}
	}
	return to, nil
}
