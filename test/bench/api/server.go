package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/test/kit/port"
)

// server is a real ingotd with fake hardware and nothing switched off that a site has on: SQLite with its default
// durability, power states read every minute.
type server struct {
	cmd    *exec.Cmd
	addr   string
	log    bytes.Buffer
	answer time.Duration // from the start of the process to its first answer
}

// start runs ingotd on a data directory and waits for its first answer.
func start(bin, dir string, set ...string) (*server, error) {
	var addrs [2]string
	for i := range addrs {
		var err error
		if addrs[i], err = port.Free(); err != nil {
			return nil, err
		}
	}
	api, agents := addrs[0], addrs[1]
	s := &server{addr: api}
	s.cmd = exec.Command(bin, "--data-dir", dir, "--listen", api, "--log-level", "warn",
		"--set", "agents.listen="+agents, "--set", "agents.advertise="+agents, "--set", "hostname=bench")
	for _, kv := range set {
		s.cmd.Args = append(s.cmd.Args, "--set", kv)
	}
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	// An interrupt of the terminal is the bench's, which then stops it.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", bin, err)
	}
	for time.Since(began) < 30*time.Second {
		if c, err := dial(api); err == nil {
			_, err = c.want(200, "GET", "/", nil)
			s.answer = time.Since(began)
			if err := c.close(); err != nil {
				return nil, err
			}
			if err == nil {
				return s, nil
			}
		}
		time.Sleep(time.Millisecond)
	}
	return nil, fmt.Errorf("ingotd does not answer after 30 s:\n%s", s.stop())
}

// stop ends the process as a service manager would and returns its log.
func (s *server) stop() string {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return s.log.String()
	}
	kill := time.AfterFunc(20*time.Second, func() { s.cmd.Process.Kill() })
	defer kill.Stop()
	if err := s.cmd.Wait(); err != nil {
		fmt.Fprintf(&s.log, "%v\n", err)
	}
	return s.log.String()
}

// ticksPerSecond is USER_HZ, which Linux fixes for its interfaces to programs.
const ticksPerSecond = 100

// cpu is how much processor time the process has used; 0 of one that was not started here.
func (s *server) cpu() (time.Duration, error) {
	if s.cmd == nil {
		return 0, nil
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	var ticks int64
	for _, i := range []int{11, 12} { // utime, stime; see proc(5), counted after the name
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// memory is the resident memory of the process in bytes. The database is in the same process.
func (s *server) memory() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no VmRSS in the status of process %d", s.cmd.Process.Pid)
}
