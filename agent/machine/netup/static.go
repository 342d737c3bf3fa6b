package netup

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/proto/netdata"
)

// With Config.Data only the links that it names get addresses, those that it says: the bonds and VLANs are the ones of
// Bonds and VLANs, made from it, and a link asks a DHCP server or listens to routers only if a network of its says so.
// Other links are set up for LLDP, without an address.

// layersOf returns the bonds and VLANs of network data, for the code that makes them. Bonds have names of ours: an id
// may be no name of a link, or an interface's.
func layersOf(d *netdata.Data) (bonds []Bond, vlans []VLAN) {
	for _, l := range d.Links {
		switch {
		case l.Bond != nil:
			b := Bond{Name: bondName(d, l.ID), Mode: l.Bond.Mode, Address: l.MAC, Options: l.Bond.Options}
			for _, id := range l.Bond.Members {
				b.Members = append(b.Members, d.Link(id).MAC)
			}
			bonds = append(bonds, b)
		case l.VLAN != nil:
			v := VLAN{On: bondName(d, l.VLAN.On), ID: l.VLAN.ID, Address: l.MAC}
			if v.On == "" {
				v.On = d.Link(l.VLAN.On).MAC.String()
			}
			vlans = append(vlans, v)
		}
	}
	return bonds, vlans
}

// bondName is the name that a bond has here; "" for other links.
func bondName(d *netdata.Data, id string) string {
	n := 0
	for _, l := range d.Links {
		switch {
		case l.ID == id && l.Bond != nil:
			return fmt.Sprintf("bond%d", n)
		case l.Bond != nil:
			n++
		}
	}
	return ""
}

// planned returns the network data of a link; nil if it has none. The lock is held.
func (n *Net) planned(l netlink.Link) *netdata.Link {
	d, a := n.cfg.Data, l.Attrs()
	if d == nil {
		return nil
	}
	for i := range d.Links {
		p, is := &d.Links[i], false
		switch v := l.(type) {
		case *netlink.Vlan:
			on := n.links[a.ParentIndex]
			is = p.VLAN != nil && p.VLAN.ID == v.VlanId && on != nil && on.plan != nil && on.plan.ID == p.VLAN.On
		case *netlink.Bond:
			is = p.Bond != nil && bondName(d, p.ID) == a.Name
		default:
			is = p.Bond == nil && p.VLAN == nil && p.MAC.String() == a.HardwareAddr.String() && !d.Member(p.ID)
		}
		if is {
			return p
		}
	}
	return nil
}

// auto4 and auto6 report whether a link's addresses come from the network.
func (n *Net) auto4(l *link) bool { return n.cfg.Data == nil || l.plan != nil && l.plan.DHCP4 }
func (n *Net) auto6(l *link) bool { return n.cfg.Data == nil || l.plan != nil && l.plan.Auto6 }

// prepare sets a new link up, but for its addresses.
func (n *Net) prepare(nl netlink.Link, l *link) {
	ra := "0"
	if n.auto6(l) {
		ra = "2"
	}
	prepareIPv6(l.name, ra)
	if l.plan != nil && l.plan.MTU > 0 {
		if err := netlink.LinkSetMTU(nl, l.plan.MTU); err != nil {
			n.problem(l, fmt.Errorf("set the MTU %d: %w", l.plan.MTU, err))
		}
	}
	if err := netlink.LinkSetUp(nl); err != nil {
		n.log.Warn("link stays down", "link", l.name, "err", err)
	}
}

// problem reports a part of the network data that could not be set up, to people as well.
func (n *Net) problem(l *link, err error) {
	n.log.Error("network data not applied", "link", l.name, "id", l.plan.ID, "err", err)
	n.say(fmt.Sprintf("network_data, link %q (%s): %v", l.plan.ID, l.name, err))
}

// serve gives a link its addresses, once it has a carrier, and keeps them until ctx ends.
func (n *Net) serve(ctx context.Context, l *link) {
	select {
	case <-l.carrier:
	case <-ctx.Done():
		return
	}
	if l.plan != nil {
		n.fix(l)
	}
	if n.auto4(l) {
		n.serve4(ctx, l)
	}
}

// fix sets the addresses and routes of a link's network data.
func (n *Net) fix(l *link) {
	nl, err := netlink.LinkByIndex(l.index)
	if err != nil {
		n.log.Warn("link is gone", "link", l.name, "err", err)
		return
	}
	for _, p := range l.plan.Addrs {
		if err := netlink.AddrReplace(nl, &netlink.Addr{IPNet: ipNet(p)}); err != nil {
			n.problem(l, fmt.Errorf("set the address %s: %w", p, err))
			continue
		}
		n.log.Info("address of the network data", "link", l.name, "address", p.String())
	}
	// The order of the data decides between two ways to the same network.
	metric := baseMetric + slices.IndexFunc(n.cfg.Data.Links, func(d netdata.Link) bool { return d.ID == l.plan.ID })
	for _, r := range l.plan.Routes {
		nr := netlink.Route{LinkIndex: l.index, Priority: metric, Protocol: unix.RTPROT_STATIC, Dst: ipNet(r.To),
			Gw: r.Via.AsSlice()}
		if !r.Via.IsLinkLocalUnicast() &&
			!slices.ContainsFunc(l.plan.Addrs, func(p netip.Prefix) bool { return p.Contains(r.Via) }) {
			nr.Flags = int(netlink.FLAG_ONLINK)
		}
		if err := netlink.RouteReplace(&nr); err != nil {
			n.problem(l, fmt.Errorf("set the route to %s by %s: %w", r.To, r.Via, err))
		}
	}
	n.mu.Lock()
	l.fixed = len(l.plan.Addrs) > 0
	n.writeResolv()
	n.mu.Unlock()
	n.check()
}

// lackData says briefly why there is no network by the network data. The lock is held.
func (n *Net) lackData(down []string) string {
	var have, missing []string
	for _, l := range n.links {
		have = append(have, l.name+" "+l.mac.String())
	}
	slices.Sort(have)
	for _, p := range n.cfg.Data.Links {
		if p.Bond == nil && p.VLAN == nil && !n.present(p.MAC) {
			missing = append(missing, p.MAC.String())
		}
	}
	switch {
	case len(missing) > 0:
		return fmt.Sprintf("network_data names %s, which this machine does not have; it has %s",
			strings.Join(missing, ", "), strings.Join(have, ", "))
	case len(down) > 0:
		return "no carrier on " + strings.Join(down, ", ")
	}
	return "network_data has no address or route that leads to the conductor " + strings.Join(n.cfg.Conductors, " or ")
}

// present reports whether the machine has an interface with an address, which it may have lent to a bond.
func (n *Net) present(mac net.HardwareAddr) bool {
	all, err := netlink.LinkList()
	if err != nil {
		return true
	}
	return slices.ContainsFunc(all, func(l netlink.Link) bool {
		a := l.Attrs()
		if s, ok := a.Slave.(*netlink.BondSlave); ok && s.PermHardwareAddr.String() == mac.String() {
			return true
		}
		return l.Type() != "bond" && l.Type() != "vlan" && a.HardwareAddr.String() == mac.String()
	})
}

// prepareIPv6 sets how the kernel takes router advertisements: "2" at once, "0" not. A kernel without IPv6 has no such
// files.
func prepareIPv6(name, ra string) {
	for file, value := range map[string]string{"accept_ra": ra, "autoconf": ra, "disable_ipv6": "0",
		"router_solicitation_delay": "0"} {
		_ = os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", name, file), []byte(value), 0o644)
	}
}
