package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const mib = 1 << 20

// network is hosts that talk over pipes, so that all times are those of the test's bubble.
type network struct {
	t     *testing.T
	mu    sync.Mutex
	hosts map[string]*host
	dials []string
	log   bytes.Buffer
}

// host is a web server. perFlow and shared are bytes a second; 0: no limit.
type host struct {
	handler http.Handler
	perFlow int
	shared  int
	down    bool
	slower  atomic.Int64 // perFlow, from when it is set

	busy  chan struct{} // not a Mutex: time would stand still while one is waited for
	conns chan net.Conn
}

func newNetwork(t *testing.T) *network {
	return &network{t: t, hosts: map[string]*host{}}
}

// add starts a host. It ends with the test.
func (n *network) add(name string, h *host) *host {
	h.conns, h.busy = make(chan net.Conn), make(chan struct{}, 1)
	n.hosts[name] = h
	var (
		working sync.WaitGroup
		mu      sync.Mutex // held briefly: additions come before the wait
		ended   bool
	)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if ended {
			mu.Unlock()
			return
		}
		working.Add(1)
		mu.Unlock()
		defer working.Done()
		h.handler.ServeHTTP(w, r)
	})
	srv := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
	go srv.Serve(h)
	n.t.Cleanup(func() {
		srv.Close()
		mu.Lock()
		ended = true
		mu.Unlock()
		working.Wait()
	})
	return h
}

// Accept, Close and Addr make the host a net.Listener.
func (h *host) Accept() (net.Conn, error) {
	c, ok := <-h.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (h *host) Close() error {
	close(h.conns)
	return nil
}

func (h *host) Addr() net.Addr { return &net.TCPAddr{} }

func (n *network) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	name, _, _ := strings.Cut(addr, ":")
	n.mu.Lock()
	h := n.hosts[name]
	n.dials = append(n.dials, name)
	n.mu.Unlock()
	switch {
	case h == nil:
		return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}}
	case h.down:
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	client, server := net.Pipe()
	select {
	case h.conns <- &paced{Conn: server, h: h}:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// paced is the server's side of a connection with a limited rate.
type paced struct {
	net.Conn
	h *host
}

func (p *paced) Write(b []byte) (int, error) {
	perFlow := p.h.perFlow
	if v := p.h.slower.Load(); v > 0 {
		perFlow = int(v)
	}
	if perFlow == 0 && p.h.shared == 0 {
		return p.Conn.Write(b)
	}
	sent := 0
	for len(b) > 0 {
		part := b[:min(len(b), 32<<10)]
		if perFlow > 0 {
			time.Sleep(time.Duration(len(part)) * time.Second / time.Duration(perFlow))
		}
		if p.h.shared > 0 {
			p.h.busy <- struct{}{}
			time.Sleep(time.Duration(len(part)) * time.Second / time.Duration(p.h.shared))
			<-p.h.busy
		}
		n, err := p.Conn.Write(part)
		sent += n
		if err != nil {
			return sent, err
		}
		b = b[len(part):]
	}
	return sent, nil
}

// open opens a file on the network.
func (n *network) open(digest bool, urls ...string) *File {
	n.t.Helper()
	f, err := Open(Source{URLs: urls, Digest: digest}, DefaultPatience, slog.New(slog.NewTextHandler(&n.log, nil)))
	if err != nil {
		n.t.Fatal(err)
	}
	n.use(f.o)
	return f
}

func (n *network) use(o *Origin) {
	o.transport.DialContext = n.dial
	o.transport.Proxy = nil
	n.t.Cleanup(o.Close)
}

func (n *network) origin(urls ...string) *Origin {
	n.t.Helper()
	o, err := NewOrigin(urls, "", DefaultPatience, slog.New(slog.NewTextHandler(&n.log, nil)))
	if err != nil {
		n.t.Fatal(err)
	}
	n.use(o)
	return o
}

// readAll reads a file to its end, restarting as often as requested.
func readAll(t *testing.T, f *File) ([]byte, error) {
	t.Helper()
	defer f.Close()
	var got []byte
	for {
		b, err := f.Next(t.Context())
		switch {
		case errors.Is(err, ErrRestart):
			f.Rewind()
			got = nil
			continue
		case err == io.EOF:
			return got, nil
		case err != nil:
			return got, err
		}
		got = append(got, b...)
		f.Free(b)
	}
}

func (n *network) mustRead(f *File, want []byte) {
	n.t.Helper()
	got, err := readAll(n.t, f)
	if err != nil {
		n.t.Fatalf("%v\n%s", err, &n.log)
	}
	same(n.t, got, want)
}

func same(t *testing.T, got, want []byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d bytes, want %d", len(got), len(want))
	}
	if bytes.Equal(got, want) {
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("byte %d is %x, want %x", i, got[i], want[i])
		}
	}
}

// random makes a file.
func random(size int, seed byte) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// static serves a file correctly, except for the faults that are set.
type static struct {
	file     []byte
	etag     string
	modified string
	noRanges bool
	cut      func(from int) int // up to where an answer that begins at from is sent; then the connection breaks
	before   func(w http.ResponseWriter, r *http.Request) (done bool)

	mu       sync.Mutex
	requests []string // their Range
	sent     int
}

func (s *static) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Header.Get("Range"))
	s.mu.Unlock()
	if s.before != nil && s.before(w, r) {
		return
	}
	if s.etag != "" {
		w.Header().Set("ETag", s.etag)
	}
	if s.modified != "" {
		w.Header().Set("Last-Modified", s.modified)
	}
	from, to, part := 0, len(s.file), false
	if !s.noRanges {
		w.Header().Set("Accept-Ranges", "bytes")
		from, to, part = s.span(r)
	}
	if from >= to && part {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", len(s.file)))
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		return
	}
	if part {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, len(s.file)))
	}
	w.Header().Set("Content-Length", strconv.Itoa(to-from))
	if part {
		w.WriteHeader(http.StatusPartialContent)
	}
	s.send(w, r, from, to)
}

// span returns the range of a request.
func (s *static) span(r *http.Request) (from, to int, part bool) {
	from, to = 0, len(s.file)
	if cond := r.Header.Get("If-Range"); cond != "" && cond != s.etag && cond != s.modified {
		return from, to, false
	}
	rng, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes=")
	if !ok {
		return from, to, false
	}
	a, b, _ := strings.Cut(rng, "-")
	from, _ = strconv.Atoi(a)
	if b != "" {
		last, _ := strconv.Atoi(b)
		to = min(to, last+1)
	}
	return from, to, true
}

func (s *static) send(w http.ResponseWriter, r *http.Request, from, to int) {
	stop := to
	if s.cut != nil {
		stop = min(stop, s.cut(from))
	}
	for from < stop {
		n := min(32<<10, stop-from)
		if _, err := w.Write(s.file[from : from+n]); err != nil {
			return
		}
		s.mu.Lock()
		s.sent += n
		s.mu.Unlock()
		from += n
	}
	if stop < to {
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

func (s *static) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func contextWithCause(t *testing.T) (context.Context, context.CancelCauseFunc) {
	return context.WithCancelCause(t.Context())
}
