// Package ironic starts a real Ironic beside an ingotd, both empty, with the same hardware and the same users, so that
// requests can be sent to both and their answers be compared.
//
// Ironic is Debian's: its packages are unpacked into a cache, with MariaDB, Keystone and the Python modules they need,
// and nothing is installed (Debian's packages ironic-api and ironic-conductor add no more than what starts the programs
// of ironic-common as services). The API and the conductor are two processes that talk JSON-RPC, as where they are on
// two machines. What can be set is set so that both offer the same hardware types, interfaces and defaults, as far as
// both have them: inspect_interface is fake or no-inspect, for the others' are not the same. Neither reads power states
// by itself, so that nothing changes between two requests but by requests.
//
// Everything listens on loopback, keeps its data in one folder, and ends with the Pair.
package ironic

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/keystone"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/mariadb"
	"github.com/ingot-metal/ingot/test/kit/port"
	"github.com/ingot-metal/ingot/test/kit/proc"
	"github.com/ingot-metal/ingot/tools/lab/pg"
)

// Auth is a kind of authentication, by Ironic's names.
type Auth string

// The ways.
const (
	None      Auth = "none"
	HTTPBasic Auth = "http_basic"
	Keystone  Auth = "keystone"
)

// Options say what to start.
type Options struct {
	Auth                  Auth   // "" is none
	Dir                   string // for all data, empty or not there, removed by Stop; "" is a new temporary one
	Binary                string // an ingotd; "" is one of this tree, built when needed
	IronicAddr, IngotAddr string // HOST:PORT to listen on; "" is any free port of loopback
	// Server has a database for each, "ironic" and "ingot", which Start makes; nil: MariaDB for Ironic, SQLite for
	// ingotd.
	Server *pg.Cluster
	Log    *slog.Logger

	patience time.Duration // for each program to answer; zero is three minutes
	programs debian.Tree   // none: they are unpacked
}

// Role is a user who sends requests.
type Role struct {
	Name   string
	Header http.Header // authenticates with both
}

// Pair is a running Ironic and a running ingotd.
type Pair struct {
	Ironic, Ingot string // http://HOST:PORT
	Roles         []Role
	// with keystone: the IDs of "owner", "lessee" and "other", to be owner or lessee of nodes
	Projects map[string]string

	o        Options
	programs debian.Tree
	socket   string // of MariaDB
	stopping sync.Once
	stopped  error
	ingotd   *proc.Process
	mu       sync.Mutex
	running  []interface{ Stop() } // in the order of their start
	over     bool                  // nothing more is started
}

// Start starts both; they are ready to answer. When ctx ends, then or later, all is stopped and removed as by Stop.
func Start(ctx context.Context, o Options) (*Pair, error) {
	if o.Auth == "" {
		o.Auth = None
	}
	if !slices.Contains([]Auth{None, HTTPBasic, Keystone}, o.Auth) {
		return nil, fmt.Errorf("authentication %q: there are none, http_basic and keystone", o.Auth)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.patience == 0 {
		o.patience = 3 * time.Minute
	}
	for what, addr := range map[string]*string{"Ironic": &o.IronicAddr, "ingotd": &o.IngotAddr} {
		if err := listen(addr); err != nil {
			return nil, fmt.Errorf("listen for %s: %w", what, err)
		}
	}
	p := &Pair{Ironic: "http://" + o.IronicAddr, Ingot: "http://" + o.IngotAddr, o: o}
	if err := p.folder(); err != nil {
		return nil, err
	}
	err := p.start(ctx)
	if ctx.Err() != nil {
		err = fmt.Errorf("start Ironic and ingotd: %w", context.Cause(ctx))
	}
	if err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	context.AfterFunc(ctx, func() { _ = p.Stop() })
	return p, nil
}

// listen finds an address, or returns why the requested one is not available.
func listen(addr *string) (err error) {
	if *addr == "" {
		*addr, err = port.Free()
		return err
	}
	l, err := net.Listen("tcp", *addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("something listens on %s already: stop it, or choose another address", *addr)
	}
	if err != nil {
		return err
	}
	if ip := l.Addr().(*net.TCPAddr).IP; !ip.IsLoopback() {
		return errors.Join(fmt.Errorf("%s is not an address of loopback", *addr), l.Close())
	}
	*addr = l.Addr().String()
	return l.Close()
}

// folder makes the folder for all data.
func (p *Pair) folder() (err error) {
	if p.o.Dir == "" {
		p.o.Dir, err = os.MkdirTemp("", "ironic-")
	} else if err = os.MkdirAll(p.o.Dir, 0o700); err == nil {
		var have []os.DirEntry
		if have, err = os.ReadDir(p.o.Dir); len(have) > 0 {
			return fmt.Errorf("%s is not empty: it will be removed in the end", p.o.Dir)
		}
	}
	if err != nil {
		return fmt.Errorf("make a folder for the data: %w", err)
	}
	p.socket = p.path(mariadb.Socket)
	if most := len(syscall.RawSockaddrUnix{}.Path) - 1; len(p.socket) > most {
		return errors.Join(
			fmt.Errorf("%s is too long a name for MariaDB's socket (at most %d bytes): choose a shorter folder",
				p.socket, most), os.RemoveAll(p.o.Dir))
	}
	return nil
}

func (p *Pair) path(name string) string { return filepath.Join(p.o.Dir, name) }

func (p *Pair) start(ctx context.Context) error {
	if p.programs = p.o.programs; p.programs.Root == "" {
		var err error
		packages := []string{"ironic-common", mariadb.Package, keystone.Package}
		if p.o.Server != nil {
			packages = append(packages, "python3-psycopg2")
		}
		if p.programs, err = debian.Unpack(ctx, p.o.Log, packages...); err != nil {
			return fmt.Errorf("get Ironic from Debian's packages (of Debian 12; was apt-get update run?): %w", err)
		}
	}
	if p.o.Binary == "" {
		dir, err := made.Make(ctx, made.Programs)
		if err != nil {
			return fmt.Errorf("build ingotd: %w", err)
		}
		p.o.Binary = filepath.Join(dir, "ingotd")
	}
	began := time.Now()
	if err := p.database(ctx); err != nil {
		return err
	}
	access, err := p.users(ctx, nil)
	if err != nil {
		return err
	}
	if err := p.ironic(ctx, access); err != nil {
		return err
	}
	if err := p.writeIngot(access); err != nil {
		return err
	}
	if err := p.ingot(ctx); err != nil {
		return err
	}
	p.o.Log.Info("Ironic and ingotd are up", "ironic", p.Ironic, "ingot", p.Ingot, "auth", string(p.o.Auth), "took",
		time.Since(began).Round(time.Millisecond))
	return nil
}

// run starts a program that serves, and waits until it is ready.
func (p *Pair) run(ctx context.Context, prog proc.Program, ready func(context.Context) error) (*proc.Process, error) {
	run, err := p.begin(prog)
	if err != nil {
		return nil, err
	}
	return run, p.wait(ctx, run, ready)
}

func (p *Pair) begin(prog proc.Program) (*proc.Process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return nil, fmt.Errorf("start %s: all has been stopped", prog.Name)
	}
	run, err := proc.Start(prog)
	if err != nil {
		return nil, err
	}
	p.running = append(p.running, run)
	return run, nil
}

var errSlow = errors.New("it took too long to start")

func (p *Pair) wait(ctx context.Context, run *proc.Process, ready func(context.Context) error) error {
	ctx, stop := context.WithTimeoutCause(ctx, p.o.patience, errSlow)
	defer stop()
	return run.Ready(ctx, ready)
}

// Stop ends all processes and removes all data. It may be called twice.
func (p *Pair) Stop() error {
	p.stopping.Do(func() {
		p.mu.Lock()
		p.over = true
		running := p.running
		p.mu.Unlock()
		for _, r := range slices.Backward(running) {
			r.Stop()
		}
		if err := os.RemoveAll(p.o.Dir); err != nil {
			p.stopped = fmt.Errorf("remove the data: %w", err)
		}
	})
	return p.stopped
}

// Reset makes both empty again: Ironic's tables, as soon as no node is locked, and an ingotd with a new database at the
// same address.
func (p *Pair) Reset(ctx context.Context) error {
	if p.ingotd == nil {
		return errors.New("there is no ingotd that could be started again")
	}
	p.ingotd.Stop()
	p.mu.Lock()
	p.running = slices.DeleteFunc(p.running, func(r interface{ Stop() }) bool { return r == p.ingotd })
	p.mu.Unlock()
	if err := os.RemoveAll(p.path("ingotd")); err != nil {
		return fmt.Errorf("remove ingotd's data: %w", err)
	}
	if err := p.ingot(ctx); err != nil {
		return err
	}
	return proc.Run(ctx, p.python("Ironic's reset", "-c", resetScript, p.socket))
}

// Use goes on with another ingotd. Both are empty then.
func (p *Pair) Use(ctx context.Context, binary string) error {
	p.o.Binary = binary
	return p.Reset(ctx)
}

// env is the environment of all programs: nothing of that of the tool, such as a proxy's address, goes into them.
func (p *Pair) env(more ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.o.Dir, "TMPDIR=" + p.o.Dir, "LC_ALL=C.UTF-8"},
		more...)
}

// write writes a file of the folder; %DIR% in it stands for the folder's path.
func (p *Pair) write(name, text string) (string, error) {
	path := p.path(name)
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "%DIR%", p.o.Dir)), 0o600); err != nil {
		return "", fmt.Errorf("write %s: %w", name, err)
	}
	return path, nil
}
