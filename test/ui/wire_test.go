package ui

import (
	"io"
	"net"
	"sync"
	"testing"
)

// wire passes connections on to a server, until it is cut.
type wire struct {
	addr string
	to   string

	mu    sync.Mutex
	isCut bool
	conns map[net.Conn]bool
}

func newWire(t testing.TB, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{addr: l.Addr().String(), to: to, conns: map[net.Conn]bool{}}
	t.Cleanup(func() {
		l.Close()
		w.cut(true)
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.pass(c)
		}
	}()
	return w
}

// cut ends all connections and has new ones end at once, or lets them through again.
func (w *wire) cut(isCut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = isCut
	if isCut {
		for c := range w.conns {
			c.Close()
		}
	}
}

// keep reports whether a connection may go on.
func (w *wire) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = true
	return !w.isCut
}

func (w *wire) pass(c net.Conn) {
	defer c.Close()
	if !w.keep(c) {
		return
	}
	s, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer s.Close()
	if !w.keep(s) {
		return
	}
	go func() {
		io.Copy(s, c)
		s.Close()
	}()
	io.Copy(c, s)
}
