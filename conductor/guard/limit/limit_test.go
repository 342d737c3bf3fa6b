package limit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"testing/synctest"
)

func TestClientBehindProxies(t *testing.T) {
	c, err := ParseClients([]string{"192.0.2.1", "198.51.100.0/24"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ peer, forwarded, want string }{
		{"203.0.113.9:1", "", "203.0.113.9"},
		{"203.0.113.9:1", "10.0.0.1", "203.0.113.9"}, // no proxy: its word does not count
		{"192.0.2.1:1", "10.0.0.1", "10.0.0.1"},
		{"192.0.2.1:1", "1.1.1.1, 10.0.0.1, 198.51.100.7", "10.0.0.1"},
		{"192.0.2.1:1", "", "192.0.2.1"},
		{"192.0.2.1:1", "nonsense", "192.0.2.1"},
		{"[::ffff:192.0.2.1]:1", "2001:db8::1", "2001:db8::1"},
		{"@", "10.0.0.1", "invalid IP"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = tt.peer
		if tt.forwarded != "" {
			r.Header.Set("X-Forwarded-For", tt.forwarded)
		}
		if got := c.Address(r).String(); got != tt.want {
			t.Errorf("Address(%s, %q) = %s, want %s", tt.peer, tt.forwarded, got, tt.want)
		}
	}
	if _, err := ParseClients([]string{"proxy.example"}); err == nil {
		t.Error("a name is taken for an address")
	}
}

func TestConnectionsAreCounted(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	proxies, err := ParseClients([]string{"127.0.0.9"})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	l := Listen(inner, "api", Connections{Total: 6, PerAddress: 2}, proxies, slog.New(slog.NewTextHandler(&log, nil)))
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	dial := func(from string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute}
		c, err := d.Dial("tcp", inner.Addr().String())
		if errors.Is(err, syscall.ECONNRESET) {
			return nil // refused before it was told that it is there
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	served := func(c net.Conn) bool {
		t.Helper()
		if c == nil {
			return false
		}
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return false
		}
		_, err := c.Read(make([]byte, 1))
		return err == nil
	}
	var open []net.Conn
	for i, tt := range []struct {
		from string
		want bool
	}{
		{"127.0.0.1", true}, {"127.0.0.1", true}, {"127.0.0.1", false}, {"127.0.0.2", true}, {"127.0.0.9", true},
		{"127.0.0.9", true}, {"127.0.0.9", true}, {"127.0.0.3", false},
	} {
		c := dial(tt.from)
		if got := served(c); got != tt.want {
			t.Errorf("connection %d, from %s: served %v, want %v", i, tt.from, got, tt.want)
		}
		open = append(open, c)
	}
	open[0].Close()
	kit.Eventually(t, time.Minute, "a place that is free again", func() bool { return served(dial("127.0.0.1")) })
	if n := strings.Count(log.String(), "too many are open"); n != 1 {
		t.Errorf("the log has %d lines of what was refused: %s", n, log.String())
	}
}

func TestFilesGoThroughWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	want := bytes.Repeat([]byte("0123456789abcdef"), (3*maxWrite+100)/16)
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bytes" {
			w.Write(want)
			return
		}
		http.ServeFile(w, r, path)
	}), nil)
	go srv.Serve(Listen(inner, "x", Connections{Total: 9, PerAddress: 9}, nil, nil))
	t.Cleanup(func() { srv.Close() })
	for _, tt := range []struct {
		path, byteRange string
		want            []byte
	}{{"/", "", want}, {"/bytes", "", want}, {"/", fmt.Sprintf("bytes=5-%d", 2*maxWrite+4), want[5 : 2*maxWrite+5]},
		{"/", "bytes=7-9", want[7:10]}} {
		req, err := http.NewRequest("GET", "http://"+inner.Addr().String()+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tt.byteRange != "" {
			req.Header.Set("Range", tt.byteRange)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !bytes.Equal(got, tt.want) {
			t.Errorf("%s %s: %d bytes, %v, want %d", tt.path, tt.byteRange, len(got), err, len(tt.want))
		}
	}
}

func TestBudgetKeepsAPartForThoseWhoAreKnown(t *testing.T) {
	b := NewBudget(100<<10, 70<<10)
	open := func(size int, known bool) (*Body, error) {
		r := httptest.NewRequest("POST", "/", strings.NewReader(strings.Repeat("x", size)))
		body := b.Open(httptest.NewRecorder(), r, 1<<20, known)
		_, err := io.ReadAll(body)
		return body, err
	}
	first, err := open(30<<10, false)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := open(1<<10, false); !errors.Is(err, ErrBusy) {
		t.Errorf("a stranger's body beyond the strangers' part: %v", err)
	} else {
		body.Close()
	}
	known, err := open(70<<10, true)
	if err != nil {
		t.Errorf("an authenticated caller beside strangers: %v", err)
	}
	if body, err := open(1, true); !errors.Is(err, ErrBusy) {
		t.Errorf("beyond the whole budget: %v", err)
	} else {
		body.Close()
	}
	first.Close()
	known.Close()
	if b.used != [callers]int64{} {
		t.Errorf("%v bytes are taken without a user", b.used)
	}
	var tooLarge *TooLargeError
	for _, known := range []bool{false, true} {
		body, err := open(2<<20, known)
		if !errors.As(err, &tooLarge) && !errors.Is(err, ErrBusy) {
			t.Errorf("2 MiB, known %v: %v", known, err)
		}
		body.Close()
	}
	body := (*Budget)(nil).Open(httptest.NewRecorder(),
		httptest.NewRequest("POST", "/", strings.NewReader(strings.Repeat("x", AnonymousBody+1))), 1<<20, false)
	if _, err := io.ReadAll(body); !errors.As(err, &tooLarge) || tooLarge.Limit != AnonymousBody {
		t.Errorf("one byte more than a stranger may send: %v", err)
	}
}

// TestMeteredConnection: what has arrived of a message counts until it is freed, and what is no data does not; half a
// message counts until its connection is closed. What agents hold is not people's.
func TestMeteredConnection(t *testing.T) {
	const most = leastAgents
	b := NewBudget(100<<20, 99<<20)
	frame := func(kind byte, n int) []byte {
		return append([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, 0, 0, 0, 0, 1}, make([]byte, n)...)
	}
	open := func() (*Metered, net.Conn) {
		server, client := net.Pipe()
		t.Cleanup(func() { client.Close() })
		m := b.Meter(server, true)
		go io.WriteString(client, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		if _, err := io.ReadFull(m, make([]byte, prefaceSize)); err != nil {
			t.Fatal(err)
		}
		return m, client
	}
	// send writes p in odd pieces, and reads what arrives.
	send := func(m *Metered, c net.Conn, p []byte) error {
		go func() {
			for len(p) > 0 {
				n, err := c.Write(p[:min(len(p), 7001)])
				if p = p[n:]; err != nil {
					return
				}
			}
		}()
		_, err := io.ReadFull(m, make([]byte, len(p)))
		return err
	}
	m, c := open()
	for range 3 {
		if err := errors.Join(send(m, c, frame(6, 8)), send(m, c, frame(0, 10<<20)),
			send(m, c, frame(4, 6))); err != nil {
			t.Fatal(err)
		}
	}
	if n := m.Message(); n != 30<<20 {
		t.Errorf("a message of 30 MiB counts as %d bytes", n)
	}
	half, hc := open()
	if err := send(half, hc, frame(0, 2<<20)); err != nil {
		t.Errorf("up to the limit: %v", err)
	}
	other, oc := open()
	if err := send(other, oc, frame(0, 1)); !errors.Is(err, ErrBusy) {
		t.Errorf("beyond %d bytes: %v", most, err)
	}
	if !b.take(99<<20-most, known) {
		t.Error("agents keep people out")
	}
	half.Close()
	if err := send(m, c, frame(0, 2<<20)); err != nil {
		t.Errorf("after half a message has gone: %v", err)
	}
	m.Free(30 << 20)
	m.Close()
	other.Close()
	if b.used != [callers]int64{known: 99<<20 - most} {
		t.Errorf("in the end %v bytes are used", b.used)
	}
}

// A message that somebody waits for has to arrive; what waits for the conductor has all the time it takes, and so has a
// connection without messages.
func TestHalfSentMessages(t *testing.T) {
	for _, c := range []struct {
		name   string
		wanted bool
		sent   int // of a message of 1 MiB
		every  time.Duration
		ends   bool
	}{
		{"half of it, and no more", true, 100 << 10, 0, true},
		{"a little now and then", true, 1 << 20, 2 * time.Second, true},
		{"slow enough", true, 1 << 20, time.Second / 2, false},
		{"not expected", false, 100 << 10, 0, false},
		{"nothing", true, 0, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, client := net.Pipe()
				m := NewBudget(100<<20, 50<<20).Meter(server, true)
				ended := make(chan error, 1)
				go func() {
					_, err := io.Copy(io.Discard, m)
					ended <- err
				}()
				if c.wanted {
					m.Expect()
				}
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					// an error ends the test
					io.WriteString(client, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+"\x10\x00\x00\x00\x00\x00\x00\x00\x01")
					for range c.sent / (16 << 10) {
						time.Sleep(c.every)
						if _, err := client.Write(make([]byte, 16<<10)); err != nil {
							return
						}
					}
					if c.sent == 1<<20 {
						m.Free(m.Message())
					}
				}()
				select {
				case err := <-ended:
					if !c.ends || !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("the connection ended: %v", err)
					}
				case <-time.After(time.Hour):
					if c.ends {
						t.Error("the connection is open after an hour")
					}
				}
				m.Close()
				client.Close()
				<-sent
			})
		})
	}
}
