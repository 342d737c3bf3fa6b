// Package scrape measures what a scrape of metrics costs with few and with many nodes.
package scrape

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/metrics"
	"github.com/ingot-metal/ingot/conductor/store"
)

// most is the goal for a scrape with 10,000 nodes.
const most = 300 * time.Millisecond

// usual is metrics.node_series as it is by default.
const usual = 300_000

// site is a store with nodes, a set of metrics over it, and a server of both.
type site struct {
	set *metrics.Set
	url string
	mu  sync.Mutex
	now time.Time
}

// reading is that of a server with two processors, six fans, two power supplies and four drives.
func reading(at time.Time) node.Reading {
	r := node.Reading{At: at, Health: node.HealthOK}
	add := func(kind, unit, context string, n int, value float64) {
		for i := range n {
			r.Sensors = append(r.Sensors, node.Sensor{Name: fmt.Sprint(context, kind, i), Kind: kind, Unit: unit,
				Context: context, Value: &value, Health: node.HealthOK})
		}
	}
	add("temperature", "Cel", "CPU", 2, 51.5)
	add("temperature", "Cel", "Intake", 1, 21)
	add("fan", "RPM", "", 6, 4200)
	add("power", "W", "", 1, 180)
	for i := range 4 {
		r.Checked = append(r.Checked, node.Part{Kind: "drive", Name: fmt.Sprint("Disk ", i), Health: node.HealthOK})
	}
	for i := range 2 {
		r.Checked = append(r.Checked,
			node.Part{Kind: "power supply", Name: fmt.Sprint("PSU ", i), Health: node.HealthOK})
	}
	return r
}

func newSite(tb testing.TB, nodes, series int, count func()) *site {
	tb.Helper()
	st, err := store.Open(tb.Context(), store.Options{Dir: tb.TempDir(), Alone: true})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := st.Close(); err != nil {
			tb.Error(err)
		}
	})
	s := &site{now: time.Now()}
	now := func() time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.now
	}
	s.set = metrics.New(metrics.Config{NodeSeries: series, Now: now})
	states := []node.State{node.Active, node.Active, node.Active, node.Available, node.Deploying, node.CleanWait}
	var wg sync.WaitGroup
	next := make(chan int)
	for range 16 { // writes that wait together share a synchronisation
		wg.Go(func() {
			for i := range next {
				n := &node.Node{UUID: fmt.Sprintf("%08x-9dad-41d1-80b4-00c04fd430c8", i), Name: fmt.Sprintf("node-%05d", i),
					Driver: "redfish", Provision: states[i%len(states)], Power: "power on", Conductor: "c1",
					ProvisionUpdatedAt: s.now, Properties: map[string]any{"vendor": "lab", "cpus": 64.0},
					DriverInfo: map[string]any{"redfish_address": "https://192.0.2.1", "redfish_password": "secret"}}
				if err := st.CreateNode(tb.Context(), n); err != nil {
					tb.Error(err)
				}
				s.set.Reading(n, reading(s.now))
			}
		})
	}
	for i := range nodes {
		next <- i
	}
	close(next)
	wg.Wait()
	s.set.Ask(metrics.Sources{Hostname: "c1", Leases: st.Leases,
		Nodes: func(ctx context.Context) ([]node.Count, error) {
			count()
			return st.Census(ctx)
		}})
	srv := httptest.NewServer(s.set.Handler())
	tb.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

// scrape reads everything, a while after the last time, and returns the size.
func (s *site) scrape(tb testing.TB) int64 {
	tb.Helper()
	s.mu.Lock()
	s.now = s.now.Add(15 * time.Second)
	s.mu.Unlock()
	r, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, s.url, nil)
	if err != nil {
		tb.Fatal(err)
	}
	r.Header.Set("Accept-Encoding", "gzip") // as Prometheus does; the client then leaves it packed
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		tb.Fatalf("scrape: %d, %v", resp.StatusCode, err)
	}
	return n
}

// BenchmarkScrape prints what a scrape takes on loopback, packed, with the counts of the database read anew each time.
func BenchmarkScrape(b *testing.B) {
	for _, nodes := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("%d nodes", nodes), func(b *testing.B) {
			s := newSite(b, nodes, usual, func() {})
			s.scrape(b)
			var bytes int64
			begun := time.Now()
			for b.Loop() {
				bytes = s.scrape(b)
			}
			took := time.Since(begun) / time.Duration(b.N)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(took.Microseconds())/1000, "ms")
			b.ReportMetric(float64(bytes), "packed-bytes")
			if nodes == 10_000 && took > most {
				b.Errorf("a scrape with %d nodes takes %s, %s is wanted", nodes, took, most)
			}
		})
	}
}

// TestAScrapeDoesNotGrow: with ten times as many nodes a scrape asks the database as often and is as long, but for the
// series of single nodes, which end at their limit.
func TestAScrapeDoesNotGrow(t *testing.T) {
	size := func(nodes, series int) (bytes int64, questions int) {
		s := newSite(t, nodes, series, func() { questions++ })
		for range 3 {
			bytes = s.scrape(t)
		}
		return bytes, questions
	}
	few, once := size(40, 0)
	many, again := size(400, 0)
	if once != 3 || again != 3 || many > few*11/10 {
		t.Errorf("three scrapes: %d bytes and %d questions with 40 nodes, %d and %d with 400", few, once, many, again)
	}
	limited, _ := size(400, 1000)
	all, _ := size(400, usual)
	if limited > all/4 || limited <= many {
		t.Errorf("%d bytes with at most 1000 series of nodes, %d with all, %d with none", limited, all, many)
	}
}
