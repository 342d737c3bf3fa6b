package burnin

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/step"
)

// sized is a machine with so many MiB of free memory.
func sized(t *testing.T, meminfo string) *fake.Machine {
	m := fake.NewMachine(t.TempDir())
	put(t, m.Root(),
		map[string]string{"proc/meminfo": "MemTotal:        1048576 kB\nMemFree:          1024 kB\n" + meminfo})
	return m
}

const enough = "MemAvailable:     143360 kB" // 140 MiB

// TestMemory runs the real test on a little of the real memory.
func TestMemory(t *testing.T) {
	out, err := MemoryStep(linux.Machine{})(t.Context(),
		call(`{"runtime": 0, "max_mib": 4, "need_lock": false, "max_corrected_errors": 1000000}`))
	wantError(t, err)
	r := resultOf[MemoryResult](t, out, err)
	if r.Bytes != 4*mib || r.Rounds != 1 || r.ErrorCount != 0 {
		t.Errorf("result %+v", r)
	}
}

func TestMemoryFaults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		stuck []fake.Stuck
		want  []string
		bits  []int
	}{
		{"sound", nil, nil, []int{}},
		{"stuck at one", []fake.Stuck{{Offset: 0x5008, Bit: 17, One: true}},
			[]string{"first: physical address 0x100005008, bit 17, pattern solid: 0000000000020000 instead of 0000000000000000"}, []int{17}},
		{"stuck at zero", []fake.Stuck{{Offset: 12*mib - 8, Bit: 63}},
			[]string{"physical address 0x100bffff8, bit 63, pattern solid, inverted: 7fffffffffffffff instead of ffffffffffffffff"}, []int{63}},
		{"several", []fake.Stuck{{Offset: 0, Bit: 0, One: true}, {Offset: 0, Bit: 5, One: true},
			{Offset: 8 * mib, Bit: 40}}, []string{"physical address 0x100000000, bit 0+5, pattern solid"}, []int{0, 5,
			40}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := sized(t, enough)
			m.Stuck = tt.stuck
			out, err := MemoryStep(m)(t.Context(), call(`{"runtime": 0}`))
			wantError(t, err, tt.want...)
			r := resultOf[MemoryResult](t, out, err)
			if r.Bytes != 12*mib || !r.Locked || r.Rounds != 1 || !slices.Equal(r.BadBits, tt.bits) ||
				(r.ErrorCount > 0) != (tt.want != nil) || len(r.Errors) > keep {
				t.Errorf("result %+v", r)
			}
		})
	}
}

// twins is a machine two of whose words are one cell: an address line that is broken.
type twins struct{ *fake.Machine }

type twinMemory struct{ Memory }

func (m twins) Memory(ctx context.Context, size int64) (Memory, error) {
	r, err := m.Machine.Memory(ctx, size)
	return twinMemory{r}, err
}

func (r twinMemory) Words() []uint64 {
	w := r.Memory.Words()
	w[1<<10] = w[1<<19]
	return w
}

// TestMemoryAddresses: cells that answer to two addresses hold every pattern that is the same at both.
func TestMemoryAddresses(t *testing.T) {
	out, err := MemoryStep(twins{sized(t, enough)})(t.Context(), call(`{"runtime": 0}`))
	wantError(t, err, "pattern address: 0000000000400000 instead of 0000000000002000")
	for _, f := range resultOf[MemoryResult](t, out, err).Errors {
		if f.Offset != 8<<10 || !strings.HasPrefix(f.Pattern, "address") && !strings.HasPrefix(f.Pattern, "random") {
			t.Errorf("fault %+v", f)
		}
	}
}

func TestMemoryECC(t *testing.T) {
	files := map[string]string{edacDir + "/mc0/ce_count": "3", edacDir + "/mc0/ue_count": "0",
		edacDir + "/mc0/dimm1/dimm_ce_count": "3", edacDir + "/mc0/dimm1/dimm_label": "CPU0_DIMM_B2"}
	for _, tt := range []struct {
		name, args string
		after      map[string]string
		want       []string
	}{
		{"as before", `{"runtime": 0, "max_mib": 1}`, nil, nil},
		{"corrected", `{"runtime": 0, "max_mib": 1}`,
			map[string]string{edacDir + "/mc0/ce_count": "5", edacDir + "/mc0/dimm1/dimm_ce_count": "5"},
			[]string{"corrected 2 errors, and 0 is allowed (CPU0_DIMM_B2: dimm_ce_count 2)"}},
		{"allowed", `{"runtime": 0, "max_mib": 1, "max_corrected_errors": 2}`,
			map[string]string{edacDir + "/mc0/ce_count": "5"}, nil},
		{"not corrected", `{"runtime": 0, "max_mib": 1, "max_corrected_errors": 2}`,
			map[string]string{edacDir + "/mc0/ue_count": "1"}, []string{"found 1 errors that could not be corrected"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := sized(t, enough)
			put(t, m.Root(), files)
			_, err := MemoryStep(aging{m, func() { put(t, m.Root(), tt.after) }})(t.Context(), call(tt.args))
			wantError(t, err, tt.want...)
		})
	}
}

// aging is a machine to which something happens while its memory is tested.
type aging struct {
	*fake.Machine
	happens func()
}

type agingMemory struct {
	Memory
	happens func()
}

func (m aging) Memory(ctx context.Context, size int64) (Memory, error) {
	r, err := m.Machine.Memory(ctx, size)
	return agingMemory{r, m.happens}, err
}

func (r agingMemory) Words() []uint64 {
	r.happens()
	return r.Memory.Words()
}

func TestMemorySize(t *testing.T) {
	for _, tt := range []struct {
		meminfo, args string
		want          int64
	}{
		{enough, `{}`, 12 * mib},
		{enough, `{"percent": 5}`, 7 * mib},
		{enough, `{"max_mib": 3}`, 3 * mib},
		{"MemAvailable:   10485760 kB", `{}`, 9 << 30},
		{"MemAvailable:     131072 kB", `{}`, 0},
		{"MemAvailable:        few kB", `{}`, 0},
		{"", `{}`, 0},
	} {
		m := sized(t, tt.meminfo)
		var a memoryArgs
		if err := call(tt.args).Decode(&a); err != nil {
			t.Fatal(err)
		}
		if got, err := a.size(m.Root()); got != tt.want || (err != nil) != (tt.want == 0) {
			t.Errorf("of %s with %s: %d, %v, want %d", tt.meminfo, tt.args, got, err, tt.want)
		}
	}
	m := sized(t, enough)
	m.Free = mib
	_, err := MemoryStep(m)(t.Context(), call(`{"runtime": 0}`))
	wantError(t, err, "take 12 MiB of memory", "cannot allocate memory")
	m = sized(t, enough)
	m.NoLock = true
	_, err = MemoryStep(m)(t.Context(), call(`{"runtime": 0}`))
	wantError(t, err, "can't be locked")
	out, err := MemoryStep(m)(t.Context(), call(`{"runtime": 0, "need_lock": false}`))
	wantError(t, err)
	if r := resultOf[MemoryResult](t, out, err); r.Locked {
		t.Error("memory that is not locked is said to be")
	}
}

func TestMemoryStop(t *testing.T) {
	m := sized(t, enough)
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	out, err := MemoryStep(aging{m, func() {
		if n++; n == 20 {
			cancel()
		}
	}})(ctx, call(`{}`))
	wantError(t, err, "stopped before its end")
	if r := resultOf[MemoryResult](t, out, err); r.Rounds != 1 || n != 30 {
		t.Errorf("after %d passes: %+v", n, r)
	}
	if step.AsError(err).Retryable {
		t.Error("a step that was stopped is tried again")
	}
}
