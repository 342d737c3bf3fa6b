package main

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/test/kit/port"
)

// link is a network link in this process: a listener that passes connections on to one address, until it is cut, in
// which case bytes wait on both sides as if packets were lost, or slow.
type link struct {
	to string
	l  net.Listener

	mu    sync.Mutex
	cut   chan struct{} // not nil: closed when the link works again
	delay time.Duration
	open  map[net.Conn]bool
	work  sync.WaitGroup
}

// newLink makes a link to an address, HOST:PORT.
func newLink(to string) (*link, error) {
	addr, err := port.Free()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	k := &link{to: to, l: l, open: map[net.Conn]bool{}}
	k.work.Go(k.accept)
	return k, nil
}

// Addr is HOST:PORT of the near end.
func (k *link) Addr() string { return k.l.Addr().String() }

// Cut has packets get lost; Heal ends that, and slowness.
func (k *link) Cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut == nil {
		k.cut = make(chan struct{})
	}
}

// Heal is described at Cut.
func (k *link) Heal() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut != nil {
		close(k.cut)
		k.cut = nil
	}
	k.delay = 0
}

// Slow delays each piece in both directions.
func (k *link) Slow(by time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.delay = by
}

// Drop ends all connections, as a firewall that was restarted does.
func (k *link) Drop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.open {
		c.Close()
	}
}

// Close ends the link.
func (k *link) Close() error {
	err := k.l.Close()
	k.Heal()
	k.Drop()
	k.work.Wait()
	return err
}

func (k *link) accept() {
	for {
		c, err := k.l.Accept()
		if err != nil {
			return
		}
		k.keep(c)
		k.work.Go(func() { k.join(c) })
	}
}

func (k *link) keep(c net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open[c] = true
}

func (k *link) end(c net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c.Close()
	delete(k.open, c)
}

func (k *link) join(near net.Conn) {
	defer k.end(near)
	k.pass()
	far, err := net.DialTimeout("tcp", k.to, 5*time.Second)
	if err != nil {
		return
	}
	k.keep(far)
	defer k.end(far)
	var both sync.WaitGroup
	both.Go(func() { k.copy(far, near) })
	both.Go(func() { k.copy(near, far) })
	both.Wait()
}

// pass waits until the link lets a piece through.
func (k *link) pass() {
	k.mu.Lock()
	cut, delay := k.cut, k.delay
	k.mu.Unlock()
	if cut != nil {
		<-cut
	}
	time.Sleep(delay)
}

// copy passes bytes on. The end of a connection is passed on too, once the link works.
func (k *link) copy(to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		k.pass()
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				from.Close()
				return
			}
		}
		if err != nil {
			if c, ok := to.(*net.TCPConn); ok && errors.Is(err, io.EOF) {
				_ = c.CloseWrite() // the other direction goes on
			} else {
				to.Close()
			}
			return
		}
	}
}
