package swarm

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"
)

// link is a connection to a neighbour, for one request at a time.
type link struct {
	*tls.Conn
	times times
}

// drop closes a link without TLS's closing message, which could block.
func (l *link) drop() { _ = l.NetConn().Close() }

const idleLinks = 2 // kept per neighbour

var (
	errBusy    = errors.New("the neighbour is busy")
	errLate    = errors.New("the neighbour took long to say that it is busy")
	errMissing = errors.New("the neighbour does not have it")
)

// ask requests a chunk from a neighbour, whose active count the caller has raised, and returns when the answer begins.
// On an error the count is lowered again.
func (m *Member) ask(ctx context.Context, nb *neighbour, chunk int) (*link, answer, error) {
	r, want := request{m.image, uint32(chunk)}, m.x.Chunks[chunk].Len
	for {
		m.mu.Lock()
		var l *link
		if k := len(nb.idle); k > 0 {
			l, nb.idle = nb.idle[k-1], nb.idle[:k-1]
		}
		m.mu.Unlock()
		reused := l != nil
		if l == nil {
			c, err := m.dial(ctx, nb.who, nb.addr)
			if err != nil {
				m.settle(nb, nil, err)
				return nil, answer{}, err
			}
			l = &link{c, m.times}
		}
		began := time.Now()
		a, err := l.request(ctx, r, want)
		var lie errNonsense
		switch {
		case err == nil && a.status == statusOK:
			return l, a, nil
		case err == nil && a.status == statusBusy:
			err = errBusy
			if time.Since(began) > m.times.answer/10 { // it would occupy one of few transfers again and again
				err = errLate
			}
			m.settle(nb, l, err)
			return nil, a, err
		case err == nil:
			m.mu.Lock()
			if i := int(r.chunk); !nb.gone && nb.have.has(i) {
				nb.have.drop(i)
				m.avail[i]--
			}
			m.mu.Unlock()
			m.settle(nb, l, nil)
			return nil, a, errMissing
		}
		_ = l.Close()
		if errors.As(err, &lie) {
			m.settle(nb, nil, err)
			m.bar(nb, int(r.chunk), err)
			return nil, answer{}, err
		}
		if reused && ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			continue // it was closed while idle
		}
		m.settle(nb, nil, err)
		return nil, answer{}, err
	}
}

// dial connects to a neighbour, from the address by which the conductor knows this agent.
func (m *Member) dial(ctx context.Context, to who, addr netip.AddrPort) (*tls.Conn, error) {
	d := net.Dialer{Timeout: m.times.dial}
	if local := m.n.address(); local.IsValid() && local.Is4() == addr.Addr().Is4() {
		d.LocalAddr = &net.TCPAddr{IP: local.AsSlice(), Zone: local.Zone()}
	}
	raw, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	c := tls.Client(raw, m.id.tls(func(w who) error {
		if w != to {
			return fmt.Errorf("%w that was asked for", errStranger)
		}
		return nil
	}))
	ctx, cancel := context.WithTimeout(ctx, m.times.dial)
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return c, nil
}

// settle ends a transfer. A working link is kept for the next one; an error makes the neighbour rest for a while.
func (m *Member) settle(nb *neighbour, l *link, err error) {
	if err != nil && !errors.Is(err, errBusy) {
		m.log.Debug("a neighbour fails", "neighbour", nb.node, "err", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	nb.active--
	switch {
	case errors.Is(err, errBusy):
		nb.after = time.Now().Add(busyPause)
	case err != nil:
		nb.fails++
		nb.after = time.Now().Add(min(m.times.fail<<min(nb.fails-1, 10), maxPause))
	default:
		nb.fails = 0
	}
	if l != nil {
		if nb.gone || m.ctx.Err() != nil || len(nb.idle) >= idleLinks {
			l.drop()
		} else {
			nb.idle = append(nb.idle, l)
		}
	}
	m.rouseLocked()
}

func (nb *neighbour) close() {
	for _, l := range nb.idle {
		l.drop()
	}
	nb.idle = nil
}

// request sends a request and reads the header of the answer.
func (l *link) request(ctx context.Context, r request, want int64) (answer, error) {
	defer context.AfterFunc(ctx, l.drop)()
	if err := l.SetDeadline(time.Now().Add(l.times.answer)); err != nil {
		return answer{}, err
	}
	if _, err := l.Write(r.bytes()); err != nil {
		return answer{}, err
	}
	return readAnswer(l, want)
}

// body reads the rest of an answer, as long as it makes progress.
func (l *link) body(ctx context.Context, data []byte) error {
	defer context.AfterFunc(ctx, l.drop)()
	for n, got := len(data), 0; got < n; {
		if err := l.SetDeadline(time.Now().Add(l.times.window)); err != nil {
			return err
		}
		k, err := io.ReadFull(l, data[got:min(got+leastInWindow, n)])
		got += k
		var slow net.Error
		if errors.As(err, &slow) && slow.Timeout() {
			return fmt.Errorf("the neighbour sent %d bytes in %v: too slow", k, l.times.window)
		}
		if err != nil {
			return err
		}
	}
	return l.SetDeadline(time.Time{})
}
