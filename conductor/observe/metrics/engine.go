package metrics

import (
	"encoding/json"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ingot-metal/ingot/conductor/node"
)

// engineNumbers are those of the work on machines.
type engineNumbers struct {
	states, jobs, steps *prometheus.HistogramVec
	written             *prometheus.CounterVec
	rates               *prometheus.HistogramVec
	calls               *prometheus.HistogramVec

	stepNames, ifaces, vendors *bound
}

// Buckets of what takes from seconds to hours.
var (
	long  = []float64{1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 10800}
	speed = []float64{1e6, 1e7, 2.5e7, 5e7, 1e8, 2e8, 4e8, 8e8, 1.6e9, 3.2e9}
)

func newEngine(s *Set, values int) engineNumbers {
	n := engineNumbers{
		states: s.histogram("ingot_node_state_seconds", "Time that nodes had been in a provision state when they left it.",
			long, "state"),
		jobs: s.histogram("ingot_job_seconds",
			"Time of a job (deploy, clean, inspect, ...) from the request to its end: done, failed or aborted.", long,
			"phase", "outcome"),
		steps: s.histogram("ingot_step_seconds", "Time of a step of a job that is over: done or failed.", long,
			"phase", "step", "outcome"),
		written: s.counter("ingot_step_written_bytes_total", "Bytes that steps wrote to disks.", "step"),
		rates: s.histogram("ingot_step_write_bytes_per_second", "How fast a step wrote, over its whole time.", speed,
			"step"),
		calls: s.histogram("ingot_controller_call_seconds",
			"Time of a call to a machine's controller. The outcome is ok or what kind of fault it was, as in the"+
				" reference of errors; the interface is the node's for that call.", short, "interface", "vendor", "call",
			"outcome"),
		stepNames: &bound{most: values}, ifaces: &bound{most: min(values, 32)}, vendors: &bound{most: min(values, 16)},
	}
	for _, outcome := range []string{"done", "failed", "aborted"} { // the first one is to be seen as a rise
		n.jobs.WithLabelValues(string(node.PhaseDeploy), outcome)
	}
	return n
}

// StateLeft counts a change of a node's state.
func (s *Set) StateLeft(state node.State, after time.Duration) {
	s.engine.states.WithLabelValues(string(state)).Observe(after.Seconds())
}

// JobEnded counts a job that is over.
func (s *Set) JobEnded(_ *node.Node, j *node.Job) {
	outcome := "done"
	switch {
	case j.Abort && j.Why == "" && j.Failure != "":
		outcome = "aborted"
	case j.Failure != "":
		outcome = "failed"
	}
	phase := string(j.Phase)
	if !j.StartedAt.IsZero() {
		s.engine.jobs.WithLabelValues(phase, outcome).Observe(max(0, s.now().Sub(j.StartedAt).Seconds()))
	}
	for _, st := range j.Steps {
		if st.Status != node.StepDone && st.Status != node.StepFailed || st.StartedAt.IsZero() || st.EndedAt.IsZero() {
			continue
		}
		name := s.engine.stepNames.value(st.Interface + "." + st.Name)
		took := max(0, st.EndedAt.Sub(st.StartedAt).Seconds())
		s.engine.steps.WithLabelValues(phase, name, string(st.Status)).Observe(took)
		var r struct {
			Written int64 `json:"bytes_written"`
			Took    int64 `json:"took_ms"`
		}
		if st.Status != node.StepDone || len(st.Result) == 0 || json.Unmarshal(st.Result, &r) != nil || r.Written <= 0 {
			continue
		}
		s.engine.written.WithLabelValues(name).Add(float64(r.Written))
		if r.Took > 0 {
			took = float64(r.Took) / 1000
		}
		if took > 0 {
			s.engine.rates.WithLabelValues(name).Observe(float64(r.Written) / took)
		}
	}
}

// Called counts a call to a controller. kind is that of its error, "" without one.
func (s *Set) Called(iface, vendor, call, kind string, took time.Duration) {
	if kind == "" {
		kind = "ok"
	}
	s.engine.calls.WithLabelValues(s.engine.ifaces.value(iface), s.engine.vendors.value(vendor), call, kind).
		Observe(took.Seconds())
}
