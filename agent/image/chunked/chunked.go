// Package chunked writes a published image to a disk: chunks are fetched in parallel from any source, each is verified
// before it is decompressed, and chunks that the disk already holds are skipped.
//
// Open verifies the index; a chunk is verified by the digest of its packed bytes in the index. A Plan runs three stages
// with bounded queues between them: comparing with the disk (Difference), fetching, and decompressing and writing. So
// neither the link nor a core waits long for the other. The writer is a Sink: package image has one, which withholds
// the data that would make the disk bootable.
//
// Memory is bounded: packed bytes are in a buffer pool of fixed size, unpacked ones in a few buffers of a chunk each.
//
// Chunks are numbered from 0. Offsets and sizes are bytes of the disk, not of the stored objects. Errors are
// step.Errors or images.Errors with a remedy, or the end of the context.
package chunked

import (
	"context"

	"github.com/ingot-metal/ingot/images/index"
)

// Objects is the source of stored objects: web servers, or a registry.
type Objects interface {
	// Object reads an object into dst, which has exactly its length, and verifies it. Any number of goroutines may call
	// it.
	Object(ctx context.Context, o index.Object, dst []byte) error
}

// Sink writes the image; package sink has one. Every byte of the image comes once, in one of Put, Hole and Keep, from
// any number of goroutines.
type Sink interface {
	// Put returns when data is written, or withheld. Blocks of zeros become holes.
	Put(ctx context.Context, off int64, data []byte) error
	// Hole says that n bytes are zero.
	Hole(ctx context.Context, off, n int64) error
	// MakeHoles writes or punches the zeros of Hole, while others write, until done is closed and none is left. After
	// that it calls made with the number of zero bytes that are on the disk, and the total.
	MakeHoles(ctx context.Context, done <-chan struct{}, made func(n, of int64)) error
	// Keep says that n bytes are already on the disk. They must be within Body.
	Keep(off, n int64) error
	// Body is the range of the image that is not withheld.
	Body() (from, to int64)
	// Held copies the withheld part of the bytes from off on into dst, and leaves the rest of dst unchanged.
	Held(off int64, dst []byte)
}

// Member is this agent in a swarm of agents that write the same image; package swarm has one. Any number of goroutines
// may use it.
type Member interface {
	// First fetches a chunk, as Chunk does, before any was requested with Want.
	First(ctx context.Context, i int, dst []byte) error
	// Want adds chunks that must be fetched, Complete says that there will be no more.
	Want(chunks ...int)
	Complete()
	// Next chooses which of the wanted chunks is to be processed now. It waits while others are fetching chunks that
	// this agent may get from them. False means that all were returned.
	Next(ctx context.Context) (i int, ok bool)
	// Chunk fetches a chunk into dst, which has exactly its length, from a neighbour or the origin, and verifies it.
	Chunk(ctx context.Context, i int, dst []byte) error
	// Have says that a chunk is on the disk.
	Have(i int)
}

// Read reads from a chunk that was announced to the Member with Have, from its byte off on, a multiple of
// index.BlockSize. Dst, aligned for direct I/O, is a multiple of blocks, or ends with the chunk. The bytes from the
// disk are not verified.
type Read func(i int, off int64, dst []byte) error
