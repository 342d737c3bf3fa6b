// Package trace shows where the time of a job went: it makes spans of the marks that the conductor's parts put on a
// node's time line.
//
// A trace covers its job from the request to the end without a gap, and every instant of it belongs to exactly one
// leaf, a span without spans in it. The cause of a stretch of time is read from the mark at its end and from how far
// the machine had come before it: "power is on" and then a DHCP request leave nothing but firmware in between. Where
// the marks leave the cause open, the stretch is a leaf of kind Unknown; the share of all the others is the trace's
// Attributed. Marks of one job may come from several conductors, with clocks that differ, or arrive later (the kernel's
// start, from the agent's uptime): they are taken in the order of their times, and none leads back to a stage that the
// machine has left. If the clock was set back, which shows in the order of recording, the earlier marks are moved back
// with it.
//
// All functions are pure. Waterfall draws a trace for a terminal, OTLP writes it for OpenTelemetry.
package trace

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// Kinds of spans.
const (
	Conductor = "conductor" // the conductor's own work: looking up, storing, deciding
	BMC       = "bmc"       // the controller, or the machine's power following it
	Firmware  = "firmware"
	Network   = "network" // DHCP, TFTP, HTTP of a machine that boots
	Kernel    = "kernel"
	Agent     = "agent"
	Step      = "step"
	Kexec     = "kexec"
	OS        = "os"
	Wait      = "wait"    // for a person, or for the next try
	Unknown   = "unknown" // the marks leave it open
	Group     = "group"
)

// clockSlack is how far the clocks of conductors may be apart. A mark that is earlier by more than one that was
// recorded before it shows that the clock was set back.
const clockSlack = 5 * time.Minute

// Of makes the traces of a node's jobs, oldest first, of marks in the order in which they were recorded. jobs are those
// whose steps' results are known; the one that is under way at now has no EndedAt.
func Of(marks []node.Mark, jobs []*node.Job, now time.Time) []rest.Trace {
	byJob := map[string][]node.Mark{}
	var ids []string
	for _, m := range marks {
		if m.JobID == "" {
			continue
		}
		if byJob[m.JobID] == nil {
			ids = append(ids, m.JobID)
		}
		byJob[m.JobID] = append(byJob[m.JobID], m)
	}
	out := []rest.Trace{}
	for _, id := range ids {
		var job *node.Job
		if i := slices.IndexFunc(jobs, func(j *node.Job) bool { return j != nil && j.ID == id }); i >= 0 {
			job = jobs[i]
		}
		out = append(out, one(id, byJob[id], job, now))
	}
	return out
}

// Last finds the newest trace of a phase, or of any if phase is ""; nil if there is none.
func Last(traces []rest.Trace, phase string) *rest.Trace {
	for i, t := range slices.Backward(traces) {
		if phase == "" || t.Phase == phase {
			return &traces[i]
		}
	}
	return nil
}

// Then extends a trace that is over by an observation from outside, such as on the machine's console: a leaf from its
// end until then.
func Then(t *rest.Trace, name, kind, detail string, until time.Time) {
	if !until.After(t.End) {
		return
	}
	t.Spans = append(t.Spans,
		rest.Span{Name: name, Kind: kind, Detail: detail, Begin: t.End, End: until,
			Seconds: until.Sub(t.End).Seconds()})
	t.End = until
	total(t)
}

// Leaves are the spans of a trace that have none in them, in order.
func Leaves(spans []rest.Span) []rest.Span {
	var out []rest.Span
	for _, s := range spans {
		if len(s.Spans) == 0 {
			out = append(out, s)
		} else {
			out = append(out, Leaves(s.Spans)...)
		}
	}
	return out
}

// Spent sums the seconds of leaves by kind.
func Spent(t rest.Trace) map[string]float64 {
	out := map[string]float64{}
	for _, s := range Leaves(t.Spans) {
		out[s.Kind] += s.Seconds
	}
	return out
}

// total computes the attributes of the whole trace.
func total(t *rest.Trace) {
	t.Seconds = t.End.Sub(t.Begin).Seconds()
	t.Attributed = 1
	if t.Seconds > 0 {
		t.Attributed = max(0, 1-Spent(*t)[Unknown]/t.Seconds)
	}
}

// one makes the trace of one job.
func one(id string, marks []node.Mark, job *node.Job, now time.Time) rest.Trace {
	marks = slices.Clone(marks)
	setBack(marks)
	begin := slices.MinFunc(marks, func(a, b node.Mark) int { return a.At.Compare(b.At) }).At
	for _, m := range marks {
		if m.Name == node.MarkRequested {
			begin = m.At
			break
		}
	}
	// All actions of this job began after it was requested.
	marks = slices.DeleteFunc(marks, func(m node.Mark) bool { return m.At.Before(begin) && fromUptime(m) })
	for i := range marks { // of other conductors, whose clocks differ
		if marks[i].At.Before(begin) {
			marks[i].At = begin
		}
	}
	slices.SortStableFunc(marks, func(a, b node.Mark) int { return cmp.Or(a.At.Compare(b.At), first(b)-first(a)) })

	w := walk{at: begin}
	out := rest.Trace{JobID: id, Begin: begin, Open: job != nil && job.EndedAt.IsZero()}
	if job != nil {
		out.Phase = string(job.Phase)
	}
	for _, m := range marks {
		if m.Name == node.MarkRequested && out.Phase == "" {
			out.Phase, _, _ = strings.Cut(m.Detail, ":")
		}
		w.take(m)
	}
	out.End = begin
	if n := len(marks); n > 0 {
		out.End = marks[n-1].At
	}
	if out.Open && now.After(out.End) {
		out.End = now
	}
	w.rest(out.End, "", false)
	out.Outcome, out.FirmwareBoots, out.Kexecs = rest.Null(w.state), w.boots, w.kexecs
	if out.Open {
		out.Outcome = ""
	}
	if job != nil {
		w.results(job)
	}
	out.Spans = tree(w.leaves, 0)
	total(&out)
	return out
}

// setBack moves marks back that were recorded before the clock was set back: each time the newest of them to where the
// clock was set.
func setBack(marks []node.Mark) {
	var newest time.Time
	for i, m := range marks {
		if fromUptime(m) {
			continue
		}
		if back := newest.Sub(m.At); back >= clockSlack {
			for j := range marks[:i] {
				marks[j].At = marks[j].At.Add(-back)
			}
			newest = m.At
		} else if back < 0 {
			newest = m.At
		}
	}
}

// fromUptime reports whether a mark's time was computed from a machine's clock, after the fact.
func fromUptime(m node.Mark) bool {
	return m.Name == node.MarkKernelStart || m.Name == node.MarkAgentStart
}

// first puts the request before whatever has the same time.
func first(m node.Mark) int {
	if m.Name == node.MarkRequested {
		return 1
	}
	return 0
}

// result is the part of a step's result about the bytes it moved.
type result struct {
	Written int64 `json:"bytes_written"`
	Took    int64 `json:"took_ms"`
}

// results puts bytes and rates to the spans of steps.
func (w *walk) results(job *node.Job) {
	for _, s := range job.Steps {
		var r result
		if len(s.Result) == 0 || json.Unmarshal(s.Result, &r) != nil || r.Written <= 0 {
			continue
		}
		for i := range slices.Backward(w.leaves) { // the last run is the one that has the result
			l := &w.leaves[i]
			if l.step != s.Name || l.failed || l.span.Kind != Step {
				continue
			}
			l.span.Bytes = uint64(r.Written)
			took := l.span.End.Sub(l.span.Begin)
			if r.Took > 0 {
				took = time.Duration(r.Took) * time.Millisecond
			}
			if took > 0 {
				l.span.Rate = uint64(float64(r.Written) / took.Seconds())
			}
			break
		}
	}
}

// tree puts consecutive leaves of one group under a span of that group. depth is how many groups are done already.
func tree(leaves []leaf, depth int) []rest.Span {
	var out []rest.Span
	for i := 0; i < len(leaves); {
		if len(leaves[i].path) == depth {
			out = append(out, leaves[i].span)
			i++
			continue
		}
		g := leaves[i].path[depth]
		n := i
		for n < len(leaves) && len(leaves[n].path) > depth && leaves[n].path[depth].n == g.n {
			n++
		}
		// a step without parts
		if n == i+1 && len(leaves[i].path) == depth+1 && leaves[i].step != "" && leaves[i].step == g.step {
			out = append(out, leaves[i].span)
			i = n
			continue
		}
		s := rest.Span{Name: g.name, Kind: Group, Step: g.step, Begin: leaves[i].span.Begin, End: leaves[n-1].span.End,
			Spans: tree(leaves[i:n], depth+1)}
		s.Seconds = s.End.Sub(s.Begin).Seconds()
		if last := leaves[n-1]; g.step != "" && last.failed {
			s.Failed, s.Detail = true, last.span.Detail
		}
		out = append(out, s)
		i = n
	}
	return out
}
