package sink

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/test/kit"
)

const mib = 1 << 20

// content makes a whole-disk image: data and zeros of many lengths.
func content(seed uint64, size int) []byte {
	b := make([]byte, size)
	r := rand.New(rand.NewPCG(seed, 1))
	for off := 0; off < size; {
		n := min(512*(1+r.IntN(400)), size-off)
		for i := off; i < off+n; i += 8 {
			binary.LittleEndian.PutUint64(b[i:], r.Uint64()|1)
		}
		off += n + 512*r.IntN(900)
	}
	clear(b[440:512])
	e := b[446:]
	e[4] = 0x83
	binary.LittleEndian.PutUint32(e[8:], 2048)
	binary.LittleEndian.PutUint32(e[12:], uint32(size/512-2048))
	b[510], b[511] = 0x55, 0xaa
	return b
}

type bench struct {
	*Sink
	dev disk.Device
	raw *fake.Disk
}

// newBench is a sink on a disk full of 0xA5.
func newBench(t testing.TB, spec fake.DiskSpec, o Options) bench {
	t.Helper()
	m := fake.NewDisks(t.TempDir())
	spec.Name, spec.Serial, spec.Fill = "vda", "one", 0xa5
	raw := m.Add(spec)
	list, err := disk.List(t.Context(), m.Root())
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	dev, err := m.OpenExclusive(t.Context(), "/dev/vda")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return bench{New(dev, list[0], o), dev, raw}
}

// cut makes pieces of an image at random sectors.
func cut(r *rand.Rand, size, sector int64) []span {
	var all []span
	for off := int64(0); off < size; {
		n := min(sector*(1+r.Int64N(1<<uint(r.IntN(12)))), size-off)
		all = append(all, span{off, n})
		off += n
	}
	return all
}

// putAll puts an image in pieces from several goroutines. Some of the zeros are said to be holes.
func putAll(ctx context.Context, s *Sink, img []byte, pieces []span, r *rand.Rand) error {
	jobs := make(chan span)
	errs := make([]error, 4)
	holes := r.IntN(2) == 0
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for p := range jobs {
				data := img[p.off:p.end()]
				if errs[i] != nil {
					continue
				}
				if holes && len(bytes.TrimLeft(data, "\x00")) == 0 {
					errs[i] = s.Hole(ctx, p.off, p.n)
				} else {
					errs[i] = s.Put(ctx, p.off, slices.Clone(data))
				}
			}
		})
	}
	for _, p := range pieces {
		jobs <- p
	}
	close(jobs)
	wg.Wait()
	return errors.Join(errs...)
}

// TestAnyPiecesInAnyOrder holds the whole promise: for any pieces, in any order, on any device, a dirty disk equals the
// image afterwards, without an old byte, and it has no table before the commit.
func TestAnyPiecesInAnyOrder(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2))
		spec := fake.DiskSpec{SectorSize: 512, NoPunch: seed%3 == 1, LyingPunch: seed%3 == 2}
		if seed%5 == 0 {
			spec.SectorSize = 4096
		}
		size := 2*mib + 512*r.Int64N(10*mib/512)
		spec.Size = size/4096*4096 + 4*mib
		img := content(seed, int(size))
		o := Options{Verify: true, Partition: spec.SectorSize != 512} // an MBR of large sectors is refused
		name := fmt.Sprintf("seed %d, %d bytes, %+v", seed, size, spec)
		b := newBench(t, spec, o)
		pieces := cut(r, size, 512) // for any sector size of the disk
		if seed%10 == 0 {
			b.maxScraps = 3
		}
		r.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
		if err := b.Begin(t.Context(), img[:mib], size); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// Somebody makes every hole at once, with no regard to those that may grow.
		every := make(chan struct{})
		close(every)
		var holes sync.WaitGroup
		var put atomic.Bool
		holes.Go(func() {
			for seed%4 != 0 && !put.Load() {
				if err := b.MakeHoles(t.Context(), every, nil); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
			}
		})
		err := putAll(t.Context(), b.Sink, img, pieces, r)
		put.Store(true)
		holes.Wait()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := b.Finish(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := b.ReadBack(t.Context(), func(int64, int64) {}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := make([]byte, size)
		if _, err := b.raw.ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		low, high := b.Body()
		if !bytes.Equal(got[low:high], img[low:high]) {
			for i := low; i < high; i++ {
				if got[i] != img[i] {
					t.Fatalf("%s: byte %d is %#x, want %#x", name, i, got[i], img[i])
				}
			}
		}
		if o.Partition {
			continue
		}
		if disk.HasTable(got[:mib], 512) {
			t.Errorf("%s: the disk has a table before the commit", name)
		}
		if p, err := b.Pending(); err != nil || p.Table() != "mbr" {
			t.Errorf("%s: pending: %v", name, err)
		}
	}
}

// TestOnlyDataLands counts what a device that punches has to store.
func TestOnlyDataLands(t *testing.T) {
	const size = 64 * mib
	img := content(3, size)
	b := newBench(t, fake.DiskSpec{Size: 80 * mib}, Options{})
	if err := b.Begin(t.Context(), img[:mib], size); err != nil {
		t.Fatal(err)
	}
	wiped := b.raw.Written()
	var want int64
	for off := int64(mib); off < size; off += Block {
		if !isZero(img[off : off+Block]) {
			want += Block
		}
	}
	var pieces []span
	for off := int64(0); off < size; off += mib {
		pieces = append(pieces, span{off, mib})
	}
	if err := putAll(t.Context(), b.Sink, img, pieces, rand.New(rand.NewPCG(1, 1))); err != nil {
		t.Fatal(err)
	}
	if err := b.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.raw.Written() - wiped; float64(got) > 1.02*float64(want) || got != b.Counts().Written {
		t.Errorf("%d bytes landed, %d by our count; %d are in blocks that are not zero", got, b.Counts().Written, want)
	}
	punches := 0
	for _, op := range b.raw.History() {
		if op.Kind == "punch" {
			punches++
			if op.Len > 1<<30 {
				t.Errorf("a hole of %d bytes at once", op.Len)
			}
		}
	}
	t.Logf("%d punches", punches)
}

func TestFaultsOfTheCaller(t *testing.T) {
	const size = 8 * mib
	img := content(1, size)
	begun := func(t *testing.T) bench {
		b := newBench(t, fake.DiskSpec{Size: 16 * mib}, Options{})
		if err := b.Begin(t.Context(), img[:mib], size); err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range []struct {
		name, want string
		do         func(ctx context.Context, b bench) error
	}{
		{"a byte that never came", "8388608 bytes, but 8388096 came", func(ctx context.Context, b bench) error {
			return errors.Join(b.Put(ctx, 0, img[:size-512]), b.Finish(ctx))
		}},
		{"a beginning that changed", "beginning changed", func(ctx context.Context, b bench) error {
			other := slices.Clone(img)
			other[1000] ^= 1
			return errors.Join(b.Put(ctx, 0, other), b.Finish(ctx))
		}},
		{"a piece behind the end", "ends at byte 8389120",
			func(ctx context.Context, b bench) error { return b.Put(ctx, size, img[:512]) }},
		{"a hole behind the end", "ends at byte",
			func(ctx context.Context, b bench) error { return b.Hole(ctx, size-512, 1024) }},
		{"a piece behind the disk", "larger than the disk",
			func(ctx context.Context, b bench) error { return b.Put(ctx, 16*mib, img[:512]) }},
		{"an offset that overflows", "a piece of the image",
			func(ctx context.Context, b bench) error { return b.Hole(ctx, 512, 1<<63-1) }},
		{"a negative offset", "a piece of the image",
			func(ctx context.Context, b bench) error { return b.Put(ctx, -512, img[:512]) }},
		{"half a sector", "not in whole sectors",
			func(ctx context.Context, b bench) error { return b.Put(ctx, 2*mib+256, img[:512]) }},
		{"half a sector of a hole", "not in whole sectors",
			func(ctx context.Context, b bench) error { return b.Hole(ctx, 2*mib, 100) }},
		{"keeping the head", "held back", func(ctx context.Context, b bench) error { return b.Keep(0, Block) }},
		{"keeping half a block", "not whole blocks",
			func(ctx context.Context, b bench) error { return b.Keep(2*mib, 512) }},
		{"ended", "context canceled", func(ctx context.Context, b bench) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return b.Put(ctx, 0, img)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.do(t.Context(), begun(t)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want %q", err, c.want)
			}
		})
	}
	b := newBench(t, fake.DiskSpec{Size: 16 * mib}, Options{})
	if err := b.Put(t.Context(), 0, img); err == nil || b.raw.Written() != 0 {
		t.Errorf("Put before Begin: %v", err)
	}
}

// TestEveryFaultOfTheDiskIsReported lets each single operation fail, one after the other, and in another run be short.
func TestEveryFaultOfTheDiskIsReported(t *testing.T) {
	const size = 6 * mib
	img := content(5, size)
	run := func(b bench) error {
		ctx := t.Context()
		if err := b.Begin(ctx, img[:mib], size); err != nil {
			return err
		}
		for off := int64(0); off < size; off += mib {
			if err := b.Put(ctx, off, img[off:off+mib]); err != nil {
				return err
			}
		}
		if err := b.Finish(ctx); err != nil {
			return err
		}
		return b.ReadBack(ctx, func(int64, int64) {})
	}
	for n := 0; ; n++ {
		b := newBench(t, fake.DiskSpec{Size: 16 * mib, NoPunch: n%2 == 1}, Options{Verify: true})
		seen, what := 0, ""
		b.raw.Fail(func(kind string, off, n2 int64) error {
			if seen++; seen-1 == n/2 {
				what = fmt.Sprintf("%s of %d at %d", kind, n2, off)
				return errors.New("medium error")
			}
			return nil
		})
		err := run(b)
		if what == "" {
			if err != nil {
				t.Errorf("without a fault: %v", err)
			}
			if n < 40 {
				t.Errorf("only %d operations: the test proved nothing", n)
			}
			return
		}
		if err == nil || !strings.Contains(err.Error(), "medium error") || step.AsError(err).Remedy == "" {
			t.Fatalf("%s failed, and the sink said %v", what, err)
		}
	}
}

// TestReadBackFindsEveryChange flips one bit anywhere in the written data, or leaves old data in a hole.
func TestReadBackFindsEveryChange(t *testing.T) {
	const size = 6 * mib
	img := content(6, size)
	b := newBench(t, fake.DiskSpec{Size: 16 * mib}, Options{Verify: true})
	if err := b.Begin(t.Context(), img[:mib], size); err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), 0, img); err != nil {
		t.Fatal(err)
	}
	if err := b.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(6, 6))
	low, high := b.Body()
	for n := 0; n < 50; {
		off := low + r.Int64N(high-low)
		if block := off / Block * Block; isZero(img[block:min(block+Block, high)]) {
			continue
		}
		n++
		old := []byte{img[off]}
		b.raw.WriteAt([]byte{old[0] ^ 1<<r.IntN(8)}, off)
		if err := b.ReadBack(t.Context(), func(int64, int64) {}); err == nil ||
			!strings.Contains(err.Error(), "reads back different") {
			t.Fatalf("a change at byte %d: %v", off, err)
		}
		b.raw.WriteAt(old, off)
	}
	if err := b.ReadBack(t.Context(), func(int64, int64) {}); err != nil {
		t.Error(err)
	}
	// Two sectors that changed places.
	at := 2 * mib
	for bytes.Equal(img[at:at+512], img[at+512:at+1024]) {
		at += 512
	}
	b.raw.WriteAt(slices.Concat(img[at+512:at+1024], img[at:at+512]), int64(at))
	if err := b.ReadBack(t.Context(), func(int64, int64) {}); err == nil {
		t.Error("sectors that changed places were not found")
	}
}

func TestPartition(t *testing.T) {
	const size = 3*mib + 700
	img := bytes.Repeat([]byte("partition"), size/9+1)[:size]
	clear(img[mib : 2*mib])
	b := newBench(t, fake.DiskSpec{Size: 8 * mib}, Options{Verify: true, Partition: true})
	if err := b.Begin(t.Context(), img[:mib], -1); err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), 0, img[:3*mib]); err != nil {
		t.Fatal(err)
	}
	if err := b.SetSize(size); err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), 3*mib, img[3*mib:]); err != nil {
		t.Fatal(err)
	}
	if err := b.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.ReadBack(t.Context(), func(int64, int64) {}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 8*mib)
	if _, err := b.raw.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[:size], img) || !isZero(got[size:3*mib+1024]) || got[3*mib+1024] != 0xa5 ||
		got[8*mib-1] != 0xa5 {
		t.Error("the partition does not hold the image and nothing else")
	}
}

func TestHolesAreFewAndLarge(t *testing.T) {
	var h holes
	var out []span
	add := func(off, n, at int64) {
		if s, full := h.add(span{off, n}, at); full {
			out = append(out, s)
		}
	}
	rest := func() (all []span) {
		for s, ok := h.first(); ok; s, ok = h.first() {
			all = append(all, s)
		}
		return all
	}
	// Neighbours in a strange order become one.
	for _, i := range []int64{5, 3, 4, 0, 2, 1, 9, 7, 8, 6} {
		add(i*Block, Block, 0)
	}
	if r := rest(); len(out) != 0 || len(r) != 1 || r[0] != (span{0, 10 * Block}) {
		t.Errorf("rest %v, out %v", r, out)
	}
	// Many of them stay bounded, and none is lost. The first to go is the one that did not grow for longest.
	const many = 3 * maxHoles
	for i := range int64(many) {
		add(i*2*Block, Block/2, i)
		if i == 1 { // the first grows again
			add(Block/2, Block/2, i)
			add(3*Block-Block/2, Block/2, 0)
		}
		if len(h.spans) > maxHoles {
			t.Fatalf("%d ranges are kept", len(h.spans))
		}
	}
	if len(out) == 0 || out[0].off == 0 {
		t.Errorf("the first given back: %v", out[:min(len(out), 1)])
	}
	sum := int64(0)
	for _, s := range append(out, rest()...) {
		sum += s.n
	}
	if want := int64(many)*Block/2 + Block; sum != want {
		t.Errorf("%d bytes of holes of %d", sum, want)
	}
	// A large one is not kept waiting, nor one that grows no more.
	add(0, large-Block, 7)
	if s, ok := h.ripe(7 + settling - 1); ok {
		t.Errorf("%v is ripe", s)
	}
	add(2*large, Block, 8)
	if s, ok := h.ripe(7 + settling); !ok || s != (span{0, large - Block}) {
		t.Errorf("ripe is %v, %v", s, ok)
	}
	add(large-Block, Block, 8)
	add(0, large-Block, 8)
	if s, ok := h.ripe(8); !ok || s != (span{0, large}) {
		t.Errorf("ripe is %v, %v", s, ok)
	}
}

// TestHolesAreMadeMeanwhile: what grows no more, or is large, is made while others put, and only then.
func TestHolesAreMadeMeanwhile(t *testing.T) {
	const size = 256 * mib
	b := newBench(t, fake.DiskSpec{Size: size}, Options{})
	img := content(5, 2*mib)
	if err := b.Begin(t.Context(), img[:mib], size); err != nil {
		t.Fatal(err)
	}
	zeroAt := func(off int64) bool {
		t.Helper()
		got := disk.Aligned(Block)
		if _, err := b.dev.ReadAt(got, off); err != nil {
			t.Fatal(err)
		}
		return isZero(got)
	}
	done, ended := make(chan struct{}), make(chan error, 1)
	var made [][2]int64
	go func() {
		ended <- b.MakeHoles(t.Context(), done, func(n, of int64) { made = append(made, [2]int64{n, of}) })
	}()
	hole := func(off, n int64) {
		t.Helper()
		if err := b.Hole(t.Context(), off, n); err != nil {
			t.Fatal(err)
		}
	}
	data := disk.Aligned(mib)
	copy(data, bytes.Repeat([]byte{7}, mib))
	put := func(from, to int64) {
		t.Helper()
		for ; from < to; from += mib {
			if err := b.Put(t.Context(), from, data); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := b.Put(t.Context(), 0, img[:mib]); err != nil {
		t.Fatal(err)
	}
	hole(4*mib, 8*mib)
	put(16*mib, 16*mib+settling-mib)
	if zeroAt(4 * mib) {
		t.Error("the hole was made while it could still grow")
	}
	put(16*mib+settling-mib, 16*mib+settling)
	kit.Eventually(t, time.Minute, "the hole is made before the end",
		func() bool { return zeroAt(4*mib) && zeroAt(12*mib-Block) })
	if zeroAt(12*mib) || zeroAt(4*mib-Block) {
		t.Error("more than the hole is zero")
	}
	hole(64*mib, large)
	kit.Eventually(t, time.Minute, "the large hole is made before the end",
		func() bool { return zeroAt(64*mib) && zeroAt(64*mib+large-Block) })
	// The hole grows after all; MakeHoles makes the rest after done.
	hole(mib, 3*mib)
	hole(12*mib, 4*mib)
	hole(16*mib+settling, 64*mib-16*mib-settling)
	hole(64*mib+large, size-64*mib-large)
	close(done)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if !zeroAt(4*mib-Block) || !zeroAt(12*mib) || !zeroAt(size-mib) {
		t.Error("what came later is not zero")
	}
	if n := len(made); n == 0 || made[n-1][0] != made[n-1][1] {
		t.Errorf("made %v", made)
	}
	if err := b.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestMakeHolesEnds: with the context, and when the disk fails.
func TestMakeHolesEnds(t *testing.T) {
	const size = 256 * mib
	img := content(6, 2*mib)
	for name, spec := range map[string]fake.DiskSpec{"the context ends": {Size: size},
		"the disk fails": {Size: size, NoPunch: true}} {
		b := newBench(t, spec, Options{})
		s := b.Sink
		if spec.NoPunch {
			s = New(stingy{b.dev, 100 * mib, 101 * mib}, s.disk, Options{})
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		if err := s.Begin(ctx, img[:mib], size); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- s.MakeHoles(ctx, nil, nil) }()
		why := errors.New("enough of it")
		if spec.NoPunch {
			if err := s.Hole(ctx, 64*mib, large); err != nil {
				t.Fatal(err)
			}
		} else {
			cancel(why)
		}
		err := <-ended
		if spec.NoPunch && !strings.Contains(fmt.Sprint(err), "were taken") || !spec.NoPunch && !errors.Is(err, why) {
			t.Errorf("%s: %v", name, err)
		}
		cancel(nil)
	}
}

// flushed is a device that counts its flushes, of which the first may fail.
type flushed struct {
	disk.Device
	n    atomic.Int64
	fail error
}

func (d *flushed) Sync() error {
	if d.n.Add(1) == 1 && d.fail != nil {
		return d.fail
	}
	return d.Device.Sync()
}

// TestFlushesMeanwhile: what has landed is flushed while more is put, and a flush that fails then fails the image, even
// if the next one would not.
func TestFlushesMeanwhile(t *testing.T) {
	for name, fail := range map[string]error{"well": nil, "the first fails": errors.New("no cache")} {
		t.Run(name, func(t *testing.T) {
			const size = 256 * mib
			b := newBench(t, fake.DiskSpec{Size: size}, Options{})
			d := &flushed{Device: b.dev}
			s := New(d, b.disk, Options{})
			if err := s.Begin(t.Context(), content(6, 2*mib)[:mib], size); err != nil {
				t.Fatal(err)
			}
			d.fail = fail
			d.n.Store(0) // without the old table's removal
			done, ended := make(chan struct{}), make(chan error, 1)
			go func() { ended <- s.MakeHoles(t.Context(), done, nil) }()
			data := disk.Aligned(16 * mib)
			copy(data, bytes.Repeat([]byte{7}, len(data)))
			put := func(n int64) {
				for ; n > 0; n -= int64(len(data)) { // how much was written counts, not where
					if err := s.Put(t.Context(), 64*mib, data); err != nil {
						t.Fatal(err)
					}
				}
			}
			put(flushEvery - 16*mib)
			if n := d.n.Load(); n != 0 {
				t.Errorf("%d flushes before there was enough", n)
			}
			put(16 * mib)
			kit.Eventually(t, time.Minute, "a flush", func() bool { return d.n.Load() == 1 })
			close(done)
			if err := <-ended; !errors.Is(err, fail) {
				t.Errorf("MakeHoles = %v, want %v", err, fail)
			}
		})
	}
}

// stingy is a device that takes less of a write than it was given, and says nothing.
type stingy struct {
	disk.Device
	from, to int64
}

func (d stingy) WriteAt(p []byte, off int64) (int, error) {
	if off >= d.from && off < d.to {
		return d.Device.WriteAt(p[:len(p)-512], off)
	}
	return d.Device.WriteAt(p, off)
}

// TestShortWrites: data and zeros of which the device takes a part without an error fail the image.
func TestShortWrites(t *testing.T) {
	img := mbrOf(8 * mib)
	for _, c := range []struct {
		name string
		do   func(ctx context.Context, s *Sink) error
	}{
		{"data", func(ctx context.Context, s *Sink) error { return s.Put(ctx, 4*mib, img[4*mib:5*mib]) }},
		{"a small hole", func(ctx context.Context, s *Sink) error {
			return errors.Join(s.Hole(ctx, 4*mib, 4096), s.Finish(ctx))
		}},
		{"a large hole", func(ctx context.Context, s *Sink) error {
			return errors.Join(s.Hole(ctx, 4*mib, mib), s.Finish(ctx))
		}},
	} {
		b := newBench(t, fake.DiskSpec{Size: 12 * mib, NoPunch: true}, Options{})
		s := New(stingy{b.dev, 4 * mib, 6 * mib}, b.Sink.disk, Options{})
		if err := s.Begin(t.Context(), img[:mib], int64(len(img))); err != nil {
			t.Fatal(err)
		}
		err := c.do(t.Context(), s)
		if err == nil || !strings.Contains(err.Error(), "bytes") || !strings.Contains(err.Error(), "were taken") ||
			step.AsError(err).Remedy == "" {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// mbrOf is an image without a block of zeros.
func mbrOf(size int) []byte {
	b := bytes.Repeat([]byte{7}, size)
	copy(b[440:512], content(1, 2*mib)[440:512])
	binary.LittleEndian.PutUint32(b[446+12:], uint32(size/512-2048))
	return b
}
