package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"

	"github.com/pierrec/lz4/v4"
)

// A chunk may be an LZ4 frame (lz4_Frame_format.md, version 1.6) instead of a zstd frame, as marked by a flag of the
// index. It has only one form: a block of up to 4 MiB, and a header with the content's size. It has no checksums, since
// the object's digest is stronger. LZ4 data is half as large again as zstd's, and decodes more than twice as fast.

const (
	lz4Magic  = 0x184d2204
	lz4Flags  = 0x68 // version 1, independent blocks, content size
	lz4Block  = 0x70 // of up to 4 MiB
	lz4Header = 4 + 2 + 8 + 1
	lz4Plain  = 1 << 31 // of a block's size: stored uncompressed
)

// IsLZ4 reports whether a stored chunk is an LZ4 frame.
func IsLZ4(stored []byte) bool {
	return len(stored) >= 4 && binary.LittleEndian.Uint32(stored) == lz4Magic
}

// lz4HeaderOf returns the header of a frame with n bytes of content.
func lz4HeaderOf(n int) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(make([]byte, 0, lz4Header), lz4Magic)
	b = append(b, lz4Flags, lz4Block)
	b = le.AppendUint64(b, uint64(n))
	return append(b, byte(xxh32Short(b[4:])>>8))
}

// EncodeLZ4 compresses a chunk of 1 to ChunkSize bytes into an LZ4 frame, reproducibly.
func EncodeLZ4(raw []byte) ([]byte, error) {
	le := binary.LittleEndian
	b := append(make([]byte, 0, lz4Header+4+lz4.CompressBlockBound(len(raw))+4), lz4HeaderOf(len(raw))...)
	at := len(b)
	b = b[:cap(b)]
	n, err := lz4.CompressBlock(raw, b[at+4:], nil)
	if err != nil {
		return nil, err
	}
	size := uint32(n)
	if n == 0 || n >= len(raw) {
		n = copy(b[at+4:], raw)
		size = uint32(n) | lz4Plain
	}
	le.PutUint32(b[at:], size)
	return le.AppendUint32(b[:at+4+n], 0), nil
}

func decodeLZ4(b, dst []byte) error {
	if len(dst) == 0 || !bytes.HasPrefix(b, lz4HeaderOf(len(dst))) {
		return errors.New("its lz4 frame has another header, or another size, than it must have")
	}
	b = b[lz4Header:]
	if len(b) < 8 {
		return errors.New("its lz4 frame is truncated")
	}
	size := binary.LittleEndian.Uint32(b)
	block := b[4 : len(b)-4]
	if uint64(size&^lz4Plain) != uint64(len(block)) || binary.LittleEndian.Uint32(b[len(b)-4:]) != 0 {
		return errors.New("its lz4 frame is not one block, and nothing else")
	}
	if size&lz4Plain != 0 {
		if len(block) != len(dst) {
			return errors.New("its lz4 block has another size than the chunk")
		}
		copy(dst, block)
		return nil
	}
	if n, err := lz4.UncompressBlock(block, dst[:len(dst):len(dst)]); err != nil || n != len(dst) {
		return errors.New("its lz4 block does not unpack to a chunk")
	}
	return nil
}

// xxh32Short is xxHash32 (xxhash_spec.md) with seed 0, of less than 16 bytes.
func xxh32Short(b []byte) uint32 {
	const (
		p1 uint32 = 2654435761
		p2 uint32 = 2246822519
		p3 uint32 = 3266489917
		p4 uint32 = 668265263
		p5 uint32 = 374761393
	)
	h := p5 + uint32(len(b))
	for ; len(b) >= 4; b = b[4:] {
		h = bits.RotateLeft32(h+binary.LittleEndian.Uint32(b)*p3, 17) * p4
	}
	for _, c := range b {
		h = bits.RotateLeft32(h+uint32(c)*p5, 11) * p1
	}
	h ^= h >> 15
	h *= p2
	h ^= h >> 13
	h *= p3
	return h ^ h>>16
}
