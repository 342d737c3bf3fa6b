package netboot

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMissingFilesAreReported: when network boot lacks the file descriptors to open a file, it reports that, and does
// not take the file for absent.
func TestMissingFilesAreReported(t *testing.T) {
	heard := make(chan error, 100)
	r := newRig(t, Off, func(c *Config) { c.Short = func(err error) { heard <- err } })
	reports := func(by string) {
		t.Helper()
		for {
			select {
			case err := <-heard:
				if errors.Is(err, unix.EMFILE) {
					return
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s: nothing was reported", by)
			}
		}
	}

	w := httptest.NewRecorder()
	if !r.s.absent(w, httptest.NewRequest("GET", "/images/x", nil),
		&fs.PathError{Op: "open", Path: "x", Err: unix.EMFILE}) || w.Code != 503 ||
		w.Header().Get("Retry-After") == "" {
		t.Errorf("a file that can't be opened now = %d, %v", w.Code, w.Header())
	}
	reports("a file")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	server, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- r.s.serveTFTP(ctx, server) }()
	machine, err := net.Dial("udp4", server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	caller, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()

	var was unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &was, nil); err != nil {
			t.Error(err)
		}
	}
	defer restore()
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := (noted{l, r.s.short}).Accept(); !errors.Is(err, unix.EMFILE) {
		t.Errorf("accept = %v", err)
	}
	reports("a connection")
	if _, err := machine.Write([]byte("\x00\x01undionly.kpxe\x00octet\x00")); err != nil {
		t.Error(err)
	}
	reports("a TFTP transfer")
	restore()
	stop()
	server.Close()
	<-ended
}
