// Package image streams an operating system image from a web server onto a disk: one pass, no temporary file, no copy
// in RAM.
//
// Package fetch gets the file ahead of everybody, in pieces of 1 MiB. A flow hashes each piece where the network put
// it, and the format's reader (package images) reads it there. A pour hands what the reader gives, in any order, to the
// workers: each unpacks its piece, looks for zeros in it and writes the rest (package sink), past the page cache. Every
// buffer is counted and used again, so that the whole agent stays below 64 MiB with images of any size, also with the
// largest window of zstd that is accepted, 32 MiB, and with a qcow2 inside such zstd:
// test/memory.TestTheAgentFitsIn64MiB has the kernel end it otherwise.
//
// What makes a disk bootable is not written here: the image's first MiB and its last sectors stay in memory as a
// disk.Pending, which disk.Commit writes later. Whatever goes wrong before that leaves a disk without a partition
// table.
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

// memoryLimit is for the collector, while an image is written. With the program itself, about 12 MiB of it in use, the
// agent stays below 64 MiB.
const memoryLimit = 40 << 20

// reportEvery is how often progress is told.
const reportEvery = 200 * time.Millisecond
