package chunked

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/image/sink"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/index"
)

const (
	mib   = 1 << 20
	chunk = index.ChunkSize
	block = index.BlockSize
)

// content makes a whole-disk image: data and zeros of many lengths.
func content(seed uint64, size int) []byte {
	b := make([]byte, size)
	r := rand.New(rand.NewPCG(seed, 1))
	for off := 0; off < size; {
		n := min(512*(1+r.IntN(2000)), size-off)
		fill(b[off:off+n], r)
		off += n + 512*r.IntN(3000)
		if r.IntN(8) == 0 {
			off += chunk // whole chunks of zeros
		}
	}
	return withTable(b)
}

// full makes an image without a block of zeros.
func full(seed uint64, size int) []byte {
	b := make([]byte, size)
	fill(b, rand.New(rand.NewPCG(seed, 1)))
	return withTable(b)
}

// fill makes data that packs to about half.
func fill(b []byte, r *rand.Rand) {
	source := rand.NewChaCha8([32]byte{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
	for ; len(b) > 0; b = b[min(512, len(b)):] {
		part := b[:min(256, len(b))]
		source.Read(part)
		part[0] |= 1
	}
}

func withTable(b []byte) []byte {
	clear(b[440:512])
	e := b[446:]
	e[4] = 0x83
	binary.LittleEndian.PutUint32(e[8:], 2048)
	binary.LittleEndian.PutUint32(e[12:], uint32(len(b)/512-2048))
	b[510], b[511] = 0x55, 0xaa
	return b
}

// store is a server of objects in memory.
type store struct {
	mu      sync.Mutex
	objects map[[32]byte][]byte
	asked   map[[32]byte]int
	fail    func(o index.Object) error
}

var encoder = sync.OnceValue(func() *zstd.Encoder {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithZeroFrames(true),
		zstd.WithSingleSegment(true))
	if err != nil {
		panic(err)
	}
	return w
})

func (s *store) add(raw []byte) index.Object {
	if index.IsZero(raw) {
		return index.Object{}
	}
	stored := encoder().EncodeAll(raw, nil)
	o := index.Of(stored)
	s.objects[o.Sum] = stored
	return o
}

// publish makes the index and the objects of an image.
func publish(img []byte, into ...*store) (*index.Index, *store) {
	s := &store{objects: map[[32]byte][]byte{}, asked: map[[32]byte]int{}}
	if len(into) > 0 {
		s = into[0]
	}
	x := &index.Index{Size: int64(len(img)), SHA256: sha256.Sum256(img), Sector: 512}
	var list []byte
	for off := 0; off < len(img); off += chunk {
		c := img[off:min(off+chunk, len(img))]
		x.Chunks = append(x.Chunks, s.add(c))
		for at := 0; at < len(c); at += block {
			sum := index.SumBlock(c[at:min(at+block, len(c))])
			list = append(list, sum[:]...)
		}
		if len(x.Chunks)%index.ListChunks == 0 || off+chunk >= len(img) {
			x.Lists = append(x.Lists, s.add(list))
			list = nil
		}
	}
	return x, s
}

func (s *store) Object(ctx context.Context, o index.Object, dst []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[o.Sum]++
	if s.fail != nil {
		if err := s.fail(o); err != nil {
			return err
		}
	}
	b, ok := s.objects[o.Sum]
	if !ok {
		return fmt.Errorf("no object %s", o)
	}
	if len(dst) != len(b) {
		return fmt.Errorf("%d bytes of memory for %d", len(dst), len(b))
	}
	copy(dst, b)
	return nil
}

// copied returns a copy of publish's result, to be damaged.
func copied(x *index.Index, s *store) (*index.Index, *store) {
	own := *x
	own.Chunks, own.Lists = slices.Clone(x.Chunks), slices.Clone(x.Lists)
	return &own, &store{objects: maps.Clone(s.objects), asked: map[[32]byte]int{}}
}

// machine is one disk, dirty with 0xA5.
type machine struct {
	m     *fake.Disks
	d     disk.Disk
	raw   *fake.Disk
	log   bytes.Buffer
	facts step.Facts
}

func newMachine(t testing.TB, spec fake.DiskSpec) *machine {
	t.Helper()
	m := &machine{m: fake.NewDisks(t.TempDir())}
	spec.Name, spec.Serial, spec.Fill = "vda", "one", 0xa5
	m.raw = m.m.Add(spec)
	list, err := disk.List(t.Context(), m.m.Root())
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	m.d = list[0]
	return m
}

// write brings an image onto the disk as write_image does, but for the commit.
func (m *machine) write(ctx context.Context, p *Plan) (*sink.Sink, error) {
	dev, err := m.m.OpenExclusive(ctx, "/dev/vda")
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	p.Disk, p.Log = dev, slog.New(slog.NewTextHandler(&m.log, nil))
	start, err := p.Start(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.Survey(ctx); err != nil {
		return nil, err
	}
	s := sink.New(dev, m.d, sink.Options{Look: p.Compares()})
	if err := s.Begin(ctx, start, p.Index.Size); err != nil {
		return nil, err
	}
	if err := p.Run(ctx, s); err != nil {
		return nil, err
	}
	if err := s.Finish(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (m *machine) commit(t testing.TB, s *sink.Sink) {
	t.Helper()
	pending, err := s.Pending()
	if err != nil {
		t.Fatal(err)
	}
	disk.SetPending(&m.facts, pending)
	if _, err := disk.Commit(t.Context(), &m.facts, m.m, nil); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) mustHold(t testing.TB, img []byte) {
	t.Helper()
	if off := m.raw.Differs(img, 0); off >= 0 {
		got, want := make([]byte, 8), img[off:]
		if _, err := m.raw.ReadAt(got, off); err != nil {
			t.Fatal(err)
		}
		t.Fatalf("byte %d and following: the disk is not the image (first bytes %x, want %x)",
			off, got, want[:min(8, len(want))])
	}
}

// deploy writes and commits, and holds that the disk is the image.
func (m *machine) deploy(t testing.TB, p *Plan, img []byte) *sink.Sink {
	t.Helper()
	s, err := m.write(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	m.commit(t, s)
	m.mustHold(t, img)
	return s
}

func TestDiskIsTheImage(t *testing.T) {
	for _, size := range []int{chunk, 2*mib + 512, 3*chunk - 512, 4*chunk + 17*block + 1000} {
		img := content(uint64(size), size)
		good, objects := publish(img)
		for _, c := range []struct {
			spec fake.DiskSpec
			how  Difference
		}{{fake.DiskSpec{}, Auto}, {fake.DiskSpec{}, Always}, {fake.DiskSpec{NoPunch: true}, Always},
			{fake.DiskSpec{LyingPunch: true}, Never}} {
			spec, how := c.spec, c.how
			t.Run(fmt.Sprintf("%d %s punch=%t lies=%t", size, how, !spec.NoPunch, spec.LyingPunch), func(t *testing.T) {
				x, s := copied(good, objects)
				spec.Size = (int64(size) + 5*mib + 511) / 512 * 512
				m := newMachine(t, spec)
				p := &Plan{Index: x, Objects: s, Difference: how}
				m.deploy(t, p, img)
				if got := p.Counts().Fetched; how == Never && got != storedChunks(x) {
					t.Errorf("fetched %d bytes, the chunks have %d", got, storedChunks(x))
				}
				// A second run, onto the present content.
				p = &Plan{Index: x, Objects: s, Difference: how}
				before := m.raw.Written()
				m.deploy(t, p, img)
				if how == Always {
					if n := m.raw.Written() - before; n > 5*mib+3*block {
						t.Errorf("%d bytes were written a second time", n)
					}
				}
			})
		}
	}
}

// storedChunks is how many bytes are fetched for a whole image.
func storedChunks(x *index.Index) (n int64) {
	for _, c := range x.Chunks {
		n += c.Len
	}
	return n
}

func TestFaultsOfThePublisher(t *testing.T) {
	img, old := full(1, 5*chunk), full(9, 24*mib)
	good, objects := publish(img)
	gone := errors.New("the server has no such file")
	for _, c := range []struct {
		name  string
		how   Difference
		spoil func(x *index.Index, s *store)
		want  string
		touch bool
	}{
		{"a chunk is missing", Auto, func(x *index.Index, s *store) {
			s.fail = func(o index.Object) error {
				if o == x.Chunks[4] {
					return gone
				}
				return nil
			}
		}, "chunk 4 of the image: the server has no such file", true},
		{"the first chunk is missing", Auto, func(x *index.Index, s *store) {
			s.fail = func(o index.Object) error {
				if o == x.Chunks[0] {
					return gone
				}
				return nil
			}
		}, "chunk 0 of the image: the server has no such file", false},
		{"a chunk that is something else", Auto, func(x *index.Index, s *store) {
			x.Chunks[2] = index.Of([]byte("rubbish"))
			s.objects[x.Chunks[2].Sum] = []byte("rubbish")
		}, "chunk 2 of the image", true},
		{"a chunk of another length", Auto, func(x *index.Index, s *store) { x.Chunks[2] = s.add(img[:chunk-1]) },
			"chunk 2 of the image", true},
		{"the list is missing", Always, func(x *index.Index, s *store) { delete(s.objects, x.Lists[0].Sum) },
			"block list 0 of the image", true},
		{"the list of another image", Always, func(x *index.Index, s *store) {
			other, _ := publish(full(2, 5*chunk), s)
			x.Lists = other.Lists
		}, "the block list of the image does not fit its chunk", true},
		{"a list that is too short", Always, func(x *index.Index, s *store) {
			other, _ := publish(full(2, 4*chunk), s)
			x.Lists = other.Lists
		}, "block list 0 of the image", true},
		{"a table at the wrong place", Auto,
			func(x *index.Index, s *store) { x.Chunks[0] = s.add(make([]byte, chunk)[:chunk:chunk]) }, "partition",
			false},
		{"larger than the disk", Auto, func(x *index.Index, s *store) { x.Size = 1 << 40 }, "larger than the disk",
			false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, s := copied(good, objects)
			c.spoil(x, s)
			m := newMachine(t, fake.DiskSpec{Size: 24 * mib})
			m.raw.Lay(old, 0)
			_, err := m.write(t.Context(), &Plan{Index: x, Objects: s, Difference: c.how})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error = %v, want %q", err, c.want)
			}
			head := make([]byte, mib)
			if _, err := m.raw.ReadAt(head, 0); err != nil {
				t.Fatal(err)
			}
			if !c.touch && m.raw.Differs(old, 0) >= 0 {
				t.Error("the disk was touched")
			}
			if c.touch && disk.HasTable(head, 512) {
				t.Error("the disk looks bootable")
			}
			x, s = copied(good, objects)
			m.deploy(t, &Plan{Index: x, Objects: s}, img)
		})
	}
}

func TestMissingListIsNoFaultOfAnAutomaticChoice(t *testing.T) {
	img := full(1, 5*chunk)
	x, s := publish(img)
	delete(s.objects, x.Lists[0].Sum)
	m := newMachine(t, fake.DiskSpec{Size: 24 * mib})
	m.deploy(t, &Plan{Index: x, Objects: s}, img)
	if !strings.Contains(m.log.String(), "the whole disk is written") {
		t.Errorf("log = %s", &m.log)
	}
}

func TestCancelEndsSoon(t *testing.T) {
	good, objects := publish(full(1, 10*chunk))
	for at := 1; at < 10; at += 2 {
		x, s := copied(good, objects)
		ctx, cancel := context.WithCancelCause(t.Context())
		s.fail = func(o index.Object) error {
			if o == x.Chunks[at] {
				cancel(errors.New("enough"))
			}
			return nil
		}
		m := newMachine(t, fake.DiskSpec{Size: 64 * mib})
		if _, err := m.write(ctx, &Plan{Index: x, Objects: s}); err == nil || err.Error() != "enough" {
			t.Errorf("error = %v", err)
		}
	}
}

func TestProgressRises(t *testing.T) {
	img := content(3, 20*chunk)
	x, s := publish(img)
	m := newMachine(t, fake.DiskSpec{Size: 100 * mib})
	var last, total int64
	m.deploy(t, &Plan{Index: x, Objects: s, Progress: func(phase string, done, of int64) {
		if phase != "write" {
			return
		}
		if done < last {
			t.Errorf("progress fell from %d to %d", last, done)
		}
		last, total = done, of
	}}, img)
	if last != x.Data() || total != x.Data() {
		t.Errorf("last progress %d of %d, the image has %d", last, total, x.Data())
	}
}

// TestSizes holds what the memory users of a plan may take together: with the rest of the writer it stays below what
// image.MemoryFor returns.
func TestSizes(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	large := &index.Index{Chunks: make([]index.Object, 1<<17+1)}
	for _, c := range []struct{ cores, further, unpackers, lookers, pool int }{
		{1, 0, 2, 2, 8 << 20}, {2, 0, 3, 4, 8 << 20}, {4, 0, 4, 8, 8 << 20}, {16, 0, 4, 8, 8 << 20},
		{16, 12, 16, 20, 8<<20 + 12*index.MaxStored}, {6, 12, 7, 12, 8<<20 + 12*index.MaxStored},
	} {
		runtime.GOMAXPROCS(c.cores)
		s := sizes(&index.Index{}, false, c.further)
		if s.unpackers != c.unpackers || s.lookers != c.lookers || s.pool != c.pool {
			t.Errorf("%d cores, memory for %d further: %+v, want %+v", c.cores, c.further, s, c)
		}
		for name, s := range map[string]struct{ pool, unpackers, lists, lookers int }{
			"alone": s, "in a swarm": sizes(&index.Index{}, true, c.further), "large": sizes(large, false, c.further),
		} {
			most := 34<<20 + c.further*12<<20
			if took := s.pool + s.unpackers*index.ChunkSize + s.lookers*lookSize; took > most {
				t.Errorf("%d cores, memory for %d further, %s: %d bytes, at most %d: %+v", c.cores, c.further, name, took,
					most, s)
			}
		}
	}
}

// verified serves one object as a server does.
type verified []byte

func (v verified) Object(ctx context.Context, o index.Object, dst []byte) error {
	copy(dst, v)
	return verify(ctx, o, dst)
}

// TestDigestIsNoTimeOfTheNetwork: the clock of the fetches stands while an object is checked, so that a slow digest is
// not taken for a slow link.
func TestDigestIsNoTimeOfTheNetwork(t *testing.T) {
	data := verified("an object")
	p := &Plan{Objects: data}
	var runs []bool
	p.fetching.Watch(func(running bool) { runs = append(runs, running) })
	o := index.Object{Len: int64(len(data)), Sum: sha256.Sum256(data)}
	if err := (counting{p}).Object(t.Context(), o, make([]byte, len(data))); err != nil {
		t.Fatal(err)
	}
	if want := []bool{true, false, true, false}; !slices.Equal(runs, want) {
		t.Errorf("the clock ran: %v, want %v", runs, want)
	}
}
