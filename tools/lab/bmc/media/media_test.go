package media_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/bmc/media"
)

// image is bytes that are nowhere the same.
func image(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b) // never fails
	return b
}

// server serves content at /a.iso with ranges. fail, if it answers true, takes a request over.
func server(t *testing.T, content []byte, fail func(http.ResponseWriter, *http.Request) bool) *httptest.Server {
	t.Helper()
	at := time.Unix(1e9, 0)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fail != nil && fail(w, r) {
			return
		}
		if r.Header.Get("Range") == "" {
			t.Errorf("a request without a range")
		}
		http.ServeContent(w, r, "a.iso", at, bytes.NewReader(content))
	}))
	t.Cleanup(s.Close)
	return s
}

func open(t *testing.T, url string, o media.Options) *media.File {
	t.Helper()
	f, err := media.Open(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestBytesAreTheImage reads in all ways that io.ReaderAt allows.
func TestBytesAreTheImage(t *testing.T) {
	for _, size := range []int{1, 2047, 2048, 128 << 10, 3<<20 + 777} {
		want := image(size)
		s := server(t, want, nil)
		f := open(t, s.URL+"/a.iso", media.Options{})
		whole := append(want[:size:size], make([]byte, (2048-size%2048)%2048)...)
		if f.Size() != int64(len(whole)) {
			t.Fatalf("a file of %d bytes is a disc of %d", size, f.Size())
		}
		if err := iotest.TestReader(io.NewSectionReader(f, 0, f.Size()), whole); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// TestReadsAhead: a loader that reads sector by sector makes few requests, and what it reads twice is fetched once.
func TestReadsAhead(t *testing.T) {
	const size = 8 << 20
	s := server(t, image(size), nil)
	f := open(t, s.URL+"/a.iso", media.Options{})
	p := make([]byte, 512)
	for range 2 {
		for off := int64(0); off < size; off += 512 {
			if _, err := f.ReadAt(p, off); err != nil {
				t.Fatal(err)
			}
		}
	}
	if st := f.Stats(); st.Requests > 12 || st.Fetched != size || st.Read != 2*size {
		t.Errorf("two readings of %d bytes: %+v", size, st)
	}
}

// TestCacheIsBounded: an image that is larger than the memory for it is fetched again, and read right.
func TestCacheIsBounded(t *testing.T) {
	want := image(20 << 20)
	s := server(t, want, nil)
	f := open(t, s.URL+"/a.iso", media.Options{})
	for range 2 {
		got, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read %d bytes, %v", len(got), err)
		}
	}
	if st := f.Stats(); st.Fetched <= int64(len(want)) {
		t.Errorf("%d bytes fetched: all of them are in memory", st.Fetched)
	}
}

// TestServerComesBack: a server that is away for a while costs time only.
func TestServerComesBack(t *testing.T) {
	var asked atomic.Int32
	want := image(1 << 20)
	s := server(t, want, func(w http.ResponseWriter, r *http.Request) bool {
		switch asked.Add(1) {
		case 2:
			panic(http.ErrAbortHandler)
		case 3:
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		case 4: // ends in the middle
			w.Header().Set("Content-Range", strings.Replace(r.Header.Get("Range"), "=", " ", 1)+"/1048576")
			w.Header().Set("Last-Modified", time.Unix(1e9, 0).UTC().Format(http.TimeFormat))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(want[:100])
			return true
		}
		return false
	})
	f := open(t, s.URL+"/a.iso", media.Options{})
	got, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
	if err != nil || !bytes.Equal(got, want) || asked.Load() < 5 {
		t.Errorf("read %d bytes after %d requests, %v", len(got), asked.Load(), err)
	}
}

// TestServerStaysAway: a read fails after the time that it has, not later, and the next one is tried again.
func TestServerStaysAway(t *testing.T) {
	var away atomic.Bool
	s := server(t, image(1<<20), func(w http.ResponseWriter, r *http.Request) bool {
		if away.Load() {
			panic(http.ErrAbortHandler)
		}
		return false
	})
	f := open(t, s.URL+"/a.iso", media.Options{Patience: 400 * time.Millisecond})
	away.Store(true)
	begun := time.Now()
	p := make([]byte, 2048)
	if _, err := f.ReadAt(p, 0); err != nil {
		t.Errorf("what is in memory: %v", err)
	}
	if _, err := f.ReadAt(p, 512<<10); err == nil || time.Since(begun) < 300*time.Millisecond ||
		time.Since(begun) > 5*time.Second {
		t.Errorf("a read without server: %v after %s", err, time.Since(begun))
	}
	away.Store(false)
	if _, err := f.ReadAt(p, 512<<10); err != nil {
		t.Errorf("after the server came back: %v", err)
	}
}

// TestClosedMediumFails: a read that waits for the server ends when the medium is taken out.
func TestClosedMediumFails(t *testing.T) {
	var hang atomic.Bool
	waits := make(chan struct{}, 1)
	s := server(t, image(1<<20), func(_ http.ResponseWriter, r *http.Request) bool {
		if hang.Load() {
			waits <- struct{}{}
			<-r.Context().Done()
		}
		return hang.Load()
	})
	f := open(t, s.URL+"/a.iso", media.Options{})
	hang.Store(true)
	failed := make(chan error)
	go func() {
		_, err := f.ReadAt(make([]byte, 2048), 512<<10)
		failed <- err
	}()
	<-waits
	f.Close()
	select {
	case err := <-failed:
		if err == nil {
			t.Error("read without an answer")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("a read goes on after the medium was taken out")
	}
	if _, err := f.ReadAt(make([]byte, 2048), 0); err == nil {
		t.Error("the medium is out and can be read")
	}
}

// TestChangedImage: a server that has another image at the same address must not give a mixture.
func TestChangedImage(t *testing.T) {
	var tag atomic.Pointer[string]
	one, two := `"1"`, `"2"`
	tag.Store(&one)
	s := server(t, image(1<<20), func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("ETag", *tag.Load())
		return false
	})
	f := open(t, s.URL+"/a.iso", media.Options{})
	tag.Store(&two)
	begun := time.Now()
	if _, err := f.ReadAt(make([]byte, 2048), 512<<10); err == nil || time.Since(begun) > 10*time.Second {
		t.Errorf("a changed image: %v after %s", err, time.Since(begun))
	}
}

// TestHostileServers: answers that are no ranges of a file are declined, and never more is read than was asked for.
func TestHostileServers(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		header string
		want   error
	}{
		"whole file":   {200, "", media.ErrFormat},
		"no range":     {206, "", media.ErrFormat},
		"other range":  {206, "bytes 5-131076/1000000", media.ErrFormat},
		"larger range": {206, "bytes 0-999999/1000000", media.ErrFormat},
		"short range":  {206, "bytes 0-5/1000000", media.ErrFormat},
		"endless file": {206, "bytes 0-131071/9223372036854775807", media.ErrFormat},
		"empty file":   {206, "bytes 0--1/0", media.ErrFormat},
		"unknown size": {206, "bytes 0-131071/*", media.ErrFormat},
		"no such file": {404, "", media.ErrMissing},
		"denied":       {403, "", media.ErrDenied},
	} {
		t.Run(name, func(t *testing.T) {
			s := server(t, nil, func(w http.ResponseWriter, _ *http.Request) bool {
				if c.header != "" {
					w.Header().Set("Content-Range", c.header)
				}
				w.WriteHeader(c.status)
				for junk := make([]byte, 64<<10); ; {
					if _, err := w.Write(junk); err != nil {
						return true
					}
				}
			})
			if _, err := media.Open(t.Context(), s.URL+"/a.iso", media.Options{}); !errors.Is(err, c.want) {
				t.Errorf("Open = %v, want %v", err, c.want)
			}
		})
	}
	for _, address := range []string{"", "a.iso", "ftp://h/a.iso", "nfs://h/a.iso", "http:///a.iso",
		"https://u:p w@h/%zz"} {
		_, err := media.Open(t.Context(), address, media.Options{})
		if !errors.Is(err, media.ErrAddress) {
			t.Errorf("Open(%q) = %v, want %v", address, err, media.ErrAddress)
		}
	}
}

// TestCertificate: with roots a server that none of them signed is refused, before anything is asked of it.
func TestCertificate(t *testing.T) {
	var asked atomic.Int32
	want := image(4096)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path == "/away.iso" {
			http.Redirect(w, r, "http://"+r.Host+"/a.iso", http.StatusFound)
			return
		}
		http.ServeContent(w, r, "a.iso", time.Unix(1e9, 0), bytes.NewReader(want))
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	none, right := x509.NewCertPool(), x509.NewCertPool()
	right.AddCert(s.Certificate())
	if _, err := media.Open(t.Context(), s.URL+"/a.iso", media.Options{Roots: none}); err == nil || asked.Load() != 0 {
		t.Errorf("a server that no root has signed: %v, %d requests", err, asked.Load())
	}
	for _, roots := range []*x509.CertPool{nil, right} {
		f := open(t, s.URL+"/a.iso", media.Options{Roots: roots})
		got := make([]byte, 4096)
		if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("read: %v", err)
		}
	}
	if _, err := media.Open(t.Context(), s.URL+"/away.iso", media.Options{Roots: right}); !errors.Is(err,
		media.ErrFormat) {
		t.Errorf("a way out of TLS: %v", err)
	}
}

// TestCredentials are sent, and are in no error.
func TestCredentials(t *testing.T) {
	s := server(t, image(4096), func(w http.ResponseWriter, r *http.Request) bool {
		user, password, _ := r.BasicAuth()
		if user == "u" && password == "secret-canary" {
			return false
		}
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	open(t, s.URL+"/a.iso", media.Options{User: "u", Password: "secret-canary"})
	if _, err := media.Open(t.Context(), s.URL+"/a.iso", media.Options{}); !errors.Is(err, media.ErrDenied) {
		t.Errorf("without credentials: %v", err)
	}
	s.Close()
	_, err := media.Open(t.Context(), strings.Replace(s.URL, "//", "//u:secret-canary@", 1)+"/a.iso", media.Options{})
	if err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("a server that is away: %v", err)
	}
}

// TestOpenEndsWithItsContext: who inserts may give up.
func TestOpenEndsWithItsContext(t *testing.T) {
	s := server(t, nil, func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := media.Open(ctx, s.URL+"/a.iso", media.Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open = %v", err)
	}
}
