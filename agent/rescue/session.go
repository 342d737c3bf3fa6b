package rescue

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// lastWords is how long output is still read after a command's end while a process it started keeps the output open.
const lastWords = time.Second

// Limits on the requests of a client before its shell runs.
const (
	maxEnv     = 32
	maxCommand = 64 << 10
)

// session is one channel: at most one shell or command.
type session struct {
	s    *server
	ch   ssh.Channel
	conn ssh.ConnMetadata
	env  []string

	master, slave *os.File // of the terminal; nil without one

	answered chan struct{} // closed when the reply to shell or exec was sent

	mu      sync.Mutex
	begun   bool
	process *os.Process // nil before it runs and after its end
	wg      sync.WaitGroup
}

func newSession(s *server, ch ssh.Channel, conn ssh.ConnMetadata) *session {
	return &session{s: s, ch: ch, conn: conn, answered: make(chan struct{}),
		env: []string{"PATH=/bin:/sbin:/usr/bin:/usr/sbin", "HOME=/root", "SHELL=/bin/sh", "USER=root", "LOGNAME=root"}}
}

// Payloads of RFC 4254, sections 6.2 to 6.10.
type (
	ptyRequest struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}
	windowChange  struct{ Cols, Rows, Width, Height uint32 }
	envRequest    struct{ Name, Value string }
	execRequest   struct{ Command string }
	signalRequest struct{ Signal string }
	exitStatus    struct{ Status uint32 }
	exitSignal    struct {
		Signal   string
		Core     bool
		Message  string
		Language string
	}
)

// serve answers the channel's requests until the client or the server closes it. When it returns no process of the
// session runs.
func (s *session) serve(reqs <-chan *ssh.Request) {
	for r := range reqs {
		was := s.used()
		ok := s.request(r)
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
		if !was && s.used() {
			close(s.answered)
		}
	}
	s.signal(unix.SIGHUP) // as when a terminal line hangs up
	if ended := s.wait(lastWords); !ended {
		s.signal(unix.SIGKILL)
	}
	s.wg.Wait()
	s.closeTerminal()
	_ = s.ch.Close()
}

// wait waits up to limit for the process to end.
func (s *session) wait(limit time.Duration) bool {
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(limit):
	case <-s.s.done: // the host is being closed: don't wait
	}
	return false
}

func (s *session) request(r *ssh.Request) bool {
	switch r.Type {
	case "pty-req":
		var p ptyRequest
		if ssh.Unmarshal(r.Payload, &p) != nil || s.master != nil || s.used() {
			return false
		}
		var err error
		if s.master, s.slave, err = s.s.h.machine.Terminal(uint16(p.Cols), uint16(p.Rows)); err != nil {
			s.s.h.log.Warn("rescue: no terminal", "err", err)
			return false
		}
		s.setEnv("TERM", p.Term)
		return true
	case "window-change":
		var w windowChange
		return ssh.Unmarshal(r.Payload, &w) == nil && s.master != nil &&
			s.s.h.machine.ResizeTerminal(s.master, uint16(w.Cols), uint16(w.Rows)) == nil
	case "env":
		var e envRequest
		return ssh.Unmarshal(r.Payload, &e) == nil && (e.Name == "LANG" || strings.HasPrefix(e.Name, "LC_")) &&
			s.setEnv(e.Name, e.Value)
	case "shell":
		return s.start("")
	case "exec":
		var e execRequest
		return ssh.Unmarshal(r.Payload, &e) == nil && e.Command != "" && len(e.Command) <= maxCommand &&
			s.start(e.Command)
	case "signal":
		var g signalRequest
		if ssh.Unmarshal(r.Payload, &g) != nil {
			return false
		}
		sig := unix.SignalNum("SIG" + g.Signal)
		return slices.Contains(signals, sig) && s.signal(sig)
	}
	return false // subsystems, agents, X11
}

// signals that RFC 4254 names.
var signals = []unix.Signal{unix.SIGABRT, unix.SIGALRM, unix.SIGFPE, unix.SIGHUP, unix.SIGILL, unix.SIGINT,
	unix.SIGKILL, unix.SIGPIPE, unix.SIGQUIT, unix.SIGSEGV, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2}

func (s *session) setEnv(name, value string) bool {
	if len(s.env) >= maxEnv || len(value) > 256 || strings.ContainsAny(name+value, "\x00=") {
		return false
	}
	s.env = append(s.env, name+"="+value)
	return true
}

// used reports whether the session had its shell or command.
func (s *session) used() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// signal sends a signal to the shell's process group.
func (s *session) signal(sig unix.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process != nil && s.s.h.machine.SignalGroup(s.process.Pid, sig) == nil
}

// start runs the shell or a command, once per session.
func (s *session) start(command string) bool {
	if s.used() {
		return false
	}
	var err error
	if s.master != nil {
		err = s.onTerminal(command)
	} else {
		err = s.onPipes(command)
	}
	if err != nil {
		s.s.h.log.Warn("rescue: no shell", "err", err)
		return false
	}
	if command == "" {
		s.s.h.log.Info("rescue: shell", "from", s.conn.RemoteAddr().String())
	} else { // for audits
		s.s.h.log.Info("rescue: command", "from", s.conn.RemoteAddr().String(), "command",
			command[:min(len(command), 200)])
	}
	return true
}

func (s *session) onTerminal(command string) error {
	p, err := s.s.h.machine.Shell(command, s.env, s.slave, s.slave, s.slave, true)
	if err != nil {
		return err
	}
	_ = s.slave.Close()
	s.slave = nil
	s.began(p)
	// Reading ends with EIO when the last program has closed the terminal.
	out := pour(s.ch, s.master)
	go func() {
		_, _ = io.Copy(s.master, s.ch)
		_, _ = s.master.Write([]byte{4}) // the client's end of input, as a person types it
	}()
	s.ended(p, out)
	return nil
}

func (s *session) onPipes(command string) error {
	var files []*os.File
	closeAll := func(list []*os.File) {
		for _, f := range list {
			_ = f.Close()
		}
	}
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(files)
			return fmt.Errorf("make a pipe: %w", err)
		}
		files = append(files, r, w)
	}
	in, out, errs := files[0:2], files[2:4], files[4:6] // each: reading end, writing end
	p, err := s.s.h.machine.Shell(command, s.env, in[0], out[1], errs[1], false)
	closeAll([]*os.File{in[0], out[1], errs[1]})
	if err != nil {
		closeAll([]*os.File{in[1], out[0], errs[0]})
		return err
	}
	s.began(p)
	to, errTo := pour(s.ch, out[0]), pour(s.ch.Stderr(), errs[0])
	go func() {
		_, _ = io.Copy(in[1], s.ch)
		_ = in[1].Close()
	}()
	s.ended(p, to, errTo)
	s.wg.Go(func() {
		<-to.done
		<-errTo.done
		_ = in[1].SetWriteDeadline(time.Now()) // the command has ended
		closeAll([]*os.File{out[0], errs[0]})
	})
	return nil
}

func (s *session) began(p *os.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun, s.process = true, p
}

// stream copies output to the client.
type stream struct {
	to      io.Writer
	from    *os.File
	done    chan struct{} // closed when all was copied or the client is gone
	moved   atomic.Int64  // bytes
	writing atomic.Bool   // waiting for the client
}

// pour copies a program's output to the client.
func pour(to io.Writer, from *os.File) *stream {
	st := &stream{from: from, to: to, done: make(chan struct{})}
	go func() {
		defer close(st.done)
		_, _ = io.Copy(st, from)
	}()
	return st
}

// Write writes to the client.
func (st *stream) Write(p []byte) (int, error) {
	st.writing.Store(true)
	defer st.writing.Store(false)
	n, err := st.to.Write(p)
	st.moved.Add(int64(n))
	return n, err
}

// drain waits until all output of an ended process is sent. Processes that it started may keep the output open forever:
// when nothing arrives for a while, and the client is not the slow part, drain gives up.
func (st *stream) drain(over <-chan struct{}) {
	tick := time.Tick(lastWords)
	for last := int64(-1); ; {
		select {
		case <-st.done:
			return
		case <-tick:
			now := st.moved.Load()
			if st.writing.Load() || now != last {
				last = now
				continue
			}
		case <-over:
		}
		_ = st.from.SetReadDeadline(time.Now())
		<-st.done
		return
	}
}

// ended waits in the background for the process, sends its remaining output, and reports its exit status to the client.
func (s *session) ended(p *os.Process, output ...*stream) {
	s.wg.Go(func() {
		// The process stays a zombie until Wait, so that its number can't be reused and signalled before the lock is
		// held.
		for {
			if err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
				break
			}
		}
		s.mu.Lock()
		st, err := p.Wait()
		s.process = nil
		s.mu.Unlock()
		for _, o := range output {
			o.drain(s.s.done)
		}
		<-s.answered // a command may end before the reply to its request is sent
		if err == nil {
			s.tell(st)
		}
		_ = s.ch.CloseWrite()
		_ = s.ch.Close() // this ends the requests and with them the session
	})
}

// tell sends the exit status to the client.
func (s *session) tell(st *os.ProcessState) {
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		_, _ = s.ch.SendRequest("exit-signal", false,
			ssh.Marshal(exitSignal{Signal: strings.TrimPrefix(unix.SignalName(ws.Signal()), "SIG"),
				Core: ws.CoreDump()}))
		return
	}
	_, _ = s.ch.SendRequest("exit-status", false, ssh.Marshal(exitStatus{uint32(st.ExitCode())}))
}

func (s *session) closeTerminal() {
	_ = s.master.Close() // an error without one
	_ = s.slave.Close()
}
