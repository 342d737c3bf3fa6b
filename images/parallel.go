package images

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/semaphore"
)

// A zstd file may be many frames, as pzstd and zstd's seekable format make them. Each is unpacked by itself, so all
// cores unpack them, where there is memory for that. A splitter in front finds their ends by the headers of their
// blocks, which takes no decoding. What it can't use, a frame with much content or anything else, it leaves with all
// that follows to the ordinary decoder.

const (
	// largestPart is the most content of a frame that is unpacked whole, and at most a third of the memory is used for
	// one: pzstd puts 8 MiB into a frame by default.
	largestPart = 8 << 20
	// smallParts are unpacked together up to this size: a goroutine for a few KiB would cost more than it gains.
	smallParts = 512 << 10
	// overrun is room behind the content with which the decoder copies faster.
	overrun = 64
)

// severalFrames reports, by the beginning of the file, whether it is of many frames that are small enough.
func severalFrames(head []byte) bool {
	if len(head) >= 12 && binary.LittleEndian.Uint32(head) == pzstdMagic && binary.LittleEndian.Uint32(head[4:]) == 4 {
		return true
	}
	var h zstd.Header
	if h.Decode(head) != nil || h.Skippable || h.DictionaryID != 0 {
		return false
	}
	if h.HasFCS { // all disk images are larger
		return h.FrameContentSize > 0 && h.FrameContentSize <= largestPart
	}
	s := splitter{in: bufio.NewReader(&headOnly{head}), most: largestPart}
	p, err := s.frame()
	if err != nil || p == nil {
		return false
	}
	_, err = s.in.Peek(4)
	return err == nil
}

// pzstdMagic is of the skippable frame in which pzstd puts the size of the next frame.
const pzstdMagic = 0x184d2a50

// headOnly is the beginning of a file.
type headOnly struct{ b []byte }

func (h *headOnly) Read(p []byte) (int, error) {
	if len(h.b) == 0 {
		return 0, errors.New("more of the file is not known yet")
	}
	n := copy(p, h.b)
	h.b = h.b[n:]
	return n, nil
}

// part is one or more frames.
type part struct {
	packed []byte
	most   int // size of the content at most
	memory int64

	done chan struct{}
	data []byte
	err  error
	rest io.Reader // instead: the rest of the file, for the ordinary decoder
}

// splitter takes whole frames from a stream.
type splitter struct {
	in   *bufio.Reader
	most int    // content of a frame, and nearly its packed size
	held []byte // of a frame that it could not take
	over bool   // nothing is left for it, because of err or of what begins with held
	err  error
}

// next returns the next frame, or several small ones; nil at the end: err, or something that is not for it.
func (s *splitter) next() (*part, error) {
	if s.over {
		return nil, s.err
	}
	p, err := s.frame()
	for p != nil && p.most < smallParts && len(p.packed) < smallParts {
		more, err := s.frame()
		if more == nil {
			s.over, s.err = true, err
			break
		}
		p.packed, p.most = append(p.packed, more.packed...), p.most+more.most
	}
	return p, err
}

// frame returns the next frame; nil: one that is not for it, or something else, which held begins with.
func (s *splitter) frame() (*part, error) {
	for {
		head, err := s.in.Peek(8)
		if len(head) < 8 || binary.LittleEndian.Uint32(head)&^0xf != 0x184d2a50 {
			if err == io.EOF && len(head) > 0 {
				err = nil
			}
			if err != nil {
				return nil, err
			}
			break
		}
		size := int64(binary.LittleEndian.Uint32(head[4:]))
		if n, err := io.CopyN(io.Discard, s.in, 8+size); err != nil {
			if err == io.EOF && n > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	head, err := s.in.Peek(zstd.HeaderMaxSize)
	if err != nil && err != io.EOF {
		return nil, err
	}
	var h zstd.Header
	if h.Decode(head) != nil || h.DictionaryID != 0 || h.HasFCS && h.FrameContentSize > uint64(s.most) {
		return nil, nil
	}
	p := &part{}
	if err := s.take(p, h.HeaderSize); err != nil {
		return nil, err
	}
	for last := false; !last; {
		b, err := s.in.Peek(3)
		if err != nil {
			return nil, short(err)
		}
		v := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16
		kind, size := v>>1&3, int(v>>3)
		last = v&1 != 0
		content := min(size, maxBlock)
		switch kind {
		case rleBlock:
			size = 1
		case packedBlock:
			content = maxBlock
		}
		// A frame is hostile until its digest is known: many empty blocks have no content, but take memory. What is too
		// large for a block is refused by the ordinary decoder.
		if p.most += content; max(p.most, len(p.packed)) > s.most+maxBlock || size > maxBlock {
			s.held = p.packed
			return nil, nil
		}
		if err := s.take(p, 3+size); err != nil {
			return nil, err
		}
	}
	if h.HasCheckSum {
		if err := s.take(p, 4); err != nil {
			return nil, err
		}
	}
	if h.HasFCS {
		p.most = int(h.FrameContentSize)
	}
	return p, nil
}

// take moves bytes of the stream to a part.
func (s *splitter) take(p *part, n int) error {
	at := len(p.packed)
	p.packed = append(p.packed, make([]byte, n)...)
	_, err := io.ReadFull(s.in, p.packed[at:])
	return short(err)
}

func short(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parallel decodes a file of several frames, in order.
type parallel struct {
	d      *zstd.Decoder
	serial func(io.Reader) (*sparseReader, func(), error)
	room   *semaphore.Weighted
	memory int64
	cancel context.CancelFunc
	work   sync.WaitGroup

	spare chan []byte // used memory
	queue chan *part
	now   *part
	left  []byte // of now
	tail  *sparseReader
	end   func()
	err   error
}

// newParallel starts to decode r, with frames of l.Memory bytes, packed and unpacked, at once. end must be called after
// the last read; a read of r may be in progress until it returns, and it waits for that.
func newParallel(r io.Reader, l Limits, serial func(io.Reader) (*sparseReader, func(), error)) (*parallel, func(),
	error) {
	cores := runtime.GOMAXPROCS(0)
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(cores), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(l.Window), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &parallel{d: d, serial: serial, room: semaphore.NewWeighted(l.Memory), memory: l.Memory, cancel: cancel,
		spare: make(chan []byte, 2), queue: make(chan *part, 2*cores)}
	p.work.Go(func() {
		defer close(p.queue)
		most := int(min(largestPart, l.Memory/3))
		p.split(ctx, &splitter{in: bufio.NewReaderSize(r, 64<<10), most: most})
	})
	return p, p.close, nil
}

// split starts the decoding of the file's parts, and queues them in order. The last one has an error or the rest.
func (p *parallel) split(ctx context.Context, s *splitter) {
	send := func(q *part) bool {
		select {
		case p.queue <- q:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for {
		q, err := s.next()
		if q == nil {
			last := &part{err: err, done: make(chan struct{})}
			if err == nil {
				last.rest = io.MultiReader(bytes.NewReader(s.held), s.in)
			}
			close(last.done)
			send(last)
			return
		}
		if !p.start(ctx, q) || !send(q) {
			return
		}
	}
}

// start decodes a part once there is memory for it.
func (p *parallel) start(ctx context.Context, q *part) bool {
	q.memory = min(int64(len(q.packed)+q.most), p.memory)
	if p.room.Acquire(ctx, q.memory) != nil {
		return false
	}
	q.done = make(chan struct{})
	p.work.Go(func() {
		defer close(q.done)
		var dst []byte
		select {
		case dst = <-p.spare:
		default:
		}
		if cap(dst) < q.most+overrun {
			dst = make([]byte, 0, q.most+overrun)
		}
		q.data, q.err = p.d.DecodeAll(q.packed, dst[:0])
		if errors.Is(q.err, zstd.ErrDecoderSizeExceeded) { // dst has room for what the frames say
			q.err = zstd.ErrFrameSizeMismatch
		}
		q.packed = nil
	})
	return true
}

func (p *parallel) Read(b []byte) (int, error) {
	for len(p.left) == 0 && p.tail == nil && p.err == nil {
		p.next()
	}
	switch {
	case len(p.left) > 0:
		n := copy(b, p.left)
		p.left = p.left[n:]
		return n, nil
	case p.err != nil:
		return 0, p.err
	}
	return p.tail.Read(b)
}

// next turns to the next part.
func (p *parallel) next() {
	if p.now != nil {
		select {
		case p.spare <- p.now.data:
		default:
		}
		p.room.Release(p.now.memory)
		p.now = nil
	}
	q, ok := <-p.queue
	if !ok {
		p.err = cmp.Or(p.err, errStopped)
		return
	}
	<-q.done
	if q.rest != nil {
		p.tail, p.end, p.err = p.serial(q.rest)
		return
	}
	p.now, p.left, p.err = q, q.data, q.err
	if q.err != nil {
		p.left = nil
	}
}

func (p *parallel) skipZeros() int64 {
	if len(p.left) > 0 || p.tail == nil {
		return 0
	}
	return p.tail.skipZeros()
}

func (p *parallel) close() {
	p.cancel()
	if p.end != nil {
		p.end()
		p.end = nil
	}
	p.work.Wait()
	p.d.Close()
}
