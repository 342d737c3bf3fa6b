// Package limit bounds what the conductor's listeners accept: connections, times, and bytes of bodies in flight.
//
// A Listener counts connections, per address and in total, and ends one whose peer does not read. An HTTP server made
// by HTTP has time-outs for headers, bodies, idle connections and answers. A Budget is shared by all bodies that are
// read into memory; a part of it is kept for authenticated callers. Clients finds the address of a request's client,
// through trusted proxies.
//
// Sizes are bytes. The conductor's configuration (limits.*) holds the settings; sites have no reason to change the
// constants here.
package limit

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Clients finds out from where a request came.
type Clients struct {
	proxies []netip.Prefix
}

// ParseClients reads the addresses and networks of trusted proxies. A fault names the entry.
func ParseClients(proxies []string) (*Clients, error) {
	c := &Clients{}
	for _, text := range proxies {
		p, err := netip.ParsePrefix(text)
		if a, aerr := netip.ParseAddr(text); aerr == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%q is neither an address nor a network such as 192.0.2.0/24", text)
		}
		c.proxies = append(c.proxies, p.Masked())
	}
	return c, nil
}

func (c *Clients) trusts(a netip.Addr) bool {
	return c != nil && slices.ContainsFunc(c.proxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Address is the client's: the peer of the connection, or, when that is a trusted proxy, the last address in
// X-Forwarded-For that is not one. What stands before that was written by the client itself. The zero Addr when there
// is none that can be read.
func (c *Clients) Address(r *http.Request) netip.Addr {
	at := peer(r.RemoteAddr)
	if !c.trusts(at) {
		return at
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, text := range slices.Backward(hops) {
		hop, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			return at // the proxy that is known to have sent this
		}
		if at = hop.Unmap().WithZone(""); !c.trusts(at) {
			return at
		}
	}
	return at
}

// peer reads HOST:PORT.
func peer(hostport string) netip.Addr {
	ap, err := netip.ParseAddrPort(hostport)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap().WithZone("")
}

// Owner returns the prefix by which an address is counted: the owner of one IPv6 address has its whole /64.
func Owner(a netip.Addr) netip.Addr {
	if a.Is6() && !a.Is4In6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a.Unmap()
}
