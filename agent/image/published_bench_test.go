package image

import (
	"bytes"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/test/kit"
)

// BenchmarkPublished writes an image of 512 MiB of data to a file with direct I/O, and then a version of it in which a
// tenth of the chunks and 6 % of the blocks changed: all of it, by difference, and by difference over what a writer
// left that stopped half way. Over a link of 1 Gbit/s as well. It is for profiles and for ratios within one run; the
// server is in the same process.
func BenchmarkPublished(b *testing.B) {
	const size = 512 * mib
	old := make([]byte, size)
	r := mathrand.NewChaCha8([32]byte{9})
	for off := 0; off < size; off += 4096 {
		r.Read(old[off : off+1300]) // packs to about a third
	}
	putMBR(old, size)
	newer := bytes.Clone(old)
	rng := mathrand.New(mathrand.NewPCG(1, 2))
	blocks := 0
	for c := 1; c < size/index.ChunkSize; c++ {
		if rng.Float64() > 0.093 {
			continue
		}
		for off := c * index.ChunkSize; off < (c+1)*index.ChunkSize; off += index.BlockSize {
			if rng.Float64() < 0.66 {
				r.Read(newer[off+2048 : off+3048])
				blocks++
			}
		}
	}
	q := publishImage(b, newer)
	half := bytes.Clone(newer[:size])
	r.Read(half[size/2:])
	for _, link := range []float64{0, 125e6} {
		name := "fast link"
		if q.before = nil; link > 0 {
			name = "1 Gbit/s"
			q.before = slow(q, link)
		}
		for _, c := range []struct {
			name string
			on   []byte
			how  string
		}{{"all", old, "never"}, {"difference", old, "auto"}, {"the other half", half, "auto"},
			{"all, auto, of another disk", nil, "auto"}} {
			b.Run(name+"/"+c.name, func(b *testing.B) {
				b.SetBytes(size)
				path := kit.TempDisk(b, size+16*mib)
				var wrote, fetched int64
				for b.Loop() {
					b.StopTimer()
					on := c.on
					if on == nil {
						on = bytes.Repeat([]byte{0xa5}, size)
					}
					if err := os.WriteFile(path, on, 0o600); err != nil {
						b.Fatal(err)
					}
					if err := os.Truncate(path, size+16*mib); err != nil {
						b.Fatal(err)
					}
					f, err := os.Open(path)
					if err != nil {
						b.Fatal(err)
					}
					f.Sync()
					f.Close()
					b.StartTimer()
					res, err := deploy(b, newRealMachine(b, path, size+16*mib),
						map[string]any{"image_source": q.url, "image_checksum": q.sum, "image_difference": c.how})
					if err != nil {
						b.Fatal(err)
					}
					wrote, fetched = res.BytesWritten, res.BytesFetched
				}
				b.ReportMetric(float64(wrote)/mib, "MiB-written")
				b.ReportMetric(float64(fetched)/mib, "MiB-fetched")
			})
		}
	}
	b.Logf("%d blocks changed, %d MiB", blocks, blocks*index.BlockSize/mib)
}

// slow serves objects at a rate, all connections together.
func slow(p *published, rate float64) func(w http.ResponseWriter, r *http.Request) bool {
	var mu sync.Mutex
	var free time.Time
	return func(w http.ResponseWriter, r *http.Request) bool {
		body, err := os.ReadFile(p.dir + r.URL.Path)
		if err != nil {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		for len(body) > 0 {
			n := min(64<<10, len(body))
			mu.Lock()
			if now := time.Now(); free.Before(now) {
				free = now
			}
			free = free.Add(time.Duration(float64(n) / rate * 1e9))
			wait := time.Until(free)
			mu.Unlock()
			time.Sleep(wait)
			if _, err := w.Write(body[:n]); err != nil {
				return true
			}
			body = body[n:]
		}
		return true
	}
}
