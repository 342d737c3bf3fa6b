package netboot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingot-metal/ingot/conductor/netboot/probe"
	"github.com/ingot-metal/ingot/conductor/node"
)

// serveDHCP answers packets from c, one after the other: no two machines can be given one address, and a flood waits in
// the kernel's buffer instead of in ours.
func (s *Server) serveDHCP(ctx context.Context, c dhcpConn) error {
	port := c.LocalAddr().(*net.UDPAddr).Port
	buf := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFromUDP(buf)
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			// The interface went down, most likely; it may come back.
			s.short(err)
			s.log.Error("receive DHCP", "port", port, "err", err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		m, err := dhcpv4.FromBytes(buf[:n])
		if err != nil {
			s.refuse("dhcp", "unreadable")
			s.log.Debug("DHCP packet that can't be read", "from", from, "err", err)
			continue
		}
		reply, to := s.dhcpReply(ctx, m, from, port)
		if reply == nil {
			continue
		}
		if _, err := c.WriteToUDP(reply.ToBytes(), to); err != nil {
			s.short(err)
			s.log.Error("send DHCP reply", "mac", m.ClientHWAddr, "to", to, "err", err)
		}
	}
}

// dhcpReply is all of a DHCP exchange but the sockets. Nil is silence.
func (s *Server) dhcpReply(ctx context.Context, m *dhcpv4.DHCPv4, from *net.UDPAddr,
	port int) (*dhcpv4.DHCPv4, *net.UDPAddr) {
	q, err := read(m)
	if err != nil {
		s.log.Debug("DHCP packet left alone", "mac", m.ClientHWAddr, "err", err)
		return nil, nil
	}
	if probe.Is(m) {
		return nil, nil // this conductor's or another's: not a machine
	}
	if s.cfg.SystemSeen != nil && q.isSystem() {
		s.cfg.SystemSeen(ctx, q.mac)
	}
	ours := s.cfg.Mode != Proxy || q.firmware != plain // else it is the other server's business
	if !ours && !q.isInstalled() {
		return nil, nil
	}
	a, err := s.admit(ctx, q.mac, q.guids)
	if err != nil {
		s.refuse("dhcp", "error")
		s.log.Error("look up the machine that requests an address", "mac", q.mac, "err", err)
		return nil, nil
	}
	s.noteInstalled(ctx, q, a.node)
	if !ours {
		return nil, nil
	}
	a = s.admitUnknown(a, q.mac, q.firmware != plain && q.firmware != foreign)
	if !a.address {
		s.notAnswered(q, a)
		return nil, nil
	}
	if !s.isOurTurn(q, port) {
		return nil, nil
	}
	if s.cfg.Mode == Leases && !a.boot && !a.disk && q.firmware != plain && s.refused.speak("no boot "+q.mac, s.now()) {
		s.log.Info("machine gets an address, but nothing to boot", "node", a.node.UUID, "mac", q.mac, "err", a.why)
	}
	if a.boot && q.firmware == foreign && s.refused.speak("arch "+q.mac, s.now()) {
		s.log.Warn("machine's firmware asks for a kind of boot program that there is none of", "node", a.node.UUID,
			"mac", q.mac, "arch", q.arch)
	}

	var reply *dhcpv4.DHCPv4
	if s.cfg.Mode == Proxy {
		reply, err = answerProxy(q, a, port, s.cfg)
	} else {
		reply, err = s.lease(ctx, q, a)
	}
	if err != nil {
		s.refuse("dhcp", "error")
		s.log.Error("answer DHCP request", "node", a.node.UUID, "mac", q.mac, "err", err)
		return nil, nil
	}
	if reply == nil {
		if s.cfg.Mode == Proxy && !a.boot && !a.disk {
			s.notAnswered(q, a)
		}
		return nil, nil
	}
	s.log.Debug("DHCP", "node", a.node.UUID, "mac", q.mac, "request", q.typ, "reply", reply.MessageType(), "address",
		reply.YourIPAddr, "file", reply.BootFileNameOption())
	if reply.MessageType() != dhcpv4.MessageTypeNak {
		detail := reply.BootFileNameOption()
		if s.cfg.Mode == Leases {
			detail = strings.TrimSpace(reply.YourIPAddr.String() + " " + detail)
		}
		s.mark(ctx, a.node, node.MarkDHCP, detail)
		s.recognised(q.mac, a.node)
		if a.boot || a.disk {
			s.booting.note(q.mac, s.now())
		}
		switch {
		case q.isSystem() && s.cfg.Mode == Leases:
			s.systemSeen(ctx, a.node)
		case a.work && q.firmware != plain && reply.MessageType() == dhcpv4.MessageTypeAck,
			a.work && s.cfg.Mode == Proxy:
			s.startSeen(ctx, a.node)
		}
	}
	to := destination(q, reply, from, port)
	if at := addr(to.IP); s.cfg.Mode == Leases && at.IsValid() && !to.IP.Equal(net.IPv4bcast) &&
		!s.cfg.Prefix.Contains(at) {
		s.refuse("dhcp", "other network")
		s.seldom("dhcp to "+at.String()).Warn(
			"DHCP request that wants its answer sent to another network is not answered", "mac", q.mac, "to", at)
		return nil, nil
	}
	if !s.replies.take(q.mac, s.now()) {
		s.refuse("dhcp", "too often")
		s.seldom("dhcp often "+q.mac).Warn(
			"machine asks for addresses without end; it is answered once a second", "mac", q.mac)
		return nil, nil
	}
	s.answered("dhcp", strings.ToLower(reply.MessageType().String()))
	return reply, to
}

// notAnswered logs why a machine gets no answer, once in a while.
func (s *Server) notAnswered(q request, a admission) {
	s.refuse("dhcp", "not admitted")
	if s.refused.speak(q.mac, s.now()) && s.strangers.speak(s.log, s.now()) {
		s.log.Info("DHCP request not answered", "mac", q.mac, "guid", strings.Join(q.guids, " or "), "err", a.why)
	}
}

// lease is mode server: it keeps the leases.
func (s *Server) lease(ctx context.Context, q request, a admission) (*dhcpv4.DHCPv4, error) {
	now := s.now()
	if q.relay.IsValid() && !s.cfg.Prefix.Contains(q.relay) {
		return nil, fmt.Errorf("it comes through relay %s of another network than %s", q.relay, s.cfg.Prefix.Masked())
	}
	switch q.typ {
	case dhcpv4.MessageTypeDecline:
		if s.turns != nil && q.server.IsValid() && q.server != s.cfg.Address {
			return nil, nil // the conductor that it names does that
		}
		// Another host uses the address: it is not leased for a while, and the machine starts over.
		s.log.Warn("machine found its address in use by another", "node", a.node.UUID, "mac", q.mac, "address",
			q.requested)
		s.pool.leased(q.mac)
		if l, err := s.store.Lease(ctx, q.mac); err != nil || l.IP != q.requested.String() {
			return nil, err
		}
		s.pool.decline(q.requested, now)
		if err := s.store.DeleteLease(ctx, q.mac); err != nil || s.turns == nil {
			return nil, err
		}
		// The other conductors must not lease it either.
		return nil, s.store.PutLease(ctx, node.DeclinedLease(q.requested.String(), now.Add(declineTime)))
	case dhcpv4.MessageTypeRelease:
		l, err := s.store.Lease(ctx, q.mac)
		if err != nil || l.IP != q.client.String() {
			return nil, nil
		}
		l.ExpiresAt = now // the record stays, and with it the address
		return nil, s.store.PutLease(ctx, l)
	}
	if q.typ == dhcpv4.MessageTypeInform {
		return answer(q, a, netip.Addr{}, s.cfg)
	}
	var turns func(string) int
	if s.turns != nil {
		turns = s.turns()
	}
	for again := false; ; again = true {
		leases, err := s.store.Leases(ctx)
		if err != nil {
			return nil, err
		}
		mine, err := s.pool.pick(q.mac, q.want(), leases, now, turns)
		if err != nil {
			return nil, err
		}
		reply, err := answer(q, a, mine, s.cfg)
		if reply == nil || err != nil {
			return nil, err
		}
		switch reply.MessageType() {
		case dhcpv4.MessageTypeOffer:
			s.pool.offered(q.mac, mine, now)
		case dhcpv4.MessageTypeAck:
			// Stored before the machine learns of it: a promised lease survives a restart.
			err := s.store.PutLease(ctx,
				node.Lease{MAC: q.mac, IP: mine.String(), NodeUUID: a.node.UUID, ExpiresAt: now.Add(s.cfg.LeaseTime)})
			if err != nil && turns != nil && !again {
				continue // another conductor has leased the address just now, most likely: then the answer is NAK
			}
			if err != nil {
				return nil, err
			}
			s.pool.leased(q.mac)
			s.log.Info("address leased", "node", a.node.UUID, "mac", q.mac, "address", mine, "file",
				reply.BootFileNameOption())
		}
		return reply, nil
	}
}
