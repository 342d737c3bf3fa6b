package netup

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/nclient6"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
)

// routerAdvert holds the fields of a router advertisement that the agent uses; the kernel handles addresses and routes.
// RFC 4861, 8106.
type routerAdvert struct {
	managed bool // addresses come from DHCPv6
	other   bool // name servers come from DHCPv6
	dns     []netip.Addr
}

// parseRA parses a router advertisement from its fourth byte on (after type, code and checksum).
func parseRA(b []byte) (routerAdvert, bool) {
	const fixed, rdnss = 12, 25
	if len(b) < fixed {
		return routerAdvert{}, false
	}
	ra := routerAdvert{managed: b[1]&0x80 != 0, other: b[1]&0x40 != 0}
	for o := b[fixed:]; len(o) >= 8; {
		n := int(o[1]) * 8
		if n == 0 || n > len(o) {
			return ra, false
		}
		if o[0] == rdnss && binary.BigEndian.Uint32(o[4:]) > 0 {
			for a := o[8:n]; len(a) >= 16; a = a[16:] {
				ra.dns = append(ra.dns, netip.AddrFrom16([16]byte(a[:16])))
			}
		}
		o = o[n:]
	}
	return ra, true
}

// raListener receives router advertisements on all links.
type raListener struct{ conn *ipv6.PacketConn }

func listenRA() (*raListener, error) {
	c, err := icmp.ListenPacket("ip6:ipv6-icmp", "::")
	if err != nil {
		return nil, fmt.Errorf("listen for router advertisements: %w", err)
	}
	p := c.IPv6PacketConn()
	var f ipv6.ICMPFilter
	f.SetAll(true)
	f.Accept(ipv6.ICMPTypeRouterAdvertisement)
	if err := errors.Join(p.SetICMPFilter(&f),
		p.SetControlMessage(ipv6.FlagInterface|ipv6.FlagHopLimit, true)); err != nil {
		c.Close()
		return nil, fmt.Errorf("listen for router advertisements: %w", err)
	}
	return &raListener{p}, nil
}

func (r *raListener) Close() error { return r.conn.Close() }

func (r *raListener) run(heard func(index int, ra routerAdvert)) {
	buf := make([]byte, 9216)
	for {
		k, cm, _, err := r.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		// Hop limit 255 proves that no router forwarded it.
		if cm == nil || cm.HopLimit != 255 || k < 4 {
			continue
		}
		if ra, ok := parseRA(buf[4:k]); ok {
			heard(cm.IfIndex, ra)
		}
	}
}

// advert applies a router's settings for the source of addresses and name servers.
func (n *Net) advert(index int, ra routerAdvert) {
	n.mu.Lock()
	l := n.links[index]
	if n.cfg.Data != nil && (l == nil || !n.auto6(l)) {
		n.mu.Unlock()
		return
	}
	n.addDNS6(ra.dns)
	if l != nil && l.ctx.Err() == nil && (ra.managed || ra.other) {
		more := ra.managed && !l.managed
		l.managed = l.managed || ra.managed
		switch {
		case !l.dhcp6:
			l.dhcp6 = true
			n.log.Info("the router points to DHCPv6", "link", l.name, "managed", ra.managed)
			l.wg.Go(func() { n.serve6(l) })
		case more:
			n.log.Info("the router now points to DHCPv6 for addresses, too", "link", l.name)
			poke(l.ask6)
		}
	}
	n.mu.Unlock()
	n.check() // only a name server may have been missing
}

// addDNS6 adds name servers; the lock is held.
func (n *Net) addDNS6(list []netip.Addr) {
	changed := false
	for _, a := range list {
		if !slices.Contains(n.dns6, a) && len(n.dns6) < 8 {
			n.dns6, changed = append(n.dns6, a), true
		}
	}
	if changed {
		n.writeResolv()
	}
}

// serve6 requests an IPv6 address (only name servers if the router says so) and renews it before it expires. Like an
// IPv4 address it is kept when the server does not answer.
func (n *Net) serve6(l *link) {
	const first = time.Second
	pause := first
	for l.ctx.Err() == nil {
		life, err := n.request6(l)
		if err != nil {
			// The first attempt may precede the kernel's check of the link-local address.
			n.log.Debug("no DHCPv6 lease", "link", l.name, "err", err)
			wait(l.ctx, l.ask6, pause)
			pause = min(2*pause, maxRenew)
			continue
		}
		pause = first
		wait(l.ctx, l.ask6, max(life/2, 30*time.Second))
	}
}

// request6 sends one DHCPv6 request, applies the reply, and returns its lifetime.
func (n *Net) request6(l *link) (time.Duration, error) {
	c, err := nclient6.New(l.name, nclient6.WithTimeout(time.Second), nclient6.WithRetry(4))
	if err != nil {
		return 0, fmt.Errorf("open a DHCPv6 client on %s: %w", l.name, err)
	}
	defer c.Close()
	n.mu.Lock()
	managed := l.managed
	n.mu.Unlock()
	id := dhcpv6.WithClientID(&dhcpv6.DUIDLL{HWType: 1, LinkLayerAddr: l.mac})
	var reply *dhcpv6.Message
	if managed {
		// RapidSolicit falls back to the exchange of four messages. The same DUID and IAID get the same address, so
		// this is a renewal.
		reply, err = c.RapidSolicit(l.ctx, id)
	} else {
		reply, err = inform6(l.ctx, c, id)
	}
	if err != nil {
		return 0, fmt.Errorf("ask by DHCPv6 on %s: %w", l.name, err)
	}
	var dns []netip.Addr
	for _, a := range reply.Options.DNS() {
		if d, ok := netip.AddrFromSlice(a); ok {
			dns = append(dns, d)
		}
	}
	n.mu.Lock()
	n.addDNS6(dns)
	n.mu.Unlock()
	defer n.check()
	life := time.Hour
	if !managed {
		return life, nil
	}
	var given []netip.Addr
	if ia := reply.Options.OneIANA(); ia != nil {
		for _, a := range ia.Options.Addresses() {
			if d, ok := netip.AddrFromSlice(a.IPv6Addr); ok && a.ValidLifetime > 0 {
				given = append(given, d)
				life = min(life, a.PreferredLifetime)
			}
		}
	}
	if len(given) == 0 {
		return 0, fmt.Errorf("the DHCPv6 server on %s gives no address", l.name)
	}
	return life, n.take6(l, given)
}

// inform6 requests name servers only: a server without addresses would not answer a Solicit. RFC 8415, 18.2.6.
func inform6(ctx context.Context, c *nclient6.Client, id dhcpv6.Modifier) (*dhcpv6.Message, error) {
	m, err := dhcpv6.NewMessage(id, dhcpv6.WithRequestedOptions(dhcpv6.OptionDNSRecursiveNameServer),
		dhcpv6.WithOption(dhcpv6.OptElapsedTime(0)))
	if err != nil {
		return nil, err
	}
	m.MessageType = dhcpv6.MessageTypeInformationRequest
	return c.SendAndRead(ctx, c.RemoteAddr(), m, nclient6.IsMessageType(dhcpv6.MessageTypeReply))
}

// take6 adds the given addresses, and then removes earlier ones that the server no longer gives.
func (n *Net) take6(l *link, given []netip.Addr) error {
	nl, err := netlink.LinkByIndex(l.index)
	if err != nil {
		return fmt.Errorf("find the link %s: %w", l.name, err)
	}
	for _, a := range given {
		if err := netlink.AddrReplace(nl, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, 128))}); err != nil {
			return fmt.Errorf("set address %s on %s: %w", a, l.name, err)
		}
		n.log.Info("lease", "link", l.name, "address", a.String())
	}
	for _, a := range l.given6 {
		if slices.Contains(given, a) {
			continue
		}
		n.dropAddr(nl, netip.PrefixFrom(a, 128))
	}
	l.given6 = given
	return nil
}

// writeResolv writes the resolver file, the preferred link's name servers first. The lock is held.
func (n *Net) writeResolv() {
	links := n.order
	if k := slices.Index(links, n.prefer); k > 0 {
		links = slices.Concat(links[k:k+1], links[:k], links[k+1:])
	}
	var known []netip.Addr
	if n.cfg.Data != nil {
		known = slices.Clone(n.cfg.Data.DNS)
	}
	domain := ""
	for _, l := range links {
		known = append(known, l.lease.dns...)
		domain = cmp.Or(domain, cleanName(l.lease.domain))
	}
	var servers []netip.Addr
	for _, a := range append(known, n.dns6...) {
		if !slices.Contains(servers, a) {
			servers = append(servers, a)
		}
	}
	var b strings.Builder
	if domain != "" {
		fmt.Fprintf(&b, "search %s\n", domain)
	}
	// The resolver reads only three.
	for _, s := range servers[:min(3, len(servers))] {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	_ = os.MkdirAll(filepath.Dir(n.cfg.Resolv), 0o755) // else what follows fails
	if err := os.WriteFile(n.cfg.Resolv, []byte(b.String()), 0o644); err != nil {
		n.log.Warn("name servers not written", "err", err)
	}
}
