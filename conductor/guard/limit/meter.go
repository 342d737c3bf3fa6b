package limit

import (
	"net"
	"sync"
	"time"
)

// Metered is an HTTP/2 connection, inside of TLS, over which messages come instead of bodies. What of a message has
// arrived is taken from the budget before it is known how long the message is; when there is nothing left, Read fails
// with ErrBusy, which ends the connection.
type Metered struct {
	net.Conn
	budget *Budget
	who    caller

	mu     sync.Mutex
	held   int64
	closed bool
	wanted bool      // the conductor waits for a message; see Expect
	since  time.Time // since when a message comes that is waited for

	// Only what frames of data hold counts, or pings would add up over months. Used by Read alone.
	left   int // bytes of the frame, or of the preface, that are still to come
	data   bool
	header []byte // of the next frame, as far as it is here
}

// Lengths of HTTP/2 (RFC 9113): the client's preface, and the header of a frame.
const (
	prefaceSize = 24
	headerSize  = 9
)

// Meter counts the bytes that arrive over c. known says whether the peer is an agent with a certificate.
func (b *Budget) Meter(c net.Conn, known bool) *Metered {
	who := anonymous
	if known {
		who = agent
	}
	return &Metered{Conn: c, budget: b, who: who, left: prefaceSize}
}

// Read implements net.Conn.
func (m *Metered) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	if c := m.count(p[:n]); c > 0 {
		if !m.budget.take(c, m.who) {
			return 0, ErrBusy
		}
		m.mu.Lock()
		m.held += c
		m.hurry()
		closed := m.closed
		m.mu.Unlock()
		if closed { // it would never be returned
			m.Free(m.Message())
		}
	}
	return n, err
}

// count returns how many bytes of p are in frames of data.
func (m *Metered) count(p []byte) (n int64) {
	for len(p) > 0 {
		if m.left > 0 {
			k := min(m.left, len(p))
			if m.data {
				n += int64(k)
			}
			m.left -= k
			p = p[k:]
			continue
		}
		k := min(headerSize-len(m.header), len(p))
		m.header = append(m.header, p[:k]...)
		p = p[k:]
		if h := m.header; len(h) == headerSize {
			m.left, m.data, m.header = int(h[0])<<16|int(h[1])<<8|int(h[2]), h[3] == 0, h[:0]
		}
	}
	return n
}

// Expect says that the conductor waits for the next message from now on. Once its first byte has arrived, it has as
// much time as a body has; then the connection ends. A message that arrived earlier waits for the conductor without a
// limit.
func (m *Metered) Expect() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted = true
	m.hurry()
}

// hurry sets the end of the message that is coming. A connection that is closed has none.
func (m *Metered) hurry() {
	if !m.wanted || m.held == 0 {
		return
	}
	if m.since.IsZero() {
		m.since = time.Now()
	}
	_ = m.Conn.SetReadDeadline(m.since.Add(BodyTime + time.Duration(m.held)*time.Second/BodyRate))
}

// Message says that a message has arrived whole. It returns how many bytes of the budget the caller has from now on,
// until Free.
func (m *Metered) Message() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.held
	m.held = 0
	if !m.since.IsZero() {
		m.since = time.Time{}
		_ = m.Conn.SetReadDeadline(time.Time{})
	}
	m.wanted = false
	return n
}

// Free returns n bytes of Message to the budget.
func (m *Metered) Free(n int64) { m.budget.give(n, m.who) }

// Close returns the bytes of incomplete messages.
func (m *Metered) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	defer func() { m.Free(m.Message()) }()
	return m.Conn.Close()
}
