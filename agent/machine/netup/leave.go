package netup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Leave releases leases and takes links down, because the machine continues without the agent: the next system finds
// idle cards, and the server has its addresses back. Reset brings everything up again.
func (n *Net) Leave(ctx context.Context) error { return request(ctx, n.leaves, "stop") }

// request asks Run's loop to do something, and waits until that is done.
func request(ctx context.Context, to chan<- chan struct{}, what string) error {
	done := make(chan struct{})
	select {
	case to <- done:
		<-done
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s the network: %w", what, context.Cause(ctx))
	}
}

// quit does Leave's work, in Run's loop.
func (n *Net) quit(ctx context.Context) {
	if n.left {
		return
	}
	n.log.Info("the network is stopped")
	n.stopAll()
	n.left = true
	n.mu.Lock()
	links := n.links
	n.mu.Unlock()
	for _, l := range links {
		if err := n.release(ctx, l); err != nil {
			n.log.Warn("lease not given back", "link", l.name, "err", err)
		}
	}
	for _, l := range links {
		nl, err := netlink.LinkByIndex(l.index)
		if err == nil {
			err = netlink.LinkSetDown(nl)
		}
		if err != nil {
			n.log.Warn("link stays up", "link", l.name, "err", err)
		}
	}
}

// released is how long the release of a lease may wait for the server's hardware address.
const released = 500 * time.Millisecond

// release returns the address to the server. There is no reply to wait for (RFC 2131, 4.4.6), but the packet must have
// left before the link goes down. It is sent from the address itself: servers' kernels drop packets without a source.
func (n *Net) release(ctx context.Context, l *link) error {
	if l.lease == nil || l.lease.raw == nil {
		return nil
	}
	ack := l.lease.raw.ACK
	m, err := dhcpv4.NewReleaseFromACK(ack)
	if err != nil {
		return err
	}
	dial := net.Dialer{LocalAddr: &net.UDPAddr{IP: l.lease.addr.Addr().AsSlice(), Port: dhcpv4.ClientPort},
		Control: func(_, _ string, c syscall.RawConn) error {
			var berr error
			err := c.Control(func(fd uintptr) { berr = unix.BindToDevice(int(fd), l.name) })
			return errors.Join(err, berr)
		}}
	c, err := dial.DialContext(ctx, "udp4",
		net.JoinHostPort(ack.ServerIdentifier().String(), strconv.Itoa(dhcpv4.ServerPort)))
	if err != nil {
		return err
	}
	defer c.Close() // already released
	if _, err := c.Write(m.ToBytes()); err != nil {
		return err
	}
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	limit := time.After(released)
	tick := time.Tick(2 * time.Millisecond)
	for {
		waiting := 0
		if err := raw.Control(func(fd uintptr) {
			waiting, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		}); err != nil {
			return err
		}
		if err != nil || waiting == 0 {
			return err
		}
		select {
		case <-tick:
		case <-limit:
			return errors.New("the server can't be reached")
		}
	}
}
