package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/mariadb"
	"github.com/ingot-metal/ingot/test/kit/proc"
)

// configuration is Ironic's, with %DIR% and %HOST% in place of the folder and of the address on the provisioning
// network. Everything that is not about where things are is as Debian's packages have it, but for: the interfaces, and
// images that are handed to the agent as they are.
const configuration = `[DEFAULT]
host = %HOST%
my_ip = %HOST%
rpc_transport = json-rpc
auth_strategy = noauth
state_path = %DIR%/state
tempdir = %DIR%/tmp
log_color = false
debug = true
force_raw_images = false
enabled_hardware_types = ipmi
enabled_boot_interfaces = ipxe
enabled_deploy_interfaces = direct
enabled_bios_interfaces = no-bios
enabled_console_interfaces = no-console
enabled_inspect_interfaces = no-inspect
enabled_management_interfaces = ipmitool
enabled_network_interfaces = noop
enabled_power_interfaces = ipmitool
enabled_raid_interfaces = agent,no-raid
enabled_rescue_interfaces = agent,no-rescue
enabled_storage_interfaces = noop
enabled_vendor_interfaces = no-vendor
default_network_interface = noop
default_rescue_interface = agent
default_raid_interface = agent
[api]
host_ip = %HOST%
port = 6385
api_workers = 1
[json_rpc]
auth_strategy = noauth
host_ip = %HOST%
port = 8089
[service_catalog]
auth_type = none
endpoint_override = http://%HOST%:6385
[database]
connection = %DATABASE%
[conductor]
sync_power_state_interval = 0
[oslo_concurrency]
lock_path = %DIR%/lock
[agent]
deploy_logs_collect = always
deploy_logs_local_path = %DIR%/agent-logs
certificates_path = %DIR%/certificates
[deploy]
http_root = %DIR%/http
http_url = http://%HOST%:8080
erase_devices_priority = 0
erase_devices_metadata_priority = 10
[pxe]
tftp_root = %DIR%/tftp
tftp_server = %HOST%
tftp_master_path = %DIR%/master/tftp
images_path = %DIR%/images
instance_master_path = %DIR%/master/images
kernel_append_params = %PARAMS%
[ipmi]
command_retry_timeout = 30
[dhcp]
dhcp_provider = none
`

// startIronic starts MariaDB, ironic-api and ironic-conductor of Debian, the latter two in the rack's namespace.
func (d *demo) startIronic(ctx context.Context) error {
	for _, name := range []string{"http", "tftp", "images", "master/tftp", "master/images", "conf.d", "state", "tmp",
		"lock", "agent-logs", "certificates"} {
		if err := os.MkdirAll(d.path(name), 0o755); err != nil {
			return fmt.Errorf("make a folder for Ironic: %w", err)
		}
	}
	env := append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.dir, "LC_ALL=C.UTF-8"}, d.programs.Env...)
	database, err := mariadb.Program(d.programs, d.dir, env, "ironic")
	if err != nil {
		return err
	}
	if _, err := d.run(ctx, database, mariadb.Ready(d.dir)); err != nil {
		return err
	}
	text := strings.NewReplacer("%DIR%", d.dir, "%HOST%", d.rack.Host.String(), "%PARAMS%", labParams,
		"%DATABASE%", mariadb.URL(d.dir, "ironic")).Replace(configuration)
	conf := d.path("ironic.conf")
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return fmt.Errorf("configure Ironic: %w", err)
	}
	program := func(name string, args ...string) proc.Program {
		return proc.Program{Name: name, Env: env, Log: d.path(name + ".log"),
			Args: append([]string{"ip", "netns", "exec", d.rack.Namespace, debian.Python, d.programs.Program(name),
				"--config-file", conf, "--config-dir", d.path("conf.d")}, args...)}
	}
	if err := proc.Run(ctx, program("ironic-dbsync", "create_schema")); err != nil {
		return err
	}
	started := func(context.Context) error {
		b, err := os.ReadFile(d.path("ironic-conductor.log"))
		if err == nil && !bytes.Contains(b, []byte("Successfully started conductor")) {
			err = errors.New("it has not said that it started")
		}
		return err
	}
	if _, err := d.run(ctx, program("ironic-conductor"), started); err != nil {
		return err
	}
	_, err = d.run(ctx, program("ironic-api"), func(ctx context.Context) error {
		return d.ask(ctx, http.MethodGet, "/", nil, nil)
	})
	return err
}

// run starts a program that ends with the demo, and waits until it is ready.
func (d *demo) run(ctx context.Context, p proc.Program, ready func(context.Context) error) (*proc.Process, error) {
	run, err := proc.Start(p)
	if err != nil {
		return nil, err
	}
	d.running = append(d.running, run)
	ctx, stop := context.WithTimeout(ctx, 3*time.Minute)
	defer stop()
	return run, run.Ready(ctx, ready)
}

// ask sends a request to Ironic's API, as a client of its own would, and decodes the answer into v unless it is nil.
func (d *demo) ask(ctx context.Context, method, path string, body, v any) error {
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+d.rack.Host.String()+":6385"+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-OpenStack-Ironic-API-Version", "1.82")
	client := &http.Client{Transport: &http.Transport{DialContext: d.rack.DialContext, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode > 299 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, got)
	}
	if v == nil || len(got) == 0 {
		return nil
	}
	return json.Unmarshal(got, v)
}

// node has the fields that the demo looks at.
type node struct {
	UUID      string         `json:"uuid"`
	State     string         `json:"provision_state"`
	Target    string         `json:"target_provision_state"`
	LastError string         `json:"last_error"`
	Internal  map[string]any `json:"driver_internal_info"`
	Step      struct {
		Step string `json:"step"`
	} `json:"deploy_step"`
}

// dnsmasqConf is as in Ironic's guide for iPXE.
const dnsmasqConf = `port=0
user=root
interface=prov
bind-interfaces
dhcp-range=%NET%50,%NET%90,255.255.255.0,1h
dhcp-leasefile=%DIR%/leases
log-dhcp
enable-tftp
tftp-root=%DIR%/tftp
dhcp-userclass=set:ipxe,iPXE
dhcp-match=set:bios,option:client-arch,0
dhcp-match=set:uefi,option:client-arch,7
dhcp-match=set:uefi,option:client-arch,9
dhcp-boot=tag:ipxe,http://%HOST%:8080/boot.ipxe
dhcp-option=tag:ipxe,encap:175,176,1b
dhcp-boot=tag:!ipxe,tag:bios,undionly.kpxe,,%HOST%
dhcp-boot=tag:!ipxe,tag:uefi,snponly.efi,,%HOST%
`

// startBoot starts DHCP, TFTP and the web server from which machines boot and fetch images.
func (d *demo) startBoot(ctx context.Context) error {
	host := d.rack.Host.String()
	text := strings.NewReplacer("%DIR%", d.dir, "%HOST%", host,
		"%NET%", strings.TrimSuffix(d.rack.Subnet.Addr().String(), "0")).Replace(dnsmasqConf)
	conf := d.path("dnsmasq.conf")
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return fmt.Errorf("configure dnsmasq: %w", err)
	}
	for _, loader := range []string{"undionly.kpxe", "snponly.efi"} {
		b, err := os.ReadFile(filepath.Join("/usr/lib/ipxe", loader))
		if err == nil {
			err = os.WriteFile(filepath.Join(d.path("tftp"), loader), b, 0o644)
		}
		if err != nil {
			return fmt.Errorf("get iPXE (Debian's package ipxe): %w", err)
		}
	}
	_, err := d.run(ctx, proc.Program{Name: "dnsmasq", Log: d.path("dnsmasq.log"),
		Env: []string{"PATH=" + os.Getenv("PATH")},
		Args: []string{"ip", "netns", "exec", d.rack.Namespace, "dnsmasq", "--keep-in-foreground", "--log-facility=-",
			"--pid-file=", "--conf-file=" + conf}}, func(context.Context) error {
		b, err := os.ReadFile(d.path("dnsmasq.log"))
		if err == nil && !bytes.Contains(b, []byte("started, version")) {
			err = errors.New("it has not said that it started")
		}
		return err
	})
	if err != nil {
		return err
	}
	ln, err := d.rack.Listen("tcp", host+":8080")
	if err != nil {
		return fmt.Errorf("listen for HTTP in the rack: %w", err)
	}
	d.web = &http.Server{Handler: http.FileServer(http.Dir(d.path("http"))), ReadHeaderTimeout: time.Minute}
	go func() { _ = d.web.Serve(ln) }() // until it is closed
	return nil
}
