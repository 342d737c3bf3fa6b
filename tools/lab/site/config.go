package site

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
)

// Names of the interfaces that the programs are to serve.
const (
	IfServers  = "prov" // on Plan.Servers
	IfMachines = "rack" // on Plan.Machines, of the router
)

// Program is one to run.
type Program struct {
	Package string            // of Debian, with the program
	Path    string            // of the program in the package
	Args    []string          //
	Env     []string          // in addition
	Files   map[string]string // to write before, by path
	Ready   string            // what its log says once it serves
}

// pool is the range of a segment that a DHCP server leases.
type pool struct {
	net         netip.Prefix
	first, last netip.Addr
	router      netip.Addr // not valid: none
}

func (p Plan) pools() []pool {
	out := []pool{{net: p.Servers, first: host(p.Servers, 50), last: host(p.Servers, 199)}}
	if p.RouterMachines.IsValid() {
		out = append(out,
			pool{net: p.Machines, first: host(p.Machines, 50), last: host(p.Machines, 199), router: p.RouterMachines})
	}
	return out
}

// Server is the DHCP server's program. Its files are in dir.
func (s Site) Server(p Plan, dir string) Program {
	switch s.DHCP {
	case Dhcpd:
		return s.dhcpd(p, dir)
	case Kea:
		return s.kea(p, dir)
	}
	return s.dnsmasq(p, dir)
}

func (s Site) dnsmasq(p Plan, dir string) Program {
	var b strings.Builder
	line := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	line("port=0\ninterface=%s\nbind-interfaces\ndhcp-authoritative\nno-ping\nlog-dhcp\nuser=root\ndhcp-leasefile=%s",
		IfServers, filepath.Join(dir, "dhcp.leases"))
	for i, n := range p.pools() {
		line("dhcp-range=set:net%d,%s,%s,255.255.255.0,1h", i, n.first, n.last)
		if n.router.IsValid() {
			line("dhcp-option=tag:net%d,option:router,%s", i, n.router)
		} else {
			line("dhcp-option=tag:net%d,option:router", i) // none: it would name itself
		}
	}
	if s.MTU != 0 {
		line("dhcp-option=option:mtu,%d", s.MTU)
	}
	if s.BootFile != "" {
		line("dhcp-boot=%s", s.BootFile)
	}
	if s.Netboot == Off {
		line("%s", OffText(Dnsmasq, p.Conductor.String()))
	}
	conf := filepath.Join(dir, "dhcp.conf")
	return Program{Package: "dnsmasq-base", Path: "usr/sbin/dnsmasq",
		Args:  []string{"--keep-in-foreground", "--log-facility=-", "--pid-file=", "--conf-file=" + conf},
		Files: map[string]string{conf: b.String()}, Ready: "DHCP, IP range"}
}

func (s Site) dhcpd(p Plan, dir string) Program {
	var b strings.Builder
	line := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	line("authoritative;\nping-check false;\ndefault-lease-time 3600;\nmax-lease-time 3600;")
	if s.MTU != 0 {
		line("option interface-mtu %d;", s.MTU)
	}
	if s.BootFile != "" {
		line("next-server %s;\nfilename %q;", p.DHCP, s.BootFile)
	}
	for _, n := range p.pools() {
		line("subnet %s netmask 255.255.255.0 {\n  range %s %s;", n.net.Addr(), n.first, n.last)
		if n.router.IsValid() {
			line("  option routers %s;", n.router)
		}
		line("}")
	}
	if s.Netboot == Off {
		line("%s", OffText(Dhcpd, p.Conductor.String()))
	}
	conf, leases := filepath.Join(dir, "dhcp.conf"), filepath.Join(dir, "dhcp.leases")
	return Program{Package: "isc-dhcp-server", Path: "usr/sbin/dhcpd",
		Args:  []string{"-4", "-f", "-d", "--no-pid", "-cf", conf, "-lf", leases, IfServers},
		Files: map[string]string{conf: b.String(), leases: ""}, Ready: "Server starting service"}
}

func (s Site) kea(p Plan, dir string) Program {
	type object = map[string]any
	option := func(name, data string) object { return object{"name": name, "data": data} }
	var subnets, options []object
	if s.MTU != 0 {
		options = append(options, option("interface-mtu", fmt.Sprint(s.MTU)))
	}
	for i, n := range p.pools() {
		one := object{"id": i + 1, "subnet": n.net.String(),
			"pools": []object{{"pool": fmt.Sprintf("%s - %s", n.first, n.last)}}}
		if n.router.IsValid() {
			one["option-data"] = []object{option("routers", n.router.String())}
		}
		subnets = append(subnets, one)
	}
	dhcp4 := object{
		// Kea looks once whether the interface has a link, and a bridge has one only with its first machine.
		"interfaces-config": object{"interfaces": []string{IfServers}, "dhcp-socket-type": "raw",
			"service-sockets-max-retries": 1 << 20, "service-sockets-retry-wait-time": 500},
		"lease-database": object{"type": "memfile", "persist": false},
		"authoritative":  true, "valid-lifetime": 3600,
		"subnet4": subnets,
		"loggers": []object{
			{"name": "kea-dhcp4", "severity": "INFO", "output_options": []object{{"output": "stdout", "flush": true}}}},
	}
	if s.BootFile != "" {
		dhcp4["next-server"], dhcp4["boot-file-name"] = p.DHCP.String(), s.BootFile
	}
	if s.Netboot == Off {
		if err := json.Unmarshal([]byte("{"+OffText(Kea, p.Conductor.String())+"}"), &dhcp4); err != nil {
			panic(err) // a constant
		}
	}
	if options != nil {
		dhcp4["option-data"] = options
	}
	text, err := json.MarshalIndent(object{"Dhcp4": dhcp4}, "", "  ")
	if err != nil {
		panic(err) // strings and numbers only
	}
	conf := filepath.Join(dir, "dhcp.conf")
	return Program{Package: "kea-dhcp4-server", Path: "usr/sbin/kea-dhcp4", Args: []string{"-c", conf},
		Env:   []string{"KEA_PIDFILE_DIR=" + dir, "KEA_LOCKFILE_DIR=" + dir, "KEA_DHCP_DATA_DIR=" + dir},
		Files: map[string]string{conf: string(text) + "\n"}, Ready: "DHCP4_STARTED"}
}

// RelayProgram is the relay's. In mode Proxy the conductor is the second one to whom it sends what machines ask.
func (s Site) RelayProgram(p Plan, dir string) Program {
	to := []netip.Addr{p.DHCP}
	if s.Netboot == Proxy {
		to = append(to, p.Conductor)
	}
	if s.Relay == Dhcrelay {
		args := []string{"-4", "-d", "--no-pid", "-iu", IfServers, "-id", IfMachines}
		for _, a := range to {
			args = append(args, a.String())
		}
		return Program{Package: "isc-dhcp-relay", Path: "usr/sbin/dhcrelay", Args: args, Ready: "Sending on   Socket"}
	}
	text := "port=0\nno-ping\nlog-dhcp\nuser=root\n"
	for _, a := range to {
		text += fmt.Sprintf("dhcp-relay=%s,%s\n", p.RouterMachines, a)
	}
	conf := filepath.Join(dir, "relay.conf")
	return Program{Package: "dnsmasq-base", Path: "usr/sbin/dnsmasq",
		Args:  []string{"--keep-in-foreground", "--log-facility=-", "--pid-file=", "--conf-file=" + conf},
		Files: map[string]string{conf: text}, Ready: "DHCP relay from"}
}
