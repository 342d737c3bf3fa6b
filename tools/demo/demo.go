// Package demo shows the main job live: in a virtual rack a machine that is off becomes a running Debian, by the same commands that
// a user would type, and a table says where every second went.
//
// The rack stays up afterwards, to look around; Down ends it. Whatever goes wrong before, and Ctrl-C, takes everything down again.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	images "github.com/ingot-metal/ingot/images/build"
	ramdisk "github.com/ingot-metal/ingot/initramfs/build"
	"github.com/ingot-metal/ingot/tools/lab"
)

// Name is the demo's lab.
const Name = "demo"

const (
	machine  = "server-1"
	hostname = "web-1"
	// applied is what the config drive's user data makes the new system say on its console.
	applied  = "Ingot demo: cloud-init has applied the config drive"
	bootWait = 10 * time.Minute
	// Addresses that are leased. The first goes to the only machine.
	rangeStart, rangeEnd = "10.77.0.50", "10.77.0.99"
)

// Options of a demo.
type Options struct {
	Firmware lab.Firmware
	// Dir keeps what is built (ramdisk, image) and the rack's files.
	Dir string
	// Ingotd is the conductor's program; Self starts this program's `lab run`.
	Ingotd string
	Self   []string
	// Command carries out a command line of ingot, so that what is shown is what a user would type.
	Command func(ctx context.Context, endpoint string, args ...string) error
	Out     io.Writer
	// Stay leaves the rack up at the end.
	Stay bool
}

type demo struct {
	Options
	started time.Time
	status  lab.Status
	api     *client.Client
	node    lab.NodeStatus
	osMarks []mark // what the console said, and when
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
	if err := d.table(ctx); err != nil {
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

// parts is what the demo needs to have been built.
type parts struct {
	ramdisk string
	image   *images.Result
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.Out, format+"\n", args...) }

func (d *demo) build(ctx context.Context) (*parts, error) {
	d.say("== What the rack needs ==")
	log := slog.New(slog.DiscardHandler)
	p := &parts{ramdisk: filepath.Join(d.Dir, "ramdisk", "lab")}
	d.say("The ramdisk: a Debian kernel, and the agent with the drivers for virtual machines.")
	rd, err := ramdisk.Build(ctx, ramdisk.Options{Profile: "lab", Out: p.ramdisk, Log: log})
	if err != nil {
		return nil, err
	}
	d.say("  kernel %.1f MB, initramfs %.1f MB, %.1f s", float64(rd.Manifest.Kernel.Size)/1e6, float64(rd.Manifest.Initramfs.Size)/1e6, rd.Took.Seconds())
	d.say("The image: Debian 12 with cloud-init. The first time takes two or three minutes; later it is used again.")
	if p.image, err = images.Debian(ctx, images.Options{Out: filepath.Join(d.Dir, "images", "debian"), Log: log}); err != nil {
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
		d.say("\nAn earlier demo is still up; it is taken down first.")
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
	conf, err := json.MarshalIndent(map[string]any{ // JSON is YAML
		"data_dir": filepath.Join(dir, "conductor"), "hostname": "demo",
		"netboot": map[string]any{
			"dhcp": "server", "interface": "prov", "range_start": rangeStart, "range_end": rangeEnd,
			"ramdisk_dir": p.ramdisk, "images_dir": p.image.Dir, "kernel_params": "quiet console=tty0 console=ttyS0,115200n8",
		},
		"power": map[string]any{"sync_interval": "10s"},
	}, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "ingotd.yaml")
	if err := os.WriteFile(file, conf, 0o600); err != nil {
		return err
	}
	d.status, err = lab.Launch(ctx, d.Self, lab.Daemon{
		Options: lab.Options{
			Name: Name, Dir: dir, ProbeKernel: filepath.Join(p.ramdisk, "vmlinuz"),
			Nodes: []lab.NodeSpec{{Name: machine, Firmware: d.Firmware, MemoryMiB: 1024, Disks: []lab.DiskSpec{{SizeBytes: 8 << 30}}}},
		},
		Conductor: &lab.ConductorSpec{Bin: d.Ingotd, Config: file, RESTAddr: restAddress(), Log: filepath.Join(dir, "ingotd.log")},
	})
	if err != nil {
		return err
	}
	d.node = d.status.Nodes[0]
	d.say("  network      namespace %s, %s; nothing touches this machine's own network", d.status.Namespace, d.status.Subnet)
	d.say("  %-12s %s firmware, %d MiB of RAM, one disk of 8 GiB, off; BMC %s speaks IPMI 2.0", machine, d.node.Firmware, d.node.MemoryMiB, d.node.BMCAddress)
	d.say("  accelerator  %s: %s", d.status.Accel, d.status.AccelWhy)
	d.say("  conductor    %s (process %d)", d.status.Conductors[0].URL, d.status.Conductors[0].PID)
	d.api, err = client.New(d.status.Conductors[0].URL, nil)
	return err
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

// job is the main job, from a powered-off machine to a login prompt.
func (d *demo) job(ctx context.Context, p *parts) error {
	d.say("\n== From power-off to a running Debian ==")
	userData := filepath.Join(d.status.Dir, "user-data")
	if err := os.WriteFile(userData, []byte("#cloud-config\nruncmd:\n- [sh, -c, 'echo "+applied+" > /dev/console']\n"), 0o644); err != nil {
		return err
	}
	keyFile := filepath.Join(d.Dir, "demo-key.pub")
	zst := p.image.File(p.image.Zst)
	for _, c := range []struct {
		why  string
		args []string
	}{
		{"A node is the address and the credentials of its BMC. No MAC address, no serial number.", []string{"node", "create", machine,
			"--bmc", d.node.BMCAddress, "--bmc-user", d.node.User, "--bmc-password", d.node.Password, "--boot-mode", string(d.Firmware), "--network-interface", "flat"}},
		{"The credentials are tried, over real RMCP+ packets, and the machine's identity is read: that admits it to boot.", []string{"node", "manage", machine}},
		{"It boots the agent from the network, and the agent tells what the machine is.", []string{"node", "inspect", machine}},
		{"What was found.", []string{"node", "inventory", machine}},
		{"Cleaning, on the way to available.", []string{"node", "provide", machine}},
	} {
		if err := d.run(ctx, c.why, c.args...); err != nil {
			return err
		}
	}
	console, err := os.Stat(d.node.ConsoleLog)
	if err != nil {
		return fmt.Errorf("look at the machine's console: %w", err)
	}
	watch := d.watchConsole(ctx, console.Size())
	err = d.run(ctx, "The image goes to the disk in one pass; then the config drive; the partition table last.", "node", "deploy", machine,
		"--image", zst.File, "--checksum", "sha256:"+zst.SHA256, "--hostname", hostname, "--ssh-key", keyFile, "--user-data", userData)
	if err != nil {
		return err
	}
	d.say("\n# The machine starts from its disk. What it says on its console:")
	select {
	case err := <-watch:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *demo) around() {
	d.say(`
== Look around ==
The machine is still running, and so is the conductor:

  export INGOT_ENDPOINT=%[1]s
  bin/ingot node list                      what the conductor knows
  bin/ingot node timeline %[2]s         where the time went, in full
  bin/ingot lab console --name %[3]s %[2]s    its console; Ctrl-] leaves
  ip netns exec %[4]s ssh -i %[5]s debian@%[6]s
                                           the new system

  make demo-down                           ends all of it
`, d.api.Endpoint(), machine, Name, d.status.Namespace, filepath.Join(d.Dir, "demo-key"), rangeStart)
}

// keyPair makes an ssh key at path and its public half at path.pub, unless there is one.
func keyPair(path string) error {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ingot-demo", "-f", path).CombinedOutput()
		if err != nil {
			return fmt.Errorf("make an ssh key (package openssh-client): %w: %s", err, out)
		}
	}
	return nil
}
