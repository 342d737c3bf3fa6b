package netup

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Times of the DHCP client.
const (
	firstTry   = 500 * time.Millisecond // doubles with each try
	tries      = 6
	minRenew   = 2 * time.Second // minimum interval of renewals
	maxRenew   = 5 * time.Minute // maximum, after the lease has expired
	noLifetime = 24 * time.Hour  // renewal of an infinite lease: a rebooted server should learn it again
	baseMetric = 100
)

// lease4 is a DHCPv4 lease.
type lease4 struct {
	raw    *nclient4.Lease
	addr   netip.Prefix
	routes []route4
	dns    []netip.Addr
	domain string
	host   string
	mtu    int
	t1     time.Duration
	expiry time.Duration // zero: never
}

// route4 is one route; the zero Prefix bits and address mean the default route.
type route4 struct {
	to  netip.Prefix
	via netip.Addr // invalid: on the link
}

// parse4 extracts the options of an ACK that the agent uses. RFC 2132; RFC 3442 for classless routes, which replace the
// router option.
func parse4(l *nclient4.Lease) (*lease4, error) {
	ack := l.ACK
	ip, ok := netip.AddrFromSlice(ack.YourIPAddr.To4())
	if !ok || ip.IsUnspecified() {
		return nil, errors.New("the DHCP server's answer has no address")
	}
	bits := 0
	if mask := ack.SubnetMask(); mask != nil {
		bits, _ = mask.Size()
	}
	if bits == 0 {
		bits, _ = net.IP(ip.AsSlice()).DefaultMask().Size()
	}
	out := &lease4{raw: l, addr: netip.PrefixFrom(ip, bits), domain: ack.DomainName(), host: cleanName(ack.HostName())}
	for _, a := range ack.DNS() {
		if d, ok := netip.AddrFromSlice(a.To4()); ok {
			out.dns = append(out.dns, d)
		}
	}
	classless := ack.ClasslessStaticRoute()
	for _, r := range classless {
		to, ok1 := netip.AddrFromSlice(r.Dest.IP.To4())
		ones, _ := r.Dest.Mask.Size()
		via, ok2 := netip.AddrFromSlice(r.Router.To4())
		if !ok1 || !ok2 {
			continue
		}
		if via.IsUnspecified() {
			via = netip.Addr{}
		}
		out.routes = append(out.routes, route4{netip.PrefixFrom(to, ones).Masked(), via})
	}
	if routers := ack.Router(); len(routers) > 0 && len(classless) == 0 {
		if via, ok := netip.AddrFromSlice(routers[0].To4()); ok && !via.IsUnspecified() {
			out.routes = append(out.routes, route4{netip.PrefixFrom(netip.IPv4Unspecified(), 0), via})
		}
	}
	if b := ack.Options.Get(dhcpv4.OptionInterfaceMTU); len(b) == 2 {
		if mtu := int(binary.BigEndian.Uint16(b)); mtu >= 576 && mtu <= 9216 {
			out.mtu = mtu
		}
	}
	if seconds := ack.IPAddressLeaseTime(0); seconds > 0 && seconds < 0xffffffff*time.Second {
		out.expiry = seconds
	}
	out.t1 = ack.IPAddressRenewalTime(0)
	if out.t1 <= 0 || out.expiry > 0 && out.t1 >= out.expiry {
		out.t1 = out.expiry / 2
	}
	if out.expiry == 0 {
		out.t1 = noLifetime
	}
	out.t1 = max(out.t1, minRenew)
	return out, nil
}

// cleanName accepts host names only: a DHCP server is not trusted with other text.
func cleanName(s string) string {
	s = strings.TrimRight(s, "\x00.")
	if len(s) > 64 || strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.')
	}) {
		return ""
	}
	return s
}

// serve4 keeps an IPv4 lease on a link with a carrier until ctx ends.
func (n *Net) serve4(ctx context.Context, l *link) {
	for ctx.Err() == nil {
		lease, err := n.acquire(ctx, l)
		if err != nil {
			if ctx.Err() == nil {
				n.log.Warn("no lease", "link", l.name, "err", err)
				wait(ctx, l.carrier, 3*time.Second)
			}
			continue
		}
		n.take(l, lease)
		n.keep(ctx, l)
	}
}

// wait returns after d, or when the carrier returns, or when ctx ends.
func wait(ctx context.Context, carrier <-chan struct{}, d time.Duration) {
	select {
	case <-time.After(d):
	case <-carrier:
	case <-ctx.Done():
	}
}

// ask asks for a lease, by a client of its own on the link.
func (n *Net) ask(l *link, tries int, request func(c *nclient4.Client) (*nclient4.Lease, error)) (*lease4, error) {
	c, err := nclient4.New(l.name, nclient4.WithTimeout(firstTry), nclient4.WithRetry(tries))
	if err != nil {
		return nil, fmt.Errorf("open a DHCP client on %s: %w", l.name, err)
	}
	defer c.Close()
	raw, err := request(c)
	if err != nil {
		return nil, err
	}
	return parse4(raw)
}

// modifiers returns the options of all requests.
func (n *Net) modifiers() []dhcpv4.Modifier {
	m := []dhcpv4.Modifier{
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier("ingot-agent")),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionDomainNameServer,
			dhcpv4.OptionDomainName, dhcpv4.OptionHostName, dhcpv4.OptionInterfaceMTU,
			dhcpv4.OptionClasslessStaticRoute),
	}
	if guid := wireGUID(n.cfg.GUID); guid != nil {
		m = append(m, dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClientMachineIdentifier, guid)))
	}
	return m
}

// wireGUID encodes a system UUID as PXE firmware does in option 97 (RFC 4578): type 0, then SMBIOS's bytes, whose first
// three fields are little-endian.
func wireGUID(uuid string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(uuid, "-", ""))
	if err != nil || len(b) != 16 {
		return nil
	}
	slices.Reverse(b[0:4])
	slices.Reverse(b[4:6])
	slices.Reverse(b[6:8])
	return append([]byte{0}, b...)
}

func (n *Net) acquire(ctx context.Context, l *link) (*lease4, error) {
	return n.ask(l, tries, func(c *nclient4.Client) (*nclient4.Lease, error) {
		raw, err := c.Request(ctx, n.modifiers()...)
		if err != nil {
			err = fmt.Errorf("ask for an address on %s: %w", l.name, err)
		}
		return raw, err
	})
}

// take applies a lease.
func (n *Net) take(l *link, lease *lease4) {
	n.mu.Lock()
	old := l.lease
	l.lease = lease
	n.mu.Unlock()
	n.log.Info("lease", "link", l.name, "address", lease.addr.String(), "server", lease.raw.ACK.ServerIPAddr.String(),
		"for", lease.expiry)
	nl, err := netlink.LinkByIndex(l.index)
	if err != nil {
		n.log.Warn("link is gone", "link", l.name, "err", err)
		return
	}
	if lease.mtu > 0 && nl.Attrs().MTU != lease.mtu {
		if err := netlink.LinkSetMTU(nl, lease.mtu); err != nil {
			n.log.Warn("MTU not set", "link", l.name, "mtu", lease.mtu, "err", err)
		}
	}
	// Without lifetimes: the kernel would remove the address on expiry.
	if err := netlink.AddrReplace(nl, &netlink.Addr{IPNet: ipNet(lease.addr)}); err != nil {
		n.log.Error("address not set", "link", l.name, "address", lease.addr.String(), "err", err)
		return
	}
	if old != nil && old.addr != lease.addr {
		n.dropAddr(nl, old.addr)
	}
	n.mu.Lock()
	if !slices.Contains(n.order, l) {
		n.order = append(n.order, l)
	}
	// Later the boot interface is not preferred any more: connections over another link would break.
	if n.prefer == nil || n.cfg.BootIF != nil && l.mac.String() == n.cfg.BootIF.String() &&
		(!n.up || time.Since(n.began) < 2*bootGrace) {
		n.prefer = l
	}
	for _, o := range n.order {
		n.setRoutes(o)
	}
	n.writeResolv()
	first := lease.host != "" && !n.name
	n.name = n.name || first
	n.mu.Unlock()
	if first && n.cfg.SetHostname != nil {
		if err := n.cfg.SetHostname(lease.host); err != nil {
			n.log.Warn("host name not set", "err", err)
		}
	}
	n.check()
}

func (n *Net) dropAddr(l netlink.Link, p netip.Prefix) {
	if err := netlink.AddrDel(l, &netlink.Addr{IPNet: ipNet(p)}); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		n.log.Warn("the old address stays", "link", l.Attrs().Name, "address", p.String(), "err", err)
	}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// setRoutes sets a link's routes, with the best metric for the preferred link. The lock is held.
func (n *Net) setRoutes(l *link) {
	if l.lease == nil {
		return
	}
	metric := baseMetric + 100 + l.index
	if l == n.prefer {
		metric = baseMetric
	}
	var want []netlink.Route
	for _, r := range l.lease.routes {
		nr := netlink.Route{LinkIndex: l.index, Priority: metric, Protocol: unix.RTPROT_DHCP, Dst: ipNet(r.to),
			Src: l.lease.addr.Addr().AsSlice()}
		if r.via.IsValid() {
			nr.Gw = r.via.AsSlice()
			if !l.lease.addr.Contains(r.via) {
				nr.Flags = int(netlink.FLAG_ONLINK) // a gateway outside the prefix, as some providers have it
			}
		} else {
			nr.Scope = netlink.SCOPE_LINK
		}
		want = append(want, nr)
		if err := netlink.RouteReplace(&nr); err != nil {
			n.log.Warn("route not set", "link", l.name, "to", nr.Dst.String(), "err", err)
		}
	}
	for _, old := range l.routes {
		if !slices.ContainsFunc(want, old.Equal) {
			_ = netlink.RouteDel(&old) // usually already removed with its address
		}
	}
	l.routes = want
}

// keep renews the link's lease until ctx ends or the server revokes the address.
func (n *Net) keep(ctx context.Context, l *link) {
	last := time.Now()
	pause := l.lease.t1
	for {
		wait(ctx, l.carrier, pause)
		if ctx.Err() != nil {
			return
		}
		lease, err := n.renew(ctx, l)
		var nak *nclient4.ErrNak
		switch {
		case err == nil:
			n.take(l, lease)
			last, pause = time.Now(), lease.t1
		case errors.As(err, &nak):
			n.log.Warn("the DHCP server takes the address away", "link", l.name, "address", l.lease.addr.String())
			return
		default:
			// RFC 2131, 4.4.5: half of the remaining time. After the end the address is kept and the server asked now
			// and then.
			left := l.lease.expiry - time.Since(last)
			pause = min(max(left/2, minRenew), maxRenew)
			n.log.Warn("lease not renewed", "link", l.name, "left", max(left, 0).Round(time.Second), "err", err)
		}
	}
}

// renew extends the lease. It broadcasts, as a client in state REBINDING does: another server may have replaced the one
// that assigned the address.
func (n *Net) renew(ctx context.Context, l *link) (*lease4, error) {
	return n.ask(l, 3, func(c *nclient4.Client) (*nclient4.Lease, error) {
		return c.Renew(ctx, l.lease.raw, n.modifiers()...)
	})
}
