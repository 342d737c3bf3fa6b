package netup

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
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

// routerAdvert is what the agent takes from a router advertisement; addresses and routes are the kernel's business. RFC 4861, 8106.
type routerAdvert struct {
	managed bool // addresses come from DHCPv6
	other   bool // name servers do
	dns     []netip.Addr
}

// parseRA reads a router advertisement from its fourth byte on (behind type, code and checksum).
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

// raListener hears router advertisements on all links.
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
	if err := errors.Join(p.SetICMPFilter(&f), p.SetControlMessage(ipv6.FlagInterface|ipv6.FlagHopLimit, true)); err != nil {
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
		// Hop limit 255 proves that no router has passed it on.
		if cm == nil || cm.HopLimit != 255 || k < 4 {
			continue
		}
		if ra, ok := parseRA(buf[4:k]); ok {
			heard(cm.IfIndex, ra)
		}
	}
}

// advert takes a router's word for where addresses and names come from.
func (n *Net) advert(ctx context.Context, index int, ra routerAdvert) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addDNS6(ra.dns)
	l := n.links[index]
	if l == nil || l.dhcp6 || !ra.managed && !ra.other || ctx.Err() != nil {
		return
	}
	l.dhcp6 = true
	n.log.Info("the router points to DHCPv6", "link", l.name, "managed", ra.managed)
	l.wg.Go(func() { n.serve6(ctx, l) })
}

// addDNS6 keeps name servers; the lock is held.
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

// serve6 asks for an IPv6 address and asks again before it runs out. Like an IPv4 address it stays when the server is silent.
func (n *Net) serve6(ctx context.Context, l *link) {
	pause := 5 * time.Second
	for ctx.Err() == nil {
		life, err := n.request6(ctx, l)
		if err != nil {
			n.log.Debug("no DHCPv6 lease", "link", l.name, "err", err)
			wait(ctx, nil, pause)
			pause = min(2*pause, maxRenew)
			continue
		}
		pause = 5 * time.Second
		wait(ctx, nil, max(life/2, 30*time.Second))
	}
}

func (n *Net) request6(ctx context.Context, l *link) (time.Duration, error) {
	c, err := nclient6.New(l.name, nclient6.WithTimeout(time.Second), nclient6.WithRetry(4))
	if err != nil {
		return 0, fmt.Errorf("open a DHCPv6 client on %s: %w", l.name, err)
	}
	defer c.Close()
	// RapidSolicit falls back to the exchange of four messages. The same DUID and IAID get the same address: a renewal in effect.
	reply, err := c.RapidSolicit(ctx, dhcpv6.WithClientID(&dhcpv6.DUIDLL{HWType: 1, LinkLayerAddr: l.mac}))
	if err != nil {
		return 0, fmt.Errorf("ask for an address by DHCPv6 on %s: %w", l.name, err)
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
	ia := reply.Options.OneIANA()
	if ia == nil {
		return time.Hour, nil
	}
	life := time.Hour
	for _, a := range ia.Options.Addresses() {
		nl, err := netlink.LinkByIndex(l.index)
		if err != nil {
			return 0, err
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.IPv6Addr, Mask: net.CIDRMask(128, 128)}}
		if err := netlink.AddrReplace(nl, addr); err != nil {
			return 0, fmt.Errorf("set address %s on %s: %w", a.IPv6Addr, l.name, err)
		}
		n.log.Info("lease", "link", l.name, "address", a.IPv6Addr.String(), "for", a.ValidLifetime)
		life = min(life, a.PreferredLifetime)
	}
	n.check()
	return life, nil
}

// writeResolv writes the resolver file from all that is known, the preferred link's name servers first. The lock is held.
func (n *Net) writeResolv() {
	var servers []string
	var domain string
	add := func(a netip.Addr) {
		if s := a.String(); !slices.Contains(servers, s) {
			servers = append(servers, s)
		}
	}
	links := slices.Clone(n.order)
	slices.SortStableFunc(links, func(a, b *link) int {
		switch n.prefer {
		case a:
			return -1
		case b:
			return 1
		}
		return 0
	})
	for _, l := range links {
		for _, a := range l.lease.dns {
			add(a)
		}
		if domain == "" {
			domain = cleanName(l.lease.domain)
		}
	}
	for _, a := range n.dns6 {
		add(a)
	}
	var b strings.Builder
	if domain != "" {
		fmt.Fprintf(&b, "search %s\n", domain)
	}
	// The resolver reads three.
	for _, s := range servers[:min(3, len(servers))] {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if err := os.MkdirAll(filepath.Dir(n.cfg.Resolv), 0o755); err == nil {
		err = os.WriteFile(n.cfg.Resolv, []byte(b.String()), 0o644)
		if err != nil {
			n.log.Warn("name servers not written", "err", err)
		}
	}
}
