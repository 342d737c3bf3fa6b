package signoflife

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"time"
)

const (
	portEvery = 2 * time.Second // between two rounds
	dialLimit = 3 * time.Second
)

// Dial connects to HOST:PORT, as net.Dialer's DialContext does.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// WaitPort tries a TCP port at all addresses, which are read again each time, until one opens: then it returns that
// one. Nothing is sent. It returns an error when ctx ends.
func WaitPort(ctx context.Context, dial Dial, port int,
	addresses func(context.Context) []netip.Addr) (netip.AddrPort, error) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return netip.AddrPort{}, context.Cause(ctx)
		case <-pause.C:
		}
		for _, a := range addresses(ctx) {
			limit, cancel := context.WithTimeout(ctx, dialLimit)
			c, err := dial(limit, "tcp", net.JoinHostPort(a.String(), strconv.Itoa(port)))
			cancel()
			if err == nil {
				c.Close()
				return netip.AddrPortFrom(a, uint16(port)), nil
			}
		}
		pause.Reset(portEvery)
	}
}

// ErrFound ends the reading of a console that has shown the text.
var ErrFound = errors.New("the text was on the console")

// Finder looks for a text in its input, wherever the pieces break; Write fails with ErrFound once it was there.
type Finder struct {
	text []byte
	tail []byte
}

// NewFinder makes a Finder.
func NewFinder(text string) *Finder { return &Finder{text: []byte(text)} }

func (f *Finder) Write(b []byte) (int, error) {
	f.tail = append(f.tail, b...)
	if bytes.Contains(f.tail, f.text) {
		return len(b), ErrFound
	}
	if keep := len(f.text) - 1; len(f.tail) > keep {
		f.tail = append(f.tail[:0], f.tail[len(f.tail)-keep:]...)
	}
	return len(b), nil
}
