package pid1

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain makes the test binary the worker, or a first process with its own worker.
func TestMain(m *testing.M) {
	switch os.Getenv("PID1_TEST") {
	case "worker":
		testWorker()
	case "supervisor":
		testSupervisor()
	default:
		os.Exit(m.Run())
	}
}

// testWorker dies in another way on each start, and prints its environment.
func testWorker() {
	n, _ := strconv.Atoi(os.Getenv(EnvRestarts))
	fmt.Printf("start %d after %q\n", n, os.Getenv(EnvReason))
	switch n {
	case 0:
		fmt.Fprintln(os.Stderr, "level=INFO msg=working")
		panic("assignment to entry in nil map")
	case 1:
		unix.Kill(os.Getpid(), unix.SIGKILL)
	case 2:
		// An orphan: its parent is gone before it ends, so it falls to the supervisor.
		c := exec.Command("/bin/sh", "-c", "sleep 0.05 & echo orphan $!")
		c.Stdout = os.Stdout
		_ = c.Run()
		fmt.Fprintln(os.Stderr, "could not go on")
		os.Exit(3)
	}
	select {}
}

// testSupervisor supervises that worker until its standard input ends.
func testSupervisor() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	ctx, cancel := context.WithCancel(context.Background())
	r := newReaper()
	go r.run(context.Background())
	w := &worker{argv: []string{"/proc/self/exe"}, env: []string{"PID1_TEST=worker"}, status: os.Stdout, log: os.Stderr,
		own: slog.New(slog.DiscardHandler), reaper: r}
	done := make(chan struct{})
	go func() { w.keep(ctx); close(done) }()
	_, _ = os.Stdin.Read(make([]byte, 1))
	cancel()
	<-done
	fmt.Println("supervisor ended")
	os.Exit(0)
}

// lockedBuffer is a buffer that a child writes while the test reads.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *lockedBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for tick := time.NewTicker(10 * time.Millisecond); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

func TestSupervise(t *testing.T) {
	var out, log lockedBuffer
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), "PID1_TEST=supervisor")
	c.Stdout, c.Stderr = &out, &log
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	waitFor(t, "the third restart", func() bool { return strings.Contains(out.String(), "start 3 after") })
	for _, want := range []string{
		`start 0 after ""`,
		`start 1 after "exit status 2: panic: assignment to entry in nil map"`,
		`start 2 after "killed by SIGKILL"`,
		`start 3 after "exit status 3: could not go on"`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in:\n%s", want, out.String())
		}
	}
	if !strings.Contains(log.String(), "msg=working") || !strings.Contains(log.String(), "goroutine 1") {
		t.Errorf("the log lacks the worker's lines or stack:\n%s", log.String())
	}
	_, rest, ok := strings.Cut(out.String(), "orphan ")
	if !ok {
		t.Fatal("no orphan was made")
	}
	orphan := "/proc/" + strings.Fields(rest)[0]
	waitFor(t, "reaping the orphan", func() bool { _, err := os.Stat(orphan); return err != nil })

	in.Close()
	waitFor(t, "the end of the supervisor", func() bool { return strings.Contains(out.String(), "supervisor ended") })
}

func TestRingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	r := &ringFile{path: path, max: 100}
	for i := range 50 {
		fmt.Fprintf(r, "line %d\n", i)
	}
	last, _ := os.ReadFile(path)
	before, _ := os.ReadFile(path + ".1")
	if !strings.HasSuffix(string(last), "line 49\n") || len(last) > 100 || len(before) > 100 || len(before) == 0 {
		t.Errorf("log files of %d and %d bytes, ending in %q", len(before), len(last), last)
	}
}

func TestConsolesNeverBlock(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"dev", "sys/class/tty/console"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "sys/class/tty/console/active"), []byte("tty0 ttyS0\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(root, "dev/ttyS0")
	if err := os.WriteFile(good, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	// A pipe without a reader stands for a serial line under flow control.
	if err := unix.Mkfifo(filepath.Join(root, "dev/tty0"), 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(filepath.Join(root, "dev/tty0"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	c := openConsoles(root)
	line := strings.Repeat("x", 1000) + "\n"
	for range 500 {
		fmt.Fprint(c, line)
	}
	fmt.Fprint(c, "last\n")
	waitFor(t, "output on the good console", func() bool { b, _ := os.ReadFile(good); return len(b) > 0 })
}
