package ipmi

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// bounded is a socket that is closed when the controller floods it, and sends nothing while may returns an error.
type bounded struct {
	net.Conn
	now func() time.Time
	may func() error

	mu    sync.Mutex
	since time.Time
	got   int
}

func (b *bounded) Write(p []byte) (int, error) {
	if err := b.may(); err != nil {
		return 0, err
	}
	return b.Conn.Write(p)
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.now(); now.Sub(b.since) >= limit.IPMIFloodTime {
		b.since, b.got = now, 0
	}
	// A packet without content costs as much as one with some.
	if b.got += max(n, 64); b.got > limit.IPMIFloodBytes {
		b.Close()
		return 0, fmt.Errorf("the controller sends more than %d MiB in %v: the session was closed",
			limit.IPMIFloodBytes>>20, limit.IPMIFloodTime)
	}
	return n, err
}
