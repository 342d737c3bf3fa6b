package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	images "github.com/ingot-metal/ingot/images/build"
	"github.com/ingot-metal/ingot/test/kit/cloud"
	"github.com/ingot-metal/ingot/test/kit/keystone"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/port"
	"github.com/ingot-metal/ingot/tools/lab"
	"github.com/ingot-metal/ingot/tools/lab/pg"
)

const (
	rackName = "openstack"
	machine  = "metal-1"
	// labParams keep a kernel from panicking where the emulator does not get a processor for long.
	labParams = "quiet no_timer_check mitigations=off cryptomgr.notests console=ttyS0,115200n8"
)

// demo is a rack with an ingotd, and an OpenStack beside it.
type demo struct {
	out   io.Writer
	log   *slog.Logger
	dir   string
	image string

	disk       string // the image's file
	user       string // who logs in
	rack       *lab.Lab
	database   *pg.Cluster
	conductors map[string]*lab.Conductor // by their names
	cloud      *cloud.Cloud
	listeners  []net.Listener
	api        *client.Client
	console    int64 // how much of the machine's console has been looked at
}

// kinds are the images by their names here.
var kinds = map[string]string{"debian": made.Debian, "tiny": made.Tiny}

// check refuses what can't be shown.
func (d *demo) check() error {
	if kinds[d.image] == "" {
		return fmt.Errorf("image %q: there are debian and tiny", d.image)
	}
	return nil
}

// up starts all, up to a machine that is available.
func (d *demo) up(ctx context.Context) error {
	begun := time.Now()
	d.say("Building ingotd, the ramdisk and the image; getting OpenStack from Debian's packages (the first time this takes minutes).")
	programs, err := made.Make(ctx, made.Programs)
	if err != nil {
		return err
	}
	ramdisk, err := made.Make(ctx, made.RamdiskShell) // a rescue wants a shell
	if err != nil {
		return err
	}
	built, err := made.Make(ctx, kinds[d.image])
	if err != nil {
		return err
	}
	result, err := images.Load(built)
	if err != nil {
		return err
	}
	d.disk, d.user = result.Zst, "debian"
	if err := cloud.Fetch(ctx, d.log); err != nil {
		return err
	}
	d.took("built", begun)

	begun = time.Now()
	d.say("Starting the rack, two conductors on one PostgreSQL, and keystone, placement, glance, neutron, nova, RabbitMQ and MariaDB.")
	if d.rack, err = lab.Up(ctx, lab.Options{Name: rackName, Dir: filepath.Join(d.dir, "lab"), Log: d.log,
		Nodes: []lab.NodeSpec{{Name: machine, MemoryMiB: 1024, Disks: []lab.DiskSpec{{SizeBytes: 8 << 30}}}},
		Accel: lab.TCG, BMC: lab.Redfish}); err != nil {
		return err
	}
	api, err := port.Free()
	if err != nil {
		return err
	}
	place := filepath.Join(d.dir, "cloud")
	if err := os.Mkdir(place, 0o700); err != nil {
		return err
	}
	d.cloud, err = cloud.Start(ctx, cloud.Options{Dir: place, Baremetal: "http://" + api, Agent: true, Log: d.log,
		Ironic: func(c *cloud.Cloud) error { return d.startIngotds(ctx, c, programs, ramdisk, api) }})
	if err != nil {
		return err
	}
	d.took("up", begun)
	return d.enrol(ctx)
}

// startIngotds starts two conductors on one PostgreSQL in the rack's namespace, where Keystone and Glance are at the
// same addresses of loopback as here, and an address at which that one answers which is up.
func (d *demo) startIngotds(ctx context.Context, c *cloud.Cloud, programs, ramdisk, api string) error {
	for _, url := range []string{c.Keystone.URL, c.URLs["image"]} {
		addr := hostOf(url)
		l, err := d.rack.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("lead %s into the rack: %w", addr, err)
		}
		d.forward(l, func() string { return addr })
	}
	base := filepath.Join(d.dir, "postgresql")
	if err := errors.Join(os.Chmod(d.dir, 0o755), os.Mkdir(base, 0o755)); err != nil { // for PostgreSQL's own user
		return err
	}
	var err error
	if d.database, err = pg.Create(base, pg.SocketPort, pg.OnlySocket); err != nil {
		return fmt.Errorf("make a database: %w", err)
	}
	if _, err := d.database.Query(ctx, "postgres", "CREATE DATABASE ingot"); err != nil {
		return fmt.Errorf("make a database: %w", err)
	}
	secret := make([]byte, 32)
	rand.Read(secret)
	network := strings.TrimSuffix(d.rack.Subnet.Addr().String(), "0")
	address := d.rack.Command(ctx, "ip", "address", "add", network+"2/24", "dev", "prov")
	if out, err := address.CombinedOutput(); err != nil {
		return fmt.Errorf("give the rack's host an address: %w: %s", err, out)
	}
	d.conductors = map[string]*lab.Conductor{}
	for i, name := range []string{"conductor-1", "conductor-2"} {
		at := fmt.Sprintf("%s%d", network, 1+i)
		conf, err := json.Marshal(map[string]any{ // JSON is YAML
			"data_dir": filepath.Join(d.dir, name), "hostname": name, "log_level": "debug",
			"store":  map[string]any{"url": pg.Socket(base, "ingot"), "key": base64.StdEncoding.EncodeToString(secret)},
			"agents": map[string]any{"listen": at + ":6386"},
			"api": map[string]any{"auth": "keystone", "keystone": map[string]any{"auth_url": c.Keystone.URL,
				"username": "ingot", "password": cloud.Password, "project": cloud.Project,
				"service_project": cloud.Project}},
			"glance": map[string]any{"url": c.URLs["image"]},
			// The machine boots by virtual media, whose image has its address: one host can't have two DHCP servers.
			"netboot": map[string]any{"dhcp": "off", "interface": "prov", "address": at, "ramdisk_dir": ramdisk,
				"images_dir": "", "kernel_params": labParams},
			// The controller's certificate, and its address, which is of the conductors' own host.
			"redfish":  map[string]any{"ca_dir": d.rack.Dir},
			"fetch":    map[string]any{"allow": []string{d.rack.Subnet.String()}},
			"hardware": map[string]any{"default_network_interface": "flat"},
			"power":    map[string]any{"sync_interval": "10s"},
			"deploy":   map[string]any{"boot_timeout": "5m"},
		})
		if err != nil {
			return err
		}
		file := filepath.Join(d.dir, name+".yaml")
		if err := os.WriteFile(file, conf, 0o600); err != nil {
			return err
		}
		if d.conductors[name], err = d.rack.StartConductor(ctx, filepath.Join(programs, "ingotd"), file, "127.0.0.1:0",
			filepath.Join(d.dir, name+".log")); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp", api)
	if err != nil {
		return err
	}
	d.forward(l, func() string {
		for _, name := range []string{"conductor-1", "conductor-2"} {
			if c := d.conductors[name]; c.PID() != 0 {
				return hostOf(c.URL())
			}
		}
		return ""
	})
	return nil
}

func hostOf(url string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	return host
}

// forward leads the connections of a listener to an address here, which is asked for anew for each.
func (d *demo) forward(l net.Listener, to func() string) {
	d.listeners = append(d.listeners, l)
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", to())
				if err != nil {
					return
				}
				defer out.Close()
				go func() {
					_, _ = io.Copy(out, in) // whichever side ends, the other one sees it
					_ = out.(*net.TCPConn).CloseWrite()
				}()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
}

// enrol makes the machine's node and takes it to available, as its operator does.
func (d *demo) enrol(ctx context.Context) error {
	begun := time.Now()
	d.say("Enrolling the machine. It is cleaned before it becomes available.")
	token, err := keystone.Token(ctx, d.cloud.Keystone.URL, "admin", "admin", keystone.System)
	if err != nil {
		return err
	}
	c, err := client.New(d.cloud.URLs["baremetal"], nil)
	if err != nil {
		return err
	}
	c.Login = client.Token(token)
	d.api = c
	m := d.rack.Node(machine)
	n, err := c.CreateNode(ctx, client.NewNode{Name: machine, Driver: "redfish", ResourceClass: "baremetal",
		BootIf: "redfish-virtual-media",
		DriverInfo: map[string]any{"redfish_address": m.BMCAddress, "redfish_username": m.User,
			"redfish_password": m.Password, "redfish_verify_ca": filepath.Base(m.CAFile)},
		Properties: map[string]any{"cpu_arch": "x86_64", "capabilities": "boot_mode:" + string(m.Spec.Firmware)},
		NetworkData: map[string]any{
			"links": []any{map[string]any{"id": "nic", "type": "phy", "ethernet_mac_address": m.MAC}},
			"networks": []any{map[string]any{"id": "prov", "network_id": "prov", "type": "ipv4", "link": "nic",
				"ip_address": strings.TrimSuffix(d.rack.Subnet.Addr().String(), "0") + "50",
				"netmask":    "255.255.255.0", "routes": []any{}}},
			"services": []any{}}})
	if err != nil {
		return err
	}
	if _, err := c.CreatePort(ctx, client.NewPort{NodeUUID: n.UUID, Address: m.MAC}); err != nil {
		return err
	}
	for _, step := range [][2]string{{"manage", "manageable"}, {"provide", "available"}} {
		if err := c.Provision(ctx, machine, client.ProvisionRequest{Target: step[0]}); err != nil {
			return err
		}
		if err := d.until(ctx, "the node is "+step[1], func() (bool, error) {
			n, err := c.Node(ctx, machine)
			if err == nil && strings.HasSuffix(string(n.ProvisionState), "failed") {
				err = fmt.Errorf("the node is %s: %s", n.ProvisionState, n.LastError)
			}
			return err == nil && string(n.ProvisionState) == step[1], err
		}); err != nil {
			return err
		}
	}
	d.took("enrolled and cleaned", begun)
	return nil
}

// most is how long anything may take: an emulated machine on a busy host needs minutes to boot.
const most = 15 * time.Minute

func (d *demo) until(ctx context.Context, what string, ok func() (bool, error)) error {
	for end := time.Now().Add(most); ; {
		done, err := ok()
		if err != nil || done {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: not so within %v", what, most)
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// pause is the time between two looks.
func pause(ctx context.Context) error {
	select {
	case <-time.After(time.Second):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *demo) say(text string) { fmt.Fprintln(d.out, "\n"+text) }

func (d *demo) took(what string, since time.Time) {
	fmt.Fprintf(d.out, "  %s after %.0f s\n", what, time.Since(since).Seconds())
}

// close ends all that runs.
func (d *demo) close() error {
	if d.cloud != nil {
		d.cloud.Stop()
	}
	var errs []error
	for _, l := range d.listeners {
		errs = append(errs, l.Close())
	}
	if d.rack != nil {
		ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
		defer stop()
		errs = append(errs, d.rack.Down(ctx)) // with the conductors
	}
	if d.database != nil {
		errs = append(errs, d.database.Stop())
	}
	return errors.Join(errs...)
}
