// Package writer is the host's side of deploy interface iscsi: it writes images onto disks that machines lend.
//
// It asks the conductor which machines lend their disks to this host, logs in to each with open-iscsi, has a process
// `ingot-agent write` write the image as the machine's own agent would, and logs out, at which the agent goes on. It
// keeps nothing: whatever dies in between, the next run finds the sessions that are left in the kernel, goes on with
// those of disks that are still lent, and ends the others. A disk that was not written to its end has no partition
// table, so that the agent does not take it for written.
//
// The password of a disk is on no command line: it goes into open-iscsi's record, a file for root alone, which is
// deleted with the session. Nor is the image's address, which may have a password too: ingot-agent reads it from its
// standard input.
package writer

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// conductor is the API of the conductor, as far as a writer uses it.
type conductor interface {
	Exports(ctx context.Context, initiator string) ([]rest.Export, error)
	ExportFailed(ctx context.Context, node, export, why string) error
}

// Options of Run.
type Options struct {
	Conductor conductor
	Agent     string // the program ingot-agent
	AtOnce    int    // disks written at the same time; 4
	Log       *slog.Logger
	Root      string        // folder that contains etc and sys; tests have one of their own
	Every     time.Duration // between two looks at the conductor; 2 s
	Patience  time.Duration // for how long a disk may refuse this host before its deployment is ended; 2 min
}

// Limits of single acts.
const (
	actTime  = time.Minute      // of one call of iscsiadm, which waits for the machine
	diskTime = 30 * time.Second // from the log-in until the kernel has the disk
	endTime  = 2 * time.Minute  // of the end of a session and the report, also when the writer is stopped
	maxWords = 1000             // bytes of an error that go to the conductor
)

// writer is the state of a run.
type writer struct {
	Options
	initiator string
	over      map[string]bool               // exports that need nothing more, by ID
	tried     map[string]time.Time          // when the first try to log in to an export began
	work      map[string]context.CancelFunc // exports that are being written
	portals   map[string]string             // of those, by ID
	ended     chan outcome
	offline   bool // the conductor did not answer when it was asked last
}

// outcome is how work on an export ended.
type outcome struct {
	id string
	// done: it was written, or its deployment has been ended; else it is tried again while it is lent
	done bool
}

// errRefused says that this host could not log in to a disk.
var errRefused = errors.New("this host can't log in to the disk")

// Run writes disks until its context ends. Then it leaves no session behind.
func Run(ctx context.Context, o Options) error {
	o.AtOnce, o.Every = cmp.Or(o.AtOnce, 4), cmp.Or(o.Every, 2*time.Second)
	o.Patience = cmp.Or(o.Patience, 2*time.Minute)
	o.Root, o.Log = cmp.Or(o.Root, "/"), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	w := &writer{Options: o, over: map[string]bool{}, tried: map[string]time.Time{},
		work: map[string]context.CancelFunc{}, portals: map[string]string{}, ended: make(chan outcome)}
	if o.AtOnce < 0 {
		return fmt.Errorf("write %d disks at the same time: give a number above 0", o.AtOnce)
	}
	own, err := w.own()
	if err != nil {
		return err
	}
	defer own.Close()
	if o.Agent, err = exec.LookPath(o.Agent); err != nil {
		return fmt.Errorf("find ingot-agent: %w", err)
	}
	w.Agent = o.Agent
	o.Log.Info("this host writes the disks that are lent to it", "initiator", w.initiator)
	tick := time.NewTicker(o.Every)
	defer tick.Stop()
	var all sync.WaitGroup
	for {
		w.round(ctx, &all)
		select {
		case <-tick.C:
		case end := <-w.ended:
			w.note(end)
		case <-ctx.Done():
			go func() { all.Wait(); close(w.ended) }() // each sees that the context has ended
			for range w.ended {
			}
			return nil
		}
	}
}

// initiatorRow is where open-iscsi has the name of this host.
var initiatorRow = regexp.MustCompile(`(?m)^InitiatorName=(\S+)`)

// own reads the name of this host's initiator. While the file is open no other run of this program has it: that one
// would end the sessions of this one, or write the same disk.
func (w *writer) own() (*os.File, error) {
	f, err := os.Open(filepath.Join(w.Root, "etc/iscsi/initiatorname.iscsi"))
	if err != nil {
		return nil, fmt.Errorf("read the name of this host's initiator: %w: install open-iscsi, and run this as root", err)
	}
	b, err := io.ReadAll(io.LimitReader(f, 1<<16))
	m := initiatorRow.FindSubmatch(b)
	switch {
	case err != nil:
	case m == nil:
		err = errors.New("it has no line InitiatorName=: start open-iscsi once, which makes it")
	default:
		w.initiator = string(m[1])
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			return f, nil
		}
		err = fmt.Errorf("lock it: %w: does another ingot writer run on this host?", err)
	}
	return nil, fmt.Errorf("%s: %w", f.Name(), errors.Join(err, f.Close()))
}

func (w *writer) note(end outcome) {
	w.work[end.id]() // frees the context
	delete(w.work, end.id)
	delete(w.portals, end.id)
	if end.done {
		w.over[end.id] = true
	}
}

// round asks the conductor what is lent to this host, begins with what is new, and ends what is lent no longer. While
// the conductor can't be asked, work goes on.
func (w *writer) round(ctx context.Context, all *sync.WaitGroup) {
	list, err := w.Conductor.Exports(ctx, w.initiator)
	if err != nil {
		if !w.offline && ctx.Err() == nil {
			w.Log.Warn("the conductor can't be asked; what is being written goes on", "err", err)
		}
		w.offline = true
		return
	}
	w.offline = false
	lent := map[string]rest.Export{}
	for _, x := range list {
		lent[x.ID] = x
	}
	for id, end := range w.work {
		if _, is := lent[id]; !is {
			end() // the deployment has ended, or its machine was started anew
		}
	}
	for id := range w.over {
		if _, is := lent[id]; !is {
			delete(w.over, id)
		}
	}
	for id := range w.tried {
		if _, is := lent[id]; !is {
			delete(w.tried, id)
		}
	}
	w.clear(ctx, lent)
	for id, x := range lent {
		if w.over[id] || w.work[id] != nil || len(w.work) >= w.AtOnce || w.busy(x.Portal) {
			continue
		}
		if w.tried[id].IsZero() {
			w.tried[id] = time.Now()
		}
		late := time.Since(w.tried[id]) > w.Patience
		ctx, end := context.WithCancel(ctx)
		w.work[id], w.portals[id] = end, x.Portal
		all.Go(func() { w.ended <- outcome{id, w.handle(ctx, x, late)} })
	}
}

// busy reports whether work on an earlier export of the same machine has not ended.
func (w *writer) busy(portal string) bool {
	for _, p := range w.portals {
		if p == portal {
			return true
		}
	}
	return false
}

// clear ends what an earlier run of this program has left of disks that are lent no longer: sessions, and records which
// have passwords.
func (w *writer) clear(ctx context.Context, lent map[string]rest.Export) {
	sessions, err := w.sessions()
	if err != nil {
		w.Log.Warn("list the iSCSI sessions of this host", "err", err)
		return
	}
	left := w.records()
	for _, s := range sessions {
		left[s.portal] = ""
	}
	for portal := range left {
		wanted := w.busy(portal)
		for _, x := range lent {
			wanted = wanted || x.Portal == portal && !w.over[x.ID]
		}
		if !wanted {
			w.Log.Info("a disk is lent no longer: its session is ended", "portal", portal)
			_ = w.leave(ctx, portal) // it is logged, and the next look tries again
		}
	}
}

// errLost says that a session broke, for which the machine is the likely cause: it was started anew, or is gone.
var errLost = errors.New("the session with the machine is lost")

// handle writes one disk, and ends the session. It reports whether nothing more is to be done. late: this host has been
// refused for long.
func (w *writer) handle(ctx context.Context, x rest.Export, late bool) (done bool) {
	log := w.Log.With("node", x.NodeUUID, "portal", x.Portal)
	began := time.Now()
	err := w.write(ctx, x)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	switch {
	case ctx.Err() != nil:
		log.Info("the disk is lent no longer, or this program is stopped")
	case errors.Is(err, errLost), errors.Is(err, errRefused) && !late:
		log.Info("the disk is tried again while it is lent", "err", err)
	case err != nil: // reported first: after the session the agent would find a disk without a partition table
		log.Warn("the disk could not be written", "err", err)
		done = w.report(end, x, err)
	default:
		log.Info("the disk is written", "took", time.Since(began).Round(time.Millisecond))
		done = true
	}
	return w.leave(end, x.Portal) == nil && done
}

// report has the conductor end the deployment. One that can't be reached is told after the next try.
func (w *writer) report(ctx context.Context, x rest.Export, err error) bool {
	why := err.Error()
	if len(why) > maxWords {
		why = strings.ToValidUTF8("..."+why[len(why)-maxWords:], "?")
	}
	if err := w.Conductor.ExportFailed(ctx, x.NodeUUID, x.ID, why); err != nil {
		w.Log.Warn("report to the conductor", "node", x.NodeUUID, "err", err)
		return false
	}
	return true
}

// write logs in and writes. The session is the caller's to end.
func (w *writer) write(ctx context.Context, x rest.Export) error {
	arguments, err := json.Marshal(x.Image)
	if err != nil {
		return err
	}
	s, err := w.session(x.Portal)
	if err != nil {
		return err
	}
	if s == nil || s.state != loggedIn { // else it is of a run of this program that died, and of the same disk
		if s != nil {
			if err := w.leave(ctx, x.Portal); err != nil {
				return fmt.Errorf("%w: %w", errLost, err)
			}
		}
		if err := w.enter(ctx, x); err != nil {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
	}
	disk, err := w.disk(ctx, x.Portal)
	if err != nil {
		return err
	}
	w.Log.Info("the disk is being written", "node", x.NodeUUID, "portal", x.Portal, "disk", disk)
	if err = w.run(ctx, disk, arguments); err == nil {
		return nil
	}
	if s, serr := w.session(x.Portal); serr != nil || s == nil || s.state != loggedIn {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return err
}

// run has ingot-agent write the disk. The process ends with this one.
func (w *writer) run(ctx context.Context, disk string, arguments []byte) error {
	runtime.LockOSThread() // with whose end the process would get its signal
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, w.Agent, "write", "--arguments", "-", "--disk", disk, "--yes", "--quiet", "--json")
	var says bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(arguments), &says
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		text := strings.TrimPrefix(strings.TrimSpace(says.String()), "ingot-agent: ")
		return errors.New(cmp.Or(strings.Join(strings.Split(text, "\n  "), "; "), err.Error())) // in one line
	}
	return nil
}

// enter makes open-iscsi's record of the disk, and logs in.
func (w *writer) enter(ctx context.Context, x rest.Export) error {
	if err := w.admin(ctx, x.Portal+",1", "--op", "new"); err != nil {
		return err
	}
	if err := configure(w.records()[x.Portal], [][2]string{
		{"node.startup", "manual"},
		{"node.session.auth.authmethod", "CHAP"},
		{"node.session.auth.username", x.User},
		{"node.session.auth.password", x.Password},
		// A machine that is gone is noticed, and its session not kept for its next boot.
		{"node.session.timeo.replacement_timeout", "15"},
		{"node.session.initial_login_retry_max", "1"}, // this program tries again
	}); err != nil {
		return fmt.Errorf("write the record of the disk: %w", err)
	}
	return w.admin(ctx, x.Portal, "--login")
}

// leave logs out and deletes the record. That there is neither is no error.
func (w *writer) leave(ctx context.Context, portal string) error {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	s, err := w.session(portal)
	if err == nil && s != nil {
		err = w.admin(ctx, portal, "--logout")
	}
	if err == nil && w.records()[portal] != "" {
		err = w.admin(ctx, portal, "--op", "delete")
	}
	if err != nil {
		w.Log.Warn("end the session", "portal", portal, "err", err)
	}
	return err
}

// admin calls iscsiadm for one disk.
func (w *writer) admin(ctx context.Context, portal string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, actTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, "iscsiadm", append([]string{"--mode", "node", "--targetname",
		steparg.ExportTarget, "--portal", portal}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("iscsiadm %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// records finds open-iscsi's records of lent disks, by portal.
func (w *writer) records() map[string]string {
	all := map[string]string{}
	for _, dir := range []string{"etc/iscsi", "var/lib/iscsi"} { // Debian's, and newer ones
		files, _ := filepath.Glob(filepath.Join(w.Root, dir, "nodes", steparg.ExportTarget, "*,*,1", "default"))
		for _, file := range files { // ADDRESS,PORT,1
			at := strings.Split(filepath.Base(filepath.Dir(file)), ",")
			all[net.JoinHostPort(at[0], at[1])] = file
		}
	}
	return all
}

// configure sets values in a record, which from then on root alone may read.
func configure(record string, values [][2]string) error {
	old, err := os.ReadFile(record)
	if err != nil {
		return err
	}
	if err := os.Chmod(record, 0o600); err != nil {
		return err
	}
	var text strings.Builder
	for line := range strings.Lines(string(old)) {
		name, _, _ := strings.Cut(line, " = ")
		set := strings.HasPrefix(line, "# END")
		for _, v := range values {
			set = set || v[0] == name
		}
		if !set {
			text.WriteString(line)
		}
	}
	for _, v := range values {
		if strings.ContainsAny(v[1], "\r\n") {
			return fmt.Errorf("%s has more than one line", v[0])
		}
		text.WriteString(v[0] + " = " + v[1] + "\n")
	}
	text.WriteString("# END RECORD\n")
	return os.WriteFile(record, []byte(text.String()), 0o600)
}
