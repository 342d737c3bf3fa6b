package chunked

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/image/trace"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
)

const (
	fetchers = 8 // concurrent fetches, if memory allows; more for further cores

	headSize = disk.HeadSize // part of the image that is checked before the disk is touched

	reportEvery = 200 * time.Millisecond
)

// sizes returns the sizes of the memory users. The index of a very large disk takes so much memory itself that less is
// left for the rest. A member of a swarm has its own memory for packed chunks: here only block lists need some. For
// each further core there is memory for a chunk that is unpacked, and for a packed one.
func sizes(x *index.Index, swarm bool, further int) (s struct{ pool, unpackers, lists, lookers int }) {
	cores := runtime.GOMAXPROCS(0)
	s.pool, s.unpackers, s.lists, s.lookers = 8<<20, 4, 2, min(8+further, 2*cores)
	switch {
	case swarm:
		s.pool, s.unpackers, s.lists, s.lookers = index.MaxStored, 2, 1, 1
	case len(x.Chunks) > 1<<17: // 512 GiB: 5 MiB of index
		s.pool, s.unpackers = 2*index.MaxStored, 2
	}
	s.unpackers = min(s.unpackers+further, max(2, 1+cores))
	if !swarm {
		s.pool += further * index.MaxStored
	}
	return s
}

// Plan is one published image and one disk. Call Start, then Survey, then Run, once each.
type Plan struct {
	Index      *index.Index
	Sum        [32]byte // of the index's bytes
	Objects    Objects
	Disk       disk.Device
	Difference Difference
	// Join, called by Start, makes this agent a member of a swarm; it may return nil. Nil: no swarm. Read is valid
	// until Run returns.
	Join func(o Objects, read Read) Member
	Log  *slog.Logger
	Rec  *trace.Recorder // nil: none
	// Further is for how many cores beyond four there is memory.
	Further int
	// Progress is called with the bytes of data on the disk, and the total. Phase is "write", or "zero" when only zeros
	// are left to be written. Calls are sequential.
	Progress func(phase string, done, total int64)

	pool       *bufferPool
	unpackers  int
	looking    int     // goroutines that compare with the disk
	objects    Objects // with counting
	lists      *lists
	first      []byte // chunk 0, unpacked
	firstTaken atomic.Bool
	compare    compare
	member     Member
	sink       Sink
	order      order
	fetched    atomic.Int64
	fetching   step.Clock
	full       atomic.Int32 // fetchers that wait for memory, or with a chunk
	kept       atomic.Int64
	total      int64

	mu       sync.Mutex
	there    []uint64 // bits of blocks on the disk that are not zeros, by chunk; kept for a member
	done     int64
	reported time.Time
}

// Counts of a plan.
type Counts struct {
	Fetched int64 // bytes of stored objects from the origin
	Kept    int64 // bytes of the disk that were already equal

	Fetching  time.Duration // with at least one fetch in progress
	Unpacking time.Duration // as if all cores were always at it
}

// Counts may be called at any time.
func (p *Plan) Counts() Counts {
	cores := min(p.unpackers, runtime.GOMAXPROCS(0))
	return Counts{
		Fetched: p.fetched.Load(), Kept: p.kept.Load(),
		Fetching:  p.fetching.Total(),
		Unpacking: p.Rec.Busy(trace.UnpackPieces) * time.Duration(p.unpackers) / time.Duration(max(1, cores)),
	}
}

// Compares reports, after Survey, whether the disk probably holds part of the image.
func (p *Plan) Compares() bool { return p.compare.on }

// Start returns the image's beginning, its first MiB or all of a smaller one. It decides the place of the image: Disk
// may be replaced before Survey by a device whose offsets are the image's.
func (p *Plan) Start(ctx context.Context) ([]byte, error) {
	p.Log = cmp.Or(p.Log, slog.New(slog.DiscardHandler))
	if p.Index.Size > p.Disk.Size() {
		return nil, step.Failf("use a smaller image or a larger disk",
			"the image is larger than the disk: %d bytes, the disk has %d", p.Index.Size, p.Disk.Size())
	}
	p.objects = counting{p}
	p.total = p.Index.Data()
	p.first = disk.Aligned(int(p.Index.ChunkLen(0)))
	if p.Join != nil {
		p.member = p.Join(p.objects, p.read)
	}
	if p.member == nil { // a member fetches from others as well
		p.Rec.Follow(&p.fetching, func() trace.Stage {
			if p.full.Load() > 0 {
				return trace.Output
			}
			return trace.Input
		})
	}
	n := sizes(p.Index, p.member != nil, p.Further)
	p.pool, p.unpackers, p.looking = newBufferPool(n.pool), n.unpackers, n.lookers
	p.lists = newLists(p.Index, p.objects, p.pool, n.lists)
	if err := p.getFirst(ctx); err != nil {
		return nil, err
	}
	return p.first[:min(headSize, len(p.first))], nil
}

func (p *Plan) getFirst(ctx context.Context) error {
	if p.Index.Chunks[0].Len == 0 {
		return nil // zeros: without a table, which the sink will refuse
	}
	if p.member != nil {
		if err := p.member.First(ctx, 0, p.first); err != nil {
			return fmt.Errorf("chunk 0 of the image: %w", err)
		}
		return nil
	}
	c, err := p.fetch(ctx, 0)
	if err != nil {
		return err
	}
	defer p.pool.give(c.stored)
	return c.unpack(p.first)
}

// counting counts fetches and their bytes.
type counting struct{ p *Plan }

func (c counting) Object(ctx context.Context, o index.Object, dst []byte) error {
	c.p.fetching.Enter()
	defer c.p.fetching.Leave()
	err := c.p.Objects.Object(context.WithValue(ctx, clockKey{}, &c.p.fetching), o, dst)
	if err == nil {
		c.p.fetched.Add(o.Len)
	}
	return err
}

// packed is a packed chunk in the buffer pool's memory.
type packed struct {
	i      int
	stored []byte
}

func (p *Plan) fetch(ctx context.Context, i int) (packed, error) {
	o := p.Index.Chunks[i]
	p.full.Add(1)
	stored, err := p.pool.take(ctx, int(o.Len))
	p.full.Add(-1)
	if err != nil {
		return packed{}, err
	}
	trace.Of(ctx).Spent(trace.Output)
	if err := p.objects.Object(ctx, o, stored); err != nil {
		p.pool.give(stored)
		return packed{}, fmt.Errorf("chunk %d of the image: %w", i, err)
	}
	return packed{i, stored}, nil
}

func (c packed) unpack(dst []byte) error {
	if err := index.DecodeChunk(c.stored, dst); err != nil {
		return fmt.Errorf("chunk %d of the image: %w", c.i, err)
	}
	return nil
}

// task is a chunk to be fetched. Bits of blocks mark the blocks to be written. Sum is of the chunk's entries in the
// block list, if that was read: the list itself is far larger, and need not stay in memory.
type task struct {
	i      int
	blocks uint64
	zeros  uint64 // likewise, the zero blocks, if the block list was read
	listed bool
	sum    [sha256.Size]byte
}

const allBlocks = ^uint64(0)

// Run writes the image to the disk. The sink has had Start's result, and the old partition table is gone.
func (p *Plan) Run(outer context.Context, s Sink) error {
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(nil)
	w := &workers{fail: cancel}
	p.sink = s
	p.order = order{x: p.Index, at: 1} // chunk 0 is in memory
	w.run(1, func() error { return p.holes(ctx) })
	written := make(chan struct{})
	zeros := workers{fail: cancel}
	zeros.run(1, func() error { return s.MakeHoles(p.Rec.Track(trace.Zeros).In(ctx), written, p.reportZeros) })
	if p.member == nil {
		p.runAlone(ctx, w)
	} else {
		p.runAmong(ctx, w, p.member)
	}
	w.Wait()
	p.fetching.Watch(nil)
	close(written)
	zeros.Wait()
	if outer.Err() != nil {
		return context.Cause(outer)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	p.report(true)
	return nil
}

// workers are goroutines; the first error ends the others through their context.
type workers struct {
	sync.WaitGroup
	fail context.CancelCauseFunc
}

// run starts n of them. The returned group waits only for these.
func (w *workers) run(n int, f func() error) *sync.WaitGroup {
	var these sync.WaitGroup
	these.Add(n)
	for range n {
		w.Go(func() {
			defer these.Done()
			if err := f(); err != nil {
				w.fail(err)
			}
		})
	}
	return &these
}

// runAlone starts the three stages. Each ends after the previous one.
func (p *Plan) runAlone(ctx context.Context, w *workers) {
	queue := 0
	if p.compare.on {
		queue = 64
	}
	wanted := make(chan task, queue)
	looking := w.run(p.lookers(), func() error {
		return p.look(ctx, func(t task) {
			select {
			case wanted <- t:
			case <-ctx.Done():
			}
		})
	})
	w.Go(func() { looking.Wait(); close(wanted) })

	type got struct {
		task
		packed
	}
	arrived := make(chan got)
	fetching := w.run(fetchers+p.Further, func() error {
		track := p.Rec.Track(trace.Digest)
		ctx := track.In(ctx)
		for t := range wanted {
			track.Spent(trace.Input)
			c, err := p.fetch(ctx, t.i)
			if err != nil {
				return err
			}
			p.full.Add(1)
			select {
			case arrived <- got{t, c}:
			case <-ctx.Done():
				return nil
			}
			p.full.Add(-1)
			track.Spent(trace.Output)
		}
		return nil
	})
	w.Go(func() { fetching.Wait(); close(arrived) })

	w.run(p.unpackers, func() error {
		mem := buffer{}
		track := p.Rec.Track(trace.UnpackPieces, trace.ZeroTest, trace.Write)
		ctx := track.In(ctx)
		if err := p.takeFirst(ctx); err != nil {
			return err
		}
		for c := range arrived {
			track.Spent(trace.Input)
			raw := mem.of(p.Index.ChunkLen(c.task.i))
			err := c.unpack(raw)
			track.Spent(trace.UnpackPieces)
			p.pool.give(c.stored)
			if err == nil {
				err = p.put(ctx, c.task, raw)
			}
			if err != nil {
				return err
			}
		}
		track.Spent(trace.Input)
		return nil
	})
}

// runAmong lets a member of a swarm choose what to fetch next, and from whom.
func (p *Plan) runAmong(ctx context.Context, w *workers, m Member) {
	var mu sync.Mutex
	tasks := map[int]task{}
	looking := w.run(p.lookers(), func() error {
		return p.look(ctx, func(t task) {
			mu.Lock()
			tasks[t.i] = t
			mu.Unlock()
			m.Want(t.i)
		})
	})
	w.Go(func() { looking.Wait(); m.Complete() })
	next := func() (task, bool) {
		for ctx.Err() == nil {
			i, ok := m.Next(ctx)
			mu.Lock()
			if !ok { // chunks that the member missed
				for i = range tasks {
					break
				}
			}
			t, known := tasks[i]
			delete(tasks, i)
			mu.Unlock()
			if known || !ok {
				return t, known
			}
		}
		return task{}, false
	}
	w.run(p.unpackers, func() error {
		mem := buffer{}
		track := p.Rec.Track(trace.Fetch, trace.ZeroTest, trace.Write)
		if err := p.takeFirst(track.In(ctx)); err != nil {
			return err
		}
		for {
			t, ok := next()
			if !ok {
				return nil
			}
			raw := mem.of(p.Index.ChunkLen(t.i))
			if err := m.Chunk(ctx, t.i, raw); err != nil {
				return fmt.Errorf("chunk %d of the image: %w", t.i, err)
			}
			track.Spent(trace.Fetch)
			if err := p.put(track.In(ctx), t, raw); err != nil {
				return err
			}
		}
	})
}

// buffer is memory for a chunk, allocated on first use.
type buffer struct{ mem []byte }

func (b *buffer) of(n int64) []byte {
	if b.mem == nil {
		b.mem = disk.Aligned(index.ChunkSize)
	}
	return b.mem[:n]
}

func (p *Plan) lookers() int {
	if p.compare.on {
		return p.looking
	}
	return 1
}

// look decides for each chunk what must be fetched.
func (p *Plan) look(ctx context.Context, want func(task)) error {
	l := looker{p: p}
	var track *trace.Track
	if p.compare.on {
		track = p.Rec.Track(trace.Compare)
	}
	for ctx.Err() == nil {
		i, ok := p.order.next()
		if !ok {
			break
		}
		t, err := l.look(ctx, i)
		if err != nil {
			return err
		}
		track.Spent(trace.Compare)
		if t.blocks == 0 {
			p.finished(i, t.zeros)
		} else {
			want(t)
			track.Spent(trace.Output)
		}
	}
	return nil
}

// takeFirst writes chunk 0, which is in memory already, at its first call.
func (p *Plan) takeFirst(ctx context.Context) error {
	if p.firstTaken.Swap(true) || p.Index.Chunks[0].Len == 0 {
		return nil
	}
	l := looker{p: p}
	t, err := l.look(ctx, 0)
	if err != nil {
		return err
	}
	err = p.put(ctx, t, p.first)
	p.first = nil
	return err
}

// put writes the blocks of a chunk that are not on the disk yet.
func (p *Plan) put(ctx context.Context, t task, raw []byte) error {
	if err := t.fits(raw); err != nil {
		return err
	}
	base := int64(t.i) * index.ChunkSize
	for at := 0; at < len(raw); {
		n := 0
		for at+n < len(raw) && t.blocks>>((at+n)/index.BlockSize)&1 == 1 {
			n += index.BlockSize
		}
		if n == 0 {
			at += index.BlockSize
			continue
		}
		end := min(at+n, len(raw))
		if err := p.sink.Put(ctx, base+int64(at), raw[at:end]); err != nil {
			return err
		}
		at = end
	}
	p.finished(t.i, zeros(raw))
	trace.Of(ctx).Spent(trace.ZeroTest)
	return nil
}

// fits verifies all blocks of a chunk against the digests of its block list: with the list of another image, the disk
// would have been compared with the wrong content, and blocks that the list calls zero or equal are not written. For a
// chunk that is not fetched only the list is known.
func (t task) fits(raw []byte) error {
	if !t.listed {
		return nil
	}
	list := make([]byte, 0, index.ChunkSize/index.BlockSize*index.SumSize)
	if sha256.Sum256(index.AppendSums(list, raw)) == t.sum {
		return nil
	}
	return &images.Error{
		Err: fmt.Errorf("the block list of the image does not fit its chunk %d, at byte %d of the disk", t.i,
			int64(t.i)*index.ChunkSize),
		Remedy: "publish the image again, or set image_difference to never",
	}
}

// zeros returns the zero blocks of a chunk as bits.
func zeros(raw []byte) (bits uint64) {
	for b := range index.BlocksOf(int64(len(raw))) {
		if index.IsZero(raw[b*index.BlockSize : min((b+1)*index.BlockSize, len(raw))]) {
			bits |= 1 << b
		}
	}
	return bits
}

// finished records that a chunk is on the disk, except for blocks of zeros, which become holes later.
func (p *Plan) finished(i int, zeros uint64) {
	if p.member != nil {
		p.mu.Lock()
		if p.there == nil {
			p.there = make([]uint64, len(p.Index.Chunks))
		}
		p.there[i] = ^zeros
		p.mu.Unlock()
		p.member.Have(i)
	}
	p.mu.Lock()
	p.done += p.Index.ChunkLen(i)
	p.mu.Unlock()
	p.report(false)
}

func (p *Plan) report(now bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tell("write", p.done, p.total, now)
}

// reportZeros reports progress when only zeros are left.
func (p *Plan) reportZeros(n, of int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tell("zero", n, of, false)
}

func (p *Plan) tell(phase string, done, total int64, now bool) {
	if p.Progress == nil || !now && time.Since(p.reported) < reportEvery {
		return
	}
	p.reported = time.Now()
	p.Progress(phase, done, total)
}

// holes passes on the chunks of zeros, those without an object.
func (p *Plan) holes(ctx context.Context) error {
	for i, c := range p.Index.Chunks {
		if c.Len == 0 {
			if err := p.sink.Hole(ctx, int64(i)*index.ChunkSize, p.Index.ChunkLen(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// read implements Read for a member.
func (p *Plan) read(i int, off int64, dst []byte) error {
	p.mu.Lock()
	data := uint64(0)
	if p.there != nil {
		data = p.there[i]
	}
	p.mu.Unlock()
	if data == 0 {
		return fmt.Errorf("chunk %d of the image is not on the disk yet", i)
	}
	base := int64(i)*index.ChunkSize + off
	sector := int64(p.Disk.SectorSize())
	if _, err := p.Disk.ReadAt(dst[:int64(len(dst))/sector*sector], base); err != nil {
		return fmt.Errorf("read back chunk %d of the image: %w", i, err)
	}
	p.sink.Held(base, dst)
	for b := 0; b*index.BlockSize < len(dst); b++ {
		if data>>(off/index.BlockSize+int64(b))&1 == 0 { // a hole is made later
			clear(dst[b*index.BlockSize : min((b+1)*index.BlockSize, len(dst))])
		}
	}
	return nil
}

// order yields each chunk with an object once.
type order struct {
	x  *index.Index
	mu sync.Mutex
	at int
}

func (o *order) next() (int, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for ; o.at < len(o.x.Chunks); o.at++ {
		if o.x.Chunks[o.at].Len > 0 {
			o.at++
			return o.at - 1, true
		}
	}
	return 0, false
}
