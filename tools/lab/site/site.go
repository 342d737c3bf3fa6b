// Package site describes a network that is not Ingot's own: whose DHCP server it has, whether a relay stands between
// that and the machines, and what that server does that Ingot can't change. It writes the programs' configuration and
// fetches the programs (Fetch); package lab runs them.
//
// With a relay there are two segments: Plan.Servers, with the DHCP server and the conductor, and Plan.Machines behind a
// router. The servers' configuration for mode off is that of docs/howto/dhcp-servers.md.
package site

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// DHCP servers and relays.
const (
	Dnsmasq  = "dnsmasq" // either
	Dhcpd    = "dhcpd"   // of ISC
	Kea      = "kea"
	Dhcrelay = "dhcrelay" // of ISC
)

// The conductor's modes, netboot.dhcp in its configuration.
const (
	Server = "server"
	Proxy  = "proxy"
	Off    = "off"
)

// Site lists the parts of a network. The zero value has none, and the conductor is its DHCP server.
type Site struct {
	DHCP  string // Dnsmasq, Dhcpd or Kea; "" is none
	Relay string // Dhcrelay or Dnsmasq; "" is none
	// Netboot is the conductor's mode; "" is Server without a DHCP server and Proxy with one. With Off and no DHCP
	// server nothing boots from the network.
	Netboot string

	// BootFile is one that the DHCP server offers to everybody, such as pxelinux.0, and that is nowhere. For mode
	// Proxy.
	BootFile string
	// Delay is how much later all packets of the DHCP server come; Silent is how long after the first start of a
	// machine none come.
	Delay, Silent time.Duration
	// MTU is that of all links, which the DHCP server announces. 0 is 1500.
	MTU int
	// SameHost runs the DHCP server where the conductor runs, on the same interface and address.
	SameHost bool
}

// Fill returns s with its defaults, or all that is wrong with it.
func (s Site) Fill() (Site, error) {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if !slices.Contains([]string{"", Dnsmasq, Dhcpd, Kea}, s.DHCP) {
		bad("DHCP server %q: it is dnsmasq, dhcpd or kea", s.DHCP)
	}
	if !slices.Contains([]string{"", Dhcrelay, Dnsmasq}, s.Relay) {
		bad("DHCP relay %q: it is dhcrelay or dnsmasq", s.Relay)
	}
	if s.Netboot == "" {
		s.Netboot = Server
		if s.DHCP != "" {
			s.Netboot = Proxy
		}
	}
	switch {
	case !slices.Contains([]string{Server, Proxy, Off}, s.Netboot):
		bad("netboot %q: it is server, proxy or off", s.Netboot)
	case s.Netboot == Server && s.DHCP != "":
		bad("netboot server with the DHCP server %s: that would be two DHCP servers on one network, and machines take an address of either; "+
			"choose proxy or off, or leave the DHCP server out", s.DHCP)
	case s.Netboot == Server && s.Relay != "":
		bad("netboot server behind a relay: ingotd leases addresses of its own segment only; choose proxy or off, and a DHCP server")
	case s.DHCP == "" && (s.Netboot == Proxy || s.Netboot == Off && s.Relay != ""):
		bad("netboot %s without a DHCP server: no server would give machines an address; choose dnsmasq, dhcpd or kea",
			s.Netboot)
	}
	if s.BootFile != "" && s.Netboot != Proxy {
		bad("a boot file of the DHCP server's own is for netboot proxy: with off its boot file is Ingot's")
	}
	if s.SameHost && s.Relay != "" {
		bad("a DHCP server on the conductor's host behind a relay: both would have the one address that the relay sends to")
	}
	if s.SameHost && (s.Delay > 0 || s.Silent > 0) {
		bad("a DHCP server on the conductor's host is not late and not silent: both are done to its cable")
	}
	if s.DHCP == "" && (s.SameHost || s.Delay > 0 || s.Silent > 0) {
		bad("a DHCP server that is late, silent or on the conductor's host: there is none")
	}
	if s.Delay < 0 || s.Silent < 0 || s.MTU != 0 && (s.MTU < 576 || s.MTU > 1500) {
		bad("delay %s, silent %s, MTU %d: times are not negative, and the MTU is 576 to 1500", s.Delay, s.Silent, s.MTU)
	}
	return s, errors.Join(errs...)
}

// Plan is who has which address.
type Plan struct {
	Servers   netip.Prefix // the segment of conductor and DHCP server
	Machines  netip.Prefix // the machines' segment: Servers without a relay
	Conductor netip.Addr
	DHCP      netip.Addr
	// RouterServers and RouterMachines are the router's on each segment. Invalid without a relay.
	RouterServers, RouterMachines netip.Addr
}

// Plan gives out the addresses of an IPv4 /24. Behind a relay machines are in the next one.
func (s Site) Plan(servers netip.Prefix) Plan {
	p := Plan{Servers: servers.Masked(), Machines: servers.Masked()}
	p.Conductor, p.DHCP = host(p.Servers, 1), host(p.Servers, 2)
	if s.SameHost {
		p.DHCP = p.Conductor
	}
	if s.Relay != "" {
		a := p.Servers.Addr().As4()
		a[2]++
		p.Machines = netip.PrefixFrom(netip.AddrFrom4(a), p.Servers.Bits())
		p.RouterServers, p.RouterMachines = host(p.Servers, 3), host(p.Machines, 1)
	}
	return p
}

func host(n netip.Prefix, last byte) netip.Addr {
	a := n.Addr().As4()
	a[3] = last
	return netip.AddrFrom4(a)
}
