package app

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"

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
	_, err = c.Write([]byte(state))
	return errors.Join(err, c.Close())
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
