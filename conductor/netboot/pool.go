package netboot

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// How long an address is kept for a machine that has been offered it, and how long it is not leased after a machine
// found it in use.
const (
	offerTime   = time.Minute
	declineTime = 10 * time.Minute
)

// pool chooses addresses. The leases themselves are in the store; offers and declined addresses are forgotten at a
// restart, which costs a machine one more round.
type pool struct {
	start, end netip.Addr
	never      map[netip.Addr]bool

	offers   map[string]offer // by MAC
	declined map[netip.Addr]time.Time
}

// clockSkew is how much the clocks of conductors may differ that lease addresses of one range: an expired lease of
// another machine is left alone for as long.
const clockSkew = 5 * time.Minute

type offer struct {
	addr  netip.Addr
	until time.Time
}

func newPool(c Config) (*pool, error) {
	p := &pool{start: c.RangeStart, end: c.RangeEnd, offers: map[string]offer{}, declined: map[netip.Addr]time.Time{},
		never: map[netip.Addr]bool{c.Address: true, c.Virtual: true, c.Gateway: true, c.Prefix.Masked().Addr(): true,
			broadcast(c.Prefix): true}}
	for _, a := range c.DNS {
		p.never[a] = true
	}
	for _, a := range []netip.Addr{c.RangeStart, c.RangeEnd} {
		if !c.Prefix.Contains(a) {
			return nil, fmt.Errorf("netboot.range_start to range_end: %s is not in the provisioning network %s", a,
				c.Prefix.Masked())
		}
	}
	if c.RangeEnd.Less(c.RangeStart) {
		return nil, fmt.Errorf("netboot.range_end %s lies before range_start %s", c.RangeEnd, c.RangeStart)
	}
	if c.Gateway.IsValid() && !c.Prefix.Contains(c.Gateway) {
		return nil, fmt.Errorf("netboot.gateway %s is not in the provisioning network %s", c.Gateway, c.Prefix.Masked())
	}
	if c.LeaseTime < time.Minute {
		return nil, fmt.Errorf("netboot.lease_time %s is less than a minute", c.LeaseTime)
	}
	return p, nil
}

func broadcast(p netip.Prefix) netip.Addr {
	if !p.IsValid() {
		return netip.Addr{}
	}
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return netip.AddrFrom4(b)
}

// usable reports whether an address may be leased at all now.
func (p *pool) usable(a netip.Addr, now time.Time) bool {
	if !a.IsValid() || a.Less(p.start) || p.end.Less(a) || p.never[a] {
		return false
	}
	until, bad := p.declined[a]
	return !bad || !now.Before(until)
}

// pick chooses the address for a MAC, in this order: the one it has or had, the one it was offered, the one it wants,
// one that was never leased, and the one whose lease expired first. With turns not nil other conductors lease addresses
// of the range: of those never leased each takes first the ones for which it is the first in order, since what another
// has only offered is not in the store.
func (p *pool) pick(mac string, want netip.Addr, leases []node.Lease, now time.Time,
	turns func(string) int) (netip.Addr, error) {
	taken := map[netip.Addr]node.Lease{}
	var own netip.Addr
	for _, l := range leases {
		a, err := netip.ParseAddr(l.IP)
		if err != nil {
			continue
		}
		if l.MAC == mac {
			own = a
			continue
		}
		taken[a] = l
	}
	for m, o := range p.offers {
		switch {
		case !now.Before(o.until):
			delete(p.offers, m)
		case m != mac:
			taken[o.addr] = node.Lease{ExpiresAt: o.until}
		}
	}
	if p.usable(own, now) {
		return own, nil
	}
	if o, ok := p.offers[mac]; ok && p.usable(o.addr, now) {
		if _, t := taken[o.addr]; !t {
			return o.addr, nil
		}
	}
	free := func(a netip.Addr) bool {
		_, t := taken[a]
		return !t && p.usable(a, now)
	}
	if free(want) {
		return want, nil
	}
	expired := now
	if turns != nil {
		expired = now.Add(-clockSkew)
	}
	var oldest, others netip.Addr
	for a := p.start; !p.end.Less(a); a = a.Next() {
		if free(a) {
			if turns == nil || turns(a.String()) == 0 {
				return a, nil
			}
			if !others.IsValid() {
				others = a
			}
			continue
		}
		l, t := taken[a]
		if t && p.usable(a, now) && !l.ExpiresAt.After(expired) &&
			(!oldest.IsValid() || l.ExpiresAt.Before(taken[oldest].ExpiresAt)) {
			oldest = a
		}
	}
	if others.IsValid() {
		return others, nil
	}
	if oldest.IsValid() {
		return oldest, nil
	}
	return netip.Addr{}, fmt.Errorf("all addresses from %s to %s are leased: widen netboot.range_start to range_end",
		p.start, p.end)
}

func (p *pool) offered(mac string, a netip.Addr, now time.Time) {
	p.offers[mac] = offer{a, now.Add(offerTime)}
}

func (p *pool) leased(mac string) { delete(p.offers, mac) }

func (p *pool) decline(a netip.Addr, now time.Time) { p.declined[a] = now.Add(declineTime) }
