package fetch

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// BenchmarkFetch fetches over the loopback, with one connection as the agent does it there, and with as many as there
// may be.
func BenchmarkFetch(b *testing.B) {
	file := random(256*mib, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v"`)
		http.ServeContent(w, r, "image", time.Time{}, bytes.NewReader(file))
	}))
	defer s.Close()
	for name, flows := range map[string]int{"adaptive": 1, "four": maxFlows} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(file)))
			for b.Loop() {
				f, err := Open(Source{URLs: []string{s.URL}, Digest: true}, DefaultPatience, nil)
				if err != nil {
					b.Fatal(err)
				}
				if err := f.Connect(b.Context()); err != nil {
					b.Fatal(err)
				}
				f.a.mu.Lock()
				f.a.want = flows
				for range flows - 1 {
					f.a.start(nil)
				}
				f.a.mu.Unlock()
				for {
					p, err := f.Next(b.Context())
					if err == io.EOF {
						break
					}
					if err != nil {
						b.Fatal(err)
					}
					f.Free(p)
				}
				f.Close()
			}
		})
	}
	b.Run("plain", func(b *testing.B) {
		b.SetBytes(int64(len(file)))
		buf := make([]byte, mib)
		for b.Loop() {
			r, err := http.Get(s.URL)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, buf); err != nil {
				b.Fatal(err)
			}
			r.Body.Close()
		}
	})
}
