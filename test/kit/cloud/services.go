package cloud

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/mariadb"
	"github.com/ingot-metal/ingot/test/kit/proc"
)

// service is a program of OpenStack.
type service struct {
	name   string // also of its log
	module string // of Python; its function main is the program
	conf   string // names its configuration
	wsgi   string // an application, instead of module's main
	ready  string // what its log says when it works; "": it answers requests
	kind   string // in Keystone's catalogue; "": it serves no clients
	path   string // of its address in the catalogue
	agent  bool   // see Options
	later  bool   // it is started by Again only
}

func services() []service {
	return []service{
		{name: "placement-api", wsgi: "placement.wsgi", conf: "placement", kind: "placement"},
		{name: "glance-api", module: "glance.cmd.api", conf: "glance", kind: "image"},
		{name: "neutron-server", module: "neutron.cmd.eventlet.server", conf: "neutron", kind: "network"},
		{name: "nova-api", module: "nova.cmd.api_os_compute", conf: "nova", kind: "compute", path: "/v2.1"},
		{name: "nova-conductor", module: "nova.cmd.conductor", conf: "nova", ready: "Starting conductor node"},
		{name: "nova-scheduler", module: "nova.cmd.scheduler", conf: "nova", ready: "Starting scheduler node"},
		{name: "nova-compute", module: "nova.cmd.compute", conf: "nova-compute", ready: "Starting compute node"},
		{name: Virtual, module: "ingot_virtual", conf: Virtual, ready: "Starting compute node", later: true},
		{name: "ironic-neutron-agent", module: "networking_baremetal.agent.ironic_neutron_agent", conf: "neutron",
			ready: "Starting agent networking-baremetal", agent: true},
	}
}

// Virtual is the compute service of virtual machines. Its driver is Nova's fake one: what runs there is only said to
// run, also while it is rescued. It does not run from the start; Again starts it.
const Virtual = "nova-compute-virtual"

// virtualHost is its host, for whose machines Neutron binds ports of any network.
const virtualHost = "virtual"

// binder is a mechanism driver of Neutron's that does so, in place of a switch on a host.
const binder = `
from neutron_lib.plugins.ml2 import api
class Driver(api.MechanismDriver):
    def initialize(self):
        pass
    def bind_port(self, context):
        if context.host == "` + virtualHost + `" and context.segments_to_bind:
            context.set_binding(context.segments_to_bind[0][api.ID], "bridge", {}, "ACTIVE")
`

// virtualCompute is Nova's compute service with a rescue like that of other drivers, which turn the server on.
const virtualCompute = `
from nova.cmd.compute import main
from nova.compute import power_state
from nova.virt import fake
def rescue(self, context, instance, *args):
    self.instances[instance.uuid].state = power_state.RUNNING
fake.FakeDriver.rescue = rescue
`

// installModules writes both where the services find them as installed.
func (c *Cloud) installModules() error {
	for name, text := range map[string]string{"ingot_binder.py": binder, "ingot_virtual.py": virtualCompute,
		"ingot_binder-1.dist-info/METADATA":         "Metadata-Version: 2.1\nName: ingot-binder\nVersion: 1\n",
		"ingot_binder-1.dist-info/entry_points.txt": "[neutron.ml2.mechanism_drivers]\ningot_binder = ingot_binder:Driver\n"} {
		path := filepath.Join(c.modules(), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return fmt.Errorf("install modules for Nova and Neutron: %w", err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return fmt.Errorf("install modules for Nova and Neutron: %w", err)
		}
	}
	return nil
}

func (c *Cloud) modules() string { return c.path("modules") }

// Services are the names of the programs that Kill and Again know.
func Services() (names []string) {
	for _, s := range services() {
		names = append(names, s.name)
	}
	return names
}

// wsgi serves an application with threads, as Debian's service does with uwsgi.
const wsgi = `
import importlib, socketserver, sys, wsgiref.simple_server as simple
class Server(socketserver.ThreadingMixIn, simple.WSGIServer):
    daemon_threads = True
    request_queue_size = 128
class Handler(simple.WSGIRequestHandler):
    def address_string(self):
        return self.client_address[0]
module, host, port = sys.argv[1:]
sys.argv[1:] = []
app = importlib.import_module(module).init_application()
simple.make_server(host, int(port), app, Server, Handler).serve_forever()
`

// launch starts a service, and waits until it works.
func (c *Cloud) launch(ctx context.Context, s service) error {
	log := c.path(s.name + ".log")
	if s.wsgi != "" {
		host, port, _ := strings.Cut(strings.TrimPrefix(c.URLs[s.kind], "http://"), ":")
		return c.run(ctx, proc.Program{Name: s.name, Log: log,
			Args: []string{debian.Python, "-c", wsgi, s.wsgi, host, port},
			Env:  append(c.env(), "OS_PLACEMENT_CONFIG_DIR="+c.o.Dir)}, proc.Speaks(c.URLs[s.kind]))
	}
	env := append(c.env(), "PYTHONPATH="+c.modules()+":"+c.programs.Modules())
	p := python(s.module, env, log, "--config-file", c.path(s.conf+".conf"))
	p.Name = s.name
	ready := says(log, s.ready)
	if s.ready == "" {
		ready = proc.Speaks(strings.TrimSuffix(c.URLs[s.kind], s.path))
	}
	return c.run(ctx, p, ready)
}

// look is how often Nova and the agent of Neutron look for nodes that have come or gone, in seconds; half a minute and
// more by default. Each time Nova sends some ten requests.
const look = "4"

// section is a section of a configuration.
type section map[string]string

// configure registers the services in Keystone's catalogue, and writes their configurations.
func (c *Cloud) configure(ctx context.Context) error {
	ports := map[string]string{}
	for _, s := range services() {
		if s.kind == "" {
			continue
		}
		p, err := freePort()
		if err != nil {
			return err
		}
		ports[s.kind], c.URLs[s.kind] = p, "http://127.0.0.1:"+p+s.path
	}
	for _, kind := range slices.Sorted(maps.Keys(c.URLs)) {
		if err := c.Keystone.AddEndpoint(ctx, kind, c.URLs[kind]); err != nil {
			return err
		}
	}
	auth := func(user string) section {
		return section{"auth_type": "password", "auth_url": c.Keystone.URL, "username": user, "password": Password,
			"project_name": Project, "user_domain_id": "default", "project_domain_id": "default",
			"region_name": "RegionOne", "valid_interfaces": "public"}
	}
	with := func(s section, more ...string) section {
		s = maps.Clone(s)
		for i := 0; i < len(more); i += 2 {
			s[more[i]] = more[i+1]
		}
		return s
	}
	tokens := func(user string) section {
		return with(auth(user), "www_authenticate_uri", c.Keystone.URL, "interface", "public",
			"service_token_roles_required", "true")
	}
	database := func(name string) section { return section{"connection": mariadb.URL(c.o.Dir, name)} }
	lock := section{"lock_path": c.path("lock")}
	broker := "rabbit://guest:guest@" + c.broker + "/"
	share := filepath.Join(c.programs.Root, "usr/share")
	if err := c.installModules(); err != nil {
		return err
	}
	for _, d := range []string{"lock", "nova", "nova-virtual", "neutron", "images"} {
		if _, err := c.folder(d); err != nil {
			return err
		}
	}
	all := map[string]map[string]section{
		"placement": {
			"api": {"auth_strategy": "keystone"}, "placement_database": database("placement"),
			"keystone_authtoken": tokens("placement"),
		},
		"glance": {
			"DEFAULT": {"bind_host": "127.0.0.1", "bind_port": ports["image"], "workers": "0",
				"enabled_backends": "here:file"},
			"database": database("glance"), "keystone_authtoken": tokens("glance"), "oslo_concurrency": lock,
			"paste_deploy": {"flavor": "keystone",
				"config_file": filepath.Join(share, "glance-common/glance-api-paste.ini")},
			"glance_store": {"default_backend": "here"}, "here": {"filesystem_store_datadir": c.path("images")},
			"os_glance_staging_store": {"filesystem_store_datadir": c.path("images/staging")},
			"os_glance_tasks_store":   {"filesystem_store_datadir": c.path("images/tasks")},
		},
		"neutron": {
			"DEFAULT": {"bind_host": "127.0.0.1", "bind_port": ports["network"], "core_plugin": "ml2",
				"service_plugins": "", "api_workers": "0", "rpc_workers": "0", "rpc_state_report_workers": "0",
				"transport_url": broker, "state_path": c.path("neutron"), "auth_strategy": "keystone", "host": "cloud",
				"dhcp_agent_notification": "false",
				"api_paste_config":        filepath.Join(share, "neutron-common/api-paste.ini")},
			"ml2": {"mechanism_drivers": "baremetal,ingot_binder",
				"type_drivers": "flat,vlan", "tenant_network_types": "vlan",
				"extension_drivers": ""},
			"ml2_type_flat": {"flat_networks": "*"}, "ml2_type_vlan": {"network_vlan_ranges": "physnet1:100:199"},
			"securitygroup": {"enable_security_group": "false"}, "database": database("neutron"),
			"keystone_authtoken": tokens("neutron"), "nova": auth("neutron"), "placement": auth("neutron"),
			"ironic": auth("neutron"), "oslo_concurrency": lock, "AGENT": {"report_interval": look},
		},
		"nova": {
			"DEFAULT": {"my_ip": "127.0.0.1", "periodic_fuzzy_delay": "0", "host": "cloud",
				"transport_url": broker, "state_path": c.path("nova"),
				"compute_driver": "ironic.IronicDriver", "enabled_apis": "osapi_compute",
				"osapi_compute_listen": "127.0.0.1", "osapi_compute_listen_port": ports["compute"],
				"osapi_compute_workers": "1", "force_config_drive": "true", "update_resources_interval": look,
				"shutdown_timeout": "5"},
			"api_database": database("nova_api"), "database": database("nova"),
			"api": {"auth_strategy": "keystone"}, "keystone_authtoken": tokens("nova"),
			"wsgi":             {"api_paste_config": filepath.Join(share, "nova-common/api-paste.ini")},
			"conductor":        {"workers": "1"},
			"scheduler":        {"workers": "1", "max_attempts": "1", "discover_hosts_in_cells_interval": look},
			"filter_scheduler": {"track_instance_changes": "false"},
			"placement":        auth("nova"), "glance": with(auth("nova"), "num_retries", "2"), "neutron": auth("nova"),
			"ironic":           with(auth("nova"), "api_retry_interval", "1"),
			"oslo_concurrency": lock, "vnc": {"enabled": "false"},
		},
	}
	// The compute service reaches the database by the conductor only, and takes it amiss to know where that is.
	all["nova-compute"] = maps.Clone(all["nova"])
	delete(all["nova-compute"], "database")
	delete(all["nova-compute"], "api_database")
	all[Virtual] = maps.Clone(all["nova-compute"])
	all[Virtual]["DEFAULT"] = with(all["nova"]["DEFAULT"], "compute_driver", "fake.FakeDriver", "host",
		virtualHost, "state_path", c.path("nova-virtual"))
	for name, sections := range all {
		var b strings.Builder
		for _, s := range slices.Sorted(maps.Keys(sections)) {
			fmt.Fprintf(&b, "[%s]\n", s)
			for _, k := range slices.Sorted(maps.Keys(sections[s])) {
				fmt.Fprintf(&b, "%s = %s\n", k, sections[s][k])
			}
		}
		if err := os.WriteFile(c.path(name+".conf"), []byte(b.String()), 0o600); err != nil {
			return fmt.Errorf("configure %s: %w", name, err)
		}
	}
	return nil
}

// Kill ends a service with SIGKILL, and Again starts it anew.
func (c *Cloud) Kill(name string) error {
	c.mu.Lock()
	p := c.running[name]
	c.mu.Unlock()
	if p == nil {
		return fmt.Errorf("kill %s: it does not run; there are %s", name, strings.Join(Services(), ", "))
	}
	p.Stop()
	return nil
}

// Again is described at Kill.
func (c *Cloud) Again(ctx context.Context, name string) error {
	for _, s := range services() {
		if s.name == name {
			if err := os.RemoveAll(c.path(name + ".log")); err != nil { // what it said before says nothing about now
				return err
			}
			return c.launch(ctx, s)
		}
	}
	return fmt.Errorf("start %s: there are %s", name, strings.Join(Services(), ", "))
}

// Images is the folder in which Glance keeps the data of images, each by its ID.
func (c *Cloud) Images() string { return c.path("images") }
