package image

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/test/kit"
)

// BenchmarkAgainstPipe compares the time of write_image with its commit to that of the usual commands. The contenders
// alternate, so that other load affects all of them, and each finds the same loop device (direct I/O) full of other
// bytes. Seconds are medians over the rounds, x_faster is a pipe's median by ours; run it with -benchtime 5x for five
// rounds. "typed" is dd as most people write it: from a pipe its blocks are short, for which dd gives up direct I/O.
// "fullblock" is dd without that mistake.
func BenchmarkAgainstPipe(b *testing.B) {
	kit.NeedRoot(b)
	kit.NeedPrograms(b, "curl", "zstd", "dd", "sha256sum", "losetup")
	const size = 512 * mib
	raw := filepath.Join(b.TempDir(), "image.raw")
	rawSum := halfEmptyImage(b, raw, size)
	zst := raw + ".zst"
	kit.Run(b, "zstd", "-q", "-k", raw, "-o", zst)
	dev := kit.Loop(b, kit.TempDisk(b, size), "--direct-io=on")
	m := newRealMachine(b, dev, size)

	const ddTyped = `dd of="$2" bs=4M oflag=direct conv=fsync,notrunc status=none`
	const ddFull = ddTyped + ` iflag=fullblock`
	for _, f := range []struct{ name, file, fetch string }{
		{"raw.zst", zst, `curl -sf "$1" | zstd -dc | `},
		{"raw", raw, `curl -sf "$1" | `},
	} {
		sum := sumOf(b, f.file)
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"v1"`)
			http.ServeFile(w, r, f.file)
		}))
		defer s.Close()
		ours := func(b *testing.B) {
			args := map[string]any{"image_source": s.URL, "image_os_hash_value": sum}
			if _, err := deployPatiently(b, m, args, fetch.DefaultPatience); err != nil {
				b.Fatal(err)
			}
		}
		pipe := func(dd string) func(*testing.B) {
			return func(b *testing.B) {
				if out, err := exec.CommandContext(b.Context(), "sh", "-c", f.fetch+dd, "sh", s.URL,
					dev).CombinedOutput(); err != nil || len(out) > 0 {
					b.Fatalf("%s%s: %v\n%s", f.fetch, dd, err, out)
				}
			}
		}
		contenders := []func(*testing.B){ours, pipe(ddTyped), pipe(ddFull)}
		b.Run(f.name, func(b *testing.B) {
			took := make([][]float64, len(contenders))
			for round := 0; b.Loop(); round++ {
				for k := range contenders {
					i := (round + k) % len(contenders)
					fill(b, dev, 0xa5)
					began := time.Now()
					contenders[i](b)
					took[i] = append(took[i], time.Since(began).Seconds())
					if got := sumOfDevice(b, dev); got != rawSum {
						b.Fatalf("contender %d left SHA-256 %s on the disk, want the image's, %s", i, got, rawSum)
					}
				}
			}
			us, typed, full := median(took[0]), median(took[1]), median(took[2])
			b.ReportMetric(0, "ns/op") // of all of it, with the checks
			b.ReportMetric(us, "ours_s")
			b.ReportMetric(typed, "pipe_typed_s")
			b.ReportMetric(full, "pipe_fullblock_s")
			b.ReportMetric(typed/us, "x_faster")
			b.ReportMetric(full/us, "x_faster_than_fullblock")
			fi, err := os.Stat(f.file)
			if err != nil {
				b.Fatal(err)
			}
			b.Logf("%d MiB image, half of it zeros, %d MiB as fetched; medians of %d rounds", size>>20, fi.Size()>>20,
				len(took[0]))
			b.Logf("ours also verifies the file's SHA-256 and checks the partition table; the pipes check nothing: %s%s [iflag=fullblock]", f.fetch, ddTyped)
			b.Log("after every write, ours and theirs, the whole disk was read and equals the image")
			b.Logf("seconds, ours: %.2f; pipe: %.2f; pipe with iflag=fullblock: %.2f", took[0], took[1], took[2])
		})
	}
}

// BenchmarkWrite is for profiles: the write path alone, from memory to a sparse file.
func BenchmarkWrite(b *testing.B) {
	img := gptImage(256*mib, false)
	for _, zst := range []bool{false, true} {
		file, name := img, "raw"
		if zst {
			name = "zstd"
			file = packed(b, img)
		}
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "image", time.Time{}, bytes.NewReader(file))
		}))
		defer s.Close()
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(img)))
			m := newRealMachine(b, kit.TempDisk(b, 300*mib), 300*mib)
			for b.Loop() {
				if _, err := deployPatiently(b, m,
					map[string]any{"image_source": s.URL, "image_os_hash_value": sha(file)},
					fetch.DefaultPatience); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// halfEmptyImage writes a whole-disk image as file systems leave them: stretches of data and as long ones of zeros, up
// to 4 MiB each. The data packs about 2:1, as new bytes and repetitions in turn, so that a decoder has both kinds of
// work. It gives the SHA-256.
func halfEmptyImage(b *testing.B, path string, size int) string {
	b.Helper()
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	h := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(f, h), mib)
	src := rand.NewChaCha8([32]byte{9})
	r := rand.New(src)
	for off := 0; off < size; {
		n := min(4096*(1+r.IntN(1024)), (size-off)/2)
		part := make([]byte, 2*n)
		src.Read(part[:n])
		for at := 64; at < n; {
			at += 8 + r.IntN(40) // stays new
			if at < n {
				back := 1 + r.IntN(min(at, 64<<10))
				at += copy(part[at:min(n, at+8+r.IntN(64))], part[at-back:at])
			}
		}
		if off == 0 {
			putMBR(part, size)
		}
		if _, err := w.Write(part); err != nil {
			b.Fatal(err)
		}
		off += len(part)
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func sumOf(b *testing.B, path string) string {
	b.Helper()
	sum, _, _ := strings.Cut(kit.Run(b, "sha256sum", path), " ")
	return sum
}

func openDevice(b *testing.B, dev string) disk.Device {
	b.Helper()
	d, err := linux.OpenExclusive(b.Context(), dev)
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// fill sets the old content of the disk.
func fill(b *testing.B, dev string, with byte) {
	b.Helper()
	d := openDevice(b, dev)
	defer d.Close()
	buf := disk.Aligned(4 * mib)
	for i := range buf {
		buf[i] = with
	}
	for off := int64(0); off < d.Size(); off += int64(len(buf)) {
		if _, err := d.WriteAt(buf[:min(int64(len(buf)), d.Size()-off)], off); err != nil {
			b.Fatal(err)
		}
	}
	if err := d.Sync(); err != nil {
		b.Fatal(err)
	}
}

func sumOfDevice(b *testing.B, dev string) string {
	b.Helper()
	d := openDevice(b, dev)
	defer d.Close()
	h := sha256.New()
	buf := disk.Aligned(4 * mib)
	for off := int64(0); off < d.Size(); off += int64(len(buf)) {
		part := buf[:min(int64(len(buf)), d.Size()-off)]
		if _, err := d.ReadAt(part, off); err != nil {
			b.Fatal(err)
		}
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
