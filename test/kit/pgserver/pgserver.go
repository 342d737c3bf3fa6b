// Package pgserver runs Debian's PostgreSQL for tests: a cluster of its own in a temporary folder, as a user without
// rights, on a loopback port with a password. It does not flush to the disk. Texts are sorted by a language's rules,
// as on sites whose administrators did not think of it.
package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// User and Password open every database of a cluster, as its owner.
const (
	User     = "ingot"
	Password = "pg-passw0rd"
)

// Cluster is one server.
type Cluster struct {
	Port    int
	dir     string
	bin     string
	owner   *syscall.Credential // nil: the user of the test
	process *os.Process
	ended   chan struct{}
	made    atomic.Int64
}

// Main runs the tests of a package whose tests share the cluster of Shared, and ends that. It returns the exit code.
func Main(m *testing.M) int {
	code := m.Run()
	if c, err := shared(); started.Load() && err == nil {
		if err := errors.Join(c.Stop(), os.RemoveAll(c.dir)); err != nil {
			fmt.Fprintln(os.Stderr, "end PostgreSQL:", err)
			return 1
		}
	}
	return code
}

var (
	started atomic.Bool
	shared  = sync.OnceValues(func() (*Cluster, error) {
		if !started.Load() {
			return nil, nil
		}
		dir, err := os.MkdirTemp("", "ingot-pg-")
		if err != nil {
			return nil, err
		}
		return create(dir)
	})
)

// Shared returns the cluster of all tests of a package, whose TestMain calls Main.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	started.Store(true)
	c, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// New starts a cluster for one test, which may stop it and start it again.
func New(t testing.TB) *Cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "ingot-pg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	c, err := create(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
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

func create(dir string) (c *Cluster, err error) {
	c = &Cluster{dir: dir}
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c.Port = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return nil, err
	}
	return c, c.Start()
}

func (c *Cluster) data() string { return filepath.Join(c.dir, "data") }

func (c *Cluster) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.bin, program), args...)
	cmd.Dir = c.dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8", "PGPASSWORD=" + Password}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.owner}
	return cmd
}

// Start starts the server and waits until it answers. settings are more of its parameters, NAME=VALUE.
func (c *Cluster) Start(settings ...string) error {
	args := []string{"-D", c.data(), "-k", c.dir, "-p", strconv.Itoa(c.Port)}
	for _, s := range append([]string{"listen_addresses=127.0.0.1", "fsync=off", "full_page_writes=off",
		"max_connections=200", "shared_buffers=32MB", "log_min_messages=fatal"}, settings...) {
		args = append(args, "-c", s)
	}
	cmd := c.command("postgres", args...)
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
	c.process, c.ended = cmd.Process, ended
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		select {
		case <-ended:
			return fmt.Errorf("PostgreSQL has ended: %s", said.String())
		default:
		}
		if c.command("pg_isready", "-q", "-h", "127.0.0.1", "-p", strconv.Itoa(c.Port)).Run() == nil {
			return nil
		}
	}
	return errors.New("PostgreSQL does not answer")
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
	select {
	case <-c.ended:
		return nil
	default:
	}
	if err := c.process.Signal(sig); err != nil {
		return err
	}
	select {
	case <-c.ended:
		return nil
	case <-time.After(time.Minute):
		return errors.New("PostgreSQL does not end")
	}
}

// Query runs a statement in a database, as administrators do, and returns the output of psql.
func (c *Cluster) Query(ctx context.Context, database, statement string) (string, error) {
	cmd := c.command("psql", "-h", c.dir, "-p", strconv.Itoa(c.Port), "-U", User, "-d", database, "-Atqc", statement)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("psql: %w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), ctx.Err()
}

// Database makes an empty database, and returns its name and address, without the password.
func (c *Cluster) Database(t testing.TB) (name, url string) {
	t.Helper()
	name = fmt.Sprintf("test%d", c.made.Add(1))
	if _, err := c.Query(context.Background(), "postgres", "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return name, c.URL(name)
}

// URL is the address of a database, without the password.
func (c *Cluster) URL(database string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", User, c.Port, database)
}
