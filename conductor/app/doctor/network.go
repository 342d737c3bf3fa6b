package doctor

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/netboot"
	"github.com/ingot-metal/ingot/conductor/netboot/probe"
	"github.com/ingot-metal/ingot/conductor/network/switches"
)

// checkPorts tries to listen where the conductor does. While the conductor runs, it has the ports itself.
func checkPorts(ctx context.Context, p Patient) []Finding {
	n := p.Config.Netboot
	type port struct{ network, address, key string }
	ports := []port{{"tcp", p.Config.API.Listen, "api.listen"}, {"tcp", p.Config.Agents.Listen, "agents.listen"}}
	if p.Config.Store.Server() != "" {
		ports = append(ports, port{"tcp", p.Config.PeerListen(), "peer.listen"})
	}
	if p.Address.IsValid() {
		ports = append(ports,
			port{"tcp", net.JoinHostPort(p.Address.String(), strconv.Itoa(n.HTTPPort)), "netboot.http_port"})
		if n.HTTPSPort != 0 {
			ports = append(ports,
				port{"tcp", net.JoinHostPort(p.Address.String(), strconv.Itoa(n.HTTPSPort)), "netboot.https_port"})
		}
		if n.TFTP {
			ports = append(ports, port{"udp", net.JoinHostPort(p.Address.String(), "69"), "netboot.tftp"})
		}
	}
	var out []Finding
	if p.AddressFault != nil {
		out = finding(Fault, "give the interface an IPv4 address, or set netboot.address to one of this host", "%v",
			p.AddressFault)
	}
	free := 0
	for _, at := range ports {
		err := listen(ctx, at.network, at.address)
		switch {
		case err == nil:
			free++
		case errors.Is(err, syscall.EADDRINUSE) && p.Running:
			free++
		case errors.Is(err, syscall.EADDRINUSE):
			out = append(out,
				finding(Fault, "stop what listens there (ss -lnp shows it), or change "+at.key,
					"%s %s is taken by another program", at.network, at.address)...)
		case errors.Is(err, syscall.EACCES):
			out = append(out,
				finding(Fault, "run ingotd with CAP_NET_BIND_SERVICE (AmbientCapabilities= of the service), or run this as root", "this user may not listen on %s %s", at.network, at.address)...)
		default:
			out = append(out, finding(Fault, "change "+at.key, "%s %s: %v", at.network, at.address, err)...)
		}
	}
	if p.Address.IsValid() && n.DHCP != "off" {
		err := netboot.CheckDHCP(netboot.Mode(n.DHCP), n.Interface, p.Address)
		if err == nil || errors.Is(err, syscall.EADDRINUSE) && p.Running {
			free++
		} else {
			out = append(out, finding(Fault, "do what the sentence says, or change netboot.dhcp", "%v", err)...)
		}
	}
	if out != nil {
		return out
	}
	if p.Running {
		return ok("%d are free or used by the ingotd that runs", free)
	}
	return ok("%d are free", free)
}

// checkFirewall names the chains that packets to this conductor pass. What their rules say is for people: so it is no
// fault, and what they have to let in is always named.
func checkFirewall(_ context.Context, p Patient) []Finding {
	if errors.Is(p.ChainsFault, os.ErrPermission) {
		return ok("only root can look at it")
	}
	if p.ChainsFault != nil {
		return finding(Warning, "look at it with nft list ruleset", "%v", p.ChainsFault)
	}
	if len(p.Chains) == 0 {
		return ok("nothing is dropped")
	}
	names := make([]string, 0, len(p.Chains))
	for _, c := range p.Chains {
		names = append(names, c.String())
	}
	return finding(OK, "let in "+strings.Join(p.incoming(), ", "), "%s", strings.Join(names, "; "))
}

// incoming lists what other hosts send to this conductor.
func (p Patient) incoming() (all []string) {
	n := p.Config.Netboot
	tcp := func(address, from string) {
		host, port, err := net.SplitHostPort(address)
		if ip := net.ParseIP(host); err == nil && (ip == nil || !ip.IsLoopback()) && host != "localhost" {
			all = append(all, "TCP "+port+" from "+from)
		}
	}
	tcp(p.Config.API.Listen, "clients")
	tcp(p.Config.Agents.Listen, "machines")
	if p.Config.Store.Server() != "" {
		tcp(p.Config.PeerListen(), "other conductors")
	}
	if !p.Address.IsValid() {
		return all
	}
	for _, port := range []int{n.HTTPPort, n.HTTPSPort} {
		if port != 0 {
			tcp(net.JoinHostPort(p.Address.String(), strconv.Itoa(port)), "machines and controllers")
		}
	}
	if n.TFTP {
		all = append(all, "UDP 69 from machines")
	}
	switch n.DHCP {
	case "server":
		all = append(all, "UDP 67 from machines")
	case "proxy":
		all = append(all, "UDP 67 and 4011 from machines")
	}
	return all
}

// checkWire looks which DHCP servers and boot servers answer on the provisioning network. A running ingotd does not
// answer this.
func checkWire(ctx context.Context, p Patient) []Finding {
	n := p.Config.Netboot
	if n.Interface == "" || !p.Address.Is4() {
		return ok("it is not looked at: netboot.interface names no provisioning network with an address of this host")
	}
	found, more, err := probe.Find(ctx, n.Interface, p.Address, probe.Wait)
	if err != nil {
		return finding(Warning, probe.Remedy(err), "other DHCP servers on %s can't be looked for: %v", n.Interface, err)
	}
	var out []Finding
	for _, j := range probe.Judge(n.DHCP, p.Address, found, more) {
		if j.Warning {
			out = append(out, finding(Warning, j.Remedy, "%s", j.Text)...)
		} else {
			out = append(out, ok("%s", j.Text)...)
		}
	}
	return out
}

func listen(ctx context.Context, network, address string) error {
	var lc net.ListenConfig
	if network == "udp" {
		c, err := lc.ListenPacket(ctx, network, address)
		if err != nil {
			return err
		}
		return c.Close()
	}
	l, err := lc.Listen(ctx, network, address)
	if err != nil {
		return err
	}
	return l.Close()
}

func checkBootFiles(_ context.Context, p Patient) []Finding {
	n := p.Config.Netboot
	if !p.Address.IsValid() {
		return ok("this conductor boots no machines over the network")
	}
	loaders, ramdisk := netboot.CheckFiles(n.LoaderDir, n.RamdiskDir)
	var out []Finding
	if loaders != nil {
		out = append(out,
			finding(Fault, "install the package ipxe, or set netboot.loader_dir to nothing and netboot.tftp to false if all machines have iPXE built in", "%v", loaders)...)
	}
	if ramdisk != nil {
		out = append(out,
			finding(Fault, "install the package ingot-ramdisk, and set netboot.ramdisk_dir to /usr/lib/ingot/ramdisk; or build one (ingot ramdisk build --out "+n.RamdiskDir+")", "%v", ramdisk)...)
	}
	if out == nil {
		return ok("boot programs and ramdisk are what they have to be")
	}
	return out
}

// checkSwitches logs in to the switches of the table, and reads what they show.
func checkSwitches(ctx context.Context, p Patient) (out []Finding) {
	file := p.Config.Switches.File
	if file == "" {
		return ok("none is configured")
	}
	table, err := switches.Load(file)
	if err != nil {
		return finding(Fault, "correct the file, or the setting switches.file", "%v", err)
	}
	for _, h := range table.Examine(ctx) {
		switch {
		case h.Err != nil:
			out = append(out, finding(Fault, "make it answer, or correct its address, key and user in "+file, "%v", h.Err)...)
		case len(h.Lacks) > 0:
			out = append(out, finding(Fault, "make them on the switch, or correct "+file, "switch %s lacks %s", h.Switch,
				strings.Join(h.Lacks, ", "))...)
		default:
			out = append(out, ok("switch %s has all VLANs, and shows all %d ports", h.Switch, h.Ports)...)
		}
	}
	return out
}

// checkClouds logs in to the clouds whose servers are machines.
func checkClouds(ctx context.Context, p Patient) (out []Finding) {
	file := p.Config.OpenStack.CloudsFile
	if file == "" {
		return ok("none is configured")
	}
	names, err := oscloud.Names(file)
	if err != nil {
		return finding(Fault, "correct the file, or the setting openstack.clouds_file", "%s: %v", file, err)
	}
	for _, name := range names {
		if _, err := oscloud.NewCloud(file, name).Login(ctx); err != nil {
			out = append(out, finding(Fault, "correct the file, or make Keystone answer", "%v", err)...)
			continue
		}
		out = append(out, ok("Keystone lets in who logs in to cloud %s", clean.Line(name, 64))...)
	}
	return out
}
