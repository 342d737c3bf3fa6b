package netup

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/server6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

const (
	flagManaged    = 0x80
	flagOther      = 0x40
	prefixOnLink   = 0x80
	prefixAutonome = 0x40
)

// advertisement encodes a router advertisement after its first four bytes. RFC 4861, 4.2 and 4.6.2; RFC 8106.
func advertisement(flags byte, prefix netip.Prefix, prefixFlags byte, dns ...netip.Addr) []byte {
	b := []byte{64, flags}
	b = binary.BigEndian.AppendUint16(b, 1800) // lifetime as a default router
	b = append(b, make([]byte, 8)...)
	b = append(b, 3, 4, byte(prefix.Bits()), prefixFlags)
	b = binary.BigEndian.AppendUint32(b, 3600)
	b = binary.BigEndian.AppendUint32(b, 1800)
	b = append(b, 0, 0, 0, 0)
	b = append(b, prefix.Addr().AsSlice()...)
	if len(dns) > 0 {
		b = append(b, 25, byte(1+2*len(dns)), 0, 0)
		b = binary.BigEndian.AppendUint32(b, 1800)
		for _, d := range dns {
			b = append(b, d.AsSlice()...)
		}
	}
	return b
}

// router advertises itself as fe80::1 on the far end of a cable, four times a second.
type router struct {
	mu   sync.Mutex
	body []byte
}

func (r *router) say(body []byte) { r.mu.Lock(); r.body = body; r.mu.Unlock() }

func (r *router) start(t *testing.T, link string) {
	t.Helper()
	nic, err := net.InterfaceByName(link)
	if err != nil {
		t.Fatal(err)
	}
	c, err := icmp.ListenPacket("ip6:ipv6-icmp", "::")
	if err != nil {
		t.Fatal(err)
	}
	p := c.IPv6PacketConn()
	if err := p.SetMulticastLoopback(false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(250 * time.Millisecond); ; {
			r.mu.Lock()
			// the kernel puts the checksum in
			m := append([]byte{byte(ipv6.ICMPTypeRouterAdvertisement), 0, 0, 0}, r.body...)
			r.mu.Unlock()
			// Fails until the kernel has made sure of fe80::1.
			_, _ = p.WriteTo(m, &ipv6.ControlMessage{HopLimit: 255, Src: net.ParseIP("fe80::1"), IfIndex: nic.Index},
				&net.IPAddr{IP: net.IPv6linklocalallnodes, Zone: link})
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done; c.Close() })
}

// dhcp6Server has one address to give, or none; without addr it is stateless and leaves Solicits alone.
type dhcp6Server struct {
	mu    sync.Mutex
	addr  netip.Addr
	none  bool // answers that it has no address left
	dns   netip.Addr
	rapid bool
	seen  []dhcpv6.MessageType
}

func (d *dhcp6Server) start(t *testing.T, link string) {
	t.Helper()
	s, err := server6.NewServer(link, nil, d.handle)
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve()
	t.Cleanup(func() { s.Close() })
}

func (d *dhcp6Server) set(f func()) { d.mu.Lock(); f(); d.mu.Unlock() }

func (d *dhcp6Server) saw(kind dhcpv6.MessageType) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.seen, kind)
}

func (d *dhcp6Server) handle(conn net.PacketConn, peer net.Addr, packet dhcpv6.DHCPv6) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := packet.(*dhcpv6.Message)
	if !ok {
		return
	}
	d.seen = append(d.seen, m.MessageType)
	mods := []dhcpv6.Modifier{
		dhcpv6.WithServerID(
			&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}})}
	if d.dns.IsValid() {
		mods = append(mods, dhcpv6.WithDNS(d.dns.AsSlice()))
	}
	if ia := m.Options.OneIANA(); ia != nil {
		if !d.addr.IsValid() {
			return
		}
		mods = append(mods, dhcpv6.WithIAID(ia.IaId))
		if !d.none {
			mods = append(mods,
				dhcpv6.WithIANA(
					dhcpv6.OptIAAddress{IPv6Addr: d.addr.AsSlice(), PreferredLifetime: time.Hour,
						ValidLifetime: 2 * time.Hour}))
		}
	}
	answer := dhcpv6.NewReplyFromMessage
	if m.MessageType == dhcpv6.MessageTypeSolicit && !d.rapid {
		answer = dhcpv6.NewAdvertiseFromSolicit
	}
	if r, err := answer(m, mods...); err == nil {
		_, _ = conn.WriteTo(r.ToBytes(), peer)
	}
}

// addresses6 of a link that are ready for use, those of the link's own scope left out.
func addresses6(t *testing.T, link string) []string {
	t.Helper()
	l, err := netlink.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	list, err := netlink.AddrList(l, netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range list {
		if !a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0 {
			out = append(out, a.IPNet.String())
		}
	}
	return out
}

// way returns gateway and source of a packet to an address.
func way(to string) (gw, src string) {
	r, err := netlink.RouteGet(net.ParseIP(to))
	if err != nil || len(r) == 0 {
		return "", ""
	}
	return r[0].Gw.String(), r[0].Src.String()
}

// slaac is the address that the kernel makes of a prefix of 64 bits and a MAC. RFC 4291, appendix A.
func slaac(prefix netip.Prefix, mac net.HardwareAddr) netip.Addr {
	b := prefix.Addr().As16()
	copy(b[8:], []byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
	return netip.AddrFrom16(b)
}

// TestRouterAdvertisement holds that a prefix with the autonomous flag gives an address by which the conductor is
// reached, and that a DHCPv6 server is asked as soon as the router says so.
func TestRouterAdvertisement(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	mac := cable(t, "eth0", "fe80::1/64")
	prefix, dns := netip.MustParsePrefix("2001:db8:1::/64"), netip.MustParseAddr("2001:db8::53")
	r := &router{body: advertisement(0, prefix, prefixOnLink|prefixAutonome, dns)}
	r.start(t, "eth0s")
	d := &dhcp6Server{addr: netip.MustParseAddr("2001:db8:2::50"), dns: netip.MustParseAddr("2001:db8::54")}
	d.start(t, "eth0s")
	n := up(t, Config{Conductors: []string{"[2001:db8:ffff::9]:6386"}, BootIF: mac})

	own := slaac(prefix, mac).String()
	if got := addresses6(t, "eth0"); !slices.Equal(got, []string{own + "/64"}) {
		t.Errorf("addresses %q, want %s/64", got, own)
	}
	if gw, src := way("2001:db8:ffff::9"); gw != "fe80::1" || src != own {
		t.Errorf("the way to the conductor is over %q from %q", gw, src)
	}
	if !strings.Contains(n.Summary(), "eth0 "+own+"/64") {
		t.Errorf("summary %q", n.Summary())
	}
	resolv := func() string { b, _ := os.ReadFile(n.cfg.Resolv); return string(b) }
	eventually(t, "the router's name server", func() bool { return resolv() == "nameserver 2001:db8::53\n" })
	if d.saw(dhcpv6.MessageTypeSolicit) {
		t.Error("a DHCPv6 server was asked, and no router had said so")
	}

	r.say(advertisement(flagManaged, netip.MustParsePrefix("2001:db8:2::/64"), prefixOnLink, dns))
	eventually(t, "the DHCPv6 server's address",
		func() bool { return slices.Contains(addresses6(t, "eth0"), "2001:db8:2::50/128") })
	eventually(t, "its name server", func() bool {
		return resolv() == "nameserver 2001:db8::53\nnameserver 2001:db8::54\n"
	})
	if !d.saw(dhcpv6.MessageTypeRequest) {
		t.Error("no exchange of four messages")
	}
	if got := addresses6(t, "eth0"); !slices.Contains(got, own+"/64") {
		t.Errorf("the address of before is gone: %q", got)
	}
}

// TestManagedAlone holds that a network whose only addresses come from DHCPv6 is ready when the address is there, not
// when the router's route is.
func TestManagedAlone(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	cable(t, "eth0", "fe80::1/64")
	r := &router{body: advertisement(flagManaged, netip.MustParsePrefix("2001:db8:2::/64"), prefixOnLink)}
	r.start(t, "eth0s")
	d := &dhcp6Server{addr: netip.MustParseAddr("2001:db8:2::50"), none: true, rapid: true}
	d.start(t, "eth0s")
	go func() {
		for tick := time.NewTicker(20 * time.Millisecond); t.Context().Err() == nil; <-tick.C {
			if d.saw(dhcpv6.MessageTypeSolicit) {
				d.set(func() { d.none = false }) // it has been refused once
				return
			}
		}
	}()
	n := up(t, Config{Conductors: []string{"[2001:db8:ffff::9]:6386"}})
	if gw, src := way("2001:db8:ffff::9"); gw != "fe80::1" || src != "2001:db8:2::50" {
		t.Errorf("the way to the conductor is over %q from %q", gw, src)
	}

	// The server gives another address: the old one goes when the new one is there.
	d.set(func() { d.addr = netip.MustParseAddr("2001:db8:2::60") })
	var l *link
	n.mu.Lock()
	for _, o := range n.links {
		if o.name == "eth0" {
			l = o
		}
	}
	n.mu.Unlock()
	l.ask6 <- struct{}{} // it is time to renew
	eventually(t, "the new address", func() bool {
		return slices.Equal(addresses6(t, "eth0"), []string{"2001:db8:2::60/128"})
	})
}

// TestOtherConfiguration holds that of a stateless DHCPv6 server, which answers no Solicit, only name servers are asked
// for.
func TestOtherConfiguration(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	mac := cable(t, "eth0", "fe80::1/64")
	prefix := netip.MustParsePrefix("2001:db8:1::/64")
	r := &router{body: advertisement(flagOther, prefix, prefixOnLink|prefixAutonome)}
	r.start(t, "eth0s")
	d := &dhcp6Server{dns: netip.MustParseAddr("2001:db8::54")}
	d.start(t, "eth0s")
	// By name: an address is not enough, it has to be looked up.
	n := up(t, Config{Conductors: []string{"conductor.example:6386"}})
	eventually(t, "the name server", func() bool {
		b, _ := os.ReadFile(n.cfg.Resolv)
		return string(b) == "nameserver 2001:db8::54\n"
	})
	eventually(t, "an address", func() bool {
		return slices.Equal(addresses6(t, "eth0"), []string{slaac(prefix, mac).String() + "/64"})
	})
	if d.saw(dhcpv6.MessageTypeSolicit) {
		t.Error("an address was asked for")
	}
}
