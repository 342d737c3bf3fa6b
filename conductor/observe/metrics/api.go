package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// apiNumbers are those of the REST API.
type apiNumbers struct {
	requests *prometheus.HistogramVec
	repeats  prometheus.Counter
}

func newAPI(s *Set) apiNumbers {
	return apiNumbers{s.histogram("ingot_api_request_seconds",
		"Time from a request to the end of its answer; for the stream of events, to its beginning. Requests for what"+
			" is no route have the route and the method \"other\".", short, "method", "route", "code"),
		s.counter("ingot_api_repeats_total",
			"Times that a request was tried again by itself, because its node was locked.").WithLabelValues()}
}

// Repeated counts a request that is tried again.
func (s *Set) Repeated() { s.api.repeats.Inc() }

// Request counts a request to the API. route is the path of the table of routes, "" for what is none.
func (s *Set) Request(method, route string, code int, took time.Duration) {
	if route == "" {
		method, route = other, other
	}
	s.api.requests.WithLabelValues(method, route, strconv.Itoa(code)).Observe(took.Seconds())
}
