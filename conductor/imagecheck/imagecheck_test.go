package imagecheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/test/kit"
)

// raw is the beginning of a disk with a boot sector.
func raw(size int) []byte {
	b := make([]byte, size)
	copy(b[510:], []byte{0x55, 0xaa})
	b[446], b[450] = 0x80, 0x83
	b[454], b[458] = 1, 8 // one partition at sector 1
	return b
}

// TestWhatAnImageIs: of files on a server of this host, which the guard is told to let through.
func TestWhatAnImageIs(t *testing.T) {
	kit.NeedPrograms(t, "qemu-img")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "disk.raw"), raw(1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("qemu-img", "convert", "-O", "qcow2", filepath.Join(dir, "disk.raw"),
		filepath.Join(dir, "disk.qcow2")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "page.html"), []byte("<!doctype html><p>secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer srv.Close()
	c := New(dial.New([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}).Transport(nil))
	for name, want := range map[string]string{"disk.raw": "raw true", "disk.qcow2": "qcow2 true",
		"page.html": " false"} {
		r, err := c.Check(t.Context(), srv.URL+"/"+name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := fmt.Sprint(r.Format, " ", r.Deployable); got != want || strings.Contains(r.Reason, "secret") {
			t.Errorf("%s is %s (%s), want %s", name, got, r.Reason, want)
		}
	}
	if _, err := c.Check(t.Context(), srv.URL+"/none"); err == nil || !strings.Contains(err.Error(), "404 Not Found") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestInsideAddressesAreNotReached: neither by an address, nor by a name, nor by a redirect, and a password in the
// address is in no error.
func TestInsideAddressesAreNotReached(t *testing.T) {
	asked := 0
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer inside.Close()
	c := New(dial.New(nil).Transport(nil))
	var refused *dial.RefusedError
	host := strings.TrimPrefix(inside.URL, "http://")
	_, port, _ := strings.Cut(host, ":")
	for _, address := range []string{inside.URL + "/x", "http://user:hidden@" + host + "/x",
		"http://localhost:" + port + "/x",
		"http://169.254.169.254/latest/meta-data", "http://[::1]:" + port + "/x", "http://0.0.0.0:" + port + "/"} {
		_, err := c.Check(t.Context(), address)
		if !errors.As(err, &refused) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, address := range []string{"", "disk.raw", "file:///etc/passwd", "oci://r.example/x:1",
		"gopher://127.0.0.1/", "http://", "http://u:hidden@%/"} {
		if _, err := c.Check(t.Context(), address); !errors.Is(err, ErrScheme) {
			t.Errorf("%q: %v", address, err)
		}
	}

	// A server that may be asked leads to one that may not: of the two listeners one is exempt.
	leads := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := map[string]string{"/": inside.URL, "/file": "file:///etc/passwd", "/loop": "/loop"}
		http.Redirect(w, r, to[r.URL.Path], http.StatusFound)
	}))
	defer leads.Close()
	at := netip.MustParseAddrPort(strings.TrimPrefix(leads.URL, "http://"))
	c = New(dial.New(nil, at).Transport(nil))
	if _, err := c.Check(t.Context(), leads.URL+"/"); !errors.As(err, &refused) {
		t.Errorf("a redirect: %v", err)
	}
	for _, path := range []string{"/file", "/loop"} {
		if _, err := c.Check(t.Context(), leads.URL+path); !errors.Is(err, errRedirect) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if asked != 0 {
		t.Errorf("the server inside was asked %d times", asked)
	}
}

// endless is a server that never stops to send what has to be read to the end.
type endless struct{ began chan struct{} }

func (e endless) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case e.began <- struct{}{}:
	default:
	}
	if r.URL.Path == "/silent" {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	head := raw(4096)
	if r.URL.Path == "/qcow2" { // its tables are said to be far behind
		head = append([]byte("QFI\xfb\x00\x00\x00\x03"), make([]byte, 4096)...)
		head[20+3], head[24+3] = 16, 1 // clusters of 64 KiB, 4 GiB
		head[36+3], head[40+3] = 8, 1  // level 1 at 4 GiB
		head[48+3], head[56+3] = 2, 1  // a cluster of reference counts at 8 GiB
		head[96+3], head[100+3] = 4, 104
	}
	return &http.Response{StatusCode: 200, ContentLength: -1, Header: http.Header{},
		Body: zeros{bytes.NewReader(head)}, Request: r}, nil
}

type zeros struct{ head *bytes.Reader }

func (z zeros) Read(p []byte) (int, error) {
	if n, _ := z.head.Read(p); n > 0 {
		return n, nil
	}
	clear(p)
	return len(p), nil
}
func (zeros) Close() error { return nil }

// TestLooksAreBounded: in bytes, in time, and in their number.
func TestLooksAreBounded(t *testing.T) {
	began := make(chan struct{}, limit.ImageChecks)
	c := New(endless{began})
	if r, err := c.Check(t.Context(), "http://images.example/qcow2"); !errors.Is(err, errTooMuch) {
		t.Errorf("tables at the end of an endless file: %+v, %v", r, err)
	}
	began = make(chan struct{}, limit.ImageChecks)
	c = New(endless{began})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, limit.ImageChecks)
	for range limit.ImageChecks {
		go func() {
			_, err := c.Check(ctx, "http://images.example/silent")
			done <- err
		}()
	}
	for range limit.ImageChecks {
		<-began
	}
	if _, err := c.Check(t.Context(), "http://images.example/disk"); !errors.Is(err, ErrBusy) {
		t.Errorf("one more than there are places: %v", err)
	}
	cancel()
	for range limit.ImageChecks {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a client that is gone: %v", err)
		}
	}
	short, end := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errTooLong)
	defer end()
	if _, err := c.Check(short, "http://images.example/silent"); !errors.Is(err, errTooLong) {
		t.Errorf("a silent server: %v", err)
	}
}
