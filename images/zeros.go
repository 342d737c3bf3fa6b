package images

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"math"
	"math/bits"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// A disk image is mostly zeros, and a zstd decoder spends most of its time on producing them: it fills a block, copies
// it into its window, sums it up, and copies it out. So zeros bypass the decoder. A cutter in front of it drops blocks
// that are runs of zeros, once so many have passed that the decoder's window is full of zeros: the following data sees
// the same window. A sparseReader after it inserts them again, as a number. The frame's own properties (its size, the
// checksum of its content) are then verified here, over all of it.
//
// The position of the zeros is counted in nonempty blocks: the decoder returns each in one piece.

// zeroSkipper is a stream that knows coming zeros.
type zeroSkipper interface {
	io.Reader
	// skipZeros returns how many zeros come next, and skips them; 0 if unknown. It may wait for the stream.
	skipZeros() int64
}

// skipZeros calls a stream's method, if it has one.
func skipZeros(r io.Reader) int64 {
	if z, ok := r.(zeroSkipper); ok {
		return z.skipZeros()
	}
	return 0
}

const (
	maxBlock = 128 << 10 // of zstd
	// shorter runs are not worth cutting; and a hole must be larger than a disk's withheld tail
	minCut = 512 << 10
)

// mark is an event that the cutter saw between two blocks.
type mark struct {
	block int64 // number of nonempty blocks before
	zeros int64 // cut here
	end   bool  // of a frame
	size  int64 // content size of the frame, or -1
	sum   int64 // checksum of the content, its lowest 32 bits, or -1: none
}

// marks passes the events of a cutter, which is ahead and may be in another goroutine, to its sparseReader.
type marks struct {
	mu   sync.Mutex
	list []mark
	err  error // error at the end of the file
}

// cutOff returns the error of a truncated file, which the decoder may not notice.
func (m *marks) cutOff() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == io.EOF {
		return nil
	}
	return m.err
}

func (m *marks) ended(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *marks) push(k mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list = append(m.list, k)
}

// pop returns the next mark before a block.
func (m *marks) pop(block int64) (mark, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.list) == 0 || m.list[0].block > block {
		return mark{}, false
	}
	k := m.list[0]
	m.list = m.list[1:]
	return k, true
}

// cutter drops runs of zeros from a stream of zstd frames.
type cutter struct {
	in    *bufio.Reader
	marks *marks

	out  []byte // next output
	copy int64  // bytes of the input that follow it unchanged
	err  error

	next   func() error // handles the next part of the file
	plain  bool         // the frame is not changed
	window int64
	size   int64
	sum    bool
	first  int64 // block of the frame

	blocks  int64
	passed  int64 // preceding zeros in a row
	dropped int64
}

func newCutter(r io.Reader, m *marks) *cutter {
	c := &cutter{in: bufio.NewReaderSize(r, 64<<10), marks: m}
	c.next = c.frame
	return c
}

func (c *cutter) Read(p []byte) (int, error) {
	for {
		switch {
		case len(c.out) > 0:
			n := copy(p, c.out)
			c.out = c.out[n:]
			return n, nil
		case c.copy > 0:
			n, err := c.in.Read(p[:min(int64(len(p)), c.copy)])
			c.copy -= int64(n)
			if err == io.EOF && c.copy > 0 && c.next != nil {
				err = io.ErrUnexpectedEOF
			}
			return n, err
		case c.err != nil:
			return 0, c.err
		default:
			if c.err = c.next(); c.err != nil {
				c.marks.ended(c.err)
			}
		}
	}
}

// must reads n bytes; a shorter input is truncated.
func (c *cutter) must(n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(c.in, b); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return b, nil
}

// frame reads a frame's header. RFC 8878, 3.1.1.1. Unknown input is left to the decoder, which has the better errors.
func (c *cutter) frame() error {
	head := make([]byte, 4)
	if n, err := io.ReadFull(c.in, head); err != nil {
		c.out = head[:n]
		return err
	}
	magic := binary.LittleEndian.Uint32(head)
	if magic&^0xf == 0x184d2a50 {
		size, err := c.must(4)
		if err != nil {
			return err
		}
		c.out, c.copy = append(head, size...), int64(binary.LittleEndian.Uint32(size))
		return nil
	}
	c.out = head
	if magic != 0xfd2fb528 {
		c.copy, c.next = math.MaxInt64, nil
		return nil
	}
	b, err := c.must(1)
	if err != nil {
		return err
	}
	d := b[0]
	single, dict := d&0x20 != 0, d&3 != 0
	sizeLen := []int{0, 2, 4, 8}[d>>6]
	if single && sizeLen == 0 {
		sizeLen = 1
	}
	n := sizeLen + []int{0, 1, 2, 4}[d&3]
	if !single {
		n++
	}
	rest, err := c.must(n)
	if err != nil {
		return err
	}
	c.next, c.sum, c.size, c.passed, c.dropped, c.first = c.block, d&4 != 0, -1, 0, 0, c.blocks
	// A frame with a single segment has a window as large as itself: nothing can be cut. Its checksum is still verified
	// here.
	if c.plain = single || dict || d&8 != 0; c.plain {
		c.out = append(append(c.out, d&^4), rest...)
		return nil
	}
	base := int64(1) << (10 + rest[0]>>3)
	c.window = base + base/8*int64(rest[0]&7)
	switch fcs := rest[1:]; sizeLen {
	case 2:
		c.size = int64(binary.LittleEndian.Uint16(fcs)) + 256
	case 4:
		c.size = int64(binary.LittleEndian.Uint32(fcs))
	case 8:
		// Decoders use all ones for an unknown size, also when it is read from a file.
		if c.size = int64(binary.LittleEndian.Uint64(fcs)); c.size < -1 {
			return zstd.ErrDecoderSizeExceeded
		}
	}
	c.out = append(c.out, 0, rest[0]) // the same window, neither size nor checksum
	return nil
}

const (
	rawBlock = iota
	rleBlock
	packedBlock
)

func blockHeader(last bool, kind, size uint32) []byte {
	h := kind<<1 | size<<3
	if last {
		h |= 1
	}
	return []byte{byte(h), byte(h >> 8), byte(h >> 16)}
}

// block reads the header of a block. RFC 8878, 3.1.1.2.
func (c *cutter) block() error {
	b, err := c.must(3)
	if err != nil {
		return err
	}
	h := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16
	last, kind, size := h&1 != 0, h>>1&3, h>>3
	if last {
		c.next = c.trailer
	}
	if kind == rleBlock {
		v, err := c.must(1)
		if err != nil {
			return err
		}
		if v[0] == 0 && size > 0 && size <= maxBlock && int64(size) <= c.window && !c.plain {
			if c.passed < c.window {
				c.passed += int64(size)
				c.blocks++
				c.out = append(append(c.out, blockHeader(last, rleBlock, size)...), 0)
				return nil
			}
			c.dropped += int64(size)
			if last {
				c.flush()
				c.out = append(c.out, blockHeader(true, rawBlock, 0)...)
			}
			return nil
		}
		c.flush()
		c.out = append(append(c.out, b...), v...)
		if size > 0 {
			c.blocks++
		}
		return nil
	}
	c.flush()
	c.out = append(c.out, b...)
	c.copy = int64(size)
	switch {
	case kind == rawBlock && size > 0:
		c.blocks++
	case kind == packedBlock:
		empty, err := c.empty(int(size))
		if err != nil {
			return err
		}
		if !empty {
			c.blocks++
		}
	}
	return nil
}

// empty reports whether a compressed block decodes to nothing: no literals and no sequences. No encoder makes such a
// block.
func (c *cutter) empty(size int) (bool, error) {
	b, err := c.in.Peek(min(size, 3))
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil || len(b) < 2 {
		return false, err // the decoder will report it
	}
	if kind := b[0] & 3; kind > 1 { // Huffman: without literals it would be invalid
		return false, nil
	}
	literals := int(b[0] >> 3) // one byte of header, RFC 8878, 3.1.1.3.1.1
	at := 1
	if b[0]>>2&1 == 1 {
		if literals, at = int(b[0]>>4)|int(b[1])<<4, 2; b[0]>>3&1 == 1 { // two or three
			return false, nil
		}
	}
	if b[0]&3 == 1 {
		at++ // the repeated byte
	}
	return literals == 0 && at < len(b) && b[at] == 0, nil
}

// flush records the cut zeros, or restores them if the run is too short.
func (c *cutter) flush() {
	if c.dropped >= minCut {
		k := mark{block: c.blocks, zeros: c.dropped, sum: -1}
		if c.sum {
			k.sum = 0 // to be added up
		}
		c.marks.push(k)
	} else {
		for c.dropped > 0 {
			n := min(c.dropped, maxBlock, c.window)
			c.out = append(append(c.out, blockHeader(false, rleBlock, uint32(n))...), 0)
			c.dropped -= n
			c.blocks++
		}
	}
	c.passed, c.dropped = 0, 0
}

// trailer ends a frame.
func (c *cutter) trailer() error {
	c.next = c.frame
	k := mark{block: c.blocks, end: true, size: c.size, sum: -1}
	if c.sum {
		b, err := c.must(4)
		if err != nil {
			return err
		}
		k.sum = int64(binary.LittleEndian.Uint32(b))
	}
	if c.blocks == c.first { // empty frames may be many, and need no mark
		var nothing frameSum
		return nothing.compare(k)
	}
	c.marks.push(k)
	return nil
}

// frameSum is the size and the checksum of a frame's content.
type frameSum struct {
	xxh64
	size int64
}

func (f *frameSum) compare(k mark) error {
	if k.size >= 0 && k.size != f.size {
		return zstd.ErrFrameSizeMismatch
	}
	if k.sum >= 0 && uint32(k.sum) != uint32(f.xxh64.sum()) {
		return zstd.ErrCRCMismatch
	}
	return nil
}

// sparseReader decodes the output of a cutter.
type sparseReader struct {
	d     *zstd.Decoder
	marks *marks

	next func() (item, bool)
	give func(item) bool
	err  error // error at the end
	now  item  // rest of the last one

	blocks int64
	frame  frameSum
}

// item is decoded bytes, valid until the next one, or a number of zeros.
type item struct {
	data  []byte
	zeros int64
}

var errStopped = errors.New("stopped")

// newSparseReader decodes r, with so many blocks in work. One block is decoded in the reader's goroutine; with more,
// the decoder has goroutines of its own, which read r, decode the sequences and execute them. end must be called after
// the last read. With more than one block, a read of r may be in progress until end returns, and end waits for it.
func newSparseReader(r io.Reader, blocks int, o ...zstd.DOption) (s *sparseReader, end func(), err error) {
	s = &sparseReader{marks: &marks{}}
	if s.d, err = zstd.NewReader(newCutter(r, s.marks),
		append(o, zstd.WithDecoderConcurrency(blocks), zstd.IgnoreChecksum(true))...); err != nil {
		return nil, nil, err
	}
	next, stop := iter.Pull(s.items)
	s.next = next
	return s, func() { stop(); s.d.Close() }, nil
}

// items yields the decoder's output, block by block.
func (s *sparseReader) items(yield func(item) bool) {
	s.give = yield
	_, err := s.d.WriteTo(writerFunc(func(b []byte) (int, error) {
		if err := s.marked(s.blocks); err != nil {
			return 0, err
		}
		s.blocks++
		s.frame.write(b)
		s.frame.size += int64(len(b))
		if !yield(item{data: b}) {
			return 0, errStopped
		}
		return len(b), nil
	}))
	if err == nil {
		err = s.marks.cutOff()
	}
	if err == nil {
		err = s.marked(math.MaxInt64)
	}
	err = cmp.Or(err, io.EOF)
	s.err = err
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// marked handles the cutter's marks before a block.
func (s *sparseReader) marked(block int64) error {
	for {
		k, ok := s.marks.pop(block)
		if !ok {
			return nil
		}
		if k.zeros > 0 {
			if k.sum >= 0 {
				s.frame.zeros(k.zeros)
			}
			s.frame.size += k.zeros
			if !s.give(item{zeros: k.zeros}) {
				return errStopped
			}
		}
		if k.end {
			if err := s.frame.compare(k); err != nil {
				return err
			}
			s.frame = frameSum{}
		}
	}
}

// fill gets the next item when the last one is used up.
func (s *sparseReader) fill() error {
	if len(s.now.data) > 0 || s.now.zeros > 0 {
		return nil
	}
	i, ok := s.next()
	if !ok {
		return cmp.Or(s.err, errStopped)
	}
	s.now = i
	return nil
}

func (s *sparseReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := s.fill(); err != nil {
		return 0, err
	}
	if s.now.zeros > 0 {
		n := int(min(int64(len(p)), s.now.zeros))
		clear(p[:n])
		s.now.zeros -= int64(n)
		return n, nil
	}
	n := copy(p, s.now.data)
	s.now.data = s.now.data[n:]
	return n, nil
}

func (s *sparseReader) skipZeros() int64 {
	if s.fill() != nil { // Read returns the error
		return 0
	}
	n := s.now.zeros
	s.now.zeros = 0
	return n
}

// xxh64 is XXH64 with seed 0, zstd's content checksum. github.com/Cyan4973/xxHash, doc/xxhash_spec.md.
type xxh64 struct {
	v     [4]uint64
	buf   [32]byte
	n     int // bytes in buf
	total uint64
}

const (
	xxp1 uint64 = 0x9e3779b185ebca87
	xxp2 uint64 = 0xc2b2ae3d27d4eb4f
	xxp3 uint64 = 0x165667b19e3779f9
	xxp4 uint64 = 0x85ebca77c2b2ae63
	xxp5 uint64 = 0x27d4eb2f165667c5
)

func xxRound(v, lane uint64) uint64 { return bits.RotateLeft64(v+lane*xxp2, 31) * xxp1 }

func (x *xxh64) lanes(b []byte) {
	if x.total < 32 { // the first 32 bytes
		p1 := xxp1
		x.v = [4]uint64{p1 + xxp2, xxp2, 0, -p1}
	}
	v0, v1, v2, v3 := x.v[0], x.v[1], x.v[2], x.v[3]
	for ; len(b) >= 32; b = b[32:] {
		v0 = xxRound(v0, binary.LittleEndian.Uint64(b))
		v1 = xxRound(v1, binary.LittleEndian.Uint64(b[8:]))
		v2 = xxRound(v2, binary.LittleEndian.Uint64(b[16:]))
		v3 = xxRound(v3, binary.LittleEndian.Uint64(b[24:]))
	}
	x.v = [4]uint64{v0, v1, v2, v3}
}

func (x *xxh64) write(b []byte) {
	if x.n > 0 || len(b) < 32 {
		m := copy(x.buf[x.n:], b)
		x.n += m
		b = b[m:]
		if x.n < 32 {
			return
		}
		x.lanes(x.buf[:])
		x.total += 32
		x.n = 0
	}
	whole := len(b) &^ 31
	if whole > 0 {
		x.lanes(b[:whole])
		x.total += uint64(whole)
	}
	x.n = copy(x.buf[:], b[whole:])
}

// zeros writes n zeros without reading memory.
func (x *xxh64) zeros(n int64) {
	var none [64]byte
	if n < int64(len(none)) {
		x.write(none[:n])
		return
	}
	first := 64 - x.n // to a whole lane, and past the beginning
	x.write(none[:first])
	n -= int64(first)
	v0, v1, v2, v3 := x.v[0], x.v[1], x.v[2], x.v[3]
	for range n / 32 {
		v0 = bits.RotateLeft64(v0, 31) * xxp1
		v1 = bits.RotateLeft64(v1, 31) * xxp1
		v2 = bits.RotateLeft64(v2, 31) * xxp1
		v3 = bits.RotateLeft64(v3, 31) * xxp1
	}
	x.v = [4]uint64{v0, v1, v2, v3}
	x.total += uint64(n &^ 31)
	x.write(none[:n%32])
}

func (x *xxh64) sum() uint64 {
	h := xxp5
	if x.total >= 32 {
		v := x.v
		h = bits.RotateLeft64(v[0], 1) + bits.RotateLeft64(v[1], 7) + bits.RotateLeft64(v[2], 12) +
			bits.RotateLeft64(v[3], 18)
		for _, l := range v {
			h = (h^xxRound(0, l))*xxp1 + xxp4
		}
	}
	h += x.total + uint64(x.n)
	b := x.buf[:x.n]
	for ; len(b) >= 8; b = b[8:] {
		h = bits.RotateLeft64(h^xxRound(0, binary.LittleEndian.Uint64(b)), 27)*xxp1 + xxp4
	}
	if len(b) >= 4 {
		h = bits.RotateLeft64(h^uint64(binary.LittleEndian.Uint32(b))*xxp1, 23)*xxp2 + xxp3
		b = b[4:]
	}
	for _, c := range b {
		h = bits.RotateLeft64(h^uint64(c)*xxp5, 11) * xxp1
	}
	h ^= h >> 33
	h *= xxp2
	h ^= h >> 29
	h *= xxp3
	return h ^ h>>32
}
