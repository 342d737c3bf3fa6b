// Package shortage reports to the operator what the conductor runs short of: file descriptors, room on the disk, a
// clock that goes forward. Code that meets a shortage notes it, as often as it likes; the log gets one line a minute
// for each kind, which says what is short, what is refused and what to do.
package shortage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is a kind of resource that can run short.
type Kind int

// The kinds.
const (
	Files Kind = iota // file descriptors
	Disk              // room for a write
	Room              // room for writes to come
	Clock
)

var texts = map[Kind]struct{ short, refused, remedy string }{
	Files: {"file descriptors", "new connections wait, and give up",
		"raise the limit on open files (LimitNOFILE= of the service, or ulimit -Hn) and start again; who holds connections open is in `ss -tnp`"},
	Disk: {"room on the disk of the data directory", "changes are refused with 503, and agents keep their results",
		"make room on it; nothing has to be started again"},
	Room: {"room on the disk of the data directory", "nothing yet; when it is full, changes are refused with 503",
		"make room on it"},
	Clock: {"time: the clock is behind what has been recorded already",
		"nothing; new lines of histories and logs stand before older ones, and leases of addresses last longer",
		"set the clock (NTP). If it is right now, it was ahead before, and these lines end when it has caught up"},
}

// Watch notes shortages. Safe for concurrent use.
type Watch struct {
	// Dir is where room is needed.
	Dir string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	Log *slog.Logger

	mu     sync.Mutex
	kinds  [len(kindNames)]noted
	newest time.Time
}

var kindNames = [...]string{Files: "files", Disk: "disk", Room: "room", Clock: "clock"}

type noted struct {
	at    time.Time // of the last line; monotonic
	times int       // since then
}

// each is the time between two lines of a kind.
const each = time.Minute

// Note records that something was refused, or may be soon, for lack of a kind. args are further keys and values for the
// log.
func (w *Watch) Note(k Kind, args ...any) {
	w.mu.Lock()
	n := &w.kinds[k]
	n.times++
	now := time.Now() // not the operator's clock, which may stand still or go back
	if !n.at.IsZero() && now.Sub(n.at) < each {
		w.mu.Unlock()
		return
	}
	times := n.times
	n.at, n.times = now, 0
	w.mu.Unlock()
	t := texts[k]
	w.Log.Error("the conductor is short of "+t.short,
		append([]any{"refused", t.refused, "remedy", t.remedy, "times", times}, args...)...)
}

// leastRoom is how much room is little: the journal alone takes 16 MiB.
const leastRoom = 128 << 20

// Run checks every minute, until ctx ends, for the shortages that no code notes. newest is the latest time on record.
func (w *Watch) Run(ctx context.Context, newest time.Time) {
	w.newest = newest
	tick := time.NewTicker(each)
	defer tick.Stop()
	for {
		w.look()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// slack is how far a clock may go back without a word, as it does when it is set by a little.
const slack = time.Minute

func (w *Watch) look() {
	now := time.Now
	if w.Now != nil {
		now = w.Now
	}
	at := now().Round(0)
	if back := w.newest.Sub(at); back > slack {
		w.Note(Clock, "now", at.UTC().Format(time.RFC3339), "recorded", w.newest.UTC().Format(time.RFC3339), "back",
			back.Round(time.Second))
	} else if at.After(w.newest) {
		w.newest = at
	}
	if free, err := Free(w.Dir); err == nil && free < leastRoom {
		w.Note(Room, "dir", w.Dir, "free", free)
	}
}

// Free is how many bytes can still be written to a folder's file system.
func Free(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("look for room in %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil // a block size is positive
}

// OutOfFiles reports whether an error says that no file descriptors are left, in this process or in the whole system.
func OutOfFiles(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }

// Listener notes when connections can't be accepted for lack of file descriptors. The caller of Accept has to try
// again, as servers do.
func (w *Watch) Listener(l net.Listener) net.Listener { return listener{l, w} }

type listener struct {
	net.Listener
	w *Watch
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if OutOfFiles(err) {
		l.w.Note(Files, "listener", l.Addr().String())
	}
	return c, err
}

// MostFiles is how many file descriptors a conductor wants: connections of agents and callers, and boots, of many
// thousand nodes.
const MostFiles = 65536

// RaiseFiles raises the limit on open files as far as permitted, up to MostFiles at least, and returns the new limit.
func RaiseFiles() (uint64, error) {
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return 0, fmt.Errorf("read the limit on open files: %w", err)
	}
	if now.Max < MostFiles {
		more := unix.Rlimit{Cur: MostFiles, Max: MostFiles}
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &more) == nil { // only root may
			return MostFiles, nil
		}
	}
	if now.Cur < now.Max {
		now.Cur = now.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
			return 0, fmt.Errorf("raise the limit on open files to %d: %w", now.Max, err)
		}
	}
	return now.Cur, nil
}
