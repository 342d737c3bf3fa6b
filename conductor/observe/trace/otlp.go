package trace

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"

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

// Flat is a span with its place in its trace. The same trace has the same IDs each time.
type Flat struct {
	Trace, Span, Parent string // hex; Parent is "" at the root
	Name, Kind          string
	Begin, End          time.Time
	Attributes          []Attribute
	Failed              bool
	Detail              string // of what failed
}

// Attribute is a fact about a span: a string, an int64 or a float64.
type Attribute struct {
	Key   string
	Value any
}

// Spans lists the spans of a trace, each after the one that it is in.
func Spans(t rest.Trace) []Flat {
	e := encoder{trace: ID(t.JobID)}
	root := e.span("", "root", rest.Span{Name: t.Phase, Kind: "job", Begin: t.Begin, End: t.End})
	root.Attributes = append(root.Attributes, Attribute{"ingot.job", t.JobID},
		Attribute{"ingot.firmware_boots", int64(t.FirmwareBoots)}, Attribute{"ingot.kexecs", int64(t.Kexecs)},
		Attribute{"ingot.attributed", t.Attributed})
	if t.Outcome != "" {
		root.Attributes = append(root.Attributes, Attribute{"ingot.outcome", string(t.Outcome)})
	}
	if o := string(t.Outcome); strings.HasSuffix(o, " failed") || o == "error" {
		root.Failed, root.Detail = true, o
	}
	out := []Flat{root}
	e.below(root.Span, "root", t.Spans, &out)
	return out
}

// OTLP makes traces of a node a document as OpenTelemetry's collectors take it.
func OTLP(nodeUUID string, traces []rest.Trace) ([]byte, error) {
	doc := otlpDocument{ResourceSpans: []otlpResourceSpans{{
		Resource:   otlpResource{attributes([]Attribute{{"service.name", "ingot"}, {"ingot.node", nodeUUID}})},
		ScopeSpans: []otlpScopeSpans{{Scope: otlpScope{"ingot/deployment"}, Spans: []otlpSpan{}}},
	}}}
	spans := &doc.ResourceSpans[0].ScopeSpans[0].Spans
	for _, t := range traces {
		for _, s := range Spans(t) {
			o := otlpSpan{TraceID: s.Trace, SpanID: s.Span, Parent: s.Parent, Name: s.Name, Kind: 1,
				Begin: strconv.FormatInt(s.Begin.UnixNano(), 10), End: strconv.FormatInt(s.End.UnixNano(), 10),
				Attributes: attributes(s.Attributes)}
			if s.Failed {
				o.Status = otlpStatus{Code: 2, Message: s.Detail}
			}
			*spans = append(*spans, o)
		}
	}
	return json.MarshalIndent(doc, "", "  ")
}

// attributes writes attributes with their types.
func attributes(list []Attribute) (out []otlpAttribute) {
	for _, a := range list {
		value := map[string]any{}
		switch v := a.Value.(type) {
		case int64:
			value["intValue"] = strconv.FormatInt(v, 10)
		case float64:
			value["doubleValue"] = v
		default:
			value["stringValue"] = v
		}
		out = append(out, otlpAttribute{a.Key, value})
	}
	return out
}

// ID is the ID of a job's trace: the job's own, which has the right length when it is a UUID.
func ID(job string) string {
	if b, err := hex.DecodeString(strings.ReplaceAll(job, "-", "")); err == nil && len(b) == 16 {
		return hex.EncodeToString(b)
	}
	sum := sha256.Sum256([]byte(job))
	return hex.EncodeToString(sum[:16])
}

// encoder makes the spans of one trace.
type encoder struct{ trace string }

// span makes a span; place identifies it within its trace.
func (e encoder) span(parent, place string, s rest.Span) Flat {
	sum := sha256.Sum256([]byte(e.trace + " " + place))
	out := Flat{Trace: e.trace, Span: hex.EncodeToString(sum[:8]), Parent: parent, Name: s.Name, Kind: s.Kind,
		Begin: s.Begin, End: s.End, Attributes: []Attribute{{"ingot.kind", s.Kind}}}
	if s.Step != "" {
		out.Attributes = append(out.Attributes, Attribute{"ingot.step", s.Step})
	}
	if s.Detail != "" {
		out.Attributes = append(out.Attributes, Attribute{"ingot.detail", s.Detail})
	}
	if s.Bytes > 0 {
		out.Attributes = append(out.Attributes, Attribute{"ingot.bytes", int64(s.Bytes)},
			Attribute{"ingot.rate", int64(s.Rate)})
	}
	if s.Failed {
		out.Failed, out.Detail = true, s.Detail
	}
	return out
}

func (e encoder) below(parent, place string, spans []rest.Span, out *[]Flat) {
	for i, s := range spans {
		here := place + "/" + strconv.Itoa(i)
		o := e.span(parent, here, s)
		*out = append(*out, o)
		e.below(o.Span, here, s.Spans, out)
	}
}
