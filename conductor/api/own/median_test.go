package own

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/rest"
)

func TestMedians(t *testing.T) {
	job := func(whole, write, boot float64, more ...rest.Span) rest.Trace {
		return rest.Trace{Seconds: whole, Spans: append([]rest.Span{
			{Name: "boot", Seconds: boot},
			{Name: "step", Seconds: write, Spans: []rest.Span{{Name: "write", Seconds: write}}},
			{Name: "boot", Seconds: 1}}, more...)}
	}
	for _, tt := range []struct {
		what   string
		traces []rest.Trace
		want   rest.Medians
	}{
		{"none", nil, rest.Medians{Phase: "deploy", Spans: []rest.Median{}}},
		{"one", []rest.Trace{job(100, 60, 30)}, rest.Medians{Phase: "deploy", Jobs: 1, Seconds: 100,
			Spans: []rest.Median{{Name: "boot", Jobs: 1, Seconds: 31}, {Name: "step", Jobs: 1, Seconds: 60},
				{Name: "write", Depth: 1, Jobs: 1, Seconds: 60}}}},
		{"an outlier, and a span that one of three has",
			[]rest.Trace{job(100, 60, 30), job(9000, 8000, 40, rest.Span{Name: "retry", Seconds: 5}), job(110, 70, 20)},
			rest.Medians{Phase: "deploy", Jobs: 3, Seconds: 110, Spans: []rest.Median{
				{Name: "boot", Jobs: 3, Seconds: 31}, {Name: "step", Jobs: 3, Seconds: 70},
				{Name: "write", Depth: 1, Jobs: 3, Seconds: 70}}}},
		{"two", []rest.Trace{job(100, 60, 30), job(200, 80, 30)}, rest.Medians{Phase: "deploy", Jobs: 2, Seconds: 150,
			Spans: []rest.Median{{Name: "boot", Jobs: 2, Seconds: 31}, {Name: "step", Jobs: 2, Seconds: 70},
				{Name: "write", Depth: 1, Jobs: 2, Seconds: 70}}}},
	} {
		if diff := cmp.Diff(tt.want, medians("deploy", tt.traces)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.what, diff)
		}
	}
}
