package against

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	for _, test := range []struct {
		name       string
		base, this []float64
		more       bool
		ratio      float64
		worse      bool
	}{
		{"the same values",
			[]float64{100, 104, 98, 101, 99}, []float64{100, 104, 98, 101, 99}, false, 1, false},
		{"a clear slowdown",
			[]float64{100, 101, 99, 100, 102}, []float64{125, 126, 124, 123, 128}, false, 1.25, true},
		{"a clear slowdown of a rate",
			[]float64{2000, 2020, 1990, 2010, 1980}, []float64{1600, 1590, 1610, 1620, 1580}, true, 1.25, true},
		{"a clear gain",
			[]float64{125, 126, 124, 123, 128}, []float64{100, 101, 99, 100, 102}, false, 0.80, false},
		{"a clear gain of a rate",
			[]float64{1600, 1590, 1610, 1620, 1580}, []float64{2000, 2020, 1990, 2010, 1980}, true, 0.80, false},
		{"noisy, but equal",
			[]float64{100, 130, 90, 120, 105}, []float64{125, 95, 110, 100, 115}, false, 1.10, false},
		{"slower within the spread",
			[]float64{100, 112, 95, 108, 101}, []float64{108, 104, 110, 116, 103}, false, 1.07, false},
		{"slower by less than the floor, with no spread",
			[]float64{100, 100, 100, 100, 100}, []float64{102, 102, 102, 102, 102}, false, 1.02, false},
		{"slower by more than the floor, with no spread",
			[]float64{100, 100, 100, 100, 100}, []float64{104, 104, 104, 104, 104}, false, 1.04, true},
		{"a machine that becomes twice as slow meanwhile",
			[]float64{100, 127, 131, 167, 173}, []float64{103, 123, 135, 162, 177}, false, 1.02, false},
		{"a slowdown with one bad round of the base",
			[]float64{100, 101, 300, 100, 102}, []float64{125, 126, 124, 123, 128}, false, 1.25, true},
		{"equal, with one bad round of this tree",
			[]float64{100, 101, 99, 100, 102}, []float64{101, 100, 300, 101, 100}, false, 1.01, false},
		{"the second of a round always is slower", // three times this tree, twice the base
			[]float64{100, 110, 100, 110, 100}, []float64{110, 100, 110, 100, 110}, false, 1.10, false},
	} {
		r, err := Compare(test.base, test.this, test.more)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if math.Abs(r.Ratio-test.ratio) > 0.01 || r.Worse() != test.worse {
			t.Errorf("%s: ratio %.3f, spread %.3f, worse %v; want %.2f, worse %v", test.name, r.Ratio, r.Spread,
				r.Worse(), test.ratio, test.worse)
		}
		if m := slices.Sorted(slices.Values(test.base))[len(test.base)/2]; r.Base != m {
			t.Errorf("%s: median of the base %v, want %v", test.name, r.Base, m)
		}
	}
}

func TestCompareRefuses(t *testing.T) {
	five := []float64{1, 1, 1, 1, 1}
	for name, test := range map[string]struct{ base, this []float64 }{
		"no rounds":          {},
		"four rounds":        {five[:4], five[:4]},
		"a round missing":    {five, five[:4]},
		"a round too many":   {five, append(five, 1)},
		"zero":               {five, []float64{1, 1, 0, 1, 1}},
		"a negative value":   {[]float64{1, -1, 1, 1, 1}, five},
		"no number":          {five, []float64{1, math.NaN(), 1, 1, 1}},
		"an infinite number": {five, []float64{1, math.Inf(1), 1, 1, 1}},
	} {
		if r, err := Compare(test.base, test.this, false); err == nil {
			t.Errorf("%s: %+v, want an error", name, r)
		}
	}
}

// TestSpreadFitsNoise holds what the package comment promises: how seldom equal programs fail, and that slow ones do.
func TestSpreadFitsNoise(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	normal := func(noise float64) func() float64 { return func() float64 { return noise * r.NormFloat64() } }
	stray := func() float64 { // one measurement of ten is bad
		if r.IntN(10) == 0 {
			return 0.2 + 0.4*r.Float64()
		}
		return 0.05 * r.NormFloat64()
	}
	for _, test := range []struct {
		name        string
		noise       func() float64
		rounds      int
		slower      float64
		least, most float64 // part of the comparisons that fail
	}{
		{"quiet", normal(0.01), 5, 1, 0, 0.001},
		{"noisy", normal(0.05), 5, 1, 0, 0.007},
		{"very noisy", normal(0.2), 5, 1, 0, 0.007},
		{"stray", stray, 5, 1, 0, 0.007},
		{"more rounds", normal(0.05), 9, 1, 0, 0.007},
		{"quiet and slower", normal(0.01), 5, 1.1, 0.99, 1},
		{"noisy and slower", normal(0.05), 5, 1.3, 0.9, 1},
		{"noisy and slower, more rounds", normal(0.05), 9, 1.2, 0.9, 1},
	} {
		const runs = 2000
		failed := 0
		for range runs {
			base, this := make([]float64, test.rounds), make([]float64, test.rounds)
			for i := range base {
				base[i], this[i] = math.Exp(test.noise()), test.slower*math.Exp(test.noise())
			}
			got, err := Compare(base, this, false)
			if err != nil {
				t.Fatal(err)
			}
			if got.Worse() {
				failed++
			}
		}
		part := float64(failed) / runs
		t.Logf("%s: %.2f %% fail", test.name, part*100)
		if part < test.least || part > test.most {
			t.Errorf("%s, %d rounds, %g times as slow: %.2f %% fail, want %g to %g %%", test.name, test.rounds,
				test.slower, part*100, test.least*100, test.most*100)
		}
	}
}

// program measures the same two figures each time: seconds, and a rate.
func program(order *strings.Builder, name string, seconds float64) Measure {
	return func(context.Context) ([]Figure, error) {
		order.WriteString(name)
		return []Figure{{Name: "write", Unit: "s", Value: seconds}, {Name: "memory", Unit: "MiB", Value: 40},
			{Name: "reads", Unit: "a second", Value: 100 / seconds, More: true}}, nil
	}
}

func TestSlowerTreeFails(t *testing.T) {
	var order strings.Builder
	var out, log bytes.Buffer
	c := Comparison{Revision: "v1", Rounds: 5, Out: &out, Log: &log}
	err := c.Run(t.Context(), program(&order, "B", 1), program(&order, "T", 1.5))
	if err == nil || !strings.Contains(err.Error(), "2 of 3 figures") ||
		!strings.Contains(err.Error(), "write: ratio 1.50") {
		t.Errorf("half as slow again: %v, want an error that names 2 of 3 figures and by how much", err)
	}
	if order.String() != "BTTBBTTBBT" {
		t.Errorf("order of measurements %s, want BTTBBTTBBT", &order)
	}
	if n := strings.Count(out.String(), "FAIL  "); n != 2 {
		t.Errorf("%d rows have FAIL, want 2:\n%s", n, &out)
	}
	out.Reset()
	err = c.Run(t.Context(), program(&order, "B", 1), program(&order, "T", 1))
	if err != nil || strings.Contains(out.String(), "FAIL  ") {
		t.Errorf("equal programs: %v\n%s", err, &out)
	}
}

// TestWideSpreadIsReported: equal programs on a machine with other work pass, but the report says that this means
// little.
func TestWideSpreadIsReported(t *testing.T) {
	var out, log bytes.Buffer
	turn := 0
	noisy := func(context.Context) ([]Figure, error) {
		turn++
		return []Figure{{Name: "write", Unit: "s", Value: []float64{1, 2.5, 1.2, 3, 1.1, 2}[turn%6]},
			{Name: "memory", Value: 40}}, nil
	}
	c := Comparison{Revision: "v1", Rounds: 5, Out: &out, Log: &log}
	if err := c.Run(t.Context(), noisy, noisy); err != nil ||
		!strings.Contains(out.String(), "1 of 2 spreads are above 25 %") {
		t.Errorf("noisy: %v, want a note of the spread:\n%s", err, &out)
	}
}

func TestTooFewRoundsAreRefused(t *testing.T) {
	var order strings.Builder
	c := Comparison{Revision: "v1", Rounds: 4, Out: &order, Log: &order}
	err := c.Run(t.Context(), program(&order, "B", 1), program(&order, "T", 1))
	if err == nil || order.Len() > 0 {
		t.Errorf("4 rounds: error %v, measured %q; want an error before anything is measured", err, &order)
	}
}
