package netup

import (
	"context"
	"errors"
	"time"

	"github.com/vishvananda/netlink"
)

// Reset drops every link and every address and starts to acquire them again, because the cables lead to another network
// now. When it returns that has begun, and Wait waits for it. Leases are not released: their server is out of reach.
func (n *Net) Reset(ctx context.Context) error { return request(ctx, n.resets, "reset") }

// drop does Reset's work, in Run's loop: link events wait meanwhile.
func (n *Net) drop() {
	n.log.Info("the network is acquired again")
	n.stopAll() // their goroutines change the same state
	n.mu.Lock()
	links := n.links
	n.links, n.order, n.prefer, n.dns6, n.began = map[int]*link{}, nil, nil, nil, time.Now()
	if n.up {
		n.up, n.ready = false, make(chan struct{})
	}
	n.mu.Unlock()
	for _, l := range links {
		if err := n.let(l); err != nil {
			n.log.Warn("link is not quite let go of", "link", l.name, "err", err)
		}
	}
	// The kernel sends an event for each link that comes up, which starts everything again.
}

// let removes a link's addresses and sets it down and up. The kernel itself removes the routes and IPv6 addresses, and
// solicits routers again. A VLAN is removed: it is created again if it is configured, or if the new switch announces
// it.
func (n *Net) let(l *link) error {
	nl, err := netlink.LinkByIndex(l.index)
	if err != nil {
		return err
	}
	if nl.Type() == "vlan" {
		n.mu.Lock()
		delete(n.made, l.name)
		n.mu.Unlock()
		return netlink.LinkDel(nl)
	}
	n.mu.Lock()
	mtu := n.mtu[l.index]
	n.mu.Unlock()
	list, err := netlink.AddrList(nl, netlink.FAMILY_V4)
	errs := []error{err}
	if mtu > 0 && mtu != nl.Attrs().MTU {
		errs = append(errs, netlink.LinkSetMTU(nl, mtu))
	}
	for _, a := range list {
		errs = append(errs, netlink.AddrDel(nl, &a))
	}
	return errors.Join(append(errs, netlink.LinkSetDown(nl), netlink.LinkSetUp(nl))...)
}
