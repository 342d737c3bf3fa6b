package burnin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// CPUArgs declares the arguments of burnin_cpu.
var CPUArgs = []step.Arg{
	{Name: "runtime", Type: "number", Min: step.Limit(0), Max: step.Limit(longest),
		Description: "duration in seconds (default 86400); 0: every test once"},
	{Name: "min_core_percent", Type: "integer", Min: step.Limit(0), Max: step.Limit(100),
		Description: "a core fails if its throughput is below this percentage of the median of the other cores of its kind (default 70); 0: no minimum"},
	{Name: "min_rounds_per_second", Type: "number", Min: step.Limit(0),
		Description: "a core fails if it does fewer rounds of the tests per second of its processor time (default 0)"},
	{Name: "max_throttle_events", Type: "integer", Min: step.Limit(0),
		Description: "fail if the processors throttled more often than this; default: only report it"},
	{Name: "max_celsius", Type: "number", Min: step.Limit(0), Max: step.Limit(200),
		Description: "fail if a sensor showed more than this; default: only report it"},
}

type cpuArgs struct {
	Runtime     *float64 `json:"runtime"`
	MinPercent  *int     `json:"min_core_percent"`
	MinRounds   *float64 `json:"min_rounds_per_second"`
	MaxThrottle *int64   `json:"max_throttle_events"`
	MaxCelsius  *float64 `json:"max_celsius"`
}

// cores is the part of the machine that burnin_cpu uses.
type cores interface {
	// Root is the directory that contains sys.
	Root() string
	// CPUs returns the numbers of the usable processors.
	CPUs() ([]int, error)
	// OnCPU runs work on one processor and waits for it. used returns the processor time that work has consumed.
	OnCPU(cpu int, work func(used func() time.Duration)) error
}

// CPUResult holds the measurements of burnin_cpu.
type CPUResult struct {
	Seconds   float64      `json:"seconds"`
	Cores     []CoreResult `json:"cores"`
	Wrong     []WrongSum   `json:"wrong"`             // the first of each core's wrong answers
	Throttled counters     `json:"throttle_events"`   // growth of the kernel's counters
	Hottest   *float64     `json:"hottest_celsius"`   // of all sensors; nil: no sensor
	Sensor    string       `json:"hottest,omitempty"` // its sensor
}

// CoreResult holds the measurements of one core.
type CoreResult struct {
	CPU             int     `json:"cpu"`
	Socket          string  `json:"socket,omitempty"`
	Core            string  `json:"core,omitempty"`
	Rounds          int     `json:"rounds"` // of all kernels
	RoundsPerSecond float64 `json:"rounds_per_second"`
	PercentOfOthers float64 `json:"percent_of_others"` // throughput against the median of the other cores of its kind
	Errors          int     `json:"errors"`

	kind int64
}

func (c CoreResult) String() string {
	if c.Socket == "" {
		return fmt.Sprintf("cpu %d", c.CPU)
	}
	return fmt.Sprintf("cpu %d (socket %s, core %s)", c.CPU, c.Socket, c.Core)
}

// WrongSum is a wrong answer.
type WrongSum struct {
	CPU  int    `json:"cpu"`
	Test string `json:"test"`
	Seed int    `json:"seed"`
	Want string `json:"want"`
	Got  string `json:"got"`
}

// more is how long the other cores continue after one has failed: long enough for another bad one to show.
const more = time.Minute

// CPUStep runs computations with known results on all cores independently, and measures each core's throughput.
func CPUStep(m cores) step.Func {
	return cpuStep(m, func(_ int, k kernel, seed uint64) uint64 { return k.run(seed) })
}

func cpuStep(m cores, compute func(cpu int, k kernel, seed uint64) uint64) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, a cpuArgs) (step.Outcome, error) {
		cpus, err := m.CPUs()
		if err != nil {
			return step.Outcome{}, err
		}
		r := CPUResult{Cores: make([]CoreResult, len(cpus)), Wrong: []WrongSum{}}
		for i, n := range cpus {
			r.Cores[i] = coreOf(m.Root(), n)
		}
		before := throttles(m.Root())
		p := newPace(c, "compute", seconds(a.Runtime, defaultRuntime))
		stop := everySecond(func() {
			p.report()
			r.heat(m.Root())
		})
		var (
			wg    sync.WaitGroup
			mu    sync.Mutex
			since atomic.Int64 // time of the first core's failure, in nanoseconds since the start; 0: none
		)
		errs := make([]error, len(cpus))
		for i := range cpus {
			wg.Go(func() {
				core := &r.Cores[i]
				errs[i] = m.OnCPU(core.CPU, func(used func() time.Duration) {
					core.work(ctx, p, used, compute, &since, func(w WrongSum) {
						mu.Lock()
						defer mu.Unlock()
						r.Wrong = append(r.Wrong, w)
					})
				})
			})
		}
		wg.Wait()
		stop()
		r.heat(m.Root())
		r.Seconds = time.Since(p.begin).Seconds()
		r.Throttled = throttles(m.Root()).since(before)
		r.compare()
		if err := errors.Join(errs...); err != nil {
			return step.Outcome{}, &step.Error{Err: fmt.Errorf("burn in the processors: %w", err), Result: r}
		}
		faults := r.faults(a)
		if len(faults) == 0 && ctx.Err() != nil {
			return step.Outcome{}, stopped(ctx, "burn-in of the processors", r)
		}
		c.Log.Info("processors burnt in", "cores", len(r.Cores), "throttle_events", r.Throttled.sum(""))
		return failed("check cooling, power limits and the firmware's settings; replace a processor that computes wrongly",
			faults, r)
	})
}

// work runs on one core until the time is up.
func (c *CoreResult) work(ctx context.Context, p *pace, used func() time.Duration,
	compute func(int, kernel, uint64) uint64, fail *atomic.Int64, wrong func(WrongSum)) {
	var busy time.Duration
	reported := 0
	for c.Rounds < seeds || !p.over() {
		if at := fail.Load(); at != 0 && time.Since(p.begin) > time.Duration(at)+more {
			break
		}
		seed := c.Rounds % seeds
		for _, k := range kernels {
			if ctx.Err() != nil {
				return
			}
			from := used()
			got := compute(c.CPU, k, uint64(seed))
			busy += used() - from
			p.bytes.Add(64 << 10)
			if got != k.want[seed] {
				fail.CompareAndSwap(0, max(1, int64(time.Since(p.begin))))
				if c.Errors++; reported < keep {
					reported++
					wrong(WrongSum{c.CPU, k.name, seed, fmt.Sprintf("%016x", k.want[seed]), fmt.Sprintf("%016x", got)})
				}
			}
			runtime.Gosched() // the agent has to answer its conductor
		}
		c.Rounds++
		if busy > 0 {
			c.RoundsPerSecond = float64(c.Rounds) / busy.Seconds()
		}
	}
}

// compare computes each core's throughput relative to the others of its kind.
func (r *CPUResult) compare() {
	for _, kind := range kinds(r.Cores) {
		rates := make([]float64, len(kind))
		for i, c := range kind {
			rates[i] = c.RoundsPerSecond
		}
		for i, c := range kind {
			c.PercentOfOthers = share(rates, i)
		}
	}
}

// kinds groups cores by kind: performance and efficiency cores differ by half and more, favoured cores only slightly.
func kinds(all []CoreResult) (out [][]*CoreResult) {
	sorted := make([]*CoreResult, len(all))
	for i := range all {
		sorted[i] = &all[i]
	}
	slices.SortStableFunc(sorted, func(a, b *CoreResult) int { return cmp.Compare(a.kind, b.kind) })
	for i, c := range sorted {
		if i == 0 || float64(c.kind) > 1.25*float64(sorted[i-1].kind) {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], c)
	}
	return out
}

func (r *CPUResult) faults(a cpuArgs) (out []string) {
	for _, c := range r.Cores {
		switch least := orElse(a.MinRounds, 0); {
		case c.Errors > 0:
			w := r.Wrong[slices.IndexFunc(r.Wrong, func(w WrongSum) bool { return w.CPU == c.CPU })]
			out = append(out,
				fmt.Sprintf("%s computed wrongly %d times in %d rounds, first in test %s: %s instead of %s", c,
					c.Errors, c.Rounds, w.Test, w.Got, w.Want))
		case c.Rounds == 0: // stopped
		case c.PercentOfOthers < percent(a.MinPercent, 70):
			out = append(out, fmt.Sprintf("%s is slow: %.1f rounds a second, %.0f %% of the median of the other cores",
				c, c.RoundsPerSecond, c.PercentOfOthers))
		case c.RoundsPerSecond < least:
			out = append(out, fmt.Sprintf("%s is slow: %.1f rounds a second, and not %g", c, c.RoundsPerSecond, least))
		}
	}
	if n := r.Throttled.sum(""); a.MaxThrottle != nil && n > *a.MaxThrottle {
		out = append(out,
			fmt.Sprintf("the processors throttled themselves %d times, and %d is allowed", n, *a.MaxThrottle))
	}
	if a.MaxCelsius != nil && r.Hottest != nil && *r.Hottest > *a.MaxCelsius {
		out = append(out,
			fmt.Sprintf("sensor %s showed %.0f °C, and %g is allowed", r.Sensor, *r.Hottest, *a.MaxCelsius))
	}
	return out
}

const cpuDir = "sys/devices/system/cpu"

func coreOf(root string, n int) CoreResult {
	dir := filepath.Join(root, cpuDir, "cpu"+strconv.Itoa(n))
	c := CoreResult{CPU: n, Socket: text(dir, "topology/physical_package_id"), Core: text(dir, "topology/core_id")}
	capacity, _ := number(dir, "cpu_capacity")
	most, _ := number(dir, "cpufreq/cpuinfo_max_freq")
	c.kind = cmp.Or(capacity, most)
	return c
}

// throttles returns the kernel's throttling counters, which exist on x86 only. All cores of a package have the same
// package counter.
func throttles(root string) counters {
	out := count(root, cpuDir, "cpu[0-9]*/thermal_throttle/core_throttle_count")
	for name, n := range count(root, cpuDir, "cpu[0-9]*/thermal_throttle/package_throttle_count") {
		cpu, _, _ := strings.Cut(name, "/")
		socket := "socket" + text(root, cpuDir, cpu, "topology/physical_package_id")
		out[socket] = max(out[socket], n)
	}
	return out
}

// heat reads the temperature sensors.
func (r *CPUResult) heat(root string) {
	for name, n := range count(root, "sys/class", "thermal/thermal_zone*/temp", "hwmon/hwmon*/temp*_input") {
		c := float64(n) / 1000
		if c > 200 || r.Hottest != nil && *r.Hottest >= c { // an absent sensor may return any value
			continue
		}
		r.Hottest, r.Sensor = &c, name
		if kind := text(root, "sys/class", filepath.Dir(name), "type") +
			text(root, "sys/class", filepath.Dir(name), "name"); kind != "" {
			r.Sensor = kind + " (" + name + ")"
		}
	}
}
