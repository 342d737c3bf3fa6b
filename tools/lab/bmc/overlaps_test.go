package bmc

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestOverlaps: a request that comes while another client waits is counted, but not when that one has given up.
func TestOverlaps(t *testing.T) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Start(conn, Config{Name: "n", User: "u", Password: "p", Machine: &Memory{}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ask := func() net.Conn {
		c, err := net.Dial("udp4", conn.LocalAddr().String())
		if err == nil {
			_, err = c.Write([]byte("nothing that is answered"))
		}
		if err != nil {
			t.Fatal(err)
		}
		at := netip.MustParseAddrPort(c.LocalAddr().String())
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			b.conn.mu.Lock()
			_, arrived := b.conn.waiting[at]
			b.conn.mu.Unlock()
			if arrived {
				return c
			}
			if time.Now().After(end) {
				t.Fatal("a packet has not arrived within a minute")
			}
		}
	}
	first := ask()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	// One that has given up, and whose port another client of another controller has got.
	elsewhere, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	left := ask()
	port := left.LocalAddr().(*net.UDPAddr)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := net.DialUDP("udp4", port, elsewhere.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	second := ask()
	defer second.Close()
	if n := b.Overlaps(); n != 0 {
		t.Errorf("%d overlaps with a client that has given up", n)
	}
	third := ask()
	defer third.Close()
	if n := b.Overlaps(); n != 1 {
		t.Errorf("%d overlaps with a client that waits, want 1", n)
	}
}
