package index

import (
	"slices"

	"github.com/zeebo/blake3"
)

// Blocks is an unpacked block list: the BlockSum of each BlockSize of the disk, in order, for up to ListChunks chunks.
type Blocks []byte

// BlockSum is the BLAKE3 digest of a block, or zeros for a block of zeros. A whole disk is read to be compared with
// these, and BLAKE3 takes half the time of SHA-256 on a processor with SHA instructions, and a sixth without.
type BlockSum [SumSize]byte

// SumSize is the length of a BlockSum in bytes.
const SumSize = 32

// BlocksOf returns the number of blocks in n bytes of the disk.
func BlocksOf(n int64) int { return int((n + BlockSize - 1) / BlockSize) }

// ListBytes returns how much of the disk block list i covers.
func (x *Index) ListBytes(i int) int64 {
	const whole = ListChunks * ChunkSize
	return min(whole, x.Size-int64(i)*whole)
}

// ParseBlocks decodes the stored bytes of a block list that covers n bytes of the disk (see ListBytes). An object with
// Len 0 has no stored bytes: pass nil, and every block is zeros.
func ParseBlocks(stored []byte, n int64) (Blocks, error) {
	return ParseBlocksInto(nil, stored, n)
}

// ParseBlocksInto is ParseBlocks into the memory of an unused list, if that is large enough.
func ParseBlocksInto(old Blocks, stored []byte, n int64) (Blocks, error) {
	if n <= 0 || n > ListChunks*ChunkSize {
		panic("index: ParseBlocks of an impossible part of a disk")
	}
	size := BlocksOf(n) * SumSize
	if cap(old) < size {
		old = make(Blocks, size)
	}
	b := old[:size]
	if stored == nil {
		clear(b)
		return b, nil
	}
	if err := DecodeChunk(stored, b); err != nil {
		return nil, err
	}
	return b, nil
}

// Sum returns the digest of a block of a chunk, both counted from the list's beginning.
func (b Blocks) Sum(chunk, block int) (sum BlockSum) {
	copy(sum[:], b[(chunk*blocksInChunk+block)*SumSize:])
	return sum
}

// Chunk returns the digests of a whole chunk, in order.
func (b Blocks) Chunk(chunk int) Blocks {
	b = b[chunk*blocksInChunk*SumSize:]
	return b[:min(len(b), blocksInChunk*SumSize)]
}

// SumBlock returns a block's digest for a block list. Only the last block of a disk may be shorter than BlockSize.
func SumBlock(data []byte) (sum BlockSum) {
	if IsZero(data) {
		return sum
	}
	return blake3.Sum256(data)
}

// AppendSums appends the entries of a block list for the blocks of data.
func AppendSums(to, data []byte) []byte {
	for b := range slices.Chunk(data, BlockSize) {
		sum := SumBlock(b)
		to = append(to, sum[:]...)
	}
	return to
}
