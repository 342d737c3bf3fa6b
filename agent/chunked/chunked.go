// Package chunked brings a published image onto a disk: chunks fetched side by side from wherever they are had, each checked before it is
// unpacked, and only those that the disk does not hold already.
//
// What the index says is believed because Open checked the index; a chunk is believed because its packed bytes have the digest that the
// index names. A Plan runs three stages with bounded queues between them: looking at what the disk holds (Difference), fetching, and
// unpacking and writing. So neither the link nor a core waits for another for long. Whoever writes is a Sink: package image has one, which
// keeps back what would make the disk bootable.
//
// Memory is counted: packed bytes live in a Room of fixed size, unpacked ones in a few buffers of a chunk each.
//
// Chunks are numbered from 0. Offsets and sizes are bytes of the disk, not of what is stored. Errors are step.Errors or images.Errors with
// a remedy, or the end of the context.
package chunked

import (
	"context"

	"github.com/ingot-metal/ingot/images/index"
)

// Chunks is where the chunks of a published image come from: its origin, or neighbours and the origin behind them.
type Chunks interface {
	// Chunk gets chunk i, which must have an object. It returns when the packed bytes are in memory, so that the link is not idle while
	// they are unpacked. Any number of goroutines may call it.
	Chunk(ctx context.Context, i int) (Packed, error)
}

// Packed is a chunk in memory that is not unpacked yet.
type Packed struct {
	// Unpack fills dst, which has exactly the length of the chunk, with bytes that are the published ones for certain. It is called once at
	// most.
	Unpack func(ctx context.Context, dst []byte) error
	// Free gives the memory back. It is called once, when Unpack is over or will not be called. Unpack may do so too, when it must fetch
	// the chunk again from elsewhere.
	Free func()
}

// Objects is where stored objects come from: web servers, or a registry.
type Objects interface {
	// Object reads an object into dst, which has exactly its length, and checks it. Any number of goroutines may call it.
	Object(ctx context.Context, o index.Object, dst []byte) error
}

// Sink is who writes; package sink has one. Every byte of the image comes once, in one of Put, Hole and Keep, from any number of goroutines.
type Sink interface {
	// Put returns when data is written, or held back. Blocks that are all zeros become holes.
	Put(ctx context.Context, off int64, data []byte) error
	// Hole makes n bytes read as zero.
	Hole(ctx context.Context, off, n int64) error
	// Keep says that n bytes are on the disk already. They must be within Body.
	Keep(off, n int64) error
	// Body is the part of the image that is not held back.
	Body() (from, to int64)
	// Held copies into dst what is held back of the bytes from off on, and leaves the rest of dst as it is.
	Held(off int64, dst []byte)
}

// Swarm is a way to share the work with neighbours that write the same image.
type Swarm interface {
	// Join is called once the index is trusted, before the first chunk of many is fetched. The member is left when the image is
	// written, or the attempt is given up.
	Join(ctx context.Context, s Shared) (Member, error)
}

// Shared is what a member of a swarm works with.
type Shared struct {
	Index  *index.Index
	Sum    [32]byte // of the index's bytes: what identifies the swarm
	Origin Chunks
	Room   *Room  // memory for packed bytes
	Lists  *Lists // digests of blocks, by which unpacked chunks are checked
	// Read gives back a chunk that is Done, from the disk and from what is held back of it, into dst, which has exactly the length of the
	// chunk and is memory such as direct I/O takes. It is checked by its block list, so it is the published one or an error.
	Read func(ctx context.Context, i int, dst []byte) error
}

// Member is a neighbour among neighbours.
type Member interface {
	Chunks
	// Next chooses the chunk to be worked on next. Every chunk that has an object must come once; false says that there are no more. What
	// was left out is worked on at the end, and what comes twice only once.
	Next(ctx context.Context) (i int, ok bool)
	// Done says that chunk i is on the disk: Read gives it. Must not block.
	Done(i int)
	// Leave ends all that Join began, and waits for it: neither Read nor Origin is used afterwards.
	Leave()
}
