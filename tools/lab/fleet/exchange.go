package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// exchange is the one socket of all controllers of a fleet: with one each, 10,000 machines need more open files than
// many hosts allow a process. It has the packets of every address of the host at its port, and answers from the address
// that was asked.
type exchange struct {
	conn *ipv4.PacketConn
	port int
	done sync.WaitGroup

	mu sync.Mutex
	of map[netip.Addr]*line
}

// waiting is how many packets may wait at a controller; more are lost, as in a network.
const waiting = 16

func listen(ctx context.Context, port int) (*exchange, error) {
	// Bound to loopback: nothing outside of this host may reach the controllers.
	only := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var bound error
		err := raw.Control(func(fd uintptr) { bound = unix.BindToDevice(int(fd), "lo") })
		return errors.Join(err, bound)
	}}
	c, err := only.ListenPacket(ctx, "udp4", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
		return nil, fmt.Errorf("listen at UDP port %d of loopback: %w", port, err)
	}
	x := &exchange{conn: ipv4.NewPacketConn(c), port: port, of: map[netip.Addr]*line{}}
	if err := x.conn.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return nil, fmt.Errorf("have the addresses of packets reported: %w", err)
	}
	if u, ok := c.(*net.UDPConn); ok {
		_ = u.SetReadBuffer(4 << 20) // as much of it as the kernel allows
	}
	x.done.Go(x.run)
	return x, nil
}

// run hands packets out until the socket is closed.
func (x *exchange) run() {
	buf := make([]byte, 64<<10)
	for {
		n, to, from, err := x.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		at, ok := netip.AddrFromSlice(to.Dst.To4())
		x.mu.Lock()
		l := x.of[at]
		x.mu.Unlock()
		if !ok || l == nil {
			continue
		}
		select {
		case l.in <- packet{append([]byte(nil), buf[:n]...), from}:
		default:
		}
	}
}

// Close ends it.
func (x *exchange) Close() error {
	err := x.conn.Close()
	x.done.Wait()
	return err
}

// at makes the line of a controller.
func (x *exchange) at(a netip.Addr) *line {
	l := &line{x: x, at: a, in: make(chan packet, waiting), closed: make(chan struct{})}
	x.mu.Lock()
	x.of[a] = l
	x.mu.Unlock()
	return l
}

type packet struct {
	data []byte
	from net.Addr
}

// line is the part of the exchange that belongs to one address. It has no deadlines.
type line struct {
	x      *exchange
	at     netip.Addr
	in     chan packet
	once   sync.Once
	closed chan struct{}
}

func (l *line) ReadFrom(p []byte) (int, net.Addr, error) {
	select {
	case m := <-l.in:
		return copy(p, m.data), m.from, nil
	case <-l.closed:
		return 0, nil, net.ErrClosed
	}
}

func (l *line) WriteTo(p []byte, to net.Addr) (int, error) {
	select {
	case <-l.closed:
		return 0, net.ErrClosed
	default:
		return l.x.conn.WriteTo(p, &ipv4.ControlMessage{Src: l.at.AsSlice()}, to)
	}
}

func (l *line) Close() error {
	l.once.Do(func() {
		l.x.mu.Lock()
		delete(l.x.of, l.at)
		l.x.mu.Unlock()
		close(l.closed)
	})
	return nil
}

func (l *line) LocalAddr() net.Addr {
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(l.at, uint16(l.x.port)))
}

func (l *line) SetDeadline(time.Time) error      { return nil }
func (l *line) SetReadDeadline(time.Time) error  { return nil }
func (l *line) SetWriteDeadline(time.Time) error { return nil }
