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
	fetchers = 8 // objects asked for at once, when there is room for them

	headSize = disk.HeadSize // how much of the image is looked at before the disk is touched

	reportEvery = 200 * time.Millisecond
)

// sizes of what takes memory. An index of a very large disk takes so much itself that less is left for the rest. A
// member of a swarm has memory of its own for packed chunks: what is left here is for block lists.
func sizes(x *index.Index, swarm bool) (s struct{ room, unpackers, lists, lookers int }) {
	s.room, s.unpackers, s.lists, s.lookers = 10<<20, min(4, 1+runtime.GOMAXPROCS(0)), 2,
		min(8, 2*runtime.GOMAXPROCS(0))
	switch {
	case swarm:
		s.room, s.unpackers, s.lists, s.lookers = index.MaxStored, 2, 1, 1
	case len(x.Chunks) > 1<<17: // 512 GiB: 5 MiB of index
		s.room, s.unpackers = 2*index.MaxStored, 2
	}
	return s
}

// Plan is one published image and one disk. Start is called first, then Survey, then Run, once each.
type Plan struct {
	Index      *index.Index
	Sum        [32]byte // of the index's bytes
	Objects    Objects
	Disk       disk.Device
	Difference Difference
	// Join makes this agent a member of a swarm, in Start; it may return nil. Nil: there is none. Read is good until
	// Run returns.
	Join func(o Objects, read Read) Member
	Log  *slog.Logger
	// Progress is told how many bytes of data are on the disk, of how many. Phase is "write", or "zero" when only zeros
	// are left to be written. Calls come one after the other.
	Progress func(phase string, done, total int64)

	room      *room
	unpackers int
	looking   int     // goroutines that compare with the disk
	objects   Objects // which are counted
	lists     *lists
	first     []byte // chunk 0, unpacked
	compare   compare
	member    Member
	sink      Sink
	order     order
	fetched   atomic.Int64
	fetching  step.Clock
	unpacking atomic.Int64 // nanoseconds of all who unpack
	kept      atomic.Int64
	total     int64

	mu       sync.Mutex
	there    []uint64 // blocks of chunks that are on the disk and not zeros, by bits; kept for a member
	done     int64
	reported time.Time
}

// Counts is what a plan did.
type Counts struct {
	Fetched int64 // bytes of stored objects from the origin
	Kept    int64 // bytes of the disk that were what they should be already

	Fetching  time.Duration // with at least one object on its way
	Unpacking time.Duration // of all cores that could be at it
}

// Counts may be asked for at any time.
func (p *Plan) Counts() Counts {
	cores := min(p.unpackers, runtime.GOMAXPROCS(0))
	return Counts{
		Fetched: p.fetched.Load(), Kept: p.kept.Load(),
		Fetching: p.fetching.Total(), Unpacking: time.Duration(p.unpacking.Load()) / time.Duration(max(1, cores)),
	}
}

// Compares tells after Survey whether the disk is thought to hold some of the image.
func (p *Plan) Compares() bool { return p.compare.on }

// Start gets the image's beginning, its first MiB or all of a smaller one. It decides where the image goes: Disk may be
// set anew before Survey, to a device whose offsets are the image's.
func (p *Plan) Start(ctx context.Context) ([]byte, error) {
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
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
	n := sizes(p.Index, p.member != nil)
	p.room, p.unpackers, p.looking = newRoom(n.room), n.unpackers, n.lookers
	p.lists = newLists(p.Index, p.objects, p.room, n.lists)
	if err := p.getFirst(ctx); err != nil {
		return nil, err
	}
	return p.first[:min(headSize, len(p.first))], nil
}

func (p *Plan) getFirst(ctx context.Context) error {
	if p.Index.Chunks[0].Len == 0 {
		return nil // zeros: there is no table in it, which the sink will say
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
	defer p.room.give(c.stored)
	return c.unpack(p.first)
}

// counting counts what it lets through.
type counting struct{ p *Plan }

func (c counting) Object(ctx context.Context, o index.Object, dst []byte) error {
	c.p.fetching.Enter()
	defer c.p.fetching.Leave()
	err := c.p.Objects.Object(ctx, o, dst)
	if err == nil {
		c.p.fetched.Add(o.Len)
	}
	return err
}

// packed is a chunk in memory of the room.
type packed struct {
	i      int
	stored []byte
}

func (p *Plan) fetch(ctx context.Context, i int) (packed, error) {
	o := p.Index.Chunks[i]
	stored, err := p.room.take(ctx, int(o.Len))
	if err != nil {
		return packed{}, err
	}
	if err := p.objects.Object(ctx, o, stored); err != nil {
		p.room.give(stored)
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

// task is a chunk that is to be fetched. Bits of blocks say which of its blocks are to be written. Sum is of what the
// block list says of the chunk, if it was asked: the list itself is far larger, and need not stay.
type task struct {
	i      int
	blocks uint64
	zeros  uint64 // likewise, which are zeros, if the block list was asked
	listed bool
	sum    [sha256.Size]byte
}

const allBlocks = ^uint64(0)

// Run brings the image onto the disk. The sink has seen what Start gave, and the old partition table is gone.
func (p *Plan) Run(outer context.Context, s Sink) error {
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(nil)
	w := &workers{fail: cancel}
	p.sink = s
	p.order = order{x: p.Index, at: 1} // chunk 0 is here
	w.run(1, func() error { return p.holes(ctx) })
	w.run(1, func() error { return p.takeFirst(ctx) })
	written := make(chan struct{})
	zeros := workers{fail: cancel}
	zeros.run(1, func() error { return s.MakeHoles(ctx, written, p.reportZeros) })
	if p.member == nil {
		p.runAlone(ctx, w)
	} else {
		p.runAmong(ctx, w, p.member)
	}
	w.Wait()
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

// workers are goroutines of which the first to fail ends the others, by their context.
type workers struct {
	sync.WaitGroup
	fail context.CancelCauseFunc
}

// run starts n of them. What it gives back waits for these alone.
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

// runAlone starts the three stages. Each ends when the one before it has.
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
	fetching := w.run(fetchers, func() error {
		for t := range wanted {
			c, err := p.fetch(ctx, t.i)
			if err != nil {
				return err
			}
			select {
			case arrived <- got{t, c}:
			case <-ctx.Done():
				return nil
			}
		}
		return nil
	})
	w.Go(func() { fetching.Wait(); close(arrived) })

	w.run(p.unpackers, func() error {
		mem := buffer{}
		for c := range arrived {
			raw := mem.of(p.Index.ChunkLen(c.task.i))
			began := time.Now()
			err := c.unpack(raw)
			p.unpacking.Add(int64(time.Since(began)))
			p.room.give(c.stored)
			if err == nil {
				err = p.put(ctx, c.task, raw)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// runAmong has a member of a swarm choose what to fetch next, and from whom.
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
			if !ok { // what it forgot, if anything
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
		for {
			t, ok := next()
			if !ok {
				return nil
			}
			raw := mem.of(p.Index.ChunkLen(t.i))
			if err := m.Chunk(ctx, t.i, raw); err != nil {
				return fmt.Errorf("chunk %d of the image: %w", t.i, err)
			}
			if err := p.put(ctx, t, raw); err != nil {
				return err
			}
		}
	})
}

// buffer is memory for a chunk, once it is needed.
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

// look decides chunk by chunk what is to be fetched.
func (p *Plan) look(ctx context.Context, want func(task)) error {
	l := looker{p: p}
	for ctx.Err() == nil {
		i, ok := p.order.next()
		if !ok {
			break
		}
		t, err := l.look(ctx, i)
		if err != nil {
			return err
		}
		if t.blocks == 0 {
			p.finished(i, t.zeros)
		} else {
			want(t)
		}
	}
	return nil
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
	return nil
}

// fits checks that the blocks of a chunk have the digests that the block list gives, all of them: a list of another
// image would have had them compared with what nobody wants, and those that it calls zero or that the disk seemed to
// hold are not written. Of a chunk that is not fetched nobody knows more than the list.
func (t task) fits(raw []byte) error {
	if !t.listed {
		return nil
	}
	list := make([]byte, 0, index.ChunkSize/index.BlockSize*index.SumSize)
	for at := 0; at < len(raw); at += index.BlockSize {
		sum := index.SumBlock(raw[at:min(at+index.BlockSize, len(raw))])
		list = append(list, sum[:]...)
	}
	if sha256.Sum256(list) == t.sum {
		return nil
	}
	return &images.Error{
		Err: fmt.Errorf("the block list of the image does not fit its chunk %d, at byte %d of the disk", t.i,
			int64(t.i)*index.ChunkSize),
		Remedy: "publish the image again, or set image_difference to never",
	}
}

// zeros says by bits which blocks of a chunk are nothing but zeros.
func zeros(raw []byte) (bits uint64) {
	for b := 0; b*index.BlockSize < len(raw); b++ {
		if index.IsZero(raw[b*index.BlockSize : min((b+1)*index.BlockSize, len(raw))]) {
			bits |= 1 << b
		}
	}
	return bits
}

// finished notes that a chunk is on the disk, but for blocks of zeros, of which holes are made later.
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

// reportZeros is for when only zeros are left.
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

// holes says which chunks are zero, those that have no object.
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

// read is the Read of a member.
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

// order gives each chunk that has an object once.
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
