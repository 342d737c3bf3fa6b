package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/test/kit"
)

// forms gives an image in many forms, by name, or only in those that are named.
func forms(t *testing.T, img []byte, only ...string) map[string][]byte {
	t.Helper()
	kit.NeedPrograms(t, "qemu-img", "xz", "lz4", "bzip2")
	gz := func(b []byte) []byte {
		var out bytes.Buffer
		w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	raw := filepath.Join(t.TempDir(), "raw")
	if err := os.WriteFile(raw, img, 0o600); err != nil {
		t.Fatal(err)
	}
	// made runs a program that makes a file of the raw one.
	made := func(suffix, program string, args ...string) []byte {
		kit.Run(t, program, args...)
		b, err := os.ReadFile(raw + suffix)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	qcow2 := func(args ...string) func() []byte {
		return func() []byte {
			return made(".qcow2", "qemu-img",
				append(append([]string{"convert", "-f", "raw", "-O", "qcow2"}, args...), raw, raw+".qcow2")...)
		}
	}
	all := map[string][]byte{}
	for name, form := range map[string]func() []byte{
		"raw":     func() []byte { return img },
		"raw.zst": func() []byte { return packed(t, img) },
		"raw.gz":  func() []byte { return gz(img) },
		"raw.xz":  func() []byte { return made(".xz", "xz", "-1", "-k", raw) },
		"raw.lz4": func() []byte { return made(".lz4", "lz4", "-q", "-1", raw, raw+".lz4") },
		"raw.bz2": func() []byte { return made(".bz2", "bzip2", "-1", "-k", raw) },
		"vhd": func() []byte {
			return made(".vhd", "qemu-img", "convert", "-f", "raw", "-O", "vpc", "-o", "force_size=on", raw, raw+".vhd")
		},
		"qcow2":                               qcow2(),
		"qcow2, zlib":                         qcow2("-c"),
		"qcow2, zstd":                         qcow2("-c", "-o", "compression_type=zstd"),
		"qcow2, zstd, out of order":           qcow2("-W", "-m", "16", "-c", "-o", "compression_type=zstd"),
		"qcow2, clusters of 4 KiB":            qcow2("-o", "cluster_size=4k"),
		"qcow2, clusters of 2 MiB":            qcow2("-c", "-o", "cluster_size=2M"),
		"qcow2, subclusters":                  qcow2("-o", "extended_l2=on"),
		"qcow2, version 2":                    qcow2("-o", "compat=0.10"),
		"qcow2, clusters of 512 bytes":        qcow2("-o", "cluster_size=512"),
		"qcow2, packed clusters of 512 bytes": qcow2("-c", "-o", "cluster_size=512"),
		"qcow2 in zstd":                       func() []byte { return packed(t, qcow2()()) },
		"qcow2 in gzip":                       func() []byte { return gz(qcow2()()) },
	} {
		if len(only) == 0 || slices.Contains(only, name) {
			all[name] = form()
		}
	}
	return all
}

// TestEveryFormOnEveryDisk writes one image in all its forms onto dirty disks that punch, can't punch, or lie about it,
// from servers with and without ranges, and looks for old bytes.
func TestEveryFormOnEveryDisk(t *testing.T) {
	const diskSize = 16 * mib
	size := 10 * mib
	if !allCases {
		size = 6 * mib
	}
	img := gptImage(size, false)
	clear(img[size/2 : size/2+2*mib])
	files := forms(t, img)
	for k, name := range slices.Sorted(maps.Keys(files)) {
		file := files[name]
		for i, spec := range []fake.DiskSpec{{}, {NoPunch: true}, {LyingPunch: true}} {
			if !allCases && k%3 != i {
				continue
			}
			ranges := i != 1
			spec.Size = diskSize
			t.Run(fmt.Sprintf("%s, punch %v, lying %v, ranges %v", name, !spec.NoPunch, spec.LyingPunch, ranges),
				func(t *testing.T) {
					t.Parallel()
					s := serve(t, file)
					if !ranges {
						s = serveBy(t, func(w http.ResponseWriter, r *http.Request) {
							w.Header().Set("Content-Length", fmt.Sprint(len(file)))
							w.Write(file)
						})
					}
					b := newBench(t, spec)
					r, err := b.write(t.Context(),
						map[string]any{"image_source": s.URL, "image_os_hash_value": sha(file), "verify": true})
					if err != nil {
						t.Fatal(err)
					}
					if disk.HasTable(b.head(t), 512) {
						t.Error("the disk has a table before the commit")
					}
					if r.BytesFetched != int64(len(file)) || r.VirtualSize != int64(len(img)) || r.Limit == "" {
						t.Errorf("result = %+v", r)
					}
					b.commit(t)
					b.mustHoldPart(t, img, 34*512, len(img)-34*512) // all but the table, which fits the larger disk now
				})
		}
	}
}

// TestEveryFormOnLargeSectors: clusters, blocks and holes of an image may be smaller than the disk's sectors.
func TestEveryFormOnLargeSectors(t *testing.T) {
	img := gptImageFor(6*mib, 4096, false)
	clear(img[3*mib : 4*mib])
	for off := 4*mib + 512; off < 5*mib; off += 8192 { // zeros that end within a sector
		clear(img[off : off+2048])
	}
	var only []string
	if !allCases { // which differ in what they hand on: a stream, clusters, in order or not
		only = []string{"raw", "raw.zst", "vhd", "qcow2, zstd, out of order", "qcow2, clusters of 512 bytes",
			"qcow2, packed clusters of 512 bytes"}
	}
	files := forms(t, img, only...)
	for k, name := range slices.Sorted(maps.Keys(files)) {
		file := files[name]
		for i, noPunch := range []bool{false, true} {
			if !allCases && k%2 != i {
				continue
			}
			t.Run(fmt.Sprintf("%s, no punch %v", name, noPunch), func(t *testing.T) {
				t.Parallel()
				b := newBench(t, fake.DiskSpec{Size: 8 * mib, SectorSize: 4096, NoPunch: noPunch})
				if _, err := b.write(t.Context(),
					map[string]any{"image_source": serve(t, file).URL, "image_os_hash_value": sha(file),
						"verify": true}); err != nil {
					t.Fatal(err)
				}
				b.commit(t)
				b.mustHoldPart(t, img, mib, 5*mib)
			})
		}
	}
}

// TestBrokenFilesOfEveryForm cuts each form short at many places, and in other runs changes its last byte: never
// success, never a table, and always a remedy.
func TestBrokenFilesOfEveryForm(t *testing.T) {
	img, old := gptImage(5*mib, false), mbrImage(8*mib)
	clear(img[2*mib : 3*mib])
	var only []string
	if !allCases { // each decoder, and one within another
		only = []string{"raw", "raw.zst", "raw.gz", "raw.xz", "raw.lz4", "raw.bz2", "vhd", "qcow2",
			"qcow2, zstd, out of order", "qcow2 in gzip"}
	}
	for name, file := range forms(t, img, only...) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			try := func(what string, served []byte, args map[string]any) {
				b := newBench(t, fake.DiskSpec{Size: 8 * mib})
				b.disk.Lay(old, 0)
				s := serveBy(t, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("ETag", `"v1"`)
					http.ServeContent(w, r, "image", time.Time{}, bytes.NewReader(served))
				})
				defer s.Close()
				args["image_source"] = s.URL + "/image"
				_, err := b.write(t.Context(), args)
				if err == nil || step.AsError(err).Remedy == "" {
					t.Errorf("%s: error = %v", what, err)
					return
				}
				if b.disk.Differs(old, 0) >= 0 && (disk.HasTable(b.head(t), 512) || soundBackupOn(b.disk, b.size)) {
					t.Errorf("%s: the disk looks bootable (%v)", what, err)
				}
				if _, err := disk.Commit(t.Context(), b.facts, b.m, nil); err == nil {
					t.Errorf("%s: a failed write could be committed", what)
				}
			}
			for i := range 5 {
				if !allCases && i != 2 {
					continue
				}
				n := len(file) * (2*i + 1) / 10
				try(fmt.Sprintf("cut after %d of %d bytes", n, len(file)), file[:n],
					map[string]any{"image_os_hash_value": sha(file)})
				if name != "raw" { // whose end only its table shows
					try(fmt.Sprintf("cut after %d of %d bytes, no digest", n, len(file)), file[:n],
						map[string]any{"allow_unverified": true})
				}
			}
			wrong := bytes.Clone(file)
			wrong[len(wrong)-1] ^= 1
			algos := []string{images.SHA256}
			if name == "raw" || name == "qcow2, zstd" && allCases {
				algos = append(algos, images.SHA512, images.BLAKE3, images.MD5)
			}
			for _, algo := range algos {
				h := images.Digest{Algo: algo}.New()
				h.Write(file)
				sum := fmt.Sprintf("%x", h.Sum(nil))
				try("another last byte, "+algo, wrong,
					map[string]any{"image_os_hash_algo": algo, "image_os_hash_value": sum, "allow_md5": true})
				if algo == images.MD5 || len(algos) == 1 {
					continue
				}
				sums := serve(t, []byte(sum+"  image\n"))
				try("another last byte, checksum file of "+algo, wrong,
					map[string]any{"image_os_hash_algo": algo, "image_os_hash_value": sums.URL})
			}
		})
	}
}

// TestEndedAtAnyMoment ends a deployment at each of the disk's operations in turn, once by cancelling it and once by
// letting the operation fail.
func TestEndedAtAnyMoment(t *testing.T) {
	img := gptImage(4*mib, false)
	file := forms(t, img, "qcow2, zstd, out of order")["qcow2, zstd, out of order"]
	s := serve(t, file)
	old := gptImage(6*mib, false)
	for i, kind := range []string{"cancelled", "EIO", "ENOSPC"} {
		first, by := 0, 1
		if !allCases { // each moment by one kind
			first, by = i, 3
		}
		for n := first; ; n += by {
			b := newBench(t, fake.DiskSpec{Size: 6 * mib, NoPunch: n%2 == 1})
			b.disk.Lay(old, 0)
			ctx, cancel := context.WithCancelCause(t.Context())
			want, seen, hit := errors.New("operator aborted"), 0, false
			if kind != "cancelled" {
				want = map[string]error{"EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC}[kind]
			}
			b.disk.Fail(func(string, int64, int64) error {
				if seen++; seen-1 != n {
					return nil
				}
				hit = true
				if kind == "cancelled" {
					cancel(want)
					return nil
				}
				return want
			})
			_, err := b.write(ctx,
				map[string]any{"image_source": s.URL, "image_os_hash_value": sha(file), "verify": true})
			cancel(nil)
			b.disk.Fail(nil)
			if !hit {
				if err != nil || n < 15 {
					t.Errorf("%s: %d operations, %v", kind, n, err)
				}
				break
			}
			if err == nil && kind == "cancelled" { // it was done already
				continue
			}
			if !errors.Is(err, want) || step.AsError(err).Remedy == "" && kind != "cancelled" {
				t.Fatalf("%s at operation %d: %v", kind, n, err)
			}
			if word := map[string]string{"EIO": "health", "ENOSPC": "make room"}[kind]; !strings.Contains(
				step.AsError(err).Remedy, word) {
				t.Fatalf("%s at operation %d: %v (%s)", kind, n, err, step.AsError(err).Remedy)
			}
			if (disk.HasTable(b.head(t), 512) || soundBackupOn(b.disk, b.size)) &&
				b.disk.Differs(old[mib:5*mib], mib) >= 0 {
				t.Fatalf("%s at operation %d: half a system looks bootable", kind, n)
			}
			if _, err := disk.Commit(t.Context(), b.facts, b.m, nil); err == nil {
				t.Fatalf("%s at operation %d: a failed write could be committed", kind, n)
			}
		}
	}
}
