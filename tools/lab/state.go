package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stateDir has a folder for each lab that is up: a lock file, held as long as the program that runs the lab lives, and
// a state file. The kernel drops the lock with the program, so a lock that can be had means leftovers, with no guessing
// by process id.
const stateDir = "/run/ingot-lab"

const (
	lockFile    = "lock"
	stateFile   = "state.json"
	controlFile = "control.sock"
)

// claim is a lab's name, taken.
type claim struct {
	dir  string
	lock *os.File
}

// UpError is the error of Up when a lab of that name runs already.
type UpError struct {
	Name string
	PID  int // of the program that runs it, 0 if unknown
}

func (e *UpError) Error() string {
	return fmt.Sprintf("lab %s is up already, run by process %d; take it down first: ingot lab down --name %s", e.Name,
		e.PID, e.Name)
}

func claimName(ctx context.Context, name string) (*claim, error) {
	dir := filepath.Join(stateDir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the lab's state folder: %w", err)
	}
	c := &claim{dir: dir}
	// Another program's Up holds the lock for a moment when it looks whether we are leftovers.
	for tries := 20; ; tries-- {
		got, err := c.take()
		if err != nil {
			return nil, err
		}
		if got {
			return c, nil
		}
		if tries == 0 {
			s, _ := readState(name)
			return nil, &UpError{name, s.PID}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// take tries to lock; false means that somebody else has it.
func (c *claim) take() (bool, error) {
	path := filepath.Join(c.dir, lockFile)
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, os.ErrNotExist) { // the folder went with the lab that had the name before us
			if err := os.MkdirAll(c.dir, 0o700); err != nil {
				return false, err
			}
			continue
		}
		if err != nil {
			return false, fmt.Errorf("lock the lab's name: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return false, nil
			}
			return false, fmt.Errorf("lock %s: %w", path, err)
		}
		// Who had it before us may have removed the file between our open and our lock.
		var ours, theirs unix.Stat_t
		if unix.Fstat(int(f.Fd()), &ours) == nil && unix.Stat(path, &theirs) == nil && ours.Ino == theirs.Ino {
			c.lock = f
			return true, nil
		}
		_ = f.Close() // nothing was written
		if err := os.MkdirAll(c.dir, 0o700); err != nil {
			return false, err
		}
	}
}

// release gives the name back.
func (c *claim) release() error {
	var errs []error
	entries, err := os.ReadDir(c.dir)
	errs = append(errs, err)
	for _, e := range entries {
		if e.Name() != lockFile {
			errs = append(errs, os.Remove(filepath.Join(c.dir, e.Name())))
		}
	}
	errs = append(errs, os.Remove(filepath.Join(c.dir, lockFile))) // last: until then the name is ours
	_ = os.Remove(c.dir)                                           // fails when a log is in it, which is meant
	return errors.Join(append(errs, c.lock.Close())...)
}

// state is the public state of a lab: its owner and its processes.
type state struct {
	Name      string  `json:"name"`
	Namespace string  `json:"namespace"`
	Dir       string  `json:"dir"`
	PID       int     `json:"pid"`
	Processes []ident `json:"processes"`
}

// ident is a process that can't be mistaken for a later one with the same id.
type ident struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
	What  string `json:"what"`
}

// identify names a living process; false when it is gone.
func identify(pid int, what string) (ident, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ident{}, false
	}
	// The second field is the program's name in parentheses and may hold anything; the start time is the 20th behind
	// it.
	_, rest, ok := strings.Cut(string(data[max(0, strings.LastIndexByte(string(data), ')')):]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 || fields[0] == "Z" {
		return ident{}, false
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return ident{pid, start, what}, err == nil
}

// end kills the process if it is still the one.
func (p ident) end() bool {
	// A pidfd pins the process: between looking at it and the signal it can't become another one.
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if now, ok := identify(p.PID, p.What); !ok || now.Start != p.Start ||
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) != nil {
		return false
	}
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 5000)
	return true
}

// save writes the state file. It is for finding leftovers; a lab runs without it as well.
func (l *Lab) save() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return
	}
	s := state{Name: l.Name, Namespace: l.Namespace, Dir: l.Dir, PID: os.Getpid()}
	add := func(pid int, what string) {
		if p, ok := identify(pid, what); pid != 0 && ok {
			s.Processes = append(s.Processes, p)
		}
	}
	for _, m := range l.machines {
		add(m.PID(), "machine "+m.Spec.Name)
	}
	for c := range l.conductors {
		add(c.PID(), "conductor")
	}
	for _, f := range l.foreign.list() {
		add(f.pid(), f.what+" "+f.name)
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		path := filepath.Join(l.claim.dir, stateFile)
		if err = os.WriteFile(path+".new", append(data, '\n'), 0o600); err == nil {
			err = os.Rename(path+".new", path)
		}
	}
	if err != nil {
		l.opts.Log.Warn("write the lab's state", "err", err)
	}
}

func readState(name string) (state, error) {
	var s state
	data, err := os.ReadFile(filepath.Join(stateDir, name, stateFile))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(data, &s)
}

// sweep removes what labs left behind whose programs have died: their processes, if any live on, and their namespaces.
func sweep(log *slog.Logger) {
	entries, err := os.ReadDir(stateDir)
	if err != nil {
		return // no lab was ever up
	}
	for _, e := range entries {
		if err := sweepOne(e.Name(), log); err != nil {
			log.Warn("remove the leftovers of a lab", "lab", e.Name(), "err", err)
		}
	}
}

func sweepOne(name string, log *slog.Logger) error {
	dir := filepath.Join(stateDir, name)
	if _, err := os.Stat(filepath.Join(dir, lockFile)); err != nil {
		return nil // taken down in order
	}
	c := &claim{dir: dir}
	if got, err := c.take(); err != nil || !got {
		return err
	}
	log.Info("removing the leftovers of a lab whose program is gone", "lab", name)
	if s, err := readState(name); err == nil {
		for _, p := range s.Processes {
			if p.end() {
				log.Info("ended a process that was left over", "pid", p.PID, "what", p.What)
			}
		}
	}
	return errors.Join(deleteSpaces("ingot-"+name), c.release())
}
