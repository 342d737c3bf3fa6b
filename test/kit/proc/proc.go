// Package proc runs the programs that a test tool starts, and ends them.
//
// Each leads a process group of its own: an interrupt at the terminal reaches only the tool, which then ends them. If
// the tool is killed, so are they. Their data is discarded, so they are ended with SIGKILL, which is immediate and
// can't be refused.
package proc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Program is a program to run.
type Program struct {
	Name string // as errors name it
	Args []string
	Env  []string // all of its environment
	Log  string   // the file to which its output is added
}

// Process is a program that runs, or has ended.
type Process struct {
	Program
	cmd  *exec.Cmd
	gone chan struct{}
	err  error // of Wait; to be read when gone is closed
	stop sync.Once
}

// Start starts a program.
func Start(p Program) (*Process, error) {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer log.Close()
	out := &Process{Program: p, cmd: exec.Command(p.Args[0], p.Args[1:]...), gone: make(chan struct{})}
	out.cmd.Env, out.cmd.Stdout, out.cmd.Stderr = p.Env, log, log
	out.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := out.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	go func() {
		out.err = out.cmd.Wait()
		close(out.gone)
	}()
	return out, nil
}

// Run runs a program to its end.
func Run(ctx context.Context, p Program) error {
	run, err := Start(p)
	if err != nil {
		return err
	}
	defer run.Stop()
	select {
	case <-run.gone:
	case <-ctx.Done():
		return fmt.Errorf("run %s: %w%s", p.Name, context.Cause(ctx), run.said())
	}
	if run.err != nil {
		return fmt.Errorf("run %s: %w%s", p.Name, run.err, run.said())
	}
	return nil
}

// Ready waits until ok says nil: an error when the program ends before, or ctx does.
func (p *Process) Ready(ctx context.Context, ok func(context.Context) error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		not := ok(ctx)
		if not == nil {
			return nil
		}
		select {
		case <-p.gone:
			how := p.err
			if how == nil {
				how = errors.New("exit status 0")
			}
			return fmt.Errorf("%s ended when it should serve: %w%s", p.Name, how, p.said())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w (%v)%s", p.Name, context.Cause(ctx), not, p.said())
		case <-tick.C:
		}
	}
}

// Answers is ok when a GET of the address is answered with 200.
func Answers(url string) func(context.Context) error { return answers(url, http.StatusOK) }

// Speaks is ok when a GET of the address is answered at all: most servers want a token.
func Speaks(url string) func(context.Context) error { return answers(url, 0) }

// answers is ok with a status, or with any if that is zero.
func answers(url string, status int) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		if status != 0 && resp.StatusCode != status {
			err = fmt.Errorf("status %d", resp.StatusCode)
		}
		return errors.Join(err, resp.Body.Close())
	}
}

// Connects is ok when somebody accepts connections there.
func Connects(network, addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// said is the end of the program's log.
func (p *Process) said() string {
	const most = 12
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return fmt.Sprintf("; its log can't be read: %v", err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(b) == 0 {
		return "; it printed nothing"
	}
	return "; the last lines of its log:\n  " + strings.Join(lines[max(0, len(lines)-most):], "\n  ")
}

// Ended waits for the end of a program that was asked to end: an error unless its exit status is 0.
func (p *Process) Ended(ctx context.Context) error {
	select {
	case <-p.gone:
	case <-ctx.Done():
		return fmt.Errorf("%s does not end: %w%s", p.Name, context.Cause(ctx), p.said())
	}
	if p.err != nil {
		return fmt.Errorf("%s ended: %w%s", p.Name, p.err, p.said())
	}
	return nil
}

// PID is the program's process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop ends the program and all that it started, and waits for it. It may be called twice.
func (p *Process) Stop() {
	p.stop.Do(func() {
		// The group has the number of its first process and lives until its last has ended, so the number has no other
		// owner as long as one of them does; an error says that none does.
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.gone
	})
}
