package index

import (
	"slices"

	"github.com/zeebo/blake3"
)

// Blocks is an unpacked block list: the BlockSum of each BlockSize of the disk, in order, for up to ListChunks chunks.
type Blocks []byte

// BlockSum is the BLAKE3 digest of a block, or zeros for a block of zeros. A whole disk is read to be compared with
// these, and BLAKE3 takes half the time of SHA-256 where a processor has instructions for that, and a sixth where it
// has none.
type BlockSum [SumSize]byte

// SumSize is how many bytes a BlockSum has.
const SumSize = 32

// BlocksOf is how many blocks n bytes of the disk have.
func BlocksOf(n int64) int { return int((n + BlockSize - 1) / BlockSize) }

// ListBytes is how much of the disk block list i covers.
func (x *Index) ListBytes(i int) int64 {
	const whole = ListChunks * ChunkSize
	return min(whole, x.Size-int64(i)*whole)
}

// ParseBlocks unpacks the stored bytes of a block list that covers n bytes of the disk (see ListBytes). An object with
// Len 0 has no stored bytes: give nil, and every block is zeros.
func ParseBlocks(stored []byte, n int64) (Blocks, error) {
	return ParseBlocksInto(nil, stored, n)
}

// ParseBlocksInto is ParseBlocks in the memory of a list that nobody needs any more, if that is large enough.
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

// Sum is the digest of a block of a chunk, both counted from the list's beginning.
func (b Blocks) Sum(chunk, block int) (sum BlockSum) {
	copy(sum[:], b[(chunk*blocksInChunk+block)*SumSize:])
	return sum
}

// Chunk is the digests of a whole chunk, in order.
func (b Blocks) Chunk(chunk int) Blocks {
	b = b[chunk*blocksInChunk*SumSize:]
	return b[:min(len(b), blocksInChunk*SumSize)]
}

// SumBlock is what a block list says of this block. Only the last block of a disk may be shorter than BlockSize.
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
