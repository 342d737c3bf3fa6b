// Package chunked brings a published image onto a disk: chunks fetched side by side from wherever they are had, each
// checked before it is unpacked, and only those that the disk does not hold already.
//
// What the index says is believed because Open checked the index; a chunk is believed because its packed bytes have the
// digest that the index names. A Plan runs three stages with bounded queues between them: looking at what the disk
// holds (Difference), fetching, and unpacking and writing. So neither the link nor a core waits for another for long.
// Whoever writes is a Sink: package image has one, which keeps back what would make the disk bootable.
//
// Memory is counted: packed bytes live in a room of fixed size, unpacked ones in a few buffers of a chunk each.
//
// Chunks are numbered from 0. Offsets and sizes are bytes of the disk, not of what is stored. Errors are step.Errors or
// images.Errors with a remedy, or the end of the context.
package chunked

import (
	"context"

	"github.com/ingot-metal/ingot/images/index"
)

// Objects is where stored objects come from: web servers, or a registry.
type Objects interface {
	// Object reads an object into dst, which has exactly its length, and checks it. Any number of goroutines may call
	// it.
	Object(ctx context.Context, o index.Object, dst []byte) error
}

// Sink is who writes; package sink has one. Every byte of the image comes once, in one of Put, Hole and Keep, from any
// number of goroutines.
type Sink interface {
	// Put returns when data is written, or held back. Blocks that are all zeros become holes.
	Put(ctx context.Context, off int64, data []byte) error
	// Hole says that n bytes are zero.
	Hole(ctx context.Context, off, n int64) error
	// MakeHoles makes what is said to be zero so, beside all others, until done is closed and none is left. From then
	// on it tells made how many bytes of zeros are on the disk, of how many.
	MakeHoles(ctx context.Context, done <-chan struct{}, made func(n, of int64)) error
	// Keep says that n bytes are on the disk already. They must be within Body.
	Keep(off, n int64) error
	// Body is the part of the image that is not held back.
	Body() (from, to int64)
	// Held copies into dst what is held back of the bytes from off on, and leaves the rest of dst as it is.
	Held(off int64, dst []byte)
}

// Member is this agent among neighbours that write the same image; package swarm has one. Any number of goroutines may
// use it.
type Member interface {
	// First fetches a chunk, as Chunk does, before any is wanted.
	First(ctx context.Context, i int, dst []byte) error
	// Want names chunks that must be fetched, Complete says that there will be no more.
	Want(chunks ...int)
	Complete()
	// Next chooses which of the wanted chunks is to be fetched now. It waits while others are fetching what this agent
	// may have from them. False says that all were given out.
	Next(ctx context.Context) (i int, ok bool)
	// Chunk fetches a chunk into dst, which has exactly its length, from a neighbour or the origin, and checks it.
	Chunk(ctx context.Context, i int, dst []byte) error
	// Have says that a chunk is on the disk.
	Have(i int)
}

// Read reads of a chunk that a Member was told it has, from byte off of it on, a multiple of index.BlockSize. Dst,
// memory such as direct I/O takes, is as long as so many blocks, or ends with the chunk. What the disk gives back is
// not checked.
type Read func(i int, off int64, dst []byte) error
