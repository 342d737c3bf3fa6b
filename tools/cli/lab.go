package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/tools/lab"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/site"
)

func (p *program) labCommand() *cobra.Command {
	return group(&cobra.Command{
		Use: "lab", Short: "A virtual rack of machines with controllers, in a network namespace of its own",
		Long: `A virtual rack: QEMU machines with controllers that speak IPMI or Redfish, on a network inside a network namespace, where nothing of it
touches the network of this host. It needs root, QEMU and iproute2, and goes on running until "ingot lab down".`,
	}, p.labUp(), p.labDown(), p.labStatus(), p.labConsole(), p.labPower(), p.labDemo(), p.labFleet(), p.labRun())
}

// labName is the option that names a lab.
func labName(name *string) option {
	*name = "lab"
	return opt("name", name, "name of the lab").offering(
		func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			names, _ := lab.List() // a shell offers nothing then
			return names, noFiles
		})
}

// rack is the lab that `lab up` starts.
type rack struct {
	name, dir, subnet, firmware, accel string
	bmc, personality                   string
	nodes, memory                      int
	disks                              []string
	ramdisk, images, ingotd, api       string
	site                               site.Site
	cloud                              cloudOptions
}

func (p *program) labUp() *cobra.Command {
	r := rack{nodes: 1, firmware: "bios", disks: []string{"virtio:8G"}, accel: "auto", bmc: "ipmi",
		api: "127.0.0.1:6385"}
	return local(&cobra.Command{
		Use: "up", Short: "Start a lab",
		Long: `Start a virtual rack. With --ramdisk a conductor runs in it, too, and serves its API on this host at --api.

By itself the conductor is the DHCP server of the rack's network. To try the shape of another network, put that network's DHCP
server into the rack (--dhcp), with the mode that the conductor is to have beside it (--netboot):

  proxy  the DHCP server gives addresses and knows nothing of Ingot
  off    the DHCP server names Ingot's boot files, configured as docs/howto/dhcp-servers.md describes

With --netboot off, --bmc redfish and no DHCP server nothing boots from the network: machines start from virtual media only.

With --dhcp-relay the machines are in a network of their own (with --subnet 10.77.0.0/24 it is 10.77.1.0/24), behind a router with
that relay; in mode proxy the conductor is the second address that the relay sends to. These servers come from Debian's packages,
which are fetched with apt-get into Ingot's cache and run from there, inside the rack; nothing is installed on this host. Their
configuration and logs are in the folder "site" in the lab's folder.

With --cloud the machines are servers of an OpenStack cloud of clouds.yaml instead: a network without DHCP and servers that are off are made
there, and enrolled as nodes of hardware type openstack at the conductor of --endpoint. See docs/howto/virtual-bare-metal.md.`,
		Example: `  ingot ramdisk build --out ramdisk
  ingot lab up --nodes 2 --ramdisk ramdisk --images images
  ingot lab up --bmc redfish --personality dell-idrac9
  ingot lab up --ramdisk ramdisk --images images --dhcp kea --dhcp-relay dhcrelay --netboot proxy --firmware uefi
  ingot node create node-0 --bmc 10.77.0.201 --bmc-user admin --bmc-password ingot-lab
  ingot lab up --cloud mycloud --nodes 3 --flavor m1.large --boot rescue --boot-image ipxe`,
	}, append(r.cloud.options(), []option{
		labName(&r.name),
		opt("nodes", &r.nodes, "number of machines"),
		opt("firmware", &r.firmware, "bios or uefi", "bios", "uefi"),
		opt("bmc", &r.bmc, "what the machines' controllers speak: ipmi, redfish or both", "ipmi", "redfish", "both"),
		opt("personality", &r.personality, "what Redfish services behave as (default: generic, by the standard)",
			redfish.Personalities()...),
		opt("memory", &r.memory, "memory of each machine in MiB (default: the lab's)"),
		opt("disk", &r.disks, "BUS:SIZE[:SERIAL] of each machine's disks; BUS is virtio, nvme or sata"),
		opt("subnet", &r.subnet, "provisioning network, an IPv4 /24 (default 10.77.0.0/24)"),
		opt("dir", &r.dir, "folder for disks and logs (default: below /var/tmp/ingot-lab)"),
		opt("accel", &r.accel, "auto, tcg or kvm; auto takes KVM only when a short boot with it succeeds", "auto", "tcg", "kvm"),
		opt("ramdisk", &r.ramdisk, "folder of a ramdisk: run a conductor with it"),
		opt("images", &r.images, "folder of images that the conductor serves"),
		opt("ingotd", &r.ingotd, "the conductor's program (default: beside this one, or in $PATH)"),
		opt("api", &r.api, "address of this host for the conductor's API"),
		opt("dhcp", &r.site.DHCP, "a DHCP server beside the conductor: dnsmasq, dhcpd (ISC) or kea (default: none)",
			site.Dnsmasq, site.Dhcpd, site.Kea),
		opt("dhcp-relay", &r.site.Relay,
			"put machines behind a router with this DHCP relay: dhcrelay (ISC) or dnsmasq (default: none)",
			site.Dhcrelay, site.Dnsmasq),
		opt("netboot", &r.site.Netboot,
			"netboot.dhcp of the conductor: server, proxy or off (default: server, and proxy with --dhcp)",
			site.Server, site.Proxy, site.Off),
	}...), func(ctx context.Context, _ []string) error {
		if r.cloud != (cloudOptions{}) {
			return p.cloudUp(ctx, r)
		}
		return p.startLab(ctx, r)
	})
}

func (p *program) startLab(ctx context.Context, r rack) error {
	d, err := r.daemon()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if packages := d.Site.Packages(); len(packages) > 0 {
		p.note("The DHCP server and relay are from Debian's %s: fetched into Ingot's cache unless they are there, not installed.", strings.Join(packages, ", "))
		o := d.Options
		o.Log = slog.New(slog.NewTextHandler(p.stderr, nil))
		if _, err := lab.FetchSite(ctx, o); err != nil {
			return err
		}
	}
	p.note("Starting a lab of %d (%s) ...", r.nodes, r.firmware)
	s, err := lab.Launch(ctx, []string{self, "lab", "run"}, d)
	if err != nil {
		return fmt.Errorf("start the lab: %w", err)
	}
	if err := p.showLab(s); err != nil || p.values() || len(s.Nodes) == 0 || len(s.Conductors) == 0 {
		return err
	}
	n, at := s.Nodes[0], ""
	if url := "http://" + r.api; url != defaultEndpoint {
		at = " --endpoint " + url
	}
	how := ""
	if n.BMC == lab.Redfish {
		how = " --driver redfish --driver-info redfish_verify_ca=" + filepath.Base(n.CAFile)
	}
	p.note("Next: ingot node create %s%s --bmc %s --bmc-user %s --bmc-password %s%s", n.Name, how, n.BMCAddress, n.User,
		n.Password, at)
	return nil
}

// daemon describes the lab, and writes the conductor's configuration if there is to be one.
func (r *rack) daemon() (lab.Daemon, error) {
	var d lab.Daemon
	r.bmc = cmp.Or(r.bmc, string(lab.IPMI))
	if r.nodes < 1 || r.nodes > 50 {
		return d, usage("--nodes %d: a lab has 1 to 50 machines", r.nodes)
	}
	if r.firmware != "bios" && r.firmware != "uefi" {
		return d, usage("--firmware %q is neither bios nor uefi", r.firmware)
	}
	if !slices.Contains([]string{"auto", "tcg", "kvm"}, r.accel) {
		return d, usage("--accel %q is none of auto, tcg, kvm", r.accel)
	}
	var disks []lab.DiskSpec
	for _, s := range r.disks {
		disk, err := lab.ParseDisk(s)
		if err != nil {
			return d, usage("--disk: %v", err)
		}
		if disk.Serial != "" && r.nodes > 1 {
			return d, usage("--disk %s: %d machines can't have disks of the same serial", s, r.nodes)
		}
		disks = append(disks, disk)
	}
	d.Name, d.Accel = r.name, lab.Accel(r.accel)
	d.BMC, d.Personality = lab.BMCKind(r.bmc), r.personality
	if !slices.Contains([]lab.BMCKind{lab.IPMI, lab.Redfish, lab.Both}, d.BMC) {
		return d, usage("--bmc %q is none of ipmi, redfish, both", r.bmc)
	}
	if _, ok := redfish.ByName(r.personality); !ok || r.personality != "" && d.BMC == lab.IPMI {
		return d, usage("--personality is one of %s, of controllers that speak Redfish (--bmc redfish)",
			strings.Join(redfish.Personalities(), ", "))
	}
	d.Dir = cmp.Or(r.dir, filepath.Join("/var/tmp/ingot-lab", r.name))
	if err := absolute(&d.Dir); err != nil {
		return d, err
	}
	var err error
	subnet := cmp.Or(r.subnet, "10.77.0.0/24")
	if d.Subnet, err = netip.ParsePrefix(subnet); err != nil {
		return d, usage("--subnet %q is not a network such as 10.77.0.0/24", subnet)
	}
	if d.Site, err = r.site.Fill(); err != nil {
		return d, usage("%v", err)
	}
	if d.Site.Netboot == site.Off && d.Site.DHCP == "" && d.BMC == lab.IPMI {
		return d, usage("--netboot off without --dhcp: no server would give machines an address, and controllers with IPMI have no virtual media to boot from; choose a DHCP server, or --bmc redfish")
	}
	for range r.nodes {
		d.Nodes = append(d.Nodes,
			lab.NodeSpec{Firmware: lab.Firmware(r.firmware), MemoryMiB: r.memory, Disks: slices.Clone(disks)})
	}
	if r.ramdisk == "" {
		return d, nil
	}
	d.ProbeKernel = filepath.Join(r.ramdisk, "vmlinuz")
	if err := absolute(&d.ProbeKernel); err != nil {
		return d, err
	}
	c, err := r.conductor(d.Dir, d.Subnet, d.Site.Netboot)
	if err == nil {
		d.Conductors = []lab.ConductorSpec{*c}
	}
	return d, err
}

// conductor writes the configuration of a conductor for the lab.
func (r *rack) conductor(dir string, subnet netip.Prefix, mode string) (*lab.ConductorSpec, error) {
	if r.ingotd == "" {
		if self, err := os.Executable(); err == nil {
			r.ingotd = filepath.Join(filepath.Dir(self), "ingotd")
		}
		if _, err := os.Stat(r.ingotd); err != nil {
			if r.ingotd, err = exec.LookPath("ingotd"); err != nil {
				return nil, errors.New(
					"ingotd is neither beside this program nor in $PATH: say where it is with --ingotd")
			}
		}
	}
	if _, err := os.Stat(filepath.Join(r.ramdisk, "manifest.json")); err != nil {
		return nil, advise(fmt.Errorf("%s is not a ramdisk: %w", r.ramdisk, err),
			"Build one: ingot ramdisk build --out %s", r.ramdisk)
	}
	for _, path := range []*string{&r.ingotd, &r.ramdisk, &r.images} {
		if err := absolute(path); err != nil {
			return nil, err
		}
	}
	host := func(n byte) string {
		a := subnet.Masked().Addr().As4()
		a[3] = n
		return netip.AddrFrom4(a).String()
	}
	netboot := map[string]any{
		"dhcp": mode, "interface": "prov", "ramdisk_dir": r.ramdisk, "images_dir": r.images,
	}
	if mode == site.Server {
		netboot["range_start"], netboot["range_end"] = host(50), host(199)
	}
	conf := map[string]any{"data_dir": filepath.Join(dir, "conductor"), "netboot": netboot}
	if r.bmc != string(lab.IPMI) {
		// The controllers' addresses are of the lab's own network, and so of the conductor's host.
		conf["redfish"] = map[string]any{"ca_dir": dir}
		conf["fetch"] = map[string]any{"allow": []string{subnet.String()}}
	}
	text, err := json.MarshalIndent(conf, "", "  ") // JSON is YAML
	if err != nil {
		return nil, fmt.Errorf("write configuration of the conductor: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make folder of the lab: %w", err)
	}
	file := filepath.Join(dir, "ingotd.yaml")
	if err := os.WriteFile(file, append(text, '\n'), 0o600); err != nil {
		return nil, fmt.Errorf("write configuration of the conductor: %w", err)
	}
	return &lab.ConductorSpec{Bin: r.ingotd, Config: file, RESTAddr: r.api, Log: filepath.Join(dir, "ingotd.log")}, nil
}

func (p *program) labDown() *cobra.Command {
	var name, cloud string
	var keep bool
	return local(&cobra.Command{Use: "down", Short: "Stop a lab and remove its disks"},
		[]option{labName(&name), opt("keep", &keep, "keep disks and logs"),
			opt("cloud", &cloud, "cloud of clouds.yaml in which the lab is: remove its nodes, servers and network").freeText()},
		func(ctx context.Context, _ []string) error {
			switch {
			case cloud != "" && keep:
				return usage("--keep is not for a lab in a cloud")
			case cloud != "":
				return p.cloudDown(ctx, cloud, name)
			}
			s, _ := lab.Query(ctx, name) // of a lab that has died only leftovers are to be removed
			if err := lab.TakeDown(ctx, name, !keep); err != nil {
				return err
			}
			if !keep && s.Dir != "" {
				if err := removeConductor(s.Dir); err != nil {
					return err
				}
			}
			return p.say("lab %s is down", name)
		})
}

// removeConductor removes what `lab up` and its conductor wrote into the lab's folder, and the folder if it is empty
// then.
func removeConductor(dir string) error {
	var errs []error
	for _, name := range []string{"conductor", "ingotd.yaml", "ingotd.log", "lab.log"} {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, name)))
	}
	_ = os.Remove(dir) // other people's files in it stay
	return errors.Join(errs...)
}

func (p *program) labStatus() *cobra.Command {
	var name string
	return local(&cobra.Command{Use: "status", Short: "Show a lab"}, []option{labName(&name)},
		func(ctx context.Context, _ []string) error {
			s, err := lab.Query(ctx, name)
			if err != nil {
				return err
			}
			return p.showLab(s)
		})
}

func (p *program) showLab(s lab.Status) error {
	if p.values() {
		return p.print(s)
	}
	pairs := [][2]string{
		{"lab", s.Name}, {"namespace", s.Namespace}, {"network", s.Subnet.String()},
		{"runs on", strings.TrimSpace(string(s.Accel) + "  " + s.AccelWhy)}, {"folder", s.Dir},
	}
	for _, v := range s.Services {
		how := fmt.Sprintf("process %d", v.PID)
		if v.Failure != "" {
			how = "does not run: " + v.Failure
		}
		pairs = append(pairs, [2]string{v.What, fmt.Sprintf("%s %s, %s (log %s)", v.Name, v.Address, how, v.Log)})
	}
	for _, c := range s.Conductors {
		pairs = append(pairs, [2]string{"conductor", fmt.Sprintf("%s (log %s)", c.URL, c.Log)})
	}
	if err := p.sheet(pairs); err != nil {
		return err
	}
	fmt.Fprintln(p.stdout)
	head := []string{"MACHINE", "POWER", "FIRMWARE", "MEMORY", "MAC", "CONTROLLER", "USER / PASSWORD", "CONSOLE LOG"}
	if err := list(p, s.Nodes, head, func(n *lab.NodeStatus) []string {
		return []string{n.Name, choose(n.On, "on", "off"), string(n.Firmware), fmt.Sprintf("%d MiB", n.MemoryMiB),
			n.MAC, n.BMCAddress, n.User + " / " + n.Password, n.ConsoleLog}
	}); err != nil {
		return err
	}
	for _, n := range s.Nodes {
		if n.Failure != "" {
			fmt.Fprintf(p.stdout, "\n%s: %s\n", n.Name, clean.Quote(n.Failure))
		}
	}
	return nil
}

// completeMachine completes the machines of the lab that --name names.
func completeMachine(name *string) completion {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		s, _ := lab.Query(cmd.Context(), *name) // a shell offers nothing then
		return mapped(s.Nodes, func(n *lab.NodeStatus) string { return n.Name }), noFiles
	}
}

func (p *program) labConsole() *cobra.Command {
	var name string
	return local(&cobra.Command{
		Use: "console MACHINE", Short: "Attach to the serial console of a machine; Ctrl-] leaves it",
		Args: oneArg("one machine; `ingot lab status` shows them"), ValidArgsFunction: completeMachine(&name),
	}, []option{labName(&name)}, func(ctx context.Context, args []string) error {
		if in, ok := p.stdin.(*os.File); ok {
			return lab.Terminal(ctx, name, args[0], in, p.terminal)
		}
		con, err := lab.DialConsole(ctx, name, args[0])
		if err != nil {
			return err
		}
		defer con.Close()
		stop := context.AfterFunc(ctx, func() { con.Close() })
		defer stop()
		if _, err = io.Copy(p.terminal, con); ctx.Err() != nil {
			return nil
		}
		return err
	})
}

func (p *program) labPower() *cobra.Command {
	var name string
	actions := lab.PowerActions
	return local(&cobra.Command{
		Use:   "power " + strings.Join(actions, "|") + " MACHINE",
		Short: "Press the power button of a lab machine, or cut its power",
		Args: wants("one of "+strings.Join(actions, ", ")+", and a machine",
			func(args []string) bool { return len(args) == 2 && slices.Contains(actions, args[0]) }),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return actions, noFiles
			}
			return completeMachine(&name)(cmd, args, prefix)
		},
	}, []option{labName(&name)}, func(ctx context.Context, args []string) error {
		return lab.PowerNode(ctx, name, args[1], args[0])
	})
}

// labRun is the program of a lab that `lab up` starts in the background.
func (p *program) labRun() *cobra.Command {
	return local(&cobra.Command{
		Use: "run", Short: "Run a lab that is described on standard input, until it is taken down", Hidden: true,
	}, nil, func(ctx context.Context, _ []string) error {
		return lab.RunDaemon(ctx, p.stdin, slog.New(slog.NewTextHandler(p.stderr, nil)))
	})
}
