package metrics

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
)

var now = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// scrape reads all metrics as a scraper does: name, labels and value, one a line. Histograms have their count alone.
func scrape(t *testing.T, s *Set) map[string]float64 {
	t.Helper()
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	return read(t, &b)
}

func read(t *testing.T, r io.Reader) map[string]float64 {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(r)
	if err != nil {
		t.Fatalf("what a scraper can't read: %v", err)
	}
	out := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			key := name + "{" + strings.Join(labels, ",") + "}"
			switch f.GetType() {
			case dto.MetricType_HISTOGRAM:
				out[key] = float64(m.Histogram.GetSampleCount())
			case dto.MetricType_COUNTER:
				out[key] = m.Counter.GetValue()
			default:
				out[key] = m.Gauge.GetValue()
			}
		}
	}
	return out
}

// want compares the metrics whose names begin so.
func want(t *testing.T, got map[string]float64, prefix string, want map[string]float64) {
	t.Helper()
	part := map[string]float64{}
	for k, v := range got {
		if strings.HasPrefix(k, prefix) {
			part[k] = v
		}
	}
	if d := cmp.Diff(want, part); d != "" {
		t.Errorf("%s (-want +got):\n%s", prefix, d)
	}
}

func TestSources(t *testing.T) {
	s := New(Config{Now: func() time.Time { return now }})
	want(t, scrape(t, s), "ingot_nodes", map[string]float64{}) // nothing is made up
	s.Ask(Sources{
		Hostname: "a",
		Nodes: func(context.Context) ([]node.Count, error) {
			return []node.Count{
				{State: node.Active, Power: "power on", Conductor: "a", Nodes: 7, Since: now.Add(-time.Hour)},
				{State: node.Deploying, Power: "power on", Conductor: "a", Nodes: 2, Since: now.Add(-time.Minute)},
				{State: node.Deploying, Conductor: "b", Fault: "power failure", Maintenance: true, Nodes: 1,
					Since: now.Add(-time.Hour)},
			}, nil
		},
		Leases: func(context.Context) ([]node.Lease, error) {
			return []node.Lease{{MAC: "52:54:00:00:00:01", ExpiresAt: now.Add(time.Hour)},
				{MAC: "52:54:00:00:00:02", ExpiresAt: now.Add(-time.Hour)},
				node.DeclinedLease("192.0.2.1", now.Add(time.Hour))}, nil
		},
		Engine:     func() Engine { return Engine{Due: 1, Working: 2, InLine: 3} },
		Agents:     func() Agents { return Agents{Connected: 4, Silence: 1500 * time.Millisecond} },
		Events:     func() Events { return Events{Last: 100, Watchers: 5, Lag: 6} },
		Store:      func() Store { return Store{Waiting: 7, Bytes: 8, Fault: true} },
		Conductors: func() map[string]int { return map[string]int{"up": 2} },
		Certificates: func() (map[string]time.Time, error) {
			return map[string]time.Time{"ca": now.Add(36 * time.Hour), "api": now.Add(-24 * time.Hour)}, nil
		},
	})
	got := scrape(t, s)
	for prefix, v := range map[string]map[string]float64{
		"ingot_nodes": {
			`ingot_nodes{state="active"}`: 7, `ingot_nodes{state="deploying"}`: 3,
			`ingot_nodes_power{power="none"}`: 1, `ingot_nodes_power{power="power on"}`: 9,
			`ingot_nodes_fault{fault="power failure"}`: 1, `ingot_nodes_maintenance{}`: 1, `ingot_nodes_owned{}`: 9},
		"ingot_node_state_oldest": {`ingot_node_state_oldest_seconds{state="deploying"}`: 3600},
		"ingot_engine": {`ingot_engine_due{}`: 1, `ingot_engine_working{}`: 2,
			`ingot_engine_waiting_for_controller{}`: 3},
		"ingot_agent": {`ingot_agents_connected{}`: 4, `ingot_agent_silence_seconds{}`: 1.5},
		"ingot_event": {`ingot_event_last{}`: 100, `ingot_event_watchers{}`: 5, `ingot_event_lag{}`: 6},
		"ingot_dhcp_leases": {`ingot_dhcp_leases{state="leased"}`: 1, `ingot_dhcp_leases{state="expired"}`: 1,
			`ingot_dhcp_leases{state="declined"}`: 1},
		"ingot_store_writes": {`ingot_store_writes_waiting{}`: 7},
		"ingot_store_fault":  {`ingot_store_fault{}`: 1},
		"ingot_store_away":   {`ingot_store_away{}`: 0},
		"ingot_conductors":   {`ingot_conductors{state="up"}`: 2},
		"ingot_certificate":  {`ingot_certificate_days{certificate="ca"}`: 1.5, `ingot_certificate_days{certificate="api"}`: -1},
	} {
		want(t, got, prefix, v)
	}
	if got[`go_goroutines{}`] == 0 || got[`process_open_fds{}`] == 0 {
		t.Error("the metrics of Go and of the process are not there")
	}
}

// TestCounted: what the conductor's parts count is there under the labels that they give.
func TestCounted(t *testing.T) {
	s := New(Config{})
	s.Request("GET", "/v1/nodes", 200, time.Millisecond)
	s.Request("GET", "/v1/nodes", 200, time.Millisecond)
	s.Request("BREW", "", 405, time.Millisecond)
	s.Repeated()
	s.Statement("SELECT 1", time.Millisecond)
	s.Statement("PRAGMA x", time.Millisecond)
	s.StatementFailed("busy")
	s.Group(3)
	got := scrape(t, s)
	want(t, got, "ingot_api", map[string]float64{`ingot_api_repeats_total{}`: 1,
		`ingot_api_request_seconds{code="200",method="GET",route="/v1/nodes"}`: 2,
		`ingot_api_request_seconds{code="405",method="other",route="other"}`:   1})
	want(t, got, "ingot_store_statement", map[string]float64{
		`ingot_store_statement_seconds{statement="select"}`: 1, `ingot_store_statement_seconds{statement="other"}`: 1})
	want(t, got, "ingot_store_failures", map[string]float64{`ingot_store_failures_total{kind="busy"}`: 1,
		`ingot_store_failures_total{kind="full"}`: 0, `ingot_store_failures_total{kind="away"}`: 0,
		`ingot_store_failures_total{kind="damaged"}`: 0, `ingot_store_failures_total{kind="other"}`: 0})
	want(t, got, "ingot_store_group", map[string]float64{`ingot_store_group_writes{}`: 1})
}

// TestOneQuestionServesManyScrapes: a flood of scrapes asks the database once a second.
func TestOneQuestionServesManyScrapes(t *testing.T) {
	at, asked := now, 0
	s := New(Config{Now: func() time.Time { return at }})
	s.Ask(Sources{Nodes: func(context.Context) ([]node.Count, error) {
		asked++
		return nil, nil
	}})
	for range 50 {
		scrape(t, s)
	}
	if asked != 1 {
		t.Errorf("50 scrapes at one time asked %d times, want 1", asked)
	}
	at = at.Add(fresh)
	scrape(t, s)
	if asked != 2 {
		t.Errorf("asked %d times after a second, want 2", asked)
	}
}

// TestAFailingSourceIsCounted: the rest of the scrape is there.
func TestAFailingSourceIsCounted(t *testing.T) {
	s := New(Config{})
	s.Ask(Sources{Nodes: func(context.Context) ([]node.Count, error) { return nil, errors.New("away") },
		Engine: func() Engine { return Engine{Due: 1} }})
	scrape(t, s)
	s.asker.last = nil
	got := scrape(t, s)
	if got[`ingot_metrics_source_errors_total{source="nodes"}`] == 0 || got[`ingot_engine_due{}`] != 1 {
		t.Errorf("scrape = %v", got)
	}
}

func TestBound(t *testing.T) {
	b := bound{most: 2}
	for _, c := range [][2]string{{"a", "a"}, {"", "none"}, {"b\n", "other"}, {"b", "b"}, {"c", "other"}, {"a", "a"},
		{strings.Repeat("x", 100), "other"}, {"é", "other"}} {
		if got := b.value(c[0]); got != c[1] {
			t.Errorf("value(%q) = %q, want %q", c[0], got, c[1])
		}
	}
}

func TestHandler(t *testing.T) {
	s := New(Config{})
	h := s.Handler()
	ask := func(method string, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "/metrics", nil)
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	if w := ask("GET"); w.Code != 200 ||
		!strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Errorf("GET = %d %s", w.Code, w.Header())
	} else if read(t, w.Body)[`go_goroutines{}`] == 0 {
		t.Error("GET has no metrics")
	}
	if w := ask("HEAD"); w.Code != 200 || w.Body.Len() != 0 {
		t.Errorf("HEAD = %d with %d bytes", w.Code, w.Body.Len())
	}
	if w := ask("POST"); w.Code != 405 || w.Header().Get("Allow") == "" {
		t.Errorf("POST = %d %s, want 405 with Allow", w.Code, w.Header())
	}
	w := ask("GET", "Accept-Encoding", "gzip, deflate")
	z, err := gzip.NewReader(w.Body)
	if err != nil || w.Header().Get("Content-Encoding") != "gzip" {
		t.Fatalf("gzip: %v, %s", err, w.Header())
	}
	if read(t, z)[`ingot_metrics_scrape_seconds{}`] == 0 {
		t.Error("the packed answer lacks metrics")
	}
	for range limit.ScrapesAtOnce {
		s.scraping <- struct{}{}
	}
	if w := ask("GET"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("one scrape too many = %d %s, want 503 with Retry-After", w.Code, w.Header())
	}
}

// TestReference makes docs/reference/metrics.md of the descriptions, or holds it to them.
func TestReference(t *testing.T) {
	kinds := map[string]int{}
	names := map[string]bool{}
	var b strings.Builder
	b.WriteString(referenceHead)
	for _, d := range New(Config{}).Descriptions() {
		kinds[d.Type]++
		if names[d.Name] || !strings.HasSuffix(d.Help, ".") {
			t.Errorf("%s is there twice, or its description is no sentence: %s", d.Name, d.Help)
		}
		names[d.Name] = true
		labels := strings.Join(d.Labels, "`, `")
		if labels != "" {
			labels = "`" + labels + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, labels, d.Help)
	}
	if len(kinds) < 3 || !slices.Contains(slices.Collect(maps.Keys(kinds)), "histogram") {
		t.Errorf("kinds of metrics: %v", kinds)
	}
	kit.Document(t, "../../../docs/reference/metrics.md", b.String())
}

const referenceHead = `# Metrics

<!-- made by go test ./conductor/observe/metrics -run Reference -update -->

What ` + "`/metrics`" + ` has, in Prometheus' text format. [How to read them](../howto/monitor.md). The metrics of Go's runtime (` +
	"`go_...`" + `) and of the process (` + "`process_...`" + `) are the usual ones. Histograms have the further series
` + "`..._bucket`, `..._sum` and `..._count`" + `. A label's value ` + "`other`" + ` stands for those beyond the bound of the label.

| metric | kind | labels | meaning |
|---|---|---|---|
`

// TestEmptyIsZero: a new site has no nodes and no leases, which is not the same as an unknown number of them.
func TestEmptyIsZero(t *testing.T) {
	s := New(Config{})
	s.Ask(Sources{Nodes: func(context.Context) ([]node.Count, error) { return nil, nil },
		Leases: func(context.Context) ([]node.Lease, error) { return nil, nil }})
	got := scrape(t, s)
	want(t, got, "ingot_nodes_", map[string]float64{`ingot_nodes_maintenance{}`: 0, `ingot_nodes_owned{}`: 0})
	want(t, got, "ingot_dhcp", map[string]float64{`ingot_dhcp_leases{state="leased"}`: 0,
		`ingot_dhcp_leases{state="expired"}`: 0, `ingot_dhcp_leases{state="declined"}`: 0})
}
