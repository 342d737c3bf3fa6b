package rawudp

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
)

// packetOf is a packet as it lies on the wire.
func packetOf(payload string) []byte {
	b := append([]byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 68, 0, 67, 0, 0, 0, 0},
		payload...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[24:], uint16(len(b)-20))
	return b
}

func TestParse(t *testing.T) {
	p, ok := parse(append(packetOf("text"), "padding"...))
	if !ok || string(p.Payload) != "text" || p.From.String() != "10.0.0.1:68" || p.To.String() != "10.0.0.2:67" {
		t.Errorf("parse = %+v, %v", p, ok)
	}
	for name, spoil := range map[string]func(b []byte) []byte{
		"empty":                  func([]byte) []byte { return nil },
		"header cut off":         func(b []byte) []byte { return b[:19] },
		"payload cut off":        func(b []byte) []byte { return b[:len(b)-1] },
		"IPv6":                   func(b []byte) []byte { b[0] = 0x65; return b },
		"TCP":                    func(b []byte) []byte { b[9] = 6; return b },
		"first fragment":         func(b []byte) []byte { b[6] = 0x20; return b },
		"last fragment":          func(b []byte) []byte { b[7] = 1; return b },
		"short IP header":        func(b []byte) []byte { b[0] = 0x44; return b },
		"long IP header":         func(b []byte) []byte { b[0] = 0x4f; return b },
		"total within headers":   func(b []byte) []byte { b[3] = 27; return b },
		"UDP longer than packet": func(b []byte) []byte { b[25]++; return b },
		"UDP shorter than head":  func(b []byte) []byte { b[25] = 7; return b },
	} {
		if p, ok := parse(spoil(packetOf("text"))); ok {
			t.Errorf("%s: parse = %+v", name, p)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(packetOf("text"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := parse(b); ok && len(p.Payload)+28 > len(b) {
			t.Errorf("%d bytes of payload in %d", len(p.Payload), len(b))
		}
	})
}

// A program that has the port gets every packet sent to it, as if nothing else listened; packets sent from the port
// have a checksum that the kernel accepts.
func TestBesideAProgramThatHasThePort(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "ip", "unshare")
	if os.Getenv("INGOT_TEST_INSIDE") == "" {
		cmd := exec.CommandContext(t.Context(), "unshare", "--net", os.Args[0], "-test.run", "^"+t.Name()+"$",
			"-test.v")
		cmd.Env = append(os.Environ(), "INGOT_TEST_INSIDE=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	kit.Run(t, "ip", "link", "add", "left", "type", "veth", "peer", "name", "right")
	kit.Run(t, "ip", "addr", "add", "10.9.0.1/24", "dev", "left")
	for _, i := range []string{"lo", "left", "right"} {
		kit.Run(t, "ip", "link", "set", i, "up")
	}
	// The kernel sends nothing before it has noticed, some time after both ends are up, that there is a carrier.
	kit.Eventually(t, time.Minute, "the wire has a carrier", func() bool {
		return strings.Contains(kit.Run(t, "ip", "link", "show", "left"), "state UP")
	})
	out, err := NewSender("left", netip.MustParseAddr("10.9.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	// The kernel loops a broadcast back to this host, and the receivers are at both ends of the wire.
	owner, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 67})
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	sent, err := Listen("left", 67, true)
	if err != nil {
		t.Fatal(err)
	}
	defer sent.Close()
	arrived, err := Listen("right", 67, false)
	if err != nil {
		t.Fatal(err)
	}
	everybody := netip.MustParseAddrPort("255.255.255.255:67")
	for _, payload := range []string{"even", "odd"} {
		if err := errors.Join(out.Send([]byte("other port"), 67, netip.AddrPortFrom(everybody.Addr(), 66)),
			out.Send([]byte(payload), 68, everybody)); err != nil {
			t.Fatal(err)
		}
		end := time.Now().Add(time.Minute)
		if err := errors.Join(owner.SetReadDeadline(end), sent.SetDeadline(end), arrived.SetDeadline(end)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		if n, from, err := owner.ReadFromUDP(buf); err != nil || string(buf[:n]) != payload ||
			from.String() != "10.9.0.1:68" {
			t.Errorf("the port's owner has %q from %s, %v, want %q", buf[:n], from, err, payload)
		}
		for name, r := range map[string]*Receiver{"left": sent, "right": arrived} {
			if p, err := r.Receive(); err != nil || string(p.Payload) != payload || p.Broadcast != (name == "right") {
				t.Errorf("%s received %+v, %v, want %q", name, p, err, payload)
			}
		}
	}
	if err := arrived.SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if p, err := arrived.Receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %+v, %v", p, err)
	}
	if err := arrived.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := arrived.Receive()
		ended <- err
	}()
	if err := arrived.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
