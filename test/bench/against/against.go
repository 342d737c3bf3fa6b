// Package against compares this tree's programs with those of an earlier commit: `make bench-api BASE=commit` and `make
// bench-image BASE=commit`.
//
// Build makes the commit's programs in a git worktree. Run then measures both in turn, in an order that is reversed
// from round to round: base, this, this, base, base, this. A machine that becomes slower or faster meanwhile does so
// for both, and both are the second of a round about equally often.
//
// A figure's ratio is the median of the ratios within rounds, written so that more than 1 is worse. Its spread is how
// far the ratio of two equal programs is from 1 by chance. It is computed from all differences (of logarithms) between
// successive measurements. In n rounds these are n differences between the two programs, less their median, which is
// the ratio itself; and n-1 of a program with itself, because the last of one round is also the first of the next. The
// spread is twice the third quartile of their sizes, times √(5/n): a median of more rounds is more certain.
//
// Five ratios alone do not suffice. Half their interquartile range, or their median absolute deviation, is often nearly
// zero: by chance, or because this tree was the second in three of the five rounds. One bad measurement is in only two
// of the nine differences of five rounds, which leaves the third quartile unchanged. Two equal programs differ by more
// than their spread in one of 200 figures, for any noise (TestSpreadFitsNoise). If single measurements vary by 5 %, the
// spread of five rounds is about 16 %, and that of nine rounds 12 %.
//
// A figure fails if its ratio is above 1 by more than its spread, and by more than 3 %. The 3 % are for differences
// that no number of rounds removes and that are unrelated to the code: two builds have different layouts in memory and
// caches, which makes one faster by a percent or two. They also cover a spread that is nearly zero by chance.
package against

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Figure is one measured value.
type Figure struct {
	Name, Unit string
	Value      float64
	More       bool // more is better
}

// Measure measures one program once. It returns the same figures in the same order every time.
type Measure func(context.Context) ([]Figure, error)

// Comparison is one run.
type Comparison struct {
	Revision string    // what the base is, in git's words
	Rounds   int       // MinRounds or more
	Out      io.Writer // gets the table
	Log      io.Writer // gets what happens meanwhile
}

// Check reports faults of the Comparison, before anything takes time.
func (c *Comparison) Check() error {
	if c.Rounds < MinRounds {
		return fmt.Errorf("%d rounds against %s, want %d or more: the spread needs them", c.Rounds, c.Revision,
			MinRounds)
	}
	return nil
}

// Run measures base and this tree in turn and prints the ratios. Its error names the figures that are worse by more
// than their spread.
func (c *Comparison) Run(ctx context.Context, base, this Measure) error {
	if err := c.Check(); err != nil {
		return err
	}
	type side struct {
		name    string
		measure Measure
		values  [][]float64 // of each figure, in each round
	}
	sides := []*side{{name: c.Revision, measure: base}, {name: "this tree", measure: this}}
	var figures []Figure // the last that were measured of this tree
	for round := range c.Rounds {
		for k := range sides {
			s := sides[(round+k)%2]
			began := time.Now()
			got, err := s.measure(ctx)
			if interrupted := context.Cause(ctx); interrupted != nil {
				err = interrupted
			}
			if err != nil {
				return fmt.Errorf("measure %s, round %d: %w", s.name, round+1, err)
			}
			if s.values == nil {
				s.values = make([][]float64, len(got))
			}
			if len(got) != len(s.values) {
				return fmt.Errorf("measure %s, round %d: %d figures, want %d as before",
					s.name, round+1, len(got), len(s.values))
			}
			for i, f := range got {
				s.values[i] = append(s.values[i], f.Value)
			}
			if s == sides[1] {
				figures = got
			}
			fmt.Fprintf(c.Log, "round %d of %d: %s, %.1f s\n", round+1, c.Rounds, s.name, time.Since(began).Seconds())
		}
	}
	if a, b := len(sides[0].values), len(sides[1].values); a != b {
		return fmt.Errorf("compare with %s: it has %d figures, this tree %d", c.Revision, a, b)
	}
	results := make([]Result, len(figures))
	for i, f := range figures {
		r, err := Compare(sides[0].values[i], sides[1].values[i], f.More)
		if err != nil {
			return fmt.Errorf("compare with %s: %s: %w", c.Revision, f.Name, err)
		}
		results[i] = r
	}
	return c.report(figures, results)
}

// report prints the table.
func (c *Comparison) report(figures []Figure, results []Result) error {
	fmt.Fprintf(c.Out,
		"\nThis tree against %s, %d rounds in turn. Above 1, this tree is worse; FAIL: by more than the "+
			"spread, and by more than %.0f %%.\n\n", c.Revision, c.Rounds, floor*100)
	t := tabwriter.NewWriter(c.Out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "\tbase\tthis\t\tratio\tspread\t\teach round")
	var worse []string
	noisy := 0
	for i, f := range figures {
		r, verdict := results[i], ""
		if r.Worse() {
			verdict = "FAIL"
			worse = append(worse, fmt.Sprintf("%s: ratio %.2f, spread %.2f", f.Name, r.Ratio, r.Spread))
		}
		if r.Spread > wide {
			noisy++
		}
		var pairs []string
		for _, p := range r.Pairs {
			pairs = append(pairs, fmt.Sprintf("%.2f", p))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%.2f\t± %.2f\t%s\t%s\n",
			f.Name, number(r.Base), number(r.This), f.Unit, r.Ratio, r.Spread, verdict, strings.Join(pairs, " "))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if noisy > 0 {
		fmt.Fprintf(c.Out, "\n%d of %d spreads are above %.0f %%: such a figure fails only when it is far worse. "+
			"Repeat this with the machine idle, or with more rounds.\n", noisy, len(figures), wide*100)
	}
	if len(worse) > 0 {
		return fmt.Errorf("%d of %d figures are worse than at %s by more than the spread:\n  %s",
			len(worse), len(figures), c.Revision, strings.Join(worse, "\n  "))
	}
	return nil
}

// number keeps three digits, or all before the point.
func number(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
