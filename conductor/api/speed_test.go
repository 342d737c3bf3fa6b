package api

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// sink is an http.ResponseWriter that keeps the status only.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(status int)      { s.status = status }

// BenchmarkReads measures requests without the network: one node, and pages of a thousand.
func BenchmarkReads(b *testing.B) {
	st, err := store.Open(b.Context(), store.Options{Dir: b.TempDir(), Alone: true})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	nodes := make([]node.Node, 1000)
	for i := range nodes {
		nodes[i] = node.Node{Name: fmt.Sprint("n", i), Driver: "fake-hardware", ResourceClass: "baremetal",
			Provision:  node.Available,
			Properties: map[string]any{"cpus": 16.0, "memory_mb": 65536.0, "cpu_arch": "x86_64"},
			DriverInfo: map[string]any{"fake_password": "x"}, Extra: map[string]any{"rack": "r1"}}
		if err := st.CreateNode(b.Context(), &nodes[i]); err != nil {
			b.Fatal(err)
		}
	}
	srv, err := New(st, instant{st}, Config{Hostname: "c1"}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct{ name, path string }{
		{"node", "/v1/nodes/" + nodes[500].UUID}, {"list", "/v1/nodes?limit=1000"},
		{"detail", "/v1/nodes/detail?limit=1000"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(http.MethodGet, c.path, nil)
				r.Header.Set(rest.VersionHeader, rest.MaxVersion.String())
				w := &sink{header: http.Header{}}
				srv.ServeHTTP(w, r)
				if w.status != http.StatusOK {
					b.Fatalf("%s = %d", c.path, w.status)
				}
			}
		})
	}
}
