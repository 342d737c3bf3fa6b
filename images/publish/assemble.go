package publish

import (
	"cmp"
	"context"
	"io"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
)

const (
	// readSize is the size of one read of the image.
	readSize = 1 << 20
	// resident is how many incomplete chunks stay in memory before the oldest is moved to the temporary file.
	resident = 32
)

// assemble reads an image to its end and stores its chunks and block lists.
//
// One goroutine reads the image, several decode its pieces, one assembles these into chunks in the order they arrive,
// several pack and store chunks, and one computes the digest of the whole disk. Each waits only for the next, so there
// can be no deadlock.
func assemble(ctx context.Context, e images.Extents, dir Dir, o Options) (*index.Index, *Stored, error) {
	whole := ctx
	group, ctx := errgroup.WithContext(ctx)
	res := newResults(dir, o, e.Size())
	pieces, chunks, sums := make(chan piece, 2*o.Workers), make(chan *chunk, o.Workers), make(chan *chunk, 2)
	if e.Size() > 0 {
		o.Meter.Total.Store(e.Size())
	}
	// Decoders may run until the extents are closed, so they are not in a group that is waited for elsewhere.
	decoders, free := new(errgroup.Group), make(chan []byte, cap(pieces)+o.Workers+2)
	for range cap(free) {
		free <- nil // allocated on first use
	}
	var broken error // why the pieces ended early; written before they are closed
	group.Go(func() error {
		defer close(pieces)
		broken = read(ctx, e, pieces, free, decoders)
		_ = decoders.Wait() // their errors are in their pieces
		return broken
	})
	group.Go(func() error {
		defer close(chunks)
		defer close(sums)
		a := newAssembler(ctx, e.Size(), chunks, sums, o)
		defer a.spill.close()
		a.spill.dir = string(dir)
		for p := range pieces {
			if err := a.take(p); err != nil {
				return err
			}
			if p.buf != nil {
				free <- p.buf
			}
		}
		if broken != nil {
			return broken // else missing pieces would be blamed on the reader
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return a.finish(res)
	})
	for range o.Workers {
		group.Go(func() error {
			for c := range chunks {
				if err := res.store(ctx, c); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error { return res.digest(ctx, sums) })
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	x, err := res.index(whole)
	return x, &res.stored, err
}

// piece is a part of the disk; without data it is a hole.
type piece struct {
	off, n int64
	data   []byte
	buf    []byte     // holds data
	ready  chan error // nil: data is ready
}

// read takes the image's pieces in their order and starts their decoding.
func read(ctx context.Context, e images.Extents, out chan<- piece, free chan []byte, decoders *errgroup.Group) error {
	for {
		var buf []byte
		select {
		case buf = <-free:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if buf == nil {
			buf = make([]byte, readSize)
		}
		x, err := e.Next(buf)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		p := piece{off: x.Off, n: x.Len, data: x.Data}
		switch {
		case x.Len <= 0 || x.Off < 0 || x.Off+x.Len < x.Off, x.Decode != nil && x.Len > int64(len(buf)),
			x.Data != nil && x.Len != int64(len(x.Data)):
			return errGap
		case x.Decode != nil:
			p.data, p.buf, p.ready = buf[:x.Len], buf, make(chan error, 1)
			decoders.Go(func() error {
				p.ready <- x.Decode(p.data)
				return nil
			})
		case x.Data != nil:
			p.buf = buf
		default:
			free <- buf
		}
		select {
		case out <- p:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// assembler assembles pieces into chunks.
type assembler struct {
	ctx          context.Context // of the group: the assembler lives no longer
	chunks, sums chan<- *chunk
	meter        *Meter
	free         chan []byte // of chunks
	size         int64       // -1: unknown; pieces come in order
	end          int64

	parts    map[int]*part
	resident []int // parts with a buffer, oldest first; at most keep
	keep     int
	complete []bool
	spill    spill
}

// part is an incomplete chunk of the disk.
type part struct {
	have    int64  // bytes received, as data and holes
	b       []byte // nil: only zeros so far, or spilled
	spilled bool   // its data is in the temporary file
}

func newAssembler(ctx context.Context, size int64, chunks, sums chan<- *chunk, o Options) *assembler {
	// Holders of buffers: incomplete chunks, the workers and their queue, the disk's digest and its queue. One more is
	// always on its way back.
	keep := cmp.Or(o.resident, resident)
	n := keep + 1 + cap(chunks) + o.Workers + cap(sums) + ahead + 2
	a := &assembler{ctx: ctx, size: size, keep: keep, chunks: chunks, sums: sums, meter: o.Meter,
		free: make(chan []byte, n), parts: map[int]*part{}}
	for range n {
		a.free <- nil
	}
	return a
}

// take copies a piece into the chunks that it overlaps.
func (a *assembler) take(p piece) error {
	if p.ready != nil {
		select {
		case err := <-p.ready:
			if err != nil {
				return err
			}
		case <-a.ctx.Done():
			return context.Cause(a.ctx)
		}
	}
	if a.size >= 0 && p.off+p.n > a.size || a.size < 0 && p.off != a.end {
		return errGap
	}
	if p.off+p.n > index.MaxSize {
		return refuse("publish a smaller disk",
			"the disk is larger than %d GiB, the most that a published image can have", int64(index.MaxSize>>30))
	}
	a.end = max(a.end, p.off+p.n)
	for at := p.off; at < p.off+p.n; {
		i := int(at / index.ChunkSize)
		to := min(p.off+p.n, int64(i+1)*index.ChunkSize)
		var data []byte
		if p.data != nil {
			data = p.data[at-p.off : to-p.off]
		}
		if err := a.add(i, at-int64(i)*index.ChunkSize, to-at, data); err != nil {
			return err
		}
		at = to
	}
	a.meter.Done.Add(p.n)
	return nil
}

// chunkLen returns a chunk's length, as far as it is known.
func (a *assembler) chunkLen(i int) int64 {
	if a.size < 0 {
		return index.ChunkSize
	}
	return min(index.ChunkSize, a.size-int64(i)*index.ChunkSize)
}

// add adds data, or a hole if data is nil, to one chunk.
func (a *assembler) add(i int, off, n int64, data []byte) error {
	if i < len(a.complete) && a.complete[i] {
		return errGap
	}
	t := a.parts[i]
	if t == nil {
		t = new(part)
		a.parts[i] = t
	}
	if t.have += n; t.have > a.chunkLen(i) {
		return errGap
	}
	if data != nil && !index.IsZero(data) {
		switch {
		case t.spilled:
			if err := a.spill.write(data, int64(i)*index.ChunkSize+off); err != nil {
				return err
			}
		case t.b == nil:
			if err := a.spillOldest(); err != nil {
				return err
			}
			var err error
			if t.b, err = a.buffer(); err != nil {
				return err
			}
			a.resident = append(a.resident, i)
			fallthrough
		default:
			copy(t.b[off:], data)
		}
	}
	if t.have == a.chunkLen(i) {
		return a.emit(i, t)
	}
	return nil
}

// buffer returns a buffer of zeros.
func (a *assembler) buffer() ([]byte, error) {
	select {
	case b := <-a.free:
		if b == nil {
			return make([]byte, index.ChunkSize), nil
		}
		clear(b)
		return b, nil
	case <-a.ctx.Done():
		return nil, context.Cause(a.ctx)
	}
}

// spillOldest moves the oldest incomplete chunk to the temporary file if too many are in memory.
func (a *assembler) spillOldest() error {
	if len(a.resident) < a.keep {
		return nil
	}
	i := a.resident[0]
	t := a.parts[i]
	if err := a.spill.write(t.b[:a.chunkLen(i)], int64(i)*index.ChunkSize); err != nil {
		return err
	}
	a.free <- t.b
	t.b, t.spilled, a.resident = nil, true, a.resident[1:]
	return nil
}

// emit passes on a complete chunk.
func (a *assembler) emit(i int, t *part) error {
	delete(a.parts, i)
	for len(a.complete) <= i {
		a.complete = append(a.complete, false)
	}
	a.complete[i] = true
	a.resident = slices.DeleteFunc(a.resident, func(r int) bool { return r == i })
	if t.spilled {
		var err error
		if t.b, err = a.buffer(); err != nil {
			return err
		}
		if err := a.spill.read(t.b[:t.have], int64(i)*index.ChunkSize); err != nil {
			return err
		}
	}
	c := &chunk{i: i, n: t.have, free: a.free}
	c.users.Store(2)
	if t.b != nil {
		c.buf, c.b = t.b, t.b[:t.have]
	}
	for _, to := range []chan<- *chunk{a.chunks, a.sums} {
		select {
		case to <- c:
		case <-a.ctx.Done():
			return context.Cause(a.ctx)
		}
	}
	return nil
}

// finish passes on the last chunk of a disk of unknown size, and checks that nothing is missing.
func (a *assembler) finish(res *results) error {
	if a.size < 0 {
		a.size = a.end
		if i := int(a.end / index.ChunkSize); a.parts[i] != nil {
			if err := a.emit(i, a.parts[i]); err != nil {
				return err
			}
		}
	}
	if len(a.parts) > 0 || a.size == 0 || int64(len(a.complete)) != (a.size+index.ChunkSize-1)/index.ChunkSize ||
		slices.Contains(a.complete, false) {
		return errGap
	}
	res.size = a.size
	a.meter.Total.Store(a.size)
	return nil
}
