//go:build !race

package app

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// TestMetrics: an ingotd shows its numbers at its own listener and at the API, where they are those of what was done.
func TestMetrics(t *testing.T) {
	at := kit.FreeAddr(t)
	d := ingotd.Start(t, kit.FreeAddr(t), "metrics.listen="+at)
	for _, name := range []string{"one", "two"} {
		if status, _, out := d.Ask("POST", "/v1/nodes", `{"driver":"fake-hardware","name":"`+name+`"}`, nil); status != 201 {
			t.Fatalf("make a node: %d %s", status, out)
		}
	}
	d.Ask("GET", "/v1/nodes/nobody", "", nil)
	d.Ask("GET", "/v1/nonsense", "", nil)
	for _, url := range []string{"http://" + at + "/metrics", d.URL + "/metrics"} {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%s: %d %v", url, resp.StatusCode, err)
		}
		text := string(b)
		for _, line := range []string{
			`ingot_nodes{state="enroll"} 2`,
			`ingot_api_request_seconds_count{code="201",method="POST",route="/v1/nodes"} 2`,
			`ingot_api_request_seconds_count{code="404",method="GET",route="/v1/nodes/{node}"} 1`,
			`ingot_api_request_seconds_count{code="404",method="other",route="other"} 1`,
			`ingot_conductors{state="up"} `, `ingot_certificate_days{certificate="ca"} `,
			`ingot_store_statement_seconds_count{statement="insert"} `, `ingot_agents_connected 0`,
			`ingot_event_last `, `ingot_engine_due `, `ingot_dhcp_leases{state="leased"} 0`, `go_goroutines `,
		} {
			if !strings.Contains(text, "\n"+line) {
				t.Errorf("%s has no line %q", url, line)
			}
		}
	}
	if resp, err := http.Get("http://" + at + "/v1/nodes"); err != nil || resp.StatusCode != 404 {
		t.Errorf("the listener for metrics answers %v, %v for the API, want 404", resp, err)
	}
}

// TestMetricsCanBeOff: neither way is open unless it is configured.
func TestMetricsCanBeOff(t *testing.T) {
	d := ingotd.Start(t, kit.FreeAddr(t), "metrics.api=false")
	if status, _, out := d.Ask("GET", "/metrics", "", nil); status != 404 || !strings.Contains(out, "metrics.api") {
		t.Errorf("GET /metrics = %d %s, want 404 that names metrics.api", status, out)
	}
}

// TestScrapersAreReaders: beyond loopback, scrapers are clients of the API who may read what belongs to no node.
func TestScrapersAreReaders(t *testing.T) {
	who := func(r *http.Request) (*access.Actor, error) {
		switch name, _, _ := r.BasicAuth(); name {
		case "":
			return nil, &access.Refusal{Status: 401, Message: "who are you?", Challenge: "Basic realm=x"}
		case "broken":
			return nil, context.DeadlineExceeded
		case "nobody":
			return &access.Actor{UserName: name}, nil
		}
		return access.Anybody(), nil
	}
	h := readersOnly(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "numbers") }),
		who, slog.New(slog.DiscardHandler))
	for name, want := range map[string]int{"": 401, "broken": 500, "nobody": 403, "prom": 200} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		if name != "" {
			r.SetBasicAuth(name, "x")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want || strings.Contains(w.Body.String(), "numbers") != (want == 200) {
			t.Errorf("%q: %d %s, want %d", name, w.Code, w.Body, want)
		}
		if want == 401 && w.Header().Get("WWW-Authenticate") == "" {
			t.Error("401 without a challenge")
		}
	}
}
