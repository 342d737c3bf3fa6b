package spans

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// queue is the SDK's queue of spans, with what finds it full counted: the SDK drops silently.
type queue struct {
	sdk.SpanProcessor
	count   func(outcome string, spans int)
	waiting atomic.Int64
}

// OnEnd implements sdk.SpanProcessor.
func (q *queue) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if q.waiting.Add(1) > queuedSpans {
		q.waiting.Add(-1)
		q.count("dropped", 1)
		return
	}
	q.SpanProcessor.OnEnd(s)
}

// sender sends spans to the collector, and counts and logs what became of them: the SDK's own way to report errors is
// one for the whole process.
type sender struct {
	sdk.SpanExporter
	queue *queue
	log   *slog.Logger

	mu         sync.Mutex
	complained time.Time
}

// ExportSpans implements sdk.SpanExporter.
func (s *sender) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := s.SpanExporter.ExportSpans(ctx, spans)
	s.queue.waiting.Add(-int64(len(spans)))
	if err == nil {
		s.queue.count("sent", len(spans))
		return nil
	}
	s.queue.count("failed", len(spans))
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.complained) >= complain {
		s.complained = now
		s.log.Warn("the collector takes no traces, and they are dropped: see traces.endpoint, and whether it runs",
			"spans", len(spans), "err", err)
	}
	return nil
}
