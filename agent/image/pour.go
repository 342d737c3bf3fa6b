package image

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/image/sink"
	"github.com/ingot-metal/ingot/agent/image/trace"
	"github.com/ingot-metal/ingot/images"
)

// bufferSize is the maximum of one write. More gains nothing on any measured device; the small one is for use beside a
// large decoder.
const (
	bufferSize  = 1 << 20
	smallBuffer = 256 << 10
)

// workers is the number of goroutines that decode and write. While one waits for the disk another decodes, so there are
// more than cores; beyond eight, memory for them is needed. A stream that arrives decoded is only examined and
// written: two are enough.
func (p *pour) workers() int {
	if p.small || p.e.Size() < 0 {
		return 2
	}
	return min(max(runtime.GOMAXPROCS(0)+2, 4), 8+p.further)
}

// pour decodes an image and writes it to the disk.
type pour struct {
	e     images.Extents
	s     *sink.Sink
	small bool // memory is short, because a decoder has a large window
	// further is for how many cores beyond four there is memory.
	further int
	rec     *trace.Recorder
	track   *trace.Track // of the goroutine that reads the format

	free chan []byte
	jobs chan job
	work sync.WaitGroup

	held []job // pieces of an image of unknown size that may be in its tail
	end  int64
}

// job is a piece of the image and its buffer, for its data or for the decoded data.
type job struct {
	images.Extent
	buf []byte
}

// run pours the whole image; the extents are unused after it returns. cancel ends ctx, so that no goroutine waits for
// bytes after an error of the disk; the cause is the first error. progress is called after each piece, and then zeros,
// when only zeros are left to be written.
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
			track := p.rec.Track(trace.UnpackPieces, trace.ZeroTest, trace.Write)
			ctx := track.In(ctx)
			for j := range p.jobs {
				track.Spent(trace.Input)
				if err := p.do(ctx, j); err != nil {
					cancel(err)
				}
				p.free <- j.buf // never blocks: the channel has space for all buffers
			}
			track.Spent(trace.Input)
		})
	}
	poured := make(chan struct{})
	var holes sync.WaitGroup
	holes.Go(func() {
		if err := p.s.MakeHoles(p.rec.Track(trace.Zeros).In(ctx), poured, zeros); err != nil {
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

// read takes the pieces in the order of the format and sends them to the workers.
func (p *pour) read(ctx context.Context, progress func()) error {
	for {
		var buf []byte
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case buf = <-p.free:
		}
		p.track.Spent(trace.Output)
		x, err := p.e.Next(buf)
		p.track.Spent(trace.UnpackStream)
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

// maxHeld is how many pieces of data may be in the tail. All pieces of an image of unknown size are full, except for
// the last and those before a hole, which is larger than the tail.
const maxHeld = 2

// pass passes a piece on, once it can't be in the image's tail any more.
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

// do decodes and writes a piece.
func (p *pour) do(ctx context.Context, j job) error {
	if ctx.Err() != nil {
		return nil // another goroutine has set the cause
	}
	data := j.Data
	if j.Decode != nil {
		data = j.buf[:j.Len]
		err := j.Decode(data)
		trace.Of(ctx).Spent(trace.UnpackPieces)
		if err != nil {
			return err
		}
	}
	return p.s.Put(ctx, j.Off, data)
}
