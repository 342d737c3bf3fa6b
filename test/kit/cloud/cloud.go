// Package cloud runs a real OpenStack around an Ironic, or an ingotd in its place: Keystone, Placement, Glance, Neutron
// with the mechanism driver for bare metal, and Nova with its Ironic driver.
//
// The programs are Debian's. Their packages are unpacked into a cache and nothing is installed, as in package debian: a
// root file system with them installed takes three times the room and minutes to make, and needs root to be used;
// the packages of single services add no more than what starts a module of python3-nova and its kin as a service. They
// talk over RabbitMQ, and keep their data in MariaDB (Keystone: in SQLite). The tables are made once and kept beside
// the programs, since that takes as long as everything else together.
//
// Everything listens on loopback, keeps its data in one folder, and ends with the Cloud.
package cloud

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/keystone"
	"github.com/ingot-metal/ingot/test/kit/mariadb"
	"github.com/ingot-metal/ingot/test/kit/port"
	"github.com/ingot-metal/ingot/test/kit/proc"
)

// packages are Debian's, with what they need.
var packages = []string{"nova-common", "placement-common", "neutron-common", "python3-ironic-neutron-agent",
	"glance-common", "rabbitmq-server", mariadb.Package, keystone.Package}

// Password is that of every user.
const Password = "secret"

// Project is the project of the services' users.
const Project = "service"

// Options say what to start.
type Options struct {
	Dir       string // for all data, there and empty; absolute and short, for it has sockets
	Baremetal string // http://HOST:PORT of what takes Ironic's place
	// Ironic starts that, once Keystone runs and the addresses of all services are known; nil: it runs already.
	Ironic func(*Cloud) error
	// Agent also runs the agent that reports to Neutron the nodes whose ports it is to bind.
	Agent bool
	Log   *slog.Logger
}

// Cloud is running.
type Cloud struct {
	Keystone *keystone.Server
	// Addresses of the services, as in Keystone's catalogue, by their types there.
	URLs map[string]string

	o        Options
	programs debian.Tree
	broker   string // host and port of RabbitMQ

	mu      sync.Mutex
	running map[string]*proc.Process
	order   []string
}

// Fetch gets the programs and makes the tables, unless the cache has both.
func Fetch(ctx context.Context, log *slog.Logger) error {
	_, _, err := fetch(ctx, log)
	return err
}

// fetch returns the programs, and the folder with the data of a MariaDB that has all tables.
func fetch(ctx context.Context, log *slog.Logger) (programs debian.Tree, tables string, err error) {
	programs, err = debian.Unpack(ctx, log, packages...)
	if err != nil {
		return programs, "", fmt.Errorf("get OpenStack from Debian's packages (of Debian 12; was apt-get update run?): %w",
			err)
	}
	tables, err = makeTables(ctx, log, programs)
	return programs, tables, err
}

// Start starts all services, and returns when they answer. They end with Stop.
func Start(ctx context.Context, o Options) (*Cloud, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	programs, tables, err := fetch(ctx, o.Log)
	if err != nil {
		return nil, err
	}
	c := &Cloud{o: o, programs: programs, running: map[string]*proc.Process{},
		URLs: map[string]string{"baremetal": o.Baremetal}}
	began := time.Now()
	if err := c.start(ctx, tables); err != nil {
		c.Stop()
		return nil, err
	}
	o.Log.Info("OpenStack is up", "took", time.Since(began).Round(time.Millisecond))
	return c, nil
}

func (c *Cloud) start(ctx context.Context, tables string) error {
	// What needs nothing of another one starts at the same time.
	var wg sync.WaitGroup
	errs := make([]error, 3)
	wg.Go(func() { errs[0] = c.startKeystone(ctx) })
	wg.Go(func() { errs[1] = c.startDatabase(ctx, tables) })
	wg.Go(func() { errs[2] = c.startBroker(ctx) })
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := c.configure(ctx); err != nil {
		return err
	}
	if c.o.Ironic != nil {
		if err := c.o.Ironic(c); err != nil {
			return err
		}
	}
	all := slices.DeleteFunc(services(), func(s service) bool { return s.later || s.agent && !c.o.Agent })
	errs = make([]error, len(all))
	for i, s := range all {
		wg.Go(func() { errs[i] = c.launch(ctx, s) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// startKeystone starts Keystone, with the users of the services.
func (c *Cloud) startKeystone(ctx context.Context) error {
	dir, err := c.folder("keystone")
	if err != nil {
		return err
	}
	if c.Keystone, err = keystone.Start(ctx, c.programs, dir, 24*time.Hour); err != nil {
		return err
	}
	for _, user := range []string{"nova", "placement", "glance", "neutron", "ingot"} {
		if err := c.Keystone.AddUser(ctx, user, Password); err != nil {
			return err
		}
		if err := c.Keystone.Grant(ctx, user, Project, "admin", "service"); err != nil {
			return err
		}
	}
	// the administrator of `keystone-manage bootstrap` has a role in this project, which is there
	return c.Keystone.Grant(ctx, "admin", "admin", "admin")
}

// startDatabase serves a copy of the tables.
func (c *Cloud) startDatabase(ctx context.Context, tables string) error {
	if err := copyTree(tables, filepath.Join(c.o.Dir, "db")); err != nil {
		return err
	}
	prog, err := mariadb.Program(c.programs, c.o.Dir, c.env())
	if err != nil {
		return err
	}
	return c.run(ctx, prog, mariadb.Ready(c.o.Dir))
}

// startBroker starts RabbitMQ, and Erlang's name server for it, which would go on alone otherwise.
func (c *Cloud) startBroker(ctx context.Context) error {
	dir, err := c.folder("rabbitmq")
	if err != nil {
		return err
	}
	erlang := filepath.Join(c.programs.Root, "usr/lib/erlang")
	found, err := filepath.Glob(filepath.Join(erlang, "erts-*/bin"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("find Erlang in %s: %v, %v", erlang, found, err)
	}
	homes, err := filepath.Glob(filepath.Join(c.programs.Root, "usr/lib/rabbitmq/lib/rabbitmq_server-*"))
	if err != nil || len(homes) != 1 {
		return fmt.Errorf("find RabbitMQ in %s: %v, %v", c.programs.Root, homes, err)
	}
	var ports [3]string
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{"enabled_plugins": "[].\n", "rabbitmq.conf": "loopback_users = none\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("configure RabbitMQ: %w", err)
		}
	}
	env := append(c.env(), "HOME="+dir, "ROOTDIR="+erlang, "BINDIR="+found[0], "EMU=beam", "PROGNAME=erl",
		"ERL_EPMD_ADDRESS=127.0.0.1", "ERL_EPMD_PORT="+ports[0], "ERL_LIBS="+filepath.Join(homes[0], "plugins"),
		"RABBITMQ_HOME="+homes[0], "RABBITMQ_NODENAME=rabbit@localhost", "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT="+ports[1], "RABBITMQ_DIST_PORT="+ports[2], "RABBITMQ_BASE="+dir,
		"RABBITMQ_MNESIA_BASE="+filepath.Join(dir, "mnesia"), "RABBITMQ_LOG_BASE="+dir, "RABBITMQ_LOGS=-",
		"RABBITMQ_CONFIG_FILE="+filepath.Join(dir, "rabbitmq.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(dir, "enabled_plugins"),
		"RABBITMQ_PLUGINS_DIR="+filepath.Join(homes[0], "plugins"), "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=")
	c.broker = "127.0.0.1:" + ports[1]
	if err := c.run(ctx, proc.Program{Name: "epmd", Args: []string{filepath.Join(found[0], "epmd")}, Env: env,
		Log: c.path("epmd.log")}, proc.Connects("tcp", "127.0.0.1:"+ports[0])); err != nil {
		return err
	}
	return c.run(ctx, proc.Program{Name: "RabbitMQ", Env: env, Log: c.path("rabbitmq.log"),
		Args: []string{filepath.Join(found[0], "erlexec"), "-noinput", "-s", "rabbit", "boot", "-boot", "start_sasl",
			"+W", "w", "+S", "1:1", "+sbwt", "none", "-syslog", "logger", "[]", "-syslog", "syslog_error_logger",
			"false"}},
		proc.Connects("tcp", c.broker))
}

func freePort() (string, error) {
	addr, err := port.Free()
	if err != nil {
		return "", err
	}
	_, p, err := net.SplitHostPort(addr)
	return p, err
}

// patience is how long a program may take until it answers, on a machine with much else to do.
const patience = 4 * time.Minute

// run starts a program that serves, and waits until it is ready.
func (c *Cloud) run(ctx context.Context, p proc.Program, ready func(context.Context) error) error {
	run, err := proc.Start(p)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.running[p.Name] = run
	c.order = append(c.order, p.Name)
	c.mu.Unlock()
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	return run.Ready(ctx, ready)
}

// Stop ends all programs. Their folder is the caller's.
func (c *Cloud) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Backward(c.order) {
		c.running[name].Stop()
	}
	c.order, c.running = nil, nil
	if c.Keystone != nil {
		c.Keystone.Stop()
	}
}

// Logs are the files with what the programs print, by their names.
func (c *Cloud) Logs() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]string{}
	for name, p := range c.running {
		out[name] = p.Log
	}
	return out
}

// Environment is that of the openstack command as a user in a project.
func (c *Cloud) Environment(user, project string) []string {
	return []string{"OS_AUTH_URL=" + c.Keystone.URL, "OS_USERNAME=" + user, "OS_PASSWORD=" + passwordOf(user),
		"OS_PROJECT_NAME=" + project, "OS_USER_DOMAIN_ID=default", "OS_PROJECT_DOMAIN_ID=default",
		"OS_IDENTITY_API_VERSION=3", "OS_REGION_NAME=RegionOne"}
}

// passwordOf knows that the administrator was made by Keystone's own tool.
func passwordOf(user string) string {
	if user == "admin" {
		return "admin"
	}
	return Password
}

func (c *Cloud) path(name string) string { return filepath.Join(c.o.Dir, name) }

func (c *Cloud) folder(name string) (string, error) {
	dir := c.path(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make a folder for %s: %w", name, err)
	}
	return dir, nil
}

// env is the environment of all programs: nothing of that of the tool, such as a proxy's address, goes into them.
func (c *Cloud) env() []string { return environment(c.programs, c.o.Dir) }

func environment(programs debian.Tree, dir string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir, "LC_ALL=C.UTF-8",
		"PYTHONWARNINGS=ignore", "PYTHONDONTWRITEBYTECODE="}, programs.Env...)
}

// says is ok when a program's log has a text.
func says(log, text string) func(context.Context) error {
	return func(context.Context) error {
		b, err := os.ReadFile(log)
		if err == nil && !strings.Contains(string(b), text) {
			err = fmt.Errorf("its log does not say %q", text)
		}
		return err
	}
}

// copyTree copies a folder that nothing writes to.
func copyTree(from, to string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("copy the tables: %w", err)
	}
	return nil
}
