package pid1

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Environment of a worker that was restarted.
const (
	EnvRestarts = "INGOT_WORKER_RESTARTS" // how often, in decimal
	EnvReason   = "INGOT_WORKER_REASON"   // why the last one ended, one line
)

// LogFile is where the worker's log goes; when full it moves to LogFile.1.
const LogFile = "/run/ingot/agent.log"

// A worker that keeps crashing is restarted at once, then with growing delays.
const (
	restartFirst = 200 * time.Millisecond
	restartMax   = 30 * time.Second
	healthyAfter = time.Minute // a worker that lived this long resets the delays
)

// reaper collects every child that ends: the worker, shells, and orphans that the first process inherits.
type reaper struct {
	mu      sync.Mutex
	waiting map[int]chan unix.WaitStatus
}

func newReaper() *reaper { return &reaper{waiting: map[int]chan unix.WaitStatus{}} }

// run reaps until ctx ends.
func (r *reaper) run(ctx context.Context) {
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, unix.SIGCHLD)
	defer signal.Stop(sig)
	for {
		r.collect()
		select {
		case <-sig:
		case <-ctx.Done():
			return
		}
	}
}

func (r *reaper) collect() {
	for {
		var ws unix.WaitStatus
		// With the lock, so that a child that ends before start has recorded it is not lost.
		r.mu.Lock()
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if c := r.waiting[pid]; err == nil && c != nil && (ws.Exited() || ws.Signaled()) {
			delete(r.waiting, pid)
			c <- ws
		}
		r.mu.Unlock()
		if pid <= 0 && err != unix.EINTR {
			return
		}
	}
}

// start starts a program; the channel receives its exit status.
func (r *reaper) start(argv []string, attr *os.ProcAttr) (pid int, ended <-chan unix.WaitStatus, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, err := os.StartProcess(argv[0], argv, attr)
	if err != nil {
		return 0, nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	c := make(chan unix.WaitStatus, 1)
	r.waiting[p.Pid] = c
	pid = p.Pid
	_ = p.Release() // waiting is the reaper's
	return pid, c, nil
}

// worker is the supervised program.
type worker struct {
	argv   []string
	env    []string
	status io.Writer // its standard output
	log    io.Writer // its standard error
	own    *slog.Logger
	reaper *reaper
}

// keep runs the worker until ctx ends, and restarts it whenever it dies. When ctx ends the worker gets SIGTERM and ten
// seconds.
func (w *worker) keep(ctx context.Context) {
	restarts, reason := 0, ""
	delay := restartFirst
	for ctx.Err() == nil {
		begin := time.Now()
		reason = w.once(ctx, restarts, reason)
		if ctx.Err() != nil {
			return
		}
		restarts++
		if time.Since(begin) > healthyAfter {
			delay = restartFirst
		}
		w.own.Error("the agent died and is started again", "err", reason, "restarts", restarts, "delay", delay)
		fmt.Fprintf(w.status, "ingot: the agent died and is started again (%d): %s\n", restarts, reason)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
		}
		delay = min(delay*4, restartMax)
	}
}

// once runs the worker to its end and returns the reason of its end.
func (w *worker) once(ctx context.Context, restarts int, lastReason string) string {
	env := slices.Clone(w.env)
	if restarts > 0 {
		env = append(env, EnvRestarts+"="+strconv.Itoa(restarts), EnvReason+"="+lastReason)
	}
	env = append(env, os.Environ()...) // of two values of one name the first counts
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err.Error()
	}
	defer null.Close()
	outR, outW, err := os.Pipe()
	if err != nil {
		return err.Error()
	}
	defer outR.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		outW.Close()
		return err.Error()
	}
	defer errR.Close()

	pid, ended, err := w.reaper.start(w.argv, &os.ProcAttr{Env: env, Files: []*os.File{null, outW, errW}})
	outW.Close()
	errW.Close()
	if err != nil {
		return err.Error()
	}
	// Of a panic the first lines matter; the stack after them goes to the log.
	last := &tail{max: 256 << 10}
	var pipes sync.WaitGroup
	pipes.Go(func() { _, _ = io.Copy(w.status, outR) })
	pipes.Go(func() { _, _ = io.Copy(io.MultiWriter(w.log, last), errR) })

	var ws unix.WaitStatus
	select {
	case ws = <-ended:
	case <-ctx.Done():
		_ = unix.Kill(pid, unix.SIGTERM)
		select {
		case ws = <-ended:
		case <-time.After(10 * time.Second):
			_ = unix.Kill(pid, unix.SIGKILL)
			ws = <-ended
		}
	}
	// A grandchild that keeps the pipes open must not delay the restart.
	drained := make(chan struct{})
	go func() { pipes.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(time.Second):
	}
	return describeEnd(ws, last.String())
}

// describeEnd describes in one line how a worker ended, with the message of a panic.
func describeEnd(ws unix.WaitStatus, log string) string {
	end := fmt.Sprintf("exit status %d", ws.ExitStatus())
	if ws.Signaled() {
		end = fmt.Sprintf("killed by %s", unix.SignalName(ws.Signal()))
	}
	lines := strings.Split(strings.TrimSpace(log), "\n")
	for _, prefix := range []string{"panic: ", "fatal error: ", "runtime: "} {
		for _, l := range lines {
			if strings.HasPrefix(l, prefix) {
				return end + ": " + cut(l)
			}
		}
	}
	if l := lines[len(lines)-1]; l != "" {
		return end + ": " + cut(l)
	}
	return end
}

func cut(s string) string {
	if len(s) > 300 {
		return s[:300] + "..."
	}
	return s
}
