package disk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"unsafe"
)

const (
	maxPunch   = 1 << 30 // a longer call can take minutes in the device, with no way to stop it
	maxSpans   = 1 << 16 // punched ranges remembered; beyond it zeros are written
	sampleSize = 4096
)

type span struct{ off, n int64 }

// Zeroer makes ranges of a device read as zero: by punching holes where the device promises zeros, else by writing. Every punched
// range is sampled by reading it back; a device that is caught lying gets zeros written, also where it was believed before.
// Not for concurrent use, but other ranges of the device may be written meanwhile.
type Zeroer struct {
	dev     Device
	zeros   []byte
	sample  []byte
	written bool // the device does not punch, or lies
	spans   []span
	look    []byte

	// Look makes it read before it writes zeros, and leave alone what is zero: for disks that are thought to be so for the most part.
	Look bool

	// Punched and Written count bytes. Found is what Look saved.
	Punched, Written, Found int64
}

// NewZeroer makes a Zeroer for an open device.
func NewZeroer(dev Device) *Zeroer {
	return &Zeroer{dev: dev, zeros: Aligned(HeadSize), sample: Aligned(max(sampleSize, dev.SectorSize()))}
}

// Aligned gives memory that direct I/O takes without copying.
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
		if err := ctx.Err(); err != nil {
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
	if z.written || len(z.spans) >= maxSpans {
		return z.write(ctx, off, n)
	}
	err := z.dev.Punch(off, n)
	if errors.Is(err, errors.ErrUnsupported) {
		// What was punched before has been seen to be zero and stays so.
		z.written = true
		return z.write(ctx, off, n)
	}
	if err != nil {
		return err
	}
	z.note(off, n)
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
	return nil
}

func (z *Zeroer) note(off, n int64) {
	if l := len(z.spans); l > 0 && z.spans[l-1].off+z.spans[l-1].n == off {
		z.spans[l-1].n += n
		return
	}
	z.spans = append(z.spans, span{off, n})
}

// check reads the first, the last and a few other places of a range.
func (z *Zeroer) check(off, n int64) (bool, error) {
	size := min(int64(len(z.sample)), n)
	places := []int64{0, n - size}
	for range 3 {
		if n > size {
			at := rand.Int64N(n - size)
			places = append(places, at-at%int64(z.dev.SectorSize()))
		}
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
	for n > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := min(n, int64(len(z.zeros)))
		if z.Look {
			if err := z.writeWhereNot(off, part); err != nil {
				return err
			}
			off, n = off+part, n-part
			continue
		}
		if _, err := z.dev.WriteAt(z.zeros[:part], off); err != nil {
			return err
		}
		off, n, z.Written = off+part, n-part, z.Written+part
	}
	return nil
}

// writeWhereNot writes zeros over what is not zero, in pieces of lookGrain. What can't be read is written.
func (z *Zeroer) writeWhereNot(off, n int64) error {
	if z.look == nil {
		z.look = Aligned(len(z.zeros))
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
		if _, err := z.dev.WriteAt(z.zeros[:end-at], off+at); err != nil {
			return err
		}
		z.Written += end - at
		at = end
	}
	return nil
}
