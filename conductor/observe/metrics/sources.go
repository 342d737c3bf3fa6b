package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Sources are what is asked when a scrape comes. Nil functions are left out, with their metrics.
type Sources struct {
	Hostname   string // of this conductor, as nodes name their owner
	Nodes      func(ctx context.Context) ([]node.Count, error)
	Leases     func(ctx context.Context) ([]node.Lease, error)
	Engine     func() Engine
	Agents     func() Agents
	Events     func() Events
	Store      func() Store
	Conductors func() map[string]int // how many are "up", "draining" and "gone"
	// Certificates are the times when they end, by a short name.
	Certificates func() (map[string]time.Time, error)
}

// Engine is how much work there is.
type Engine struct {
	Due     int // nodes that wait for a worker
	Working int // nodes that a worker has
	InLine  int // nodes that wait for a controller that is in use
}

// Agents is how the agents are.
type Agents struct {
	Connected int
	Silence   time.Duration // since the message of the one that said nothing for longest
}

// Events is about the stream of events.
type Events struct {
	Last     int64 // number of the newest
	Watchers int
	Lag      int64 // how far the slowest watcher is behind
}

// Store is about the database.
type Store struct {
	Waiting     int   // writes that wait for their turn
	Bytes       int64 // of its file and journal; 0 with a server
	Fault, Away bool
}

// answers are what the sources said.
type answers struct {
	hostname string
	now      time.Time
	nodes    []node.Count // nil: not known
	leases   []node.Lease // the same
	engine   *Engine
	agents   *Agents
	events   *Events
	store    *Store
	members  map[string]int
	ends     map[string]time.Time
	healths  map[string]int // of nodes whose sensors are shown here
}

// sample is one value of a metric, with the values of its labels.
type sample struct {
	value  float64
	labels []string
}

func one(v float64) []sample { return []sample{{value: v}} }

// gauge is a row of the metrics that are made of answers.
type gauge struct {
	name, help string
	labels     []string
	samples    func(a *answers) []sample
}

// gauges lists them. Numbers of nodes are those of the whole database, the same at each conductor.
func gauges() []gauge {
	return []gauge{
		{"ingot_nodes", "Nodes by provision state, of all conductors.", []string{"state"},
			counted(func(c node.Count) string { return string(c.State) }, nil)},
		{"ingot_nodes_power", "Nodes by power state, of all conductors.", []string{"power"},
			counted(func(c node.Count) string { return c.Power }, nil)},
		{"ingot_nodes_fault", "Nodes with a fault, of all conductors.", []string{"fault"},
			counted(func(c node.Count) string { return c.Fault }, func(c node.Count) bool { return c.Fault != "" })},
		{"ingot_nodes_maintenance", "Nodes in maintenance, of all conductors.", nil, func(a *answers) []sample {
			return a.sum(func(c node.Count) bool { return c.Maintenance })
		}},
		{"ingot_nodes_owned", "Nodes that belong to this conductor.", nil, func(a *answers) []sample {
			return a.sum(func(c node.Count) bool { return c.Conductor == a.hostname })
		}},
		{"ingot_nodes_health", "Nodes of this conductor by the health that their controllers report.",
			[]string{"health"}, func(a *answers) (out []sample) {
				for health, n := range a.healths {
					out = append(out, sample{float64(n), []string{health}})
				}
				return out
			}},
		{"ingot_node_state_oldest_seconds",
			"Time for which the node that has been in a state for longest has been in it; states of work only.",
			[]string{"state"}, oldest},
		{"ingot_engine_due", "Nodes of this conductor that wait for a worker.", nil,
			number(ofEngine, func(e Engine) float64 { return float64(e.Due) })},
		{"ingot_engine_working", "Nodes that this conductor works on at the moment.", nil,
			number(ofEngine, func(e Engine) float64 { return float64(e.Working) })},
		{"ingot_engine_waiting_for_controller", "Nodes that wait for a controller that is in use.", nil,
			number(ofEngine, func(e Engine) float64 { return float64(e.InLine) })},
		{"ingot_agents_connected", "Agents with a session at this conductor.", nil,
			number(ofAgents, func(v Agents) float64 { return float64(v.Connected) })},
		{"ingot_agent_silence_seconds",
			"Time since the last message of the connected agent that has said nothing for longest.", nil,
			number(ofAgents, func(v Agents) float64 { return v.Silence.Seconds() })},
		{"ingot_event_last", "Number of the newest event; it rises by one from event to event.", nil,
			number(ofEvents, func(e Events) float64 { return float64(e.Last) })},
		{"ingot_event_watchers", "Clients that follow the events at this conductor.", nil,
			number(ofEvents, func(e Events) float64 { return float64(e.Watchers) })},
		{"ingot_event_lag", "Events that the slowest of them has not read yet.", nil,
			number(ofEvents, func(e Events) float64 { return float64(e.Lag) })},
		{"ingot_store_writes_waiting", "Writes that wait for their turn.", nil,
			number(ofStore, func(v Store) float64 { return float64(v.Waiting) })},
		{"ingot_store_fault", "1 when the database is damaged or lost, and nothing is written any more.", nil,
			number(ofStore, func(v Store) float64 { return truth(v.Fault) })},
		{"ingot_store_away", "1 while the database's server can't be reached.", nil,
			number(ofStore, func(v Store) float64 { return truth(v.Away) })},
		{"ingot_store_bytes", "Size of the database's file and its journal; 0 with PostgreSQL.", nil,
			number(ofStore, func(v Store) float64 { return float64(v.Bytes) })},
		{"ingot_conductors", "Conductors of this database: up, draining, or gone without having left it.",
			[]string{"state"}, func(a *answers) (out []sample) {
				for state, n := range a.members {
					out = append(out, sample{float64(n), []string{state}})
				}
				return out
			}},
		{"ingot_dhcp_leases", "Addresses on the provisioning network: leased, expired, or declined by machines.",
			[]string{"state"}, leases},
		{"ingot_certificate_days", "Days until a certificate ends; negative afterwards.", []string{"certificate"},
			func(a *answers) (out []sample) {
				for name, at := range a.ends {
					out = append(out, sample{at.Sub(a.now).Hours() / 24, []string{name}})
				}
				return out
			}},
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// number makes the only sample of a metric, unless its source is missing.
func number[T any](from func(a *answers) *T, value func(T) float64) func(a *answers) []sample {
	return func(a *answers) []sample {
		if v := from(a); v != nil {
			return one(value(*v))
		}
		return nil
	}
}

func ofEngine(a *answers) *Engine { return a.engine }
func ofAgents(a *answers) *Agents { return a.agents }
func ofEvents(a *answers) *Events { return a.events }
func ofStore(a *answers) *Store   { return a.store }

// sum counts the nodes that a condition holds for.
func (a *answers) sum(holds func(node.Count) bool) []sample {
	if a.nodes == nil {
		return nil
	}
	n := 0
	for _, c := range a.nodes {
		if holds(c) {
			n += c.Nodes
		}
	}
	return one(float64(n))
}

// counted counts nodes by a label, those that a condition holds for; nil: all.
func counted(label func(node.Count) string, holds func(node.Count) bool) func(a *answers) []sample {
	values := &bound{most: 64}
	return func(a *answers) (out []sample) {
		n := map[string]int{}
		for _, c := range a.nodes {
			if holds == nil || holds(c) {
				n[values.value(label(c))] += c.Nodes
			}
		}
		for v, n := range n {
			out = append(out, sample{float64(n), []string{v}})
		}
		return out
	}
}

// oldest is how long nodes have been in states of work.
func oldest(a *answers) (out []sample) {
	since := map[node.State]time.Time{}
	for _, c := range a.nodes {
		if c.State.IsStable() {
			continue
		}
		if at, ok := since[c.State]; !ok || c.Since.Before(at) {
			since[c.State] = c.Since
		}
	}
	for state, at := range since {
		out = append(out, sample{max(0, a.now.Sub(at).Seconds()), []string{string(state)}})
	}
	return out
}

func leases(a *answers) (out []sample) {
	if a.leases == nil {
		return nil
	}
	n := map[string]int{"leased": 0, "expired": 0, "declined": 0}
	for _, l := range a.leases {
		switch {
		case !l.ExpiresAt.After(a.now):
			n["expired"]++
		case l.Declined():
			n["declined"]++
		default:
			n["leased"]++
		}
	}
	for state, n := range n {
		out = append(out, sample{float64(n), []string{state}})
	}
	return out
}

// asker makes metrics of the sources' answers.
type asker struct {
	set   *Set
	rows  []gauge
	descs []*prometheus.Desc
	errs  *prometheus.CounterVec

	mu      sync.Mutex
	sources Sources
	last    *answers
	until   time.Time // last is good until then
}

func newAsker(s *Set) *asker {
	k := &asker{set: s, rows: gauges(), errs: s.counter("ingot_metrics_source_errors_total",
		"Answers that a scrape lacks, because a part of the conductor could not give them.", "source")}
	for _, g := range k.rows {
		s.describe("gauge", g.name, g.help, g.labels)
		k.descs = append(k.descs, prometheus.NewDesc(g.name, g.help, g.labels, nil))
	}
	return k
}

// Describe implements prometheus.Collector.
func (k *asker) Describe(to chan<- *prometheus.Desc) {
	for _, d := range k.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (k *asker) Collect(to chan<- prometheus.Metric) {
	a := k.ask()
	for i, g := range k.rows {
		for _, v := range g.samples(a) {
			to <- prometheus.MustNewConstMetric(k.descs[i], prometheus.GaugeValue, v.value, v.labels...)
		}
	}
}

// fresh is how long an answer serves further scrapes, and askTime bounds the time of the questions together.
const (
	fresh   = time.Second
	askTime = 5 * time.Second
)

// ask asks all sources, unless that was done just now.
func (k *asker) ask() *answers {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.set.now()
	if k.last != nil && now.Before(k.until) {
		return k.last
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	q := k.sources
	a := &answers{hostname: q.Hostname, now: now}
	a.nodes = rows(answer(ctx, k, "nodes", q.Nodes))
	a.leases = rows(answer(ctx, k, "leases", q.Leases))
	if q.Certificates != nil {
		a.ends, _ = answer(ctx, k, "certificates", func(context.Context) (map[string]time.Time, error) {
			return q.Certificates()
		})
	}
	a.engine, a.agents = optional(q.Engine), optional(q.Agents)
	a.events, a.store = optional(q.Events), optional(q.Store)
	if q.Conductors != nil {
		a.members = q.Conductors()
	}
	a.healths = k.set.nodes.healths(now)
	k.last, k.until = a, k.set.now().Add(fresh)
	return a
}

// optional calls a source that may be absent.
func optional[T any](f func() T) *T {
	if f == nil {
		return nil
	}
	v := f()
	return &v
}

// answer asks one source, and reports whether it gave an answer.
func answer[T any](ctx context.Context, k *asker, name string, f func(context.Context) (T, error)) (v T, ok bool) {
	if f == nil {
		return v, false
	}
	v, err := f(ctx)
	if err != nil {
		k.errs.WithLabelValues(name).Inc()
		k.set.log.Warn("a scrape lacks what could not be read", "source", name, "err", err)
	}
	return v, err == nil
}

// rows makes a list that is known to be empty one that is not nil.
func rows[T any](list []T, ok bool) []T {
	if ok && list == nil {
		return []T{}
	}
	return list
}
