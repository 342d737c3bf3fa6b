package api

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// counted keeps what was counted.
type counted struct {
	mu      sync.Mutex
	all     []string
	repeats int
}

func (c *counted) Request(method, route string, code int, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	line := fmt.Sprintf("%s %s %d", method, route, code)
	if took <= 0 {
		line += " in no time"
	}
	c.all = append(c.all, line)
}

func (c *counted) Repeated() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.repeats++
}

// TestRequestsAreCounted by their routes, whatever the addresses were, each once and with the status that was sent.
func TestRequestsAreCounted(t *testing.T) {
	var c counted
	f := newFixture(t, Config{Meter: &c, Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		io.WriteString(w, "numbers 1\n")
	})}, node.Node{Name: "n"})
	ask := func(method, path string, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, nil)
		r.Header.Set(rest.VersionHeader, f.version.String())
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		f.srv.ServeHTTP(w, r)
		return w
	}
	tag := ask("GET", "/v1/nodes/n").Header().Get("ETag")
	ask("GET", "/v1/nodes/n", "If-None-Match", tag)
	ask("GET", "/v1/nodes/nobody")
	ask("GET", "/v1/nodes/n/made/up")
	ask("BREW", "/v1/nodes")
	ask("HEAD", "/")
	if w := ask("GET", "/metrics", "Accept", "text/plain"); w.Code != 200 || w.Body.String() != "numbers 1\n" {
		t.Errorf("GET /metrics = %d %q", w.Code, w.Body)
	}
	want := []string{"GET /v1/nodes/{node} 200", "GET /v1/nodes/{node} 304", "GET /v1/nodes/{node} 404", "GET  404",
		"BREW  405", "GET / 200", "GET /metrics 200"}
	if d := cmp.Diff(want, c.all); d != "" {
		t.Errorf("counted (-want +got):\n%s", d)
	}
}
