package spans

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/trace"
)

// receiver is a small collector: it decodes what it is sent, and keeps the spans.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	spans  []*otlp.Span
	from   []string // service.instance.id of each batch
	broken bool
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.broken {
			http.Error(w, "no room", http.StatusInsufficientStorage)
			return
		}
		body := io.Reader(req.Body)
		if req.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(body)
			if err != nil {
				t.Error(err)
				return
			}
			body = z
		}
		b, err := io.ReadAll(body)
		var m collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(b, &m)
		}
		if err != nil || req.URL.Path != "/v1/traces" || req.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s %s: %v", req.URL.Path, req.Header, err)
			return
		}
		for _, rs := range m.ResourceSpans {
			for _, a := range rs.Resource.Attributes {
				if a.Key == "service.instance.id" {
					r.from = append(r.from, a.Value.GetStringValue())
				}
			}
			for _, ss := range rs.ScopeSpans {
				r.spans = append(r.spans, ss.Spans...)
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(r.Close)
	return r
}

func attributeOf(s *otlp.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return strings.TrimSpace(fmt.Sprint(a.Value.GetStringValue(), " ", a.Value.GetIntValue()))
		}
	}
	return ""
}

// tally counts what became of spans.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *tally) count(outcome string, spans int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[outcome] += spans
}

func (c *tally) of(outcome string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[outcome]
}

// line is the time line of a job, by its ID.
type line map[string][]node.Mark

func (l line) Marks(_ context.Context, _, job string) ([]node.Mark, error) {
	if l[job] == nil {
		return nil, errors.New("away")
	}
	return l[job], nil
}

const jobID = "0b6f2a52-7a0b-4c4f-9d3e-3f4f5a6b7c8d"

var begun = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func deployment() (line, *node.Node, *node.Job) {
	var marks []node.Mark
	add := func(seconds float64, name, detail string) {
		marks = append(marks, node.Mark{JobID: jobID, Name: name, Detail: detail,
			At: begun.Add(time.Duration(seconds * float64(time.Second)))})
	}
	add(0, node.MarkRequested, "deploy")
	add(0.1, node.MarkStepBegan, "deploy")
	add(0.2, node.MarkBMC, "power on took 100ms")
	add(5, node.MarkDHCP, "10.0.0.2")
	add(9, node.MarkSession, "v1")
	add(9, node.MarkStepDone, "deploy")
	add(9.1, node.MarkStepBegan, "write_image")
	add(19.1, node.MarkStepFailed, "write_image: no disk")
	add(19.2, node.MarkState, "deploy failed")
	job := &node.Job{ID: jobID, Phase: node.PhaseDeploy, StartedAt: begun, EndedAt: begun.Add(19200 * time.Millisecond),
		Failure: "no disk"}
	n := &node.Node{UUID: "u-1", Name: "n1", Properties: map[string]any{"vendor": "lab"},
		Past: map[node.Phase]*node.Job{node.PhaseDeploy: job}}
	return line{jobID: marks}, n, job
}

// TestJobsAreTraces: a job that is over is one trace at the collector, with the IDs, the times and the nesting that the
// node's time line has.
func TestJobsAreTraces(t *testing.T) {
	r := newReceiver(t)
	marks, n, job := deployment()
	c := &tally{}
	e, err := New(t.Context(), Config{Endpoint: r.URL, Hostname: "c1", Marks: marks, Count: c.count})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { e.Run(ctx) })
	e.JobEnded(n, job)
	cancel() // what is queued is still made
	run.Wait()
	e.Close(t.Context())

	line := marks[jobID]
	want := trace.Spans(trace.Of(line, []*node.Job{job}, time.Now())[0])
	if len(r.spans) != len(want) || len(want) < 5 || c.of("sent") != len(want) {
		t.Fatalf("%d spans came, %d are counted, want %d", len(r.spans), c.of("sent"), len(want))
	}
	for _, w := range want {
		i := slices.IndexFunc(r.spans, func(s *otlp.Span) bool { return fmt.Sprintf("%x", s.SpanId) == w.Span })
		if i < 0 {
			t.Errorf("span %s (%s) is not there", w.Span, w.Name)
			continue
		}
		s := r.spans[i]
		failed := s.Status.GetCode() == otlp.Status_STATUS_CODE_ERROR
		if fmt.Sprintf("%x", s.TraceId) != w.Trace || fmt.Sprintf("%x", s.ParentSpanId) != w.Parent ||
			s.Name != w.Name ||
			s.StartTimeUnixNano != uint64(w.Begin.UnixNano()) || s.EndTimeUnixNano != uint64(w.End.UnixNano()) ||
			failed != w.Failed || attributeOf(s, "ingot.node") != "u-1 0" {
			t.Errorf("span %+v\nwant %+v", s, w)
		}
	}
	if w := strings.ReplaceAll(jobID, "-", ""); want[0].Trace != w || r.from[0] != "c1" {
		t.Errorf("trace %s of conductor %v, want that of the job, %s", want[0].Trace, r.from, w)
	}
}

// TestRequests: a request is a span in the trace of its client, which is passed on; without one, as many as the site
// wants begin a trace of their own.
func TestRequests(t *testing.T) {
	r := newReceiver(t)
	e, err := New(t.Context(), Config{Endpoint: r.URL, Percent: 0})
	if err != nil {
		t.Fatal(err)
	}
	const theirs = "4bf92f3577b34da6a3ce929d0e0e4736"
	in := httptest.NewRequest("PUT", "/v1/nodes/n1/states/power", nil)
	in.Header.Set("Traceparent", "00-"+theirs+"-00f067aa0ba902b7-01")
	ctx, end := e.Request(t.Context(), in)
	out := http.Header{"Traceparent": {"00-" + theirs + "-00f067aa0ba902b7-01"}, "Tracestate": {"x=y"}}
	e.Pass(ctx, out)
	if got := out.Get("Traceparent"); !strings.HasPrefix(got, "00-"+theirs+"-") ||
		strings.Contains(got, "00f067aa0ba902b7") {
		t.Errorf("passed on: %q, want a span of ours in the client's trace", got)
	}
	if got := TraceID(ctx); got != theirs {
		t.Errorf("trace %q, want %s", got, theirs)
	}
	end("/v1/nodes/{node}/states/power", 500)
	const notSampled = "00-" + theirs + "-00f067aa0ba902b7-00"
	for _, header := range []string{"", "nonsense", notSampled} {
		in := httptest.NewRequest("GET", "/", nil)
		in.Header.Set("Traceparent", header)
		ctx, end := e.Request(t.Context(), in)
		if id := TraceID(ctx); id != "" {
			t.Errorf("%q: a trace that is not sent has the ID %s", header, id)
		}
		end("/", 200)
	}
	e.Close(t.Context())
	if len(r.spans) != 1 {
		t.Fatalf("%d spans came, want 1", len(r.spans))
	}
	s := r.spans[0]
	if s.Name != "PUT /v1/nodes/{node}/states/power" || fmt.Sprintf("%x", s.ParentSpanId) != "00f067aa0ba902b7" ||
		s.Kind != otlp.Span_SPAN_KIND_SERVER || s.Status.GetCode() != otlp.Status_STATUS_CODE_ERROR ||
		attributeOf(s, "http.response.status_code") != "500" {
		t.Errorf("span %+v", s)
	}

	all, err := New(t.Context(), Config{Endpoint: r.URL, Percent: 100})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end = all.Request(t.Context(), httptest.NewRequest("GET", "/", nil))
	if TraceID(ctx) == "" {
		t.Error("a request has no trace though all are to have one")
	}
	end("", 404)
	all.Close(t.Context())
	if len(r.spans) != 2 || r.spans[1].Name != "GET" {
		t.Errorf("spans %v", r.spans)
	}
}

// TestNothingWaitsForTheCollector: one that does not answer, or refuses, costs spans and never time.
func TestNothingWaitsForTheCollector(t *testing.T) {
	stuck := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stuck }))
	defer srv.Close()
	defer close(stuck)
	marks, n, job := deployment()
	c := &tally{}
	e, err := New(t.Context(), Config{Endpoint: srv.URL, Percent: 100, Marks: marks, Count: c.count})
	if err != nil {
		t.Fatal(err)
	}
	most := time.Duration(0)
	for range 2 * queuedSpans {
		at := time.Now()
		_, end := e.Request(t.Context(), httptest.NewRequest("GET", "/", nil))
		end("/", 200)
		most = max(most, time.Since(at))
	}
	for range 2 * queuedJobs {
		at := time.Now()
		e.JobEnded(n, job) // nothing reads the queue
		most = max(most, time.Since(at))
	}
	if got := c.of("dropped"); got < queuedSpans/2+queuedJobs || most > 2*time.Second {
		t.Errorf("%d were dropped, the longest call took %v", got, most)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	e.Close(ctx)

	r := newReceiver(t)
	r.broken = true
	e, err = New(t.Context(), Config{Endpoint: r.URL, Percent: 100, Count: c.count})
	if err != nil {
		t.Fatal(err)
	}
	_, end := e.Request(t.Context(), httptest.NewRequest("GET", "/", nil))
	end("/", 200)
	e.Close(t.Context())
	if c.of("failed") == 0 {
		t.Error("spans that the collector refused are not counted")
	}
}

// TestNil: an exporter that is off does nothing.
func TestNil(t *testing.T) {
	var e *Exporter
	e.JobEnded(&node.Node{}, &node.Job{})
	e.Run(t.Context())
	e.Close(t.Context())
	if TraceID(t.Context()) != "" {
		t.Error("a context without a trace has an ID")
	}
}
