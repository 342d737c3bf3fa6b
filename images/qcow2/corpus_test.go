package qcow2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
)

// readInto reads an image as the agent does, with workers that unpack, onto a disk that was not empty. It also sees to
// what Extents promise.
func readInto(r *Reader, bufSize int) ([]byte, error) {
	const workers = 3
	disk := bytes.Repeat([]byte{0xa5}, int(r.Size()))
	seen := make([]bool, (r.Size()+sector-1)/sector)
	type job struct {
		Extent
		buf []byte
	}
	jobs, free := make(chan job, workers), make(chan []byte, workers+2)
	for range cap(free) {
		free <- make([]byte, bufSize)
	}
	var work sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for range workers {
		work.Go(func() {
			for j := range jobs {
				err := j.Decode(j.buf[:j.Len])
				copy(disk[j.Off:], j.buf[:j.Len])
				mu.Lock()
				failed = errors.Join(failed, err)
				mu.Unlock()
				free <- j.buf
			}
		})
	}
	var err, broken error
	for broken == nil {
		buf := <-free
		var e Extent
		if e, err = r.Next(buf); err != nil {
			break
		}
		if e.Off < 0 || e.Len <= 0 || e.Off%sector != 0 || e.Len%sector != 0 || e.Off+e.Len > r.Size() ||
			e.Data != nil && e.Decode != nil {
			broken = fmt.Errorf("impossible extent of %d bytes at %d", e.Len, e.Off)
			break
		}
		for i := e.Off / sector; i < (e.Off+e.Len)/sector; i++ {
			if seen[i] {
				broken = fmt.Errorf("byte %d comes twice", i*sector)
			}
			seen[i] = true
		}
		switch {
		case e.Decode != nil:
			if e.Len > int64(bufSize) {
				broken = fmt.Errorf("a packed extent of %d bytes for a buffer of %d", e.Len, bufSize)
			}
			jobs <- job{e, buf}
			continue
		case e.Data != nil:
			if int64(len(e.Data)) != e.Len || &e.Data[0] != &buf[0] {
				broken = fmt.Errorf("data of %d bytes in an extent of %d", len(e.Data), e.Len)
			}
			copy(disk[e.Off:], e.Data)
		default:
			clear(disk[e.Off : e.Off+e.Len])
		}
		free <- buf
	}
	close(jobs)
	work.Wait()
	if failed = errors.Join(failed, broken); failed != nil {
		return disk, failed
	}
	if err != io.EOF {
		return disk, err
	}
	for i, s := range seen {
		if !s {
			return disk, fmt.Errorf("byte %d never comes", i*sector)
		}
	}
	return disk, nil
}

// readFile reads an image from its stream, with tables from at.
func readFile(stream, at []byte, size int64, bufSize int) ([]byte, error) {
	r, err := Open(bytes.NewReader(stream), bytes.NewReader(at), size, Limits{})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	disk, err := readInto(r, bufSize)
	if err == nil && !bytes.Equal(r.Start(), disk[:min(startSize, len(disk))]) {
		err = errors.New("Start is not the disk's beginning")
	}
	return disk, err
}

// script makes an image in a folder: words of a line are a program's arguments, $O the options, $S the size, src.raw
// the source.
type script struct {
	name    string
	options string
	lines   []string
	minBits int
	v2      bool // works with version 2, too
	few     bool // some cluster sizes will do
}

const (
	kib = 1 << 10
	mib = 1 << 20
)

// A write of qemu-io is "write -P pattern offset length".
var scripts = []script{
	{"convert", "", []string{"img convert -O qcow2 -o $O src.raw a"}, 0, true, false},
	{"convert out of order", "", []string{"img convert -W -m 8 -O qcow2 -o $O src.raw a"}, 0, true, false},
	{"compressed with zlib", "", []string{"img convert -c -O qcow2 -o $O src.raw a"}, 0, true, false},
	{"compressed with zlib out of order", "", []string{"img convert -c -W -m 8 -O qcow2 -o $O src.raw a"}, 0, true,
		false},
	{"compressed with zstd", ",compression_type=zstd", []string{"img convert -c -O qcow2 -o $O src.raw a"}, 0, false,
		false},
	{"compressed with zstd out of order", ",compression_type=zstd",
		[]string{"img convert -c -W -m 8 -O qcow2 -o $O src.raw a"}, 0, false, false},
	{"subclusters", ",extended_l2=on", []string{"img convert -O qcow2 -o $O src.raw a"}, 14, false, false},
	{"compressed with subclusters", ",extended_l2=on,compression_type=zstd",
		[]string{"img convert -c -O qcow2 -o $O src.raw a",
			"io a|write -P 1 64k 512|write -z 1M 8k|discard 2M 256k|write -P 2 2052k 1k"}, 14, false, false},
	{"writes into subclusters", ",extended_l2=on", []string{"img create -f qcow2 -o $O a $S",
		"io a|write -P 1 0 512|write -P 2 70k 3k|write -z 96k 32k|write -P 3 1M 300k|discard 1100k 64k|write -z -u 1200k 40k|write -P 4 3M 1k|write -P 5 4000k 700k|write -z 4100k 4k"}, 14, false, false},
	{"writes", "", []string{"img create -f qcow2 -o $O a $S",
		"io a|write -P 1 3M 100k|write -P 2 0 512|write -P 3 1M 64k|write -P 4 1000k 7k|write -P 5 2500k 512|write -P 6 64k 600k"}, 0, true, false},
	{"backwards", "", []string{"img create -f qcow2 -o $O a $S",
		"io a|write -P 1 4M 200k|write -P 2 3M 300k|write -P 3 2M 64k|write -P 4 1M 100k|write -P 5 512k 64k|write -P 6 0 64k"}, 0, true, false},
	{"zeros", "", []string{"img convert -O qcow2 -o $O src.raw a",
		"io a|write -z 0 256k|write -z -u 1M 512k|write -z 3000k 100k|write -z 4000k 1k"}, 0, false, false},
	{"zeros where there was nothing", "",
		[]string{"img create -f qcow2 -o $O a $S", "io a|write -z 0 2M|write -P 9 2M 64k|write -z 3M 1M"}, 0, false,
		true},
	{"discards", "",
		[]string{"img convert -O qcow2 -o $O src.raw a",
			"io a|discard 0 512k|discard 2M 1M|write -P 7 2200k 64k|discard 4M 64k"}, 0, true, false},
	{"metadata preallocated", ",preallocation=metadata",
		[]string{"img create -f qcow2 -o $O a $S", "io a|write -P 1 1M 300k|write -P 2 4M 512"}, 0, true, false},
	{"preallocated", ",preallocation=falloc",
		[]string{"img create -f qcow2 -o $O a $S", "io a|write -P 1 1M 300k|write -P 2 64k 512"}, 0, true, true},
	{"preallocated in full", ",preallocation=full",
		[]string{"img create -f qcow2 -o $O a $S", "io a|write -P 1 700k 300k"}, 0, false, true},
	{"subclusters preallocated", ",preallocation=metadata,extended_l2=on",
		[]string{"img create -f qcow2 -o $O a $S", "io a|write -P 1 1M 300k"}, 14, false, false},
	{"grown", "", []string{"img convert -O qcow2 -o $O src.raw a", "img resize -q a +40M",
		"io a|write -P 8 30M 100k|write -P 9 44M 64k"}, 0, true, false},
	{"shrunk", "", []string{"img convert -O qcow2 -o $O src.raw a", "img resize -q --shrink a 2049k",
		"io a|write -P 8 1M 10k"}, 0, true, false},
	{"snapshots", "",
		[]string{"img convert -O qcow2 -o $O src.raw a", "img snapshot -c one a",
			"io a|write -P 8 1M 600k|discard 0 128k", "img snapshot -c two a",
			"io a|write -P 9 1200k 64k|write -P 7 4M 64k"}, 0, true, false},
	{"back at a snapshot", "",
		[]string{"img convert -c -O qcow2 -o $O src.raw a", "img snapshot -c one a", "io a|write -P 8 1M 600k",
			"img snapshot -a one a"}, 0, true, true},
	{"snapshot deleted", "",
		[]string{"img convert -O qcow2 -o $O src.raw a", "img snapshot -c one a", "io a|write -P 8 1M 600k",
			"img snapshot -d one a", "io a|write -P 5 3M 100k"}, 0, false, true},
	{"bitmaps", "", []string{"img convert -O qcow2 -o $O src.raw a", "img bitmap --add a one",
		"io a|write -P 8 1M 100k", "img bitmap --add a two"}, 0, false, true},
	{"lazy reference counts", ",lazy_refcounts=on",
		[]string{"img convert -O qcow2 -o $O src.raw a", "io a|write -P 8 1M 100k"}, 0, false, true},
	{"dirty", ",lazy_refcounts=on",
		[]string{"img create -f qcow2 -o $O a $S", "abort a|write -P 8 1M 100k|write -P 7 0 64k|flush|abort"}, 0, false,
		false},
	{"written over compressed", "",
		[]string{"img convert -c -O qcow2 -o $O src.raw a",
			"io a|write -P 8 1M 100k|write -P 9 70k 512|discard 2M 512k|write -P 3 3M 64k"}, 0, true, false},
	{"refcount 1", ",refcount_bits=1", []string{"img convert -O qcow2 -o $O src.raw a"}, 0, false, true},
	{"refcount 8", ",refcount_bits=8", []string{"img convert -c -O qcow2 -o $O src.raw a"}, 0, false, true},
	{"refcount 64", ",refcount_bits=64", []string{"img convert -O qcow2 -o $O src.raw a"}, 0, false, true},
	{"nothing", "", []string{"img create -f qcow2 -o $O a $S"}, 0, true, true},
	{"upgraded", "", []string{"img convert -c -O qcow2 -o $O src.raw a", "img amend -f qcow2 -o compat=1.1 a",
		"io a|write -z 1M 1M"}, 0, true, true},
	{"amended to lazy", "",
		[]string{"img convert -O qcow2 -o $O src.raw a", "img amend -f qcow2 -o lazy_refcounts=on a",
			"io a|write -P 4 1M 64k"}, 0, false, true},
}

// source is a disk with noise, text, patterns and zeros, in pieces of many sizes.
func source(size int64, seed uint64) []byte {
	b := make([]byte, size)
	r := rand.New(rand.NewPCG(seed, 1))
	var key [32]byte
	noise := rand.NewChaCha8(key)
	for off := int64(0); off < size; {
		n := min(size-off, int64(sector)<<r.IntN(10)*(1+r.Int64N(3)))
		p := b[off : off+n]
		switch r.IntN(5) {
		case 0:
			noise.Read(p)
		case 1:
			for i := range p {
				p[i] = "the quick brown fox jumps over the lazy dog "[r.IntN(44)]
			}
		case 2:
			for i := range p {
				p[i] = byte(off >> 9)
			}
		case 3:
			copy(p, bytes.Repeat(fmt.Appendf(nil, "line %d of a file\n", off), len(p)/16+1))
		}
		off += n
	}
	return b
}

// image is one of the corpus.
type image struct {
	name string
	file []byte
	raw  []byte
}

func (s script) make(t *testing.T, bits int, compat string, size int64, src string) image {
	dir := t.TempDir()
	if err := os.Symlink(src, filepath.Join(dir, "src.raw")); err != nil {
		t.Fatal(err)
	}
	options := fmt.Sprintf("cluster_size=%d,compat=%s%s", 1<<bits, compat, s.options)
	run := func(program string, args ...string) error {
		c := exec.Command(program, args...)
		c.Dir = dir
		out, err := c.CombinedOutput()
		if err == nil && strings.Contains(string(out), "failed") {
			err = errors.New("failed")
		}
		if err != nil {
			return fmt.Errorf("%s %q: %w\n%s", program, args, err, out)
		}
		return nil
	}
	for _, line := range s.lines {
		line = strings.NewReplacer("$O", options, "$S", fmt.Sprint(size)).Replace(line)
		kind, rest, _ := strings.Cut(line, " ")
		if kind == "img" {
			if err := run("qemu-img", strings.Fields(rest)...); err != nil {
				t.Fatal(err)
			}
			continue
		}
		words := strings.Split(rest, "|")
		args := []string{"-f", "qcow2"}
		for _, w := range words[1:] {
			args = append(args, "-c", w)
		}
		if err := run("qemu-io", append(args, words[0])...); err != nil && kind == "io" {
			t.Fatal(err)
		}
	}
	if err := run("qemu-img", "convert", "-f", "qcow2", "-O", "raw", "a", "a.raw"); err != nil {
		t.Fatal(err)
	}
	im := image{name: fmt.Sprintf("%s, %d, %s", s.name, 1<<bits, compat)}
	var err error
	if im.file, err = os.ReadFile(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if im.raw, err = os.ReadFile(filepath.Join(dir, "a.raw")); err != nil {
		t.Fatal(err)
	}
	return im
}

// TestCorpus makes every kind of image that qemu-img makes, in every second cluster size (with INGOT_FULL in each), and
// compares with what it reads from it. Each image is then cut off, and its tables are changed between the two reads.
func TestCorpus(t *testing.T) {
	kit.NeedPrograms(t, "qemu-img", "qemu-io")
	dir := t.TempDir()
	src := filepath.Join(dir, "src.raw")
	const size = 5*mib + 7*sector
	if err := os.WriteFile(src, source(size, 7), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, s := range scripts {
		var sizes []int
		for bits := max(minClusterBits, s.minBits); bits <= maxClusterBits; bits++ {
			if s.few && (bits+i)%3 == 0 || !s.few && ((bits+i)%2 == 0 || os.Getenv("INGOT_FULL") != "") {
				sizes = append(sizes, bits)
			}
		}
		if raceEnabled && os.Getenv("INGOT_FULL") == "" {
			sizes = sizes[i%len(sizes):][:1]
		}
		for _, bits := range sizes {
			for _, compat := range []string{"1.1", "0.10"} {
				if compat == "0.10" && (!s.v2 || (bits+i)%3 != 0) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d/%s", strings.ReplaceAll(s.name, " ", "-"), 1<<bits, compat),
					func(t *testing.T) {
						t.Parallel()
						testImage(t, s.make(t, bits, compat, size, src), uint64(i*100+bits))
					})
			}
		}
	}
}

func testImage(t *testing.T, im image, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	size := int64(len(im.file))
	for _, c := range []struct {
		buf  int
		size int64
	}{{mib, size}, {sector * (1 + r.IntN(3000)), -1}} {
		got, err := readFile(im.file, im.file, c.size, c.buf)
		if err != nil {
			t.Fatalf("buffers of %d: %v", c.buf, err)
		}
		if !bytes.Equal(got, im.raw) {
			t.Fatalf("buffers of %d: %d bytes, want %d; they differ at byte %d", c.buf, len(got), len(im.raw),
				differ(got, im.raw))
		}
	}
	if raceEnabled && os.Getenv("INGOT_FULL") == "" {
		return // what follows is one goroutine's
	}
	for _, both := range []bool{false, true} {
		cut := r.Int64N(size)
		tables := im.file
		if both {
			tables = im.file[:cut]
		}
		if _, err := readFile(im.file[:cut], tables, size, mib); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut off after %d of %d bytes, before the tables were read: %v: %v", cut, size, both, err)
		}
	}
	// A bit of a table, anywhere.
	for _, at := range tableBytes(t, im.file, r) {
		other := bytes.Clone(im.file)
		other[at] ^= 1 << r.IntN(8)
		if _, err := readFile(other, im.file, size, mib); !errors.Is(err, ErrChanged) {
			t.Errorf("byte %d of a table changes: %v", at, err)
		}
	}
	if start := im.raw[:min(len(im.raw), startSize)]; bytes.Count(start, []byte{0}) < len(start) {
		testChangedStart(t, im)
	}
}

// testChangedStart changes the first byte of data that the disk's beginning has.
func testChangedStart(t *testing.T, im image) {
	r, err := Open(nil, bytes.NewReader(im.file), -1, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for w := (walk{m: r.m}); ; {
		p, ok := w.next()
		if !ok {
			return
		}
		if p.guest >= startSize {
			continue
		}
		other := bytes.Clone(im.file)
		other[p.host] ^= 6
		_, err := readFile(other, im.file, -1, mib)
		var e *Error
		if !errors.Is(err, ErrChanged) && !(p.packed && errors.As(err, &e)) {
			t.Errorf("byte %d of the file, of the disk's beginning, changes: %v", p.host, err)
		}
		return
	}
}

func differ(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// tableBytes gives some bytes of each kind of table, by an own reading of the format.
func tableBytes(t *testing.T, f []byte, r *rand.Rand) []int64 {
	u64 := func(off int64) int64 { return int64(binary.BigEndian.Uint64(f[off:])) }
	cluster := int64(1) << binary.BigEndian.Uint32(f[20:])
	l1 := u64(40)
	entries := int64(binary.BigEndian.Uint32(f[36:]))
	per := cluster / 8 * cluster
	if binary.BigEndian.Uint32(f[4:]) == 3 && f[79]&extendedBit != 0 {
		per /= 2
	}
	entries = min(entries, (u64(24)+per-1)/per)
	at := []int64{r.Int64N(72), l1 + r.Int64N(8*entries)}
	for i := range entries {
		if off := u64(l1+i*8) & offsetMask; off != 0 && len(at) < 3 {
			at = append(at, off+r.Int64N(cluster))
		}
	}
	return at
}
