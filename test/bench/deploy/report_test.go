package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/observe/trace"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// TestReport prints recorded runs: the computed columns add firmware for each boot that the trace counted, and only
// there.
func TestReport(t *testing.T) {
	begin := time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)
	at := func(way string, boots int, seconds float64) run1 {
		end := begin.Add(time.Duration(seconds * float64(time.Second)))
		return run1{Way: way, Seconds: seconds, Starts: boots,
			Trace: rest.Trace{Phase: "deploy", Begin: begin, End: end, Seconds: seconds, FirmwareBoots: boots,
				Attributed: 1, Spans: []rest.Span{
					{Name: "write_image", Kind: trace.Step, Begin: begin, End: end, Seconds: seconds}}}}
	}
	r := report{Image: "tiny", Rounds: 3, Runs: []run1{
		at(ordinary, 2, 20), at(zero, 0, 4), at(ordinary, 2, 24), at(zero, 0, 5), at(ordinary, 2, 40), at(zero, 0, 30),
	}}
	var b bytes.Buffer
	if err := r.print(&b); err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for l := range strings.Lines(b.String()) {
		if f := strings.Fields(l); len(f) > 1 && rows[f[0]] == "" {
			rows[f[0]] = strings.Join(f[1:], " ")
		}
	}
	for name, want := range map[string]string{
		"ordinary": "2 24.0 s 144.0 s 624.0 s", "zero-reboot": "0 5.0 s 5.0 s 5.0 s", "ratio": "4.8 28.8 124.8",
		"write_image": "24.00 5.00",
	} {
		if rows[name] != want {
			t.Errorf("%s: %q, want %q\n%s", name, rows[name], want, &b)
		}
	}
	for _, want := range []string{"measured (+0 s)", "computed (+60 s a boot)", "computed (+300 s a boot)",
		"No firmware ran in 3 of 3 zero-reboot"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, &b)
		}
	}
}
