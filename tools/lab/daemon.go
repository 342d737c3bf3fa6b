package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

var silent = slog.New(slog.DiscardHandler)

// Daemon is a lab that runs by itself, and what to run in it.
type Daemon struct {
	Options
	Conductors []ConductorSpec `json:",omitempty"`
	// Database runs PostgreSQL with a database "ingot", whose address is DatabaseURL.
	Database bool `json:",omitempty"`
}

// ConductorSpec is a conductor to run in the lab; see Lab.StartConductor.
type ConductorSpec struct {
	Bin, Config, RESTAddr, Log string
	// Address is one of its own, which the lab's host gets; the zero value: none.
	Address netip.Addr `json:",omitzero"`
	// StartAgain is how long after its end it is started again, as a service manager does; zero: never.
	StartAgain time.Duration `json:",omitempty"`
}

// readyFD is where a daemon that Launch started reports: nothing and the end when all is well, an error's text
// otherwise.
const readyFD = 3

// Launch starts `argv... ` as a daemon that calls RunDaemon, such as {"/usr/bin/ingot", "lab", "run"}, and returns when
// the lab is up. The daemon's log is lab.log in the lab's folder.
func Launch(ctx context.Context, argv []string, d Daemon) (Status, error) {
	filled, err := d.Options.fill()
	if err != nil {
		return Status{}, err
	}
	if err := ready(filled); err != nil {
		return Status{}, err
	}
	if err := os.MkdirAll(filled.Dir, 0o755); err != nil {
		return Status{}, fmt.Errorf("make the lab's folder: %w", err)
	}
	d.Options.Name, d.Options.Dir = filled.Name, filled.Dir
	input, err := json.Marshal(d)
	if err != nil {
		return Status{}, err
	}
	logPath := filepath.Join(filled.Dir, "lab.log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return Status{}, fmt.Errorf("open the lab's log: %w", err)
	}
	defer log.Close()
	report, theirs, err := os.Pipe()
	if err != nil {
		return Status{}, err
	}
	defer report.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = bytes.NewReader(input)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Dir = "/"
	// A session of its own: neither the terminal's Ctrl-C nor its end reach it.
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return Status{}, fmt.Errorf("start the lab's daemon: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(unix.SIGTERM) })
	defer stop()
	said, err := io.ReadAll(report)
	if err != nil {
		return Status{}, fmt.Errorf("wait for the lab's daemon: %w", err)
	}
	s, qerr := Query(context.WithoutCancel(ctx), filled.Name)
	if len(said) > 0 || qerr != nil || ctx.Err() != nil {
		_ = cmd.Process.Signal(unix.SIGTERM) // most likely it has ended
		_ = cmd.Wait()
		if ctx.Err() != nil {
			return Status{}, context.Cause(ctx)
		}
		if len(said) > 0 {
			return Status{}, errors.New(strings.TrimSpace(string(said)))
		}
		return Status{}, fmt.Errorf("the lab's daemon ended; see %s: %w", logPath, qerr)
	}
	return s, cmd.Process.Release()
}

// RunDaemon is the daemon: it reads a Daemon as JSON from in, runs the lab until ctx ends or TakeDown asks for it, and
// takes it down.
func RunDaemon(ctx context.Context, in io.Reader, log *slog.Logger) (err error) {
	report := os.NewFile(readyFD, "report")
	if _, statErr := report.Stat(); statErr != nil {
		report = nil // started by hand
	}
	tell := func(err error) {
		if report == nil {
			return
		}
		if err != nil {
			fmt.Fprintln(report, err)
		}
		_ = report.Close() // who started the daemon may be gone
		report = nil
	}
	defer func() { tell(err) }()
	if report != nil {
		unix.CloseOnExec(readyFD)
	}
	var d Daemon
	if err := json.NewDecoder(in).Decode(&d); err != nil {
		return fmt.Errorf("read the lab's description: %w", err)
	}
	d.Log = log
	l, err := Up(ctx, d.Options)
	if err != nil {
		return err
	}
	purge := false
	defer func() {
		err = errors.Join(err, l.takeDown(context.WithoutCancel(ctx), purge && err == nil))
	}()
	if d.Database {
		if err := l.startDatabase(ctx); err != nil {
			return err
		}
	}
	for _, s := range d.Conductors {
		if s.Address.IsValid() {
			if err := l.addAddress(s.Address); err != nil {
				return err
			}
		}
		c, err := l.StartConductor(ctx, s.Bin, s.Config, s.RESTAddr, s.Log)
		if err != nil {
			return err
		}
		if s.StartAgain > 0 {
			go c.supervise(ctx, s.StartAgain)
		}
	}
	tell(nil)
	select {
	case <-ctx.Done():
	case <-l.downAsked:
		purge = l.purge
	}
	return nil
}
