package netboot

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/member"
	"github.com/ingot-metal/ingot/conductor/node"
)

// wire is a network with several conductors on one database.
type wire struct {
	*rig
	all  []*Server
	rows []member.Conductor
	down map[int]bool // those that get no packets
}

// newWire makes conductors 10.77.0.1 and on.
func newWire(t *testing.T, mode Mode, count int, change func(*Config)) *wire {
	g := &wire{down: map[int]bool{}}
	g.rig = newRig(t, mode, change)
	for i := range count {
		s := g.s
		if i > 0 {
			c := g.s.cfg
			c.Address = netip.AddrFrom4([4]byte{10, 77, 0, byte(i + 1)})
			c.Hostname = fmt.Sprint("c", i+1)
			var err error
			if s, err = New(g.st, c, slog.New(slog.NewTextHandler(g.log, nil))); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.files.close)
		}
		on := member.Segment{Mode: string(mode), Network: s.Network().String()}
		g.rows = append(g.rows,
			member.Conductor{Name: fmt.Sprint("c", i+1), Alive: true, About: member.About{Boot: &on}})
		s.SetTurns(func() func(string) int { return member.Turns(g.rows, fmt.Sprint("c", i+1), on) })
		g.all = append(g.all, s)
	}
	return g
}

// send broadcasts a packet and returns what each conductor answers, by its number.
func (g *wire) send(m *dhcpv4.DHCPv4) map[int]*dhcpv4.DHCPv4 {
	g.t.Helper()
	got := map[int]*dhcpv4.DHCPv4{}
	for i, s := range g.all {
		if g.down[i] {
			continue
		}
		if reply, _ := s.dhcpReply(g.t.Context(), m, nil, 67); reply != nil {
			got[i] = reply
		}
	}
	return got
}

func (g *wire) pass(d time.Duration) { g.clock.Add(int64(d)) }

// order is that for a machine.
func (g *wire) order(mac net.HardwareAddr) []int {
	order := make([]int, len(g.all))
	for i, s := range g.all {
		order[s.turns()(mac.String())] = i
	}
	return order
}

func only(got map[int]*dhcpv4.DHCPv4) string { return fmt.Sprint(slices.Sorted(maps.Keys(got))) }

// TestOneOfSeveralAnswers: with several conductors on a network, one answers each machine, and not the same one all
// machines; when it is silent, the next one does at the machine's next try, and the one after that later. A machine
// that was answered begins anew.
func TestOneOfSeveralAnswers(t *testing.T) {
	for _, mode := range []Mode{Leases, Proxy} {
		t.Run(string(mode), func(t *testing.T) {
			g := newWire(t, mode, 3, func(c *Config) { c.RangeEnd = netip.MustParseAddr("10.77.0.250") })
			long := func(n *node.Node) { n.Boot.ClosesAt = n.Boot.OpenedAt.Add(9 * time.Hour) }
			n := g.node(node.DeployWait, true, long)
			first := map[int]int{}
			for i := range 60 {
				mac := net.HardwareAddr{0x52, 0x54, 0, 0, 1, byte(i)}
				g.port(n, mac, true)
				from := dhcpv4.WithHwAddr(mac)
				discover := func(kind []dhcpv4.Modifier) *dhcpv4.DHCPv4 {
					return packet(t, dhcpv4.MessageTypeDiscover, append(kind, from)...)
				}
				order, clear := g.order(mac), g.down
				got := g.send(discover(pxe(iana.INTEL_X86PC, classPXE)))
				if only(got) != fmt.Sprint(order[:1]) {
					t.Fatalf("%s is answered by %s at once, and the order is %v", mac, only(got), order)
				}
				first[order[0]]++
				if mode == Leases {
					offer := got[order[0]]
					if !offer.ServerIPAddr.Equal(g.all[order[0]].cfg.Address.AsSlice()) {
						t.Errorf("%s is sent to %s by %s", mac, offer.ServerIPAddr, offer.ServerIdentifier())
					}
					ack := g.send(packet(t, dhcpv4.MessageTypeRequest, append(pxe(iana.INTEL_X86PC, classPXE), from,
						dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())),
						dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr)))...))
					if only(ack) != fmt.Sprint(order[:1]) || ack[order[0]].MessageType() != dhcpv4.MessageTypeAck {
						t.Fatalf("the request of %s is answered by %s", mac, only(ack))
					}
				}
				g.pass(5 * time.Second)
				if got := g.send(discover(ipxePacket(iana.INTEL_X86PC))); only(got) != fmt.Sprint(order[:1]) {
					t.Fatalf("iPXE of %s is answered by %s", mac, only(got))
				}
				g.pass(time.Minute)

				// The first is silent, and so is the second: iPXE asks at 0, 1 and 3 seconds.
				g.down = map[int]bool{order[0]: true}
				for _, step := range []struct {
					wait time.Duration
					want []int
				}{{0, nil}, {time.Second, order[1:2]}, {2 * time.Second, order[1:]}} {
					g.pass(step.wait)
					got := slices.Sorted(maps.Keys(g.send(discover(ipxePacket(iana.INTEL_X86PC)))))
					if !slices.Equal(got, slices.Sorted(slices.Values(step.want))) {
						t.Errorf("with %d silent, after %s more %s is answered by %v, want %v", order[0], step.wait, mac, got,
							step.want)
					}
				}
				g.down = clear
				g.pass(time.Minute)
			}
			for i := range g.all {
				if first[i] < 8 {
					t.Errorf("of 60 machines %d are answered by conductor %d", first[i], i)
				}
			}
		})
	}
}

// TestWhoLeavesAnswersNoMore: a conductor that drains, and one that is dead, are not waited for.
func TestWhoLeavesAnswersNoMore(t *testing.T) {
	g := newWire(t, Leases, 2, nil)
	g.port(g.node(node.DeployWait, true, nil), testMAC, true)
	m := packet(t, dhcpv4.MessageTypeDiscover, pxe(iana.INTEL_X86PC, classPXE)...)
	order := g.order(testMAC)
	g.rows[order[0]].Draining = true
	for range 3 {
		if got := g.send(m); only(got) != fmt.Sprint(order[1:]) {
			t.Errorf("while the first drains %s answers", only(got))
		}
		g.pass(4 * time.Second)
	}
	g.rows[order[0]].Alive, g.down[order[0]] = false, true
	g.pass(time.Minute)
	if got := g.send(m); only(got) != fmt.Sprint(order[1:]) {
		t.Errorf("after the death of the first %s answers", only(got))
	}
}

// TestEveryConductorRenews: a packet for one conductor is no matter of turns: a renewal is answered by the one that
// gets it, with the same address, as is a packet of a relay and one on port 4011. A machine that remembers its address
// is answered by the first in the order.
func TestEveryConductorRenews(t *testing.T) {
	g := newWire(t, Leases, 3, nil)
	g.port(g.node(node.DeployWait, true, nil), testMAC, true)
	offer := g.send(packet(t, dhcpv4.MessageTypeDiscover))[g.order(testMAC)[0]]
	g.send(packet(t, dhcpv4.MessageTypeRequest, dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr))))
	for _, c := range []struct {
		name string
		mods []dhcpv4.Modifier
		want string
	}{
		{"renewal", []dhcpv4.Modifier{dhcpv4.WithClientIP(offer.YourIPAddr)}, "[0 1 2]"},
		{"of a relay", []dhcpv4.Modifier{dhcpv4.WithGatewayIP(net.IP{10, 77, 0, 9}),
			dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr))}, "[0 1 2]"},
		{"after a restart", []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr))},
			fmt.Sprint(g.order(testMAC)[:1])},
	} {
		got := g.send(packet(t, dhcpv4.MessageTypeRequest, c.mods...))
		if only(got) != c.want {
			t.Errorf("%s: answered by %s, want %s", c.name, only(got), c.want)
		}
		for i, r := range got {
			if r.MessageType() != dhcpv4.MessageTypeAck || !r.YourIPAddr.Equal(offer.YourIPAddr) {
				t.Errorf("%s: conductor %d answers %s", c.name, i, r.Summary())
			}
		}
	}

	p := newWire(t, Proxy, 3, nil)
	p.port(p.node(node.DeployWait, true, nil), testMAC, true)
	for i, s := range p.all {
		m := packet(t, dhcpv4.MessageTypeRequest, append(pxe(iana.EFI_X86_64, classPXE),
			dhcpv4.WithClientIP(net.IP{10, 77, 0, 77}))...)
		if r, _ := s.dhcpReply(t.Context(), m, nil, bootServerPort); r == nil {
			t.Errorf("conductor %d does not answer on port 4011", i)
		}
	}
}

// TestAddressesOfSeveralConductors: machines that start at once at several conductors get different addresses, down to
// the last one of the range, and none is refused the one that it was offered while there are others.
func TestAddressesOfSeveralConductors(t *testing.T) {
	g := newWire(t, Leases, 3, func(c *Config) { c.RangeEnd = netip.MustParseAddr("10.77.0.109") })
	n := g.node(node.DeployWait, true, nil)
	const machines = 60 // as many as there are addresses
	var macs []net.HardwareAddr
	for i := range machines {
		macs = append(macs, net.HardwareAddr{0x52, 0x54, 0, 0, 2, byte(i)})
		g.port(n, macs[i], true)
	}
	var mu sync.Mutex
	given, refused := map[string]string{}, 0
	// Each machine goes through DHCP at the conductor that it got an offer from, all of them at the same time.
	try := func(i int) bool {
		s, from := g.all[i%3], dhcpv4.WithHwAddr(macs[i])
		ask := func(typ dhcpv4.MessageType, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
			q, err := read(packet(t, typ, append(mods, from)...))
			if err != nil {
				t.Error(err)
				return nil
			}
			lock[i%3].Lock() // as serveDHCP does
			defer lock[i%3].Unlock()
			r, err := s.lease(t.Context(), q, admission{node: n, address: true})
			if err != nil {
				t.Log(err)
			}
			return r
		}
		offer := ask(dhcpv4.MessageTypeDiscover)
		if offer == nil {
			return false
		}
		time.Sleep(5 * time.Millisecond)
		ack := ask(dhcpv4.MessageTypeRequest, dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())),
			dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr)))
		mu.Lock()
		defer mu.Unlock()
		if ack == nil || ack.MessageType() != dhcpv4.MessageTypeAck {
			refused++
			return false
		}
		if other, twice := given[ack.YourIPAddr.String()]; twice && other != macs[i].String() {
			t.Errorf("%s is given to %s and to %s", ack.YourIPAddr, other, macs[i])
		}
		given[ack.YourIPAddr.String()] = macs[i].String()
		return true
	}
	var wg sync.WaitGroup
	for i := range machines / 3 { // a third of the range: no conductor needs another's addresses
		wg.Go(func() {
			if !try(i) {
				t.Errorf("%s is refused what it was offered", macs[i])
			}
		})
	}
	wg.Wait()
	for i := machines / 3; i < machines; i++ {
		wg.Go(func() {
			for k := 0; !try(i); k++ {
				if k > 200 {
					t.Errorf("%s gets no address", macs[i])
					return
				}
			}
		})
	}
	wg.Wait()
	if len(given) != machines {
		t.Errorf("%d addresses were given to %d machines", len(given), machines)
	}
	t.Logf("%d offers were taken back", refused)
}

var lock [3]sync.Mutex

// TestDeclinedAddressIsKnownToAll: an address that a machine found in use is leased by no conductor for a while, and
// the conductor that a machine names is the one that notes it.
func TestDeclinedAddressIsKnownToAll(t *testing.T) {
	g := newWire(t, Leases, 2, func(c *Config) { c.RangeEnd = c.RangeStart.Next() })
	n := g.node(node.DeployWait, true, nil)
	other := net.HardwareAddr{0x52, 0x54, 0, 0, 3, 1}
	g.port(n, testMAC, true)
	g.port(n, other, true)
	take := func() *dhcpv4.DHCPv4 {
		offer := g.send(packet(t, dhcpv4.MessageTypeDiscover))[g.order(testMAC)[0]]
		g.send(packet(t, dhcpv4.MessageTypeRequest,
			dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())),
			dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr))))
		return offer
	}
	first := take()
	g.send(packet(t, dhcpv4.MessageTypeDecline, dhcpv4.WithOption(dhcpv4.OptServerIdentifier(first.ServerIdentifier())),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(first.YourIPAddr))))
	if second := take(); second.YourIPAddr.Equal(first.YourIPAddr) {
		t.Errorf("%s is given again", first.YourIPAddr)
	}
	for i, s := range g.all { // and no other machine gets it at the other conductor
		q, err := read(packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(other)))
		if err != nil {
			t.Fatal(err)
		}
		if r, err := s.lease(t.Context(), q, admission{node: n, address: true}); err == nil {
			t.Errorf("conductor %d offers %s", i, r.YourIPAddr)
		}
	}
	g.pass(declineTime + clockSkew + time.Second)
	q, err := read(packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(other)))
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range g.all {
		if r, err := s.lease(t.Context(), q, admission{node: n, address: true}); err != nil ||
			!r.YourIPAddr.Equal(first.YourIPAddr) {
			t.Errorf("conductor %d, later: %v, %v", i, r, err)
		}
	}
}

// TestExpiredByAnotherClock: a lease that has expired by a conductor's clock may last by that of the one that gave it.
func TestExpiredByAnotherClock(t *testing.T) {
	p, err := newPool(conf(Leases))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	var leases []node.Lease
	for i, ago := range []time.Duration{-time.Hour, time.Minute, clockSkew - time.Second} {
		leases = append(leases,
			node.Lease{MAC: fmt.Sprint("m", i), IP: fmt.Sprint("10.77.0.", 50+i), ExpiresAt: now.Add(-ago)})
	}
	turns := func(string) int { return 1 }
	if a, err := p.pick("x", netip.Addr{}, leases, now, turns); err == nil {
		t.Errorf("%s is given to another machine", a)
	}
	const last = "10.77.0.52"
	if a, err := p.pick("x", netip.Addr{}, leases, now.Add(2*time.Second), turns); err != nil || a.String() != last {
		t.Errorf("after %s: %s, %v", clockSkew, a, err)
	}
	if a, err := p.pick("x", netip.Addr{}, leases, now, nil); err != nil || a.String() != last {
		t.Errorf("a conductor that is alone: %s, %v", a, err)
	}
}

// TestFloodLeavesOneConductor: with made-up repeats, transaction numbers and seconds a client makes neither all
// conductors answer for long nor none, and what they remember is bounded.
func TestFloodLeavesOneConductor(t *testing.T) {
	g := newWire(t, Leases, 3, nil)
	g.port(g.node(node.DeployWait, true, nil), testMAC, true)
	order := g.order(testMAC)
	seconds := func(n uint16) *dhcpv4.DHCPv4 {
		m := packet(t, dhcpv4.MessageTypeDiscover)
		m.NumSeconds = n
		return m
	}
	for _, secs := range []uint16{0, 1, 0x400, 0xffff} {
		if got := g.send(seconds(secs)); only(got) != fmt.Sprint(order[:1]) {
			t.Errorf("with secs=%d %s answer", secs, only(got))
		}
	}
	answers, began := 0, g.s.now()
	for range 10_000 {
		g.pass(time.Millisecond)
		answers += len(g.send(seconds(0)))
	}
	took := g.s.now().Sub(began) // more than the time that passed above: sending takes some
	if most := 3 * (limit.DHCPReplies + int(took/limit.DHCPRefill) + 1); answers > most {
		t.Errorf("10000 requests within %s got %d answers, more than %d", took, answers, most)
	}
	g.pass(time.Minute) // the machine itself, later
	if got := g.send(seconds(0)); only(got) != fmt.Sprint(order[:1]) {
		t.Errorf("after the flood %s answers", only(got))
	}

	// Strangers leave nothing behind, and nor do machines that stopped asking.
	for i := range 100 {
		g.send(packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, byte(i)})))
	}
	if n := len(g.all[0].waits.by); n != 1 {
		t.Errorf("of strangers and one machine %d are remembered", n)
	}
	var w waits
	now := time.Now()
	for i := range 5 * maxCounted {
		w.asking(fmt.Sprint(i), now.Add(time.Duration(i)*time.Millisecond))
		if len(w.by) > maxCounted {
			t.Fatalf("%d are remembered", len(w.by))
		}
	}
	if w.asking("m", now); w.asking("m", now.Add(time.Second)) != time.Second {
		t.Error("a machine is forgotten after a flood")
	}
}

// TestAloneAnswersAtOnce: without others nothing is waited for, whatever the machine sends.
func TestAloneAnswersAtOnce(t *testing.T) {
	for _, alone := range []bool{true, false} { // never had others, or lost them all
		g := newWire(t, Leases, 1, nil)
		if alone {
			g.s.SetTurns(nil)
		}
		g.port(g.node(node.DeployWait, true, nil), testMAC, true)
		for range 3 {
			if got := g.send(packet(t, dhcpv4.MessageTypeDiscover)); only(got) != "[0]" {
				t.Errorf("it is answered by %s", only(got))
			}
		}
		if alone && len(g.s.waits.by) != 0 {
			t.Error("a conductor alone remembers machines")
		}
		if strings.Contains(g.log.b.String(), "ERROR") {
			t.Error(g.log.b.String())
		}
	}
}

// TestVirtualAddress: machines are led to an address that conductors share, for files and scripts, while DHCP names the
// conductor that answers; and every conductor listens there, whether or not its host has the address now.
func TestVirtualAddress(t *testing.T) {
	virtual := netip.MustParseAddr("10.77.0.50") // in the range, but leased to no machine
	for _, mode := range []Mode{Leases, Proxy} {
		r := newRig(t, mode, func(c *Config) { c.Virtual = virtual })
		r.port(r.node(node.DeployWait, true, nil), testMAC, true)
		offer := r.ask(dhcpv4.MessageTypeDiscover, pxe(iana.INTEL_X86PC, classPXE)...)
		if offer == nil || !offer.ServerIPAddr.Equal(virtual.AsSlice()) || offer.TFTPServerName() != virtual.String() ||
			!offer.ServerIdentifier().Equal(r.s.cfg.Address.AsSlice()) || offer.YourIPAddr.Equal(virtual.AsSlice()) {
			t.Errorf("mode %s: %s", mode, offer.Summary())
		}
		offer = r.ask(dhcpv4.MessageTypeDiscover, ipxePacket(iana.INTEL_X86PC)...)
		if offer == nil || !strings.HasPrefix(offer.BootFileNameOption(), "http://10.77.0.50:8080/boot.ipxe") {
			t.Errorf("mode %s: %s", mode, offer.Summary())
		}
		if base := r.s.base(); base != "http://10.77.0.50:8080" {
			t.Errorf("mode %s: scripts are led to %s", mode, base)
		}
	}

	c := conf(Off)
	c.Address, c.Virtual = netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.77") // no host has the latter
	l, err := c.listenTCP(0)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			c.Close()
		}
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end Accept = %v", err)
	}
	c.Address = netip.MustParseAddr("192.0.2.78")
	if l, err := c.listenTCP(0); err == nil {
		l.Close()
		t.Error("it listens at an own address that this host does not have")
	}
}
