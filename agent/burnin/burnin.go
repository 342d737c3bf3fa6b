// Package burnin stresses processors, memory, disks and network of a machine for a while, checks every result, and
// measures, so that bad parts show before data depends on them.
//
// Each kind is a step (burnin_cpu, burnin_memory, burnin_disk, burnin_network, named as in Ironic) that runs only on
// request. Its result is the measurements, on failure too. It fails on errors (a wrong computation, bit or read), on
// values worse than the arguments allow, and on a part much slower than its siblings: the other cores of the same kind,
// the other disks of the same model. Nothing is written to a disk unless destructive is set. A stopped step leaves no
// traces except the data that destructive wrote.
//
// Sizes are bytes, rates per second in the unit of their name, times in arguments seconds.
package burnin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// Limits of the times in arguments, and Ironic's defaults.
const (
	longest        = 30 * 24 * 3600
	defaultRuntime = 24 * 3600
)

// keep is the number of faults of one kind that are reported in detail; all are counted.
const keep = 20

// pace reports the progress of work with a fixed duration. The remaining bytes are estimated from the rate so far.
type pace struct {
	c       *step.Call
	phase   string
	begin   time.Time
	runtime time.Duration
	bytes   atomic.Int64
}

func newPace(c *step.Call, phase string, runtime time.Duration) *pace {
	return &pace{c: c, phase: phase, begin: time.Now(), runtime: runtime}
}

// over reports whether the time is up.
func (p *pace) over() bool { return time.Since(p.begin) >= p.runtime }

func (p *pace) report() {
	done := p.bytes.Load()
	total := uint64(0)
	if took := time.Since(p.begin); took > 0 && p.runtime > took {
		total = uint64(float64(done) * float64(p.runtime) / float64(took))
	}
	p.c.Report(step.Progress{Phase: p.phase, Bytes: uint64(done), Total: total})
}

// everySecond calls f each second until the returned function is called, which waits for the last call to end.
func everySecond(f func()) (stop func()) {
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.Tick(time.Second)
		for {
			select {
			case <-tick:
				f()
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-gone
	}
}

// alive sends a sign of life during work without measurable progress.
func alive(c *step.Call) {
	if c.Alive != nil {
		c.Alive()
	}
}

// median of values, which must not be empty and is not changed. For an even number, the mean of the middle two.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// share returns values[i] in percent of the median of the others; 100 if it is the only one.
func share(values []float64, i int) float64 {
	others := slices.Delete(slices.Clone(values), i, i+1)
	if len(others) == 0 || median(others) <= 0 {
		return 100
	}
	return 100 * values[i] / median(others)
}

// percent returns a percentage argument, or its default if nil.
func percent(given *int, otherwise int) float64 { return float64(orElse(given, otherwise)) }

func seconds(given *float64, otherwise float64) time.Duration {
	return time.Duration(orElse(given, otherwise) * float64(time.Second))
}

func orElse[T any](given *T, otherwise T) T {
	if given == nil {
		return otherwise
	}
	return *given
}

// number reads a number from a sysfs file; false if the file does not exist.
func number(parts ...string) (int64, bool) {
	n, err := strconv.ParseInt(text(parts...), 10, 64)
	return n, err == nil
}

// text reads a file of sysfs; "" when there is none.
func text(parts ...string) string {
	b, _ := os.ReadFile(filepath.Join(parts...))
	return strings.TrimSpace(string(b))
}

// counters are kernel counters by name. A missing name is not counted on this machine.
type counters map[string]int64

// since returns the growth of the counters. A new counter starts at zero; one that decreased was reset and also counts
// from zero.
func (c counters) since(before counters) counters {
	out := counters{}
	for name, n := range c {
		if old := before[name]; n >= old {
			n -= old
		}
		out[name] = n
	}
	return out
}

func (c counters) sum(suffixes ...string) (n int64) {
	for name, v := range c {
		for _, s := range suffixes {
			if strings.HasSuffix(name, s) {
				n += v
			}
		}
	}
	return n
}

// count reads counters: patterns are globs below root; a counter is named by its path below dir.
func count(root, dir string, patterns ...string) counters {
	out := counters{}
	base := filepath.Join(root, dir)
	for _, p := range patterns {
		files, _ := filepath.Glob(filepath.Join(base, p)) // the patterns are well formed
		for _, f := range files {
			if n, ok := number(f); ok {
				name, _ := filepath.Rel(base, f)
				out[name] = n
			}
		}
	}
	return out
}

// failed returns the error of a burn-in from its faults, or a successful outcome if there are none. Both hold the
// result.
func failed(remedy string, faults []string, result any) (step.Outcome, error) {
	if len(faults) == 0 {
		return step.Outcome{Result: result}, nil
	}
	return step.Outcome{}, &step.Error{Err: errors.New(strings.Join(faults, "; ")), Remedy: remedy, Result: result}
}

// stopped is the error of a burn-in that was stopped early, with the measurements so far.
func stopped(ctx context.Context, what string, result any) error {
	return &step.Error{Err: fmt.Errorf("%s stopped before its end: %w", what, context.Cause(ctx)), Result: result}
}
