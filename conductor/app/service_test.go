package app

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
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
