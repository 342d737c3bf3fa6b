package chunked

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
)

const (
	fetchers = 8       // objects asked for at once, when there is room for them
	maxHole  = 1 << 30 // longer ones are made in several requests, so that progress is seen

	headSize = disk.HeadSize // how much of the image is looked at before the disk is touched

	reportEvery = 200 * time.Millisecond
)

// sizes of what takes memory. An index of a very large disk takes so much itself that less is left for the rest.
func sizes(x *index.Index) (room, unpackers int) {
	if len(x.Chunks) > 1<<17 { // 512 GiB: 5 MiB of index
		return 2 * index.MaxStored, 2
	}
	return 3 * index.MaxStored, min(4, 1+runtime.GOMAXPROCS(0))
}

// Plan is one published image and one disk. Start is called first, then Run, once each.
type Plan struct {
	Index      *index.Index
	Sum        [32]byte // of the index's bytes
	Objects    Objects
	Disk       disk.Device
	Difference Difference
	Swarm      Swarm // nil: none
	Log        *slog.Logger
	// Progress is told how many bytes of data are on the disk, of how many. Phase is "write", or "zero" when only zeros are left to be
	// written. Calls come one after the other.
	Progress func(phase string, done, total int64)

	room      *Room
	unpackers int
	lists     *Lists
	first     []byte // chunk 0, unpacked
	compare   compare
	member    Member
	sink      Sink
	order     order
	fetched   atomic.Int64
	kept      atomic.Int64
	total     int64

	mu       sync.Mutex
	done     int64
	zeroed   int64
	zeros    int64
	reported time.Time
}

// Counts is what a plan did.
type Counts struct {
	Fetched int64 // bytes of stored objects from the origin
	Kept    int64 // bytes of the disk that were what they should be already
}

// Counts may be asked for at any time.
func (p *Plan) Counts() Counts { return Counts{Fetched: p.fetched.Load(), Kept: p.kept.Load()} }

// Compares tells after Start whether the disk is thought to hold some of the image.
func (p *Plan) Compares() bool { return p.compare.on }

// Start gets the image's beginning, its first MiB or all of a smaller one, and finds out whether the disk holds some of the image already. The disk
// is only read.
func (p *Plan) Start(ctx context.Context) ([]byte, error) {
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if p.Index.Size > p.Disk.Size() {
		return nil, step.Failf("use a smaller image or a larger disk", "the image is larger than the disk: %d bytes, the disk has %d", p.Index.Size, p.Disk.Size())
	}
	n, unpackers := sizes(p.Index)
	p.room, p.unpackers = NewRoom(n), unpackers
	p.lists = newLists(p.Index, counting{p.Objects, &p.fetched}, p.room, 2)
	p.total = p.Index.Data()
	p.first = disk.Aligned(int(p.Index.ChunkLen(0)))
	if err := p.getFirst(ctx); err != nil {
		return nil, err
	}
	if err := p.survey(ctx); err != nil {
		return nil, err
	}
	return p.first[:min(headSize, len(p.first))], nil
}

func (p *Plan) getFirst(ctx context.Context) error {
	if p.Index.Chunks[0].Len == 0 {
		return nil // zeros: there is no table in it, which the sink will say
	}
	c, err := p.origin().Chunk(ctx, 0)
	if err != nil {
		return err
	}
	defer c.Free()
	return c.Unpack(ctx, p.first)
}

// counting counts what it lets through.
type counting struct {
	Objects
	n *atomic.Int64
}

func (c counting) Object(ctx context.Context, o index.Object, dst []byte) error {
	err := c.Objects.Object(ctx, o, dst)
	if err == nil {
		c.n.Add(o.Len)
	}
	return err
}

func (p *Plan) origin() Chunks { return &origin{p.Index, counting{p.Objects, &p.fetched}, p.room} }

// origin is chunks as they were published.
type origin struct {
	x       *index.Index
	objects Objects
	room    *Room
}

func (o *origin) Chunk(ctx context.Context, i int) (Packed, error) {
	obj := o.x.Chunks[i]
	stored, err := o.room.Take(ctx, int(obj.Len))
	if err != nil {
		return Packed{}, err
	}
	if err := o.objects.Object(ctx, obj, stored); err != nil {
		o.room.Give(stored)
		return Packed{}, fmt.Errorf("chunk %d of the image: %w", i, err)
	}
	return Packed{
		Unpack: func(_ context.Context, dst []byte) error {
			if err := index.DecodeChunk(stored, dst); err != nil {
				return fmt.Errorf("chunk %d of the image: %w", i, err)
			}
			return nil
		},
		Free: func() { o.room.Give(stored) },
	}, nil
}

// task is a chunk that is to be fetched. Bits of blocks say which of its blocks are to be written; check, whether those were compared
// with the block list and found different.
type task struct {
	i      int
	blocks uint64
	check  bool
}

const allBlocks = ^uint64(0)

// Run brings the image onto the disk. The sink has seen what Start gave, and the old partition table is gone.
func (p *Plan) Run(outer context.Context, s Sink) error {
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(nil)
	p.sink = s
	var chunks Chunks = p.origin()
	p.order = order{x: p.Index, given: make([]bool, len(p.Index.Chunks))}
	p.order.given[0] = true
	if p.Swarm != nil {
		p.lists.widen(4) // neighbours ask for any chunk
		m, err := p.Swarm.Join(ctx, Shared{Index: p.Index, Sum: p.Sum, Origin: chunks, Room: p.room, Lists: p.lists, Read: p.read})
		if err != nil {
			p.Log.Warn("writing without neighbours", "err", err)
		} else {
			defer m.Leave()
			p.member, chunks, p.order.member = m, m, m
		}
	}

	var work sync.WaitGroup
	run := func(n int, f func() error) *sync.WaitGroup {
		var stage sync.WaitGroup
		for range n {
			work.Add(1)
			stage.Go(func() {
				defer work.Done()
				if err := f(); err != nil {
					cancel(err)
				}
			})
		}
		return &stage
	}
	lookers, queue := 1, 0
	if p.compare.on {
		lookers, queue = min(8, 2*runtime.GOMAXPROCS(0)), 64
	}
	wanted := make(chan task, queue)
	type got struct {
		task
		Packed
	}
	arrived := make(chan got)

	run(1, func() error { return p.makeHoles(ctx) })
	looking := run(lookers, func() error { return p.look(ctx, wanted) })
	fetching := run(fetchers, func() error {
		for t := range wanted {
			c, err := chunks.Chunk(ctx, t.i)
			if err != nil {
				return err
			}
			select {
			case arrived <- got{t, c}:
			case <-ctx.Done():
				c.Free()
				return nil
			}
		}
		return nil
	})
	run(1, func() error { return p.takeFirst(ctx) })
	run(p.unpackers, func() error {
		var mem []byte
		for c := range arrived {
			if mem == nil {
				mem = disk.Aligned(index.ChunkSize)
			}
			raw := mem[:p.Index.ChunkLen(c.i)]
			err := c.Unpack(ctx, raw)
			c.Free()
			if err == nil {
				err = p.put(ctx, c.task, raw)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	// Each stage ends when the one before it has. When something fails, all see it by the context.
	work.Go(func() { looking.Wait(); close(wanted) })
	work.Go(func() { fetching.Wait(); close(arrived) })
	work.Wait()
	if outer.Err() != nil {
		return context.Cause(outer)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	p.report("write", true)
	return nil
}

// look decides chunk by chunk what is to be fetched.
func (p *Plan) look(ctx context.Context, wanted chan<- task) error {
	l := looker{p: p}
	for {
		i, ok := p.order.next(ctx)
		if !ok {
			return nil
		}
		t, err := l.look(ctx, i)
		if err != nil {
			return err
		}
		if t.blocks == 0 {
			p.finished(i)
			continue
		}
		select {
		case wanted <- t:
		case <-ctx.Done():
			return nil
		}
	}
}

// takeFirst writes chunk 0, which is in memory already.
func (p *Plan) takeFirst(ctx context.Context) error {
	if p.Index.Chunks[0].Len == 0 {
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

// put writes those blocks of a chunk that are not on the disk yet.
func (p *Plan) put(ctx context.Context, t task, raw []byte) error {
	if t.check {
		if err := p.fits(ctx, t, raw); err != nil {
			return err
		}
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
	p.finished(t.i)
	return nil
}

// fits checks that the blocks of a chunk have the digests that the block list gives: a list of another image would have them compared
// with what nobody wants.
func (p *Plan) fits(ctx context.Context, t task, raw []byte) error {
	sums, err := p.lists.Of(ctx, t.i)
	if err != nil {
		return err
	}
	for b := 0; b*index.BlockSize < len(raw); b++ {
		if t.blocks>>b&1 == 1 && index.SumBlock(raw[b*index.BlockSize:min((b+1)*index.BlockSize, len(raw))]) != sums.Sum(0, b) {
			return &images.Error{
				Err:    fmt.Errorf("the block list of the image does not fit its chunk %d, at byte %d of the disk", t.i, int64(t.i)*index.ChunkSize+int64(b)*index.BlockSize),
				Remedy: "publish the image again, or set image_difference to never",
			}
		}
	}
	return nil
}

// finished notes that a chunk is on the disk.
func (p *Plan) finished(i int) {
	if p.member != nil {
		p.member.Done(i)
	}
	p.mu.Lock()
	p.done += p.Index.ChunkLen(i)
	p.mu.Unlock()
	p.report("write", false)
}

func (p *Plan) report(phase string, now bool) {
	if p.Progress == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !now && time.Since(p.reported) < reportEvery {
		return
	}
	p.reported = time.Now()
	if phase == "zero" {
		p.Progress(phase, p.zeroed, p.zeros)
		return
	}
	p.Progress(phase, p.done, p.total)
}

// makeHoles makes the chunks zero that have no object, in as few requests as possible.
func (p *Plan) makeHoles(ctx context.Context) error {
	x := p.Index
	p.mu.Lock()
	p.zeros = x.Size - p.total
	p.mu.Unlock()
	for i := 0; i < len(x.Chunks); {
		if x.Chunks[i].Len != 0 {
			i++
			continue
		}
		var n int64
		off := int64(i) * index.ChunkSize
		for ; i < len(x.Chunks) && x.Chunks[i].Len == 0 && n+x.ChunkLen(i) <= maxHole; i++ {
			n += x.ChunkLen(i)
		}
		if err := p.sink.Hole(ctx, off, n); err != nil {
			return err
		}
		p.mu.Lock()
		p.zeroed += n
		rest := p.done == p.total
		p.mu.Unlock()
		if rest {
			p.report("zero", false)
		}
	}
	return nil
}

// read is Shared.Read. What the disk gives back is not believed, and zeros may not be zero there yet.
func (p *Plan) read(ctx context.Context, i int, dst []byte) error {
	sums, err := p.lists.Of(ctx, i)
	if err != nil {
		return err
	}
	base := int64(i) * index.ChunkSize
	sector := int64(p.Disk.SectorSize())
	if _, err := p.Disk.ReadAt(dst[:int64(len(dst))/sector*sector], base); err != nil {
		return fmt.Errorf("read back chunk %d of the image: %w", i, err)
	}
	p.sink.Held(base, dst)
	for b := 0; b*index.BlockSize < len(dst); b++ {
		block, want := dst[b*index.BlockSize:min((b+1)*index.BlockSize, len(dst))], sums.Sum(0, b)
		switch {
		case want == zeroSum:
			clear(block)
		case sha256.Sum256(block) != want:
			return fmt.Errorf("chunk %d of the image is not on the disk, or the disk does not keep what is written", i)
		}
	}
	return nil
}

// order gives each chunk that has an object once.
type order struct {
	x      *index.Index
	member Member

	mu    sync.Mutex
	given []bool
	at    int
}

func (o *order) next(ctx context.Context) (int, bool) {
	for o.member != nil && ctx.Err() == nil {
		i, ok := o.member.Next(ctx)
		if !ok {
			break
		}
		o.mu.Lock()
		fresh := i >= 0 && i < len(o.given) && !o.given[i] && o.x.Chunks[i].Len > 0
		if fresh {
			o.given[i] = true
		}
		o.mu.Unlock()
		if fresh {
			return i, true
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for ; o.at < len(o.given); o.at++ {
		if !o.given[o.at] && o.x.Chunks[o.at].Len > 0 {
			o.given[o.at] = true
			return o.at, ctx.Err() == nil
		}
	}
	return 0, false
}
