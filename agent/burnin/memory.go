package burnin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// MemoryArgs declares the arguments of burnin_memory.
var MemoryArgs = []step.Arg{
	{Name: "runtime", Type: "number", Min: step.Limit(0), Max: step.Limit(longest),
		Description: "duration in seconds (default 86400); a started round of all patterns is finished; 0: one round"},
	{Name: "percent", Type: "integer", Min: step.Limit(1), Max: step.Limit(98),
		Description: "percentage of the free memory to test (default 90); at least 128 MiB stay free"},
	{Name: "max_mib", Type: "integer", Min: step.Limit(1),
		Description: "maximum MiB to test; default: no limit"},
	{Name: "need_lock", Type: "boolean", Description: "fail if the memory can't be locked (default true)"},
	{Name: "max_corrected_errors", Type: "integer", Min: step.Limit(0),
		Description: "fail if the memory controllers corrected more errors than this during the test (default 0)"},
}

type memoryArgs struct {
	Runtime      *float64 `json:"runtime"`
	Percent      *int     `json:"percent"`
	MaxMiB       *int64   `json:"max_mib"`
	NeedLock     *bool    `json:"need_lock"`
	MaxCorrected *int64   `json:"max_corrected_errors"`
}

// Memory is a region of the machine's memory. It is an alias of an interface literal, so that implementations need not
// import this package.
type Memory = interface {
	// Words returns the region. It is called again before each pass.
	Words() []uint64
	// Locked reports whether the region is locked in memory.
	Locked() bool
	// Physical returns the physical address of a byte of the region; false when the kernel does not expose it.
	Physical(offset int64) (uint64, bool)
	Close() error
}

// memory is the part of the machine that burnin_memory uses.
type memory interface {
	// Root is the directory that contains sys and proc.
	Root() string
	// Memory allocates size bytes, and locks them if it can.
	Memory(ctx context.Context, size int64) (Memory, error)
}

// MemoryResult holds the measurements of burnin_memory.
type MemoryResult struct {
	Bytes        int64      `json:"bytes"` // size of the region
	Locked       bool       `json:"locked"`
	Rounds       int        `json:"rounds"` // of all patterns
	Seconds      float64    `json:"seconds"`
	MiBPerSecond float64    `json:"mib_per_second"` // read and written, on all cores together
	ErrorCount   int        `json:"error_count"`
	BadBits      []int      `json:"bad_bits"` // of a 64-bit word, in any error
	Errors       []MemFault `json:"errors"`   // the first ones
	ECC          counters   `json:"ecc"`      // growth of the memory controllers' counters
}

// MemFault is a word that differs from the written one.
type MemFault struct {
	Offset   int64  `json:"offset"`
	Physical string `json:"physical_address,omitempty"`
	Want     string `json:"want"`
	Got      string `json:"got"`
	// value of a second read: if correct, the path to memory is suspect rather than its cells
	Again   string `json:"again"`
	Bits    []int  `json:"bits"`
	Pattern string `json:"pattern"`
}

func (f MemFault) String() string {
	at := fmt.Sprintf("offset 0x%x", f.Offset)
	if f.Physical != "" {
		at = "physical address " + f.Physical
	}
	return fmt.Sprintf("%s, bit %s, pattern %s: %s instead of %s", at, joinInts(f.Bits), f.Pattern, f.Got, f.Want)
}

func joinInts(list []int) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", "+")
}

// pattern computes the value of a word from its index in the region and the number of the round.
type pattern struct {
	name string
	word func(i, round uint64) uint64
}

// patterns find the known kinds of memory faults: stuck cells (solid), cells that disturb each other (checkerboard,
// walking), wrong address decoding (address), and unforeseen ones (random). Each pattern is written upwards; then,
// upwards, each word is read and inverted; then, downwards, the inverse is read (moving inversions).
var patterns = []pattern{
	{"solid", func(_, _ uint64) uint64 { return 0 }},
	{"checkerboard", func(_, _ uint64) uint64 { return 0xaaaaaaaaaaaaaaaa }},
	{"walking ones", func(i, round uint64) uint64 { return 1 << ((i + round) % 64) }},
	{"address", func(i, _ uint64) uint64 { return i * 8 }},
	{"random", func(i, round uint64) uint64 { return mix(i + round<<40) }},
}

const (
	leaveFree  = 128 << 20
	leastBytes = 1 << 20
	chunkWords = 1 << 17 // between two checks of the clock
)

// MemoryStep fills most of the free memory with patterns and reads them back, on all cores, round after round.
func MemoryStep(m memory) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, a memoryArgs) (out step.Outcome, err error) {
		size, err := a.size(m.Root())
		if err != nil {
			return step.Outcome{}, err
		}
		c.Report(step.Progress{Phase: "take memory"})
		stop := everySecond(func() { alive(c) }) // a kernel needs minutes to clear terabytes
		region, err := m.Memory(ctx, size)
		stop()
		if err != nil {
			return step.Outcome{},
				step.Fail("give a smaller percent", fmt.Errorf("take %d MiB of memory: %w", size>>20, err))
		}
		defer func() {
			if cerr := region.Close(); err == nil && cerr != nil {
				out, err = step.Outcome{}, cerr
			}
		}()
		r := MemoryResult{Bytes: size, Locked: region.Locked(), Errors: []MemFault{}, BadBits: []int{}}
		if !r.Locked && orElse(a.NeedLock, true) {
			return step.Outcome{},
				step.Failf("run the agent with the right to lock memory, or set need_lock to false",
					"%d MiB of memory can't be locked in place", size>>20)
		}
		before := ecc(m.Root())
		t := &memTest{p: newPace(c, "test memory", seconds(a.Runtime, defaultRuntime)), region: region,
			workers: runtime.GOMAXPROCS(0)}
		stop = everySecond(t.p.report)
		for ctx.Err() == nil && t.count == 0 && (r.Rounds == 0 || !t.p.over()) {
			if t.round(ctx, uint64(r.Rounds)) {
				r.Rounds++
			}
		}
		stop()
		if took := time.Since(t.p.begin).Seconds(); took > 0 {
			r.Seconds, r.MiBPerSecond = took, float64(t.p.bytes.Load())/took/(1<<20)
		}
		r.ErrorCount, r.Errors = t.count, append(r.Errors, t.faults...)
		r.BadBits = append(r.BadBits, bitsOf(t.bad)...)
		r.ECC = ecc(m.Root()).since(before)
		faults := r.judge(a)
		if len(faults) == 0 && ctx.Err() != nil {
			return step.Outcome{}, stopped(ctx, "burn-in of the memory", r)
		}
		c.Log.Info("memory burnt in", "bytes", r.Bytes, "rounds", r.Rounds, "errors", r.ErrorCount, "mib_per_second",
			r.MiBPerSecond)
		return failed("find the module by the address or the counters' labels, re-seat or replace it", faults, r)
	})
}

// size returns the number of bytes to test.
func (a memoryArgs) size(root string) (int64, error) {
	free, err := available(root)
	if err != nil {
		return 0, err
	}
	size := min(int64(float64(free)*percent(a.Percent, 90)/100), free-leaveFree)
	if a.MaxMiB != nil {
		size = min(size, *a.MaxMiB<<20)
	}
	if size = size &^ 0xfff; size < leastBytes {
		return 0, step.Failf("give the machine more memory, or use a smaller ramdisk",
			"%d MiB of memory are free, and %d have to stay so", free>>20, leaveFree>>20)
	}
	return size, nil
}

// available returns the memory that the kernel can give to a program.
func available(root string) (int64, error) {
	b, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return 0, fmt.Errorf("find out how much memory is free: %w", err)
	}
	_, rest, ok := strings.Cut("\n"+string(b), "\nMemAvailable:")
	if !ok {
		return 0, errors.New("find out how much memory is free: the kernel does not tell")
	}
	line, _, _ := strings.Cut(rest, "\n")
	kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(line, "kB")), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("find out how much memory is free: %w", err)
	}
	return kib << 10, nil
}

// memTest is a running test.
type memTest struct {
	p       *pace
	region  Memory
	workers int

	mu     sync.Mutex
	count  int
	bad    uint64
	faults []MemFault
}

// round runs all patterns over the region, and reports whether it was completed.
func (t *memTest) round(ctx context.Context, n uint64) bool {
	for _, p := range patterns {
		t.pass(ctx, func(words []uint64, at uint64) {
			for i := range words {
				words[i] = p.word(at+uint64(i), n)
			}
		})
		t.pass(ctx, func(words []uint64, at uint64) {
			for i := range words {
				want := p.word(at+uint64(i), n)
				if got := words[i]; got != want {
					t.fault(words, i, at, got, want, p.name)
				}
				words[i] = ^want
			}
		})
		t.pass(ctx, func(words []uint64, at uint64) {
			for i, got := range slices.Backward(words) {
				if want := ^p.word(at+uint64(i), n); got != want {
					t.fault(words, i, at, got, want, p.name+", inverted")
				}
			}
		})
	}
	return ctx.Err() == nil
}

// pass splits the region among all workers and calls do for each chunk.
func (t *memTest) pass(ctx context.Context, do func(words []uint64, at uint64)) {
	words := t.region.Words()
	part := (len(words)/t.workers + 8) &^ 7
	var wg sync.WaitGroup
	for from := 0; from < len(words); from += part {
		to := min(from+part, len(words))
		wg.Go(func() {
			for at := from; at < to && ctx.Err() == nil; at += chunkWords {
				end := min(at+chunkWords, to)
				do(words[at:end], uint64(at))
				t.p.bytes.Add(int64(end-at) * 8)
				runtime.Gosched() // the agent has to answer its conductor
			}
		})
	}
	wg.Wait()
}

func (t *memTest) fault(words []uint64, i int, at uint64, got, want uint64, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count++
	t.bad |= got ^ want
	if len(t.faults) >= keep {
		return
	}
	f := MemFault{Offset: int64(at+uint64(i)) * 8, Pattern: name, Bits: bitsOf(got ^ want),
		Want: fmt.Sprintf("%016x", want), Got: fmt.Sprintf("%016x", got), Again: fmt.Sprintf("%016x", words[i])}
	if addr, ok := t.region.Physical(f.Offset); ok {
		f.Physical = fmt.Sprintf("0x%x", addr)
	}
	t.faults = append(t.faults, f)
}

func bitsOf(w uint64) (out []int) {
	for ; w != 0; w &= w - 1 {
		out = append(out, bits.TrailingZeros64(w))
	}
	return out
}

const edacDir = "sys/devices/system/edac/mc"

// ecc returns the counters of the memory controllers: corrected and uncorrected errors, of each and of its modules.
func ecc(root string) counters {
	out := count(root, edacDir, "mc*/[cu]e_count", "mc*/[cu]e_noinfo_count")
	for name, n := range count(root, edacDir, "mc*/dimm*/dimm_[cu]e_count", "mc*/rank*/dimm_[cu]e_count") {
		label := cmp.Or(text(root, edacDir, filepath.Dir(name), "dimm_label"), filepath.Dir(name))
		out["module "+label+": "+filepath.Base(name)] += n
	}
	return out
}

func (r *MemoryResult) judge(a memoryArgs) (out []string) {
	if r.ErrorCount > 0 {
		out = append(out,
			fmt.Sprintf("memory is not what was written to it, %d times; first: %s", r.ErrorCount, r.Errors[0]))
	}
	var where []string
	for name, n := range r.ECC {
		if strings.HasPrefix(name, "module ") && n > 0 {
			where = append(where, fmt.Sprintf("%s %d", strings.TrimPrefix(name, "module "), n))
		}
	}
	modules := ""
	if len(where) > 0 {
		slices.Sort(where)
		modules = " (" + strings.Join(where, ", ") + ")"
	}
	if n := r.ECC.sum("/ue_count"); n > 0 {
		out = append(out,
			fmt.Sprintf("the memory controllers found %d errors that could not be corrected%s", n, modules))
	}
	if n, most := r.ECC.sum("/ce_count"), orElse(a.MaxCorrected, 0); n > most {
		out = append(out,
			fmt.Sprintf("the memory controllers corrected %d errors, and %d is allowed%s", n, most, modules))
	}
	return out
}
