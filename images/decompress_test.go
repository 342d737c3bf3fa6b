package images

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
)

// tool packs b with the real program.
func tool(t testing.TB, b []byte, command ...string) []byte {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin = bytes.NewReader(b)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v %s", command, err, &stderr)
	}
	return out.Bytes()
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// variant is an image as a tool packs it.
type variant struct {
	name string
	c    Compression
	file []byte
	want []byte
	// checked: any damage is noticed. ends: any cut is noticed.
	checked, ends bool
}

// variants compresses an image in every supported way.
func variants(t testing.TB, img []byte) []variant {
	kit.NeedPrograms(t, "gzip", "xz", "zstd", "lz4", "bzip2")
	half := len(img) / 2 &^ 511
	a, b := img[:half], img[half:]
	var all []variant
	add := func(name string, c Compression, checked, ends bool, file []byte) {
		all = append(all, variant{name, c, file, img, checked, ends})
	}
	one := func(c Compression, checked bool, command ...string) {
		add(strings.Join(command, " "), c, checked, true, tool(t, img, command...))
	}
	two := func(c Compression, between string, command ...string) {
		add(strings.Join(command, " ")+" twice", c, true, false,
			join(tool(t, a, command...), []byte(between), tool(t, b, command...)))
	}
	one(Gzip, true, "gzip", "-1c")
	one(Gzip, true, "gzip", "-9c")
	two(Gzip, "", "gzip", "-c")
	add("gzip, padded with zeros", Gzip, true, false, append(tool(t, img, "gzip", "-c"), make([]byte, 1000)...))
	one(XZ, true, "xz", "-T1", "-c")
	one(XZ, true, "xz", "-0", "-T2", "--block-size=100KiB", "-c")
	one(XZ, true, "xz", "-0", "--check=sha256", "-c")
	one(XZ, true, "xz", "-0", "--check=crc32", "-c")
	one(XZ, false, "xz", "-0", "--check=none", "-c")
	one(XZ, true, "xz", "-0", "--x86", "--lzma2=preset=0", "-c")
	two(XZ, "\x00\x00\x00\x00\x00\x00\x00\x00", "xz", "-0", "-c")
	one(Zstd, true, "zstd", "-3", "-c")
	one(Zstd, true, "zstd", "-19", "-c")
	one(Zstd, false, "zstd", "--no-check", "-c")
	two(Zstd, "\x50\x2a\x4d\x18\x02\x00\x00\x00xy", "zstd", "-c")
	one(LZ4, true, "lz4", "-c")
	one(LZ4, true, "lz4", "-9", "-B4", "-BD", "-BX", "-c")
	one(LZ4, true, "lz4", "-B5", "-BD", "-c")
	one(LZ4, true, "lz4", "--content-size", "-B6", "-c")
	one(LZ4, false, "lz4", "--no-frame-crc", "-B4", "-c")
	add("lz4 -l", LZ4, false, false, tool(t, img, "lz4", "-l", "-c"))
	two(LZ4, "\x5f\x2a\x4d\x18\x02\x00\x00\x00xy", "lz4", "-B4", "-c")
	add("lz4, legacy before a frame", LZ4, false, false, join(tool(t, a, "lz4", "-l", "-c"), tool(t, b, "lz4", "-c")))
	one(Bzip2, true, "bzip2", "-1c")
	one(Bzip2, true, "bzip2", "-9c")
	two(Bzip2, "", "bzip2", "-c")
	return all
}

// unpack reads a whole image, in whichever way the input comes in pieces.
func unpack(r io.Reader, l Limits) ([]byte, Info, error) {
	e, info, err := Open(Input{Stream: r, Size: -1}, l)
	if err != nil {
		return nil, info, err
	}
	defer e.Close()
	b, err := readAll(e, 64<<10)
	return b, info, err
}

func TestUnpacksWhatTheToolsPack(t *testing.T) {
	img := disk(1<<20 + 64<<10 + 512)
	copy(img[600<<10:], bytes.Repeat([]byte("a system's files are mostly text and code. "), 5000))
	for k, v := range variants(t, img) {
		for i, r := range []io.Reader{
			bytes.NewReader(v.file), iotest.DataErrReader(iotest.HalfReader(bytes.NewReader(v.file)))} {
			if few() && i != k%2 {
				continue
			}
			got, info, err := unpack(r, Limits{Size: 4 << 20})
			if err != nil || !bytes.Equal(got, v.want) {
				t.Errorf("%s (%d): %d bytes, %v", v.name, i, len(got), err)
			}
			if info.Compression != v.c || info.Format != Raw || info.Head != MBR || info.Unchecked == v.checked {
				t.Errorf("%s: %+v", v.name, info)
			}
		}
	}
}

// TestCutPackedFiles: no truncated compressed file is accepted as complete. In a file with members, a cut between two
// is not detectable: then the data is a part of the right data, and only the digest detects it.
func TestCutPackedFiles(t *testing.T) {
	img := disk(100 << 10)
	for _, v := range variants(t, img) {
		n := len(v.file)
		cuts := []int{1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 25, n / 2, n - 1, n - 2, n - 3, n - 4, n - 5, n - 8,
			n - 9, n - 11, n - 12, n - 13}
		r := rand.New(rand.NewPCG(1, 2))
		for range 15 {
			cuts = append(cuts, 1+r.IntN(n-1))
		}
		if few() {
			cuts = []int{2, 12, n / 2, n - 1}
		}
		for _, at := range cuts {
			got, _, err := unpack(bytes.NewReader(v.file[:at]), Limits{Size: 1 << 20})
			var refused *Error
			switch {
			case err == nil && !v.ends && bytes.HasPrefix(v.want, got):
			case err == nil:
				t.Errorf("%s cut at %d of %d: no error, %d bytes of %d", v.name, at, n, len(got), len(v.want))
			case !errors.As(err, &refused) || refused.Remedy == "":
				t.Errorf("%s cut at %d of %d: %v", v.name, at, n, err)
			case v.ends && at > 12 && !strings.Contains(err.Error(), "truncated"):
				t.Errorf("%s cut at %d of %d: %v, want the word truncated", v.name, at, n, err)
			}
		}
		// The connection's own error passes untouched.
		gone := errors.New("connection reset")
		if _, _, err := unpack(io.MultiReader(bytes.NewReader(v.file[:n/2]), iotest.ErrReader(gone)),
			Limits{}); !errors.Is(err, gone) {
			t.Errorf("%s: error of the stream below = %v", v.name, err)
		}
	}
}

// TestDamagedPackedFiles: a flipped bit is an error or changes nothing, in the names and times that a header may have.
func TestDamagedPackedFiles(t *testing.T) {
	img := disk(66 << 10)
	for _, v := range variants(t, img) {
		if !v.checked {
			continue
		}
		r := rand.New(rand.NewPCG(3, 4))
		same := 0
		flip := func(at int) {
			file := bytes.Clone(v.file)
			file[at] ^= 1 << r.IntN(8)
			got, _, err := unpack(bytes.NewReader(file), Limits{Size: 1 << 20})
			if err == nil && !bytes.Equal(got, v.want) {
				t.Errorf("%s: bit flipped in byte %d of %d: other data and no error", v.name, at, len(file))
			} else if err == nil {
				same++
			}
		}
		ends, within := min(18, len(v.file)), 15
		if few() {
			ends, within = 1, 2
		}
		for i := range ends {
			flip(i)
			flip(len(v.file) - 1 - i)
		}
		for range within {
			flip(r.IntN(len(v.file)))
		}
		if same > 30 {
			t.Errorf("%s: %d flipped bits made no difference", v.name, same)
		}
	}
}

func TestTrailingData(t *testing.T) {
	img := disk(100 << 10)
	for _, v := range variants(t, img) {
		for _, tail := range []string{"garbage", "\x00\x00\x00\x00garbage", "\x1f", "BZ", "\xfd7zX"} {
			_, _, err := unpack(bytes.NewReader(append(bytes.Clone(v.file), tail...)), Limits{})
			var refused *Error
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), "damaged") &&
				!strings.Contains(err.Error(), "truncated") {
				t.Errorf("%s with %q behind it: %v", v.name, tail, err)
			}
		}
		_, _, err := unpack(bytes.NewReader(append(bytes.Clone(v.file), make([]byte, 512)...)), Limits{})
		if padding := v.c == Gzip || v.c == XZ; (err == nil) != padding {
			t.Errorf("%s with zeros behind it: %v", v.name, err)
		}
	}
}

// TestBombs: data beyond the disk's size is refused when it is reached, early and with little memory.
func TestBombs(t *testing.T) {
	kit.NeedPrograms(t, "gzip", "xz", "zstd", "lz4", "bzip2")
	bomb := append(disk(1<<20), make([]byte, 63<<20)...)
	for _, c := range [][]string{{"gzip", "-1c"}, {"xz", "-0", "-c"}, {"zstd", "-c"}, {"lz4", "-c"},
		{"lz4", "-l", "-c"}, {"bzip2", "-1c"}} {
		file := tool(t, bomb, c...)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		began := time.Now()
		e, _, err := Open(Input{Stream: bytes.NewReader(file), Size: int64(len(file))}, Limits{Size: 3 << 20})
		n := 0
		if err == nil {
			buf := make([]byte, 1<<20)
			for err == nil {
				var x Extent
				x, err = e.Next(buf)
				n += int(x.Len)
			}
			e.Close()
		}
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "larger than the disk") || n > 3<<20 {
			t.Errorf("%v: %v after %d bytes", c, err, n)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%v: refused after %v", c, took)
		}
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 48<<20 {
			t.Errorf("%v: %d MiB were allocated", c, grown>>20)
		}
	}
}

// TestWindows: a header's window is compared with the limit before it is allocated.
func TestWindows(t *testing.T) {
	kit.NeedPrograms(t, "xz", "zstd", "lz4")
	img := disk(1<<20 + 200<<10)
	huge := tool(t, img, "xz", "-0", "-c")
	// The block header's only filter has its dictionary's size in one byte; 40 stands for 4 GiB.
	if huge[12+2] != 0x21 {
		t.Fatalf("block header % x", huge[12:24])
	}
	huge[12+4] = 40
	fixCRC(huge[12:24])
	for _, c := range []struct {
		name string
		file []byte
		l    Limits
		want string
	}{
		{"xz -9", tool(t, img, "xz", "-9", "-T1", "-c"), Limits{}, "more than the 32 MiB"},
		{"xz of 4 GiB", huge, Limits{}, "more than the 32 MiB"},
		{"zstd --ultra -22", tool(t, img, "zstd", "--ultra", "-22", "--long=27", "-c"), Limits{},
			"window of 128 MiB, more than the 32 MiB"},
		{"lz4", tool(t, img, "lz4", "-B7", "-c"), Limits{Window: 1 << 20}, "window of 4 MiB, more than the 1 MiB"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := unpack(bytes.NewReader(c.file), c.l)
		runtime.ReadMemStats(&after)
		var refused *Error
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(refused.Remedy, "pack the image again") {
			t.Errorf("%s: %v", c.name, err)
		}
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
			t.Errorf("%s: %d MiB were allocated", c.name, grown>>20)
		}
	}
	for _, c := range []struct {
		l       Limits
		command []string
	}{
		{Limits{}, []string{"xz", "-8", "-T1", "-c"}}, {Limits{}, []string{"zstd", "-19", "-c"}},
		{Limits{}, []string{"zstd", "-1", "--long=25", "-c"}},
		{Limits{Window: 64 << 20}, []string{"xz", "-9", "-T1", "-c"}},
	} {
		if got, _, err := unpack(bytes.NewReader(tool(t, img, c.command...)), c.l); err != nil ||
			!bytes.Equal(got, img) {
			t.Errorf("%v with %d MiB allowed: %v", c.command, c.l.Window>>20, err)
		}
	}
}

// fixCRC makes a block header of xz whole.
func fixCRC(header []byte) {
	n := len(header) - 4
	s := crc32.ChecksumIEEE(header[:n])
	for i := range 4 {
		header[n+i] = byte(s >> (8 * i))
	}
}

// TestReplay: random access to an unpacked file, of which the packed one is opened again and again, but not for ever.
func TestReplay(t *testing.T) {
	img := disk(1<<20 + 768<<10)
	for _, command := range [][]string{{"gzip", "-1c"}, {"xz", "-0", "-c"}, {"zstd", "-c"}, {"lz4", "-c"},
		{"bzip2", "-1c"}} {
		v := variant{name: command[0], c: Compression(command[0]), file: tool(t, img, command...)}
		opened, open := 0, 0
		var used bool
		p := &rewinder{c: v.c, start: img[:1<<20], l: Limits{Size: 4 << 20, Window: DefaultWindow}, left: maxReplays,
			used: &used, open: func() (io.ReadCloser, error) {
				opened++
				open++
				return struct {
					io.Reader
					io.Closer
				}{bytes.NewReader(v.file), closer(func() error { open--; return nil })}, nil
			}}
		read := func(off, n int) {
			t.Helper()
			b := make([]byte, n)
			m, err := p.ReadAt(b, int64(off))
			want := img[min(off, len(img)):min(off+n, len(img))]
			if m != len(want) || !bytes.Equal(b[:m], want) || m < n && err != io.EOF || m == n && err != nil {
				t.Fatalf("%s: ReadAt(%d, %d) = %d, %v", v.name, off, n, m, err)
			}
		}
		read(0, 512)
		read(1<<20-100, 100)
		if used {
			t.Errorf("%s: opened again for what was known", v.name)
		}
		read(1<<20-100, 200)
		read(1<<20+256<<10, 64<<10)
		read(1<<20+320<<10, 1)
		read(1<<20+512<<10, 512)
		if opened != 1 || !used {
			t.Errorf("%s: opened %d times for reading forwards", v.name, opened)
		}
		read(1<<20+256<<10, 512)
		read(len(img)-10, 20)
		if opened != 2 {
			t.Errorf("%s: opened %d times after one step back", v.name, opened)
		}
		var err error
		for range maxReplays {
			_, err = p.ReadAt(make([]byte, 10), 1<<20)
		}
		if !errors.Is(err, errReplays) || opened != maxReplays {
			t.Errorf("%s: opened %d times, %v", v.name, opened, err)
		}
		p.Close()
		if open > 0 {
			t.Errorf("%s: %d files are open still", v.name, open)
		}
	}
}

type closer func() error

func (c closer) Close() error { return c() }

// TestSeeds: the small packed files that fuzzing begins with are what it begins with, not just errors.
func TestSeeds(t *testing.T) {
	if flag.Lookup("update").Value.String() == "true" {
		for i, v := range variants(t, seedDisk()) {
			if err := os.WriteFile(fmt.Sprintf("testdata/packed/%02d.%s", i, v.c), v.file, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := filepath.Glob("testdata/packed/*")
	if err != nil || len(files) < 12 {
		t.Fatal(len(files), err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := unpack(bytes.NewReader(b), Limits{}); err != nil || !bytes.Equal(got, seedDisk()) {
			t.Errorf("%s: %d bytes, %v", f, len(got), err)
		}
	}
}

// seedDisk returns the content of the files in testdata/packed. "go test -run TestSeeds -update" writes them.
func seedDisk() []byte {
	b := make([]byte, 8192)
	copy(b, disk(1024))
	copy(b[4096:], strings.Repeat("ingot ", 200))
	return b
}
