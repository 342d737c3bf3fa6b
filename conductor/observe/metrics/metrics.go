// Package metrics holds the numbers of a conductor and serves them in Prometheus' text format.
//
// A Set has a registry of its own and one method for each thing that happens; the parts of the conductor see no more of
// it than an interface of theirs, and none knows Prometheus. What is a state rather than an event (nodes, sessions,
// leases) is asked for when a scrape comes: Sources has a function for each, and one answer serves all scrapes of a
// second, so that a flood of them costs the database nothing.
//
// The number of series is bounded. Labels have values from fixed lists or go through a bound, which lets so many
// different ones through and calls the rest "other". Series of single nodes (sensors, under the names of
// ironic-prometheus-exporter) are written apart from the registry, as text, up to the limit that the site sets.
//
// Seconds, bytes and ratios are the units, as Prometheus asks for; a metric's name ends in its unit.
package metrics

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// Config is the configuration of a Set.
type Config struct {
	// NodeSeries is how many series of single nodes a scrape has at most; 0: none. Fresh is how old the reading of a
	// node's sensors may be to be shown; 0: any age.
	NodeSeries int
	// LabelValues is how many values a label has at most that names a step, an interface or a vendor; 0: 200. The
	// others are counted together, as "other". Vendors are 16 at most, and interfaces 32, since a call has both.
	LabelValues int
	Fresh       time.Duration

	Now func() time.Time // nil is time.Now
	Log *slog.Logger     // nil is silent
}

// Description documents a metric.
type Description struct {
	Name, Type, Help string
	Labels           []string
}

// Set is the numbers of one conductor. Safe for concurrent use.
type Set struct {
	log  *slog.Logger
	now  func() time.Time
	reg  *prometheus.Registry
	docs []Description

	api    apiNumbers
	store  storeNumbers
	engine engineNumbers
	boot   bootNumbers
	nodes  nodeSeries
	sent   sentNumbers

	series   *prometheus.GaugeVec
	asker    *asker
	scraped  prometheus.Observer
	scraping chan struct{}
}

// New makes a Set.
func New(cfg Config) *Set {
	s := &Set{log: cfg.Log, now: cfg.Now, reg: prometheus.NewRegistry(),
		scraping: make(chan struct{}, limit.ScrapesAtOnce)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.api = newAPI(s)
	s.store = newStore(s)
	s.engine = newEngine(s, cmp.Or(max(0, cfg.LabelValues), 200))
	s.boot, s.sent = newBoot(s), newSent(s)
	s.nodes = nodeSeries{most: cfg.NodeSeries, fresh: cfg.Fresh, byUUID: map[string]*machine{}}
	s.scraped = s.histogram("ingot_metrics_scrape_seconds", "Time to make and send the answer to a scrape.", short).
		WithLabelValues()
	const name, help = "ingot_metrics_node_series",
		"Series of single nodes: shown, and left out because there would be more than metrics.node_series."
	s.describe("gauge", name, help, []string{"what"})
	s.series = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"what"})
	s.asker = newAsker(s)
	s.reg.MustRegister(s.series, s.asker, collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return s
}

// Ask sets what is asked when a scrape comes. Before, scrapes have only what was counted.
func (s *Set) Ask(sources Sources) {
	s.asker.mu.Lock()
	defer s.asker.mu.Unlock()
	s.asker.sources, s.asker.last = sources, nil
}

// Buckets of histograms, in seconds.
var (
	tiny  = []float64{.0001, .0005, .001, .0025, .005, .01, .025, .1, .5, 2.5, 10}
	short = []float64{.001, .005, .025, .1, .25, .5, 1, 2.5, 10, 30}
)

func (s *Set) describe(kind, name, help string, labels []string) {
	s.docs = append(s.docs, Description{name, kind, help, labels})
}

func (s *Set) counter(name, help string, labels ...string) *prometheus.CounterVec {
	s.describe("counter", name, help, labels)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	s.reg.MustRegister(v)
	return v
}

func (s *Set) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	s.describe("histogram", name, help, labels)
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	s.reg.MustRegister(v)
	return v
}

// Descriptions are those of all metrics of Ingot's own. The standard ones of Go's runtime (go_...) and of the process
// (process_...) are left out.
func (s *Set) Descriptions() []Description {
	all := slices.Clone(s.docs)
	for _, f := range families {
		d := Description{f.name, "gauge", f.help, nodeLabels}
		if f.name == families[readAt].name {
			d.Labels = nodeLabels[:3]
		}
		all = append(all, d)
	}
	return all
}

// bound lets a number of different values of a label through; what comes later is "other".
type bound struct {
	most int
	mu   sync.RWMutex
	seen map[string]bool
}

// longest bounds a label's value, in bytes.
const longest = 64

func (b *bound) value(v string) string {
	if v == "" {
		return "none"
	}
	b.mu.RLock()
	known := b.seen[v]
	b.mu.RUnlock()
	if known {
		return v
	}
	if len(v) > longest || !printable(v) {
		return other
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen == nil {
		b.seen = map[string]bool{}
	}
	if !b.seen[v] && len(b.seen) >= b.most {
		return other
	}
	b.seen[v] = true
	return v
}

// other stands for all values beyond a bound.
const other = "other"

// printable reports whether a text is printable ASCII.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
