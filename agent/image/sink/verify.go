package sink

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
)

// region is the range of one sum: 8 bytes of memory for each MiB of the image, and 2 for its blocks.
const region = 1 << 20

// ledger records the written data in little memory, independent of the pieces. A region's sum adds a number for each of
// its sectors, in any order; the number depends on the sector's bytes, on its offset, and on a seed that is new in each
// process. Sectors of zeros add nothing, so that a hole and written zeros are equal.
type ledger struct {
	sector int64
	seed   maphash.Seed
	zero   uint64 // the hash of a sector of zeros

	mu     sync.Mutex
	sums   []uint64
	blocks []uint16 // of each region, one bit for each written block
	bytes  int64    // in written blocks
}

func newLedger(sector int64) *ledger {
	l := &ledger{sector: sector, seed: maphash.MakeSeed()}
	l.zero = maphash.Bytes(l.seed, zeros[:sector])
	return l
}

// sum adds the sectors of data, which is within one region.
func (l *ledger) sum(off int64, data []byte) (sum uint64) {
	for at := int64(0); at < int64(len(data)); at += l.sector {
		h := maphash.Bytes(l.seed, data[at:at+l.sector])
		if h == l.zero {
			continue
		}
		hi, lo := bits.Mul64(h^uint64(off+at), 0x9e3779b97f4a7c15)
		sum += hi ^ lo ^ h
	}
	return sum
}

func (l *ledger) note(off int64, data []byte) {
	for len(data) > 0 {
		i := off / region
		n := min(int64(len(data)), (i+1)*region-off)
		sum := l.sum(off, data[:n])
		l.mu.Lock()
		for int64(len(l.sums)) <= i {
			l.sums, l.blocks = append(l.sums, 0), append(l.blocks, 0)
		}
		l.sums[i] += sum
		for b := off % region / Block; b <= (off+n-1)%region/Block; b++ {
			if bit := uint16(1) << b; l.blocks[i]&bit == 0 {
				l.blocks[i] |= bit
				l.bytes += Block
			}
		}
		l.mu.Unlock()
		off, data = off+n, data[n:]
	}
}

// forget removes one sector from the sums.
func (l *ledger) forget(off int64, sector []byte) {
	sum := l.sum(off, sector)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sums[off/region] -= sum
}

// ReadBack compares the written blocks with the present content of the disk. Call it after Finish, with Verify set.
func (s *Sink) ReadBack(ctx context.Context, progress func(done, total int64)) error {
	l := s.ledger
	if l == nil {
		return fmt.Errorf("nothing was noted to read back")
	}
	low, high := s.Body()
	if s.o.Partition && len(s.tail) > 0 {
		high += s.sector
	}
	buf := disk.Aligned(region)
	var done int64
	for i, want := range l.sums {
		var got uint64
		for b := int64(0); b < region/Block; b++ {
			if l.blocks[i]&(1<<b) == 0 {
				continue
			}
			// Adjacent blocks are read together.
			first := b
			for b+1 < region/Block && l.blocks[i]&(1<<(b+1)) != 0 {
				b++
			}
			from := int64(i)*region + first*Block
			to := int64(i)*region + (b+1)*Block
			done += to - from
			if from, to = max(from, low), min(to, high); from >= to {
				continue
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			part := buf[:to-from]
			if _, err := s.dev.ReadAt(part, from); err != nil {
				return Fault(fmt.Errorf("read back %d bytes at byte %d of %s: %w", len(part), from, s.disk.Name, err))
			}
			got += l.sum(from, part)
		}
		if got != want {
			return step.Failf("replace the disk: it does not keep what is written",
				"%s: the MiB at byte %d reads back different from what was written", s.disk.Name, int64(i)*region)
		}
		progress(done, l.bytes)
	}
	return nil
}
