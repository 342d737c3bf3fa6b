package publish

import (
	"context"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
)

const (
	// readSize is how much of the image is asked for at a time.
	readSize = 1 << 20
	// resident is how many incomplete chunks are kept in memory before the one that has waited longest goes to the
	// temporary file.
	resident = 32
)

// assemble reads an image to its end and stores its chunks and block lists.
//
// One goroutine reads the image, some unpack its pieces, one puts these together to chunks in the order they came in,
// some pack and store chunks, and one computes the digest of the whole disk. Each waits for the next only, so nobody
// waits in a circle.
func assemble(ctx context.Context, e images.Extents, dir Dir, o Options) (*index.Index, *Stored, error) {
	whole := ctx
	group, ctx := errgroup.WithContext(ctx)
	res := newResults(dir, o, e.Size())
	pieces, chunks, sums := make(chan piece, 2*o.Workers), make(chan *chunk, o.Workers), make(chan *chunk, 2)
	if e.Size() > 0 {
		o.Meter.Total.Store(e.Size())
	}
	// Decoders may run until the extents are closed, so they are no part of a group that is waited for elsewhere.
	decoders, free := new(errgroup.Group), make(chan []byte, cap(pieces)+o.Workers+2)
	for range cap(free) {
		free <- nil // made when it is needed
	}
	var broken error // why the pieces ended early; written before they are closed
	group.Go(func() error {
		defer close(pieces)
		broken = read(ctx, e, pieces, free, decoders)
		_ = decoders.Wait() // what they return is in their pieces
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
			return broken // else what is missing would be taken for the reader's fault
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
	buf    []byte     // that data is in
	ready  chan error // nil: it is
}

// read takes the image's pieces as they come, and has them unpacked.
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
		case x.Len <= 0 || x.Off < 0 || x.Off+x.Len < x.Off:
			return errGap
		case x.Decode != nil && x.Len > int64(len(buf)), x.Data != nil && x.Len != int64(len(x.Data)):
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

// assembler puts pieces together to chunks.
type assembler struct {
	ctx          context.Context // of the group: the assembler lives no longer
	chunks, sums chan<- *chunk
	meter        *Meter
	free         chan []byte // of chunks
	size         int64       // -1: not known, and pieces come in order
	end          int64

	parts    map[int]*part
	resident []int // parts with a buffer, the one that waits longest first; not more than keep
	keep     int
	complete []bool
	spill    spill
}

// part is a chunk of the disk that is not complete yet.
type part struct {
	have    int64  // bytes that came, in data and holes
	b       []byte // nil: only zeros so far, or spilled; else there is data in it
	spilled bool   // what came is in the temporary file
}

func newAssembler(ctx context.Context, size int64, chunks, sums chan<- *chunk, o Options) *assembler {
	// Those who hold buffers: incomplete chunks, the workers and what waits for them, the disk's digest and what waits
	// for it. One more is always on its way back.
	keep := o.resident
	if keep == 0 {
		keep = resident
	}
	n := keep + 1 + cap(chunks) + o.Workers + cap(sums) + ahead + 2
	a := &assembler{ctx: ctx, size: size, keep: keep, chunks: chunks, sums: sums, meter: o.Meter,
		free: make(chan []byte, n), parts: map[int]*part{}}
	for range n {
		a.free <- nil
	}
	return a
}

// take puts a piece into the chunks that it touches.
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
	switch {
	case a.size >= 0 && p.off+p.n > a.size, a.size < 0 && p.off != a.end:
		return errGap
	case p.off+p.n > index.MaxSize:
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

// chunkLen is how long a chunk is, as far as that is known.
func (a *assembler) chunkLen(i int) int64 {
	if a.size < 0 {
		return index.ChunkSize
	}
	return min(index.ChunkSize, a.size-int64(i)*index.ChunkSize)
}

// add puts data, or nil for a hole, into one chunk.
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
			if err := a.room(); err != nil {
				return err
			}
			b, err := a.buffer()
			if err != nil {
				return err
			}
			t.b, a.resident = b, append(a.resident, i)
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

// buffer gives a buffer of zeros.
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

// room moves the chunk that waits longest out of the memory, if there are many.
func (a *assembler) room() error {
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

// emit hands on a chunk that is complete.
func (a *assembler) emit(i int, t *part) error {
	delete(a.parts, i)
	for len(a.complete) <= i {
		a.complete = append(a.complete, false)
	}
	a.complete[i] = true
	for k, r := range a.resident {
		if r == i {
			a.resident = append(a.resident[:k], a.resident[k+1:]...)
			break
		}
	}
	if t.spilled {
		b, err := a.buffer()
		if err != nil {
			return err
		}
		t.b = b
		if err := a.spill.read(b[:t.have], int64(i)*index.ChunkSize); err != nil {
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

// finish hands on the last chunk of a disk whose size was not known, and checks that there is nothing missing.
func (a *assembler) finish(res *results) error {
	if a.size < 0 {
		a.size = a.end
		if i := int(a.end / index.ChunkSize); a.parts[i] != nil {
			if err := a.emit(i, a.parts[i]); err != nil {
				return err
			}
		}
	}
	if len(a.parts) > 0 || a.size == 0 || int64(len(a.complete)) != (a.size+index.ChunkSize-1)/index.ChunkSize {
		return errGap
	}
	for _, done := range a.complete {
		if !done {
			return errGap
		}
	}
	res.size = a.size
	a.meter.Total.Store(a.size)
	return nil
}
