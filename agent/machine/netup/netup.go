// Package netup brings the network up inside the ramdisk and keeps it up.
//
// Every link with a carrier gets DHCPv4 at once and in parallel; IPv6 comes from router advertisements (the kernel
// makes the addresses) and from DHCPv6 if a router says so. The network is ready when a route to the conductor exists
// over any link; the other links are kept. A link without a carrier delays nothing.
//
// With network data (OpenStack's network_data.json) links get the addresses that it says, and no others.
//
// An address outlives its lease: if the server does not answer, the machine keeps its address and keeps asking; only a
// server's refusal removes the address. Losing the conductor in the middle of an image would be worse than using an
// expired lease. NTP servers are ignored: the clock comes from the conductor. u-root's dhclient is not used: it asks
// once and renews nothing, takes an IPv6 address regardless of the router's flags, and ignores metric and MTU.
package netup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/proto/netdata"
)

// bootGrace is how much longer the link that the firmware booted from may take to be ready: it is known to lead to the
// conductor, the others may not.
const bootGrace = 3 * time.Second

// Config of the network.
type Config struct {
	Conductors []string         // host:port each; a route to one of them suffices
	BootIF     net.HardwareAddr // link the firmware booted from; its routes come first
	// system UUID, sent as DHCP option 97 to identify the machine; may be empty
	GUID   string
	Resolv string       // resolver file to keep; empty means /etc/resolv.conf
	Log    *slog.Logger // nil is silent
	Status func(string) // receives messages for people; may be nil
	Bonds  []Bond       // bonded links
	VLANs  []VLAN       // tagged networks
	// Data says which links have which addresses, bonds and VLANs, in place of Bonds and VLANs; nil: links ask for
	// addresses.
	Data *netdata.Data
	// SetHostname takes the host name from a DHCP server; may be nil.
	SetHostname func(string) error
}

// Net is the machine's network.
type Net struct {
	cfg Config
	log *slog.Logger
	// resets makes Run acquire everything again; it closes the received channel when that has begun.
	resets chan chan struct{}
	leaves chan chan struct{} // likewise to stop

	left bool // Leave was called; of Run's loop alone

	mu     sync.Mutex
	ready  chan struct{} // closed when up
	links  map[int]*link
	order  []*link // links with an IPv4 lease, oldest first
	prefer *link   // with the preferred default route
	up     bool
	name   bool           // the host name has been set
	made   map[string]int // index of each bond and VLAN that is ours
	mtu    map[int]int    // of each link, by its index, before any lease
	began  time.Time
	dns6   []netip.Addr
}

// link is one Ethernet link.
type link struct {
	index   int
	name    string
	mac     net.HardwareAddr
	plan    *netdata.Link   // its network data; nil: it has none
	fixed   bool            // it has the addresses of its network data; under Net's lock
	carrier chan struct{}   // a carrier came up
	ctx     context.Context // ends with the link
	stop    context.CancelFunc
	on      bool          // has a carrier
	dhcp6   bool          // a DHCPv6 client runs
	managed bool          // and requests addresses
	ask6    chan struct{} // makes it ask at once
	given6  []netip.Addr  // its addresses; used by its own goroutine only
	routes  []netlink.Route
	lease   *lease4 // written only by the link's own goroutine, under Net's lock
	wg      sync.WaitGroup
}

// New returns a network. Run does the work.
func New(cfg Config) *Net {
	n := &Net{cfg: cfg, log: cfg.Log, ready: make(chan struct{}), resets: make(chan chan struct{}),
		leaves: make(chan chan struct{}), links: map[int]*link{}, made: map[string]int{}, mtu: map[int]int{}}
	n.log = cmp.Or(n.log, slog.New(slog.DiscardHandler))
	n.cfg.Resolv = cmp.Or(n.cfg.Resolv, "/etc/resolv.conf")
	if cfg.Data != nil {
		n.cfg.Bonds, n.cfg.VLANs = layersOf(cfg.Data)
	}
	return n
}

// Wait returns when the conductor can be reached according to the routes.
func (n *Net) Wait(ctx context.Context) error {
	hint := time.After(10 * time.Second)
	for {
		n.mu.Lock()
		ready := n.ready
		n.mu.Unlock()
		select {
		case <-ready:
			return nil
		case <-hint:
			n.say(n.lack())
		case <-ctx.Done():
			return fmt.Errorf("wait for the network: %w", context.Cause(ctx))
		}
	}
}

// lack says briefly why there is no network yet.
func (n *Net) lack() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var down, silent []string
	for _, l := range n.links {
		if l.on {
			silent = append(silent, l.name)
		} else {
			down = append(down, l.name)
		}
	}
	slices.Sort(down)
	slices.Sort(silent)
	switch {
	case len(n.links) == 0:
		return "no network interface: is its driver in the ramdisk?"
	case n.cfg.Data != nil:
		return n.lackData(down)
	case len(silent) == 0:
		return "no carrier on " + strings.Join(down, ", ")
	case len(n.order) > 0:
		return "an address, but no route to the conductor " + strings.Join(n.cfg.Conductors, " or ")
	}
	return "no answer to DHCP, and no IPv6 router, on " + strings.Join(silent, ", ")
}

func (n *Net) say(s string) {
	if n.cfg.Status != nil {
		n.cfg.Status(s)
	}
}

// Run manages all links until ctx ends.
func (n *Net) Run(ctx context.Context) error {
	defer n.stopAll()
	if lo, err := netlink.LinkByName("lo"); err == nil {
		if err := netlink.LinkSetUp(lo); err != nil {
			n.log.Warn("no loopback", "err", err)
		}
	}
	w, err := newWatch()
	if err != nil {
		return err
	}
	defer func() { close(w.done) }()
	ras, err := listenRA()
	if err != nil {
		n.log.Info("router advertisements are left to the kernel alone", "err", err)
	} else {
		defer ras.Close()
		go ras.run(func(index int, ra routerAdvert) { n.advert(index, ra) })
	}
	n.mu.Lock()
	n.began = time.Now()
	n.mu.Unlock()
	n.check()
	grace, broken := time.After(bootGrace), false
	for {
		select {
		case <-grace:
			n.check()
		case done := <-n.resets:
			n.drop()
			n.left = false
			grace = time.After(bootGrace)
			close(done)
		case done := <-n.leaves:
			n.quit(ctx)
			close(done)
		case u, ok := <-w.links:
			if broken = !ok; ok && !n.left {
				n.linkChanged(ctx, u)
			}
		case _, ok := <-w.addrs:
			broken = !ok
			n.check()
		case _, ok := <-w.routes:
			broken = !ok
			n.check()
		case err := <-w.failed:
			n.log.Warn("watch the network", "err", err)
		case <-ctx.Done():
			return nil
		}
		if !broken {
			continue
		}
		// Events were lost (ENOBUFS). A new subscription reports all links again.
		broken = false
		next, err := newWatch()
		if err != nil {
			return err
		}
		close(w.done)
		w = next
		n.forgetGone()
		n.check()
	}
}

// watch receives the kernel's events of links, addresses and routes. A channel is closed after lost events.
type watch struct {
	done   chan struct{}
	links  chan netlink.LinkUpdate
	addrs  chan netlink.AddrUpdate
	routes chan netlink.RouteUpdate
	failed chan error
}

// newWatch starts with all existing links.
func newWatch() (*watch, error) {
	w := &watch{done: make(chan struct{}), links: make(chan netlink.LinkUpdate, 64),
		addrs: make(chan netlink.AddrUpdate, 64), routes: make(chan netlink.RouteUpdate, 64),
		failed: make(chan error, 8)}
	onError := func(err error) {
		select {
		case w.failed <- err:
		default:
		}
	}
	if err := netlink.LinkSubscribeWithOptions(w.links, w.done,
		netlink.LinkSubscribeOptions{ListExisting: true, ErrorCallback: onError}); err != nil {
		close(w.done)
		return nil, fmt.Errorf("watch network links: %w", err)
	}
	go drain(w.done, w.links)
	if err := netlink.AddrSubscribeWithOptions(w.addrs, w.done,
		netlink.AddrSubscribeOptions{ErrorCallback: onError}); err != nil {
		close(w.done)
		return nil, fmt.Errorf("watch addresses: %w", err)
	}
	go drain(w.done, w.addrs)
	if err := netlink.RouteSubscribeWithOptions(w.routes, w.done,
		netlink.RouteSubscribeOptions{ErrorCallback: onError}); err != nil {
		close(w.done)
		return nil, fmt.Errorf("watch routes: %w", err)
	}
	go drain(w.done, w.routes)
	return w, nil
}

// drain discards events after the watch has ended, so that their sender does not block.
func drain[T any](done <-chan struct{}, c <-chan T) {
	<-done
	for range c {
	}
}

func (n *Net) stopAll() {
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.links))
	n.mu.Unlock()
	for _, l := range all {
		l.stop()
		l.wg.Wait()
	}
}

// linkChanged handles one link event of the kernel.
func (n *Net) linkChanged(ctx context.Context, u netlink.LinkUpdate) {
	a := u.Attrs()
	if u.Header.Type == unix.RTM_DELLINK {
		n.gone(a.Index, a.Name)
		return
	}
	n.mu.Lock()
	ours := n.made[a.Name] == a.Index && a.MasterIndex == 0
	l := n.links[a.Index]
	n.mu.Unlock()
	if !ours && !physical(u.Link) || l == nil && n.join(u.Link) {
		return
	}
	if l == nil && u.Link.Type() != "vlan" { // a VLAN has the address of its link
		defer n.tag(a.Name, a.HardwareAddr)
	}
	n.mu.Lock()
	if l == nil {
		lctx, stop := context.WithCancel(ctx)
		l = &link{index: a.Index, name: a.Name, mac: a.HardwareAddr, carrier: make(chan struct{}, 1),
			ask6: make(chan struct{}, 1), ctx: lctx, stop: stop}
		n.links[a.Index] = l
		if _, known := n.mtu[a.Index]; !known { // an event from before a reset may have the MTU of a lease
			n.mtu[a.Index] = a.MTU
		}
		n.log.Info("link found", "link", l.name, "mac", l.mac.String())
		l.plan = n.planned(u.Link)
		n.prepare(u.Link, l)
		l.wg.Go(func() { n.serve(lctx, l) })
	}
	// Not IFF_RUNNING: the kernel delays it by up to a second.
	on := a.RawFlags&unix.IFF_LOWER_UP != 0 && a.RawFlags&unix.IFF_UP != 0
	was := l.on
	l.on = on
	n.mu.Unlock()
	switch {
	case on && !was:
		n.log.Info("carrier", "link", l.name)
		poke(l.carrier)
	case !on && was:
		n.log.Warn("carrier lost", "link", l.name)
	}
}

// poke wakes who waits for c, now or when it comes to that.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (n *Net) gone(index int, name string) {
	n.mu.Lock()
	l := n.links[index]
	delete(n.links, index)
	delete(n.mtu, index)
	if l != nil {
		delete(n.made, name) // it may be created again
	}
	n.mu.Unlock()
	if l != nil {
		n.log.Info("link is gone", "link", l.name)
		l.stop()
	}
}

// forgetGone forgets links that were removed while events were lost.
func (n *Net) forgetGone() {
	n.mu.Lock()
	links := maps.Clone(n.links)
	n.mu.Unlock()
	for index, l := range links {
		var none netlink.LinkNotFoundError
		if _, err := netlink.LinkByIndex(index); errors.As(err, &none) {
			n.gone(index, l.name)
		}
	}
}

// physical reports whether a link is Ethernet hardware (or a veth pair of a test), not a bridge, tunnel or other
// virtual link.
func physical(l netlink.Link) bool {
	if t := l.Type(); t != "device" && t != "veth" {
		return false
	}
	a := l.Attrs()
	return a.EncapType == "ether" && len(a.HardwareAddr) == 6 && a.MasterIndex == 0
}

// check looks for a route to the conductor and reports it.
func (n *Net) check() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.up || n.bootPending() || !n.reachable() {
		return
	}
	n.up = true
	close(n.ready)
}

// bootPending reports whether the boot interface has a carrier and should soon have its lease. The lock is held.
func (n *Net) bootPending() bool {
	if n.cfg.BootIF == nil || time.Since(n.began) >= bootGrace {
		return false
	}
	for _, l := range n.links {
		if l.mac.String() == n.cfg.BootIF.String() {
			return l.on && l.lease == nil && n.auto4(l)
		}
	}
	return false
}

func (n *Net) reachable() bool {
	fixed := false
	for _, l := range n.links {
		fixed = fixed || l.fixed
	}
	return slices.ContainsFunc(n.cfg.Conductors, func(c string) bool { return n.routed(c, fixed) })
}

// routed reports whether a conductor can be reached. The lock is held.
func (n *Net) routed(conductor string, fixed bool) bool {
	host, _, err := net.SplitHostPort(conductor)
	if err != nil {
		return len(n.order) > 0 || fixed
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		// A name: before it is resolved, only an address of our own can be required.
		return len(n.order) > 0 || len(n.dns6) > 0 || fixed
	}
	routes, err := netlink.RouteGet(net.IP(ip.WithZone("").AsSlice()))
	if err != nil || len(routes) == 0 {
		return false
	}
	src := routes[0].Src
	if src == nil || src.IsUnspecified() {
		return false
	}
	// A router advertisement brings the route before DHCPv6 brings an address. Until then the kernel would send from
	// the link-local address, which gets no replies.
	return !src.IsLinkLocalUnicast() || ip.IsLinkLocalUnicast()
}

// Rotate prefers the next link with a lease: the conductor does not answer over the preferred one.
func (n *Net) Rotate() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.order) < 2 {
		return
	}
	i := slices.Index(n.order, n.prefer)
	n.prefer = n.order[(i+1)%len(n.order)]
	n.log.Warn("the conductor does not answer; another link is preferred", "link", n.prefer.name)
	for _, l := range n.order {
		n.setRoutes(l)
	}
}

// Summary lists the addresses in use.
func (n *Net) Summary() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for _, l := range n.links {
		nl, err := netlink.LinkByIndex(l.index)
		if err != nil {
			continue
		}
		list, err := netlink.AddrList(nl, netlink.FAMILY_ALL)
		if err != nil {
			continue
		}
		for _, a := range list {
			if !a.IP.IsLinkLocalUnicast() {
				out = append(out, l.name+" "+a.IPNet.String())
			}
		}
	}
	slices.Sort(out)
	if len(out) == 0 {
		return "no address"
	}
	return strings.Join(out, ", ")
}
