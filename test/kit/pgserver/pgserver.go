// Package pgserver runs Debian's PostgreSQL for tests, in a temporary folder. It does not flush to the disk.
package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/ingot-metal/ingot/tools/lab/pg"
)

// User and Password open every database of a cluster, as its owner.
const (
	User     = pg.User
	Password = pg.Password
)

// Cluster is one server.
type Cluster struct {
	*pg.Cluster
	made atomic.Int64
}

// Start starts the server again and waits until it answers. settings are more of its parameters, NAME=VALUE.
func (c *Cluster) Start(settings ...string) error {
	return c.Cluster.Start(append(fast(), settings...)...)
}

func fast() []string { return []string{"fsync=off", "full_page_writes=off"} }

func create(dir string) (*Cluster, error) {
	c, err := pg.Create(dir, 0, fast()...)
	return &Cluster{Cluster: c}, err
}

// Main runs the tests of a package whose tests share the cluster of Shared, and ends that. It returns the exit code.
func Main(m *testing.M) int {
	code := m.Run()
	if c, err := shared(); started.Load() && err == nil {
		if err := errors.Join(c.Stop(), os.RemoveAll(c.Dir)); err != nil {
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

// Database makes an empty database, and returns its name and address, without the password.
func (c *Cluster) Database(t testing.TB) (name, url string) {
	t.Helper()
	name = fmt.Sprintf("test%d", c.made.Add(1))
	if _, err := c.Query(context.Background(), "postgres", "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return name, c.URL(name)
}

// Old stands in for a server of an earlier release: it lets every client in, says which release it is, and answers
// nothing. It returns the address of a database.
func Old(t testing.TB) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b := pgproto3.NewBackend(c, c)
			if _, err := b.ReceiveStartupMessage(); err == nil {
				b.Send(&pgproto3.AuthenticationOk{})
				b.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "12.9 (Debian 12.9-1)"})
				b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
				_ = b.Flush()
				_, _ = io.Copy(io.Discard, c)
			}
			c.Close()
		}
	}()
	return fmt.Sprintf("postgres://u@%s/d?sslmode=disable", l.Addr())
}
