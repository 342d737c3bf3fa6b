package app

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func env(m map[string]string) func(string) string { return func(k string) string { return m[k] } }

func TestInheritedOnlyWhenMeantForUs(t *testing.T) {
	for _, e := range []map[string]string{
		{},
		{"LISTEN_FDS": "0"},
		{"LISTEN_FDS": "1", "LISTEN_PID": strconv.Itoa(os.Getpid() + 1)},
		{"LISTEN_FDS": "many"},
	} {
		if l, err := inherited(env(e)); l != nil || err != nil {
			t.Errorf("inherited(%v) = %v, %v, want nothing", e, l, err)
		}
	}
	if _, err := inherited(env(map[string]string{"LISTEN_FDS": "2"})); err == nil {
		t.Error("inherited takes two sockets without a word")
	}
}

func TestNotify(t *testing.T) {
	name := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := notify(env(map[string]string{"NOTIFY_SOCKET": name}), "READY=1"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	n, err := l.Read(b)
	if err != nil || string(b[:n]) != "READY=1" {
		t.Errorf("notify sent %q (%v), want READY=1", b[:n], err)
	}
	if err := notify(env(nil), "READY=1"); err != nil {
		t.Errorf("notify without a service manager = %v", err)
	}
}

// TestNotifyDoesNotWait: a service manager that reads nothing holds up neither the work nor the end of ingotd.
func TestNotifyDoesNotWait(t *testing.T) {
	name := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e := env(map[string]string{"NOTIFY_SOCKET": name})
	for range 100_000 { // more than the kernel keeps
		if err = notify(e, "WATCHDOG=1"); err != nil {
			break
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("notify with a full socket = %v, want the end of its time", err)
	}
}

// TestWatchdog: WATCHDOG=1 is sent as long as the API answers, whatever it answers, and no longer once it hangs.
func TestWatchdog(t *testing.T) {
	name := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var hang, hung atomic.Bool
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hang.Load() {
			hung.Store(true)
			<-r.Context().Done()
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable) // as of a conductor that drains
	})
	e := env(map[string]string{"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "100000",
		"WATCHDOG_PID": strconv.Itoa(os.Getpid())})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		watchdog(ctx, e, func(ctx context.Context) bool { return answers(ctx, api) }, slog.New(slog.DiscardHandler))
	}()
	heard := func(within time.Duration) error {
		if err := l.SetReadDeadline(time.Now().Add(within)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 64)
		n, err := l.Read(b)
		if err == nil && string(b[:n]) != "WATCHDOG=1" {
			t.Errorf("watchdog sent %q, want WATCHDOG=1", b[:n])
		}
		return err
	}
	for range 3 {
		if err := heard(10 * time.Second); err != nil {
			t.Fatalf("the service manager hears nothing of an API that answers: %v", err)
		}
	}
	hang.Store(true)
	for !hung.Load() { // what was sent before is read meanwhile
		_ = heard(10 * time.Millisecond)
	}
	if err := heard(300 * time.Millisecond); err == nil { // one may have been on its way
		if err := heard(300 * time.Millisecond); err == nil {
			t.Error("the service manager hears WATCHDOG=1 from an API that hangs")
		}
	}
	hang.Store(false)
	if err := heard(10 * time.Second); err != nil {
		t.Errorf("the service manager hears nothing of an API that answers again: %v", err)
	}
	cancel()
	<-done
}

// TestWatchdogPace: half of the limit, and none where the service manager watches nothing or another process.
func TestWatchdogPace(t *testing.T) {
	for _, c := range []struct {
		limit, pid string
		want       time.Duration
	}{
		{"", "", 0}, {"0", "", 0}, {"-5", "", 0}, {"soon", "", 0}, {"9223372036854775807", "", 0},
		{"30000000", "", 15 * time.Second},
		{"30000000", strconv.Itoa(os.Getpid()), 15 * time.Second},
		{"30000000", strconv.Itoa(os.Getpid() + 1), 0},
	} {
		if got := watchdogPace(env(map[string]string{"WATCHDOG_USEC": c.limit, "WATCHDOG_PID": c.pid})); got != c.want {
			t.Errorf("watchdogPace(%q, %q) = %v, want %v", c.limit, c.pid, got, c.want)
		}
	}
}

func TestLockDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	release, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockDir(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("second lockDir = %v, want an error that names the directory", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	again, err := lockDir(dir)
	if err != nil {
		t.Errorf("lockDir after release = %v", err)
	} else {
		again()
	}
}

// TestLookingForAConductorStopsNone: doctor's check of the lock finds its holder, and does not block an ingotd.
func TestLookingForAConductorStopsNone(t *testing.T) {
	dir := t.TempDir()
	if inUse(dir) {
		t.Error("a directory without a lock file is in use")
	}
	stop := make(chan struct{})
	var looking sync.WaitGroup
	for range 2 {
		looking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					inUse(dir)
				}
			}
		})
	}
	for range 2000 {
		release, err := lockDir(dir)
		if err != nil {
			t.Error(err)
			break
		}
		if !inUse(dir) {
			t.Error("a directory that is locked is not in use")
		}
		if err := release(); err != nil {
			t.Error(err)
		}
		if inUse(dir) {
			t.Error("a directory that was released is in use")
		}
	}
	close(stop)
	looking.Wait()
}
