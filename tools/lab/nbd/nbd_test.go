package nbd_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab/nbd"
)

func serve(t *testing.T, content []byte) (*nbd.Server, string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := nbd.Serve(ln, bytes.NewReader(content), t.Logf)
	t.Cleanup(func() { _ = s.Close() }) // some tests have closed it
	return s, socket
}

// TestQEMUReadsADisc: QEMU's own client sees the disc's bytes, and can't change them.
func TestQEMUReadsADisc(t *testing.T) {
	kit.NeedPrograms(t, "qemu-io", "qemu-img")
	want := make([]byte, 3<<20+2048)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(want) // never fails
	s, _ := serve(t, want)
	copied := filepath.Join(t.TempDir(), "copy")
	kit.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "raw", s.URI(), copied)
	if got, err := os.ReadFile(copied); err != nil || !bytes.Equal(got, want) {
		t.Errorf("qemu-img copies %d bytes, other than the disc's; %v", len(got), err)
	}
	for _, change := range []string{"write 0 512", "write -z 0 512", "discard 0 512"} {
		out, err := exec.CommandContext(t.Context(), "qemu-io", "-f", "raw", "-c", change, s.URI()).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "Permission denied") {
			t.Errorf("%s: %v %s", change, err, out)
		}
	}
}

// TestHostileClients: what a client sends that QEMU would not leaves the server alive, and gives it nothing.
func TestHostileClients(t *testing.T) {
	content := bytes.Repeat([]byte("disc"), 1024)
	s, socket := serve(t, content)
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	send := func(c net.Conn, v ...any) {
		for _, x := range v {
			_ = binary.Write(c, binary.BigEndian, x) // the server may have hung up
		}
	}
	const option, request = 0x49484156454f5054, 0x25609513
	ready := func() net.Conn {
		t.Helper()
		c := dial()
		send(c, uint32(3), uint64(option), uint32(1), uint32(0))
		head := make([]byte, 18+10)
		if _, err := io.ReadFull(c, head); err != nil {
			t.Fatal(err)
		}
		if size := binary.BigEndian.Uint64(head[18:]); size != 4096 {
			t.Fatalf("the disc has %d bytes", size)
		}
		return c
	}
	answer := func(c net.Conn) uint32 {
		t.Helper()
		head := make([]byte, 16)
		if _, err := io.ReadFull(c, head); err != nil {
			t.Fatal(err)
		}
		return binary.BigEndian.Uint32(head[4:])
	}
	hungUp := func(what string, c net.Conn) {
		t.Helper()
		if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: the server does not hang up: %v", what, err)
		}
	}
	for name, r := range map[string][]any{
		"beyond the end": {uint32(request), uint16(0), uint16(0), uint64(1), uint64(4096), uint32(512)},
		"across the end": {uint32(request), uint16(0), uint16(0), uint64(1), uint64(4000), uint32(512)},
		"far away":       {uint32(request), uint16(0), uint16(0), uint64(1), uint64(1<<63 + 5), uint32(512)},
		"trim":           {uint32(request), uint16(0), uint16(4), uint64(1), uint64(0), uint32(512)},
		"flush":          {uint32(request), uint16(1), uint16(3), uint64(1), uint64(0), uint32(0)},
		"unknown":        {uint32(request), uint16(0), uint16(99), uint64(1), uint64(0), uint32(0)},
	} {
		c := ready()
		send(c, r...)
		if fault := answer(c); fault == 0 {
			t.Errorf("%s: the server says that it is done", name)
		}
		send(c, uint32(request), uint16(0), uint16(0), uint64(2), uint64(512), uint32(4))
		got := make([]byte, 4)
		if fault := answer(c); fault != 0 {
			t.Errorf("a read after %s: %d", name, fault)
		} else if _, err := io.ReadFull(c, got); err != nil || string(got) != "disc" {
			t.Errorf("a read after %s: %q, %v", name, got, err)
		}
	}
	c := ready()
	send(c, uint32(request), uint16(0), uint16(0), uint64(1), uint64(0), uint32(1<<31))
	hungUp("a read of 2 GiB", c)
	c = dial()
	send(c, uint32(3), uint64(option), uint32(6), uint32(1<<31))
	hungUp("an option of 2 GiB", c)
	c = dial()
	send(c, uint32(3), uint64(5))
	send(c, uint64(0))
	hungUp("no option", c)
	c = dial()
	send(c, uint32(3))
	go func() {
		for range 1000 {
			send(c, uint64(option), uint32(77), uint32(0))
		}
	}()
	hungUp("options without end", c)

	waits := dial()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	hungUp("a server that is closed", waits)
}
