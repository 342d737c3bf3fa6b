package burnin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/disk/erase"
	"github.com/ingot-metal/ingot/agent/machine/passthru"
	"github.com/ingot-metal/ingot/agent/step"
)

// DiskArgs declares the arguments of burnin_disk.
var DiskArgs = append(slices.Clone(erase.CommonArgs), []step.Arg{
	{Name: "loops", Type: "integer", Min: step.Limit(1), Max: step.Limit(1000),
		Description: "number of loops (default 4)"},
	{Name: "sequential_mib", Type: "integer", Min: step.Limit(1), Max: step.Limit(1 << 30),
		Description: "MiB of each disk that a loop reads in long runs, spread over the whole disk (default 4096)"},
	{Name: "random_reads", Type: "integer", Min: step.Limit(0), Max: step.Limit(100_000_000),
		Description: "blocks of 4 KiB that a loop reads at random places, one at a time (default 4096)"},
	{Name: "full", Type: "boolean", Description: "read every byte of each disk in each loop, not runs spread over it"},
	{Name: "destructive", Type: "boolean",
		Description: "write instead of only reading, then read back and compare: ALL DATA ON THE DISKS IS LOST"},
	{Name: "min_sibling_percent", Type: "integer", Min: step.Limit(0), Max: step.Limit(100),
		Description: "a disk fails if it reads or writes at less than this percentage of the median of the other disks of its model and size (default 70); 0: no minimum"},
	{Name: "min_sequential_mib", Type: "number", Min: step.Limit(0),
		Description: "a disk fails if it reads fewer MiB per second in long runs (default 0)"},
	{Name: "min_random_reads", Type: "number", Min: step.Limit(0),
		Description: "a disk fails if it reads fewer blocks per second at random places (default 0)"},
	{Name: "max_latency_ms", Type: "number", Min: step.Limit(0),
		Description: "a disk fails if the 99th percentile of its random reads exceeds this, in milliseconds; default: only report it"},
}...)

type diskArgs struct {
	erase.Common
	Loops         *int     `json:"loops"`
	SequentialMiB *int64   `json:"sequential_mib"`
	RandomReads   *int     `json:"random_reads"`
	Full          bool     `json:"full"`
	Destructive   bool     `json:"destructive"`
	MinPercent    *int     `json:"min_sibling_percent"`
	MinSequential *float64 `json:"min_sequential_mib"`
	MinRandom     *float64 `json:"min_random_reads"`
	MaxLatency    *float64 `json:"max_latency_ms"`
}

// disks is the part of the machine that burnin_disk uses.
type disks interface {
	passthru.Transport
	OpenExclusive(ctx context.Context, path string) (disk.Device, error)
	Settle(ctx context.Context) error
}

// DiskResult holds the measurements of one disk.
type DiskResult struct {
	Name   string `json:"name"`
	Model  string `json:"model"`
	Serial string `json:"serial"`
	WWN    string `json:"wwn"`
	Size   int64  `json:"size"`

	Read   Throughput  `json:"sequential_read"`
	Write  *Throughput `json:"sequential_write,omitempty"` // with destructive
	Random Latency     `json:"random_read"`
	// Errors are the disk's first errors; ErrorCount counts all.
	Errors     []string `json:"errors"`
	ErrorCount int      `json:"error_count"`
	// Before and After are the disk's health data; nil if it has none.
	Before *passthru.Health `json:"health_before,omitempty"`
	After  *passthru.Health `json:"health_after,omitempty"`
	// Mute is why the health data of a disk could not be read; many RAID controllers don't pass it on.
	Mute  string `json:"health_error,omitempty"`
	Fault string `json:"fault,omitempty"` // why it failed; "" when it did not

	disk   disk.Disk
	ran    bool // completed
	faults []string
}

// Throughput of long runs.
type Throughput struct {
	Bytes        int64   `json:"bytes"`
	Seconds      float64 `json:"seconds"`
	MiBPerSecond float64 `json:"mib_per_second"`
	// relative to the median of its siblings; absent without siblings
	PercentOfOthers float64 `json:"percent_of_others,omitempty"`
}

func (t *Throughput) add(n int, took time.Duration) {
	t.Bytes += int64(n)
	t.Seconds += took.Seconds()
	if t.Seconds > 0 {
		t.MiBPerSecond = float64(t.Bytes) / t.Seconds / (1 << 20)
	}
}

// Latency of random reads, one at a time. Times are milliseconds.
type Latency struct {
	Reads           int     `json:"reads"`
	PerSecond       float64 `json:"reads_per_second"`
	P50             float64 `json:"p50_ms"`
	P90             float64 `json:"p90_ms"`
	P99             float64 `json:"p99_ms"`
	P999            float64 `json:"p99_9_ms"`
	Max             float64 `json:"max_ms"`
	PercentOfOthers float64 `json:"percent_of_others,omitempty"`
}

const (
	diskBlock  = 1 << 20 // of a long run
	diskRuns   = 32      // long runs per loop: outer and inner tracks differ by half
	randomSize = 4096
	tooMany    = 64 // read errors after which a disk is given up
)

// DiskStep reads from all disks, a bounded number of them at the same time, and compares their speed. If stopped with
// destructive set, which overwrites, disks hold random data in places.
func DiskStep(m disks) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, a diskArgs) (step.Outcome, error) {
		chosen, err := a.Chosen(ctx, m, c, "burnin_disk")
		if err != nil {
			return step.Outcome{}, err
		}
		all := make([]*DiskResult, len(chosen))
		for i, d := range chosen {
			all[i] = &DiskResult{Name: d.Name, Model: d.Model, Serial: d.Serial, WWN: d.WWN, Size: d.Size,
				Errors: []string{}, disk: d}
		}
		err = step.Each(ctx, c, "burn in", a.Limit(), all, func(r *DiskResult) string { return r.disk.String() },
			func(ctx context.Context, r *DiskResult, report func(done, total int64)) error {
				return a.burn(ctx, m, r, report)
			})
		if ctx.Err() == nil {
			compareDisks(all)
		}
		var faults []string
		for _, r := range all {
			if err != nil && !r.ran {
				r.faults = append(r.faults, "not done")
			}
			r.judge(a)
			if r.Fault = strings.Join(r.faults, ", "); r.Fault != "" && r.ran {
				faults = append(faults,
					fmt.Sprintf("%s (%s, serial %s): %s", r.Name, orUnknown(r.Model), orUnknown(r.Serial), r.Fault))
			}
			c.Log.Info("disk burnt in", "disk", r.Name, "mib_per_second", r.Read.MiBPerSecond, "reads_per_second",
				r.Random.PerSecond, "fault", r.Fault)
		}
		result := map[string]any{"disks": all}
		if err != nil {
			if len(faults) > 0 {
				err = fmt.Errorf("%w; %s", err, strings.Join(faults, "; "))
			}
			return step.Outcome{}, step.WithResult(err, result)
		}
		return failed("check cabling, backplane and the disk's place, and replace the disk if it stays so", faults,
			result)
	})
}

func orUnknown(s string) string { return cmp.Or(s, "unknown") }

// burn tests one disk. An error means that the test could not run; faults of the disk go into r.
func (a diskArgs) burn(ctx context.Context, m disks, r *DiskResult, report func(done, total int64)) (err error) {
	var dev disk.Device
	if a.Destructive {
		dev, err = a.Open(ctx, m, r.disk)
	} else {
		dev, _, err = disk.OpenVerified(ctx, m, r.disk.Identity())
	}
	if err != nil {
		return err
	}
	defer disk.Close(dev, &err)
	r.Before = r.health(ctx, m)
	b := &diskWork{args: a, dev: dev, r: r, report: report,
		rng: rand.New(rand.NewPCG(uint64(r.Size), uint64(time.Now().UnixNano())))}
	if err := b.all(ctx); err != nil {
		return err
	}
	if a.Destructive {
		_ = dev.RereadPartitions() // stale partitions in the kernel are not a fault of the disk
	}
	r.After = r.health(ctx, m)
	r.ran = true
	return nil
}

func (r *DiskResult) health(ctx context.Context, m passthru.Transport) *passthru.Health {
	h, err := passthru.ReadHealth(ctx, m, r.Name)
	switch {
	case err == nil:
		return &h
	case !errors.Is(err, errors.ErrUnsupported):
		r.Mute = err.Error()
	}
	return nil
}

// diskWork is the work on one disk.
type diskWork struct {
	args        diskArgs
	dev         disk.Device
	r           *DiskResult
	report      func(done, total int64)
	rng         *rand.Rand
	done, total int64
	latencies   []time.Duration
	random      time.Duration // of all reads
	longest     time.Duration
}

var errTooMany = errors.New("too many errors")

func (b *diskWork) all(ctx context.Context) error {
	loops, reads := orElse(b.args.Loops, 4), orElse(b.args.RandomReads, 4096)
	sector := int64(b.dev.SectorSize())
	size := b.dev.Size() / sector * sector
	runs := spread(size, orElse(b.args.SequentialMiB, 4096)<<20, b.args.Full)
	var sum int64
	for _, s := range runs {
		sum += s.n
	}
	passes := int64(1)
	if b.args.Destructive {
		passes = 2
	}
	if size < randomSize {
		reads = 0
	}
	b.total = int64(loops) * (passes*sum + int64(reads)*randomSize)
	b.report(0, b.total)
	buf, want := make([]byte, diskBlock), make([]byte, diskBlock)
	for loop := range loops {
		err := b.sequential(ctx, runs, loop, buf, want)
		if err == nil {
			err = b.randomReads(ctx, size, reads, buf)
		}
		if errors.Is(err, errTooMany) {
			break
		}
		if err != nil {
			return err
		}
	}
	b.summary()
	return nil
}

type span struct{ off, n int64 }

// spread returns the long runs: the whole disk, or the given number of bytes, spread from its start to its end.
func spread(size, want int64, full bool) []span {
	if full || want >= size {
		return []span{{0, size}}
	}
	n := max(want/diskRuns/diskBlock, 1) * diskBlock
	count := max(want/n, 2)
	if n*count >= size {
		return []span{{0, size}}
	}
	out := make([]span, count)
	for i := range out {
		out[i] = span{(size - n) / diskBlock * int64(i) / (count - 1) * diskBlock, n}
	}
	out[count-1].off = (size - n) / randomSize * randomSize
	out[count-1].n = size - out[count-1].off
	return out
}

// sequential writes every run if allowed, flushes, and reads every run.
func (b *diskWork) sequential(ctx context.Context, runs []span, loop int, buf, want []byte) error {
	seed := b.rng.Uint64()
	if b.args.Destructive {
		if b.r.Write == nil {
			b.r.Write = &Throughput{}
		}
		err := b.blocks(ctx, runs, func(off int64, n int) error {
			stamp(want[:n], seed, off)
			begin := time.Now()
			_, err := b.dev.WriteAt(want[:n], off)
			if err == nil {
				b.r.Write.add(n, time.Since(begin))
			}
			return err
		})
		if err != nil {
			return err
		}
		begin := time.Now()
		if err := b.dev.Sync(); err != nil && b.fault(fmt.Errorf("flush: %w", err)) != nil {
			return errTooMany
		}
		b.r.Write.add(0, time.Since(begin))
	}
	return b.blocks(ctx, runs, func(off int64, n int) error {
		begin := time.Now()
		got, err := b.dev.ReadAt(buf[:n], off)
		took := time.Since(begin)
		if err != nil && (got < n || !errors.Is(err, io.EOF)) {
			return err
		}
		b.r.Read.add(n, took)
		if !b.args.Destructive {
			return nil
		}
		if stamp(want[:n], seed, off); !bytes.Equal(buf[:n], want[:n]) {
			at := 0
			for buf[at] == want[at] {
				at++
			}
			return fmt.Errorf("loop %d: byte %d is 0x%02x, and 0x%02x was written", loop+1, off+int64(at), buf[at],
				want[at])
		}
		return nil
	})
}

// stamp fills a block with noise that depends on its offset, so that a misplaced write is detected.
func stamp(p []byte, seed uint64, off int64) {
	s := mix(seed ^ uint64(off))
	for i := 0; i < len(p); i += 8 {
		s = s*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(p[i:], s^s>>29)
	}
}

// blocks calls do for each block of the runs. It continues after errors until there are too many.
func (b *diskWork) blocks(ctx context.Context, runs []span, do func(off int64, n int) error) error {
	for _, s := range runs {
		for off := s.off; off < s.off+s.n; off += diskBlock {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			n := min(diskBlock, s.off+s.n-off)
			if err := do(off, int(n)); err != nil &&
				b.fault(fmt.Errorf("%d bytes at byte %d: %w", n, off, err)) != nil {
				return errTooMany
			}
			b.done += n
			b.report(b.done, b.total)
		}
	}
	return nil
}

func (b *diskWork) fault(err error) error {
	if b.r.ErrorCount++; b.r.ErrorCount <= keep {
		b.r.Errors = append(b.r.Errors, err.Error())
	}
	if b.r.ErrorCount >= tooMany {
		return errTooMany
	}
	return nil
}

func (b *diskWork) randomReads(ctx context.Context, size int64, reads int, buf []byte) error {
	for range reads {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		off := b.rng.Int64N(size/randomSize) * randomSize
		begin := time.Now()
		_, err := b.dev.ReadAt(buf[:randomSize], off)
		took := time.Since(begin)
		if err != nil {
			if err := b.fault(fmt.Errorf("%d bytes at byte %d: %w", randomSize, off, err)); err != nil {
				return err
			}
		} else {
			b.took(took)
		}
		b.done += randomSize
		b.report(b.done, b.total)
	}
	return nil
}

// mostLatencies is how many latencies are kept; of more, a random sample, which has the same distribution.
const mostLatencies = 1 << 20

func (b *diskWork) took(d time.Duration) {
	b.r.Random.Reads++
	b.random += d
	b.longest = max(b.longest, d)
	if len(b.latencies) < mostLatencies {
		b.latencies = append(b.latencies, d)
	} else if i := b.rng.IntN(b.r.Random.Reads); i < mostLatencies {
		b.latencies[i] = d
	}
}

func (b *diskWork) summary() {
	l := &b.r.Random
	if l.Reads == 0 {
		return
	}
	if s := b.random.Seconds(); s > 0 {
		l.PerSecond = float64(l.Reads) / s
	}
	slices.Sort(b.latencies)
	at := func(perMille int) float64 {
		i := min((len(b.latencies)*perMille+999)/1000, len(b.latencies)) - 1
		return float64(b.latencies[max(i, 0)].Microseconds()) / 1000
	}
	l.P50, l.P90, l.P99, l.P999 = at(500), at(900), at(990), at(999)
	l.Max = float64(b.longest.Microseconds()) / 1000
}

// compareDisks compares each disk with its siblings: completely read disks of the same model and size.
func compareDisks(all []*DiskResult) {
	type kind struct {
		vendor, model string
		size          int64
	}
	groups := map[kind][]*DiskResult{}
	for _, r := range all {
		if r.ran {
			k := kind{r.disk.Vendor, r.Model, r.Size}
			groups[k] = append(groups[k], r)
		}
	}
	for _, g := range groups {
		if len(g) < 2 {
			continue
		}
		for _, of := range []func(r *DiskResult) (float64, *float64){
			func(r *DiskResult) (float64, *float64) { return r.Read.MiBPerSecond, &r.Read.PercentOfOthers },
			func(r *DiskResult) (float64, *float64) { return r.Random.PerSecond, &r.Random.PercentOfOthers },
			func(r *DiskResult) (float64, *float64) {
				if r.Write == nil {
					return 0, new(float64)
				}
				return r.Write.MiBPerSecond, &r.Write.PercentOfOthers
			},
		} {
			values := make([]float64, len(g))
			for i, r := range g {
				values[i], _ = of(r)
			}
			for i, r := range g {
				_, to := of(r)
				*to = share(values, i)
			}
		}
	}
}

// judge collects the faults of the disk.
func (r *DiskResult) judge(a diskArgs) {
	if !r.ran {
		return
	}
	bad := func(format string, v ...any) { r.faults = append(r.faults, fmt.Sprintf(format, v...)) }
	if r.ErrorCount > 0 {
		bad("%d errors, first: %s", r.ErrorCount, r.Errors[0])
	}
	least := percent(a.MinPercent, 70)
	slow := func(what string, value, of float64, unit string) {
		if of > 0 && of < least {
			bad("%s at %.1f %s, %.0f %% of the median of its siblings", what, value, unit, of)
		}
	}
	slow("reads", r.Read.MiBPerSecond, r.Read.PercentOfOthers, "MiB/s")
	slow("reads at random places", r.Random.PerSecond, r.Random.PercentOfOthers, "blocks/s")
	if r.Write != nil {
		slow("writes", r.Write.MiBPerSecond, r.Write.PercentOfOthers, "MiB/s")
	}
	if v := orElse(a.MinSequential, 0); r.Read.Seconds > 0 && r.Read.MiBPerSecond < v {
		bad("reads at %.1f MiB/s, and not %g", r.Read.MiBPerSecond, v)
	}
	if v := orElse(a.MinRandom, 0); r.Random.PerSecond > 0 && r.Random.PerSecond < v {
		bad("reads %.1f blocks/s at random places, and not %g", r.Random.PerSecond, v)
	}
	if a.MaxLatency != nil && r.Random.P99 > *a.MaxLatency {
		bad("one in a hundred random reads takes more than %g ms, and %g is allowed", r.Random.P99, *a.MaxLatency)
	}
	if h := r.After; h != nil {
		if h.Status == passthru.Failing {
			bad("says that it is failing: %s", strings.Join(h.Warnings, ", "))
		}
		if b := r.Before; b != nil {
			for _, n := range []struct {
				what          string
				before, after *uint64
			}{
				{"errors that could not be corrected", b.MediaErrors, h.MediaErrors},
				{"reallocated sectors", b.ReallocatedSectors, h.ReallocatedSectors},
				{"pending sectors", b.PendingSectors, h.PendingSectors},
			} {
				if n.before != nil && n.after != nil && *n.after > *n.before {
					bad("counts %d more %s than before", *n.after-*n.before, n.what)
				}
			}
		}
	}
}
