package netup

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"
	"github.com/vishvananda/netlink"
)

// inNamespace runs the test again as a process in a new user and network namespace, where it may create links; it
// reports whether this is that process. No root is needed.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv("NETUP_TEST") != "" {
		return true
	}
	t.Parallel()
	c := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), "NETUP_TEST=1")
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("in a namespace: %v\n%s", err, out)
	}
	return false
}

// cable makes a pair of links: name is the machine's, name+"s" the server's, which gets an address.
func cable(t *testing.T, name, serverAddr string) net.HardwareAddr {
	t.Helper()
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name + "s"}, PeerName: name}
	if err := netlink.LinkAdd(v); err != nil {
		t.Fatal(err)
	}
	s, err := netlink.LinkByName(name + "s")
	if err != nil {
		t.Fatal(err)
	}
	a, err := netlink.ParseAddr(serverAddr)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(s, a); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(s); err != nil {
		t.Fatal(err)
	}
	m, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return m.Attrs().HardwareAddr
}

// dhcpServer gives one address on one link.
type dhcpServer struct {
	mu      sync.Mutex
	link    string
	self    netip.Addr
	addr    netip.Addr
	options []dhcpv4.Option
	mute    bool
	nak     bool
	seen    []string // "DISCOVER", "REQUEST", "RENEW"
	guid    []byte
}

func (d *dhcpServer) start(t *testing.T) {
	t.Helper()
	s, err := server4.NewServer(d.link+"s", &net.UDPAddr{Port: 67}, d.handle)
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve()
	t.Cleanup(func() { s.Close() })
}

func (d *dhcpServer) handle(conn net.PacketConn, peer net.Addr, m *dhcpv4.DHCPv4) {
	d.mu.Lock()
	defer d.mu.Unlock()
	kind := m.MessageType().String()
	renew := m.MessageType() == dhcpv4.MessageTypeRequest && !m.ClientIPAddr.IsUnspecified()
	if renew {
		kind = "RENEW"
	}
	d.seen = append(d.seen, kind)
	d.guid = m.Options.Get(dhcpv4.OptionClientMachineIdentifier)
	if d.mute || m.MessageType() == dhcpv4.MessageTypeRelease {
		return
	}
	answer := dhcpv4.MessageTypeOffer
	if m.MessageType() == dhcpv4.MessageTypeRequest {
		answer = dhcpv4.MessageTypeAck
		if d.nak && renew {
			answer = dhcpv4.MessageTypeNak
		}
	}
	r, err := dhcpv4.NewReplyFromRequest(m, dhcpv4.WithMessageType(answer), dhcpv4.WithServerIP(d.self.AsSlice()),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(d.self.AsSlice())), dhcpv4.WithYourIP(d.addr.AsSlice()),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)))
	if err != nil {
		return
	}
	for _, o := range d.options {
		r.UpdateOption(o)
	}
	_, _ = conn.WriteTo(r.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 68})
}

func (d *dhcpServer) set(f func()) { d.mu.Lock(); f(); d.mu.Unlock() }

func (d *dhcpServer) count(kind string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.seen {
		if s == kind {
			n++
		}
	}
	return n
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for tick := time.NewTicker(20 * time.Millisecond); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

// addresses of a link, IPv4 alone.
func addresses(t *testing.T, link string) string {
	t.Helper()
	l, err := netlink.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	list, err := netlink.AddrList(l, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range list {
		out = append(out, a.IPNet.String())
	}
	return strings.Join(out, " ")
}

// up starts a network and stops it with the test.
func up(t *testing.T, cfg Config) *Net {
	t.Helper()
	cfg.Resolv = filepath.Join(t.TempDir(), "resolv.conf")
	cfg.Log = slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug}))
	n := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	wctx, wcancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer wcancel()
	if err := n.Wait(wctx); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestLease(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	cable(t, "eth0", "192.0.2.1/24")
	d := &dhcpServer{link: "eth0", self: netip.MustParseAddr("192.0.2.1"), addr: netip.MustParseAddr("192.0.2.50"),
		options: []dhcpv4.Option{
			dhcpv4.OptRouter(net.IPv4(192, 0, 2, 254)), dhcpv4.OptDNS(net.IPv4(192, 0, 2, 53)),
			dhcpv4.OptDomainName("lab.example"), dhcpv4.OptHostName("node-1"),
			dhcpv4.OptIPAddressLeaseTime(4 * time.Second),
			dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{0x05, 0x78}),
		}}
	d.start(t)
	var name atomic.Value
	n := up(t, Config{Conductors: []string{"203.0.113.9:6386"}, GUID: "00112233-4455-6677-8899-aabbccddeeff",
		SetHostname: func(s string) error { name.Store(s); return nil }})
	if got := addresses(t, "eth0"); got != "192.0.2.50/24" {
		t.Errorf("address %q", got)
	}
	l, _ := netlink.LinkByName("eth0")
	if l.Attrs().MTU != 1400 {
		t.Errorf("MTU = %d, want 1400", l.Attrs().MTU)
	}
	if r, err := netlink.RouteGet(net.IPv4(203, 0, 113, 9)); err != nil || r[0].Gw.String() != "192.0.2.254" {
		t.Errorf("route to the conductor: %v, %v", r, err)
	}
	// The network is up with its route; these two follow at once.
	eventually(t, "resolv.conf", func() bool {
		b, _ := os.ReadFile(n.cfg.Resolv)
		return string(b) == "search lab.example\nnameserver 192.0.2.53\n"
	})
	eventually(t, "the host name", func() bool { return name.Load() == "node-1" })
	if !strings.Contains(n.Summary(), "eth0 192.0.2.50/24") {
		t.Errorf("summary %q", n.Summary())
	}
	d.mu.Lock()
	guid := fmt.Sprintf("%x", d.guid)
	d.mu.Unlock()
	if guid != "0033221100554477668899aabbccddeeff" {
		t.Errorf("option 97 = %s", guid)
	}
	eventually(t, "a renewal", func() bool { return d.count("RENEW") >= 1 })

	// The server falls silent for longer than the lease lasts: the address stays.
	d.set(func() { d.mute, d.seen = true, nil })
	begin := time.Now()
	eventually(t, "asking past the lease's end",
		func() bool { return d.count("RENEW") >= 2 && time.Since(begin) > 5*time.Second })
	if got := addresses(t, "eth0"); got != "192.0.2.50/24" {
		t.Errorf("after the lease's end the address is %q", got)
	}
	d.set(func() { d.mute, d.seen = false, nil })
	eventually(t, "a renewal after the silence", func() bool { return d.count("RENEW") >= 1 })

	// The server takes the address away and gives another: the old one goes when the new one is there.
	d.set(func() { d.nak, d.addr = true, netip.MustParseAddr("192.0.2.60") })
	eventually(t, "the new address", func() bool { return addresses(t, "eth0") == "192.0.2.60/24" })
}

// TestBootIFComesFirst holds that with two ways out the one of the boot interface is used, and another when the
// conductor is not there.
func TestBootIFComesFirst(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	cable(t, "eth0", "192.0.2.1/24")
	mac := cable(t, "eth1", "198.51.100.1/24")
	a := &dhcpServer{link: "eth0", self: netip.MustParseAddr("192.0.2.1"), addr: netip.MustParseAddr("192.0.2.50"),
		options: []dhcpv4.Option{dhcpv4.OptRouter(net.IPv4(192, 0, 2, 254))}}
	b := &dhcpServer{link: "eth1", self: netip.MustParseAddr("198.51.100.1"),
		addr:    netip.MustParseAddr("198.51.100.50"),
		options: []dhcpv4.Option{dhcpv4.OptRouter(net.IPv4(198, 51, 100, 254))}}
	a.start(t)
	b.start(t)
	n := up(t, Config{Conductors: []string{"conductor.example:6386"}, BootIF: mac})
	via := func() string {
		r, err := netlink.RouteGet(net.IPv4(203, 0, 113, 9))
		if err != nil || len(r) == 0 {
			return fmt.Sprint(err)
		}
		return r[0].Gw.String()
	}
	defer func() { t.Logf("the way is %s", via()) }()
	eventually(t, "both leases", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return len(n.order) == 2 })
	eventually(t, "the boot interface's route", func() bool { return via() == "198.51.100.254" })
	n.Rotate()
	if got := via(); got != "192.0.2.254" {
		t.Errorf("after a rotation the way is %s", got)
	}
	n.Rotate()
	if got := via(); got != "198.51.100.254" {
		t.Errorf("after two rotations the way is %s", got)
	}
}

// TestReset holds that after a switch of networks nothing of the old one is left: the address, the routes, the name
// servers, the MTU; and that the machine asks like one without a lease.
func TestReset(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	cable(t, "eth0", "192.0.2.1/24")
	cable(t, "eth1", "203.0.113.1/24") // the other network's, without a server for now
	d := &dhcpServer{link: "eth0", self: netip.MustParseAddr("192.0.2.1"), addr: netip.MustParseAddr("192.0.2.50"),
		options: []dhcpv4.Option{
			dhcpv4.OptRouter(net.IPv4(192, 0, 2, 254)), dhcpv4.OptDNS(net.IPv4(192, 0, 2, 53)),
			dhcpv4.OptIPAddressLeaseTime(time.Hour), dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{0x05, 0x78})}}
	d.start(t)
	n := up(t, Config{Conductors: []string{"203.0.113.9:6386"}})
	// What the test itself has put onto the other ends of the cables goes with a link that is managed, which all four
	// will be.
	eventually(t, "all links", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return len(n.links) == 4 })
	via := func() string {
		r, err := netlink.RouteGet(net.IPv4(203, 0, 113, 200))
		if err != nil || len(r) == 0 {
			return fmt.Sprint(err)
		}
		return r[0].Gw.String()
	}
	for _, c := range []struct{ self, addr, router, dns string }{
		{"198.51.100.1", "198.51.100.7", "198.51.100.254", "198.51.100.53"},
		{"192.0.2.1", "192.0.2.60", "192.0.2.253", "192.0.2.54"},
	} {
		d.set(func() {
			d.seen, d.self, d.addr = nil, netip.MustParseAddr(c.self), netip.MustParseAddr(c.addr)
			d.options = []dhcpv4.Option{dhcpv4.OptRouter(net.ParseIP(c.router)), dhcpv4.OptDNS(net.ParseIP(c.dns)),
				dhcpv4.OptIPAddressLeaseTime(time.Hour)}
		})
		if err := n.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := n.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the new address", func() bool { return addresses(t, "eth0") == c.addr+"/24" })
		eventually(t, "the new way out", func() bool { return via() == c.router })
		eventually(t, "the new name server",
			func() bool { b, _ := os.ReadFile(n.cfg.Resolv); return string(b) == "nameserver "+c.dns+"\n" })
		if l, _ := netlink.LinkByName("eth0"); l.Attrs().MTU != 1500 {
			t.Errorf("MTU = %d, want 1500", l.Attrs().MTU)
		}
		if d.count("DISCOVER") == 0 {
			t.Error("it did not ask as one that knows of no lease")
		}
		eventually(t, "all links again", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return len(n.links) == 4 })
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := New(Config{}).Reset(ctx); err == nil {
		t.Error("a network that is not run was reset")
	}
}

// TestOverflow holds that a network of which more happens than is taken in goes on being watched.
func TestOverflow(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	cable(t, "eth0", "192.0.2.1/24")
	n := New(Config{Conductors: []string{"203.0.113.9:6386"}, Resolv: filepath.Join(t.TempDir(), "resolv.conf")})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	}()
	found := func(name string) func() bool {
		return func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			for _, l := range n.links {
				if l.name == name {
					return true
				}
			}
			return false
		}
	}
	eventually(t, "the link", found("eth0"))
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	// No event is handled while the lock is held; each change of the MTU causes one.
	n.mu.Lock()
	for i := range 1000 {
		if err := netlink.LinkSetMTU(l, 1300+i%2); err != nil {
			t.Error(err)
			break
		}
	}
	n.mu.Unlock()
	cable(t, "eth1", "198.51.100.1/24")
	eventually(t, "another link", found("eth1"))
}

func TestParse4(t *testing.T) {
	ack := func(mods ...dhcpv4.Modifier) *nclient4.Lease {
		m, err := dhcpv4.New(mods...)
		if err != nil {
			t.Fatal(err)
		}
		return &nclient4.Lease{ACK: m, Offer: m}
	}
	addr := dhcpv4.WithYourIP(net.IPv4(10, 1, 2, 3))
	if _, err := parse4(ack()); err == nil {
		t.Error("an answer without address passes")
	}
	l, err := parse4(ack(addr))
	if err != nil || l.addr.String() != "10.1.2.3/8" || l.expiry != 0 || l.t1 != noLifetime {
		t.Errorf("bare answer: %+v, %v", l, err)
	}
	l, _ = parse4(ack(addr, dhcpv4.WithNetmask(net.CIDRMask(32, 32)), dhcpv4.WithRouter(net.IPv4(10, 1, 2, 1)),
		dhcpv4.WithOption(dhcpv4.OptClasslessStaticRoute(
			&dhcpv4.Route{Dest: &net.IPNet{IP: net.IPv4(10, 9, 0, 0), Mask: net.CIDRMask(16, 32)},
				Router: net.IPv4(10, 1, 2, 9)},
			&dhcpv4.Route{Dest: &net.IPNet{IP: net.IPv4(10, 8, 0, 0), Mask: net.CIDRMask(16, 32)},
				Router: net.IPv4zero})),
		dhcpv4.WithOption(dhcpv4.OptHostName("bad name;rm")), dhcpv4.WithLeaseTime(1),
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{0, 10}))))
	if len(l.routes) != 2 || l.routes[0].via.String() != "10.1.2.9" || l.routes[1].via.IsValid() || l.host != "" ||
		l.mtu != 0 || l.t1 < minRenew {
		t.Errorf("classless routes, bad name, short lease, small MTU: %+v", l)
	}
}

func TestParseRA(t *testing.T) {
	dns := netip.MustParseAddr("2001:db8::53")
	body := append([]byte{64, 0x80, 0, 30, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7},
		append([]byte{25, 3, 0, 0, 0, 0, 1, 0}, dns.AsSlice()...)...)
	ra, ok := parseRA(body)
	if !ok || !ra.managed || ra.other || len(ra.dns) != 1 || ra.dns[0] != dns {
		t.Errorf("parseRA = %+v, %v", ra, ok)
	}
	if _, ok := parseRA(append(body, 1, 0, 0, 0, 0, 0, 0, 0)); ok {
		t.Error("an option of no length passes")
	}
}

func FuzzParseRA(f *testing.F) {
	f.Add(make([]byte, 40))
	f.Fuzz(func(t *testing.T, b []byte) { parseRA(b) })
}

// TestLeave holds that the address is given back and the link taken down, that nothing brings it up again by itself,
// and that Reset does.
func TestLeave(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	cable(t, "eth0", "192.0.2.1/24")
	d := &dhcpServer{link: "eth0", self: netip.MustParseAddr("192.0.2.1"), addr: netip.MustParseAddr("192.0.2.50"),
		options: []dhcpv4.Option{
			dhcpv4.OptRouter(net.IPv4(192, 0, 2, 254)), dhcpv4.OptIPAddressLeaseTime(time.Hour)}}
	d.start(t)
	n := up(t, Config{Conductors: []string{"192.0.2.1:6386"}})
	eventually(t, "an address", func() bool { return addresses(t, "eth0") == "192.0.2.50/24" })
	// Both ends of the cable are in one network namespace: without this the server's end takes nothing from an address
	// that is the machine's own.
	for name, v := range map[string]string{"eth0s/accept_local": "1", "eth0s/rp_filter": "0", "all/rp_filter": "0"} {
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+name, []byte(v), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the address to be given back", func() bool { return d.count("RELEASE") == 1 })
	down := func() bool {
		l, err := netlink.LinkByName("eth0")
		return err == nil && l.Attrs().Flags&net.FlagUp == 0
	}
	if !down() {
		t.Error("the link is up")
	}
	asked := d.count("DISCOVER")
	if err := n.Leave(t.Context()); err != nil { // once more: by now the kernel's news of the link have been read
		t.Fatal(err)
	}
	if !down() || d.count("DISCOVER") != asked {
		t.Error("the link came back by itself")
	}
	if err := n.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an address again", func() bool { return addresses(t, "eth0") == "192.0.2.50/24" })
}
