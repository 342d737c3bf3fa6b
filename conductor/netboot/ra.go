package netboot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
)

// advertiser answers IPv6 router solicitations with an advertisement that offers nothing: no lifetime, no prefix, no flags. iPXE, which
// configures IPv4 and IPv6 side by side, otherwise waits many seconds for a router before it goes on with what DHCP gave it.
type advertiser struct {
	conn *icmp.PacketConn
	ifi  *net.Interface
}

func newAdvertiser(ifname string) (*advertiser, error) {
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", ifname, err)
	}
	c, err := icmp.ListenPacket("ip6:ipv6-icmp", "::")
	if err != nil {
		return nil, fmt.Errorf("listen for router solicitations: %w", err)
	}
	a := &advertiser{c, ifi}
	if err := a.prepare(); err != nil {
		c.Close()
		return nil, fmt.Errorf("listen for router solicitations on %s: %w", ifname, err)
	}
	return a, nil
}

func (a *advertiser) prepare() error {
	p := a.conn.IPv6PacketConn()
	var f ipv6.ICMPFilter
	f.SetAll(true)
	f.Accept(ipv6.ICMPTypeRouterSolicitation)
	if err := p.SetICMPFilter(&f); err != nil {
		return err
	}
	if err := p.SetControlMessage(ipv6.FlagInterface|ipv6.FlagHopLimit, true); err != nil {
		return err
	}
	// RFC 4861: neighbour discovery with another hop limit than 255 is thrown away.
	if err := p.SetMulticastHopLimit(255); err != nil {
		return err
	}
	if err := p.SetHopLimit(255); err != nil {
		return err
	}
	return p.JoinGroup(a.ifi, &net.UDPAddr{IP: net.IPv6linklocalallrouters})
}

// advertisement is the answer: type 134 and twelve bytes of hop limit, flags, lifetime and timers, all zero. The kernel fills in
// the checksum.
func advertisement() ([]byte, error) {
	m := icmp.Message{Type: ipv6.ICMPTypeRouterAdvertisement, Body: &icmp.RawBody{Data: make([]byte, 12)}}
	return m.Marshal(nil)
}

// ours tells whether a solicitation came in over our interface from the same link.
func (a *advertiser) ours(cm *ipv6.ControlMessage) bool {
	return cm != nil && cm.IfIndex == a.ifi.Index && cm.HopLimit == 255
}

func (a *advertiser) serve(ctx context.Context, log *slog.Logger) error {
	b, err := advertisement()
	if err != nil {
		return fmt.Errorf("make a router advertisement: %w", err)
	}
	p := a.conn.IPv6PacketConn()
	buf := make([]byte, 1500)
	for {
		_, cm, from, err := p.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			log.Error("receive router solicitations", "err", err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			continue
		}
		if !a.ours(cm) {
			continue
		}
		to := &net.IPAddr{IP: net.IPv6linklocalallnodes, Zone: a.ifi.Name}
		if _, err := p.WriteTo(b, &ipv6.ControlMessage{IfIndex: a.ifi.Index, HopLimit: 255}, to); err != nil {
			log.Debug("answer router solicitation", "from", from, "err", err)
		}
	}
}

func (a *advertiser) close() { a.conn.Close() }
