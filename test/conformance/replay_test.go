package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/conformance/ask"
	"github.com/ingot-metal/ingot/test/conformance/ironic"
	"github.com/ingot-metal/ingot/test/conformance/record"
	"github.com/ingot-metal/ingot/test/conformance/run"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// fewest is how many recorded answers are compared at least.
const fewest = 2000

// TestRecordedIronic sends ingotd what was recorded of a real Ironic by make conformance RECORD=1.
func TestRecordedIronic(t *testing.T) {
	p, err := ironic.Alone(t.Context(), ironic.Options{Dir: t.TempDir(), Binary: made.Program(t, "ingotd")})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	f, err := os.Open("testdata/ironic-21.4.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	es, err := record.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	list, err := (&options{dir: "testdata"}).list()
	if err != nil {
		t.Fatal(err)
	}
	var report run.Report
	began := time.Now()
	if err := report.Replay(t.Context(), list, &run.Server{Base: p.Ingot}, es); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	report.Write(&b)
	t.Logf("%d recorded answers in %v\n%s", len(es), time.Since(began).Round(time.Millisecond), b.String())
	if len(report.Found) > 0 || len(report.Left) > 0 {
		t.Errorf("%d differences are not accepted, and %d objects could not be removed", len(report.Found),
			len(report.Left))
	}
	if report.Compared < fewest {
		t.Errorf("%d answers were compared, want %d", report.Compared, fewest)
	}
	if err := list.Check(report.Compared, true); err != nil {
		t.Error(err)
	}
}

// TestSameSeedSameRequests: requests come from the seed, in all the variety that there is.
func TestSameSeedSameRequests(t *testing.T) {
	p, err := ironic.Alone(t.Context(), ironic.Options{Dir: t.TempDir(), Binary: made.Program(t, "ingotd")})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	routes, err := description(t.Context(), p.Ingot)
	if err != nil {
		t.Fatal(err)
	}
	var methods, used []string
	odd := 0
	for scene := range 200 {
		asks := ask.Scene(routes, 5, scene)
		if !reflect.DeepEqual(asks, ask.Scene(routes, 5, scene)) {
			t.Fatalf("scene %d is another the second time", scene)
		}
		if reflect.DeepEqual(asks, ask.Scene(routes, 6, scene)) {
			t.Fatalf("scene %d is the same for another seed", scene)
		}
		for _, a := range asks {
			methods, used = append(methods, a.Method), append(used, a.Route)
			if a.Header["Accept"] != "" || strings.Contains(a.Route, "another address") {
				odd++
			}
		}
	}
	for _, m := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"} {
		if !slices.Contains(methods, m) {
			t.Errorf("%s is never asked", m)
		}
	}
	for _, r := range routes {
		if !slices.Contains(used, r.Method+" "+r.Path) {
			t.Errorf("%s %s is never asked", r.Method, r.Path)
		}
	}
	if odd == 0 {
		t.Error("nothing is odd")
	}
}

// TestBadArguments: what the tool can't do is said, and nothing is started for it.
func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{{"-seeds", "0"}, {"-seed", "x"}, {"-for", "-1s"}, {"-record", "-seeds", "2"},
		{"more"}, {"-testdata", "/nowhere"}} {
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		var out bytes.Buffer
		if err := start(ctx, args, &out, &out); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v = %v", args, err)
		}
		stop()
	}
}
