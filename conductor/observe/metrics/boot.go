package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// bootNumbers are those of what machines that boot, and agents, are given.
type bootNumbers struct {
	answers, refusals, bytes *prometheus.CounterVec
	fetched                  *prometheus.HistogramVec
	agents                   *prometheus.CounterVec
}

func newBoot(s *Set) bootNumbers {
	return bootNumbers{
		answers: s.counter("ingot_boot_answers_total",
			"Answers to machines: of dhcp by type of message, of tftp files that were fetched to the end.", "service",
			"kind"),
		refusals: s.counter("ingot_boot_refusals_total",
			"Requests of machines over dhcp and tftp that were not answered or not fulfilled, by reason.", "service",
			"reason"),
		fetched: s.histogram("ingot_boot_http_seconds",
			"Time of a request to the HTTP server of the provisioning network, with its answer. Images are kind image.",
			long, "kind", "code"),
		bytes: s.counter("ingot_boot_http_bytes_total", "Bytes of its answers.", "kind"),
		agents: s.counter("ingot_agent_events_total",
			"What agents did: enrolments that were granted, refused or failed; sessions that were opened, closed,"+
				" redirected to the node's conductor or refused; connections that were sent away to come again, because too many came at once.", "event", "outcome"),
	}
}

// Answered counts an answer of dhcp or tftp.
func (s *Set) Answered(service, kind string) { s.boot.answers.WithLabelValues(service, kind).Inc() }

// Refused counts a request that had none.
func (s *Set) Refused(service, reason string) { s.boot.refusals.WithLabelValues(service, reason).Inc() }

// Fetched counts a request over HTTP; kind is "" for what is not served.
func (s *Set) Fetched(kind string, status int, bytes int64, took time.Duration) {
	if kind == "" {
		kind = other
	}
	s.boot.fetched.WithLabelValues(kind, strconv.Itoa(status)).Observe(took.Seconds())
	s.boot.bytes.WithLabelValues(kind).Add(float64(bytes))
}

// Agent counts what an agent did.
func (s *Set) Agent(event, outcome string) { s.boot.agents.WithLabelValues(event, outcome).Inc() }
