package netboot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/conductor/netboot/rawudp"
)

// dhcpConn is where DHCP comes in and goes out.
type dhcpConn interface {
	ReadFromUDP(b []byte) (int, *net.UDPAddr, error)
	WriteToUDP(b []byte, to *net.UDPAddr) (int, error)
	LocalAddr() net.Addr
	Close() error
}

// openDHCP opens the sockets of a mode: that of port 67, and in mode proxy that of the boot server.
func openDHCP(mode Mode, ifname string, us ...netip.Addr) (dhcp, boot dhcpConn, err error) {
	switch mode {
	case Leases:
		dhcp, err = listenDHCP(ifname, dhcpv4.ServerPort)
	case Proxy:
		if dhcp, err = listenBeside(ifname, us...); err != nil {
			return nil, nil, err
		}
		if boot, err = listenDHCP(ifname, bootServerPort); err != nil {
			dhcp.Close()
			return nil, nil, err
		}
	}
	return dhcp, boot, err
}

// CheckDHCP opens the sockets that a mode needs, and closes them again.
func CheckDHCP(mode Mode, ifname string, us netip.Addr) error {
	dhcp, boot, err := openDHCP(mode, ifname, us)
	for _, c := range []dhcpConn{dhcp, boot} {
		if c != nil && err == nil {
			err = c.Close()
		}
	}
	return err
}

// listenDHCP takes a port of an interface for itself alone: SO_REUSEADDR would let two programs have it, and each of
// them would miss what the kernel hands to the other.
//
//nolint:contextcheck opening a socket waits for nothing
func listenDHCP(ifname string, port int) (dhcpConn, error) {
	lc := net.ListenConfig{Control: rawudp.BindTo(ifname)}
	c, err := lc.ListenPacket(context.Background(), "udp4", fmt.Sprintf("0.0.0.0:%d", port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && port == dhcpv4.ServerPort:
		return nil, fmt.Errorf(
			"listen for DHCP on %s: a DHCP server of this host has port 67 already (ss -lunp 'sport = :67' shows it): stop it, or let it give the addresses and set netboot.dhcp to proxy: %w",
			ifname, err)
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf(
			"listen for PXE on %s: another boot server of this host has port %d already (ss -lunp 'sport = :%d' shows it): stop it, or turn off its part in booting (dnsmasq: pxe-service, pxe-prompt): %w",
			ifname, port, port, err)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf(
			"listen for DHCP on %s: it takes the capabilities CAP_NET_BIND_SERVICE and CAP_NET_RAW: %w", ifname, err)
	case err != nil:
		return nil, fmt.Errorf("listen for DHCP on %s port %d: %w", ifname, port, err)
	}
	return c.(*net.UDPConn), nil
}

// beside receives DHCP requests, and answers them from port 67, without having that port: a DHCP server on this host
// keeps it, in whichever order the two were started.
type beside struct {
	in  *rawudp.Receiver
	out *rawudp.Sender
	us  []netip.Addr
}

// listenBeside answers from the first of us.
func listenBeside(ifname string, us ...netip.Addr) (dhcpConn, error) {
	b := &beside{us: us}
	var err error
	if b.in, err = rawudp.Listen(ifname, dhcpv4.ServerPort, false); err == nil {
		if b.out, err = rawudp.NewSender(ifname, us[0]); err == nil {
			return b, nil
		}
		b.in.Close()
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("listen for DHCP on %s: with netboot.dhcp proxy it takes the capability CAP_NET_RAW: %w",
			ifname, err)
	}
	return nil, fmt.Errorf("listen for DHCP on %s: %w", ifname, err)
}

// ReadFromUDP returns packets to all hosts or to this one, which leaves out packets that this host routes.
func (b *beside) ReadFromUDP(buf []byte) (int, *net.UDPAddr, error) {
	for {
		p, err := b.in.Receive()
		if err != nil {
			return 0, nil, err
		}
		if p.Broadcast || slices.Contains(b.us, p.To.Addr()) {
			return copy(buf, p.Payload), net.UDPAddrFromAddrPort(p.From), nil
		}
	}
}

func (b *beside) WriteToUDP(payload []byte, to *net.UDPAddr) (int, error) {
	at := to.AddrPort()
	err := b.out.Send(payload, dhcpv4.ServerPort, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
	return len(payload), err
}

func (b *beside) LocalAddr() net.Addr {
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(b.us[0], dhcpv4.ServerPort))
}

func (b *beside) Close() error { return errors.Join(b.in.Close(), b.out.Close()) }

// listenAt opens sockets at addresses that this host need not have now (ip(7), IP_FREEBIND): a virtual one comes and
// goes.
var listenAt = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
	}); cerr != nil {
		return cerr
	}
	return err
}}

// listenTCP listens at a port of the addresses at which machines are served.
//
//nolint:contextcheck opening a socket waits for nothing
func (c Config) listenTCP(port int) (net.Listener, error) {
	own, err := net.Listen("tcp4", net.JoinHostPort(c.Address.String(), strconv.Itoa(port)))
	if err != nil || len(c.addresses()) == 1 {
		return own, err
	}
	at := net.JoinHostPort(c.Virtual.String(), strconv.Itoa(port))
	virtual, err := listenAt.Listen(context.Background(), "tcp4", at)
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	j := &joined{Listener: own, second: virtual, accepted: make(chan accepted), closed: make(chan struct{})}
	for _, l := range []net.Listener{own, virtual} {
		j.wg.Go(func() { j.accept(l) })
	}
	return j, nil
}

// joined is two listeners as one, so that their connections share its limits. Its address is the first one's.
type joined struct {
	net.Listener
	second   net.Listener
	accepted chan accepted
	closed   chan struct{}
	once     sync.Once
	wg       sync.WaitGroup
}

type accepted struct {
	net.Conn
	err error
}

func (j *joined) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		select {
		case j.accepted <- accepted{c, err}:
		case <-j.closed:
			if c != nil {
				c.Close()
			}
			return
		}
	}
}

func (j *joined) Accept() (net.Conn, error) {
	select {
	case a := <-j.accepted:
		return a.Conn, a.err
	case <-j.closed:
		return nil, net.ErrClosed
	}
}

func (j *joined) Close() (err error) {
	j.once.Do(func() {
		close(j.closed)
		err = errors.Join(j.Listener.Close(), j.second.Close())
		j.wg.Wait()
	})
	return err
}
