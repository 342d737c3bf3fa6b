package vswitch

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	mostFrame = 1 << 16
	lldpEvery = time.Second
)

// ServeSocket plugs QEMU machines (-netdev stream) that connect to a socket into a port, one at a time, until ctx ends.
// They hear the switch by LLDP, and by LACP at the ports of a LAG.
func (s *Switch) ServeSocket(ctx context.Context, port string, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		s.machine(ctx, port, conn)
	}
}

func (s *Switch) machine(ctx context.Context, port string, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var mu sync.Mutex
	send := func(frame []byte) {
		mu.Lock()
		defer mu.Unlock()
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // one that takes no frames loses them
		_, _ = conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
	}
	s.Plug(port, send)
	gone := make(chan struct{})
	var speaks sync.WaitGroup
	speaks.Go(func() {
		for {
			send(s.lldp(port))
			select {
			case <-time.After(lldpEvery):
			case <-gone:
				return
			}
		}
	})
	for {
		var head [4]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			break
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > mostFrame {
			break
		}
		frame := make([]byte, n)
		if _, err := io.ReadFull(conn, frame); err != nil {
			break
		}
		if answer := s.lacp(port, frame); answer != nil {
			send(answer)
			continue
		}
		s.Send(port, frame)
	}
	close(gone)
	_ = conn.Close()
	s.Plug(port, func([]byte) {})
	speaks.Wait()
}

// ServeCard plugs a network card (a tap) into a port until it is closed.
func (s *Switch) ServeCard(port string, card *os.File) {
	s.Plug(port, func(frame []byte) { _, _ = card.Write(frame) })
	b := make([]byte, mostFrame)
	for {
		n, err := card.Read(b)
		if err != nil {
			return
		}
		s.Send(port, slices.Clone(b[:n]))
	}
}

// lldp is the switch's announcement at a port.
func (s *Switch) lldp(port string) []byte {
	f := slices.Concat([]byte{0x01, 0x80, 0xc2, 0, 0, 0x0e}, s.Chassis[:], []byte{0x88, 0xcc})
	tlv := func(kind int, value ...byte) {
		f = append(binary.BigEndian.AppendUint16(f, uint16(kind<<9|len(value))), value...)
	}
	tlv(1, append([]byte{4}, s.Chassis[:]...)...) // chassis: an address
	tlv(2, append([]byte{5}, port...)...)         // port: its name
	tlv(3, 0, 120)                                // seconds that this holds
	tlv(5, []byte(s.name)...)
	tlv(0)
	return f
}

// lacp answers a machine's frame of LACP (IEEE 802.1AX) at a port that is in a LAG: the switch is in sync, takes frames
// and gives some. Nil: the frame is another, or the port in no LAG.
func (s *Switch) lacp(port string, frame []byte) []byte {
	const actor, info = 18, 15 // where a frame has the machine's own state, and its length
	head := []byte{0x88, 0x09, 1, 1}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.ports[port]
	if p == nil || p.Channel == 0 || len(frame) < actor+info || !bytes.Equal(frame[12:16], head) {
		return nil
	}
	number := slices.Index(slices.Sorted(maps.Keys(s.ports)), port) + 1
	const state = 0x3d // active, may be aggregated, in sync, collects, distributes
	return slices.Concat([]byte{0x01, 0x80, 0xc2, 0, 0, 2}, s.Chassis[:], head,
		[]byte{1, 20, 0x80, 0}, s.Chassis[:], []byte{0, byte(p.Channel), 0x80, 0, 0, byte(number), state, 0, 0, 0},
		[]byte{2, 20}, frame[actor:actor+info], make([]byte, 3),
		[]byte{3, 16}, make([]byte, 14), make([]byte, 52))
}
