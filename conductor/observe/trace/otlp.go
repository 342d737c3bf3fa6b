package trace

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// The JSON form of OpenTelemetry's protocol: opentelemetry-proto, trace/v1/trace.proto, by its rules for JSON (IDs in
// hex, 64-bit numbers as strings, enumerations as numbers).
type (
	otlpDocument struct {
		ResourceSpans []otlpResourceSpans `json:"resourceSpans"`
	}
	otlpResourceSpans struct {
		Resource   otlpResource     `json:"resource"`
		ScopeSpans []otlpScopeSpans `json:"scopeSpans"`
	}
	otlpResource struct {
		Attributes []otlpAttribute `json:"attributes"`
	}
	otlpScopeSpans struct {
		Scope otlpScope  `json:"scope"`
		Spans []otlpSpan `json:"spans"`
	}
	otlpScope struct {
		Name string `json:"name"`
	}
	otlpSpan struct {
		TraceID    string          `json:"traceId"`
		SpanID     string          `json:"spanId"`
		Parent     string          `json:"parentSpanId,omitempty"`
		Name       string          `json:"name"`
		Kind       int             `json:"kind"` // 1 is internal
		Begin      string          `json:"startTimeUnixNano"`
		End        string          `json:"endTimeUnixNano"`
		Attributes []otlpAttribute `json:"attributes,omitempty"`
		Status     otlpStatus      `json:"status"`
	}
	otlpStatus struct {
		Code    int    `json:"code,omitempty"` // 2 is an error
		Message string `json:"message,omitempty"`
	}
	otlpAttribute struct {
		Key   string         `json:"key"`
		Value map[string]any `json:"value"`
	}
)

func text(key, value string) otlpAttribute {
	return otlpAttribute{key, map[string]any{"stringValue": value}}
}

func number(key string, value int64) otlpAttribute {
	return otlpAttribute{key, map[string]any{"intValue": strconv.FormatInt(value, 10)}}
}

// OTLP makes traces of a node a document as OpenTelemetry's collectors take it. The same trace has the same IDs each
// time.
func OTLP(nodeUUID string, traces []rest.Trace) ([]byte, error) {
	doc := otlpDocument{ResourceSpans: []otlpResourceSpans{{
		Resource:   otlpResource{[]otlpAttribute{text("service.name", "ingot"), text("ingot.node", nodeUUID)}},
		ScopeSpans: []otlpScopeSpans{{Scope: otlpScope{"ingot/deployment"}, Spans: []otlpSpan{}}},
	}}}
	spans := &doc.ResourceSpans[0].ScopeSpans[0].Spans
	for _, t := range traces {
		e := encoder{trace: traceID(t.JobID)}
		root := e.span("", "root", rest.Span{Name: t.Phase, Kind: "job", Begin: t.Begin, End: t.End})
		root.Attributes = append(root.Attributes, text("ingot.job", t.JobID),
			number("ingot.firmware_boots", int64(t.FirmwareBoots)), number("ingot.kexecs", int64(t.Kexecs)),
			otlpAttribute{"ingot.attributed", map[string]any{"doubleValue": t.Attributed}})
		if t.Outcome != "" {
			root.Attributes = append(root.Attributes, text("ingot.outcome", string(t.Outcome)))
		}
		if o := string(t.Outcome); strings.HasSuffix(o, " failed") || o == "error" {
			root.Status = otlpStatus{Code: 2, Message: o}
		}
		*spans = append(*spans, root)
		e.below(root.SpanID, "root", t.Spans, spans)
	}
	return json.MarshalIndent(doc, "", "  ")
}

// traceID is a job's ID, which has the right length when it is a UUID.
func traceID(job string) string {
	if b, err := hex.DecodeString(strings.ReplaceAll(job, "-", "")); err == nil && len(b) == 16 {
		return hex.EncodeToString(b)
	}
	sum := sha256.Sum256([]byte(job))
	return hex.EncodeToString(sum[:16])
}

// encoder makes the spans of one trace.
type encoder struct{ trace string }

// span makes a span; place identifies it within its trace.
func (e encoder) span(parent, place string, s rest.Span) otlpSpan {
	sum := sha256.Sum256([]byte(e.trace + " " + place))
	out := otlpSpan{
		TraceID: e.trace, SpanID: hex.EncodeToString(sum[:8]), Parent: parent, Name: s.Name, Kind: 1,
		Begin: strconv.FormatInt(s.Begin.UnixNano(), 10), End: strconv.FormatInt(s.End.UnixNano(), 10),
		Attributes: []otlpAttribute{text("ingot.kind", s.Kind)},
	}
	if s.Step != "" {
		out.Attributes = append(out.Attributes, text("ingot.step", s.Step))
	}
	if s.Detail != "" {
		out.Attributes = append(out.Attributes, text("ingot.detail", s.Detail))
	}
	if s.Bytes > 0 {
		out.Attributes = append(out.Attributes, number("ingot.bytes", int64(s.Bytes)),
			number("ingot.rate", int64(s.Rate)))
	}
	if s.Failed {
		out.Status = otlpStatus{Code: 2, Message: s.Detail}
	}
	return out
}

func (e encoder) below(parent, place string, spans []rest.Span, out *[]otlpSpan) {
	for i, s := range spans {
		here := place + "/" + strconv.Itoa(i)
		o := e.span(parent, here, s)
		*out = append(*out, o)
		e.below(o.SpanID, here, s.Spans, out)
	}
}
