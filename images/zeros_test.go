package images

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/ingot-metal/ingot/test/kit"
)

// sparseDisk is data and long runs of zeros that begin and end anywhere.
func sparseDisk(seed uint64, size int) []byte {
	r := rand.New(rand.NewPCG(seed, 3))
	b := make([]byte, size)
	for off := 0; off < size; {
		n := min(1+r.IntN(300<<10), size-off)
		for i := off; i < off+n; i++ {
			b[i] = byte(r.Uint32() % 7)
		}
		off += n + r.IntN(12<<20)
	}
	return b
}

// few: only some of the exhaustive tests' cases.
func few() bool { return raceOn && os.Getenv("INGOT_FULL") == "" }

// readSparse unpacks into out's memory, by reading and by asking for zeros in turn. It gives how many zeros were known.
func readSparse(r *rand.Rand, packed, out []byte) (_ []byte, known int64, err error) {
	out = out[:0]
	s, end, err := newSparseReader(bytes.NewReader(packed), 1+3*r.IntN(2), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return nil, 0, err
	}
	defer end()
	buf := make([]byte, 1<<20)
	for {
		if n := s.skipZeros(); n > 0 {
			known += n
			end := len(out) + int(n)
			out = slices.Grow(out, int(n))[:end]
			clear(out[end-int(n):])
		}
		n, err := s.Read(buf[:1+r.IntN(len(buf))])
		out = append(out, buf[:n]...)
		if err == io.EOF {
			return out, known, nil
		}
		if err != nil {
			return out, known, err
		}
	}
}

func unpackPlainly(packed []byte) ([]byte, error) {
	d, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return io.ReadAll(d)
}

func TestZerosPassBesideTheDecoder(t *testing.T) {
	kit.NeedPrograms(t, "zstd")
	path := filepath.Join(t.TempDir(), "disk")
	seeds := uint64(6)
	if few() {
		seeds = 1
	}
	unpacked, back, buf := make([]byte, 25<<20), make([]byte, 25<<20), make([]byte, 1<<20)
	for seed := range seeds {
		disk := sparseDisk(seed, 24<<20+int(seed)*1111)
		var all int64 // of its zeros, in blocks
		for i := 0; i < len(disk); i += 4096 {
			if len(bytes.TrimLeft(disk[i:min(i+4096, len(disk))], "\x00")) == 0 {
				all += 4096
			}
		}
		if err := os.WriteFile(path, disk, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"-1"}, {"-3"}, {"-3", "--no-check"}, {"-12"}, {"--fast=5", "-T2"},
			{"-3", "--long=21"}, {"-19", "--zstd=wlog=20"}} {
			kit.Run(t, "zstd", append(append([]string{"-q", "-f", "-o", path + ".zst"}, args...), path)...)
			packed, err := os.ReadFile(path + ".zst")
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(seed, 4))
			got, known, err := readSparse(r, packed, unpacked)
			if err != nil || !bytes.Equal(got, disk) {
				t.Fatalf("seed %d, zstd %v: %d bytes of %d, %v", seed, args, len(got), len(disk), err)
			}
			if args[0] == "-1" && known < all/2 {
				t.Errorf("seed %d, zstd %v: only %d of %d zeros did not pass through the decoder", seed, args, known,
					all)
			}
			// The same as an image, whose pieces have to be aligned.
			var off int64
			back := back[:len(disk)]
			clear(back)
			s, end := mustSparse(t, packed)
			e := &raw{r: s, size: -1}
			for {
				x, err := e.Next(buf)
				if err == io.EOF {
					break
				}
				if err != nil || x.Off != off || x.Off%holeAlign != 0 || x.Data == nil && x.Len%holeAlign != 0 ||
					x.Len == 0 {
					t.Fatalf("piece %d+%d, %v, want at %d", x.Off, x.Len, err, off)
				}
				copy(back[off:], x.Data)
				off += x.Len
			}
			end()
			if off != int64(len(disk)) || !bytes.Equal(back, disk) {
				t.Fatalf("seed %d, zstd %v: the pieces are not the disk", seed, args)
			}
			// A check sum over the zeros that passed beside.
			if i := len(packed) - 1; args[len(args)-1] != "--no-check" {
				packed[i] ^= 1
				if _, _, err := readSparse(r, packed, unpacked); !errors.Is(err, zstd.ErrCRCMismatch) {
					t.Errorf("seed %d, zstd %v: a wrong check sum gave %v", seed, args, err)
				}
			}
		}
	}
}

func mustSparse(t *testing.T, packed []byte) (r io.Reader, end func()) {
	s, end, err := newSparseReader(bytes.NewReader(packed), 4, zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		t.Fatal(err)
	}
	return s, end
}

// handmade puts frames together that encoders make rarely: each of blocks given as their kind and size.
func handmade(window byte, size int64, blocks ...[2]uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 0xfd2fb528)
	d := byte(4)
	if size >= 0 {
		d |= 3 << 6
	}
	b = append(b, d, window)
	if size >= 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(size))
	}
	var sum xxh64
	for i, k := range blocks {
		b = append(b, blockHeader(i == len(blocks)-1, k[0]&3, k[1])...)
		content := bytes.Repeat([]byte{byte(k[0] >> 2)}, int(k[1]))
		sum.write(content)
		if k[0]&3 == rleBlock {
			content = content[:1]
		}
		b = append(b, content...)
	}
	return binary.LittleEndian.AppendUint32(b, uint32(sum.sum()))
}

func handmadeFrames() map[string][]byte {
	const zero, x = rleBlock, rleBlock | 'x'<<2
	zeros := func(n int) (all [][2]uint32) {
		for range n {
			all = append(all, [2]uint32{zero, maxBlock})
		}
		return all
	}
	frame := func(size int64, parts ...any) []byte {
		var all [][2]uint32
		for _, p := range parts {
			switch p := p.(type) {
			case [2]uint32:
				all = append(all, p)
			case [][2]uint32:
				all = append(all, p...)
			}
		}
		return handmade(7<<3, size, all...) // a window of 128 KiB
	}
	data := [2]uint32{rawBlock | 'd'<<2, 1000}
	empty := [2]uint32{rawBlock, 0}
	long := frame(-1, data, zeros(20), data)
	allOnes := frame(0, data, zeros(20), data)
	binary.LittleEndian.PutUint64(allOnes[6:], math.MaxUint64)
	return map[string][]byte{
		"zeros at the end":     frame(1000+20*maxBlock, data, zeros(20)),
		"nothing but zeros":    frame(-1, zeros(30)),
		"zeros between":        long,
		"too few to leave out": frame(-1, data, zeros(3), data, zeros(4), data),
		"one more":             frame(-1, data, zeros(5), data),
		"empty blocks":         frame(-1, empty, data, empty, zeros(9), empty, zeros(9), data, empty),
		"another byte":         frame(-1, data, zeros(9), [2]uint32{x, 77}, zeros(9), data),
		"odd zeros": frame(-1, [2]uint32{zero, 3}, zeros(9), [2]uint32{zero, 99}, data,
			[2]uint32{zero, 5}),
		"two frames": append(bytes.Clone(long), frame(-1, zeros(9), data)...),
		"skippable between": append(append(bytes.Clone(long), "\x50\x2a\x4d\x18\x03\x00\x00\x00abc"...),
			long...),
		"an empty frame between":      append(append(bytes.Clone(long), frame(0, empty)...), long...),
		"a size of all ones":          allOnes,
		"a wrong size":                frame(5, data, zeros(20)),
		"a wrong size of nothing":     frame(5, empty),
		"something else behind":       append(bytes.Clone(long), "garbage behind the frame"...),
		"three bytes behind":          append(bytes.Clone(long), "\x28\xb5\x2f"...),
		"a frame without its trailer": long[:len(long)-4],
	}
}

func TestHandmadeFrames(t *testing.T) {
	wrong := map[string]bool{"a wrong size": true, "a wrong size of nothing": true, "something else behind": true,
		"three bytes behind": true, "a frame without its trailer": true}
	for name, b := range handmadeFrames() {
		got, _, err := readSparse(rand.New(rand.NewPCG(1, 1)), b, nil)
		if wrong[name] {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
			continue
		}
		want, err2 := unpackPlainly(b)
		if err != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v; want %d, %v", name, len(got), err, len(want), err2)
		}
	}
}

// FuzzSparseReader compares with the decoder alone: what it accepts comes out the same, and what it refuses is refused.
func FuzzSparseReader(f *testing.F) {
	for _, b := range handmadeFrames() {
		f.Add(b)
	}
	w, err := zstd.NewWriter(nil, zstd.WithWindowSize(64<<10))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(w.EncodeAll(sparseDisk(9, 1<<20), nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		limited := func(r io.Reader) ([]byte, error) {
			out, err := io.ReadAll(io.LimitReader(r, 4<<20))
			if err == nil && len(out) == 4<<20 {
				err = errors.New("too long to compare")
			}
			return out, err
		}
		d, err := zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(1<<20))
		if err != nil {
			t.Fatal(err)
		}
		want, wantErr := limited(d)
		d.Close()
		for _, blocks := range []int{1, 4} {
			s, end, err := newSparseReader(bytes.NewReader(b), blocks, zstd.WithDecoderLowmem(true),
				zstd.WithDecoderMaxWindow(1<<20))
			if err != nil {
				t.Fatal(err)
			}
			got, gotErr := limited(s)
			end()
			if wantErr == nil && gotErr == nil && !bytes.Equal(got, want) {
				t.Fatalf("%d bytes, the decoder alone gives %d", len(got), len(want))
			}
			if wantErr != nil && gotErr == nil {
				t.Fatalf("the decoder alone says %v", wantErr)
			}
			// it does not mind some bytes too many
			if wantErr == nil && gotErr != nil && !errors.Is(gotErr, io.ErrUnexpectedEOF) {
				t.Fatalf("%v, the decoder alone is content", gotErr)
			}
		}
	})
}

func TestXXH64(t *testing.T) {
	// Of the specification: no bytes, and the end of any frame that an encoder makes is checked above.
	var none xxh64
	if got := none.sum(); got != 0xef46db3751d8e999 {
		t.Errorf("sum of nothing = %#x", got)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var a, b xxh64
		for range 1 + r.IntN(4) {
			data := make([]byte, r.IntN(100))
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			z := r.IntN(300)
			a.write(data)
			a.zeros(int64(z))
			b.write(append(data, make([]byte, z)...))
		}
		if a.sum() != b.sum() {
			t.Fatalf("%#x and %#x", a.sum(), b.sum())
		}
	}
}
