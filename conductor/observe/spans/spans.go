// Package spans sends traces to an OpenTelemetry collector, over HTTP, with the project's own SDK: one span for each
// request to the API, and one trace for each job, made of the node's time line when the job is over.
//
// Nothing waits for the collector. Jobs go into a queue and spans into the SDK's; what finds its queue full is dropped
// and counted. A job's trace has the same IDs as the document that package trace makes of it (GET .../timeline), so
// that the same job is never there twice.
package spans

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	otel "go.opentelemetry.io/otel/trace"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/trace"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// marks reads a node's time line.
type marks interface {
	Marks(ctx context.Context, nodeUUID, jobID string) ([]node.Mark, error)
}

// Config is the configuration of an Exporter.
type Config struct {
	Endpoint string // URL of the collector, http://HOST:4318; without a path it is /v1/traces
	Percent  int    // of the requests that come without a trace of their client; 0 to 100
	Hostname string // of this conductor
	Marks    marks
	// Count, unless nil, is called with a number of spans that were "sent", "failed" or "dropped".
	Count func(outcome string, spans int)
	Log   *slog.Logger // nil is silent
}

// Sizes and times of the queues.
const (
	queuedJobs  = 256
	queuedSpans = 4096
	sendTime    = 10 * time.Second
	readTime    = 10 * time.Second
	complain    = time.Minute // between two lines about a collector that does not take spans
)

// Exporter sends traces. A nil *Exporter sends none.
type Exporter struct {
	cfg      Config
	log      *slog.Logger
	provider *sdk.TracerProvider
	tracer   otel.Tracer
	wire     propagation.TraceContext
	jobs     chan ended
}

// ended is a job that is over.
type ended struct {
	node, name, vendor string
	job                *node.Job
}

// New makes an Exporter; Run sends the traces of jobs, and Close what is left. It does not connect to the collector.
func New(ctx context.Context, cfg Config) (*Exporter, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Count == nil {
		cfg.Count = func(string, int) {}
	}
	at, err := url.Parse(cfg.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("traces.endpoint: %w", err)
	}
	if at.Path == "" || at.Path == "/" {
		at.Path = "/v1/traces"
	}
	to, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(at.String()), otlptracehttp.WithTimeout(sendTime))
	if err != nil {
		return nil, fmt.Errorf("traces.endpoint: %w", err)
	}
	e := &Exporter{cfg: cfg, log: cfg.Log, jobs: make(chan ended, queuedJobs)}
	queue := &queue{count: cfg.Count}
	queue.SpanProcessor = sdk.NewBatchSpanProcessor(&sender{SpanExporter: to, queue: queue, log: cfg.Log},
		sdk.WithMaxQueueSize(queuedSpans), sdk.WithExportTimeout(sendTime))
	e.provider = sdk.NewTracerProvider(sdk.WithSpanProcessor(queue), sdk.WithIDGenerator(given{}),
		sdk.WithSampler(allJobs{sdk.ParentBased(sdk.TraceIDRatioBased(float64(cfg.Percent) / 100))}),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "ingot"),
			attribute.String("service.instance.id", cfg.Hostname))))
	e.tracer = e.provider.Tracer("ingot")
	return e, nil
}

// Close sends what is queued, for as long as ctx lasts.
func (e *Exporter) Close(ctx context.Context) {
	if e == nil {
		return
	}
	if err := e.provider.Shutdown(ctx); err != nil {
		e.log.Debug("end the traces", "err", err)
	}
}

// Request begins the span of a request to the API, in the trace that the client names in traceparent, if it does. The
// context that is returned has the span; end ends it with the request's route, "" for none, and the status of the
// answer.
func (e *Exporter) Request(ctx context.Context, r *http.Request) (in context.Context,
	end func(route string, status int)) {
	in, span := e.tracer.Start(e.wire.Extract(ctx, propagation.HeaderCarrier(r.Header)), r.Method,
		otel.WithSpanKind(otel.SpanKindServer))
	return in, func(route string, status int) {
		if route != "" {
			span.SetName(r.Method + " " + route)
			span.SetAttributes(attribute.String("http.route", route))
		}
		span.SetAttributes(attribute.String("http.request.method", r.Method),
			attribute.Int("http.response.status_code", status))
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(status))
		}
		span.End()
	}
}

// Pass puts the trace of a context into the header of a request that is sent on, in place of the client's.
func (e *Exporter) Pass(ctx context.Context, h http.Header) {
	h.Del("traceparent")
	h.Del("tracestate")
	e.wire.Inject(ctx, propagation.HeaderCarrier(h))
}

// TraceID is the ID of the trace of a context; "" if it has none, or one that is not sent.
func TraceID(ctx context.Context) string {
	if s := otel.SpanContextFromContext(ctx); s.IsValid() && s.IsSampled() {
		return s.TraceID().String()
	}
	return ""
}

// TraceID is TraceID, for callers that know an Exporter alone.
func (*Exporter) TraceID(ctx context.Context) string { return TraceID(ctx) }

// JobEnded queues the trace of a job that is over. It does not wait.
func (e *Exporter) JobEnded(n *node.Node, j *node.Job) {
	if e == nil {
		return
	}
	vendor, _ := n.Properties["vendor"].(string)
	job := *j
	if past := n.Past[j.Phase]; past != nil && past.ID == j.ID { // with its end
		job = *past
	} else {
		job.EndedAt = time.Now().UTC()
	}
	select {
	case e.jobs <- ended{n.UUID, n.Name, vendor, &job}:
	default:
		e.cfg.Count("dropped", 1)
	}
}

// Run makes the traces of jobs, until ctx ends.
func (e *Exporter) Run(ctx context.Context) {
	if e == nil {
		return
	}
	for {
		select {
		case j := <-e.jobs:
			e.export(ctx, j)
		case <-ctx.Done():
			for { // what was queued before
				select {
				case j := <-e.jobs:
					e.export(context.WithoutCancel(ctx), j)
				default:
					return
				}
			}
		}
	}
}

// export makes the spans of a job.
func (e *Exporter) export(ctx context.Context, j ended) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	line, err := e.cfg.Marks.Marks(ctx, j.node, j.job.ID)
	if err != nil {
		e.log.Warn("a job has no trace: its time line can't be read", "node", j.node, "err", err)
		return
	}
	traces := trace.Of(line, []*node.Job{j.job}, time.Now().UTC())
	i := slices.IndexFunc(traces, func(t rest.Trace) bool { return t.JobID == j.job.ID })
	if i < 0 {
		return
	}
	for _, s := range trace.Spans(traces[i]) {
		e.send(j, s)
	}
}

// send ends a span at once, with the times that it had.
func (e *Exporter) send(j ended, s trace.Flat) {
	ids := idsOf(s)
	ctx := context.WithValue(context.Background(), idKey{}, ids)
	if s.Parent != "" {
		ctx = otel.ContextWithSpanContext(ctx, otel.NewSpanContext(otel.SpanContextConfig{TraceID: ids.trace,
			SpanID: ids.parent, TraceFlags: otel.FlagsSampled}))
	}
	_, span := e.tracer.Start(ctx, s.Name, otel.WithTimestamp(s.Begin))
	span.SetAttributes(attribute.String("ingot.node", j.node))
	if s.Parent == "" {
		span.SetAttributes(attribute.String("ingot.node_name", j.name), attribute.String("ingot.vendor", j.vendor))
	}
	for _, a := range s.Attributes {
		switch v := a.Value.(type) {
		case string:
			span.SetAttributes(attribute.String(a.Key, v))
		case int64:
			span.SetAttributes(attribute.Int64(a.Key, v))
		case float64:
			span.SetAttributes(attribute.Float64(a.Key, v))
		}
	}
	if s.Failed {
		span.SetStatus(codes.Error, s.Detail)
	}
	span.End(otel.WithTimestamp(s.End))
}

// idKey is of the IDs that a context brings along for the next span.
type idKey struct{}

type ids struct {
	trace        otel.TraceID
	span, parent otel.SpanID
}

// idsOf reads the IDs of a span, which package trace writes in hex.
func idsOf(s trace.Flat) (v ids) {
	for _, f := range []struct {
		text string
		to   []byte
	}{{s.Trace, v.trace[:]}, {s.Span, v.span[:]}, {s.Parent, v.parent[:]}} {
		if b, err := hex.DecodeString(f.text); err == nil {
			copy(f.to, b)
		}
	}
	return v
}

// given takes the IDs of spans from their context, and makes new ones for others.
type given struct{}

// NewIDs implements sdk.IDGenerator, for the root of a trace.
func (given) NewIDs(ctx context.Context) (otel.TraceID, otel.SpanID) {
	if v, ok := ctx.Value(idKey{}).(ids); ok {
		return v.trace, v.span
	}
	var v ids
	rand.Read(v.trace[:])
	rand.Read(v.span[:])
	return v.trace, v.span
}

// NewSpanID implements sdk.IDGenerator, for the other spans.
func (given) NewSpanID(ctx context.Context, _ otel.TraceID) (id otel.SpanID) {
	if v, ok := ctx.Value(idKey{}).(ids); ok {
		return v.span
	}
	rand.Read(id[:])
	return id
}

// allJobs samples all spans of jobs, and requests as another sampler says.
type allJobs struct{ sdk.Sampler }

// ShouldSample implements sdk.Sampler.
func (s allJobs) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	if _, ok := p.ParentContext.Value(idKey{}).(ids); ok {
		return sdk.SamplingResult{Decision: sdk.RecordAndSample}
	}
	return s.Sampler.ShouldSample(p)
}
