// Package rawudp receives and sends UDP over IPv4 on one interface without binding a port.
//
// Two programs that bind UDP port 67 on one interface take packets from each other: the kernel hands a unicast packet
// to one of them alone. A packet socket gets copies instead, so that a DHCP server or client on the same host keeps all
// that is sent to it. Both need CAP_NET_RAW. Packets in several fragments are not received.
package rawudp

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

const (
	protocolUDP = 17
	udpHeader   = 8
	// protocolRaw is IPPROTO_RAW: such a socket sends packets with their IP header and receives none.
	protocolRaw = "ip4:255"
	maxPacket   = 64 << 10
)

// Packet is one that was received. Payload is good until the next one is received.
type Packet struct {
	From, To  netip.AddrPort
	Broadcast bool // sent to all stations of the network
	Payload   []byte
}

// Receiver receives the packets that come to one port of this host over one interface.
type Receiver struct {
	f      *os.File
	in     syscall.RawConn
	closed atomic.Bool
	buf    [maxPacket]byte
}

// Listen opens a receiver. With outgoing it also gets what programs of this host send to that port over the interface.
func Listen(ifname string, port uint16, outgoing bool) (*Receiver, error) {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", ifname, err)
	}
	// Bound to no protocol at first, or the socket would hear everything until the filter is there.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "packets of "+ifname)
	protocol := uint16(unix.ETH_P_IP)
	if outgoing {
		protocol = unix.ETH_P_ALL // the only one with which the kernel shows what goes out
	}
	if err := prepare(fd, i.Index, protocol, port); err != nil {
		f.Close()
		return nil, fmt.Errorf("listen on %s: %w", ifname, err)
	}
	in, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("listen on %s: %w", ifname, err)
	}
	return &Receiver{f: f, in: in}, nil
}

func prepare(fd, ifindex int, protocol, port uint16) error {
	program, err := filter(port)
	if err != nil {
		return err
	}
	var raw []unix.SockFilter
	for _, r := range program {
		raw = append(raw, unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K})
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]}); err != nil {
		return fmt.Errorf("attach a filter: %w", err)
	}
	var wire [2]byte
	binary.BigEndian.PutUint16(wire[:], protocol)
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(wire[:]), Ifindex: ifindex})
}

// filter lets whole UDP packets over IPv4 to a port through, so that other traffic costs nothing.
func filter(port uint16) ([]bpf.RawInstruction, error) {
	return bpf.Assemble([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: 8},
		bpf.LoadAbsolute{Off: 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protocolUDP, SkipTrue: 6},
		bpf.LoadAbsolute{Off: 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: fragment, SkipTrue: 4},
		bpf.LoadMemShift{Off: 0}, // X is the length of the IP header
		bpf.LoadIndirect{Off: 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(port), SkipTrue: 1},
		bpf.RetConstant{Val: maxPacket},
		bpf.RetConstant{Val: 0},
	})
}

// fragment is the flag "more fragments" and the offset, in the field at byte 6 of the IP header.
const fragment = 0x3fff

// Receive waits for a packet. The error is net.ErrClosed after Close, and os.ErrDeadlineExceeded after the deadline.
func (r *Receiver) Receive() (Packet, error) {
	for {
		var n int
		var from unix.Sockaddr
		var err error
		waiting := r.in.Read(func(fd uintptr) bool {
			n, from, err = unix.Recvfrom(int(fd), r.buf[:], 0)
			return !errors.Is(err, unix.EAGAIN)
		})
		switch {
		case r.closed.Load(): // the error has no name outside of package poll
			return Packet{}, net.ErrClosed
		case waiting != nil:
			return Packet{}, waiting
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return Packet{}, err
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok || link.Pkttype != unix.PACKET_HOST && link.Pkttype != unix.PACKET_BROADCAST &&
			link.Pkttype != unix.PACKET_OUTGOING {
			continue // for another station: the interface is promiscuous
		}
		if p, ok := parse(r.buf[:n]); ok {
			p.Broadcast = link.Pkttype == unix.PACKET_BROADCAST
			return p, nil
		}
	}
}

// parse takes an IPv4 packet apart. The checksums are not looked at: they are the network card's, which has not made
// them yet when a packet comes from this host.
func parse(b []byte) (p Packet, ok bool) {
	if len(b) < ipv4.HeaderLen || b[0]>>4 != 4 || b[9] != protocolUDP || binary.BigEndian.Uint16(b[6:])&fragment != 0 {
		return p, false
	}
	head, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	if head < ipv4.HeaderLen || total > len(b) || total < head+udpHeader {
		return p, false
	}
	udp := b[head:total]
	size := int(binary.BigEndian.Uint16(udp[4:]))
	if size < udpHeader || size > len(udp) {
		return p, false
	}
	p.From = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[12:16])), binary.BigEndian.Uint16(udp))
	p.To = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:20])), binary.BigEndian.Uint16(udp[2:]))
	p.Payload = udp[udpHeader:size]
	return p, true
}

// SetDeadline sets until when Receive waits.
func (r *Receiver) SetDeadline(t time.Time) error { return r.f.SetReadDeadline(t) }

// Close ends a Receive that waits.
func (r *Receiver) Close() error {
	r.closed.Store(true)
	return r.f.Close()
}

// Sender sends packets over one interface, from an address of it and any port.
type Sender struct {
	raw  *ipv4.RawConn
	from netip.Addr
}

// NewSender opens a sender.
//
//nolint:contextcheck opening a socket waits for nothing
func NewSender(ifname string, from netip.Addr) (*Sender, error) {
	lc := net.ListenConfig{Control: BindTo(ifname)}
	c, err := lc.ListenPacket(context.Background(), protocolRaw, from.String())
	if err != nil {
		return nil, fmt.Errorf("send on %s: %w", ifname, err)
	}
	raw, err := ipv4.NewRawConn(c)
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("send on %s: %w", ifname, err)
	}
	return &Sender{raw, from}, nil
}

// BindTo returns a control function for net.ListenConfig that binds a socket to an interface.
func BindTo(ifname string) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		cerr := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), ifname) })
		return cmp.Or(cerr, os.NewSyscallError("bind to "+ifname, err))
	}
}

// Send sends a payload. What goes to 255.255.255.255 is heard by programs of this host as well.
func (s *Sender) Send(payload []byte, port uint16, to netip.AddrPort) error {
	udp := make([]byte, udpHeader, udpHeader+len(payload))
	binary.BigEndian.PutUint16(udp, port)
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(udpHeader+len(payload)))
	udp = append(udp, payload...)
	binary.BigEndian.PutUint16(udp[6:], checksum(s.from, to.Addr(), udp))
	h := &ipv4.Header{Version: ipv4.Version, Len: ipv4.HeaderLen, TotalLen: ipv4.HeaderLen + len(udp), TTL: 64,
		Protocol: protocolUDP, Src: s.from.AsSlice(), Dst: to.Addr().AsSlice()}
	return s.raw.WriteTo(h, udp, nil)
}

// checksum is that of a UDP packet (RFC 768), whose own field is zero.
func checksum(from, to netip.Addr, udp []byte) uint16 {
	pseudo := append(from.AsSlice(), to.AsSlice()...)
	pseudo = append(pseudo, 0, protocolUDP, udp[4], udp[5])
	var sum uint32
	for _, part := range [][]byte{pseudo, udp} {
		for i := 0; i+1 < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
		if len(part)%2 == 1 {
			sum += uint32(part[len(part)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return cmp.Or(^uint16(sum), 0xffff) // 0 would mean that there is none
}

// Close closes the sender.
func (s *Sender) Close() error { return s.raw.Close() }
