package netboot

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
)

// bindings are the ways in which dnsmasq takes port 67.
var bindings = map[string][]string{
	"wildcard":        {"interface=prov"},
	"bind-interfaces": {"interface=prov", "bind-interfaces", "except-interface=lo"},
	"bind-dynamic":    {"interface=prov", "bind-dynamic", "except-interface=lo"},
}

const leaseRange = "dhcp-range=10.77.0.100,10.77.0.150,255.255.255.0,2m"

// In mode proxy a DHCP server on the same host works, whichever of the two was started first: addresses and renewals
// come from it, what to boot from here.
func TestProxyBesideDHCPServerOnTheSameHost(t *testing.T) {
	machine := onWire(t)
	if machine == "" {
		return
	}
	for name, binding := range bindings {
		for _, last := range []string{"ingotd", "dnsmasq"} {
			t.Run(name+"/"+last+" last", func(t *testing.T) {
				r := newRig(t, Proxy, func(c *Config) { c.Interface = "prov" })
				r.port(r.node(node.DeployWait, true, nil), testMAC, true)
				var other *kit.DHCPServer
				if last == "ingotd" {
					other = kit.Dnsmasq(t, "", append([]string{leaseRange}, binding...)...)
				}
				serve(t, r.s)
				if last == "dnsmasq" {
					other = kit.Dnsmasq(t, "", append([]string{leaseRange}, binding...)...)
				}
				lease := bothOffers(t, machine)
				renew(t, machine, lease, other)
			})
		}
	}
}

// bothOffers asks as UEFI firmware until an address and a boot file were offered, and then takes the address.
func bothOffers(t *testing.T, machine string) net.IP {
	t.Helper()
	var address net.IP
	in(t, machine, func() error {
		c, err := nclient4.NewRawUDPConn("eth0", dhcpv4.ClientPort)
		if err != nil {
			return err
		}
		defer c.Close()
		buf := make([]byte, 1500)
		file := ""
		for end := time.Now().Add(time.Minute); address == nil || file == ""; {
			if time.Now().After(end) {
				return fmt.Errorf("offered were the address %s and the boot file %q, want both", address, file)
			}
			m := packet(t, dhcpv4.MessageTypeDiscover, pxe(iana.EFI_X86_64, classPXE)...)
			if _, err := c.WriteTo(m.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ServerPort}); err != nil {
				return err
			}
			if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
				return err
			}
			for {
				n, _, err := c.ReadFrom(buf)
				if err != nil {
					break
				}
				o, err := dhcpv4.FromBytes(buf[:n])
				if err != nil || o.TransactionID != m.TransactionID {
					continue
				}
				if !o.YourIPAddr.IsUnspecified() {
					address = o.YourIPAddr
				} else {
					file = o.BootFileNameOption()
				}
			}
		}
		if file != uefiLoader {
			t.Errorf("boot file %q, want %q", file, uefiLoader)
		}
		nc, err := nclient4.New("eth0", nclient4.WithTimeout(5*time.Second))
		if err != nil {
			return err
		}
		defer nc.Close()
		lease, err := nc.Request(t.Context()) // as an operating system, which hears the other server alone
		if err != nil {
			return err
		}
		address = lease.ACK.YourIPAddr
		return nil
	})
	return address
}

// renew renews a lease as RFC 2131 has it at half of its time: a packet to the server alone.
func renew(t *testing.T, machine string, address net.IP, other *kit.DHCPServer) {
	t.Helper()
	kit.Run(t, "ip", "-n", machine, "addr", "add", address.String()+"/24", "dev", "eth0")
	defer kit.Run(t, "ip", "-n", machine, "addr", "flush", "dev", "eth0")
	in(t, machine, func() error {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: address, Port: dhcpv4.ClientPort})
		if err != nil {
			return err
		}
		defer c.Close()
		buf := make([]byte, 1500)
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			m := packet(t, dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(address))
			if _, err := c.WriteToUDP(m.ToBytes(),
				&net.UDPAddr{IP: net.IP{10, 77, 0, 1}, Port: dhcpv4.ServerPort}); err != nil {
				return err
			}
			if err := c.SetReadDeadline(time.Now().Add(3 * time.Second)); err != nil {
				return err
			}
			n, err := c.Read(buf)
			if err != nil {
				continue
			}
			if a, err := dhcpv4.FromBytes(buf[:n]); err == nil && a.MessageType() == dhcpv4.MessageTypeAck &&
				a.YourIPAddr.Equal(address) {
				return nil
			}
		}
		t.Errorf("no renewal of %s was answered; dnsmasq:\n%s", address, other.Log())
		return nil
	})
}

// In mode server two servers on one port would take packets from each other: the one that is started last does not
// start, and says why.
func TestServerBesideDHCPServerOnTheSameHost(t *testing.T) {
	if onWire(t) == "" {
		return
	}
	server := func(t *testing.T) *rig {
		return newRig(t, Leases, func(c *Config) { c.Interface, c.Prefix = "prov", netip.Prefix{} })
	}
	for name, binding := range bindings {
		t.Run(name, func(t *testing.T) {
			other := kit.Dnsmasq(t, "", append([]string{leaseRange}, binding...)...)
			err := server(t).s.Listen()
			if !errors.Is(err, syscall.EADDRINUSE) ||
				!strings.Contains(err.Error(), "has port 67 already (ss -lunp 'sport = :67' shows it): stop it, or") {
				t.Errorf("Listen = %v beside dnsmasq", err)
			}
			other.Stop()
			r := server(t)
			serve(t, r.s)
			out, err := kit.DnsmasqCommand(t, "", t.TempDir()+"/leases",
				append([]string{leaseRange}, binding...)...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), "in use") {
				t.Errorf("dnsmasq ended with %v beside a server: %s", err, out)
			}
		})
	}
	// A server on another interface does no harm.
	kit.Run(t, "ip", "link", "add", "elsewhere", "type", "bridge")
	kit.Run(t, "ip", "addr", "add", "10.78.0.1/24", "dev", "elsewhere")
	kit.Run(t, "ip", "link", "set", "elsewhere", "up")
	kit.Dnsmasq(t, "", "dhcp-range=10.78.0.100,10.78.0.150", "interface=elsewhere", "bind-interfaces",
		"except-interface=lo")
	serve(t, server(t).s)
}

// Two boot servers on one host can't both have port 4011.
func TestProxyBesideBootServerOnTheSameHost(t *testing.T) {
	if onWire(t) == "" {
		return
	}
	kit.Dnsmasq(t, "", "dhcp-range=10.77.0.0,proxy", `pxe-service=X86-64_EFI,"other",other.efi`, "interface=prov",
		"bind-interfaces", "except-interface=lo")
	r := newRig(t, Proxy, func(c *Config) { c.Interface = "prov" })
	if err := r.s.Listen(); !errors.Is(err, syscall.EADDRINUSE) ||
		!strings.Contains(err.Error(), "another boot server of this host has port 4011 already") {
		t.Errorf("Listen = %v beside another boot server", err)
	}
}

// A relay is answered at its own address, from port 67, although the port is not bound: that it is told so by the
// kernel harms nothing.
func TestProxyAnswersRelays(t *testing.T) {
	machine := onWire(t)
	if machine == "" {
		return
	}
	kit.Run(t, "ip", "-n", machine, "addr", "add", "10.77.0.2/24", "dev", "eth0")
	r := newRig(t, Proxy, func(c *Config) { c.Interface = "prov" })
	r.port(r.node(node.DeployWait, true, nil), testMAC, true)
	serve(t, r.s)
	in(t, machine, func() error {
		relay, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IP{10, 77, 0, 2}, Port: dhcpv4.ServerPort})
		if err != nil {
			return err
		}
		defer relay.Close()
		for range 3 {
			m := packet(t, dhcpv4.MessageTypeDiscover,
				append(pxe(iana.EFI_X86_64, classPXE), dhcpv4.WithRelay(net.IP{10, 77, 0, 2}))...)
			if _, err := relay.WriteToUDP(m.ToBytes(),
				&net.UDPAddr{IP: net.IP{10, 77, 0, 1}, Port: dhcpv4.ServerPort}); err != nil {
				return err
			}
			if err := relay.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				return err
			}
			buf := make([]byte, 1500)
			n, from, err := relay.ReadFromUDP(buf)
			if err != nil {
				return err
			}
			o, err := dhcpv4.FromBytes(buf[:n])
			if err != nil || o.TransactionID != m.TransactionID ||
				o.BootFileNameOption() != namedFile(testMAC.String(), uefiLoader) || from.String() != "10.77.0.1:67" {
				t.Errorf("the relay has %v, %v from %s", o, err, from)
			}
		}
		return nil
	})
}
