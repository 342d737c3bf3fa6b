package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/test/kit/port"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
	"github.com/ingot-metal/ingot/tools/lab/pg"
)

// conductors is how many ingotd share the database.
const conductors = 3

// site is all that the faults meet: PostgreSQL, the conductors with their links, and the machines.
type site struct {
	dir     string
	disk    string // folder of the database, a disk of its own
	mounted bool
	db      *pg.Cluster
	all     []*conductor
}

// quick has PostgreSQL not flush to the disk: no fault here takes the power of its host.
var quick = []string{"fsync=off", "full_page_writes=off", "max_wal_size=64MB", "min_wal_size=32MB"}

// newSite starts all but the machines. bin is the ingotd to run.
func newSite(ctx context.Context, dir, bin string) (s *site, err error) {
	s = &site{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := s.database(); err != nil {
		return s, err
	}
	if _, err := s.db.Query(ctx, "postgres", "CREATE DATABASE ingot"); err != nil {
		return s, err
	}
	secret := filepath.Join(dir, "password")
	if err := os.WriteFile(secret, []byte(pg.Password+"\n"), 0o600); err != nil {
		return s, err
	}
	for i := range conductors {
		c, err := s.conductor(i, bin, secret)
		if err != nil {
			return s, err
		}
		s.all = append(s.all, c)
		if err := c.start(); err != nil {
			return s, err
		}
	}
	for _, c := range s.all {
		if err := c.answers(ctx, time.Minute); err != nil {
			return s, err
		}
	}
	return s, nil
}

// diskSize is that of the database's disk, which a fault fills.
const diskSize = 256 << 20

// database starts PostgreSQL on a disk of its own in memory, with a clock that faults set.
func (s *site) database() error {
	s.disk = filepath.Join(s.dir, "postgresql")
	if err := os.Mkdir(s.disk, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", s.disk, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", diskSize)); err != nil {
		return fmt.Errorf("make a disk for the database: %w", err)
	}
	s.mounted = true
	db, err := pg.Create(s.disk, 0, quick...)
	if err != nil {
		return err
	}
	s.db = db
	return errors.Join(db.FakeClock(filepath.Join(s.dir, "clock")), db.Stop(), db.Start(quick...))
}

// fill leaves no byte free on the database's disk.
func (s *site) fill() error {
	f, err := os.Create(filepath.Join(s.disk, "full"))
	if err != nil {
		return err
	}
	defer f.Close()
	for size := 1 << 20; size >= 4096; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	return nil
}

// clear makes room again, and starts the server if it has ended for lack of it.
func (s *site) clear() error {
	if err := os.Remove(filepath.Join(s.disk, "full")); err != nil {
		return err
	}
	if s.db.PID() == 0 {
		return s.db.Start(quick...)
	}
	return nil
}

// conductor prepares one ingotd with a link to the database, and one from the agents to it.
func (s *site) conductor(i int, bin, secret string) (*conductor, error) {
	var addr [4]string
	for k := range addr {
		var err error
		if addr[k], err = port.Free(); err != nil {
			return nil, err
		}
	}
	_, digits, err := net.SplitHostPort(addr[2])
	if err != nil {
		return nil, err
	}
	boot, err := strconv.Atoi(digits)
	if err != nil {
		return nil, err
	}
	c := &conductor{name: fmt.Sprint("c", i+1), bin: bin, dir: filepath.Join(s.dir, fmt.Sprint("c", i+1)),
		api: "http://" + addr[0], boot: "http://" + addr[2]}
	if c.database, err = newLink(fmt.Sprintf("127.0.0.1:%d", s.db.Port)); err != nil {
		return nil, err
	}
	if c.agents, err = newLink(addr[1]); err != nil {
		return nil, errors.Join(err, c.database.Close())
	}
	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	site := fleet.Site{Dir: c.dir, API: addr[0], Agents: addr[1], Boot: boot, Settings: map[string]map[string]any{
		"store": {"url": fmt.Sprintf("postgres://%s@%s/ingot?sslmode=disable", pg.User, c.database.Addr()),
			"password_file": secret, "key": key},
		"agents": {"advertise": c.agents.Addr()},
		"peer":   {"listen": addr[3]},
		"power":  {"timeout": "5s", "sync_interval": "15s", "call_timeout": "10s"},
		"deploy": {"boot_timeout": "1m", "session_grace": "45s", "silence": "1m"},
	}}
	if c.config, err = site.Write(); err != nil {
		return nil, errors.Join(err, c.database.Close(), c.agents.Close())
	}
	return c, nil
}

// boots are the addresses from which machines boot: any conductor answers any machine.
func (s *site) boots() string {
	var all []string
	for _, c := range s.all {
		all = append(all, c.boot)
	}
	return strings.Join(all, ",")
}

// Close ends all processes.
func (s *site) Close() error {
	var errs []error
	for _, c := range s.all {
		c.signal(syscall.SIGCONT)
		errs = append(errs, c.end(), c.database.Close(), c.agents.Close())
	}
	if s.db != nil {
		errs = append(errs, s.db.Stop())
	}
	if s.mounted {
		errs = append(errs, unix.Unmount(s.disk, 0))
	}
	return errors.Join(errs...)
}

// conductor is one ingotd, which is started again after its end.
type conductor struct {
	name, bin, dir, config string
	api, boot              string // http://HOST:PORT
	database, agents       *link

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{}
}

func (c *conductor) logFile() string { return filepath.Join(c.dir, "log") }

// start runs the program.
func (c *conductor) start() error {
	log, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(c.bin, "--config", c.config, "--set", "hostname="+c.name)
	cmd.Stdout, cmd.Stderr = log, log
	// An interrupt of the terminal is this program's, which then ends it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(ended)
	}()
	c.mu.Lock()
	c.cmd, c.ended = cmd, ended
	c.mu.Unlock()
	return nil
}

// signal sends a signal to the process, if it runs.
func (c *conductor) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd != nil {
		_ = c.cmd.Process.Signal(sig) // an error says that it has ended
	}
}

// pid is that of the newest process.
func (c *conductor) pid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cmd.Process.Pid
}

// wait returns whether the process has ended within a time.
func (c *conductor) wait(d time.Duration) bool {
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	if ended == nil {
		return true
	}
	select {
	case <-ended:
		return true
	case <-time.After(d):
		return false
	}
}

// alive makes sure that the process runs.
func (c *conductor) alive() error {
	if !c.wait(0) {
		return nil
	}
	return c.start()
}

// end stops the process as a service manager does.
func (c *conductor) end() error {
	c.signal(syscall.SIGTERM)
	if c.wait(time.Minute) {
		return nil
	}
	c.signal(syscall.SIGKILL)
	c.wait(time.Minute)
	return fmt.Errorf("%s did not end within a minute of SIGTERM", c.name)
}

// answers waits until the API answers.
func (c *conductor) answers(ctx context.Context, patience time.Duration) error {
	end := time.Now().Add(patience)
	for {
		if resp, err := get(ctx, c.api+"/"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("%s does not answer; the end of its log:\n%s", c.name, tail(c.logFile()))
		}
		if err := c.alive(); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func get(ctx context.Context, url string) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	}
	return resp, err
}

// tail returns the last lines of a file.
func tail(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
