package burnin

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/step"
)

// call returns the Call that a runner would pass to a step.
func call(args string) *step.Call {
	return &step.Call{Args: json.RawMessage(args), Log: slog.New(slog.DiscardHandler), Facts: &step.Facts{},
		Report: func(step.Progress) {}, Alive: func() {}}
}

// put writes files below a machine's root.
func put(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		f := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte(content+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// resultOf returns a step's result, of a failed step too.
func resultOf[T any](t *testing.T, out step.Outcome, err error) T {
	t.Helper()
	result := out.Result
	if err != nil {
		result = step.AsError(err).Result
	}
	b, jerr := json.Marshal(result)
	if jerr != nil {
		t.Fatal(jerr)
	}
	var r T
	if jerr := json.Unmarshal(b, &r); jerr != nil {
		t.Fatalf("result %s: %v", b, jerr)
	}
	return r
}

// wantError holds an error to what an operator has to read in it; no words mean no error.
func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if len(words) == 0 {
		if err != nil {
			t.Errorf("error %v", err)
		}
		return
	}
	if err == nil {
		t.Errorf("no error, want one with %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q lacks %q", err, w)
		}
	}
}

func TestKernels(t *testing.T) {
	for _, k := range kernels {
		var got [seeds]uint64
		for i := range got {
			got[i] = k.run(uint64(i))
		}
		if got != k.want {
			t.Errorf("%s gives %#x", k.name, got)
		}
		if slices.Contains(got[:], 0) || got[0] == got[1] {
			t.Errorf("%s gives %#x, which hides faults", k.name, got)
		}
	}
}

// TestCPU runs the real work on the real processors, briefly.
func TestCPU(t *testing.T) {
	out, err := CPUStep(linux.Machine{})(t.Context(), call(`{"runtime": 0, "min_core_percent": 0}`))
	wantError(t, err)
	r := resultOf[CPUResult](t, out, err)
	cpus, _ := linux.Machine{}.CPUs()
	if len(r.Cores) != len(cpus) {
		t.Errorf("%d cores, want %d", len(r.Cores), len(cpus))
	}
	for _, c := range r.Cores {
		if c.Rounds < seeds || c.RoundsPerSecond <= 0 {
			t.Errorf("cpu %d did %d rounds, %g a second", c.CPU, c.Rounds, c.RoundsPerSecond)
		}
	}
}

func TestCPUWrong(t *testing.T) {
	m := fake.NewMachine(t.TempDir())
	m.Cores = []float64{1, 1, 1, 1}
	put(t, m.Root(),
		map[string]string{cpuDir + "/cpu2/topology/physical_package_id": "1", cpuDir + "/cpu2/topology/core_id": "7"})
	run := cpuStep(m, func(cpu int, k kernel, seed uint64) uint64 {
		got := k.want[seed]
		if cpu == 2 && k.name == "matrix" && seed == 3 {
			got ^= 1 << 40
		}
		return got
	})
	out, err := run(t.Context(), call(`{"runtime": 0}`))
	wantError(t, err, "cpu 2 (socket 1, core 7) computed wrongly 1 times in 4 rounds, first in test matrix")
	r := resultOf[CPUResult](t, out, err)
	if len(r.Wrong) != 1 || r.Wrong[0].CPU != 2 || r.Wrong[0].Seed != 3 || r.Cores[2].Errors != 1 ||
		r.Cores[1].Errors != 0 {
		t.Errorf("result %+v", r)
	}
}

func right(_ int, k kernel, seed uint64) uint64 { return k.want[seed] }

func TestCPUSlow(t *testing.T) {
	for _, tt := range []struct {
		name, args string
		speed      []float64
		freq       []int
		want       []string
	}{
		{"even", `{"runtime": 0}`, []float64{1, 0.9, 1, 1.1}, nil, nil},
		{"one", `{"runtime": 0}`, []float64{1, 1, 0.5, 1}, nil, []string{"cpu 2 is slow", "50 % of the median"}},
		{"one of two", `{"runtime": 0}`, []float64{1, 0.6}, nil, []string{"cpu 1 is slow", "60 %"}},
		{"allowed", `{"runtime": 0, "min_core_percent": 40}`, []float64{1, 1, 0.5, 1}, nil, nil},
		{"alone", `{"runtime": 0}`, []float64{0.1}, nil, nil},
		{"economical cores", `{"runtime": 0}`, []float64{1, 1, 0.5, 0.5}, []int{5000, 5200, 3000, 3000}, nil},
		{"slow economical core", `{"runtime": 0}`, []float64{1, 1, 0.5, 0.3}, []int{5000, 5200, 3000, 3000},
			[]string{"cpu 3 is slow", "60 %"}},
		{"all too slow", `{"runtime": 0, "min_rounds_per_second": 1e6}`, []float64{1, 1}, nil,
			[]string{"cpu 0 is slow", "cpu 1 is slow", "and not 1e+06"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := fake.NewMachine(t.TempDir())
			m.Cores = tt.speed
			for i, f := range tt.freq {
				put(t, m.Root(),
					map[string]string{
						fmt.Sprintf("%s/cpu%d/cpufreq/cpuinfo_max_freq", cpuDir, i): fmt.Sprint(f * 1000)})
			}
			_, err := cpuStep(m, right)(t.Context(), call(tt.args))
			wantError(t, err, tt.want...)
		})
	}
}

func TestCPUHeat(t *testing.T) {
	m := fake.NewMachine(t.TempDir())
	m.Cores = []float64{1, 1}
	dir := m.Root()
	put(t, dir, map[string]string{
		cpuDir + "/cpu0/thermal_throttle/core_throttle_count":    "5",
		cpuDir + "/cpu1/thermal_throttle/core_throttle_count":    "0",
		cpuDir + "/cpu0/thermal_throttle/package_throttle_count": "9",
		cpuDir + "/cpu1/thermal_throttle/package_throttle_count": "9", "sys/class/thermal/thermal_zone0/temp": "41000",
		"sys/class/hwmon/hwmon1/temp2_input": "97500", "sys/class/hwmon/hwmon1/name": "coretemp",
	})
	var once atomic.Bool
	run := cpuStep(m, func(_ int, k kernel, seed uint64) uint64 {
		if once.CompareAndSwap(false, true) {
			put(t, dir, map[string]string{cpuDir + "/cpu0/thermal_throttle/core_throttle_count": "7",
				cpuDir + "/cpu0/thermal_throttle/package_throttle_count": "10",
				cpuDir + "/cpu1/thermal_throttle/package_throttle_count": "10"})
		}
		return k.want[seed]
	})
	out, err := run(t.Context(), call(`{"runtime": 0, "max_throttle_events": 2, "max_celsius": 95}`))
	wantError(t, err, "throttled themselves 3 times, and 2 is allowed",
		"sensor coretemp (hwmon/hwmon1/temp2_input) showed 98 °C")
	r := resultOf[CPUResult](t, out, err)
	if r.Throttled["cpu0/thermal_throttle/core_throttle_count"] != 2 || r.Throttled["socket"] != 1 ||
		r.Hottest == nil || *r.Hottest != 97.5 {
		t.Errorf("result %+v", r)
	}
	_, err = cpuStep(m, right)(t.Context(), call(`{"runtime": 0}`))
	wantError(t, err)
}

// TestCPUStop: a run of a day ends when it is stopped, and returns its measurements so far.
func TestCPUStop(t *testing.T) {
	m := fake.NewMachine(t.TempDir())
	m.Cores = []float64{1, 1}
	ctx, cancel := context.WithCancel(t.Context())
	var n atomic.Int32
	out, err := cpuStep(m, func(_ int, k kernel, seed uint64) uint64 {
		if n.Add(1) == 200 {
			cancel()
		}
		return k.want[seed]
	})(ctx, call(``))
	wantError(t, err, "stopped before its end")
	if r := resultOf[CPUResult](t, out, err); r.Cores[0].Rounds+r.Cores[1].Rounds == 0 {
		t.Errorf("result %+v", r)
	}
}

// TestPace: work that ends by the clock shows how far it is.
func TestPace(t *testing.T) {
	var last step.Progress
	c := call("")
	c.Report = func(p step.Progress) { last = p }
	p := newPace(c, "x", time.Hour)
	p.begin = time.Now().Add(-15 * time.Minute)
	p.bytes.Store(1000)
	p.report()
	if last.Phase != "x" || last.Bytes != 1000 || last.Total < 3900 || last.Total > 4000 {
		t.Errorf("reported %+v", last)
	}
}
