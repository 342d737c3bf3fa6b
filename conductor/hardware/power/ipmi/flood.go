package ipmi

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// What a controller may send. The fastest serial line makes 12 KB a second, some ten times that with the headers of
// small packets; what is more is no console, and go-ipmi would keep all of it until somebody looks.
const (
	floodBytes = 4 << 20
	floodTime  = 10 * time.Second
)

// bounded is a socket that is closed when the controller floods it.
type bounded struct {
	net.Conn
	now func() time.Time

	mu    sync.Mutex
	since time.Time
	got   int
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.now(); now.Sub(b.since) >= floodTime {
		b.since, b.got = now, 0
	}
	// A packet without content costs as much as one with some.
	if b.got += max(n, 64); b.got > floodBytes {
		b.Close()
		return 0, fmt.Errorf("the controller sends more than %d MiB in %v: the session was closed", floodBytes>>20,
			floodTime)
	}
	return n, err
}
