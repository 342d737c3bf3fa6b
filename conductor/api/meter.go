package api

import (
	"context"
	"net/http"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/peer"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// meter counts requests.
type meter interface {
	// Request is called when an answer was sent. route is the path in the table of routes, "" for what is no route.
	Request(method, route string, code int, took time.Duration)
}

// served has the facts about a request whose answer was sent.
type served struct {
	began  time.Time
	took   time.Duration // 0: until now
	route  *call.Route   // nil: what was requested is none
	status int
}

// served counts a request.
func (s *Server) served(r *http.Request, seen *served, from *peer.Origin) {
	if s.cfg.Meter == nil || from != nil {
		return
	}
	method, route := r.Method, ""
	if seen.route != nil {
		method, route = seen.route.Method, seen.route.Path
	}
	took := seen.took
	if took == 0 {
		took = time.Since(seen.began)
	}
	s.cfg.Meter.Request(method, route, seen.status, took)
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
