package images

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math/bits"

	"github.com/pierrec/lz4/v4"
)

// The LZ4 frame format, by its specification (lz4_Frame_format.md, version 1.6). The lz4 library decodes the blocks;
// its own frame reader accepts some truncated files as complete.
const (
	lz4Frame  = 0x184d2204
	lz4Legacy = 0x184c2102 // blocks without end mark or checksums
	lz4Skip   = 0x184d2a50 // to ...5f: a frame to be skipped

	lz4LegacyBlock = 8 << 20
	lz4Past        = 64 << 10 // how far back a block may refer

	lz4Independent = 0x20 // of the flags
	lz4BlockSum    = 0x10
	lz4HasSize     = 0x08
	lz4ContentSum  = 0x04
	lz4Reserved    = 0x02
	lz4HasDict     = 0x01
)

var errLZ4 = errors.New("invalid lz4 frame")

// lz4Header is the header of a frame.
type lz4Header struct {
	legacy bool
	flags  byte
	block  int    // maximum bytes of a decoded block
	size   uint64 // of the content, if set in flags
}

// parseLZ4Frame parses a frame's header and returns its length, 0 if b is too short.
func parseLZ4Frame(b []byte) (lz4Header, int, error) {
	if len(b) < 4 {
		return lz4Header{}, 0, nil
	}
	switch binary.LittleEndian.Uint32(b) {
	case lz4Legacy:
		return lz4Header{legacy: true, block: lz4LegacyBlock}, 4, nil
	case lz4Frame:
	default:
		return lz4Header{}, 0, errLZ4
	}
	if len(b) < 6 {
		return lz4Header{}, 0, nil
	}
	h := lz4Header{flags: b[4]}
	n := 6
	if h.flags&lz4HasSize != 0 {
		n += 8
	}
	if h.flags&lz4HasDict != 0 {
		n += 4
	}
	if len(b) < n+1 {
		return lz4Header{}, 0, nil
	}
	id := b[5] >> 4
	if h.flags>>6 != 1 || h.flags&lz4Reserved != 0 || b[5]&0x8f != 0 || id < 4 || b[n] != byte(xxh32(b[4:n])>>8) {
		return lz4Header{}, 0, errLZ4
	}
	if h.flags&lz4HasDict != 0 {
		return lz4Header{}, 0,
			refuse("pack the image again without a dictionary file",
				"unpacking the image needs a dictionary that does not come with it")
	}
	h.block = 1 << (8 + 2*id) // 64 KiB, 256 KiB, 1 MiB, 4 MiB
	if h.flags&lz4HasSize != 0 {
		h.size = binary.LittleEndian.Uint64(b[6:])
	}
	return h, n + 1, nil
}

// lz4Reader decodes one or more frames.
type lz4Reader struct {
	in    *bufio.Reader
	l     Limits
	frame *lz4Header // nil between frames
	sum   xxHash32   // of the frame's content
	count uint64     // bytes of it
	short bool       // a block of a legacy frame was not full: it must be the last

	packed []byte
	mem    []byte // history for references, then the block
	past   int    // bytes of mem before the block
	now    []byte // rest of the block
	err    error
}

//
//nolint:unparam a row of the table of decoders
func openLZ4(r io.Reader, _ []byte, l Limits) (io.Reader, func(), error) {
	z := &lz4Reader{in: bufio.NewReaderSize(r, 128<<10), l: l}
	return z, nil, z.begin()
}

func (z *lz4Reader) Read(p []byte) (int, error) {
	for len(z.now) == 0 {
		if z.err == nil {
			z.err = z.advance()
		}
		if z.err != nil {
			return 0, z.err
		}
	}
	n := copy(p, z.now)
	z.now = z.now[n:]
	return n, nil
}

// begin reads the header of a frame. io.EOF means that there is none.
func (z *lz4Reader) begin() error {
	var h lz4Header
	for {
		b, err := z.in.Peek(19) // the longest header
		if len(b) == 0 {
			return err
		}
		if len(b) < 4 {
			return unexpected(err)
		}
		if binary.LittleEndian.Uint32(b)&^0xf == lz4Skip {
			if len(b) < 8 {
				return unexpected(err)
			}
			if err := z.discard(8 + int64(binary.LittleEndian.Uint32(b[4:]))); err != nil {
				return err
			}
			continue
		}
		var n int
		if h, n, err = parseLZ4Frame(b); err != nil {
			if errors.Is(err, errLZ4) && z.mem != nil {
				return trailing(LZ4)
			}
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		if _, err := z.in.Discard(n); err != nil {
			return unexpected(err)
		}
		break
	}
	if uint64(h.block) > z.l.Window {
		return windowError(LZ4, uint64(h.block), z.l)
	}
	if len(z.mem) < lz4Past+h.block {
		z.mem, z.packed = make([]byte, lz4Past+h.block), make([]byte, lz4.CompressBlockBound(h.block))
	}
	z.frame, z.sum, z.count, z.short, z.past = &h, newXXHash32(), 0, false, 0
	return nil
}

func (z *lz4Reader) discard(n int64) error {
	for n > 0 {
		m, err := z.in.Discard(int(min(n, 1<<20)))
		if err != nil {
			return unexpected(err)
		}
		n -= int64(m)
	}
	return nil
}

// advance decodes the next block.
func (z *lz4Reader) advance() error {
	if z.frame == nil {
		return z.begin()
	}
	h := z.frame
	if h.legacy { // it ends with the file or at another frame
		b, err := z.in.Peek(4)
		if len(b) == 0 {
			return err
		}
		if len(b) == 4 {
			if magic := binary.LittleEndian.Uint32(b); magic == lz4Frame || magic == lz4Legacy ||
				magic&^0xf == lz4Skip {
				return z.begin()
			}
		}
	}
	word, err := z.word()
	if err != nil {
		return unexpected(err)
	}
	if word == 0 && !h.legacy {
		return z.end()
	}
	plain := !h.legacy && word>>31 != 0
	size := int64(word)
	if !h.legacy {
		size = int64(word &^ (1 << 31))
	}
	// An uncompressed block is at most a block long, and a compressed one that is larger than its content would have
	// been stored uncompressed.
	if size == 0 || z.short || !h.legacy && size > int64(h.block) || size > int64(len(z.packed)) {
		return errLZ4
	}
	packed := z.packed[:size]
	if err := z.full(packed); err != nil {
		return err
	}
	if h.flags&lz4BlockSum != 0 {
		if word, err := z.word(); err != nil {
			return unexpected(err)
		} else if word != xxh32(packed) {
			return errors.New("a block's check sum is wrong")
		}
	}
	dst := z.mem[z.past : z.past+h.block]
	n := 0
	if plain {
		n = copy(dst, packed)
	} else if n, err = lz4.UncompressBlockWithDict(packed, dst, z.mem[:z.past]); err != nil {
		return errors.New("a block can't be unpacked")
	}
	z.short = h.legacy && n < h.block
	z.count += uint64(n)
	if h.flags&lz4ContentSum != 0 {
		z.sum.write(dst[:n])
	}
	if z.count > h.size && h.flags&lz4HasSize != 0 {
		return errLZ4
	}
	z.now = dst[:n]
	if !h.legacy && h.flags&lz4Independent == 0 {
		// The next block follows its history. That moves the bytes of this one, which are still to be read.
		end := z.past + n
		z.past = min(end, lz4Past)
		if end > lz4Past {
			z.slide(end)
		}
	}
	return nil
}

// slide keeps the newest bytes of mem as history, and the present block for its reader.
func (z *lz4Reader) slide(end int) {
	z.now = append(z.packed[:0], z.now...) // its compressed bytes are no longer needed
	copy(z.mem, z.mem[end-lz4Past:end])
}

// end checks the data after a frame's last block.
func (z *lz4Reader) end() error {
	h := z.frame
	z.frame = nil
	if h.flags&lz4HasSize != 0 && z.count != h.size {
		return errLZ4
	}
	if h.flags&lz4ContentSum == 0 {
		return nil
	}
	word, err := z.word()
	if err != nil {
		return unexpected(err)
	}
	if word != z.sum.sum() {
		return errors.New("the check sum of the unpacked data is wrong")
	}
	return nil
}

func (z *lz4Reader) word() (uint32, error) {
	var b [4]byte
	_, err := io.ReadFull(z.in, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

func (z *lz4Reader) full(b []byte) error {
	_, err := io.ReadFull(z.in, b)
	return unexpected(err)
}

// unexpected converts io.EOF to io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// xxHash32 is LZ4's checksum (xxhash_spec.md), with seed 0.
type xxHash32 struct {
	v    [4]uint32
	n    uint64
	rest [16]byte
}

const (
	xx1 uint32 = 2654435761
	xx2 uint32 = 2246822519
	xx3 uint32 = 3266489917
	xx4 uint32 = 668265263
	xx5 uint32 = 374761393
)

func newXXHash32() xxHash32 {
	one, two := xx1, xx2 // the sums overflow, which constants may not
	return xxHash32{v: [4]uint32{one + two, two, 0, -one}}
}

func xxh32(b []byte) uint32 {
	x := newXXHash32()
	x.write(b)
	return x.sum()
}

func (x *xxHash32) write(b []byte) {
	have := int(x.n % 16)
	x.n += uint64(len(b))
	if have > 0 {
		m := copy(x.rest[have:], b)
		if have+m < 16 {
			return
		}
		b = b[m:]
		x.stripes(x.rest[:])
	}
	whole := len(b) &^ 15
	x.stripes(b[:whole])
	copy(x.rest[:], b[whole:])
}

func (x *xxHash32) stripes(b []byte) {
	v0, v1, v2, v3 := x.v[0], x.v[1], x.v[2], x.v[3]
	for ; len(b) >= 16; b = b[16:] {
		v0 = bits.RotateLeft32(v0+binary.LittleEndian.Uint32(b[0:4])*xx2, 13) * xx1
		v1 = bits.RotateLeft32(v1+binary.LittleEndian.Uint32(b[4:8])*xx2, 13) * xx1
		v2 = bits.RotateLeft32(v2+binary.LittleEndian.Uint32(b[8:12])*xx2, 13) * xx1
		v3 = bits.RotateLeft32(v3+binary.LittleEndian.Uint32(b[12:16])*xx2, 13) * xx1
	}
	x.v = [4]uint32{v0, v1, v2, v3}
}

func (x *xxHash32) sum() uint32 {
	h := x.v[2] + xx5
	if x.n >= 16 {
		h = bits.RotateLeft32(x.v[0], 1) + bits.RotateLeft32(x.v[1], 7) + bits.RotateLeft32(x.v[2], 12) +
			bits.RotateLeft32(x.v[3], 18)
	}
	h += uint32(x.n)
	b := x.rest[:x.n%16]
	for ; len(b) >= 4; b = b[4:] {
		h = bits.RotateLeft32(h+binary.LittleEndian.Uint32(b)*xx3, 17) * xx4
	}
	for _, c := range b {
		h = bits.RotateLeft32(h+uint32(c)*xx5, 11) * xx1
	}
	h ^= h >> 15
	h *= xx2
	h ^= h >> 13
	h *= xx3
	return h ^ h>>16
}
