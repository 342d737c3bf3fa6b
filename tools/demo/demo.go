// Package demo shows the main job live: in a virtual rack a machine that is off becomes a running Debian, by the same
// commands that a user would type; then the same machine gets it once more without a reboot, and waterfalls say where
// every second went, both times.
//
// The rack stays up afterwards, to look around; Down ends it. Whatever goes wrong before, and Ctrl-C, takes everything
// down again.
package demo

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
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/observe/trace"
	"github.com/ingot-metal/ingot/conductor/rest"
	images "github.com/ingot-metal/ingot/images/build"
	ramdisk "github.com/ingot-metal/ingot/initramfs/build"
	"github.com/ingot-metal/ingot/tools/lab"
)

// Name is the demo's lab.
const Name = "demo"

const (
	machine  = "server-1"
	hostname = "web-1"
	// applied is the line that the config drive's user data makes the new system print on its console.
	applied  = "Ingot demo: cloud-init has applied the config drive"
	bootWait = 10 * time.Minute
	// Addresses that are leased. The first goes to the only machine.
	rangeStart, rangeEnd = "10.77.0.50", "10.77.0.99"
	subnet               = "10.77.0.0/24" // a lab's usual one
)

// Options of a demo.
type Options struct {
	Firmware lab.Firmware
	BMC      lab.BMCKind // what the machine's controller speaks
	// Several runs three conductors on one PostgreSQL, and takes them away one after another during the deployment.
	Several bool
	// Dir keeps what is built (ramdisk, image) and the rack's files.
	Dir string
	// Ingotd is the conductor's program; Self starts this program's `lab run`.
	Ingotd string
	Self   []string
	// Command carries out a command line of ingot, so that the output shows the commands that a user would type.
	Command func(ctx context.Context, endpoint string, args ...string) error
	Out     io.Writer
	// Stay leaves the rack up at the end.
	Stay bool
}

type demo struct {
	Options
	started time.Time
	status  lab.Status
	api     *client.Client // of the first conductor
	node    lab.NodeStatus
	osMarks []mark // what the console said, and when
	timings []timing
}

// timing is the trace of one deployment.
type timing struct {
	title string
	trace rest.Trace
}

// Run shows the demo.
func Run(ctx context.Context, o Options) (err error) {
	d := &demo{Options: o, started: time.Now()}
	kit, err := d.build(ctx)
	if err != nil {
		return err
	}
	if err := d.up(ctx, kit); err != nil {
		return err
	}
	defer func() {
		if err == nil && d.Stay {
			return
		}
		if s, qerr := lab.Query(context.WithoutCancel(ctx), Name); err != nil && qerr == nil && len(s.Nodes) > 0 &&
			s.Nodes[0].Failure != "" {
			err = fmt.Errorf("%w; the machine %s: %s", err, machine, s.Nodes[0].Failure)
		}
		fmt.Fprintln(d.Out, "\nTaking the rack down.")
		if ctx.Err() != nil {
			err = errors.New("the demo was interrupted; nothing of it is left running")
		}
		if derr := lab.TakeDown(context.WithoutCancel(ctx), Name, err == nil); derr != nil {
			err = errors.Join(err, derr)
		} else if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w\nlogs: %s (conductor, lab), %s (console)", err, d.status.Dir, d.node.ConsoleLog)
		}
	}()
	if err := d.job(ctx, kit); err != nil {
		return err
	}
	if !d.Several {
		if err := d.again(ctx, kit); err != nil {
			return err
		}
	}
	if err := d.waterfalls(); err != nil {
		return err
	}
	if d.Stay {
		d.around()
	}
	return nil
}

// Down ends the demo's rack and removes its files. It is no error if there is none.
func Down(ctx context.Context) error {
	err := lab.TakeDown(ctx, Name, true)
	var no *lab.NotUpError
	if errors.As(err, &no) {
		return nil
	}
	return err
}

// parts are the built files that the demo needs.
type parts struct {
	ramdisk string
	image   *images.Result
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.Out, format+"\n", args...) }

func (d *demo) build(ctx context.Context) (*parts, error) {
	d.say("== Build the ramdisk and the image ==")
	log := slog.New(slog.DiscardHandler)
	p := &parts{ramdisk: filepath.Join(d.Dir, "ramdisk", "lab")}
	d.say("The ramdisk: a Debian kernel, and the agent with the drivers for virtual machines.")
	rd, err := ramdisk.Build(ctx, ramdisk.Options{Profile: "lab", Out: p.ramdisk, Log: log})
	if err != nil {
		return nil, err
	}
	d.say("  kernel %.1f MB, initramfs %.1f MB, %.1f s", float64(rd.Manifest.Kernel.Size)/1e6,
		float64(rd.Manifest.Initramfs.Size)/1e6, rd.Took.Seconds())
	d.say("The image: Debian 12 with cloud-init. The first build takes two or three minutes; later runs use it again.")
	if p.image, err = images.Debian(ctx,
		images.Options{Out: filepath.Join(d.Dir, "images", "debian"), Log: log}); err != nil {
		return nil, err
	}
	var table strings.Builder
	if err := p.image.Print(&table); err != nil {
		return nil, err
	}
	for line := range strings.Lines(table.String()) {
		d.say("  %s", strings.TrimRight(line, "\n"))
	}
	return p, keyPair(filepath.Join(d.Dir, "demo-key"))
}

// up starts the rack and a conductor in it.
func (d *demo) up(ctx context.Context, p *parts) error {
	if _, err := lab.Query(ctx, Name); err == nil {
		d.say("\nAn earlier demo is still up and is taken down first.")
	}
	if err := Down(ctx); err != nil {
		return err
	}
	d.say("\n== The rack ==")
	dir := filepath.Join(d.Dir, "demo")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	daemon := lab.Daemon{
		Options: lab.Options{
			Name: Name, Dir: dir, BMC: d.BMC, ProbeKernel: filepath.Join(p.ramdisk, "vmlinuz"),
			Nodes: []lab.NodeSpec{
				{Name: machine, Firmware: d.Firmware, MemoryMiB: 1024, Disks: []lab.DiskSpec{{SizeBytes: 8 << 30}}}},
		},
		Database: d.Several,
	}
	var err error
	if daemon.Conductors, err = d.conductors(p, dir); err != nil {
		return err
	}
	d.status, err = lab.Launch(ctx, d.Self, daemon)
	if err != nil {
		return err
	}
	d.node = d.status.Nodes[0]
	d.say("  network      namespace %s, %s; nothing touches this machine's own network", d.status.Namespace,
		d.status.Subnet)
	d.say("  %-12s %s firmware, %d MiB of RAM, one disk of 8 GiB, off; BMC %s speaks %s", machine,
		d.node.Firmware, d.node.MemoryMiB, d.node.BMCAddress, d.protocol())
	d.say("  accelerator  %s: %s", d.status.Accel, d.status.AccelWhy)
	for _, s := range d.status.Services {
		d.say("  %-12s process %d", s.Name, s.PID)
	}
	for i, c := range d.status.Conductors {
		d.say("  %-12s %s (process %d)", names(d.Several)[i], c.URL, c.PID)
	}
	d.api, err = client.New(d.status.Conductors[0].URL, nil)
	return err
}

// names are those of the conductors.
func names(several bool) []string {
	if several {
		return []string{"conductor-1", "conductor-2", "conductor-3"}
	}
	return []string{"demo"}
}

// conductors writes the configurations of the conductors.
func (d *demo) conductors(p *parts, dir string) ([]lab.ConductorSpec, error) {
	secret := make([]byte, 32)
	rand.Read(secret)
	var all []lab.ConductorSpec
	for i, name := range names(d.Several) {
		s := lab.ConductorSpec{Bin: d.Ingotd, Config: filepath.Join(dir, name+".yaml"), RESTAddr: restAddress(),
			Log: filepath.Join(dir, name+".log")}
		settings := d.settings(p, dir, name)
		if d.Several {
			address := netip.AddrFrom4([4]byte{10, 77, 0, byte(1 + i)})
			if i > 0 {
				s.Address, s.RESTAddr = address, "127.0.0.1:0"
			}
			s.StartAgain = startAgain
			settings["store"] = map[string]any{"url": lab.DatabaseURL(dir),
				"key": base64.StdEncoding.EncodeToString(secret)}
			settings["agents"] = map[string]any{"listen": address.String() + ":6386"}
			settings["netboot"].(map[string]any)["address"] = address.String()
		}
		conf, err := json.MarshalIndent(settings, "", "  ") // JSON is YAML
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(s.Config, conf, 0o600); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// settings are those of one conductor.
func (d *demo) settings(p *parts, dir, name string) map[string]any {
	settings := map[string]any{
		"data_dir": filepath.Join(dir, name), "hostname": name,
		"netboot": map[string]any{
			"dhcp": "server", "interface": "prov", "range_start": rangeStart, "range_end": rangeEnd,
			"ramdisk_dir": p.ramdisk, "images_dir": p.image.Dir,
			"kernel_params": "quiet no_timer_check console=tty0 console=ttyS0,115200n8",
		},
		"power": map[string]any{"sync_interval": "10s"},
	}
	if d.BMC == lab.Redfish {
		settings["netboot"] = map[string]any{
			"dhcp": "off", "interface": "prov", "ramdisk_dir": p.ramdisk, "images_dir": p.image.Dir,
			"kernel_params": "quiet no_timer_check console=tty0 console=ttyS0,115200n8",
		}
		// The controllers' certificates, and their addresses, which are of the conductor's own host.
		settings["redfish"] = map[string]any{"ca_dir": dir}
		settings["fetch"] = map[string]any{"allow": []string{subnet}}
	}
	return settings
}

func (d *demo) protocol() string {
	if d.BMC == lab.Redfish {
		return "Redfish"
	}
	return "IPMI 2.0"
}

// restAddress is the API's usual one, or a free one if that is taken.
func restAddress() string {
	const usual = "127.0.0.1:6385"
	l, err := net.Listen("tcp", usual)
	if err != nil {
		return "127.0.0.1:0"
	}
	l.Close()
	return usual
}

// run shows a command line and carries it out.
func (d *demo) run(ctx context.Context, why string, args ...string) error {
	shown := make([]string, len(args))
	for i, a := range args {
		shown[i] = a
		if strings.ContainsAny(a, " \n#") {
			shown[i] = "'" + a + "'"
		}
	}
	d.say("\n# %s\n$ ingot %s", why, strings.Join(shown, " "))
	return d.Command(ctx, d.api.Endpoint(), args...)
}

func (d *demo) networkData() string { return filepath.Join(d.status.Dir, "network_data.json") }

// networkJSON gives the machine's card its address, for the agent and for the system.
func networkJSON(mac string) []byte {
	return fmt.Appendf(nil, `{
  "links": [{"id": "nic", "type": "phy", "ethernet_mac_address": %q}],
  "networks": [{"id": "prov", "network_id": "prov", "type": "ipv4", "link": "nic", "ip_address": %q, "netmask": "255.255.255.0", "routes": []}],
  "services": []
}
`, mac, rangeStart)
}

// job is the main job, from a powered-off machine to a login prompt.
func (d *demo) job(ctx context.Context, p *parts) error {
	d.say("\n== From power-off to a running Debian ==")
	userData := filepath.Join(d.status.Dir, "user-data")
	if err := os.WriteFile(userData, []byte("#cloud-config\nruncmd:\n- [sh, -c, 'echo "+applied+" > /dev/console']\n"),
		0o644); err != nil {
		return err
	}
	create := []string{"node", "create", machine,
		"--bmc", d.node.BMCAddress, "--bmc-user", d.node.User, "--bmc-password", d.node.Password, "--boot-mode",
		string(d.Firmware), "--network-interface", "flat"}
	how := "over real RMCP+ packets"
	begins := "The machine boots the agent from the network, and the agent reports the hardware."
	if d.BMC == lab.Redfish {
		if err := os.WriteFile(d.networkData(), networkJSON(d.node.MAC), 0o644); err != nil {
			return err
		}
		d.say("No DHCP, TFTP or PXE: the agent comes from virtual media, and its address, %s, from network data.", rangeStart)
		create = append(create, "--driver", "redfish", "--driver-info",
			"redfish_verify_ca="+filepath.Base(d.node.CAFile), "--boot-interface", "redfish-virtual-media",
			"--network-data", d.networkData())
		how = "over HTTPS, whose certificate is checked, too"
		begins = "The controller reads the agent's disc from the conductor, the machine boots it, and the agent reports the hardware."
	}
	for _, c := range []struct {
		why  string
		args []string
	}{
		{"A node is the address and the credentials of its BMC. No MAC address, no serial number.", create},
		{"The credentials are checked " + how + ", and the machine's identity is read: it is recognised by that when it boots.", []string{"node", "manage", machine}},
		{begins,
			[]string{"node", "inspect", machine}},
		{"The hardware.", []string{"node", "inventory", machine}},
		{"The machine is cleaned and becomes available.", []string{"node", "provide", machine}},
	} {
		if err := d.run(ctx, c.why, c.args...); err != nil {
			return err
		}
	}
	return d.deploy(ctx, p, "Ordinary: with a reboot into the agent, and one into the system",
		"The image goes to the disk in one pass; then the config drive; the partition table last.")
}

// again is the same on a machine whose agent stays, into the system by kexec.
func (d *demo) again(ctx context.Context, p *parts) error {
	d.say("\n== The same without a reboot ==")
	for _, c := range []struct {
		why  string
		args []string
	}{
		{"The agent stays between jobs (fast track) and starts the system itself (kexec). Both are settings of a node, or of the conductor for all nodes.",
			[]string{"node", "set", machine, "--driver-info", "fast_track=true", "--driver-info",
				"boot_instance=kexec"}},
		{"The machine is given back: turned off, booted into the agent, cleaned. The agent stays.",
			[]string{"node", "undeploy", machine, "--yes"}},
	} {
		if err := d.run(ctx, c.why, c.args...); err != nil {
			return err
		}
	}
	return d.deploy(ctx, p, "Without a reboot: the agent is there, and starts the system by kexec",
		"The same command as before. The machine is not turned off.")
}

// deploy deploys the machine and follows the system up to its login prompt.
func (d *demo) deploy(ctx context.Context, p *parts, title, why string) error {
	console, err := os.Stat(d.node.ConsoleLog)
	if err != nil {
		return fmt.Errorf("look at the machine's console: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := d.watchConsole(ctx, console.Size())
	zst := p.image.File(p.image.Zst)
	image := zst.File
	if d.Several {
		if image, err = d.elsewhere(ctx, image); err != nil {
			return err
		}
	}
	args := []string{"node", "deploy", machine, "--image", image, "--checksum", "sha256:" + zst.SHA256, "--hostname",
		hostname, "--ssh-key", filepath.Join(d.Dir, "demo-key.pub"), "--user-data",
		filepath.Join(d.status.Dir, "user-data")}
	if d.BMC == lab.Redfish {
		args = append(args, "--network-data", d.networkData())
	}
	if d.Several {
		if err := d.disturbed(ctx, why, args...); err != nil {
			return err
		}
	} else if err := d.run(ctx, why, args...); err != nil {
		return err
	}
	d.say("\n# The system starts. Its console:")
	limit := time.NewTimer(bootWait)
	defer limit.Stop()
	select {
	case err := <-watch:
		if err != nil {
			return err
		}
	case <-limit.C:
		return fmt.Errorf("the new system did not say %q and %q within %v; its console is in %s", hostname+" login:",
			applied, bootWait, d.node.ConsoleLog)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	line, err := d.api.Timeline(ctx, machine, "")
	if err != nil {
		return fmt.Errorf("read the time line: %w", err)
	}
	t := trace.Last(line.Traces, "deploy")
	if t == nil {
		return errors.New("the deployment is not on the time line")
	}
	for i, m := range d.osMarks {
		name, kind := "OS boot: until "+m.name, trace.OS
		switch {
		case i > 0 || m.name != osStarts:
		case t.Kexecs == 0:
			name, kind = "firmware, boot loader", trace.Firmware
		default:
			name, kind = "kexec: flush, unmount, jump", trace.Kexec
		}
		trace.Then(t, name, kind, "", m.at)
	}
	d.timings = append(d.timings, timing{title, *t})
	return nil
}

// waterfalls show where every second went.
func (d *demo) waterfalls() error {
	d.say("\n== Where the time went ==")
	for _, x := range d.timings {
		d.say("\n%s\n", x.title)
		if err := trace.Waterfall(d.Out, x.trace, 110); err != nil {
			return err
		}
	}
	d.say("\n== Both times, from the request to a configured system ==")
	for _, x := range d.timings {
		d.say("  %6.1f s  %d times through the firmware  %s", x.trace.Seconds, x.trace.FirmwareBoots, x.title)
	}
	d.say("  The firmware of a virtual machine takes seconds, that of a server 3 to 15 minutes each time.")
	d.say("  total, including the build: %.0f s", time.Since(d.started).Seconds())
	return nil
}

func (d *demo) around() {
	d.say(`
== Look around ==
The machine is still running, and so is the conductor:

  export INGOT_ENDPOINT=%[1]s
  bin/ingot node list                      the nodes of the conductor
  bin/ingot node timeline %[2]s         the time line in full
  bin/ingot lab console --name %[3]s %[2]s    its console; Ctrl-] leaves
  ip netns exec %[4]s ssh -i %[5]s debian@%[6]s
                                           the new system

  make demo-down                           takes everything down
`, d.api.Endpoint(), machine, Name, d.status.Namespace, filepath.Join(d.Dir, "demo-key"), rangeStart)
}

// keyPair makes an ssh key at path and its public half at path.pub, unless there is one.
func keyPair(path string) error {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ingot-demo", "-f",
			path).CombinedOutput()
		if err != nil {
			return fmt.Errorf("make an ssh key (package openssh-client): %w: %s", err, out)
		}
	}
	return nil
}
