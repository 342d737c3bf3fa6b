package bmc

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// packetConn is the controller's socket, with its faults.
type packetConn struct {
	net.PacketConn
	bmc     *BMC
	sending sync.WaitGroup

	overlaps atomic.Int64
	mu       sync.Mutex
	waiting  map[netip.AddrPort]time.Time // who waits for an answer, since when
}

// patience is how long a client waits for an answer; one that asked before that has gone.
const patience = 2 * time.Second

// Overlaps counts requests that came while another client waited for an answer: one that behaves lets no two of its
// requests wait at one controller.
func (b *BMC) Overlaps() int64 {
	if b.conn == nil {
		return 0
	}
	return b.conn.overlaps.Load()
}

// waits reports whether a client may still wait for the controller at an address: not one of this host that has closed
// its socket, as one does that gives up and begins anew. Another one may have its port by then, and speak with another
// controller.
func waits(client, at netip.AddrPort) bool {
	if !client.Addr().IsLoopback() || !at.Addr().Unmap().Is4() {
		return true
	}
	sockets, err := os.ReadFile("/proc/net/udp")
	if err != nil {
		return true
	}
	ip := at.Addr().Unmap().As4()
	to := fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(ip[:]), at.Port())
	local := fmt.Sprintf(":%04X", client.Port())
	for line := range strings.Lines(string(sockets)) {
		f := strings.Fields(line)
		if len(f) > 2 && strings.HasSuffix(f[1], local) && (f[2] == to || strings.HasSuffix(f[2], ":0000")) {
			return true
		}
	}
	return false
}

// asked notes a request.
func (c *packetConn) asked(from netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for other, since := range c.waiting {
		switch {
		case now.Sub(since) > patience:
			delete(c.waiting, other)
		case other != from && !waits(other, c.bmc.Addr()):
			delete(c.waiting, other)
		case other != from:
			c.overlaps.Add(1)
			c.bmc.log.Warn("a request came while another client waited for an answer", "from", from, "waits", other,
				"for", now.Sub(since))
		}
	}
	if c.waiting == nil {
		c.waiting = map[netip.AddrPort]time.Time{}
	}
	c.waiting[from] = now
}

// send answers a client.
func (c *packetConn) send(p []byte, addr net.Addr) (int, error) {
	if a, ok := addr.(*net.UDPAddr); ok {
		c.mu.Lock()
		delete(c.waiting, a.AddrPort())
		c.mu.Unlock()
	}
	return c.PacketConn.WriteTo(p, addr)
}

func (c *packetConn) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		n, addr, err := c.PacketConn.ReadFrom(p)
		if err != nil {
			return n, addr, err
		}
		if !c.bmc.faults.Load().Silent {
			if a, ok := addr.(*net.UDPAddr); ok {
				c.asked(a.AddrPort())
			}
			return n, addr, nil
		}
	}
}

func (c *packetConn) WriteTo(p []byte, addr net.Addr) (int, error) {
	f := c.bmc.faults.Load()
	if f.Silent {
		return len(p), nil
	}
	if f.Delay == 0 {
		return c.send(p, addr)
	}
	late := append([]byte(nil), p...)
	c.sending.Go(func() {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
			// UDP may lose the answer; the console asks again.
			_, _ = c.send(late, addr)
		case <-c.bmc.ctx.Done():
		}
	})
	return len(p), nil
}
