package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"sync"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
)

// sink puts extents onto a disk, all but the image's head and tail.
type sink struct {
	dev    disk.Device
	disk   disk.Disk
	sector int64
	zeroer *disk.Zeroer
	verify bool

	free   chan []byte
	jobs   chan job
	cancel context.CancelCauseFunc
	work   sync.WaitGroup

	size    int64 // of the image; -1 until known
	held    []piece
	head    []byte
	headLen int64 // bytes of the head that have come
	checked bool
	tail    []byte
	tailOff int64
	hole    span // zeros not yet punched

	mu      sync.Mutex
	written int64
	sums    []sum // of what was written, when it is to be verified
}

type span struct{ off, n int64 }

// piece is a part of the image in a buffer of ours.
type piece struct {
	buf  []byte
	off  int64
	data []byte
}

// job is a buffer with the runs in it that are not zero.
type job struct {
	piece
	runs []span
}

type sum struct {
	span
	sha [sha256.Size]byte
}

func newSink(ctx context.Context, dev disk.Device, d disk.Disk, verify bool) (*sink, context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &sink{
		dev: dev, disk: d, sector: int64(dev.SectorSize()), zeroer: disk.NewZeroer(dev), verify: verify, cancel: cancel,
		free: make(chan []byte, buffers), jobs: make(chan job, buffers), head: make([]byte, disk.HeadSize),
	}
	for range buffers {
		s.free <- disk.Aligned(bufferSize)
	}
	for range writers {
		s.work.Go(func() {
			for j := range s.jobs {
				if err := s.write(j); err != nil {
					cancel(err)
				}
				s.free <- j.buf
			}
		})
	}
	return s, ctx
}

// stop ends the writers. Nothing may be submitted after it.
func (s *sink) stop() {
	close(s.jobs)
	s.work.Wait()
	s.cancel(nil)
}

func (s *sink) write(j job) error {
	for _, r := range j.runs {
		data := j.data[r.off-j.off : r.off-j.off+r.n]
		if _, err := s.dev.WriteAt(data, r.off); err != nil {
			return diskFault(fmt.Errorf("write %d bytes at byte %d of %s: %w", r.n, r.off, s.disk.Name, err))
		}
		var m sum
		if s.verify {
			m = sum{r, sha256.Sum256(data)}
		}
		s.mu.Lock()
		s.written += r.n
		if s.verify {
			s.sums = append(s.sums, m)
		}
		s.mu.Unlock()
	}
	return nil
}

func diskFault(err error) error {
	return step.Fail("look at the disk's health; replace it if the kernel log shows medium errors", err)
}

// take reads all extents. progress is called after each.
func (s *sink) take(ctx context.Context, e images.Extents, progress func()) error {
	s.size = e.Size()
	if s.size >= 0 {
		s.split()
	}
	var end int64
	for {
		var buf []byte
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case buf = <-s.free:
		}
		x, err := e.Next(buf)
		if err != nil {
			s.free <- buf
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err == io.EOF {
				break
			}
			return err
		}
		end = max(end, x.Off+x.Len)
		if x.Off+x.Len > s.dev.Size() {
			s.free <- buf
			return step.Failf("use a smaller image or a larger disk", "the image is larger than the disk: more than %d bytes onto %s", s.dev.Size(), s.disk.Name)
		}
		if err := s.accept(ctx, piece{buf, x.Off, x.Data}, x); err != nil {
			return err
		}
		progress()
	}
	if s.size < 0 {
		s.size = end
		s.split()
	}
	for _, p := range s.held {
		if err := s.place(ctx, p); err != nil {
			return err
		}
	}
	s.held = nil
	if err := s.check(ctx); err != nil { // an image shorter than its head
		return err
	}
	return s.flushHole(ctx)
}

// split says where the tail begins.
func (s *sink) split() {
	start := (s.size - disk.TailSectors*s.sector) / s.sector * s.sector
	s.tailOff = max(disk.HeadSize, start)
	if s.size > s.tailOff {
		s.tail = make([]byte, s.size-s.tailOff)
	}
}

func (s *sink) accept(ctx context.Context, p piece, x images.Extent) error {
	if x.Data == nil {
		s.free <- p.buf
		return s.skip(ctx, x.Off, x.Len)
	}
	if s.size >= 0 {
		return s.place(ctx, p)
	}
	// The tail is not known before the end, but it is within the last two buffers, the one before the last being full.
	s.held = append(s.held, p)
	if len(s.held) <= 2 {
		if p.off == 0 {
			return s.keepHead(ctx, p.off, p.data)
		}
		return nil
	}
	oldest := s.held[0]
	s.held = s.held[1:]
	return s.place(ctx, oldest)
}

// keepHead copies what belongs to the head, and checks it when it is complete.
func (s *sink) keepHead(ctx context.Context, off int64, data []byte) error {
	if off >= disk.HeadSize || s.checked {
		return nil
	}
	return s.gotHead(ctx, int64(copy(s.head[off:], data)))
}

func (s *sink) gotHead(ctx context.Context, n int64) error {
	s.headLen += n
	want := int64(disk.HeadSize)
	if s.size >= 0 {
		want = min(want, s.size)
	}
	if s.headLen < want {
		return nil
	}
	return s.check(ctx)
}

// check looks at the image's partition table before the first byte of the old disk is touched.
func (s *sink) check(ctx context.Context) error {
	if s.checked {
		return nil
	}
	s.checked = true
	if err := disk.CheckHead(s.head, s.size, s.disk); err != nil {
		return err
	}
	if err := disk.Wipe(ctx, s.dev); err != nil {
		return diskFault(fmt.Errorf("remove the old partition table of %s: %w", s.disk.Name, err))
	}
	return nil
}

// place puts a piece where it belongs: head, tail or disk.
func (s *sink) place(ctx context.Context, p piece) error {
	if err := s.keepHead(ctx, p.off, p.data); err != nil {
		return err
	}
	end := p.off + int64(len(p.data))
	if end > s.tailOff && s.size >= 0 {
		from := max(p.off, s.tailOff)
		copy(s.tail[from-s.tailOff:], p.data[from-p.off:])
	}
	low, high := max(p.off, disk.HeadSize), end
	if s.size >= 0 {
		high = min(end, s.tailOff)
	}
	if low >= high {
		s.free <- p.buf
		return nil
	}
	if !s.checked {
		if err := s.check(ctx); err != nil {
			return err
		}
	}
	if low%s.sector != 0 || high%s.sector != 0 {
		return fmt.Errorf("image data at bytes %d to %d is not in whole sectors of %d", low, high, s.sector)
	}
	j := job{piece: p}
	for off := low; off < high; {
		n := min(zeroBlock-off%zeroBlock, high-off)
		block := p.data[off-p.off : off-p.off+n]
		switch last := len(j.runs) - 1; {
		case isZero(block):
			if err := s.addHole(ctx, off, n); err != nil {
				return err
			}
		case last >= 0 && j.runs[last].off+j.runs[last].n == off:
			j.runs[last].n += n
		default:
			j.runs = append(j.runs, span{off, n})
		}
		off += n
	}
	if len(j.runs) == 0 {
		s.free <- p.buf
		return nil
	}
	s.jobs <- j // never blocks: there are no more buffers than room
	return nil
}

// skip is place for a hole that the format knows of.
func (s *sink) skip(ctx context.Context, off, n int64) error {
	if off < disk.HeadSize && !s.checked {
		if err := s.gotHead(ctx, min(n, disk.HeadSize-off)); err != nil {
			return err
		}
	}
	low, high := max(off, disk.HeadSize), min(off+n, s.tailOff)
	if low >= high {
		return nil
	}
	if low%s.sector != 0 || high%s.sector != 0 {
		return fmt.Errorf("image hole at bytes %d to %d is not in whole sectors of %d", low, high, s.sector)
	}
	return s.addHole(ctx, low, high-low)
}

const maxHole = 1 << 30

// addHole gathers neighbouring zeros, for few and large requests.
func (s *sink) addHole(ctx context.Context, off, n int64) error {
	if s.hole.n > 0 && s.hole.off+s.hole.n == off && s.hole.n < maxHole {
		s.hole.n += n
		return nil
	}
	if err := s.flushHole(ctx); err != nil {
		return err
	}
	s.hole = span{off, n}
	return nil
}

func (s *sink) flushHole(ctx context.Context) error {
	if s.hole.n == 0 {
		return nil
	}
	if !s.checked {
		if err := s.check(ctx); err != nil {
			return err
		}
	}
	h := s.hole
	s.hole = span{}
	if err := s.zeroer.Zero(ctx, h.off, h.n); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return diskFault(fmt.Errorf("%s: %w", s.disk.Name, err))
	}
	return nil
}

// readBack compares what was written with what the disk gives back.
func (s *sink) readBack(ctx context.Context, progress func(done int64)) error {
	buf := disk.Aligned(bufferSize)
	var done int64
	for _, m := range s.sums {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := buf[:m.n]
		if _, err := s.dev.ReadAt(part, m.off); err != nil {
			return diskFault(fmt.Errorf("read back %d bytes at byte %d of %s: %w", m.n, m.off, s.disk.Name, err))
		}
		if sha256.Sum256(part) != m.sha {
			return step.Failf("replace the disk: it does not keep what is written", "%s: %d bytes at byte %d read back different from what was written", s.disk.Name, m.n, m.off)
		}
		done += m.n
		progress(done)
	}
	return nil
}

var zeros [zeroBlock]byte

func isZero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }
