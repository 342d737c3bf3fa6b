package images

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/mikelolasagasti/xz"

	"github.com/ingot-metal/ingot/test/kit"
)

// packXZ packs b with the real xz.
func packXZ(t testing.TB, b []byte, args ...string) []byte {
	kit.NeedPrograms(t, "xz")
	return tool(t, b, append([]string{"xz", "-c"}, args...)...)
}

// ofBlocks unpacks by newXZBlocks, in as much memory besides half of the window.
func ofBlocks(t testing.TB, packed []byte, l Limits) ([]byte, error) {
	t.Helper()
	x, end := newXZBlocks(bytes.NewReader(packed), l)
	defer end()
	var out bytes.Buffer
	b := make([]byte, 100_000)
	for {
		n, err := x.Read(b)
		out.Write(b[:n])
		x.mu.Lock()
		pieces := int64(2 * runtime.GOMAXPROCS(0) * xzPiece) // one of each block, and one in front
		if most := max(x.memory, x.dict) + pieces; x.held+x.dicts > most || len(x.queue) > 2*runtime.GOMAXPROCS(0) {
			t.Errorf("%d bytes in pieces, %d in dictionaries, %d blocks; at most %d bytes", x.held, x.dicts, len(x.queue),
				most)
		}
		x.mu.Unlock()
		if err == io.EOF {
			return out.Bytes(), nil
		}
		if err != nil {
			return out.Bytes(), err
		}
	}
}

// inOrder unpacks by the ordinary decoder.
func inOrder(packed []byte, window uint32) ([]byte, error) {
	d, err := xz.NewReader(bytes.NewReader(packed), window)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(d)
}

func TestBlocksAtOnce(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	large, small := sparseDisk(11, 30<<20), sparseDisk(12, 3<<20)
	memories := []int64{0, 16 << 20, 64 << 20}
	if few() {
		small = sparseDisk(12, 1200<<10)
		large, memories = small, memories[:1]
	}
	copy(large, disk(512))
	copy(small, disk(512))
	padding := make([]byte, 8)
	for name, c := range map[string]struct {
		want, packed []byte
		few          bool // not several
	}{
		"-T2":                {large, packXZ(t, large, "-T2"), false},
		"-0":                 {large, packXZ(t, large, "-T2", "-0"), false},
		"-1":                 {small, packXZ(t, small, "-T2", "-1"), false},
		"-2":                 {small, packXZ(t, small, "-T2", "-2"), false},
		"-3":                 {large, packXZ(t, large, "-T2", "-3"), false},
		"-4":                 {small, packXZ(t, small, "-T2", "-4"), false},
		"-5":                 {small, packXZ(t, small, "-T2", "-5"), false},
		"blocks of 4 KiB":    {small, packXZ(t, small, "-T2", "-0", "--block-size=4KiB"), false},
		"blocks of 5000":     {small, packXZ(t, small, "-T2", "-0", "--block-size=5000", "--check=none"), false},
		"blocks of 1 MiB":    {large, packXZ(t, large, "-T2", "-0", "--block-size=1MiB", "--check=crc32"), false},
		"blocks of 7 MiB":    {large, packXZ(t, large, "-T2", "-0", "--block-size=7MiB", "--check=sha256"), false},
		"blocks of all":      {large, packXZ(t, large, "-T2", "-0", "--block-size=100MiB"), false},
		"blocks of any size": {small, packXZ(t, small, "-T2", "-0", "--block-list=1MiB,10KiB,1,100KiB,0"), false},
		"filters":            {small, packXZ(t, small, "-T2", "--x86", "--delta=dist=4", "--lzma2=preset=0"), false},
		"no sizes":           {small, packXZ(t, small, "-T1", "-0", "--block-size=100KiB"), true},
		"-8":                 {small, packXZ(t, small, "-T2", "-8"), true},
		"streams": {bytes.Repeat(small, 4), slices.Concat(packXZ(t, small, "-T2", "-0", "--block-size=700KiB"), padding,
			packXZ(t, small, "-T1", "-1", "--check=sha256"), packXZ(t, small, "-T2", "-8"), padding,
			packXZ(t, nil, "-T1"), packXZ(t, small, "-T2", "-0", "--check=none"), padding, padding), false},
	} {
		l := Limits{Window: 32 << 20, Memory: 16 << 20}
		if several := severalBlocks(c.packed[:min(len(c.packed), peekSize)], l); several == c.few {
			t.Errorf("%s: seen as several blocks: %v", name, several)
		}
		for _, l.Memory = range memories {
			if got, err := ofBlocks(t, c.packed, l); err != nil || !bytes.Equal(got, c.want) {
				t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(c.want), err)
			}
		}
		if got, _, err := unpack(bytes.NewReader(c.packed), Limits{}); err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%s: an image of %d bytes, %v", name, len(got), err)
		}
	}
	// With little memory and the dictionary of "xz -6", one after the other.
	if head := packXZ(t, small, "-T2"); severalBlocks(head, Limits{Window: 32 << 20}) || severalBlocks(nil, Limits{}) ||
		severalBlocks(head[:20], Limits{Window: 32 << 20, Memory: 16 << 20}) {
		t.Error("seen as several blocks")
	}
}

// manyBlocks returns a file of some KiB with five blocks, and what it holds.
func manyBlocks(t testing.TB, args ...string) (img, packed []byte) {
	img = make([]byte, 3300)
	rand.NewChaCha8([32]byte{8}).Read(img[:2500])
	return img, packXZ(t, img, append([]string{"-T2", "-0", "--block-size=700"}, args...)...)
}

// TestBlocksAtOnceRefuse cuts at every byte, and changes each.
func TestBlocksAtOnceRefuse(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	l := Limits{Window: 1 << 20}
	r := rand.New(rand.NewPCG(6, 6))
	for _, check := range []string{"crc32", "crc64", "sha256"} {
		img, packed := manyBlocks(t, "--check="+check)
		step := 1
		if few() {
			step = 23
		}
		same := 0
		for at := 0; at < len(packed); at += step {
			if got, err := ofBlocks(t, packed[:at], l); err == nil || !bytes.HasPrefix(img, got) {
				t.Fatalf("%s, %d of %d bytes: %d bytes, %v", check, at, len(packed), len(got), err)
			}
			bad := slices.Clone(packed)
			bad[at] ^= 1 << r.IntN(8)
			got, err := ofBlocks(t, bad, l)
			_, want := inOrder(bad, 1<<20) // some bits mean nothing, like the last ones of a packed chunk
			if (err == nil) != (want == nil) || err == nil && !bytes.Equal(got, img) {
				t.Fatalf("%s, byte %d is changed: %d bytes, %v; %v of the ordinary decoder", check, at, len(got), err, want)
			}
			if err == nil {
				same++
			}
		}
		if same > len(packed)/100 {
			t.Errorf("%s: %d changed bits make no difference", check, same)
		}
		for _, tail := range []string{"\x00", "\x00\x00\x00\x00\x00", "something else", "\xfd7zXZ\x00",
			"\x00\x00\x00\x00x"} {
			if _, err := ofBlocks(t, append(slices.Clone(packed), tail...), l); err == nil {
				t.Errorf("%q behind it: no error", tail)
			}
		}
	}
	_, packed := manyBlocks(t)
	broken := errors.New("broken link")
	x, end := newXZBlocks(io.MultiReader(bytes.NewReader(packed[:len(packed)/2]), brokenReader{broken}), l)
	defer end()
	if _, err := io.Copy(io.Discard, x); !errors.Is(err, broken) {
		t.Errorf("a broken link: %v", err)
	}
	wide := append(slices.Clone(packed), packXZ(t, make([]byte, 4<<20), "-T2", "-3")...)
	if _, err := ofBlocks(t, wide, l); !errors.Is(err, xz.ErrMemlimit) {
		t.Errorf("a large dictionary behind small ones: %v", err)
	}
}

// header returns a block's header that states sizes, for LZMA2 with a dictionary of 256 KiB.
func header(packed, unpacked []byte) []byte {
	h := slices.Concat([]byte{0, 0xc0}, packed, unpacked, []byte{0x21, 1, 12})
	h = append(h, make([]byte, -len(h)&3+4)...)
	h[0] = byte(len(h)/4 - 1)
	fixCRC(h)
	return h
}

// TestLyingSizes has blocks whose headers state other sizes than they have, and an index that does.
func TestLyingSizes(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	content := []byte("all of it")
	data := slices.Concat([]byte{1, 0, byte(len(content) - 1)}, content, []byte{0})
	stream := []byte{0xfd, '7', 'z', 'X', 'Z', 0, 0, 1}
	stream = append(stream, 0, 0, 0, 0)
	copy(stream[8:], le32(crc32.ChecksumIEEE(stream[6:8])))
	// file has two equal blocks. Each is listed in the index with its size and that of its content.
	file := func(h []byte, list ...byte) []byte {
		block := slices.Concat(h, data, make([]byte, -len(data)&3), le32(crc32.ChecksumIEEE(content)))
		index := append([]byte{0, byte(len(list) / 2)}, list...)
		index = append(index, make([]byte, -len(index)&3)...)
		index = append(index, le32(crc32.ChecksumIEEE(index))...)
		foot := append(le32(uint32(len(index)/4-1)), 0, 1)
		return slices.Concat(stream, block, block, index, le32(crc32.ChecksumIEEE(foot)), foot, []byte("YZ"))
	}
	p, u := byte(len(data)), byte(len(content))
	right := header([]byte{p}, []byte{u})
	size := byte(len(right)+len(data)) + 4
	l := Limits{Window: 1 << 20}
	good := file(right, size, u, size, u)
	if got, err := ofBlocks(t, good, l); err != nil || string(got) != "all of itall of it" {
		t.Fatalf("right sizes: %q, %v", got, err)
	}
	huge := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}
	for name, bad := range map[string][]byte{
		"packed, less":         file(header([]byte{p - 1}, []byte{u}), size, u, size, u),
		"packed, more":         file(header([]byte{p + 1}, []byte{u}), size, u, size, u),
		"packed, padded":       file(header([]byte{p + 4}, []byte{u}), size, u, size, u),
		"packed, nothing":      file(header([]byte{0}, []byte{u}), size, u, size, u),
		"unpacked, less":       file(header([]byte{p}, []byte{u - 1}), size, u, size, u),
		"unpacked, more":       file(header([]byte{p}, []byte{u + 1}), size, u, size, u),
		"unpacked, nothing":    file(header([]byte{p}, []byte{0}), size, u, size, u),
		"huge":                 file(header(huge, huge), size+16, u, size+16, u),
		"one block is missing": file(right, size, u),
		"one block too many":   file(right, size, u, size, u, size, u),
		"index, packed":        file(right, size, u, size+1, u),
		"index, unpacked":      file(right, size, u, size, u+1),
		"index, changed over":  file(right, size+1, u, size-1, u),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if got, err := ofBlocks(t, bad, l); err == nil {
			t.Errorf("%s: no error, %q", name, got)
		}
		if _, err := inOrder(bad, 1<<20); err == nil {
			t.Errorf("%s: no error of the ordinary decoder", name)
		}
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 {
			t.Errorf("%s: %d MiB were allocated", name, grown>>20)
		}
	}
	// Any number of blocks, with an index that is never reached.
	start := len(stream)
	endless := io.MultiReader(bytes.NewReader(stream), &repeated{b: good[start : start+int(size+3)&^3]})
	x, end := newXZBlocks(endless, l)
	defer end()
	if _, err := io.CopyN(io.Discard, x, 20_000); err != nil {
		t.Error(err)
	}
}

func le32(v uint32) []byte { return []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)} }

// repeated never ends.
type repeated struct {
	b  []byte
	at int
}

func (r *repeated) Read(p []byte) (int, error) {
	n := copy(p, r.b[r.at:])
	r.at = (r.at + n) % len(r.b)
	return n, nil
}

// TestBlocksAtOnceEnd ends before everything is read: no goroutine is left.
func TestBlocksAtOnceEnd(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	packed := packXZ(t, sparseDisk(13, 12<<20), "-T2", "-0")
	before := runtime.NumGoroutine()
	for _, n := range []int64{0, 1, 5 << 20} {
		x, end := newXZBlocks(bytes.NewReader(packed), Limits{Window: 4 << 20})
		if _, err := io.CopyN(io.Discard, x, n); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // until all wait for memory
		end()
		if _, err := x.Read(make([]byte, 10<<20)); n == 0 && !errors.Is(err, errStopped) {
			t.Errorf("a read after the end: %v", err)
		}
	}
	// A goroutine that has said that it is done may still have to return.
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > before && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if now := runtime.NumGoroutine(); now > before {
		t.Errorf("%d goroutines, %d before", now, before)
	}
}

// FuzzBlocksAtOnce compares with the ordinary decoder: the same bytes, and the same files are refused.
func FuzzBlocksAtOnce(f *testing.F) {
	for _, check := range []string{"none", "crc32", "crc64", "sha256"} {
		_, packed := manyBlocks(f, "--check="+check)
		f.Add(packed)
		f.Add(slices.Concat(packed, make([]byte, 4), packXZ(f, []byte("more"), "-T1"), packXZ(f, nil)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const window = 1 << 20
		d, err := xz.NewReader(bytes.NewReader(b), window)
		var want []byte
		if err == nil {
			want, err = io.ReadAll(io.LimitReader(d, 4<<20))
		}
		if len(want) == 4<<20 {
			return // too long to compare
		}
		got, gotErr := ofBlocks(t, b, Limits{Window: window})
		if (err == nil) != (gotErr == nil) {
			t.Fatalf("%v, the ordinary decoder says %v", gotErr, err)
		}
		if err == nil && !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, the ordinary decoder gives %d", len(got), len(want))
		}
	})
}

// BenchmarkBlocks unpacks blocks as "xz -T" makes them, at once and one after the other.
func BenchmarkBlocks(b *testing.B) {
	disk := make([]byte, 0, 48<<20)
	r := rand.New(rand.NewPCG(3, 3))
	for len(disk) < cap(disk) { // packs to about a third
		disk = append(disk, byte('a'+r.IntN(6)), byte(r.IntN(3)), 'x', 'y')
	}
	for _, level := range []string{"-0", "-3", "-6"} {
		packed := packXZ(b, disk, "-T2", level)
		read := func(name string, open func(r io.Reader) (io.Reader, func(), error)) {
			b.Run(fmt.Sprintf("%s/%s", level, name), func(b *testing.B) {
				b.SetBytes(int64(len(disk)))
				for b.Loop() {
					d, end, err := open(bytes.NewReader(packed))
					if err != nil {
						b.Fatal(err)
					}
					if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, d, make([]byte, 1<<20)); err != nil ||
						n != int64(len(disk)) {
						b.Fatal(n, err)
					}
					end()
				}
			})
		}
		read("one", func(r io.Reader) (io.Reader, func(), error) {
			d, err := xz.NewReader(r, 32<<20)
			return d, func() {}, err
		})
		for _, memory := range []int64{0, 8, 16} {
			read(fmt.Sprintf("%d MiB", 16+memory), func(r io.Reader) (io.Reader, func(), error) {
				d, end := newXZBlocks(r, Limits{Window: 32 << 20, Memory: memory << 20})
				return d, end, nil
			})
		}
	}
}
