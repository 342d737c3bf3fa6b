package index

import (
	"bytes"
	"errors"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// decoders keeps the decoders' memory (a few hundred KiB each) for the next chunk.
var decoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(ChunkSize), zstd.WithDecoderMaxMemory(ChunkSize))
	if err != nil {
		panic(err) // only for contradictory options
	}
	return d
}}

// DecodeChunk decodes a stored chunk into dst, which must have exactly the decoded length. Stored must be one frame
// with its content size, of zstd without a dictionary or of LZ4 as EncodeLZ4 makes it, and nothing else. It may be
// called from any number of goroutines; memory is bounded, and dst is garbage after an error.
func DecodeChunk(stored, dst []byte) error {
	if len(dst) > ChunkSize {
		panic("index: DecodeChunk of more than a chunk")
	}
	if IsLZ4(stored) {
		if err := decodeLZ4(stored, dst); err != nil {
			return refuse(remedyObject, "a chunk is not packed as it must be: %w", err)
		}
		return nil
	}
	if err := oneFrame(stored, len(dst)); err != nil {
		return refuse(remedyObject, "a chunk is not packed as it must be: %w", err)
	}
	d := decoders.Get().(*zstd.Decoder)
	defer decoders.Put(d)
	out, err := d.DecodeAll(stored, dst[:0:len(dst)])
	if err != nil {
		return refuse(remedyObject, "unpack a chunk: %w", err)
	}
	if len(out) != len(dst) || len(out) > 0 && &out[0] != &dst[0] {
		return refuse(remedyObject, "a chunk unpacks to %d bytes, not to %d", len(out), len(dst))
	}
	return nil
}

// oneFrame checks the framing of a zstd frame (RFC 8878): exactly one frame with exactly want bytes, and nothing after
// it.
func oneFrame(b []byte, want int) error {
	var h zstd.Header
	if err := h.Decode(b); err != nil {
		return err
	}
	switch {
	case h.Skippable:
		return errors.New("it is a skippable frame")
	case h.DictionaryID != 0:
		return errors.New("it wants a dictionary")
	case !h.HasFCS:
		return errors.New("its frame does not tell its size")
	case h.FrameContentSize != uint64(want):
		return errors.New("its frame has another size than the chunk")
	}
	b = b[h.HeaderSize:]
	for last := false; !last; {
		if len(b) < 3 {
			return errors.New("its frame is truncated")
		}
		v := uint(b[0]) | uint(b[1])<<8 | uint(b[2])<<16
		last = v&1 != 0
		n := int(v >> 3)
		if v>>1&3 == 1 { // one byte, repeated
			n = 1
		}
		if b = b[3:]; len(b) < n {
			return errors.New("its frame is truncated")
		}
		b = b[n:]
	}
	if h.HasCheckSum {
		b = b[min(4, len(b)):]
	}
	if len(b) != 0 {
		return errors.New("something follows its frame")
	}
	return nil
}

// IsZero reports whether b is all zeros.
func IsZero(b []byte) bool {
	const step = 4096
	for len(b) > step {
		if !bytes.Equal(b[:step], zeros[:]) {
			return false
		}
		b = b[step:]
	}
	return bytes.Equal(b, zeros[:len(b)])
}

var zeros [4096]byte
