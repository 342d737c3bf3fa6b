package qcow2

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/ingot-metal/ingot/images/qcow2/inflate"
)

// decoder decompresses clusters, one at a time.
type decoder struct {
	zstd    *zstd.Decoder // or
	deflate *inflate.Decoder
	whole   []byte // for a cluster that is needed only in part
}

func newDecoder(isZstd bool) (*decoder, error) {
	if !isZstd {
		return &decoder{deflate: &inflate.Decoder{}}, nil
	}
	// The window is not allocated: a whole cluster is one buffer anyway. The limit is QEMU's.
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(128<<20), zstd.WithDecodeAllCapLimit(true))
	return &decoder{zstd: z}, err
}

func (d *decoder) close() {
	if d.zstd != nil {
		d.zstd.Close()
	}
}

// cluster decompresses src into dst[:n], exactly n bytes. Bytes after that in dst may be overwritten; bytes after the
// compressed data in src are ignored.
func (d *decoder) cluster(dst []byte, n int, src []byte) error {
	if d.zstd == nil {
		return d.deflate.Decode(dst[:n], src)
	}
	end, size, err := frame(src)
	if err != nil {
		return err
	}
	// The decoder is faster with space after its output. If the frame's header has no size, the capacity is the limit.
	room := dst[:0:n]
	if size == int64(n) {
		room = dst[:0]
	}
	out, err := d.zstd.DecodeAll(src[:end], room)
	if err != nil {
		return err
	}
	if len(out) != n {
		return fmt.Errorf("it is %d bytes", len(out))
	}
	if &out[0] != &dst[0] {
		copy(dst, out)
	}
	return nil
}

// frame returns the end of a zstd frame, and the size of its content or -1. The following bytes belong to another
// cluster. RFC 8878, 3.1.1.
func frame(b []byte) (end int, size int64, err error) {
	short := errors.New("its zstd frame is cut off")
	if len(b) < 6 {
		return 0, 0, short
	}
	if binary.LittleEndian.Uint32(b) != 0xfd2fb528 {
		return 0, 0, errors.New("it is no zstd frame")
	}
	flags := b[4]
	single := flags&0x20 != 0
	pos := 5
	if !single {
		pos++
	}
	pos += []int{0, 1, 2, 4}[flags&3]
	n := []int{0, 2, 4, 8}[flags>>6]
	if n == 0 && single {
		n = 1
	}
	if len(b) < pos+n {
		return 0, 0, short
	}
	var field [8]byte
	copy(field[:], b[pos:pos+n])
	v := binary.LittleEndian.Uint64(field[:])
	switch {
	case n == 0:
		size = -1
	case n == 2:
		size = int64(v) + 256
	case v > 1<<32:
		return 0, 0, errors.New("it is larger than it should be")
	default:
		size = int64(v)
	}
	pos += n
	for {
		if len(b) < pos+3 {
			return 0, 0, short
		}
		h := int(b[pos]) | int(b[pos+1])<<8 | int(b[pos+2])<<16
		pos += 3
		if kind := h >> 1 & 3; kind == 1 {
			pos++
		} else {
			pos += h >> 3
		}
		if h&1 != 0 {
			break
		}
	}
	if flags&4 != 0 {
		pos += 4
	}
	if len(b) < pos {
		return 0, 0, short
	}
	return pos, size, nil
}
