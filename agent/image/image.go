// Package image streams an operating system image from a web server to a disk: one pass, no temporary file, no copy in
// RAM.
//
// Package fetch downloads the file ahead of its use, in pieces of 1 MiB. A flow hashes each piece in the download
// buffer, and the format's reader (package images) reads it there. A pour distributes the reader's pieces, in any
// order, to the workers: each decodes its piece, finds the zeros in it and writes the rest (package sink), bypassing
// the page cache. All buffers are counted and reused, so that the whole agent stays below 64 MiB with images of any
// size, also with the largest accepted window of zstd, 32 MiB, and with a qcow2 inside such zstd: otherwise the kernel
// would kill it in test/memory.TestTheAgentFitsIn64MiB.
//
// The data that makes a disk bootable is not written here: the image's first MiB and its last sectors stay in memory as
// a disk.Pending, which disk.Commit writes later. Any failure before that leaves a disk without a partition table.
//
// Offsets and sizes are bytes. Every error is a step.Error with a remedy, or the end of the context.
package image

import (
	"context"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
)

// machine is the part of the machine that this package uses.
type machine interface {
	Root() string
	Settle(ctx context.Context) error
	OpenExclusive(ctx context.Context, path string) (disk.Device, error)
}

// memoryLimit is the garbage collector's limit while an image is written. With the program itself, about 12 MiB in use,
// a writer stays below 48 MiB, also on a machine whose other work delays the collector. Less, or more that waits to be
// unpacked, makes the collector run all the time.
const memoryLimit = 34 << 20

// reportEvery is the interval of progress reports.
const reportEvery = 200 * time.Millisecond
