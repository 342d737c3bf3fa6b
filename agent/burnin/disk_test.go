package burnin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/machine/linux"
)

const mib = 1 << 20

// rack is a machine with disks of one model, and one of another, a quarter of their size.
func rack(t *testing.T, n int, size int64) (*fake.Machine, []*fake.Disk) {
	m := fake.NewMachine(t.TempDir())
	var all []*fake.Disk
	for i := range n {
		all = append(all,
			m.Add(fake.DiskSpec{Name: "sd" + string(rune('a'+i)), Bus: "sata", Model: "Twin 100", Size: size,
				Serial: fmt.Sprintf("T%d", i), Fill: 0xee}))
	}
	return m, append(all,
		m.Add(fake.DiskSpec{Name: "sdz", Bus: "sata", Model: "Single 7", Size: size / 4, Serial: "S"}))
}

// takes makes every operation of a disk take a while, of the fake time of a synctest.
func takes(d *fake.Disk, per time.Duration) {
	d.Fail(func(string, int64, int64) error {
		<-time.After(per)
		return nil
	})
}

const brief = `"loops": 2, "sequential_mib": 16, "random_reads": 100`

func TestDiskSiblings(t *testing.T) {
	for _, tt := range []struct {
		name, args string
		took       []time.Duration // per operation; the last is the disk without siblings
		want       []string
	}{
		{"even", brief, []time.Duration{time.Millisecond, 1100 * time.Microsecond, time.Millisecond,
			50 * time.Millisecond}, nil},
		{"one slow", brief, []time.Duration{time.Millisecond, time.Millisecond, 2 * time.Millisecond, time.Millisecond},
			[]string{"sdc", "T2",
				"reads at 500.0 MiB/s, 50 % of the median of its siblings, reads at random places at 500.0 blocks/s, 50 %"}},
		{"one of two", brief, []time.Duration{time.Millisecond, 2 * time.Millisecond, time.Millisecond},
			[]string{"sdb", "50 %"}},
		{"allowed", brief + `, "min_sibling_percent": 50`,
			[]time.Duration{time.Millisecond, 2 * time.Millisecond, time.Millisecond}, nil},
		{"all too slow", brief + `, "min_sequential_mib": 2000, "min_random_reads": 900`,
			[]time.Duration{time.Millisecond, time.Millisecond, time.Millisecond},
			[]string{"sda", "reads at 1000.0 MiB/s, and not 2000", "sdb", "sdz"}},
		{"latency", brief + `, "max_latency_ms": 1.5`, []time.Duration{2 * time.Millisecond, time.Millisecond},
			[]string{"sda", "one in a hundred random reads takes more than 2 ms, and 1.5 is allowed"}},
		{"full", `"full": true, "loops": 1, "random_reads": 0`,
			[]time.Duration{time.Millisecond, 2 * time.Millisecond, time.Millisecond}, []string{"sdb", "500.0 MiB/s"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, all := rack(t, len(tt.took)-1, 64*mib)
			synctest.Test(t, func(t *testing.T) {
				for i, d := range all {
					takes(d, tt.took[i])
				}
				out, err := DiskStep(m)(t.Context(), call("{"+tt.args+"}"))
				wantError(t, err, tt.want...)
				r := resultOf[struct{ Disks []DiskResult }](t, out, err)
				if len(r.Disks) != len(all) {
					t.Fatalf("%d disks in the result", len(r.Disks))
				}
				for i, d := range r.Disks {
					per := float64(tt.took[i]) / float64(time.Millisecond)
					if d.ErrorCount != 0 || d.Read.MiBPerSecond < 999/per || d.Read.MiBPerSecond > 1001/per ||
						d.Random.Reads > 0 && d.Random.P50 != per || all[i].Written() != 0 {
						t.Errorf("%s: %+v", d.Name, d)
					}
					if single := i == len(all)-1 || len(all) == 2; single != (d.Read.PercentOfOthers == 0) {
						t.Errorf("%s has %g %% of its siblings' median", d.Name, d.Read.PercentOfOthers)
					}
					if bad := d.Fault != ""; bad && (err == nil || !strings.Contains(err.Error(), d.Fault)) {
						t.Errorf("%s: fault %q is not in the error", d.Name, d.Fault)
					}
				}
			})
		})
	}
}

// TestDiskErrors: what one disk answers fails it, and the others are done all the same.
func TestDiskErrors(t *testing.T) {
	m, all := rack(t, 3, 64*mib)
	all[0].Fail(func(kind string, off, n int64) error {
		if off <= 10*mib && off+n > 10*mib {
			return unix.EIO
		}
		return nil
	})
	all[1].Fail(func(kind string, off, _ int64) error { return unix.EIO })
	held, err := m.OpenExclusive(t.Context(), "/dev/sdz")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	nvme := m.Add(fake.DiskSpec{Name: "nvme0n1", Bus: "nvme", Model: "Worn", Size: 64 * mib, Serial: "W"})
	firmware := &fake.NVMe{Disks: []*fake.Disk{nvme}, Kelvin: 310}
	m.Attach("nvme0n1", firmware)
	nvme.Fail(func(string, int64, int64) error {
		firmware.MediaFault = 3
		return nil
	})
	out, err := DiskStep(m)(t.Context(),
		call(`{"full": true, "loops": 2, "random_reads": 0, "min_sibling_percent": 0}`))
	wantError(t, err, "sdz", "open /dev/sdz", "sda (Twin 100, serial T0): ",
		"2 errors, first: 1048576 bytes at byte 10485760: read /dev/sda", "sdb (Twin 100, serial T1): ", "64 errors",
		"nvme0n1 (", "counts 3 more errors that could not be corrected")
	r := resultOf[struct{ Disks []DiskResult }](t, out, err)
	byName := map[string]DiskResult{}
	for _, d := range r.Disks {
		byName[d.Name] = d
	}
	if d := byName["/dev/sda"]; d.ErrorCount != 2 || len(d.Errors) != 2 || d.Read.Bytes != 2*63*mib {
		t.Errorf("sda: %+v", d)
	}
	if d := byName["/dev/sdb"]; d.ErrorCount != tooMany || len(d.Errors) != keep {
		t.Errorf("sdb: %+v", d)
	}
	if d := byName["/dev/sdc"]; d.Fault != "" || d.Read.Bytes != 2*64*mib {
		t.Errorf("sdc: %+v", d)
	}
	if d := byName["/dev/sdz"]; d.Fault != "not done" {
		t.Errorf("sdz: %+v", d)
	}
	if d := byName["/dev/nvme0n1"]; d.Before == nil || *d.Before.MediaErrors != 0 || d.After == nil ||
		*d.After.MediaErrors != 3 {
		t.Errorf("nvme0n1: %+v", d)
	}
}

// flipping is a machine whose disk sdb turns a bit on its way back.
type flipping struct{ *fake.Machine }

func (m flipping) OpenExclusive(ctx context.Context, path string) (disk.Device, error) {
	d, err := m.Machine.OpenExclusive(ctx, path)
	if err == nil && path == "/dev/sdb" {
		return flips{d}, nil
	}
	return d, err
}

type flips struct{ disk.Device }

func (d flips) ReadAt(p []byte, off int64) (int, error) {
	n, err := d.Device.ReadAt(p, off)
	if at := int64(7*mib + 77); off <= at && at < off+int64(n) {
		p[at-off] ^= 8
	}
	return n, err
}

func TestDiskDestructive(t *testing.T) {
	m, all := rack(t, 3, 16*mib)
	out, err := DiskStep(flipping{m})(t.Context(), call(`{"destructive": true, "full": true, "loops": 1, "random_reads": 10, "min_sibling_percent": 0,
		"skip_block_devices": [{"name": "/dev/sdc"}]}`))
	wantError(t, err, "sdb (", "1 errors, first: 1048576 bytes at byte 7340032: loop 1: byte 7340109 is 0x",
		"was written")
	if all[0].Written() != 16*mib || all[1].Written() != 16*mib || all[2].Written() != 0 || all[3].Written() != 4*mib {
		t.Errorf("written %d, %d, %d, %d", all[0].Written(), all[1].Written(), all[2].Written(), all[3].Written())
	}
	r := resultOf[struct{ Disks []DiskResult }](t, out, err)
	if len(r.Disks) != 3 || r.Disks[0].Write == nil || r.Disks[0].Write.Bytes != 16*mib || r.Disks[0].Fault != "" {
		t.Errorf("result %+v", r)
	}
	if h := all[0].History(); h[len(h)-1].Kind != "sync" {
		t.Errorf("the last thing done to sda is %s", h[len(h)-1].Kind)
	}
	// Without the word nothing is compared, and nothing written.
	_, err = DiskStep(flipping{m})(t.Context(), call(`{"full": true, "loops": 1, "min_sibling_percent": 0}`))
	wantError(t, err)
	if all[2].Written() != 0 {
		t.Error("a disk was written to that was only to be read")
	}
}

// filed is the real machine with a plain file for a disk.
type filed struct {
	linux.Machine
	root string
	disk disk.Disk
}

func (m filed) Root() string                               { return m.root }
func (m filed) Disks(context.Context) ([]disk.Disk, error) { return []disk.Disk{m.disk}, nil }

// TestDiskFile reads and writes with agent/machine/linux.
func TestDiskFile(t *testing.T) {
	dir := t.TempDir()
	f := filepath.Join(dir, "disk")
	if err := os.WriteFile(f, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(f, 9*mib+512); err != nil {
		t.Fatal(err)
	}
	m := filed{root: dir, disk: disk.Disk{Name: f, Size: 9*mib + 512, Serial: "F"}}
	for _, args := range []string{`{"loops": 2, "random_reads": 50, "sequential_mib": 4, "arrays": ["F"]}`,
		`{"loops": 2, "random_reads": 50, "destructive": true, "arrays": ["F"]}`} {
		out, err := DiskStep(m)(t.Context(), call(args))
		wantError(t, err)
		r := resultOf[struct{ Disks []DiskResult }](t, out, err)
		if len(r.Disks) != 1 || r.Disks[0].Random.Reads != 100 || r.Disks[0].Read.Bytes < 2*4*mib ||
			r.Disks[0].Before != nil {
			t.Errorf("%s: %+v", args, r)
		}
	}
	b, err := os.ReadFile(f)
	if err != nil || bytes.Count(b, []byte{0}) > len(b)/100 {
		t.Errorf("the file is not full of noise (%v)", err)
	}
}

// TestDiskStop: a disk is let go of when the step is stopped.
func TestDiskStop(t *testing.T) {
	m, all := rack(t, 1, 64*mib)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	n := 0
	all[0].Fail(func(string, int64, int64) error {
		if n++; n == 20 {
			cancel(stop)
		}
		return nil
	})
	_, err := DiskStep(m)(ctx, call(`{"full": true, "loops": 1000}`))
	if !errors.Is(err, stop) || n != 20 {
		t.Errorf("after %d reads: %v", n, err)
	}
	again, err := m.OpenExclusive(t.Context(), "/dev/sda")
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

// TestLatencies: percentiles are those of all reads, however many there were, and the longest is never lost.
func TestLatencies(t *testing.T) {
	b := &diskWork{r: &DiskResult{}, rng: rand.New(rand.NewPCG(1, 2))}
	const reads = 2 * mostLatencies
	for i := range reads {
		d := 2 * time.Millisecond
		if i%20 == 0 {
			d = 7 * time.Millisecond
		}
		if i == 5 {
			d = time.Second
		}
		b.took(d)
	}
	b.summary()
	l := b.r.Random
	if len(b.latencies) != mostLatencies || l.Reads != reads || l.P50 != 2 || l.P90 != 2 || l.P99 != 7 ||
		l.Max != 1000 || l.PerSecond < 400 || l.PerSecond > 500 {
		t.Errorf("%+v", l)
	}
}

// TestSpread: long runs lie inside of the disk, reach both of its ends, and don't overlap.
func TestSpread(t *testing.T) {
	for _, size := range []int64{4096, 512 * 3, 100 * mib, 100*mib + 512, 4 << 40} {
		for _, want := range []int64{mib, 33 * mib, 99 * mib, 100 * mib, 4096 * mib} {
			runs := spread(size, want, false)
			end, sum := int64(0), int64(0)
			for _, r := range runs {
				if r.off < end || r.n <= 0 || r.off+r.n > size {
					t.Fatalf("spread(%d, %d) = %v", size, want, runs)
				}
				end, sum = r.off+r.n, sum+r.n
			}
			if runs[0].off != 0 || end != size || sum < min(want, size)/2 || sum > max(2*want, want+3*mib) {
				t.Errorf("spread(%d, %d) covers %d: %v", size, want, sum, runs[:min(3, len(runs))])
			}
		}
	}
	if !slices.Equal(spread(99*mib, mib, true), []span{{0, 99 * mib}}) {
		t.Error("all is not all")
	}
}
