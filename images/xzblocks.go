package images

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"hash/crc32"
	"io"
	"runtime"
	"sync"

	"github.com/mikelolasagasti/xz"
)

// An xz file may be many blocks, as "xz -T" makes them. Nothing in a block refers to another one, so several are
// unpacked at once. A splitter in front finds their ends by the sizes of their LZMA2 chunks, which takes no decoding,
// and makes a stream of its own of each, with an index of one record. So the decoder checks everything in a block, also
// the sizes that its header states; the splitter checks the file's own indexes and footers.
//
// A block in front of others is passed on while it is unpacked. The others wait with what they have once the memory is
// used up, and go on when it is their turn: half of a block that waits is enough for two to be busy all the time.

const (
	// xzPiece is the size in which packed and unpacked bytes are passed on.
	xzPiece = 64 << 10
	// leastDict is more than a decoder takes besides its dictionary.
	leastDict = 256 << 10
)

var xzMagic = []byte("\xfd7zXZ\x00")

// xzCheckSizes are the bytes of the supported checks: none, CRC-32, CRC-64 and SHA-256.
var xzCheckSizes = map[byte]int{0: 0, 1: 4, 4: 8, 10: 32}

// xzMemory returns how many bytes dictionaries and pieces of several blocks may take. A write of 48 MiB has half of
// the window for its decoder.
func xzMemory(l Limits) int64 { return int64(l.Window/2) + l.Memory }

// xzAtOnce returns how many blocks with dictionaries of so many bytes are unpacked at once in so much memory. A block
// is usually three dictionaries long.
func xzAtOnce(dict, memory int64) int {
	return int(min(int64(runtime.GOMAXPROCS(0)), 1+memory/(3*dict)))
}

// severalBlocks reports, by the beginning of the file, whether it is of blocks that may be unpacked at once: their
// headers state their sizes, which xz does if it may use several cores.
func severalBlocks(head []byte, l Limits) bool {
	const at = 12 // length of the stream's header
	if len(head) <= at || len(head) < at+xzHeaderSize(head[at]) || head[at] == 0 {
		return false
	}
	header := head[at : at+xzHeaderSize(head[at])]
	dict, ok := xzDict(header)
	return ok && header[1]&0xc0 == 0xc0 && xzAtOnce(dict, xzMemory(l)) > 1
}

func xzHeaderSize(first byte) int { return (int(first) + 1) * 4 }

// xzDict returns the size of the dictionary by a block's header, and at least leastDict. Without ok the decoder will
// refuse the header.
func xzDict(header []byte) (size int64, ok bool) {
	r := bytes.NewReader(header[2 : len(header)-4])
	for _, stated := range []byte{0x40, 0x80} {
		if header[1]&stated != 0 {
			if _, err := vli(r); err != nil {
				return leastDict, false
			}
		}
	}
	for range header[1] & 3 {
		_, err := vli(r)
		n, err2 := vli(r)
		if err != nil || err2 != nil || n > uint64(r.Len()) {
			return leastDict, false
		}
		if _, err := r.Seek(int64(n), io.SeekCurrent); err != nil {
			return leastDict, false
		}
	}
	var last [3]byte // LZMA2, one byte of properties
	if _, err := io.ReadFull(r, last[:]); err != nil || last[0] != 0x21 || last[1] != 1 || last[2] > 40 {
		return leastDict, false
	}
	return max(leastDict, int64(2+last[2]&1)<<(last[2]/2+11)), true
}

// vli reads a number as xz writes it.
func vli(r io.ByteReader) (uint64, error) {
	var v uint64
	for i := range 9 {
		b, err := r.ReadByte()
		if err != nil {
			return 0, err
		}
		v |= uint64(b&0x7f) << (7 * i)
		if b&0x80 == 0 {
			if b == 0 && i > 0 {
				return 0, xz.ErrData
			}
			return v, nil
		}
	}
	return 0, xz.ErrData
}

// xzBlock is a block that is being unpacked, and a reader of the stream made of it for its decoder.
type xzBlock struct {
	all    *xzBlocks
	dict   int64
	packed [][]byte
	at     int   // in the first piece
	end    error // after packed; nil: more follows
	data   [][]byte
	done   bool
	err    error // once it is done
}

// xzBlocks decodes a file of several blocks, in order.
type xzBlocks struct {
	window uint32
	memory int64
	work   sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	queue   []*xzBlock // in order
	end     error      // after the queue; nil: more follows
	stopped bool

	// Bytes of memory. One block, and one piece of the first one, has room in any case.
	active  int   // decoders
	dicts   int64 // their dictionaries
	waiting int64 // packed pieces
	held    int64 // all pieces
	pool    int64 // the most for pieces

	dict  int64 // of spare
	spare []*xz.Reader
	free  [][]byte // pieces

	now, left []byte // of the reader
	err       error
}

// newXZBlocks starts to decode r with dictionaries and pieces of xzMemory bytes. end must be called after the last
// read; a read of r may be in progress until it returns, and it waits for that.
func newXZBlocks(r io.Reader, l Limits) (*xzBlocks, func()) {
	x := &xzBlocks{window: xzWindow(l), memory: xzMemory(l)}
	x.changed = sync.NewCond(&x.mu)
	x.work.Go(func() {
		s := &xzSplitter{in: bufio.NewReaderSize(r, xzPiece), all: x}
		err := s.file()
		x.set(func() { x.end = err })
	})
	return x, x.close
}

// set changes the state.
func (x *xzBlocks) set(change func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	change()
	x.changed.Broadcast()
}

// wait waits until a condition holds, and changes the state then. It returns false if the decoding is ended instead.
func (x *xzBlocks) wait(until func() bool, change func()) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for !x.stopped && !until() {
		x.changed.Wait()
	}
	if x.stopped {
		return false
	}
	change()
	x.changed.Broadcast()
	return true
}

// start begins a block once there is memory for its dictionary.
func (x *xzBlocks) start(q *xzBlock) bool {
	atOnce := xzAtOnce(q.dict, x.memory)
	ready := func() bool {
		room := x.active < atOnce && x.dicts+q.dict+x.held <= x.memory
		return len(x.queue) < 2*runtime.GOMAXPROCS(0) && (room || x.active == 0 && x.held == 0)
	}
	if !x.wait(ready, func() {
		if x.dict != q.dict { // the memory is for others now
			x.dict, x.spare, x.free = q.dict, nil, nil
		}
		x.pool = max(0, x.memory-int64(atOnce)*q.dict)
		x.active++
		x.dicts += q.dict
		x.queue = append(x.queue, q)
	}) {
		return false
	}
	x.work.Go(func() {
		err := x.unpack(q)
		x.set(func() {
			for range q.packed { // of a damaged block
				x.waiting -= xzPiece
				x.held -= xzPiece
			}
			q.packed, q.err, q.done = nil, err, true
			x.active--
			x.dicts -= q.dict
		})
	})
	return true
}

// piece returns memory for a piece.
func (x *xzBlocks) piece() []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := len(x.free); n > 0 {
		p := x.free[n-1]
		x.free = x.free[:n-1]
		return p
	}
	return make([]byte, xzPiece)
}

// room reports whether there is memory for one more piece.
func (x *xzBlocks) room() bool {
	return x.held+xzPiece <= x.pool && x.held+x.dicts+xzPiece <= x.memory
}

// feed passes packed bytes to a block. A quarter of the pieces is for them, else they would leave no room to unpack.
func (x *xzBlocks) feed(q *xzBlock, p []byte) bool {
	return x.wait(func() bool {
		return len(q.packed) == 0 || q.done || x.room() && x.waiting+xzPiece <= x.pool/4
	}, func() {
		if q.done {
			return
		}
		q.packed = append(q.packed, p)
		x.waiting += xzPiece
		x.held += xzPiece
	})
}

// Read reads the packed block.
func (q *xzBlock) Read(b []byte) (n int, err error) {
	x := q.all
	if !x.wait(func() bool { return len(q.packed) > 0 || q.end != nil }, func() {
		if len(q.packed) == 0 {
			err = q.end
			return
		}
		n = copy(b, q.packed[0][q.at:])
		if q.at += n; q.at == len(q.packed[0]) {
			x.free = append(x.free, q.packed[0][:xzPiece])
			q.packed, q.at = q.packed[1:], 0
			x.waiting -= xzPiece
			x.held -= xzPiece
		}
	}) {
		return 0, errStopped
	}
	return n, err
}

// unpack decodes a block.
func (x *xzBlocks) unpack(q *xzBlock) error {
	var d *xz.Reader
	x.set(func() {
		if n := len(x.spare); n > 0 && x.dict == q.dict {
			d, x.spare = x.spare[n-1], x.spare[:n-1]
		}
	})
	var err error
	if d == nil {
		d, err = xz.NewReader(q, x.window)
	} else {
		err = d.Reset(q)
	}
	for err == nil {
		p, n := x.piece(), 0
		n, err = d.Read(p)
		if !x.wait(func() bool { return n == 0 || x.room() || x.queue[0] == q && len(q.data) == 0 }, func() {
			if n == 0 {
				x.free = append(x.free, p)
				return
			}
			q.data = append(q.data, p[:n])
			x.held += xzPiece
		}) {
			return errStopped
		}
	}
	if err != io.EOF {
		return err
	}
	x.set(func() {
		if x.dict == q.dict {
			x.spare = append(x.spare, d)
		}
	})
	return nil
}

func (x *xzBlocks) Read(b []byte) (int, error) {
	for len(x.left) == 0 {
		if x.err != nil {
			return 0, x.err
		}
		x.next()
	}
	n := copy(b, x.left)
	x.left = x.left[n:]
	return n, nil
}

// next turns to the next piece, or to the error at the end.
func (x *xzBlocks) next() {
	if x.now != nil {
		x.set(func() {
			x.free = append(x.free, x.now[:xzPiece])
			x.held -= xzPiece
			x.now = nil
		})
	}
	if !x.wait(func() bool {
		return len(x.queue) == 0 && x.end != nil || len(x.queue) > 0 && (len(x.queue[0].data) > 0 || x.queue[0].done)
	}, func() {
		if len(x.queue) == 0 {
			x.err = x.end
			return
		}
		q := x.queue[0]
		if len(q.data) > 0 {
			x.now, q.data = q.data[0], q.data[1:]
			x.left = x.now
			return
		}
		x.err = q.err
		x.queue = x.queue[1:]
	}) {
		x.err = errStopped
	}
}

func (x *xzBlocks) close() {
	x.set(func() { x.stopped = true })
	x.work.Wait()
}

// xzSplitter takes blocks from a file.
type xzSplitter struct {
	in  *bufio.Reader
	all *xzBlocks

	header [12]byte // of the stream
	check  int      // bytes after a block
	count  uint64   // of the stream's blocks
	sizes  hash.Hash

	q    *xzBlock
	buf  []byte // of q, not yet passed to it
	size uint64 // bytes of the block so far
}

// file reads all streams, and returns io.EOF at the end of the file.
func (s *xzSplitter) file() error {
	for {
		if err := s.stream(); err != nil {
			return short(err)
		}
		zeros := 0
		for {
			b, err := s.in.ReadByte()
			if err == nil && b == 0 {
				zeros++
				continue
			}
			if err == nil {
				err = s.in.UnreadByte()
			}
			if zeros%4 != 0 {
				return cmp.Or(notEOF(err), xz.ErrData)
			}
			if err != nil {
				return err
			}
			break
		}
	}
}

func notEOF(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}

// stream reads one stream.
func (s *xzSplitter) stream() error {
	if _, err := io.ReadFull(s.in, s.header[:]); err != nil {
		return err
	}
	flags, known := s.header[6:8], false
	s.check, known = xzCheckSizes[flags[1]&0xf]
	switch {
	case !bytes.Equal(s.header[:6], xzMagic):
		return xz.ErrFormat
	case crc32.ChecksumIEEE(flags) != binary.LittleEndian.Uint32(s.header[8:]):
		return xz.ErrData
	case flags[0] != 0 || flags[1] > 0xf:
		return xz.ErrOptions
	case !known:
		return xz.ErrUnsupportedCheck
	}
	s.count, s.sizes = 0, sha256.New()
	for {
		b, err := s.in.Peek(1)
		if err != nil {
			return err
		}
		if b[0] == 0 {
			return s.index()
		}
		s.q = &xzBlock{all: s.all}
		err = s.block(xzHeaderSize(b[0]))
		s.all.set(func() { s.q.end = cmp.Or(short(err), io.EOF) })
		if err != nil {
			return err
		}
	}
}

// block passes the next block to a decoder.
func (s *xzSplitter) block(n int) error {
	header := make([]byte, n)
	if _, err := io.ReadFull(s.in, header); err != nil {
		return err
	}
	dict, _ := xzDict(header)
	s.q.dict = min(dict, int64(s.all.window))
	if !s.all.start(s.q) {
		return errStopped
	}
	s.buf, s.size = append(s.all.piece()[:0], s.header[:]...), uint64(n)
	s.buf = append(s.buf, header...) // at most 1 KiB
	unpacked, err := s.chunks()
	if err != nil {
		return err
	}
	size := s.size + uint64(s.check)
	if err := s.move(int(-s.size&3) + s.check); err != nil {
		return err
	}
	s.count++
	s.sizes.Write(xzRecord(size, unpacked))

	index := binary.AppendUvarint(binary.AppendUvarint([]byte{0, 1}, size), unpacked)
	index = append(index, make([]byte, -len(index)&3)...)
	index = binary.LittleEndian.AppendUint32(index, crc32.ChecksumIEEE(index))
	footer := binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4-1))
	footer = append(footer, s.header[6:8]...)
	index = binary.LittleEndian.AppendUint32(index, crc32.ChecksumIEEE(footer))
	index = append(append(index, footer...), "YZ"...)
	if len(s.buf)+len(index) > xzPiece && !s.pass() {
		return errStopped
	}
	if s.buf = append(s.buf, index...); !s.all.feed(s.q, s.buf) {
		return errStopped
	}
	s.buf = nil
	return nil
}

// chunks passes the LZMA2 chunks of a block to its decoder, and returns the size of what they unpack to.
func (s *xzSplitter) chunks() (uint64, error) {
	unpacked := uint64(0)
	for {
		b, err := s.in.Peek(1)
		if err != nil {
			return 0, err
		}
		control, n := b[0], 3
		switch {
		case control == 0:
			return unpacked, s.move(1)
		case control >= 0xc0:
			n = 6
		case control >= 0x80:
			n = 5
		case control > 2:
			return 0, xz.ErrData
		}
		if b, err = s.in.Peek(n); err != nil {
			return 0, err
		}
		size := int(binary.BigEndian.Uint16(b[1:])) + 1
		if unpacked += uint64(size); control >= 0x80 {
			unpacked += uint64(control&0x1f) << 16
			size = int(binary.BigEndian.Uint16(b[3:])) + 1
		}
		if err := s.move(n + size); err != nil {
			return 0, err
		}
	}
}

// move passes the next n bytes of the file to the block.
func (s *xzSplitter) move(n int) error {
	s.size += uint64(n)
	for n > 0 {
		if len(s.buf) == xzPiece && !s.pass() {
			return errStopped
		}
		at := len(s.buf)
		m := min(n, xzPiece-at)
		s.buf = s.buf[:at+m]
		if _, err := io.ReadFull(s.in, s.buf[at:]); err != nil {
			return err
		}
		n -= m
	}
	return nil
}

// pass gives the bytes so far to the block's decoder.
func (s *xzSplitter) pass() bool {
	if !s.all.feed(s.q, s.buf) {
		return false
	}
	s.buf = s.all.piece()[:0]
	return true
}

// xzRecord returns what is summed up of a block: its size without padding and that of its content.
func xzRecord(size, unpacked uint64) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, size), unpacked)
}

// index compares a stream's index with its blocks, and reads its footer.
func (s *xzSplitter) index() error {
	in := &summing{in: s.in, crc: crc32.NewIEEE()}
	if _, err := in.ReadByte(); err != nil {
		return err
	}
	n, err := vli(in)
	if err != nil {
		return err
	}
	if n != s.count {
		return xz.ErrData
	}
	sizes := sha256.New()
	for range n {
		size, err := vli(in)
		if err != nil {
			return err
		}
		unpacked, err := vli(in)
		if err != nil {
			return err
		}
		sizes.Write(xzRecord(size, unpacked))
	}
	for in.n%4 != 0 {
		if b, err := in.ReadByte(); err != nil || b != 0 {
			return cmp.Or(err, xz.ErrData)
		}
	}
	var b [16]byte // CRC-32; CRC-32, size, flags, magic number
	if _, err := io.ReadFull(s.in, b[:]); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(b[:]) != in.crc.Sum32() ||
		binary.LittleEndian.Uint32(b[4:]) != crc32.ChecksumIEEE(b[8:14]) ||
		uint64(binary.LittleEndian.Uint32(b[8:])) != in.n/4 ||
		!bytes.Equal(b[12:14], s.header[6:8]) || !bytes.Equal(b[14:], []byte("YZ")) ||
		!bytes.Equal(sizes.Sum(nil), s.sizes.Sum(nil)) {
		return xz.ErrData
	}
	return nil
}

// summing sums up what is read byte by byte.
type summing struct {
	in  *bufio.Reader
	crc hash.Hash32
	n   uint64
}

func (s *summing) ReadByte() (byte, error) {
	b, err := s.in.ReadByte()
	if err == nil {
		s.n++
		_, err = s.crc.Write([]byte{b})
	}
	return b, err
}
