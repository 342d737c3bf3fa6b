package api

import (
	"context"
	"net/http"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/peer"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// meter counts requests.
type meter interface {
	// Request is called when an answer was sent. route is the path in the table of routes, "" for what is no route.
	Request(method, route string, code int, took time.Duration)
	// Repeated is called when a request whose node was locked is tried again.
	Repeated()
}

// tracer makes spans of requests.
type tracer interface {
	// Request begins the span of a request, and returns a context with it and what ends it.
	Request(ctx context.Context, r *http.Request) (in context.Context, end func(route string, status int))
	// Pass puts the trace of a context into a header, in place of one that is there.
	Pass(ctx context.Context, h http.Header)
	// TraceID is the ID of the trace of a context; "" without one.
	TraceID(ctx context.Context) string
}

// served has the facts about a request whose answer was sent.
type served struct {
	id       string
	began    time.Time
	took     time.Duration // 0: until now
	route    *call.Route   // nil: what was requested is none
	call     *call.Call    // nil: it was refused before its sender was known
	node     *node.Node    // of the address; nil: it was not found, or not looked for
	fields   []string      // of the body, see audit
	target   string
	status   int
	location string
}

// path is the route's; "" for what is none.
func (v *served) path() string {
	if v.route == nil {
		return ""
	}
	return v.route.Path
}

// served counts a request, and has one that would change something written into the audit log. Where it was forwarded
// from has done both.
func (s *Server) served(r *http.Request, seen *served, from *peer.Origin) {
	if from != nil {
		return
	}
	took := seen.took
	switch {
	case seen.route != nil && seen.route.Session:
	case took == 0:
		took = time.Since(seen.began)
	}
	if s.cfg.Meter != nil {
		method := r.Method
		if seen.route != nil {
			method = seen.route.Method
		}
		s.cfg.Meter.Request(method, seen.path(), seen.status, took)
	}
	if s.audited(seen) {
		s.cfg.Audit.Write(s.entry(r, seen, took))
	}
}

// metricsPath is where scrapers look for metrics.
const metricsPath = "/metrics"

// metrics returns the route of scrapes.
func (s *Server) metrics() []call.Route {
	return []call.Route{{Method: http.MethodGet, Path: metricsPath, Access: call.Read, Text: true,
		Answers: call.OK(""), Handle: func(_ context.Context, c *call.Call) (*call.Reply, error) {
			if s.cfg.Metrics == nil {
				return nil, rest.NotFound("This server shows no metrics here (metrics.api is off).")
			}
			return &call.Reply{Status: http.StatusOK,
				Stream: func(w http.ResponseWriter) { s.cfg.Metrics.ServeHTTP(w, c.Request) }}, nil
		}}}
}
