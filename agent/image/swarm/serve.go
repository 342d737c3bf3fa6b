package swarm

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

const (
	maxConns     = 192 // accepted at once
	maxStrangers = 16  // of these, not yet identified as neighbours
	connsPerNode = 8
	idleConn     = 2 * time.Minute
	pieceSize    = 64 << 10
	slowest      = 32 << 10 // minimum average bytes per second of a receiver
)

// port is the listener's; zero if there is none.
func (m *Member) port() uint16 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listener == nil {
		return 0
	}
	return uint16(m.listener.Addr().(*net.TCPAddr).Port)
}

// listen opens the listener, replacing an open one. Without a listener this agent can't serve others, and so gets
// nothing from them.
func (m *Member) listen(local netip.Addr) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(local, 0).String())
	if err != nil {
		m.log.Warn("no listener for neighbours: the image comes from its server alone", "address", local.String(),
			"err", err)
		return
	}
	m.mu.Lock()
	if m.ctx.Err() != nil {
		m.mu.Unlock()
		_ = l.Close()
		return
	}
	if m.listener != nil {
		_ = m.listener.Close()
	}
	m.listener = l
	m.work.Go(func() { m.accept(l) })
	m.mu.Unlock()
	m.log.Info("listening for neighbours that write the same image", "address", l.Addr().String())
}

func (m *Member) accept(l net.Listener) {
	strangers := make(chan struct{}, maxStrangers)
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, for example
			if step.Sleep(m.ctx, 100*time.Millisecond) != nil {
				return
			}
			continue
		}
		m.mu.Lock()
		full := len(m.conns) >= maxConns || m.ctx.Err() != nil
		if !full {
			select {
			case strangers <- struct{}{}:
				m.conns[c] = ""
			default:
				full = true
			}
		}
		m.mu.Unlock()
		if full {
			_ = c.Close()
			continue
		}
		m.work.Go(func() {
			defer func() {
				m.mu.Lock()
				delete(m.conns, c)
				m.mu.Unlock()
				_ = c.Close()
			}()
			t, who, err := m.welcome(c)
			<-strangers
			if err != nil {
				m.log.Debug("a connection was refused", "from", c.RemoteAddr().String(), "err", err)
				return
			}
			m.serve(t, who)
		})
	}
}

var (
	errUnknown = errors.New("the conductor did not tell of this node")
	errTooMany = errors.New("this node has too many connections")
	errNotKept = errors.New("it can't be read back any more")
	errNoChunk = errors.New("there is no such chunk")
)

// welcome authenticates a connection: only neighbours from the conductor are accepted.
//
//nolint:contextcheck a member serves others until it leaves, whatever its writer does meanwhile
func (m *Member) welcome(c net.Conn) (*tls.Conn, who, error) {
	var from who
	t := tls.Server(c, m.id.tls(func(w who) error {
		from = w
		return m.admit(c, w)
	}))
	ctx, cancel := context.WithTimeout(m.ctx, m.times.dial)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, who{}, err
	}
	return t, from, nil
}

func (m *Member) admit(c net.Conn, w who) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	nb := m.near[w.node]
	if nb == nil || nb.who != w {
		return errUnknown
	}
	open := 0
	for _, whose := range m.conns {
		if whose == w.node {
			open++
		}
	}
	if open >= connsPerNode {
		return errTooMany
	}
	m.conns[c] = w.node
	return nil
}

// serve answers one neighbour's requests until it disconnects, is removed or violates the protocol.
func (m *Member) serve(t *tls.Conn, from who) {
	for {
		if err := t.SetDeadline(time.Now().Add(idleConn)); err != nil {
			return
		}
		r, err := readRequest(t)
		if err == nil {
			err = m.answer(t, r)
		}
		if err != nil {
			m.log.Debug("a neighbour's connection ends", "neighbour", from.node, "err", err)
			return
		}
	}
}

func (m *Member) answer(t *tls.Conn, r request) error {
	if err := t.SetDeadline(time.Now().Add(m.times.window)); err != nil {
		return err
	}
	say := func(s status) error {
		_, err := t.Write(answer{status: s}.bytes())
		return err
	}
	if r.image != m.image {
		return say(statusMissing)
	}
	if int64(r.chunk) >= int64(len(m.x.Chunks)) {
		return errNoChunk
	}
	i := int(r.chunk)
	m.mu.Lock()
	ours := m.state[i] == had && m.x.Chunks[i].Len > 0
	m.mu.Unlock()
	if !ours {
		return say(statusMissing)
	}
	if !m.up.take() {
		return say(statusBusy)
	}
	var took time.Duration
	defer func() { m.up.give(took) }()
	p, err := m.pack(i)
	if err := t.SetDeadline(time.Now().Add(m.times.window)); err != nil { // packing may have taken longer
		if p != nil {
			m.pool.unpin(p)
		}
		return err
	}
	if errors.Is(err, errNotKept) || errors.Is(err, context.Canceled) { // the writer has ended
		return say(statusMissing)
	}
	if err != nil {
		m.log.Warn("a chunk that was written can't be given to others", "chunk", i, "err", err)
		return say(statusMissing)
	}
	if p == nil {
		return say(statusBusy)
	}
	defer m.pool.unpin(p)
	began := time.Now()
	err = m.send(t, p.encoding, p.data)
	if m.telling(len(p.data)) {
		took = time.Since(began)
	}
	return err
}

// pack returns a chunk from memory, or reads it back and packs it; nil if there is no memory for it now.
func (m *Member) pack(i int) (*packed, error) {
	if p := m.pool.pin(i); p != nil {
		return p, nil
	}
	m.mu.Lock()
	resting := m.resting
	m.mu.Unlock()
	if resting {
		return nil, errNotKept
	}
	// this may wait for the origin, which is forbidden while holding the disk, since Rest waits for that
	want, err := m.sums.of(m.ctx, i)
	if err != nil {
		return nil, err // without the list, data from the disk can't be verified
	}
	m.disk.Lock()
	defer m.disk.Unlock()
	if p := m.pool.pin(i); p != nil { // packed in the meantime
		return p, nil
	}
	if m.read == nil {
		return nil, errNotKept
	}
	if m.packer == nil {
		if m.packer, err = newPacker(); err != nil {
			return nil, err
		}
	}
	size := m.x.ChunkLen(i)
	// Fast packing gives a larger chunk than the published one, usually by a little.
	for _, most := range []int{min(maxPacked, int(m.x.Chunks[i].Len+size/8)), maxPacked} {
		if !m.pool.reserveNow(most) {
			return nil, nil
		}
		mem := m.pool.take(most)
		n, err := m.packer.pack(mem[:most], size, want,
			func(off int64, dst []byte) error { return m.read(i, off, dst) })
		if err == nil {
			m.mu.Lock()
			m.stats.Repacked++
			m.mu.Unlock()
			return m.pool.keep(i, repacked, mem[:n], most, true), nil
		}
		m.pool.free(mem)
		m.pool.release(most)
		if !errors.Is(err, errFull) {
			return nil, err
		}
	}
	return nil, errFull
}

// send sends an object within the rate limit, to a receiver that must not be too slow.
func (m *Member) send(t *tls.Conn, e encoding, data []byte) error {
	if _, err := t.Write(answer{statusOK, e, uint32(len(data))}.bytes()); err != nil {
		return err
	}
	last := time.Now().Add(m.times.window + time.Duration(len(data)/slowest)*time.Second)
	for off := 0; off < len(data); {
		piece := data[off:min(off+pieceSize, len(data))]
		began := time.Now()
		if err := m.limit.wait(m.ctx, len(piece)); err != nil {
			return err
		}
		last = last.Add(time.Since(began)) // this side's delay does not count against the receiver
		end := time.Now().Add(m.times.window)
		if last.Before(end) {
			end = last
		}
		if err := t.SetWriteDeadline(end); err != nil {
			return err
		}
		n, err := t.Write(piece)
		off += n
		m.mu.Lock()
		m.stats.Sent += int64(n)
		m.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}
