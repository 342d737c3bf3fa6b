package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/test/kit/port"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
	"github.com/ingot-metal/ingot/tools/lab/pg"
)

// conductor is one ingotd.
type conductor struct {
	name, config, api, boot string
	cmd                     *exec.Cmd  // nil: it does not run
	ended                   chan error // of cmd, once
	log                     bytes.Buffer
}

// site is the ingotd under test with their database.
type site struct {
	ctx      context.Context
	bin, dir string
	all      []*conductor
	db       *pg.Cluster // nil: SQLite
	api      *client.Client
}

// newSite writes the files of ingotd whose agents stay connected between jobs, and starts the database.
func newSite(ctx context.Context, o *options, dir string) (s *site, err error) {
	s = &site{ctx: ctx, bin: o.bin, dir: dir}
	store := map[string]any{}
	if o.engine == postgres {
		// PostgreSQL runs as a user who may not look into dir.
		home, err := os.MkdirTemp(o.dir, "bench-fleet-pg-")
		if err != nil {
			return nil, err
		}
		if s.db, err = pg.Create(home, 0); err != nil {
			return nil, errors.Join(err, os.RemoveAll(home))
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, s.close())
			}
		}()
		if _, err := s.db.Query(ctx, "postgres", "CREATE DATABASE fleet"); err != nil {
			return nil, err
		}
		secret := filepath.Join(dir, "password")
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(secret, []byte(pg.Password), 0o600)); err != nil {
			return nil, err
		}
		store = map[string]any{"url": s.db.URL("fleet"), "password_file": secret,
			"key": base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))}
	}
	for i := range o.conductors {
		c := &conductor{name: fmt.Sprintf("c%d", i+1)}
		if err := c.write(filepath.Join(dir, c.name), store); err != nil {
			return nil, err
		}
		s.all = append(s.all, c)
	}
	s.api, err = client.New("http://conductors", &http.Client{Transport: &spread{s: s}, Timeout: time.Minute})
	return s, err
}

// write writes the configuration of a conductor.
func (c *conductor) write(dir string, store map[string]any) error {
	var addr [3]string
	for i := range addr {
		var err error
		if addr[i], err = port.Free(); err != nil {
			return err
		}
	}
	_, digits, err := net.SplitHostPort(addr[2])
	if err != nil {
		return err
	}
	boot, err := strconv.Atoi(digits)
	if err != nil {
		return err
	}
	c.api, c.boot = addr[0], "http://"+addr[2]
	c.config, err = fleet.Site{Dir: dir, API: addr[0], Agents: addr[1], Boot: boot,
		Settings: map[string]map[string]any{"deploy": {"fast_track": true}, "store": store,
			"hardware": {"enabled_types": []string{"ipmi", "fake-hardware"}},
			"peer":     {"listen": "127.0.0.1:0"}}}.Write()
	return err
}

// boots lists where machines find the conductors.
func (s *site) boots() string {
	var list []string
	for _, c := range s.all {
		list = append(list, c.boot)
	}
	return strings.Join(list, ",")
}

// start starts the conductors that do not run, and returns when they answer.
func (s *site) start() error {
	return s.each(func(c *conductor) error {
		if c.cmd != nil {
			return nil
		}
		cmd := exec.Command(s.bin, "--config", c.config, "--log-level", "warn", "--set", "hostname="+c.name)
		cmd.Stdout, cmd.Stderr = &c.log, &c.log
		cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { // memory as services have it
			return strings.HasPrefix(kv, "GOGC=") || strings.HasPrefix(kv, "GOMEMLIMIT=")
		})
		// An interrupt of the terminal is the bench's, which then stops it.
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("start %s: %w", s.bin, err)
		}
		c.cmd, c.ended = cmd, make(chan error, 1)
		go func() { c.ended <- cmd.Wait() }()
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
			select {
			case err := <-c.ended:
				c.cmd = nil
				return c.failed(err)
			default:
			}
			resp, err := http.Get("http://" + c.api + "/ingot/v1/health")
			if err != nil {
				continue
			}
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		return errors.Join(fmt.Errorf("%s does not answer after a minute", c.name), c.stop())
	})
}

// each does f with all conductors at the same time.
func (s *site) each(f func(*conductor) error) error {
	var all sync.WaitGroup
	errs := make([]error, len(s.all))
	for i, c := range s.all {
		all.Go(func() { errs[i] = f(c) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// stop ends all conductors at once.
func (s *site) stop() error { return s.each((*conductor).stop) }

// stop ends a conductor as a service manager would.
func (c *conductor) stop() error {
	if c.cmd == nil {
		return nil
	}
	cmd := c.cmd
	c.cmd = nil
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop ingotd: %w", err)
	}
	kill := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	if err := <-c.ended; err != nil {
		return c.failed(err)
	}
	return nil
}

// failed is the error of a conductor that has ended so, with the end of its log.
func (c *conductor) failed(err error) error {
	const most = 4 << 10
	text := c.log.String()
	return fmt.Errorf("%s ended (%v):\n%s", c.name, err, text[max(0, len(text)-most):])
}

// kill ends a conductor as a crash does.
func (c *conductor) kill() error {
	cmd := c.cmd
	c.cmd = nil
	if err := cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", c.name, err)
	}
	<-c.ended // it says that it was killed
	return nil
}

// close ends all of it, and removes the database.
func (s *site) close() error {
	err := s.stop()
	if s.db != nil {
		err = errors.Join(err, s.db.Stop(), os.RemoveAll(s.db.Dir))
	}
	return err
}

// spread sends each request to the next conductor, and to another one if it can't be delivered.
type spread struct {
	s    *site
	next atomic.Int64
}

// RoundTrip sends a request.
func (b *spread) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	first := int(b.next.Add(1))
	for try := range b.s.all {
		again := req.Clone(req.Context())
		again.URL.Host, again.Host = b.s.all[(first+try)%len(b.s.all)].api, ""
		if req.GetBody != nil {
			if again.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
		if resp, err = http.DefaultTransport.RoundTrip(again); err == nil || req.Context().Err() != nil {
			break
		}
	}
	return resp, err
}

// usage is the memory of a process, in MiB, and the processor seconds that it has used.
type usage struct {
	Name      string  `json:"name"`
	MemoryMiB float64 `json:"memory_mib"`
	CPU       float64 `json:"cpu"`
}

// usage returns that of each conductor, and of PostgreSQL with all its processes at the end.
func (s *site) usage() (all []usage, err error) {
	for _, c := range s.all {
		u := usage{Name: c.name}
		if u.CPU, err = processor(c.cmd.Process.Pid, false); err == nil {
			u.MemoryMiB, err = memory(c.cmd.Process.Pid, "status", "VmRSS:")
		}
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	if s.db == nil {
		return all, nil
	}
	u := usage{Name: postgres}
	pid := s.db.PID()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		return nil, err
	}
	for _, word := range append(strings.Fields(string(children)), strconv.Itoa(pid)) {
		id, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		cpu, cerr := processor(id, id == pid)
		mem, merr := memory(id, "smaps_rollup", "Pss:") // what they share counts once
		if errors.Join(cerr, merr) != nil && id != pid {
			continue // it has ended meanwhile
		} else if err := errors.Join(cerr, merr); err != nil {
			return nil, err
		}
		u.CPU, u.MemoryMiB = u.CPU+cpu, u.MemoryMiB+mem
	}
	return append(all, u), nil
}

// ticksPerSecond is USER_HZ, which Linux fixes for its interfaces to programs.
const ticksPerSecond = 100

// processor is how many seconds of processor time a process has used, on demand with that of its children that have
// ended.
func processor(pid int, ended bool) (float64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	which := []int{11, 12} // utime, stime; see proc(5), counted after the name
	if ended {
		which = append(which, 13, 14) // cutime, cstime
	}
	var ticks int64
	for _, i := range which {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return float64(ticks) / ticksPerSecond, nil
}

// memory reads a line with KiB of a process, and returns MiB.
func memory(pid int, file, line string) (float64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(l, line); ok {
			kb, err := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return kb / 1024, err
		}
	}
	return 0, fmt.Errorf("no line %s in %s of process %d", line, file, pid)
}

// number asks PostgreSQL for a number.
func (s *site) number(statement string) (int64, error) {
	out, err := s.db.Query(s.ctx, "fleet", statement)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(out, 10, 64)
}

// disk is how many bytes the data take, without what PostgreSQL or SQLite write ahead.
func (s *site) disk() (int64, error) {
	if s.db != nil {
		return s.number("SELECT pg_database_size('fleet')")
	}
	info, err := os.Stat(filepath.Join(s.dir, s.all[0].name, "data", "ingot.db"))
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
