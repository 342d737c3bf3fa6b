package images

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// frames packs a disk in frames of about so many bytes.
func frames(t testing.TB, disk []byte, each int, pzstd, sized bool) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for chunk := range slices.Chunk(disk, each) {
		var frame []byte
		if sized {
			frame = w.EncodeAll(chunk, nil)
		} else {
			var b bytes.Buffer
			w.Reset(&b)
			for half := range slices.Chunk(chunk, max(1, len(chunk)/2)) { // else the writer knows the size
				if _, err := w.Write(half); err != nil {
					t.Fatal(err)
				}
				if err := w.Flush(); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			frame = b.Bytes()
		}
		if pzstd {
			out = binary.LittleEndian.AppendUint32(out, pzstdMagic)
			out = binary.LittleEndian.AppendUint32(out, 4)
			out = binary.LittleEndian.AppendUint32(out, uint32(len(frame)))
		}
		out = append(out, frame...)
	}
	return out
}

// ofMany unpacks by newParallel, and says how much was left to the ordinary decoder.
func ofMany(t testing.TB, packed []byte, window uint64) (data []byte, tail bool, err error) {
	t.Helper()
	p, end, err := newParallel(bytes.NewReader(packed), Limits{Window: window, Memory: 32 << 20},
		func(r io.Reader) (*sparseReader, func(), error) {
			return newSparseReader(r, 1, zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window))
		})
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	var b bytes.Buffer
	buf := make([]byte, 100_000)
	for {
		for n := p.skipZeros(); n > 0; n = p.skipZeros() {
			b.Write(make([]byte, n))
		}
		n, err := p.Read(buf)
		b.Write(buf[:n])
		if err == io.EOF {
			return b.Bytes(), p.tail != nil, nil
		}
		if err != nil {
			return b.Bytes(), p.tail != nil, err
		}
	}
}

func TestFramesAtOnce(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	disk := sparseDisk(5, 20<<20)
	for _, each := range []int{10_000, 300_000, 1 << 20, 7 << 20, 12 << 20} {
		for _, pzstd := range []bool{false, true} {
			for _, sized := range []bool{false, true} {
				if each < 100_000 && !sized && few() {
					continue
				}
				packed := frames(t, disk, each, pzstd, sized)
				got, tail, err := ofMany(t, packed, 8<<20)
				if err != nil || !bytes.Equal(got, disk) {
					t.Fatalf("frames of %d bytes, pzstd %v, sized %v: %d bytes, %v", each, pzstd, sized, len(got), err)
				}
				if large := each > largestPart; tail != large {
					t.Errorf("frames of %d bytes, pzstd %v, sized %v: left to the ordinary decoder: %v", each, pzstd, sized,
						tail)
				}
				// A frame of unknown size that is not all at the beginning may be the only one.
				seen, small := severalFrames(packed[:min(len(packed), peekSize)]), each <= largestPart
				if !seen && (pzstd || small && sized) || seen && !pzstd && !small {
					t.Errorf("frames of %d bytes, pzstd %v, sized %v: seen as several: %v", each, pzstd, sized, seen)
				}
			}
		}
	}
	if severalFrames(nil) || severalFrames(frames(t, disk, len(disk), false, true)) ||
		severalFrames(frames(t, disk[:5<<20], 5<<20, false, false)) {
		t.Error("one frame, or nothing, is seen as several")
	}
}

// TestFramesAtOnceRefuse cuts, damages and appends.
func TestFramesAtOnceRefuse(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	r := rand.New(rand.NewPCG(4, 4))
	disk := sparseDisk(6, 3<<20)
	packed := frames(t, disk, 600_000, true, true)
	starts := map[int]bool{0: true}
	for at := 0; at < len(packed); {
		at += 12 + int(binary.LittleEndian.Uint32(packed[at+8:]))
		starts[at] = true
	}
	for range 60 {
		cut := 1 + r.IntN(len(packed)-1)
		if _, _, err := ofMany(t, packed[:cut], 8<<20); err == nil && !starts[cut] {
			t.Fatalf("%d of %d bytes: no error", cut, len(packed))
		}
		bad := slices.Clone(packed)
		at := 12 + r.IntN(len(bad)-12)
		bad[at] ^= byte(1 + r.IntN(255))
		if got, _, err := ofMany(t, bad, 8<<20); err == nil && !bytes.Equal(got, disk) {
			t.Fatalf("byte %d is changed: other bytes and no error", at)
		}
	}
	if _, _, err := ofMany(t, append(slices.Clone(packed), "something else"...), 8<<20); err == nil {
		t.Error("something else behind: no error")
	}
	// A frame that needs more than is allowed, behind others.
	w, err := zstd.NewWriter(nil, zstd.WithWindowSize(8<<20))
	if err != nil {
		t.Fatal(err)
	}
	wide := w.EncodeAll(make([]byte, 12<<20), nil)
	if _, tail, err := ofMany(t, append(slices.Clone(packed), wide...), 1<<20); !tail ||
		!errors.Is(err, zstd.ErrWindowSizeExceeded) {
		t.Errorf("a large window behind small frames: %v, left to the ordinary decoder: %v", err, tail)
	}
	// The source's own error comes through.
	broken := errors.New("broken link")
	p, end, err := newParallel(io.MultiReader(bytes.NewReader(packed[:len(packed)/2]), brokenReader{broken}),
		Limits{Window: 8 << 20, Memory: 32 << 20}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if _, err := io.Copy(io.Discard, p); !errors.Is(err, broken) {
		t.Errorf("a broken link: %v", err)
	}
}

type brokenReader struct{ err error }

func (b brokenReader) Read([]byte) (int, error) { return 0, b.err }

// TestFramesAtOnceBound has frames and blocks without content, of which any number would fit into none: what the
// splitter holds at once stays bounded.
func TestFramesAtOnceBound(t *testing.T) {
	const most = 1 << 20
	header := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0} // no size, a window of 1 KiB
	empty := append(slices.Clone(header), 1, 0, 0) // the last block, raw and of no bytes
	s := splitter{in: bufio.NewReader(bytes.NewReader(bytes.Repeat(empty, 5*smallParts/len(empty)))), most: most}
	parts, all := 0, 0
	for {
		p, err := s.next()
		if err == io.EOF {
			break
		}
		if err != nil || p == nil || len(p.packed) > smallParts+len(empty) {
			t.Fatalf("empty frames: %+v, %v", p, err)
		}
		parts++
		all += len(p.packed)
	}
	if parts < 5 || all != 5*smallParts/len(empty)*len(empty) {
		t.Errorf("empty frames: %d parts, %d bytes", parts, all)
	}
	s = splitter{in: bufio.NewReader(io.MultiReader(bytes.NewReader(header), zeroBytes{})), most: most}
	if p, err := s.next(); p != nil || err != nil || len(s.held) > most+2*maxBlock {
		t.Errorf("a frame of empty blocks without end: %v, %v, %d bytes are held", p, err, len(s.held))
	}
	// More content than the frame says.
	packed := handmade(0, 10, [2]uint32{rawBlock, 1000})
	if _, _, err := ofMany(t, packed, 8<<20); !errors.Is(err, zstd.ErrFrameSizeMismatch) {
		t.Errorf("more content than the frame says: %v", err)
	}
}

// zeroBytes never ends.
type zeroBytes struct{}

func (zeroBytes) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestRefusalDoesNotWait has an image that is refused by its beginning, while its server sends no more.
func TestRefusalDoesNotWait(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	noise := make([]byte, 6<<20)
	rand.NewChaCha8([32]byte{5}).Read(noise)
	copy(noise, "no image")
	for name, c := range map[string]struct {
		packed []byte
		memory int
	}{
		"pipeline": {frames(t, noise, len(noise), false, true), 0},
		"frames":   {frames(t, noise, 1<<20, false, true), 32 << 20},
		"blocks":   {packXZ(t, noise, "-T2", "-0"), 0},
	} {
		packed := c.packed
		stopped := make(chan struct{})
		slow := io.MultiReader(bytes.NewReader(packed[:peekSize+300<<10]), waiting(stopped))
		refused := make(chan error, 1)
		go func() {
			in := Input{Stream: slow, Size: -1, Stop: func() { close(stopped) }}
			_, _, err := Open(in, Limits{Memory: int64(c.memory)})
			refused <- err
		}()
		select {
		case err := <-refused:
			var e *Error
			if !errors.As(err, &e) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the refusal waits for the server", name)
		}
	}
}

// waiting gives nothing until it is closed, and then an error.
type waiting chan struct{}

func (w waiting) Read([]byte) (int, error) {
	<-w
	return 0, errors.New("stopped")
}

// TestFramesAtOnceEnd ends before everything is read.
func TestFramesAtOnceEnd(t *testing.T) {
	packed := frames(t, sparseDisk(7, 30<<20), 1<<20, false, true)
	for _, n := range []int{0, 1, 5 << 20} {
		p, end, err := newParallel(bytes.NewReader(packed), Limits{Window: 8 << 20, Memory: 32 << 20}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, p, int64(n)); err != nil {
			t.Fatal(err)
		}
		end()
	}
}

// FuzzFramesAtOnce compares with the ordinary decoder: the same bytes, and the same files are refused.
func FuzzFramesAtOnce(f *testing.F) {
	for _, b := range handmadeFrames() {
		f.Add(b)
	}
	f.Add(frames(f, sparseDisk(9, 1<<20), 100_000, true, true))
	f.Fuzz(func(t *testing.T, b []byte) {
		const window = 1 << 20
		s, end, err := newSparseReader(bytes.NewReader(b), 1, zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(window))
		if err != nil {
			t.Fatal(err)
		}
		want, wantErr := io.ReadAll(io.LimitReader(s, 4<<20))
		end()
		if len(want) == 4<<20 {
			return // too long to compare
		}
		got, _, gotErr := ofMany(t, b, window)
		if (wantErr == nil) != (gotErr == nil) {
			t.Fatalf("%v, the ordinary decoder says %v", gotErr, wantErr)
		}
		if wantErr == nil && !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, the ordinary decoder gives %d", len(got), len(want))
		}
	})
}

// BenchmarkFrames unpacks frames of several sizes, and one of all, in the three ways there are.
func BenchmarkFrames(b *testing.B) {
	disk := make([]byte, 0, 64<<20)
	r := rand.New(rand.NewPCG(3, 3))
	for len(disk) < cap(disk) { // packs to about a third
		disk = append(disk, byte('a'+r.IntN(6)), byte(r.IntN(3)), 'x', 'y')
	}
	for _, each := range []int{16 << 10, 256 << 10, 2 << 20, 8 << 20, 64 << 20} {
		packed := frames(b, disk, each, false, true)
		blocks := func(n int) func(io.Reader) (*sparseReader, func(), error) {
			return func(r io.Reader) (*sparseReader, func(), error) {
				return newSparseReader(r, n, zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
			}
		}
		for name, open := range map[string]func(io.Reader) (io.Reader, func(), error){
			"one block": func(r io.Reader) (io.Reader, func(), error) { return blocks(1)(r) },
			"pipeline":  func(r io.Reader) (io.Reader, func(), error) { return blocks(4)(r) },
			"at once": func(r io.Reader) (io.Reader, func(), error) {
				return newParallel(r, Limits{Window: 8 << 20, Memory: 32 << 20}, blocks(4))
			},
		} {
			b.Run(fmt.Sprintf("%s/%d KiB", name, each>>10), func(b *testing.B) {
				b.SetBytes(int64(len(disk)))
				for b.Loop() {
					d, end, err := open(bytes.NewReader(packed))
					if err != nil {
						b.Fatal(err)
					}
					if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{d},
						make([]byte, 1<<20)); err != nil || n != int64(len(disk)) {
						b.Fatal(n, err)
					}
					end()
				}
			})
		}
	}
}
