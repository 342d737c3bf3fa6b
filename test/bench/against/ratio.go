package against

import (
	"fmt"
	"math"
	"slices"
)

const (
	// MinRounds is the fewest rounds that say anything about a spread.
	MinRounds = 5
	// floor is the smallest difference that fails a figure; see the package comment.
	floor = 0.03
	// wide is a spread with which passing says little.
	wide = 0.25
)

// Result is the comparison of one figure.
type Result struct {
	Base, This float64   // medians
	Pairs      []float64 // the ratio within each round; above 1, this tree is worse
	Ratio      float64   // their median
	Spread     float64   // how far Ratio is from 1 by chance; 0.05 is 5 %
}

// Limit is the largest ratio that passes.
func (r Result) Limit() float64 { return 1 + max(r.Spread, floor) }

// Worse reports whether this tree is worse by more than the spread.
func (r Result) Worse() bool { return r.Ratio > r.Limit() }

// Compare compares a figure of two programs, measured once in each round. In the first round and every second one after
// it, the base was measured first; in the others, this tree. more is true for a figure of which more is better.
func Compare(base, this []float64, more bool) (Result, error) {
	if len(base) != len(this) {
		return Result{}, fmt.Errorf("%d values of the base and %d of this tree, want the same number", len(base),
			len(this))
	}
	n := len(base)
	if n < MinRounds {
		return Result{}, fmt.Errorf("%d rounds, want %d or more", n, MinRounds)
	}
	pairs := make([]float64, n) // logarithms: twice as slow and twice as fast are as far from equal
	for i := range n {
		for _, v := range []float64{base[i], this[i]} {
			if !(v > 0) || math.IsInf(v, 1) {
				return Result{}, fmt.Errorf("round %d measured %v, which has no ratio", i+1, v)
			}
		}
		pairs[i] = math.Log(this[i] / base[i])
		if more {
			pairs[i] = -pairs[i]
		}
	}
	middle := Median(pairs)
	var apart []float64
	for _, p := range pairs {
		apart = append(apart, math.Abs(p-middle))
	}
	for i := range n - 1 { // the last of one round is also the first of the next
		same := this
		if i%2 == 1 {
			same = base
		}
		apart = append(apart, math.Abs(math.Log(same[i+1]/same[i])))
	}
	spread := 2 * quantile(apart, 0.75) * math.Sqrt(MinRounds/float64(n))
	r := Result{Base: Median(base), This: Median(this), Ratio: math.Exp(middle), Spread: math.Expm1(spread)}
	for _, p := range pairs {
		r.Pairs = append(r.Pairs, math.Exp(p))
	}
	return r, nil
}

// Median is the middle value, or the mean of the two in the middle.
func Median(v []float64) float64 { return quantile(v, 0.5) }

// quantile interpolates between the two values nearest to a part of the sorted values.
func quantile(v []float64, part float64) float64 {
	v = slices.Sorted(slices.Values(v))
	at := part * float64(len(v)-1)
	i := int(at)
	if i+1 == len(v) {
		return v[i]
	}
	return v[i] + (v[i+1]-v[i])*(at-float64(i))
}
