// Package pg runs Debian's PostgreSQL beside a lab or a test: a cluster of its own in a folder, as a user without
// rights, on a loopback port with a password and on a socket in the folder without one.
package pg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// User and Password open every database of a cluster, as its owner.
const (
	User     = "ingot"
	Password = "pg-passw0rd"
)

// SocketPort is the number in the name of the socket of a cluster that is reached by nothing else, and OnlySocket the
// setting for it.
const (
	SocketPort = 5432
	OnlySocket = "listen_addresses="
)

// Cluster is one server.
type Cluster struct {
	Port int
	Dir  string
	// Env is more of the server's environment, NAME=VALUE, from its next start.
	Env   []string
	clock string // file of FakeClock
	bin   string
	owner *syscall.Credential // nil: the user of this program

	mu      sync.Mutex
	process *os.Process
	ended   chan struct{}
}

// programs finds the folder of the server's programs, which Debian does not put on the PATH.
func programs() (string, error) {
	all, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(all) == 0 {
		return "", errors.Join(errors.New("PostgreSQL is not installed: apt-get install postgresql (make deps)"), err)
	}
	return filepath.Dir(all[len(all)-1]), nil
}

// unprivileged is the user that the server runs as, since it refuses root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// Create makes a cluster in an empty folder, and starts it. Texts are sorted by a language's rules, as on sites whose
// administrators did not think of it. A port of zero stands for a free one.
func Create(dir string, port int, settings ...string) (c *Cluster, err error) {
	c = &Cluster{Port: port, Dir: dir}
	if c.bin, err = programs(); err != nil {
		return nil, err
	}
	if c.owner, err = unprivileged(); err != nil {
		return nil, err
	}
	secret := filepath.Join(dir, "password")
	if err := os.WriteFile(secret, []byte(Password), 0o600); err != nil {
		return nil, err
	}
	if c.owner != nil {
		for _, name := range []string{dir, secret} {
			if err := os.Chown(name, int(c.owner.Uid), int(c.owner.Gid)); err != nil {
				return nil, err
			}
		}
	}
	if out, err := c.command("initdb", "-D", c.data(), "-U", User, "-N", "--pwfile", secret, "-E", "UTF8",
		"--auth-local=trust", "--auth-host=scram-sha-256", "--locale=C.UTF-8", "--locale-provider=icu",
		"--icu-locale=en").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	if c.Port == 0 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		c.Port = l.Addr().(*net.TCPAddr).Port
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	return c, c.Start(settings...)
}

func (c *Cluster) data() string { return filepath.Join(c.Dir, "data") }

func (c *Cluster) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.bin, program), args...)
	cmd.Dir = c.Dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8", "PGPASSWORD=" + Password}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.owner}
	return cmd
}

// Start starts the server and waits until it answers. settings are more of its parameters, NAME=VALUE.
func (c *Cluster) Start(settings ...string) error {
	args := []string{"-D", c.data(), "-k", c.Dir, "-p", strconv.Itoa(c.Port)}
	for _, s := range append([]string{"listen_addresses=127.0.0.1", "max_connections=200", "shared_buffers=32MB",
		"log_min_messages=fatal"}, settings...) {
		args = append(args, "-c", s)
	}
	cmd := c.command("postgres", args...)
	cmd.Env = append(cmd.Env, c.Env...)
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT // an immediate shutdown when the test is killed
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	begun := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		runtime.LockOSThread() // the signal comes when the thread ends, not the process
		defer close(ended)
		err := cmd.Start()
		begun <- err
		if err == nil {
			_ = cmd.Wait() // Stop ends it by a signal
		}
	}()
	if err := <-begun; err != nil {
		return err
	}
	c.mu.Lock()
	c.process, c.ended = cmd.Process, ended
	c.mu.Unlock()
	late, tick := time.After(time.Minute), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return fmt.Errorf("PostgreSQL has ended: %s", said.String())
		case <-late:
			return errors.New("PostgreSQL does not answer")
		case <-tick.C:
		}
		if c.command("pg_isready", "-q", "-h", c.Dir, "-p", strconv.Itoa(c.Port)).Run() == nil {
			return nil
		}
	}
}

// MakeStandby makes a server that is stopped a standby of none, which can only be read.
func (c *Cluster) MakeStandby() error {
	return os.WriteFile(filepath.Join(c.data(), "standby.signal"), nil, 0o600)
}

// Stop ends the server, at once: connections are cut.
func (c *Cluster) Stop() error { return c.end(syscall.SIGINT) }

// Kill ends the server as a crash does.
func (c *Cluster) Kill() error { return c.end(syscall.SIGQUIT) }

func (c *Cluster) end(sig syscall.Signal) error {
	c.mu.Lock()
	process, ended := c.process, c.ended
	c.mu.Unlock()
	select {
	case <-ended:
		return nil
	default:
	}
	if err := process.Signal(sig); err != nil {
		return err
	}
	select {
	case <-ended:
		return nil
	case <-time.After(time.Minute):
		return errors.New("PostgreSQL does not end")
	}
}

// PID is that of the server, 0 when it does not run.
func (c *Cluster) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.ended:
		return 0
	default:
		return c.process.Pid
	}
}

// Wait returns when the server has ended.
func (c *Cluster) Wait() {
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	<-ended
}

// Query runs a statement in a database, as administrators do, and returns the output of psql.
func (c *Cluster) Query(ctx context.Context, database, statement string) (string, error) {
	cmd := c.command("psql", "-h", c.Dir, "-p", strconv.Itoa(c.Port), "-U", User, "-d", database, "-Atqc", statement)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("psql: %w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), ctx.Err()
}

// URL is the address of a database, without the password.
func (c *Cluster) URL(database string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", User, c.Port, database)
}

// Socket is the address of a database of the cluster in dir by its socket, which needs no password.
func Socket(dir, database string) string {
	return fmt.Sprintf("postgres:///%s?host=%s&port=%d&user=%s", database, url.QueryEscape(dir), SocketPort, User)
}
