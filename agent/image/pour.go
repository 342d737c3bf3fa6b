package image

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/image/sink"
	"github.com/ingot-metal/ingot/images"
)

// bufferSize is of a write at most. More gains nothing on any device that was measured; less is for what has a large
// decoder beside it.
const (
	bufferSize  = 1 << 20
	smallBuffer = 256 << 10
)

// workers is how many unpack and write. While one waits for the disk another unpacks, so there are more than cores;
// beyond eight the memory is worth more. What comes unpacked in one stream is only looked at and written: for that two
// are enough.
func (p *pour) workers() int {
	if p.small || p.e.Size() < 0 {
		return 2
	}
	return min(max(runtime.GOMAXPROCS(0)+2, 4), 8)
}

// pour takes an image out of its format and puts it onto the disk.
type pour struct {
	e     images.Extents
	s     *sink.Sink
	small bool // memory is short, because a decoder has a large window

	free chan []byte
	jobs chan job
	work sync.WaitGroup

	held []job // of an image whose end is not known: what may be in its tail
	end  int64

	next   time.Duration // waited for the format
	decode atomic.Int64  // time in Decode, of all workers
}

// job is a piece of the image and the buffer that it is in, or is to be unpacked into.
type job struct {
	images.Extent
	buf []byte
}

// run pours all of an image; the extents are not used any more when it returns. cancel ends ctx, so that nobody waits
// for bytes when the disk has failed; the cause is what failed first. progress is called after each piece, and then
// zeros, when nothing else is left to be written.
func (p *pour) run(ctx context.Context, cancel context.CancelCauseFunc, progress func(),
	zeros func(n, of int64)) error {
	n := p.workers()
	buffers, size := n+2, bufferSize
	if p.small {
		size = smallBuffer
	}
	if p.s.Size() < 0 {
		buffers = n + 1 + maxHeld
	}
	p.jobs, p.free = make(chan job, n), make(chan []byte, buffers)
	for range buffers {
		p.free <- disk.Aligned(size)
	}
	for range n {
		p.work.Go(func() {
			for j := range p.jobs {
				if err := p.do(ctx, j); err != nil {
					cancel(err)
				}
				p.free <- j.buf // never blocks: there are no more buffers than room
			}
		})
	}
	poured := make(chan struct{})
	var holes sync.WaitGroup
	holes.Go(func() {
		if err := p.s.MakeHoles(ctx, poured, zeros); err != nil {
			cancel(err)
		}
	})
	if err := p.read(ctx, progress); err != nil {
		cancel(err)
	}
	close(p.jobs)
	p.work.Wait()
	close(poured)
	holes.Wait()
	return context.Cause(ctx)
}

// read takes the pieces in the order of the format and hands them to the workers.
func (p *pour) read(ctx context.Context, progress func()) error {
	for {
		var buf []byte
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case buf = <-p.free:
		}
		began := time.Now()
		x, err := p.e.Next(buf)
		p.next += time.Since(began)
		if err != nil {
			p.free <- buf
			if err == io.EOF {
				break
			}
			return err
		}
		p.end = max(p.end, x.Off+x.Len)
		if x.Data == nil && x.Decode == nil {
			p.free <- buf
			buf = nil
		}
		if err := p.pass(ctx, job{x, buf}); err != nil {
			return err
		}
		progress()
	}
	if p.s.Size() < 0 {
		if err := p.s.SetSize(p.end); err != nil {
			return err
		}
	}
	for _, j := range p.held {
		if err := p.submit(ctx, j); err != nil {
			return err
		}
	}
	p.held = nil
	return nil
}

// maxHeld is how many pieces of data may be in the tail. All pieces of an image of unknown size are full, but for the
// last and those before a hole, which is larger than the tail.
const maxHeld = 2

// pass hands a piece on, once it can't be the image's tail any more.
func (p *pour) pass(ctx context.Context, j job) error {
	if p.s.Size() >= 0 {
		return p.submit(ctx, j)
	}
	p.held = append(p.held, j)
	for len(p.held) > 0 && p.end-(p.held[0].Off+p.held[0].Len) >= p.s.TailSize() {
		if err := p.submit(ctx, p.held[0]); err != nil {
			return err
		}
		p.held = p.held[1:]
	}
	data := 0
	for _, h := range p.held {
		if h.buf != nil {
			data++
		}
	}
	if data > maxHeld {
		return fmt.Errorf("the image comes in pieces of %d bytes, too small to wait for its end with", j.Len)
	}
	return nil
}

func (p *pour) submit(ctx context.Context, j job) error {
	if j.buf == nil {
		return p.s.Hole(ctx, j.Off, j.Len)
	}
	select {
	case p.jobs <- j:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// do unpacks and writes a piece.
func (p *pour) do(ctx context.Context, j job) error {
	if ctx.Err() != nil {
		return nil // somebody else has said why
	}
	data := j.Data
	if j.Decode != nil {
		data = j.buf[:j.Len]
		began := time.Now()
		err := j.Decode(data)
		p.decode.Add(int64(time.Since(began)))
		if err != nil {
			return err
		}
	}
	return p.s.Put(ctx, j.Off, data)
}
