package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/app/doctor"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/member"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/events"
	"github.com/ingot-metal/ingot/conductor/observe/metrics"
	"github.com/ingot-metal/ingot/conductor/observe/spans"
	"github.com/ingot-metal/ingot/conductor/store"
)

// sources are the questions of a scrape to the parts of the conductor.
func sources(cfg config.Config, st *store.Store, en *engine.Engine, ag *agents.Server, hub *events.Hub,
	others *member.Conductors) metrics.Sources {
	return metrics.Sources{
		Hostname: cfg.Name(), Nodes: st.Census, Leases: st.Leases,
		Engine: func() (e metrics.Engine) {
			e.Due, e.Working, e.InLine = en.Load()
			return e
		},
		Agents: func() (a metrics.Agents) {
			a.Connected, a.Silence = ag.Watched()
			return a
		},
		Events: func() metrics.Events {
			e := metrics.Events{Last: hub.Last()}
			e.Watchers, e.Lag = hub.Watched()
			return e
		},
		Store: func() metrics.Store {
			return metrics.Store{Waiting: st.Waiting(), Bytes: st.Bytes(), Fault: st.Fault() != nil,
				Away: st.Away() != nil}
		},
		Conductors: func() map[string]int {
			n := map[string]int{"up": 0, "draining": 0, "gone": 0}
			for _, c := range others.All() {
				switch {
				case !c.Alive:
					n["gone"]++
				case c.Draining:
					n["draining"]++
				default:
					n["up"]++
				}
			}
			return n
		},
		Certificates: func() (map[string]time.Time, error) {
			ends, err := doctor.Ends(cfg)
			out := map[string]time.Time{}
			for _, e := range ends {
				out[e.Short] = e.At
			}
			return out, err
		},
	}
}

// newNumbers makes the set of metrics. A reading of a node's health is shown for three times as long as usually passes
// until the next.
func newNumbers(cfg config.Config, log *slog.Logger) *metrics.Set {
	return metrics.New(metrics.Config{NodeSeries: cfg.Metrics.NodeSeries, LabelValues: cfg.Metrics.LabelValues,
		Fresh: 3 * max(0, cfg.Health.Interval),
		Log:   log})
}

// work counts what the engine and the health's runner do, in the words of metrics, and has jobs traced.
type work struct {
	*metrics.Set
	sent *spans.Exporter // nil: no traces
}

// JobEnded counts a job that is over.
func (w work) JobEnded(n *node.Node, j *node.Job) {
	w.Set.JobEnded(n, j)
	w.sent.JobEnded(n, j)
}

// Called counts a call to a controller.
func (w work) Called(iface, vendor, call string, took time.Duration, err error) {
	kind := string(power.KindOf(err))
	if err != nil && kind == "" {
		kind = "other"
	}
	w.Set.Called(iface, vendor, call, kind, took)
}

// healthNumbers counts the readings of sensors.
type healthNumbers struct {
	*metrics.Set
	types *driver.Table
}

// HealthRead counts the call to the controller.
func (h healthNumbers) HealthRead(n *node.Node, took time.Duration, err error) {
	vendor, _ := n.Properties["vendor"].(string)
	work{h.Set, nil}.Called(h.types.Interface(n, "management"), vendor, "read health", took, err)
}

// openScrapes opens the listener for metrics; nil when none is configured.
func openScrapes(cfg config.Config, h http.Handler, who func(*http.Request) (*access.Actor, error),
	wrap func(net.Listener) net.Listener, log *slog.Logger) (*served, error) {
	if cfg.Metrics.Listen == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", cfg.Metrics.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for scrapes (metrics.listen): %w", err)
	}
	at, _ := l.Addr().(*net.TCPAddr)
	open := cfg.Metrics.InsecureListen || at != nil && at.IP.IsLoopback()
	limited := limit.ListenHTTP
	if cfg.API.TLSCert != "" && !open {
		limited = limit.Listen
	}
	l = limited(wrap(l), "metrics", limit.Connections{Total: limit.Scrapers, PerAddress: limit.ScrapersPerAddress}, nil,
		log)
	mux := http.NewServeMux()
	if !open {
		h = readersOnly(h, who, log)
		if l, err = encrypted(cfg, l, log); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	mux.Handle("/metrics", h)
	return &served{"scrapes", l, limit.HTTP(mux, log)}, nil
}

// readersOnly answers clients that the API would give the same.
func readersOnly(h http.Handler, who func(*http.Request) (*access.Actor, error), log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who == nil { // a listener that was handed over and is open to others is refused at the start
			http.Error(w, "authentication is off", http.StatusForbidden)
			return
		}
		a, err := who(r)
		var refusal *access.Refusal
		switch {
		case errors.As(err, &refusal):
			if refusal.Challenge != "" {
				w.Header().Set("WWW-Authenticate", refusal.Challenge)
			}
			if refusal.RetryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(refusal.RetryAfter.Seconds())+1))
			}
			http.Error(w, refusal.Message, refusal.Status)
		case err != nil:
			log.Error("authentication of a scraper failed for a reason of the server's own", "err", err)
			http.Error(w, "it could not be found out who you are; the server's log says why",
				http.StatusInternalServerError)
		case !a.May(access.IngotRead, access.Object{}):
			http.Error(w, "metrics are for readers of the system", http.StatusForbidden)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// close closes a listener that nothing has served.
func (s *served) close() error {
	if s == nil {
		return nil
	}
	return s.listener.Close()
}
