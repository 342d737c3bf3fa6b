package ironic

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/mariadb"
	"github.com/ingot-metal/ingot/test/kit/port"
	"github.com/ingot-metal/ingot/test/kit/proc"
	"github.com/ingot-metal/ingot/tools/lab/pg"
)

//go:embed reset.py
var resetScript string

// python is a program of Python; its log has the name of its script.
func (p *Pair) python(name string, args ...string) proc.Program {
	log := filepath.Base(args[0])
	return proc.Program{Name: name, Args: append([]string{debian.Python}, args...), Env: p.env(p.programs.Env...),
		Log: p.path(log + ".log")}
}

// script is one of Ironic's.
func (p *Pair) script(name string, args ...string) proc.Program {
	return p.python(name, append([]string{p.programs.Program(name)}, args...)...)
}

// database makes databases on the server of PostgreSQL, or starts MariaDB with an empty database for Ironic.
func (p *Pair) database(ctx context.Context) error {
	if s := p.o.Server; s != nil {
		for _, name := range []string{"ironic", "ingot"} {
			if _, err := s.Query(ctx, "postgres", "CREATE DATABASE "+name); err != nil {
				return err
			}
		}
		return nil
	}
	prog, err := mariadb.Program(p.programs, p.o.Dir, p.env(p.programs.Env...), "ironic")
	if err != nil {
		return err
	}
	_, err = p.run(ctx, prog, mariadb.Ready(p.o.Dir))
	return err
}

// interfaces are what both offer; the first that a hardware type has is its default.
var interfaces = []struct{ kind, enabled string }{
	{"bios", "fake, no-bios"},
	{"boot", "fake, ipxe, pxe"},
	{"console", "fake, no-console"},
	{"deploy", "fake, direct, ramdisk"},
	{"inspect", "fake, no-inspect"},
	{"management", "fake, ipmitool, noop"},
	{"network", "noop, flat"},
	{"power", "fake, ipmitool"},
	{"raid", "fake, no-raid, agent"},
	{"rescue", "fake, no-rescue"},
	{"storage", "noop, fake"},
	{"vendor", "fake, no-vendor"},
}

// host names the conductor of both. JSON-RPC has Ironic's API connect to a host of this name.
const host = "localhost"

// ironic starts the API and the conductor.
func (p *Pair) ironic(ctx context.Context, a access) error {
	rpc, err := port.Free()
	if err != nil {
		return err
	}
	_, rpcPort, err := net.SplitHostPort(rpc)
	if err != nil {
		return err
	}
	apiHost, apiPort, err := net.SplitHostPort(p.o.IronicAddr)
	if err != nil {
		return err
	}
	var kinds strings.Builder
	for _, i := range interfaces {
		fmt.Fprintf(&kinds, "enabled_%s_interfaces = %s\n", i.kind, i.enabled)
	}
	database := mariadb.URL("%DIR%", "ironic")
	if s := p.o.Server; s != nil {
		database = fmt.Sprintf("postgresql+psycopg2://%s:%s@127.0.0.1:%d/ironic", pg.User, pg.Password, s.Port)
	}
	conf, err := p.write("ironic.conf", fmt.Sprintf(`[DEFAULT]
host = %s
my_ip = 127.0.0.1
rpc_transport = json-rpc
state_path = %%DIR%%/state
tempdir = %%DIR%%
log_color = false
enabled_hardware_types = fake-hardware, ipmi, manual-management
default_network_interface = noop
%s%s
[api]
host_ip = %s
port = %s
api_workers = 1
[json_rpc]
auth_strategy = noauth
host_ip = 127.0.0.1
port = %s
[database]
connection = %s
[conductor]
sync_power_state_interval = 0
check_provision_state_interval = 0
sync_local_state_interval = 0
rescue_callback_timeout = 0
[oslo_concurrency]
lock_path = %%DIR%%/lock
[deploy]
http_root = %%DIR%%/http
http_url = http://127.0.0.1:9
[pxe]
tftp_root = %%DIR%%/tftp
tftp_server = 127.0.0.1
tftp_master_path = %%DIR%%/master
images_path = %%DIR%%/images
instance_master_path = %%DIR%%/master
[dhcp]
dhcp_provider = none
%s`, host, a.ironic, kinds.String(), apiHost, apiPort, rpcPort, database,
		a.ironicMore))
	if err != nil {
		return err
	}
	for _, d := range []string{"http", "tftp", "images", "master", "conf.d", "state"} {
		if err := os.Mkdir(p.path(d), 0o700); err != nil {
			return fmt.Errorf("make a folder for Ironic: %w", err)
		}
	}
	// The folder keeps out what the machine has in /etc/ironic.
	args := []string{"--config-file", conf, "--config-dir", p.path("conf.d")}
	if err := proc.Run(ctx, p.script("ironic-dbsync", append(args, "create_schema")...)); err != nil {
		return err
	}
	conductor, err := p.begin(p.script("ironic-conductor", args...))
	if err != nil {
		return err
	}
	if _, err := p.run(ctx, p.script("ironic-api", args...), proc.Answers(p.Ironic+"/")); err != nil {
		return err
	}
	// It accepts calls before it has told the database what hardware it has.
	return p.wait(ctx, conductor, func(context.Context) error {
		if b, err := os.ReadFile(conductor.Log); err != nil ||
			!bytes.Contains(b, []byte("Successfully started conductor")) {
			return errors.Join(errors.New("it has not said that it started"), err)
		}
		return nil
	})
}

// writeIngot writes ingotd's configuration.
func (p *Pair) writeIngot(a access) error {
	agents, err := port.Free()
	if err != nil {
		return err
	}
	var kinds strings.Builder
	for _, i := range interfaces {
		fmt.Fprintf(&kinds, "  enabled_%s_interfaces: [%s]\n", i.kind, i.enabled)
	}
	store := ""
	if s := p.o.Server; s != nil {
		secret, err := p.write("database-password", pg.Password+"\n")
		if err != nil {
			return err
		}
		store = fmt.Sprintf("store: {url: %q, password_file: %q}\n", s.URL("ingot"), secret)
	}
	_, err = p.write("ingotd.yaml", fmt.Sprintf(`data_dir: %%DIR%%/ingotd
hostname: %s
log_level: warn
power: {sync_interval: -1s}
agents: {listen: %q, advertise: %q}
netboot: {dhcp: "off", ramdisk_dir: %%DIR%%/none, images_dir: ""}
hardware:
  enabled_types: [fake-hardware, ipmi, manual-management]
%sapi:
  listen: %q
%s%s`, host, agents, agents, kinds.String(), p.o.IngotAddr, a.ingot, store))
	return err
}

// ingot starts ingotd, with what its folder has.
func (p *Pair) ingot(ctx context.Context) (err error) {
	p.ingotd, err = p.run(ctx,
		proc.Program{Name: "ingotd", Args: []string{p.o.Binary, "--config", p.path("ingotd.yaml")}, Env: p.env(),
			Log: p.path("ingotd.log")}, proc.Answers(p.Ingot+"/"))
	return err
}
