package cli

import (
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
	"github.com/ingot-metal/ingot/tools/lab/site"
)

func (p *program) labCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "lab", Short: "A virtual rack of machines with controllers, in a network namespace of its own",
		Long: `A virtual rack: QEMU machines with controllers that speak IPMI, on a network inside a network namespace, where nothing of it
touches the network of this host. It needs root, QEMU and iproute2, and goes on running until "ingot lab down".`,
	}
	cmd.AddCommand(p.labUp(), p.labDown(), p.labStatus(), p.labConsole(), p.labPower(), p.labDemo(), p.labRun())
	return cmd
}

// labName gives a command the option that names a lab, and completes it.
func labName(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "name", "lab", "name of the lab")
	err := cmd.RegisterFlagCompletionFunc("name",
		func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			names, err := lab.List()
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		})
	if err != nil {
		panic(err)
	}
}

// rack is what `lab up` is told.
type rack struct {
	name, dir, subnet, firmware, accel string
	nodes, memory                      int
	disks                              []string
	ramdisk, images, ingotd, api       string
	site                               site.Site
}

func (p *program) labUp() *cobra.Command {
	var r rack
	cmd := &cobra.Command{
		Use: "up", Short: "Start a lab", Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		Long: `Start a virtual rack. With --ramdisk a conductor runs in it, too, and serves its API on this host at --api.

By itself the conductor is the DHCP server of the rack's network. To try the shape of another network, put that network's DHCP
server into the rack (--dhcp), with the mode that the conductor is to have beside it (--netboot):

  proxy  the DHCP server gives addresses and knows nothing of Ingot
  off    the DHCP server names Ingot's boot files, as docs/howto/dhcp-servers.md tells to configure it

With --dhcp-relay the machines are in a network of their own (with --subnet 10.77.0.0/24 it is 10.77.1.0/24), behind a router with
that relay; in mode proxy the conductor is the second address that the relay sends to. These servers come from Debian's packages,
which are fetched with apt-get into Ingot's cache and run from there, inside the rack; nothing is installed on this host. Their
configuration and logs are in the folder "site" in the lab's folder.`,
		Example: `  ingot ramdisk build --out ramdisk
  ingot lab up --nodes 2 --ramdisk ramdisk --images images
  ingot lab up --ramdisk ramdisk --images images --dhcp kea --dhcp-relay dhcrelay --netboot proxy --firmware uefi
  ingot node create node-0 --bmc 10.77.0.201 --bmc-user admin --bmc-password ingot-lab`,
	}
	labName(cmd, &r.name)
	f := cmd.Flags()
	f.IntVar(&r.nodes, "nodes", 1, "number of machines")
	f.StringVar(&r.firmware, "firmware", "bios", "bios or uefi")
	f.IntVar(&r.memory, "memory", 0, "memory of each machine in MiB (default: the lab's)")
	f.StringArrayVar(&r.disks, "disk", []string{"virtio:8G"},
		"BUS:SIZE[:SERIAL] of each machine's disks; BUS is virtio, nvme or sata")
	f.StringVar(&r.subnet, "subnet", "", "provisioning network, an IPv4 /24 (default 10.77.0.0/24)")
	f.StringVar(&r.dir, "dir", "", "folder for disks and logs (default: below /var/tmp/ingot-lab)")
	f.StringVar(&r.accel, "accel", "auto", "auto, tcg or kvm; auto takes KVM only when a short boot with it succeeds")
	f.StringVar(&r.ramdisk, "ramdisk", "", "folder of a ramdisk: run a conductor with it")
	f.StringVar(&r.images, "images", "", "folder of images that the conductor serves")
	f.StringVar(&r.ingotd, "ingotd", "", "the conductor's program (default: beside this one, or in $PATH)")
	f.StringVar(&r.api, "api", "127.0.0.1:6385", "address of this host for the conductor's API")
	f.StringVar(&r.site.DHCP, "dhcp", "",
		"a DHCP server beside the conductor: dnsmasq, dhcpd (ISC) or kea (default: none)")
	f.StringVar(&r.site.Relay, "dhcp-relay", "",
		"put machines behind a router with this DHCP relay: dhcrelay (ISC) or dnsmasq (default: none)")
	f.StringVar(&r.site.Netboot, "netboot", "",
		"netboot.dhcp of the conductor: server, proxy or off (default: server, and proxy with --dhcp)")
	complete(cmd, "dhcp", site.Dnsmasq, site.Dhcpd, site.Kea)
	complete(cmd, "dhcp-relay", site.Dhcrelay, site.Dnsmasq)
	complete(cmd, "netboot", site.Server, site.Proxy, site.Off)
	complete(cmd, "firmware", "bios", "uefi")
	complete(cmd, "accel", "auto", "tcg", "kvm")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return p.startLab(cmd.Context(), r) }
	return cmd
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
	if p.output == "json" {
		return p.printJSON(s)
	}
	if err := p.showLab(s); err != nil {
		return err
	}
	if len(s.Nodes) > 0 && len(s.Conductors) > 0 {
		n := s.Nodes[0]
		at := ""
		if url := "http://" + r.api; url != defaultEndpoint {
			at = " --endpoint " + url
		}
		p.note("Next: ingot node create %s --bmc %s --bmc-user %s --bmc-password %s%s", n.Name, n.BMCAddress, n.User,
			n.Password, at)
	}
	return nil
}

// daemon describes the lab, and writes the conductor's configuration if there is to be one.
func (r *rack) daemon() (lab.Daemon, error) {
	var d lab.Daemon
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
	d.Name, d.Dir, d.Accel = r.name, r.dir, lab.Accel(r.accel)
	if d.Dir == "" {
		d.Dir = filepath.Join("/var/tmp/ingot-lab", r.name)
	}
	dir, err := filepath.Abs(d.Dir)
	if err != nil {
		return d, fmt.Errorf("folder of the lab: %w", err)
	}
	d.Dir = dir
	subnet := "10.77.0.0/24"
	if r.subnet != "" {
		subnet = r.subnet
	}
	if d.Subnet, err = netip.ParsePrefix(subnet); err != nil {
		return d, usage("--subnet %q is not a network such as 10.77.0.0/24", subnet)
	}
	if d.Site, err = r.site.Fill(); err != nil {
		return d, usage("%v", err)
	}
	for range r.nodes {
		d.Nodes = append(d.Nodes,
			lab.NodeSpec{Firmware: lab.Firmware(r.firmware), MemoryMiB: r.memory, Disks: slices.Clone(disks)})
	}
	if r.ramdisk == "" {
		return d, nil
	}
	if d.Conductor, err = r.conductor(d.Dir, d.Subnet, d.Site.Netboot); err != nil {
		return d, err
	}
	if d.ProbeKernel, err = filepath.Abs(filepath.Join(r.ramdisk, "vmlinuz")); err != nil {
		return d, fmt.Errorf("folder of the ramdisk: %w", err)
	}
	return d, nil
}

// conductor writes the configuration of a conductor for the lab.
func (r *rack) conductor(dir string, subnet netip.Prefix, mode string) (*lab.ConductorSpec, error) {
	bin := r.ingotd
	if bin == "" {
		if self, err := os.Executable(); err == nil {
			bin = filepath.Join(filepath.Dir(self), "ingotd")
		}
		if _, err := os.Stat(bin); err != nil {
			found, err := exec.LookPath("ingotd")
			if err != nil {
				return nil, errors.New(
					"ingotd is neither beside this program nor in $PATH: say where it is with --ingotd")
			}
			bin = found
		}
	}
	abs := func(path string) string {
		if a, err := filepath.Abs(path); err == nil && path != "" {
			return a
		}
		return path
	}
	if _, err := os.Stat(filepath.Join(r.ramdisk, "manifest.json")); err != nil {
		return nil, advise(fmt.Errorf("%s is not a ramdisk: %w", r.ramdisk, err),
			"Build one: ingot ramdisk build --out %s", r.ramdisk)
	}
	host := func(n byte) string {
		a := subnet.Masked().Addr().As4()
		a[3] = n
		return netip.AddrFrom4(a).String()
	}
	netboot := map[string]any{
		"dhcp": mode, "interface": "prov", "ramdisk_dir": abs(r.ramdisk), "images_dir": abs(r.images),
	}
	if mode == site.Server {
		netboot["range_start"], netboot["range_end"] = host(50), host(199)
	}
	conf := map[string]any{"data_dir": filepath.Join(dir, "conductor"), "netboot": netboot}
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
	return &lab.ConductorSpec{Bin: abs(bin), Config: file, RESTAddr: r.api, Log: filepath.Join(dir, "ingotd.log")}, nil
}

func (p *program) labDown() *cobra.Command {
	var name string
	var keep bool
	cmd := &cobra.Command{Use: "down", Short: "Stop a lab and remove its disks", Args: cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions}
	labName(cmd, &name)
	cmd.Flags().BoolVar(&keep, "keep", false, "keep disks and logs")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, _ := lab.Query(cmd.Context(), name) // of a lab that has died only leftovers are to be removed
		if err := lab.TakeDown(cmd.Context(), name, !keep); err != nil {
			return err
		}
		if !keep && s.Dir != "" {
			if err := removeConductor(s.Dir); err != nil {
				return err
			}
		}
		fmt.Fprintf(p.stdout, "lab %s is down\n", name)
		return nil
	}
	return cmd
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
	cmd := &cobra.Command{Use: "status", Short: "Show a lab", Args: cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions}
	labName(cmd, &name)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := lab.Query(cmd.Context(), name)
		if err != nil {
			return err
		}
		if p.output == "json" {
			return p.printJSON(s)
		}
		return p.showLab(s)
	}
	return cmd
}

func (p *program) showLab(s lab.Status) error {
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
	if err := sheet(p.stdout, pairs); err != nil {
		return err
	}
	fmt.Fprintln(p.stdout)
	rows := make([][]string, len(s.Nodes))
	for i, n := range s.Nodes {
		rows[i] = []string{n.Name, map[bool]string{true: "on", false: "off"}[n.On], string(n.Firmware),
			fmt.Sprintf("%d MiB", n.MemoryMiB), n.MAC, n.BMCAddress, n.User + " / " + n.Password, n.ConsoleLog}
	}
	if err := table(p.stdout, []string{"MACHINE", "POWER", "FIRMWARE", "MEMORY", "MAC", "CONTROLLER", "USER / PASSWORD",
		"CONSOLE LOG"}, rows); err != nil {
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
func completeMachine(cmd *cobra.Command, name string) ([]string, cobra.ShellCompDirective) {
	s, err := lab.Query(cmd.Context(), name)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, n := range s.Nodes {
		names = append(names, n.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (p *program) labConsole() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use: "console MACHINE", Short: "Attach to the serial console of a machine; Ctrl-] leaves it",
		Args: oneArg("one machine; `ingot lab status` shows them"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return completeMachine(cmd, name)
		},
	}
	labName(cmd, &name)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		in, ok := p.stdin.(*os.File)
		if ok {
			return lab.Terminal(cmd.Context(), name, args[0], in, p.terminal)
		}
		con, err := lab.DialConsole(cmd.Context(), name, args[0])
		if err != nil {
			return err
		}
		defer con.Close()
		stop := context.AfterFunc(cmd.Context(), func() { con.Close() })
		defer stop()
		_, err = io.Copy(p.terminal, con)
		if cmd.Context().Err() != nil {
			return nil
		}
		return err
	}
	return cmd
}

func (p *program) labPower() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "power " + strings.Join(lab.PowerActions, "|") + " MACHINE",
		Short: "Press the power button of a lab machine, or cut its power", Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 || !slices.Contains(lab.PowerActions, args[0]) {
				return usage("%s wants one of %s, and a machine", cmd.CommandPath(),
					strings.Join(lab.PowerActions, ", "))
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return lab.PowerActions, cobra.ShellCompDirectiveNoFileComp
			}
			return completeMachine(cmd, name)
		},
	}
	labName(cmd, &name)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return lab.PowerNode(cmd.Context(), name, args[1], args[0])
	}
	return cmd
}

// labRun is the program of a lab that `lab up` starts in the background.
func (p *program) labRun() *cobra.Command {
	return &cobra.Command{
		Use: "run", Short: "Run a lab that is described on standard input, until it is taken down", Hidden: true,
		Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return lab.RunDaemon(cmd.Context(), p.stdin, slog.New(slog.NewTextHandler(p.stderr, nil)))
		},
	}
}
