// Package burnin makes a machine work hard for a while, checks every result, and measures, so that bad parts show
// before somebody's data depends on them: processors, memory, disks, network.
//
// Each kind is a step (burnin_cpu, burnin_memory, burnin_disk, burnin_network, named as in Ironic) that is asked for,
// never run by itself. What it measured is its result, also when it fails. It fails for what is wrong (a computation, a
// bit, a read), for what is worse than the arguments allow, and for a part that is much slower than its siblings: the
// other cores of the same kind, the other disks of the same model. Nothing is written to a disk unless destructive is
// given. A stopped step leaves nothing behind but what destructive wrote.
//
// Sizes are bytes, rates per second of what their names say, times in arguments seconds.
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

// Times that the arguments may ask for, and Ironic's defaults of them.
const (
	longest        = 30 * 24 * 3600
	defaultRuntime = 24 * 3600
)

// keep is how many faults of one kind are told one by one; all are counted.
const keep = 20

// pace reports the progress of work that ends by the clock: how much is left is guessed from how long it took so far.
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

// over tells whether the time is up.
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
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
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

// alive gives a sign of life where there is no progress to tell.
func alive(c *step.Call) {
	if c.Alive != nil {
		c.Alive()
	}
}

// median of values, which is not empty and is left as it is; of an even number the mean of the two in the middle.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// share is how much of the median of the others one of values has, in percent; one without others has 100.
func share(values []float64, i int) float64 {
	others := slices.Delete(slices.Clone(values), i, i+1)
	if len(others) == 0 {
		return 100
	}
	m := median(others)
	if m <= 0 {
		return 100
	}
	return 100 * values[i] / m
}

// percent is an argument in percent, or its default.
func percent(given *int, otherwise int) float64 {
	if given == nil {
		return float64(otherwise)
	}
	return float64(*given)
}

func seconds(given *float64, otherwise float64) time.Duration {
	if given != nil {
		otherwise = *given
	}
	return time.Duration(otherwise * float64(time.Second))
}

func orElse[T any](given *T, otherwise T) T {
	if given == nil {
		return otherwise
	}
	return *given
}

// number reads a number from a file of sysfs; false when there is none.
func number(parts ...string) (int64, bool) {
	b, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

func text(parts ...string) string {
	b, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// counters are what the kernel counts, by name. A name that is missing is not counted on this machine.
type counters map[string]int64

// since is by how much counters grew. One that is new counts from zero; one that is smaller was reset, and counts from
// zero, too.
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

// count reads counters: patterns are globs below root, and a counter's name is its path below dir.
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

// failed makes the error of a burn-in with all that speaks against the machine, or none. The result is kept with
// either.
func failed(remedy string, faults []string, result any) (step.Outcome, error) {
	if len(faults) == 0 {
		return step.Outcome{Result: result}, nil
	}
	return step.Outcome{}, &step.Error{Err: errors.New(strings.Join(faults, "; ")), Remedy: remedy, Result: result}
}

// stopped is the error of a burn-in that was stopped before its end, with what it had measured.
func stopped(ctx context.Context, what string, result any) error {
	return &step.Error{Err: fmt.Errorf("%s stopped before its end: %w", what, context.Cause(ctx)), Result: result}
}
