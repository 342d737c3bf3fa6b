package fetch

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// cuts breaks connections at given offsets, each once.
func cuts(at []int) func(int) int {
	left := slices.Clone(at)
	slices.Sort(left)
	var mu = make(chan struct{}, 1)
	return func(from int) int {
		mu <- struct{}{}
		defer func() { <-mu }()
		for i, c := range left {
			if c > from {
				left = slices.Delete(left, i, i+1)
				return c
			}
		}
		return 1 << 40
	}
}

func TestCutAtRandomOffsets(t *testing.T) {
	file := random(6*mib+123, 1)
	r := rand.New(rand.NewPCG(3, 100))
	var at []int
	for range 100 {
		at = append(at, r.IntN(len(file)))
	}
	for name, c := range map[string]struct {
		digest   bool
		etag     string
		noRanges bool
		mirrors  int
	}{
		"strong ETag, no digest":           {false, `"v1"`, false, 1},
		"strong ETag, no digest, no parts": {false, `"v1"`, true, 1},
		"no ETag, digest":                  {true, "", false, 1},
		"no ETag, digest, no parts":        {true, "", true, 1},
		"three mirrors":                    {true, `"v1"`, false, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				var urls []string
				cut := cuts(at)
				for i := range c.mirrors {
					name := fmt.Sprintf("h%d", i)
					n.add(name, &host{handler: &static{file: file, etag: c.etag, noRanges: c.noRanges, cut: cut}})
					urls = append(urls, "http://"+name+"/image")
				}
				f := n.open(c.digest, urls...)
				n.mustRead(f, file)
				if s := f.Stats(); s.Restarts != 0 || s.Resumes < 50 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// TestRestart: without a digest and without a strong ETag nothing can be put together.
func TestRestart(t *testing.T) {
	file := random(3*mib, 1)
	for _, etag := range []string{"", `W/"v1"`} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t)
			n.add("a", &host{handler: &static{file: file, etag: etag, cut: cuts([]int{mib, 2*mib + 77})}})
			f := n.open(false, "http://a/image")
			n.mustRead(f, file)
			if s := f.Stats(); s.Restarts != 2 || s.Resumes != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestFileChangesInBetween(t *testing.T) {
	old, fresh := random(4*mib, 1), random(4*mib, 2)
	longer := random(5*mib, 3)
	for name, c := range map[string]struct {
		before, after *static
		digest        bool
		mixed         bool
	}{
		"ETag":         {&static{file: old, etag: `"1"`}, &static{file: fresh, etag: `"2"`}, false, false},
		"ETag, digest": {&static{file: old, etag: `"1"`}, &static{file: fresh, etag: `"2"`}, true, false},
		"ETag, no parts": {&static{file: old, etag: `"1"`, noRanges: true},
			&static{file: fresh, etag: `"2"`, noRanges: true}, false, false},
		"date": {&static{file: old, modified: "Mon, 02 Jan 2006 15:04:05 GMT"},
			&static{file: fresh, modified: "Tue, 03 Jan 2006 15:04:05 GMT"}, true, false},
		"size":               {&static{file: old}, &static{file: longer}, true, false},
		"size, no parts":     {&static{file: old, noRanges: true}, &static{file: longer, noRanges: true}, true, false},
		"only content":       {&static{file: old}, &static{file: fresh}, true, true},
		"the same, no parts": {&static{file: old, noRanges: true}, &static{file: fresh, noRanges: true}, true, true},
		"no digest, no ETag": {&static{file: old}, &static{file: fresh}, false, false},
		"the same, no ranges": {&static{file: old, noRanges: true}, &static{file: longer, noRanges: true}, false,
			false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				c.before.cut = func(int) int { return 2*mib + 5 }
				var asked atomic.Int32
				n.add("a", &host{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if asked.Add(1) == 1 {
						c.before.ServeHTTP(w, r)
						return
					}
					c.after.ServeHTTP(w, r)
				})})
				f := n.open(c.digest, "http://a/image")
				want := c.after.file
				if c.mixed { // the digest finds out
					mixed := append(slices.Clone(old[:2*mib+5]), fresh[2*mib+5:]...)
					got, err := readAll(t, f)
					if err != nil {
						t.Fatal(err)
					}
					same(t, got, mixed)
					sum := sha256.Sum256(got)
					if !f.Distrust(sum[:]) {
						t.Fatal("no other attempt after a file that was put together from two")
					}
					f.Rewind()
				}
				n.mustRead(f, want)
				if s := f.Stats(); s.Restarts != 1 {
					t.Errorf("%+v\n%s", s, &n.log)
				}
				if sum := sha256.Sum256(want); c.mixed && f.Distrust(sum[:]) {
					t.Error("yet another attempt after one that was clean")
				}
			})
		})
	}
}

func TestWrongContentLength(t *testing.T) {
	file := random(300<<10, 1)
	claim := func(n int, ranges bool) http.HandlerFunc {
		honest := &static{file: file}
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "" && ranges {
				honest.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Length", fmt.Sprint(n))
			w.Write(file[:min(len(file), n)])
		}
	}
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		want string
	}{
		"too long":               {claim(len(file)+5, false), "no new data for"},
		"too long, honest later": {claim(len(file)+5, true), "started again"},
		"too short":              {claim(200<<10+1, false), ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				n.add("a", &host{handler: c.h})
				f := n.open(true, "http://a/image")
				got, err := readAll(t, f)
				if c.want == "" {
					if err != nil {
						t.Fatal(err)
					}
					same(t, got, file[:200<<10+1]) // no more than was announced; the digest knows
					return
				}
				if err == nil || !strings.Contains(err.Error(), c.want) || step.AsError(err).Remedy == "" {
					t.Errorf("%v, want %q", err, c.want)
				}
			})
		})
	}
}

// TestLiesAboutRanges: after a wrong answer to a Range request the whole file is requested, and its known part is
// skipped.
func TestLiesAboutRanges(t *testing.T) {
	file := random(4*mib, 1)
	for _, lie := range []string{"bytes 0-99/4194304", "bytes 1048577-4194303/4194304", "", "bytes", "bytes x-y/z",
		"bytes 1048576-1048575/4194304", "bytes 1048576-9999999/4194304", "bytes 1048576-4194303/-1",
		"items 1048576-4194303/4194304", "bytes 1048576-4194302/4194304", "bytes -5-4194303/4194304"} {
		t.Run(lie, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				s := &static{file: file, etag: `"v"`, cut: cuts([]int{mib})}
				s.before = func(w http.ResponseWriter, r *http.Request) bool {
					if r.Header.Get("Range") == "" {
						s.noRanges = true
						return false
					}
					w.Header().Set("Content-Range", lie)
					w.Header().Set("Content-Length", fmt.Sprint(3*mib))
					w.WriteHeader(http.StatusPartialContent)
					w.Write(make([]byte, 3*mib))
					return true
				}
				n.add("a", &host{handler: s})
				f := n.open(false, "http://a/image")
				n.mustRead(f, file)
				if got := s.asked(); len(got) != 3 || got[2] != "" {
					t.Errorf("requests: %q", got)
				}
			})
		})
	}
}

// TestMoreThanAnnounced: nothing is read past the end that was announced, and what announces none is bounded by Limit.
func TestMoreThanAnnounced(t *testing.T) {
	file := random(2*mib, 1)
	endless := func(w http.ResponseWriter) {
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		s := &static{file: file, etag: `"v"`, cut: cuts([]int{mib})}
		s.before = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("Range") == "" {
				return false
			}
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", mib, 2*mib-1, 2*mib))
			w.WriteHeader(http.StatusPartialContent) // no Content-Length
			w.Write(file[mib:])
			endless(w)
			return true
		}
		n.add("a", &host{handler: s})
		n.mustRead(n.open(false, "http://a/image"), file)
	})
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.add("a", &host{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { endless(w) })})
		f, err := Open(Source{URLs: []string{"http://a/image"}, Limit: 5 * mib}, DefaultPatience, nil)
		if err != nil {
			t.Fatal(err)
		}
		n.use(f.o)
		if got, err := readAll(t, f); err == nil || !strings.Contains(err.Error(), "longer than 5242880 bytes") ||
			len(got) > 6*mib {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if _, err := n.origin("http://a/image").GetUpTo(t.Context(), "", mib); err == nil ||
			!strings.Contains(err.Error(), "longer than") {
			t.Errorf("GetUpTo: %v", err)
		}
	})
}

func TestContentEncoding(t *testing.T) {
	file := random(mib/2, 1)
	for _, c := range []struct {
		path, enc string
		ok        bool
	}{
		{"/image", "gzip", false}, {"/image.gz", "gzip", true}, {"/image.gz", "x-gzip", true},
		{"/image.gz", "br", false}, {"/image.zst", "zstd", true}, {"/image.zst", "gzip", false},
		{"/image", "identity", true},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t)
			n.add("a", &host{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Accept-Encoding") != "identity" {
					t.Errorf("Accept-Encoding: %q", r.Header.Get("Accept-Encoding"))
				}
				w.Header().Set("Content-Encoding", c.enc)
				w.Write(file)
			})})
			got, err := readAll(t, n.open(true, "http://a"+c.path))
			if (err == nil) != c.ok || c.ok && !bytes.Equal(got, file) || err != nil &&
				!strings.Contains(err.Error(), "content encoding") {
				t.Errorf("%s as %s: %d bytes, %v", c.path, c.enc, len(got), err)
			}
		})
	}
}

// TestSlowServer: alone it may take its time; when another may be faster it is left.
func TestSlowServer(t *testing.T) {
	file := random(300<<10, 1)
	drip := func(t *testing.T) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			s := &static{file: file}
			from, to, part := s.span(r)
			w.Header().Set("Content-Length", fmt.Sprint(to-from))
			if part {
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, len(file)))
				w.WriteHeader(http.StatusPartialContent)
			}
			for ; from < to; from += min(100, to-from) { // 100 bytes a second
				if _, err := w.Write(file[from:min(from+100, to)]); err != nil {
					return
				}
				w.(http.Flusher).Flush()
				time.Sleep(time.Second)
			}
		}
	}
	for _, c := range []struct {
		urls []string
		took [2]time.Duration
	}{
		{[]string{"http://slow/image"}, [2]time.Duration{50 * time.Minute, 60 * time.Minute}},
		{[]string{"http://slow/image", "http://fast/image"}, [2]time.Duration{29 * time.Second, 40 * time.Second}},
		{[]string{"http://slow/image", "http://slow2/image"}, [2]time.Duration{50 * time.Minute, 60 * time.Minute}},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t)
			n.add("slow", &host{handler: drip(t)})
			n.add("slow2", &host{handler: drip(t)})
			n.add("fast", &host{handler: &static{file: file}})
			began := time.Now()
			n.mustRead(n.open(true, c.urls...), file)
			if took := time.Since(began); took < c.took[0] || took > c.took[1] {
				t.Errorf("%v took %s", c.urls, took)
			}
		})
	}
}

func TestSilentServer(t *testing.T) {
	file := random(2*mib, 1)
	silentFor := func(d time.Duration, header bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if header {
				w.Header().Set("Content-Length", fmt.Sprint(len(file)))
				w.Write(file[:mib])
				w.(http.Flusher).Flush()
			}
			select {
			case <-r.Context().Done():
			case <-time.After(d):
			}
		}
	}
	for name, h := range map[string]http.HandlerFunc{"in the middle": silentFor(time.Hour, true),
		"before the first byte": silentFor(time.Hour, false)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				n.add("a", &host{handler: h})
				n.add("b", &host{handler: &static{file: file}})
				began := time.Now()
				f := n.open(true, "http://a/image", "http://b/image")
				n.mustRead(f, file)
				if took := time.Since(began); took < 29*time.Second || took > 35*time.Second {
					t.Errorf("took %s", took)
				}
				// Alone it is given up.
				began = time.Now()
				_, err := readAll(t, n.open(true, "http://a/image"))
				if took := time.Since(began); err == nil || took > 2*time.Minute || !step.AsError(err).Retryable {
					t.Errorf("alone: %v after %s", err, took)
				}
			})
		})
	}
}

// TestDribblingHeaders: an answer that never gets to its end is given up like silence.
func TestDribblingHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.add("a", &host{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\n")
			for i := 0; ; i++ {
				if _, err := fmt.Fprintf(c, "X-%d: y\r\n", i); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})})
		began := time.Now()
		_, err := readAll(t, n.open(true, "http://a/image"))
		if took := time.Since(began); err == nil || took > 70*time.Second { // two attempts
			t.Errorf("%v after %s", err, took)
		}
	})
}

func TestRedirects(t *testing.T) {
	file := random(mib, 1)
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		auth := map[string]string{}
		note := func(name string) func(w http.ResponseWriter, r *http.Request) bool {
			return func(w http.ResponseWriter, r *http.Request) bool {
				user, pass, _ := r.BasicAuth()
				auth[name] = user + ":" + pass
				if r.Header.Get("Referer") != "" {
					t.Errorf("%s is told where we come from: %s", name, r.Header.Get("Referer"))
				}
				return false
			}
		}
		n.add("b", &host{handler: &static{file: file, before: note("b")}})
		n.add("sub.a", &host{handler: &static{file: file, before: note("sub.a")}})
		n.add("a", &host{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			note("a")(w, r)
			switch r.URL.Path {
			case "/other":
				http.Redirect(w, r, "http://b/image", http.StatusFound)
			case "/sub":
				http.Redirect(w, r, "http://sub.a/image", http.StatusFound)
			case "/here":
				http.Redirect(w, r, "http://a/image", http.StatusTemporaryRedirect)
			case "/image":
				note("a again")(w, r)
				(&static{file: file}).ServeHTTP(w, r)
			case "/ftp":
				http.Redirect(w, r, "ftp://a/image", http.StatusFound)
			case "/broken":
				w.Header().Set("Location", "http://[secret")
				w.WriteHeader(http.StatusFound)
			default:
				http.Redirect(w, r, r.URL.Path+"x", http.StatusFound)
			}
		})})
		for path, at := range map[string]string{"other": "b", "sub": "sub.a", "here": "a again"} {
			n.mustRead(n.open(true, "http://me:hunter2@a/"+path+"?sig=topsecret"), file)
			if want := map[bool]string{true: "me:hunter2", false: ":"}[at == "a again"]; auth["a"] != "me:hunter2" ||
				auth[at] != want {
				t.Errorf("%s: %q got user and password %q", path, at, auth[at])
			}
		}
		for path, want := range map[string]string{"loop": "more than 5 redirects", "ftp": `scheme "ftp"`,
			"broken": "an invalid URL"} {
			_, err := readAll(t, n.open(true, "http://me:hunter2@a/"+path+"?sig=topsecret"))
			if err == nil || !strings.Contains(err.Error(), want) || step.AsError(err).Retryable {
				t.Errorf("%s: %v", path, err)
			}
			if text := fmt.Sprint(err) + n.log.String(); strings.Contains(text, "secret") ||
				strings.Contains(text, "hunter2") {
				t.Errorf("a secret got out: %s", text)
			}
		}
	})
}

func TestBusyServer(t *testing.T) {
	file := random(2*mib, 1)
	for name, c := range map[string]struct {
		code       int
		retryAfter string
		times      int32
		took       [2]time.Duration
		fail       string
	}{
		"a storm of 500":         {500, "", 4, [2]time.Duration{time.Second, 10 * time.Second}, ""},
		"503 for seconds":        {503, "7", 1, [2]time.Duration{7 * time.Second, 8 * time.Second}, ""},
		"429 until a date":       {429, "date", 1, [2]time.Duration{5 * time.Second, 8 * time.Second}, ""},
		"503 for an hour":        {503, "3600", 1, [2]time.Duration{9 * time.Second, 11 * time.Second}, ""},
		"503 for ever":           {503, "", 1 << 30, [2]time.Duration{10 * time.Second, 21 * time.Second}, "503"},
		"404 is not asked again": {404, "", 1, [2]time.Duration{0, time.Second}, "404"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				var asked atomic.Int32
				n.add("a", &host{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if asked.Add(1) > c.times {
						(&static{file: file}).ServeHTTP(w, r)
						return
					}
					if c.retryAfter == "date" {
						w.Header().Set("Retry-After", time.Now().Add(7*time.Second).UTC().Format(http.TimeFormat))
					} else if c.retryAfter != "" {
						w.Header().Set("Retry-After", c.retryAfter)
					}
					w.WriteHeader(c.code)
				})})
				began := time.Now()
				got, err := readAll(t, n.open(true, "http://a/image"))
				if took := time.Since(began); took < c.took[0] || took > c.took[1] {
					t.Errorf("took %s", took)
				}
				if c.fail != "" {
					if err == nil || !strings.Contains(err.Error(), c.fail) {
						t.Errorf("%v", err)
					}
					return
				}
				if err != nil || !bytes.Equal(got, file) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
			})
		})
	}
}

func TestFailover(t *testing.T) {
	file := random(5*mib+99, 1)
	other := random(5*mib+100, 2)
	down := func(h *host, s *static, at int) { // gone for good after at bytes
		s.cut = func(from int) int {
			h.down = true
			return at
		}
	}
	for name, c := range map[string]struct {
		digest   bool
		second   []byte
		restarts int
		fail     string
	}{
		"with a digest it goes on":   {true, file, 0, ""},
		"without one it begins anew": {false, file, 1, ""},
		// when the first is gone for good, the second is all there is
		"another size is another file": {true, other, 1, ""},
		"another size, without digest": {false, other, 1, ""},
		"the second does not have it":  {true, nil, 0, "404"},
		"the same, without a digest":   {false, nil, 0, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				first := &static{file: file, etag: `"a"`}
				h := n.add("a", &host{handler: first})
				down(h, first, 3*mib+17)
				n.add("b", &host{
					handler: &static{
						file: c.second, etag: `"b"`, before: func(w http.ResponseWriter, r *http.Request) bool {
							if c.second == nil {
								http.NotFound(w, r)
							}
							return c.second == nil
						}}})
				f := n.open(c.digest, "http://a/image", "http://b/image")
				if c.fail != "" {
					if _, err := readAll(t, f); err == nil || !strings.Contains(err.Error(), c.fail) ||
						step.AsError(err).Remedy == "" {
						t.Errorf("%v\n%s", err, &n.log)
					}
					return
				}
				n.mustRead(f, c.second)
				s := f.Stats()
				if s.Restarts != c.restarts || len(s.From) != 2 || s.From[0].Bytes != 3*mib+17 {
					t.Errorf("%+v", s)
				}
				if c.restarts == 0 && !strings.Contains(n.log.String(), "http://b/image: 2097234") {
					t.Errorf("the log does not say who gave what: %s", &n.log)
				}
			})
		})
	}
}

func TestMirrorsThatDoNotAnswer(t *testing.T) {
	file := random(mib, 1)
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.add("refused", &host{handler: http.NotFoundHandler(), down: true})
		n.add("gone", &host{handler: http.NotFoundHandler()})
		n.add("good", &host{handler: &static{file: file}})
		n.mustRead(n.open(false, "http://nowhere/i", "http://refused/i", "http://gone/i", "http://good/i"), file)
		_, err := readAll(t, n.open(false, "http://nowhere/i", "http://refused/i", "http://gone/i"))
		for _, want := range []string{"no such host", "connection refused", "404"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		if _, err := readAll(t, n.open(false, "http://gone/i", "http://gone/j")); err == nil ||
			step.AsError(err).Retryable {
			t.Errorf("404 from all: %v", err)
		}
	})
}

// TestDistrust: whose content is wrong is found out by asking for all of it from one mirror.
func TestDistrust(t *testing.T) {
	good, bad, worse := random(4*mib, 1), random(4*mib, 2), random(4*mib, 3)
	for name, c := range map[string]struct {
		files    [][]byte
		cutFirst bool
		ok       bool
		attempts int
	}{
		"the first is wrong":                {[][]byte{bad, good}, false, true, 2},
		"two are wrong":                     {[][]byte{bad, worse, good}, false, true, 3},
		"all are wrong":                     {[][]byte{bad, worse}, false, false, 2},
		"all have the same, the digest not": {[][]byte{bad, bad, bad}, false, false, 2},
		"one, alone":                        {[][]byte{bad}, false, false, 1},
		"mixed of a wrong and a right one":  {[][]byte{bad, good}, true, true, 3},
		"mixed the other way":               {[][]byte{good, bad}, true, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				var urls []string
				for i, file := range c.files {
					s := &static{file: file, etag: `"x"`}
					name := fmt.Sprintf("h%d", i)
					if i == 0 && c.cutFirst {
						s.cut = cuts([]int{mib})
						var asked int
						s.before = func(w http.ResponseWriter, r *http.Request) bool {
							if asked++; asked == 2 {
								w.WriteHeader(http.StatusBadGateway)
								return true
							}
							return false
						}
					}
					n.add(name, &host{handler: s})
					urls = append(urls, "http://"+name+"/image")
				}
				f := n.open(true, urls...)
				defer f.Close()
				for attempt := 1; ; attempt++ {
					got, err := readAll(t, f)
					if err != nil {
						t.Fatalf("%v\n%s", err, &n.log)
					}
					sum := sha256.Sum256(got)
					right := bytes.Equal(got, good)
					if !right && f.Distrust(sum[:]) {
						f.Rewind()
						continue
					}
					if right != c.ok || attempt != c.attempts {
						t.Errorf("right: %v after %d attempts\n%s", right, attempt, &n.log)
					}
					return
				}
			})
		})
	}
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.add("a", &host{handler: &static{file: random(8*mib, 1)}, perFlow: 100 << 10})
		f := n.open(true, "http://a/image")
		defer f.Close()
		if err := f.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := contextWithCause(t)
		time.AfterFunc(3*time.Second, func() { cancel(errors.New("operator aborted")) })
		began := time.Now()
		if _, err := f.Next(ctx); err == nil || err.Error() != "operator aborted" ||
			time.Since(began) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}
