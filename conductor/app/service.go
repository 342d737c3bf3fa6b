package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// firstInherited is the number of the first file that a service manager hands over (sd_listen_fds(3)).
const firstInherited = 3

// inherited returns the listener that the service manager opened for this process, or nil. getenv is os.Getenv.
func inherited(getenv func(string) string) (net.Listener, error) {
	if pid, err := strconv.Atoi(getenv("LISTEN_PID")); getenv("LISTEN_PID") != "" &&
		(err != nil || pid != os.Getpid()) {
		return nil, nil // meant for another process
	}
	n, err := strconv.Atoi(getenv("LISTEN_FDS"))
	if err != nil || n < 1 {
		return nil, nil
	}
	if n > 1 {
		return nil, fmt.Errorf("%d sockets were handed over (LISTEN_FDS); ingotd takes one, for the API", n)
	}
	unix.CloseOnExec(firstInherited)
	f := os.NewFile(firstInherited, "api")
	l, err := net.FileListener(f)
	return l, errors.Join(err, f.Close())
}

// notifyLimit is how long the service manager may take to accept a message.
const notifyLimit = time.Second

// notify sends the service manager a state such as READY=1 (sd_notify(3)). Without a service manager it does nothing.
func notify(getenv func(string) string, state string) error {
	name := getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell the service manager %s: %w", state, err)
	}
	// A manager that does not read is not waited for: ingotd would hang at its own end.
	err = c.SetWriteDeadline(time.Now().Add(notifyLimit))
	if err == nil {
		_, err = c.Write([]byte(state))
	}
	if err != nil {
		err = fmt.Errorf("tell the service manager %s: %w", state, err)
	}
	return errors.Join(err, c.Close())
}

// watchdogPace returns how often the service manager wants to hear WATCHDOG=1 (WatchdogSec= of the service, half of it
// as sd_watchdog_enabled(3) recommends). 0: it does not watch this process.
func watchdogPace(getenv func(string) string) time.Duration {
	if pid := getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0 // meant for another process
	}
	limit, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || limit <= 0 || limit > math.MaxInt64/int64(time.Microsecond) {
		return 0
	}
	return time.Duration(limit) * time.Microsecond / 2
}

// answers reports whether the API answers at all. It asks past the listener: too many connections are no reason to end
// a process. Nor is a fault that the answer reports, such as a damaged database: a new process would have it, too.
func answers(ctx context.Context, api http.Handler) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/ingot/v1/health", nil)
	if err != nil {
		return false
	}
	r.RemoteAddr = "127.0.0.1:0"
	w := &status{header: http.Header{}}
	api.ServeHTTP(w, r)
	return w.code != 0 && ctx.Err() == nil
}

// status keeps the status of an answer and drops the rest.
type status struct {
	header http.Header
	code   int
}

func (s *status) Header() http.Header { return s.header }

func (s *status) WriteHeader(code int) { s.code = cmp.Or(s.code, code) }

func (s *status) Write(b []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	return len(b), nil
}

// watchdog sends WATCHDOG=1 at the pace that the service manager asks for, as long as alive returns true in time, until
// ctx ends. A conductor that hangs sends nothing, and is started again; machines and agents do not notice.
func watchdog(ctx context.Context, getenv func(string) string, alive func(context.Context) bool, log *slog.Logger) {
	pace := watchdogPace(getenv)
	if pace == 0 {
		return
	}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		within, cancel := context.WithTimeout(ctx, pace)
		done := make(chan bool, 1)
		go func() { done <- alive(within) }()
		var err error
		select {
		case ok := <-done:
			if ok {
				err = notify(getenv, "WATCHDOG=1")
			} else if ctx.Err() == nil {
				err = errors.New("the API does not answer")
			}
		case <-within.Done():
			if ctx.Err() == nil {
				log.Error("the API hangs: without WATCHDOG=1 the service manager starts ingotd again", "after", pace)
			}
			select { // one at a time
			case <-done:
			case <-ctx.Done():
			}
		}
		cancel()
		if err != nil {
			log.Warn("service manager", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// lockDir makes sure that one process at a time uses a data directory. The lock goes with the process, however it ends.
func lockDir(dir string) (release func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf(
				"another ingotd uses the data directory %s: stop it, or give this one a data_dir of its own", dir)
		}
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	// The same once more in the kind of lock that inUse can look at. It can't be held elsewhere.
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, wholeFile()); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	return f.Close, nil
}

// wholeFile is a lock for writing on all of a file.
func wholeFile() *unix.Flock_t { return &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart} }
