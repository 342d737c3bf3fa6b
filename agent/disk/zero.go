package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"unsafe"
)

const (
	maxPunch   = 1 << 30 // a longer call can block in the device for minutes
	maxSpans   = 1 << 16 // punched ranges remembered individually; more are remembered as grains
	writeSize  = 1 << 20
	sampleSize = 4096
	wellKnown  = 64 // punches after which fewer samples are taken
)

type span struct{ off, n int64 }

// Zeroer makes ranges of a device read as zero: by punching holes if the device promises zeros, else by writing. Every
// punched range is checked by reading samples back, at its ends and inside for an unknown device, at one place later; a
// device that breaks its promise gets zeros written, over earlier ranges too. Not for concurrent use, but other ranges
// of the device may be written at the same time.
type Zeroer struct {
	dev     Device
	zeros   []byte // allocated at the first write: most devices punch
	sample  []byte
	written bool // the device can't punch, or lies
	spans   []span
	most    int // spans
	grains  grains
	punches int
	look    []byte

	// Look reads before it writes zeros, and skips what is already zero: for disks that are mostly zero.
	Look bool

	// Punched and Written count bytes. Found counts the bytes saved by Look.
	Punched, Written, Found int64
}

// NewZeroer returns a Zeroer for an open device.
func NewZeroer(dev Device) *Zeroer {
	return &Zeroer{dev: dev, most: maxSpans, sample: Aligned(max(sampleSize, dev.SectorSize()))}
}

// NewOverwriter returns a Zeroer that only writes zeros.
func NewOverwriter(dev Device) *Zeroer {
	z := NewZeroer(dev)
	z.written = true
	return z
}

// Aligned returns memory that direct I/O takes without copying.
func Aligned(n int) []byte {
	const align = 4096
	b := make([]byte, n+align)
	skip := 0
	if rest := int(uintptr(unsafe.Pointer(&b[0])) % align); rest != 0 {
		skip = align - rest
	}
	return b[skip : skip+n : skip+n]
}

// Zero makes n bytes at off read as zero. Both are whole sectors.
func (z *Zeroer) Zero(ctx context.Context, off, n int64) error {
	for n > 0 {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		part := min(n, maxPunch)
		if err := z.zero(ctx, off, part); err != nil {
			return fmt.Errorf("zero %d bytes at byte %d: %w", part, off, err)
		}
		off, n = off+part, n-part
	}
	return nil
}

func (z *Zeroer) zero(ctx context.Context, off, n int64) error {
	if z.written {
		return z.write(ctx, off, n)
	}
	if !z.note(off, n) {
		return z.zeroGrains(ctx, off, n)
	}
	return z.punch(ctx, off, n)
}

// punch punches a recorded range.
func (z *Zeroer) punch(ctx context.Context, off, n int64) error {
	err := z.dev.Punch(off, n)
	if errors.Is(err, errors.ErrUnsupported) {
		// Earlier ranges were verified as zero and stay so.
		z.written = true
		return z.write(ctx, off, n)
	}
	if err != nil {
		return err
	}
	clean, err := z.check(off, n)
	if err != nil {
		return err
	}
	if clean {
		z.Punched += n
		return nil
	}
	z.written, z.Punched = true, 0
	for _, s := range z.spans {
		if err := z.write(ctx, s.off, s.n); err != nil {
			return err
		}
	}
	z.spans = nil
	err = z.grains.each(func(off, n int64) error { return z.write(ctx, off, n) })
	z.grains = grains{}
	return err
}

// note records a range to be punched; false when there is no memory for it. A fragmented image has too many holes.
func (z *Zeroer) note(off, n int64) bool {
	if l := len(z.spans); l > 0 {
		switch last := &z.spans[l-1]; {
		case last.off+last.n == off:
			last.n += n
			return true
		case off+n == last.off:
			last.off, last.n = off, last.n+n
			return true
		}
	}
	if len(z.spans) >= z.most {
		return false
	}
	z.spans = append(z.spans, span{off, n})
	return true
}

// zeroGrains punches the whole grains of a range and writes zeros around them.
func (z *Zeroer) zeroGrains(ctx context.Context, off, n int64) error {
	from, to := (off+grain-1)/grain*grain, (off+n)/grain*grain
	if from >= to || !z.grains.add(from, to-from) {
		return z.write(ctx, off, n)
	}
	if err := z.write(ctx, off, from-off); err != nil {
		return err
	}
	if err := z.punch(ctx, from, to-from); err != nil {
		return err
	}
	return z.write(ctx, to, off+n-to)
}

// check reads the first, the last and a few other places of a range; only one of them after many clean ranges.
func (z *Zeroer) check(off, n int64) (bool, error) {
	size := min(int64(len(z.sample)), n)
	places := []int64{0, n - size}
	for range 3 {
		if n > size {
			at := rand.Int64N(n - size)
			places = append(places, at-at%int64(z.dev.SectorSize()))
		}
	}
	if z.punches++; z.punches > wellKnown {
		at := rand.IntN(len(places))
		places = places[at : at+1]
	}
	for _, at := range places {
		if _, err := z.dev.ReadAt(z.sample[:size], off+at); err != nil {
			return false, fmt.Errorf("read back byte %d: %w", off+at, err)
		}
		if !isZero(z.sample[:size]) {
			return false, nil
		}
	}
	return true, nil
}

func (z *Zeroer) write(ctx context.Context, off, n int64) error {
	if z.zeros == nil {
		z.zeros = Aligned(writeSize)
	}
	for n > 0 {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		part := min(n, writeSize)
		put := z.put
		if z.Look {
			put = z.writeWhereNot
		}
		if err := put(off, part); err != nil {
			return err
		}
		off, n = off+part, n-part
	}
	return nil
}

// put writes n zeros.
func (z *Zeroer) put(off, n int64) error {
	took, err := z.dev.WriteAt(z.zeros[:n], off)
	if err == nil && int64(took) != n {
		err = fmt.Errorf("only %d of %d bytes were taken at byte %d", took, n, off)
	}
	if err == nil {
		z.Written += n
	}
	return err
}

// writeWhereNot writes zeros over nonzero data, in pieces of lookGrain. Unreadable pieces are written.
func (z *Zeroer) writeWhereNot(off, n int64) error {
	if z.look == nil {
		z.look = Aligned(writeSize)
	}
	const lookGrain = 64 << 10
	_, err := z.dev.ReadAt(z.look[:n], off)
	for at := int64(0); at < n; {
		end := min(at+lookGrain, n)
		if err == nil && isZero(z.look[at:end]) {
			z.Found += end - at
			at = end
			continue
		}
		for end < n && (err != nil || !isZero(z.look[end:min(end+lookGrain, n)])) {
			end = min(end+lookGrain, n)
		}
		if err := z.put(off+at, end-at); err != nil {
			return err
		}
		at = end
	}
	return nil
}

const (
	grain    = 64 << 10
	leafSize = 1 << 12 // bytes: the grains of 2 GiB
	maxLeafs = 512     // 2 MiB of memory, for a TiB of alternating holes and data
)

// grains is a set of grains of a device, as sparse bitmaps.
type grains struct {
	leafs map[int64]*[leafSize]byte
}

// add adds whole grains. False means that there is no memory for them, and nothing was added.
func (g *grains) add(off, n int64) bool {
	const span = leafSize * 8 * grain
	missing := 0
	for leaf := off / span; leaf*span < off+n; leaf++ {
		if g.leafs[leaf] == nil {
			missing++
		}
	}
	if len(g.leafs)+missing > maxLeafs {
		return false
	}
	if g.leafs == nil {
		g.leafs = map[int64]*[leafSize]byte{}
	}
	for at := off; at < off+n; at += grain {
		leaf := g.leafs[at/span]
		if leaf == nil {
			leaf = new([leafSize]byte)
			g.leafs[at/span] = leaf
		}
		i := at % span / grain
		leaf[i/8] |= 1 << (i % 8)
	}
	return true
}

// each visits the grains in ascending order, neighbours joined.
func (g *grains) each(f func(off, n int64) error) error {
	var run span
	flush := func() error {
		if run.n == 0 {
			return nil
		}
		return f(run.off, run.n)
	}
	for _, number := range slices.Sorted(maps.Keys(g.leafs)) {
		for i, bits := range g.leafs[number] {
			for b := range 8 {
				if bits>>b&1 == 0 {
					continue
				}
				at := ((number*leafSize+int64(i))*8 + int64(b)) * grain
				if run.off+run.n != at || run.n == 0 {
					if err := flush(); err != nil {
						return err
					}
					run = span{at, 0}
				}
				run.n += grain
			}
		}
	}
	return flush()
}

var zeroPage [4096]byte

func isZero(b []byte) bool {
	for ; len(b) > len(zeroPage); b = b[len(zeroPage):] {
		if !bytes.Equal(b[:len(zeroPage)], zeroPage[:]) {
			return false
		}
	}
	return bytes.Equal(b, zeroPage[:len(b)])
}
