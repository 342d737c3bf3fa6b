package metrics

import "github.com/prometheus/client_golang/prometheus"

// sentNumbers are those of what leaves the conductor for its operators.
type sentNumbers struct{ audit, spans *prometheus.CounterVec }

func newSent(s *Set) sentNumbers {
	n := sentNumbers{
		audit: s.counter("ingot_audit_lines_total",
			"Lines of the audit log, to file or syslog: written, failed, or dropped because syslog was too slow.", "sink",
			"outcome"),
		spans: s.counter("ingot_traces_spans_total",
			"Spans of traces: sent, failed (the collector did not take them), or dropped because too many waited.",
			"outcome"),
	}
	for _, sink := range []string{"file", "syslog"} {
		n.audit.WithLabelValues(sink, "failed")
	}
	return n
}

// Audit counts a line of the audit log.
func (s *Set) Audit(sink, outcome string) { s.sent.audit.WithLabelValues(sink, outcome).Inc() }

// Spans counts spans.
func (s *Set) Spans(outcome string, spans int) {
	s.sent.spans.WithLabelValues(outcome).Add(float64(spans))
}
