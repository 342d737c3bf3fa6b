package shortage

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestOneLineAMinute: however often something is short, the log has one line a minute for it, with how often it was and
// what to do.
func TestOneLineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := &Watch{Log: slog.New(slog.NewTextHandler(&log, nil))}
		for range 300 { // five minutes, and a bit
			w.Note(Files)
			w.Note(Disk)
			time.Sleep(time.Second)
		}
		for _, k := range []Kind{Files, Disk} {
			if n := strings.Count(log.String(), texts[k].short); n != 5 {
				t.Errorf("%d lines in five minutes about %s:\n%s", n, texts[k].short, log.String())
			}
			for _, want := range []string{texts[k].refused, "times=60"} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log does not say %q:\n%s", want, log.String())
				}
			}
		}
	})
}

// TestClockSetBack: a clock that is set back by a year while the conductor works, or was before it started, is told
// once a minute until it has caught up; small corrections are not.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			log  bytes.Buffer
			back atomic.Int64 // a time.Duration
		)
		lines := func() int {
			synctest.Wait()
			return strings.Count(log.String(), "behind what has been recorded")
		}
		w := &Watch{Dir: t.TempDir(), Now: func() time.Time { return time.Now().Add(-time.Duration(back.Load())) },
			Log: slog.New(slog.NewTextHandler(&log, nil))}
		go w.Run(t.Context(), time.Now())
		time.Sleep(10*time.Minute + time.Second)
		back.Store(int64(30 * time.Second))
		time.Sleep(10 * time.Minute)
		if n := lines(); n > 0 {
			t.Errorf("%d lines without need:\n%s", n, log.String())
		}
		back.Store(int64(365 * 24 * time.Hour))
		time.Sleep(10 * time.Minute)
		if n := lines(); n != 10 {
			t.Errorf("%d lines in ten minutes:\n%s", n, log.String())
		}
		back.Store(0)
		time.Sleep(10 * time.Minute)
		if n := lines(); n != 10 {
			t.Errorf("%d lines, want no more after the clock was set right", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := &Watch{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))}
		go w.Run(t.Context(), time.Now().AddDate(1, 0, 0))
		time.Sleep(time.Second)
		synctest.Wait()
		if !strings.Contains(log.String(), "behind what has been recorded") || !strings.Contains(log.String(), "NTP") {
			t.Errorf("started a year before what is on record:\n%s", log.String())
		}
	})
}

type brokenListener struct {
	net.Listener
	err error
}

func (l brokenListener) Accept() (net.Conn, error) { return nil, l.err }
func (l brokenListener) Addr() net.Addr            { return &net.TCPAddr{Port: 1} }

func TestListenerNotesWantOfFiles(t *testing.T) {
	for _, c := range []struct {
		err  error
		note bool
	}{
		{&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.EMFILE)}, true},
		{&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.ENFILE)}, true},
		{net.ErrClosed, false},
	} {
		var log bytes.Buffer
		w := &Watch{Log: slog.New(slog.NewTextHandler(&log, nil))}
		if _, err := w.Listener(brokenListener{err: c.err}).Accept(); !errors.Is(err, c.err) {
			t.Errorf("Accept = %v, want %v", err, c.err)
		}
		if strings.Contains(log.String(), "file descriptors") != c.note {
			t.Errorf("after %v the log has %q", c.err, log.String())
		}
	}
}

func TestRaiseFiles(t *testing.T) {
	limit, err := RaiseFiles()
	var now unix.Rlimit
	if gerr := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil || gerr != nil || now.Cur != limit ||
		limit < now.Max && limit < MostFiles {
		t.Errorf("RaiseFiles = %d, %v; the limit is %+v, %v", limit, err, now, gerr)
	}
}
