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

// advertiser answers IPv6 router solicitations with an advertisement that offers nothing: no lifetime, no prefix, no
// flags. iPXE, which configures IPv4 and IPv6 side by side, otherwise waits for a router before it uses the results of
// DHCP: 0.25+0.5+1+2+4+8 seconds before October 2020 (as in Debian 12), 0.125+0.25+0.5+1+2 since then. No option of
// DHCP shortens that.
type advertiser struct {
	conn *icmp.PacketConn
	ifi  *net.Interface
	// only reports whether a MAC is answered. The answer goes to that machine alone: the others may have real routers.
	only func(ctx context.Context, mac string) bool
}

// bootsHere reports whether a machine that solicits routers is about to boot from here. In modes server and proxy its
// DHCP request was answered a moment ago. In mode off no DHCP request arrives: its MAC has to be a port of a node whose
// boot window is open, or whose system is on its disk.
func (s *Server) bootsHere(ctx context.Context, mac string) bool {
	if s.cfg.Mode != Off {
		return s.booting.recent(mac, s.now())
	}
	a, err := s.admit(ctx, mac, nil)
	if err != nil {
		s.log.Error("look up who solicits routers", "mac", mac, "err", err)
	}
	return err == nil && (a.boot || a.disk)
}

func newAdvertiser(ifname string, only func(ctx context.Context, mac string) bool) (*advertiser, error) {
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", ifname, err)
	}
	c, err := icmp.ListenPacket("ip6:ipv6-icmp", "::")
	if err != nil {
		return nil, fmt.Errorf("listen for router solicitations: %w", err)
	}
	a := &advertiser{c, ifi, only}
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
	if err := p.SetHopLimit(255); err != nil {
		return err
	}
	return p.JoinGroup(a.ifi, &net.UDPAddr{IP: net.IPv6linklocalallrouters})
}

// advertisement is the answer: type 134 and twelve bytes of hop limit, flags, lifetime and timers, all zero. The kernel
// fills in the checksum.
func advertisement() ([]byte, error) {
	m := icmp.Message{Type: ipv6.ICMPTypeRouterAdvertisement, Body: &icmp.RawBody{Data: make([]byte, 12)}}
	return m.Marshal(nil)
}

// ours reports whether a solicitation came in over our interface from the same link.
func (a *advertiser) ours(cm *ipv6.ControlMessage) bool {
	return cm != nil && cm.IfIndex == a.ifi.Index && cm.HopLimit == 255
}

// solicitor returns the MAC of the sender of a router solicitation, from its source link-layer option (RFC 4861,
// section 4.1), or from its address if that was made from the MAC (RFC 4291, appendix A). "" if neither has it.
func solicitor(b []byte, from net.IP) string {
	for o := 8; o+2 <= len(b); { // after type, code, checksum and four reserved bytes
		size := int(b[o+1]) * 8
		if size == 0 || o+size > len(b) {
			break
		}
		if b[o] == 1 && size == 8 {
			return net.HardwareAddr(b[o+2 : o+8]).String()
		}
		o += size
	}
	if ip := from.To16(); ip != nil && ip[11] == 0xff && ip[12] == 0xfe {
		return net.HardwareAddr{ip[8] ^ 2, ip[9], ip[10], ip[13], ip[14], ip[15]}.String()
	}
	return ""
}

func (a *advertiser) serve(ctx context.Context, log *slog.Logger) error {
	b, err := advertisement()
	if err != nil {
		return fmt.Errorf("make a router advertisement: %w", err)
	}
	p := a.conn.IPv6PacketConn()
	buf := make([]byte, 1500)
	for {
		n, cm, from, err := p.ReadFrom(buf)
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
		ip, ok := from.(*net.IPAddr)
		if !ok || ip.IP.IsUnspecified() || !a.only(ctx, solicitor(buf[:n], ip.IP)) {
			continue
		}
		if _, err := p.WriteTo(b, &ipv6.ControlMessage{IfIndex: a.ifi.Index, HopLimit: 255}, from); err != nil {
			log.Debug("answer router solicitation", "from", from, "err", err)
		}
	}
}

func (a *advertiser) close() { a.conn.Close() }
