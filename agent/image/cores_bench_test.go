package image

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/image/trace"
	"github.com/ingot-metal/ingot/test/kit"
)

// BenchmarkCores shows how a write's speed grows with the cores: "real" uses 1, 2, 4 and so on of this machine's, and
// "simulated" those of a machine with up to 16 cores, each slower by a factor than one here. There each piece of work
// (digest, unpacking, zero test, copies to a disk in memory) takes the mean time of such a piece here, by the factor,
// and no more pieces than cores are at work at once; what is left is the order of the work, which this is about. The
// link is as fast as here. x_one is the speed against that with one core, digest_percent and unpack_percent how
// much of the time the goroutines of these stages worked.
func BenchmarkCores(b *testing.B) {
	kit.NeedRoot(b)
	kit.NeedPrograms(b, "qemu-img")
	const size, slower = 512 * mib, 20
	img := make([]byte, size)
	r := rand.NewChaCha8([32]byte{9})
	for off := 0; off < size; off += 4096 {
		r.Read(img[off : off+1300]) // packs to about a third
	}
	putMBR(img, size)
	dir := b.TempDir()
	raw, qcow2 := filepath.Join(dir, "image.raw"), filepath.Join(dir, "image.qcow2")
	if err := os.WriteFile(raw, img, 0o600); err != nil {
		b.Fatal(err)
	}
	kit.Run(b, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", "-o", "compression_type=zstd", raw, qcow2)
	files := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer files.Close()
	q := publishImage(b, img)
	memory, err := os.MkdirTemp("/dev/shm", "ingot-cores-")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(memory)
	target := filepath.Join(memory, "disk")
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		b.Fatal(err)
	}
	if err := os.Truncate(target, size+16*mib); err != nil {
		b.Fatal(err)
	}
	m := newRealMachine(b, target, size+16*mib)

	once := func(b *testing.B, source map[string]any) *trace.Trace {
		args := map[string]any{"trace": true}
		maps.Copy(args, source)
		res, err := deployPatiently(b, m, args, fetch.DefaultPatience)
		if err != nil {
			b.Fatal(err)
		}
		return res.Trace
	}
	run := func(b *testing.B, source map[string]any, cores int, one *float64) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
		var took []float64
		var last *trace.Trace
		for b.Loop() {
			began := time.Now()
			last = once(b, source)
			took = append(took, time.Since(began).Seconds())
		}
		seconds := median(took)
		if cores == 1 {
			*one = seconds
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(seconds, "s")
		b.ReportMetric(*one/seconds, "x_one")
		b.Logf("%s", last.Words)
		for _, l := range last.Stages {
			b.Logf("%-14s %3d goroutines: busy %3d %%, waiting for input %3d %%, for output %3d %%", l.Stage, l.Goroutines, l.Busy,
				l.Input, l.Output)
			switch l.Stage {
			case trace.Digest.String():
				b.ReportMetric(float64(l.Busy), "digest_percent")
			case trace.UnpackPieces.String():
				b.ReportMetric(float64(l.Busy), "unpack_percent")
			}
		}
	}
	for _, source := range []struct {
		name string
		args map[string]any
	}{
		{"qcow2", map[string]any{"image_source": files.URL + "/image.qcow2", "image_os_hash_value": sumOf(b, qcow2)}},
		{"published", map[string]any{"image_source": q.url, "image_checksum": q.sum, "image_difference": "never"}},
	} {
		real, simulated := 0.0, 0.0
		for cores := 1; cores <= runtime.NumCPU(); cores *= 2 {
			b.Run(fmt.Sprintf("%s/real/%d", source.name, cores), func(b *testing.B) {
				run(b, source.args, cores, &real)
			})
		}
		cost := costs(func() { once(b, source.args) })
		for cores := 1; cores <= 16; cores *= 2 {
			b.Run(fmt.Sprintf("%s/simulated/%d", source.name, cores), func(b *testing.B) {
				free := make(chan struct{}, cores)
				trace.Pace = func(on trace.Stage, took time.Duration) {
					if wait := slower*cost[on] - took; wait > 0 {
						free <- struct{}{}
						time.Sleep(wait)
						<-free
					}
				}
				defer func() { trace.Pace = nil }()
				run(b, source.args, cores, &simulated)
			})
		}
	}
}

// costs returns the mean time of a piece of work of each stage while f runs, without the slowest tenth, which
// something else delayed. Fetching and flushing cost no core.
func costs(f func()) map[trace.Stage]time.Duration {
	var mu sync.Mutex
	took := map[trace.Stage][]time.Duration{}
	trace.Pace = func(on trace.Stage, d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		took[on] = append(took[on], d)
	}
	defer func() { trace.Pace = nil }()
	f()
	mean := map[trace.Stage]time.Duration{}
	for on, all := range took {
		slices.Sort(all)
		all = all[:max(1, len(all)*9/10)]
		for _, d := range all {
			mean[on] += d / time.Duration(len(all))
		}
	}
	delete(mean, trace.Fetch)
	delete(mean, trace.Flush)
	return mean
}
