// Package dial decides which addresses the conductor connects to on behalf of users.
//
// A URL or an address from a user must not make the conductor reach services that only it can reach: those on its own
// host, the metadata service of a cloud, its links. The address is checked when the connection is made, after names
// were resolved, so that neither a redirect nor a name that resolves differently the second time avoids the check.
// Addresses that an administrator configures (Keystone, Glance), and controllers with IPMI, do not go through here.
package dial

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Guard has the exemptions. Nil and the zero value have none. Safe for concurrent use.
type Guard struct {
	allow     []netip.Prefix
	listeners []netip.AddrPort
}

// New makes a guard that lets connections through to all addresses of some networks, and to some listeners of the
// conductor's own.
func New(allow []netip.Prefix, listeners ...netip.AddrPort) *Guard {
	return &Guard{allow: allow, listeners: listeners}
}

// RefusedError says why an address is not connected to.
type RefusedError struct {
	Addr   netip.AddrPort
	Reason string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the conductor does not connect to %s for a user: %s (fetch.allow has the exceptions)", e.Addr,
		e.Reason)
}

// Check returns a *RefusedError for an address that is not to be connected to.
func (g *Guard) Check(to netip.AddrPort) error {
	a := to.Addr().Unmap()
	if g != nil {
		if slices.Contains(g.listeners, netip.AddrPortFrom(a, to.Port())) {
			return nil
		}
		for _, p := range g.allow {
			if p.Contains(a.WithZone("")) {
				return nil
			}
		}
	}
	reason := reserved(a)
	if reason == "" {
		reason = ofThisHost(a)
	}
	if reason != "" {
		return &RefusedError{Addr: netip.AddrPortFrom(a, to.Port()), Reason: reason}
	}
	return nil
}

// Dial connects as net.Dialer does, to addresses that pass Check.
func (g *Guard) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, ControlContext: g.control}
	return d.DialContext(ctx, network, address)
}

// control is called with each address before a socket is connected to it.
func (g *Guard) control(_ context.Context, network, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !strings.HasPrefix(network, "tcp") {
		return fmt.Errorf("the conductor does not connect to %s address %q for a user", network, address)
	}
	return g.Check(to)
}

// Transport makes an HTTP transport whose connections go through the guard, redirects included. A proxy resolves names
// by itself, so the target of a request that goes through one is checked before, as far as this host can resolve it.
// proxy chooses one, as in http.Transport; nil takes those of the environment. The proxy itself has to pass, too.
func (g *Guard) Transport(proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = g.Dial
	t.Proxy = func(r *http.Request) (*url.URL, error) {
		u, err := proxy(r)
		if u == nil || err != nil {
			return u, err
		}
		return u, g.checkHost(r.Context(), r.URL.Hostname())
	}
	return t
}

// checkHost checks all addresses of a host. A name that this host can't resolve is the proxy's to resolve.
func (g *Guard) checkHost(ctx context.Context, host string) error {
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return ctx.Err()
	}
	for _, a := range addrs {
		if err := g.Check(netip.AddrPortFrom(a, 0)); err != nil {
			return err
		}
	}
	return nil
}

// metadata are services of clouds outside of the link-local networks that give credentials to any program on the right
// host.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),   // Amazon
	netip.MustParseAddr("fd20:ce::254"),    // Google
	netip.MustParseAddr("100.100.100.200"), // Alibaba
	netip.MustParseAddr("168.63.129.16"),   // Azure
	netip.MustParseAddr("192.0.0.192"),     // Oracle
}

// unusable are networks of which no address is a host's: RFC 1122 3.2.1.3 ("this network"), RFC 1112 4 (class E, with
// the broadcast address).
var unusable = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("240.0.0.0/4")}

// embeds are networks of IPv6 whose addresses lead to an IPv4 address that they hold from a byte on: RFC 6052 (NAT64),
// RFC 3056 (6to4), RFC 4291 2.5.5.1 (IPv4-compatible).
var embeds = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},
	{netip.MustParsePrefix("2002::/16"), 2},
	{netip.MustParsePrefix("::/96"), 12},
}

// reserved names the special purpose of an address; "" if it has none.
func reserved(a netip.Addr) string {
	a = a.WithZone("")
	for _, c := range []struct {
		is     bool
		reason string
	}{
		{!a.IsValid(), "it is no address"},
		{a.IsLoopback(), "it is a loopback address"},
		{a.IsUnspecified(), "it is the unspecified address"},
		{a.IsLinkLocalUnicast(), "it is a link-local address"},
		{a.IsMulticast(), "it is a multicast address"},
		{slices.Contains(metadata, a), "it is the metadata service of a cloud"},
		{slices.ContainsFunc(unusable, func(p netip.Prefix) bool { return p.Contains(a) }), "it is no host's address"},
	} {
		if c.is {
			return c.reason
		}
	}
	if !a.Is6() {
		return ""
	}
	for _, e := range embeds {
		if !e.prefix.Contains(a) {
			continue
		}
		b := a.As16()
		v4 := netip.AddrFrom4([4]byte(b[e.at : e.at+4]))
		if reason := cmp.Or(reserved(v4), ofThisHost(v4)); reason != "" {
			return "it leads to " + v4.String() + ": " + reason
		}
	}
	return ""
}

// ofThisHost says that an address is one of the conductor's own; "" when it is not. The addresses are read each time,
// because they change.
func ofThisHost(a netip.Addr) string {
	own, err := net.InterfaceAddrs()
	if err != nil {
		return "the conductor can't read its own addresses to compare"
	}
	for _, o := range own {
		if p, err := netip.ParsePrefix(o.String()); err == nil && p.Addr().Unmap().WithZone("") == a.WithZone("") {
			return "it is an address of the conductor's own"
		}
	}
	return ""
}

// Parse reads networks as a configuration has them: CIDR, or an address alone.
func Parse(networks []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range networks {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, aerr := netip.ParseAddr(text)
			if aerr != nil || a.Zone() != "" {
				return nil, fmt.Errorf("%q is not a network such as 192.0.2.0/24 or 2001:db8::/32", text)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		if p.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is an IPv4 network in the form of IPv6: write it as IPv4", text)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}
