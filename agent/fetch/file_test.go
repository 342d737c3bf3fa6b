package fetch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// TestConnections: how many connections there are, and what that gives, on links of several kinds.
func TestConnections(t *testing.T) {
	const size = 24 * mib
	file := random(size, 1)
	const rate = mib
	for name, c := range map[string]struct {
		perFlow, shared int
		mirrors         int
		noRanges        bool
		etag            string
		digest          bool
		within          float64 // of the time that one connection alone takes
		atLeast, atMost int     // connections made
	}{
		"each flow has its limit":        {rate, 0, 1, false, `"v"`, false, 0.55, 4, 8},
		"the link is the limit":          {0, rate, 1, false, `"v"`, false, 1.06, 1, 6},
		"two mirrors with a limit each":  {0, rate, 2, false, `"v"`, true, 0.72, 2, 12},
		"no digest: from one mirror":     {rate, 0, 2, false, `"v"`, false, 0.55, 4, 8},
		"no ranges: one connection":      {rate, 0, 1, true, `"v"`, true, 1.01, 1, 1},
		"no ETag, no digest: one":        {rate, 0, 1, false, "", false, 1.01, 1, 1},
		"no ETag, but a digest: several": {rate, 0, 1, false, "", true, 0.55, 4, 8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				var urls []string
				for i := range c.mirrors {
					n.add(fmt.Sprintf("h%d", i),
						&host{handler: &static{file: file, etag: c.etag, noRanges: c.noRanges}, perFlow: c.perFlow,
							shared: c.shared})
					urls = append(urls, fmt.Sprintf("http://h%d/image", i))
				}
				f := n.open(c.digest, urls...)
				f.Widen(4) // images whose decoder has a large window get less, and do with two connections
				began := time.Now()
				n.mustRead(f, file)
				took, alone := time.Since(began), time.Duration(size/rate)*time.Second
				if ratio := took.Seconds() / alone.Seconds(); ratio > c.within {
					t.Errorf("took %s, %.2f of the %s of one connection, want at most %.2f\n%s", took, ratio, alone,
						c.within, &n.log)
				}
				if len(n.dials) < c.atLeast || len(n.dials) > c.atMost {
					t.Errorf("%d connections: %v", len(n.dials), n.dials)
				}
				if got := len(f.a.pieces) + len(f.a.spare); got > window+1 {
					t.Errorf("%d pieces of memory", got)
				}
			})
		})
	}
}

// TestOneConnectionIsEnough: a slow reader gets no more connections.
func TestOneConnectionIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.add("a", &host{handler: &static{file: random(64*mib, 1), etag: `"v"`}, perFlow: 20 * mib})
		f := n.open(true, "http://a/image")
		defer f.Close()
		for {
			b, err := f.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(200 * time.Millisecond) // 5 MiB/s
			f.Free(b)
		}
		if len(n.dials) != 1 {
			t.Errorf("%d connections", len(n.dials))
		}
	})
}

// TestClock holds that the clock runs while a slow link is waited for, and stands while the reader is slow.
func TestClock(t *testing.T) {
	for _, c := range []struct {
		rate    int // of the link
		read    time.Duration
		atLeast time.Duration // on the clock; the file is 64 MiB
		atMost  time.Duration
	}{
		{4 * mib, 0, 15 * time.Second, 17 * time.Second},
		{64 * mib, time.Second / 4, 900 * time.Millisecond, 3 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t)
			n.add("a", &host{handler: &static{file: random(64*mib, 1), etag: `"v"`}, shared: c.rate})
			f := n.open(true, "http://a/image")
			defer f.Close()
			f.Widen(12)
			for {
				b, err := f.Next(t.Context())
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(c.read)
				f.Free(b)
			}
			if ran := f.Clock.Total(); ran < c.atLeast || ran > c.atMost {
				t.Errorf("link of %d bytes/s, %s for a piece: the clock ran %s", c.rate, c.read, ran)
			}
		})
	}
}

// TestConnectionLimit: a server that refuses a second connection loses nothing by it.
func TestConnectionLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		file := random(64*mib, 1)
		s := &static{file: file, etag: `"v"`}
		var mu sync.Mutex
		busy := 0
		n.add("a", &host{perFlow: 4 * mib, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			busy++
			over := busy > 1
			mu.Unlock()
			defer func() {
				mu.Lock()
				busy--
				mu.Unlock()
			}()
			if over {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			s.ServeHTTP(w, r)
		})})
		f := n.open(true, "http://a/image")
		began := time.Now()
		n.mustRead(f, file)
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("took %s\n%s", took, &n.log)
		}
	})
}

// TestOneMirrorGetsSlow: the others do not wait for it for ever.
func TestOneMirrorGetsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		file := random(128*mib, 1)
		a := n.add("a", &host{handler: &static{file: file}, perFlow: 2 * mib})
		n.add("b", &host{handler: &static{file: file}, perFlow: 2 * mib})
		f := n.open(true, "http://a/image", "http://b/image")
		time.AfterFunc(10*time.Second, func() { a.slower.Store(20 << 10) }) // in the middle: by 100
		began := time.Now()
		n.mustRead(f, file)
		if took := time.Since(began); took > 75*time.Second { // one connection to b alone: 64 s
			t.Errorf("took %s\n%s", took, &n.log)
		}
	})
}

func TestAt(t *testing.T) {
	file := random(5*mib+11, 1)
	for name, c := range map[string]struct {
		noRanges bool
		etag     string
		requests int
	}{
		"ranges":            {false, `"v"`, 0},
		"ranges, no ETag":   {false, "", 0},
		"no ranges":         {true, `"v"`, 5}, // the stream, the one that shows it, and three from the beginning
		"no ranges, no tag": {true, "", 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				s := &static{file: file, etag: c.etag, noRanges: c.noRanges}
				n.add("a", &host{handler: s})
				f := n.open(false, "http://a/image")
				if err := f.Connect(t.Context()); err != nil {
					t.Fatal(err)
				}
				at := f.At(t.Context())
				for _, off := range []int{0, 70, 2 * mib, 4*mib + 5, 3 * mib} {
					got := make([]byte, 100<<10)
					if m, err := at.ReadAt(got, int64(off)); err != nil || !bytes.Equal(got, file[off:off+m]) {
						t.Fatalf("at %d: %d, %v", off, m, err)
					}
				}
				got := make([]byte, 100)
				if m, err := at.ReadAt(got, int64(len(file)-10)); m != 10 || err != io.EOF ||
					!bytes.Equal(got[:10], file[len(file)-10:]) {
					t.Errorf("at the end: %d, %v", m, err)
				}
				if m, err := at.ReadAt(got, int64(len(file)+10)); m != 0 || err != io.EOF {
					t.Errorf("behind the end: %d, %v", m, err)
				}
				at.(io.Closer).Close()
				if got := s.asked(); c.requests > 0 && len(got) > c.requests {
					t.Errorf("requests: %q", got)
				}
				r, err := f.Again(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				all, err := io.ReadAll(r)
				if err != nil {
					t.Fatal(err)
				}
				same(t, all, file)
				r.Close()
				n.mustRead(f, file) // the stream is not disturbed
				if c.noRanges {
					back := f.At(t.Context())
					var err error
					for i := 20; i > 0 && err == nil; i-- {
						_, err = back.ReadAt(got, int64(i)*1000)
					}
					if err == nil || !strings.Contains(err.Error(), "range requests") {
						t.Errorf("backward again and again: %v", err)
					}
					back.(io.Closer).Close()
				}
			})
		})
	}
}

// TestAtOfAChangedFile: tables of another version are not given.
func TestAtOfAChangedFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		s := &static{file: random(4*mib, 1), etag: `"1"`}
		n.add("a", &host{handler: s})
		f := n.open(true, "http://a/image")
		defer f.Close()
		if _, err := f.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.etag = `"2"`
		if _, err := f.At(t.Context()).ReadAt(make([]byte, 100), mib); !errors.Is(err, ErrRestart) {
			t.Errorf("%v", err)
		}
	})
}

func TestGet(t *testing.T) {
	objects := map[string][]byte{}
	for i := range 200 {
		objects[fmt.Sprintf("/x/objects/%d", i)] = random(1000+i*500, byte(i))
	}
	serve := func(spoil func(path string, b []byte) []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			b, ok := objects[r.URL.Path]
			if ok {
				b = spoil(r.URL.Path, b)
			}
			if b == nil || r.URL.RawQuery != "sig=1" {
				http.NotFound(w, r)
				return
			}
			(&static{file: b, cut: func(from int) int {
				if rand.IntN(10) == 0 {
					return from + (len(b)-from)/2
				}
				return len(b)
			}}).ServeHTTP(w, r)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.add("good", &host{handler: serve(func(_ string, b []byte) []byte { return b }), perFlow: 4 * mib})
		n.add("partial", &host{handler: serve(func(path string, b []byte) []byte {
			if strings.HasSuffix(path, "7") {
				return nil
			}
			return b
		}), perFlow: 4 * mib})
		n.add("wrong", &host{handler: serve(func(path string, b []byte) []byte {
			if strings.HasSuffix(path, "3") {
				b = bytes.Clone(b)
				b[len(b)-1] ^= 1
			}
			return b
		}), perFlow: 4 * mib})
		n.add("short", &host{handler: serve(func(path string, b []byte) []byte { return b[:len(b)-1] })})
		o := n.origin("http://short/x/disk.ingot?sig=1", "http://partial/x/disk.ingot?sig=1",
			"http://wrong/x/disk.ingot?sig=1", "http://good/x/disk.ingot?sig=1")
		var all sync.WaitGroup
		var paths []string
		for p := range objects {
			paths = append(paths, p)
		}
		work := make(chan string)
		for range 8 {
			all.Go(func() {
				buf := make([]byte, 64<<10)
				for p := range work {
					want := objects[p]
					got, err := o.GetChecked(t.Context(), strings.TrimPrefix(p, "/x/"), int64(len(want)), buf,
						func(b []byte) error {
							if !bytes.Equal(b, want) {
								return errors.New("wrong digest")
							}
							return nil
						})
					if err != nil || !bytes.Equal(got, want) {
						t.Errorf("%s: %v", p, err)
					}
				}
			})
		}
		for _, p := range paths {
			work <- p
		}
		close(work)
		all.Wait()
		one := n.origin("http://wrong/x/disk.ingot?sig=1")
		if _, err := one.GetChecked(t.Context(), "objects/3", 2500, nil, func(b []byte) error {
			if bytes.Equal(b, objects["/x/objects/3"]) {
				return nil
			}
			return errors.New("wrong digest")
		}); err == nil || !strings.Contains(err.Error(), "http://wrong/x/objects/3: wrong digest") {
			t.Errorf("wrong everywhere: %v", err)
		}
		if _, err := one.Get(t.Context(), "objects/3", 2499, nil); err == nil ||
			!strings.Contains(err.Error(), "2500 bytes, not 2499") {
			t.Errorf("another size: %v", err)
		}
		if _, err := one.Get(t.Context(), "http://evil/objects/3", 2499, nil); err == nil {
			t.Error("a path to elsewhere is followed")
		}
		if got, err := one.GetUpTo(t.Context(), "objects/5", 1<<20); err != nil ||
			!bytes.Equal(got, objects["/x/objects/5"]) {
			t.Errorf("GetUpTo: %v", err)
		}
		if _, err := one.GetUpTo(t.Context(), "objects/none", 1<<20); err == nil || step.AsError(err).Retryable {
			t.Errorf("GetUpTo of nothing: %v", err)
		}
	})
}

// TestGetSpreads: many small files come from all mirrors, more from those that are faster.
func TestGetSpreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		object := random(256<<10, 1)
		slow, fast := &static{file: object}, &static{file: object}
		n.add("slow", &host{handler: slow, perFlow: mib})
		n.add("fast", &host{handler: fast, perFlow: 8 * mib})
		o := n.origin("http://slow/x", "http://fast/x")
		var all sync.WaitGroup
		work := make(chan int)
		for range 4 {
			all.Go(func() {
				for range work {
					if _, err := o.Get(t.Context(), "y", int64(len(object)), nil); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for i := range 200 {
			work <- i
		}
		close(work)
		all.Wait()
		if s, f := len(slow.asked()), len(fast.asked()); s == 0 || f < 4*s {
			t.Errorf("slow %d, fast %d", s, f)
		}
		if len(n.dials) > 8 {
			t.Errorf("%d connections for 4 workers and 2 mirrors: they are not used again", len(n.dials))
		}
	})
}

func TestLocal(t *testing.T) {
	file := random(20*mib+7, 1)
	path := filepath.Join(t.TempDir(), "disk.raw")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{path, "file://" + path} {
		f, err := Open(Source{URLs: []string{url}, Local: true}, DefaultPatience, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Connect(t.Context()); err != nil || f.Size() != int64(len(file)) || f.Path() != path ||
			f.Name() != path {
			t.Errorf("size %d, path %s, %v", f.Size(), f.Path(), err)
		}
		for range 2 {
			var got []byte
			buf := make([]byte, 300<<10)
			for {
				m, err := f.Read(t.Context(), buf)
				got = append(got, buf[:m]...)
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			same(t, got, file)
			f.Rewind()
		}
		part := make([]byte, 100)
		if _, err := f.At(t.Context()).ReadAt(part, 12345); err != nil || !bytes.Equal(part, file[12345:12445]) {
			t.Errorf("At: %v", err)
		}
		r, err := f.Again(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		again, err := io.ReadAll(r)
		if err != nil || !slices.Equal(again, file) {
			t.Errorf("Again: %v", err)
		}
		if err := os.Truncate(path, 5*mib); err != nil {
			t.Fatal(err)
		}
		if _, err := readAll(t, f); err == nil || !strings.Contains(err.Error(), "shorter") {
			t.Errorf("a file that shrinks: %v", err)
		}
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		// A deployment's image_source never names a file of the machine that fetches it.
		if _, err := Open(Source{URLs: []string{url}}, DefaultPatience, nil); err == nil ||
			!strings.Contains(err.Error(), "not of a kind") {
			t.Errorf("%s without Local: %v", url, err)
		}
	}
	for _, bad := range []string{filepath.Join(t.TempDir(), "none"), t.TempDir()} {
		if _, err := Open(Source{URLs: []string{bad}, Local: true}, DefaultPatience, nil); err == nil ||
			step.AsError(err).Remedy == "" {
			t.Errorf("%s: %v", bad, err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		w.Write(file)
		w.Close()
	}()
	f, err := Open(Source{URLs: []string{fmt.Sprintf("/proc/self/fd/%d", r.Fd())}, Local: true}, DefaultPatience, nil)
	if err != nil {
		t.Fatal(err)
	}
	if f.Size() != -1 || f.At(t.Context()) != nil {
		t.Errorf("a pipe has size %d", f.Size())
	}
	got, err := readAll(t, f)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, file)
}
