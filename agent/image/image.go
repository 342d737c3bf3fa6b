// Package image streams an operating system image from a web server onto a disk: one pass, no temporary file, no copy in RAM.
//
// The bytes flow through four stages, each in its own goroutine, with bounded buffers between them: fetch (package fetch mends broken
// connections), digest over the bytes as fetched, decode (package images), and write. The writer takes buffers of 1 MiB, looks at
// them in blocks of 64 KiB, punches holes where a block is zero, and writes the rest with several buffers in flight, past the page cache.
// About 12 MiB of buffers and the decoder's window are all the memory that an image of any size takes: the whole process peaks at 41 MiB
// with the 8 MiB window of zstd -19, and at 67 MiB with the largest window that is accepted, 32 MiB.
//
// What makes a disk bootable is not written here: the image's first MiB and its last sectors stay in memory as a disk.Pending, which
// disk.Commit writes later. Whatever goes wrong before that leaves a disk without a partition table.
//
// Offsets and sizes are bytes. Every error is a step.Error with a remedy, or the end of the context.
package image

import (
	"context"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
)

// machine is all that this package asks of the machine.
type machine interface {
	Root() string
	Settle(ctx context.Context) error
	OpenExclusive(ctx context.Context, path string) (disk.Device, error)
}

// reportEvery is how often progress is told.
const reportEvery = 200 * time.Millisecond
