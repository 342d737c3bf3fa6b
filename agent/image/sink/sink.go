// Package sink writes an image to a disk: data at its offset, zeros as holes, and nothing that boots.
//
// A Sink has no goroutines and no data buffers of its own. Its callers are the workers: each decodes a piece into
// memory of its own (disk.Aligned, so that direct I/O copies nothing) and calls Put, which examines the piece in blocks
// of 64 KiB and returns when the nonzero blocks are written. Pieces may come from any number of goroutines and in any
// order; overlapping pieces are a fault of the caller. The number of callers is the number of writes in flight. Pieces
// smaller than the disk's sectors are merged first.
//
// Zeros are merged into large ranges first, since each range is a request to the device, and then punched, or written
// if the device does not promise zeros (disk.Zeroer). One more worker does that in MakeHoles, while the others put.
//
// The data that makes a disk bootable is withheld: the image's first MiB and its last sectors stay in memory, and
// Pending passes them to disk.Commit. Begin checks the image's partition table before the first byte of the old disk is
// touched, then removes the old table; from there on an abandoned disk has none. The first MiB that Begin saw and the
// one that was put must be equal, and every byte of the image must have come, or Finish fails.
//
// The order of calls is New, Begin, Put and Hole beside MakeHoles, SetSize if Begin did not know it, Finish, Pending or
// ReadBack. Offsets and sizes are bytes. Errors are step.Errors with a remedy, or the end of the context.
package sink

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/image/trace"
	"github.com/ingot-metal/ingot/agent/step"
)

// Block is the granularity of holes. Finer ones save a percent of the data at many times the requests.
const Block = 64 << 10

// Options of a Sink.
type Options struct {
	// Verify records the sums for ReadBack: 10 bytes for each MiB of the image.
	Verify bool
	// Look makes the sink read before it writes zeros on a device that does not punch: for disks that probably hold
	// most of the image already.
	Look bool
	// Partition says that the device is not a whole disk: it has no table to check, to remove or to withhold.
	Partition bool
}

// Sink is the writing of one image to one disk.
type Sink struct {
	dev    disk.Device
	disk   disk.Disk
	sector int64
	o      Options

	begun     bool
	start     [sha256.Size]byte // of the checked head
	startLen  int64
	headLen   int64 // withheld length at the beginning, for an image that long
	size      atomic.Int64
	tailOff   atomic.Int64
	mu        sync.Mutex // guards the bytes of head and tail, and holes
	head      []byte
	tail      []byte
	holes     holes
	came      atomic.Int64
	landed    atomic.Int64
	zeroed    atomic.Int64 // bytes passed as zero
	made      atomic.Int64 // of these, zero on the disk
	kept      atomic.Int64
	busy      step.Clock
	ledger    *ledger
	zeroing   sync.Mutex // guards zeroer, which is not for concurrent use
	zeroer    *disk.Zeroer
	changed   chan struct{} // signals that there may be a hole to make
	zeroBlock []byte

	scrapping sync.Mutex // guards the rest
	scraps    map[int64]*scrap
	spilled   map[int64]bool // sectors that were assembled on the disk, if there is a ledger
	maxScraps int
}

type span struct{ off, n int64 }

func (s span) end() int64 { return s.off + s.n }

// New returns a sink for an open disk. d describes the disk.
func New(dev disk.Device, d disk.Disk, o Options) *Sink {
	s := &Sink{dev: dev, disk: d, sector: int64(dev.SectorSize()), o: o, zeroer: disk.NewZeroer(dev),
		zeroBlock: disk.Aligned(Block), maxScraps: maxScraps, changed: make(chan struct{}, 1)}
	s.zeroer.Look = o.Look
	if !o.Partition {
		s.headLen = disk.HeadSize
		s.head = make([]byte, disk.HeadSize)
	}
	if o.Verify {
		s.ledger = newLedger(s.sector)
	}
	s.size.Store(-1)
	s.tailOff.Store(math.MaxInt64)
	return s
}

// Begin checks an image's beginning, its first MiB or all of a smaller one, and makes the disk unbootable. Size is the
// image's, or -1 if unknown. An image that does not fit this disk is refused before the disk is touched.
func (s *Sink) Begin(ctx context.Context, start []byte, size int64) error {
	s.begun = true
	if size > s.dev.Size() {
		return s.tooLarge(size)
	}
	if !s.o.Partition {
		start = start[:min(int64(len(start)), s.headLen)]
		s.start, s.startLen = sha256.Sum256(start), int64(len(start))
		if err := disk.CheckHead(start, size, s.disk); err != nil {
			return err
		}
		if err := disk.Wipe(ctx, s.dev); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return Fault(fmt.Errorf("remove the old partition table of %s: %w", s.disk.Name, err))
		}
	}
	if size >= 0 {
		return s.SetSize(size)
	}
	return nil
}

// SetSize sets the size of an image that Begin did not know. The last TailSize bytes must not be put before.
func (s *Sink) SetSize(size int64) error {
	if size > s.dev.Size() {
		return s.tooLarge(size)
	}
	off := size / s.sector * s.sector // a partition's image withholds a partial sector
	if !s.o.Partition {
		off = max(s.headLen, (size-disk.TailSectors*s.sector)/s.sector*s.sector)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if size > off {
		s.tail = make([]byte, size-off)
	}
	s.tailOff.Store(off)
	s.size.Store(size)
	return nil
}

// TailSize is the maximum length of an image's withheld end.
func (s *Sink) TailSize() int64 { return (disk.TailSectors + 1) * s.sector }

// Size of the image, or -1 while unknown.
func (s *Sink) Size() int64 { return s.size.Load() }

func (s *Sink) tooLarge(size int64) error {
	return step.Failf("use a smaller image or a larger disk",
		"the image is larger than the disk: %d bytes onto %s with %d bytes", size, s.disk.Name, s.dev.Size())
}

// Fault adds the operator's remedy to an error of the disk.
func Fault(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return step.Fail(
			"make room below the target: in the file system of a file, or the pool of a thin volume", err)
	}
	return step.Fail("look at the disk's health; replace it if the kernel log shows medium errors", err)
}

// within checks that a piece is valid, and counts it.
func (s *Sink) within(off, n int64) error {
	if !s.begun {
		return errors.New("an image is put onto a disk before its beginning was looked at")
	}
	if off < 0 || n < 0 || off > math.MaxInt64-n {
		return fmt.Errorf("a piece of the image of %d bytes at byte %d", n, off)
	}
	if off+n > s.dev.Size() {
		return step.Failf("use a smaller image or a larger disk",
			"the image is larger than the disk: more than %d bytes onto %s", s.dev.Size(), s.disk.Name)
	}
	if size := s.size.Load(); size >= 0 && off+n > size {
		return fmt.Errorf("a piece of the image ends at byte %d, the image at byte %d", off+n, size)
	}
	s.came.Add(n)
	return nil
}

// Put writes data at its offset. It returns when the data is written, though not flushed, and does not keep it.
func (s *Sink) Put(ctx context.Context, off int64, data []byte) error {
	if err := s.within(off, int64(len(data))); err != nil {
		return err
	}
	s.hold(off, data)
	low, high, err := s.edges(ctx, off, int64(len(data)), data)
	if err != nil || low >= high {
		return err
	}
	track := trace.Of(ctx)
	// Runs of blocks of one kind.
	run, zero := low, false
	for at := low; at < high; {
		n := min(Block-at%Block, high-at)
		z := isZero(data[at-off : at-off+n])
		if z != zero && at > run {
			track.Spent(trace.ZeroTest)
			if err := s.place(ctx, run, data[run-off:at-off], zero); err != nil {
				return err
			}
			track.Spent(trace.Write)
			run = at
		}
		zero = z
		at += n
	}
	track.Spent(trace.ZeroTest)
	if err := s.place(ctx, run, data[run-off:high-off], zero); err != nil {
		return err
	}
	track.Spent(trace.Write)
	s.look()
	return nil
}

// place writes a run of blocks, or records it as a hole.
func (s *Sink) place(ctx context.Context, off int64, data []byte, zero bool) error {
	if zero {
		return s.addHole(ctx, span{off, int64(len(data))})
	}
	return s.write(ctx, off, data)
}

func (s *Sink) write(ctx context.Context, off int64, data []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.busy.Enter()
	n, err := s.dev.WriteAt(data, off)
	s.busy.Leave()
	if err == nil && n != len(data) {
		err = fmt.Errorf("only %d bytes were taken", n)
	}
	if err != nil {
		return Fault(fmt.Errorf("write %d bytes at byte %d of %s: %w", len(data), off, s.disk.Name, err))
	}
	s.landed.Add(int64(n))
	if s.ledger != nil {
		s.ledger.note(off, data)
	}
	return nil
}

// Hole says that n bytes at off are zero.
func (s *Sink) Hole(ctx context.Context, off, n int64) error {
	if err := s.within(off, n); err != nil {
		return err
	}
	from, to, err := s.edges(ctx, off, n, nil)
	if err != nil || from >= to {
		return err
	}
	return s.addHole(ctx, span{from, to - from})
}

// edges writes the partial sectors at both ends of a piece of the body, and returns the rest. nil data are zeros.
func (s *Sink) edges(ctx context.Context, off, n int64, data []byte) (from, to int64, err error) {
	low, high := s.body(off, n)
	if low >= high {
		return 0, 0, nil
	}
	from, to = s.whole(low, high)
	for _, e := range []span{{low, from - low}, {to, high - to}} {
		if e.n == 0 {
			continue
		}
		part := data
		if data != nil {
			part = data[e.off-off:][:e.n]
		}
		if err := s.partly(ctx, e.off, e.n, part); err != nil {
			return 0, 0, err
		}
	}
	return from, to, nil
}

// whole returns the part of a piece that consists of whole sectors. A piece within one sector has none.
func (s *Sink) whole(low, high int64) (from, to int64) {
	from, to = (low+s.sector-1)/s.sector*s.sector, high/s.sector*s.sector
	if from > to {
		return high, high
	}
	return from, to
}

// Keep says that the disk already holds n bytes at off, whole blocks. Withheld data can't be kept: it must be put.
func (s *Sink) Keep(off, n int64) error {
	if err := s.within(off, n); err != nil {
		return err
	}
	if low, high := s.body(off, n); high-low != n {
		return fmt.Errorf("%d bytes at byte %d are held back and can't be kept", n, off)
	}
	if off%Block != 0 || n%Block != 0 && off+n != s.tailOff.Load() {
		return fmt.Errorf("%d bytes at byte %d are not whole blocks of %d", n, off, Block)
	}
	s.kept.Add(n)
	return nil
}

// Body returns the range of the image that goes to the disk before the commit: all but head and tail.
func (s *Sink) Body() (from, to int64) { return s.headLen, max(s.headLen, s.tailOff.Load()) }

// Held copies the withheld part of the image from off on into dst. The rest of dst is unchanged.
func (s *Sink) Held(off int64, dst []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if off < s.headLen {
		copy(dst, s.head[off:])
	}
	if tailOff := s.tailOff.Load(); off+int64(len(dst)) > tailOff {
		from := max(off, tailOff)
		copy(dst[from-off:], s.tail[from-tailOff:])
	}
}

// body returns the part of a piece that goes to the disk.
func (s *Sink) body(off, n int64) (low, high int64) {
	return max(off, s.headLen), min(off+n, s.tailOff.Load())
}

// hold copies the withheld part of a piece.
func (s *Sink) hold(off int64, data []byte) {
	end, tailOff := off+int64(len(data)), s.tailOff.Load()
	if off >= s.headLen && end <= tailOff {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if off < s.headLen {
		copy(s.head[off:], data)
	}
	if end > tailOff {
		from := max(off, tailOff)
		copy(s.tail[from-tailOff:], data[from-off:])
	}
}

// Finish makes the remaining holes, checks that the image is complete, and flushes. No puts may follow.
func (s *Sink) Finish(ctx context.Context) error {
	if err := s.spillRest(ctx); err != nil {
		return err
	}
	for h, ok := s.holes.first(); ok; h, ok = s.holes.first() {
		if err := s.zeroAlone(ctx, h); err != nil {
			return err
		}
	}
	size := s.size.Load()
	if came := s.came.Load(); came != size {
		return fmt.Errorf("the image has %d bytes, but %d came", size, came)
	}
	if !s.o.Partition {
		if want := min(size, s.headLen); s.startLen != want || sha256.Sum256(s.head[:want]) != s.start {
			return step.Failf("see whether the image file is being replaced on the server, then deploy again",
				"the image's beginning changed while it was written")
		}
	} else if len(s.tail) > 0 {
		last := disk.Aligned(int(s.sector))
		copy(last, s.tail)
		if err := s.write(ctx, s.tailOff.Load(), last); err != nil {
			return err
		}
	}
	s.busy.Enter()
	defer s.busy.Leave()
	return s.flush()
}

// Tail returns the withheld end of the image.
func (s *Sink) Tail() []byte { return s.tail }

// Pending returns the data for disk.Commit.
func (s *Sink) Pending() (*disk.Pending, error) {
	size := s.size.Load()
	return disk.NewPending(s.disk, s.head[:min(size, s.headLen)], s.tail, s.tailOff.Load(), size)
}

// Skipped returns how much of the image needed no write so far: zeros and kept data. It may be called at any time.
func (s *Sink) Skipped() int64 { return s.zeroed.Load() + s.kept.Load() }

// Counts of a Sink, in bytes.
type Counts struct {
	Written int64         // data, and zeros where the device does not punch
	Zero    int64         // the image's zeros that were punched or written
	Skipped int64         // without a write: punched holes, and data already on the disk
	Busy    time.Duration // with at least one request to the device
}

// Counts may be called after the last put.
func (s *Sink) Counts() Counts {
	z := s.zeroer
	return Counts{
		Written: s.landed.Load() + z.Written, Zero: z.Punched + z.Written, Skipped: z.Punched + z.Found + s.kept.Load(),
		Busy: s.busy.Total(),
	}
}

var zeros [Block]byte

func isZero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }
