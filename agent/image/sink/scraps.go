package sink

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/ingot-metal/ingot/agent/disk"
)

// Pieces of an image have offsets at multiples of 512 bytes, also on disks with larger sectors: clusters of qcow2 may
// be so small. Parts of sectors wait here for the rest of the sector.

const (
	scrapSize = 512
	maxScraps = 512 // sectors in memory; more are assembled on the disk itself
)

// scrap is a partly received sector.
type scrap struct {
	data []byte
	have uint64 // one bit for each 512 bytes
}

// partly takes a part of one sector. Nil data stands for zeros.
func (s *Sink) partly(ctx context.Context, off, n int64, data []byte) error {
	at := off / s.sector * s.sector
	if off%scrapSize != 0 || n%scrapSize != 0 {
		return fmt.Errorf("a piece of the image of %d bytes at byte %d is not in whole sectors of %d", n, off,
			scrapSize)
	}
	if data == nil {
		data = s.zeroBlock[:n]
	}
	whole, err := s.scrapped(ctx, at, off-at, data)
	if err != nil || whole == nil {
		return err
	}
	if isZero(whole) {
		return s.addHole(ctx, span{at, s.sector})
	}
	return s.write(ctx, at, whole)
}

// scrapped adds a part to its sector, and returns the sector when it is complete.
func (s *Sink) scrapped(ctx context.Context, at, in int64, data []byte) ([]byte, error) {
	s.scrapping.Lock()
	defer s.scrapping.Unlock()
	c := s.scraps[at]
	if c == nil {
		c = &scrap{data: disk.Aligned(int(s.sector))}
		if len(s.scraps) >= s.maxScraps {
			c.take(in, data)
			return nil, s.spill(ctx, at, c)
		}
		if s.scraps == nil {
			s.scraps = map[int64]*scrap{}
		}
		s.scraps[at] = c
	}
	c.take(in, data)
	if c.have != 1<<(s.sector/scrapSize)-1 {
		return nil, nil
	}
	delete(s.scraps, at)
	return c.data, nil
}

func (c *scrap) take(in int64, data []byte) {
	copy(c.data[in:], data)
	for p := in; p < in+int64(len(data)); p += scrapSize {
		c.have |= 1 << (p / scrapSize)
	}
}

// spill merges the received parts of a sector into the sector on the disk. Other parts were or will be merged likewise.
func (s *Sink) spill(ctx context.Context, at int64, c *scrap) error {
	sector := disk.Aligned(int(s.sector))
	if _, err := s.dev.ReadAt(sector, at); err != nil {
		return Fault(fmt.Errorf("read %d bytes at byte %d of %s: %w", len(sector), at, s.disk.Name, err))
	}
	if s.ledger != nil {
		if s.spilled[at] {
			s.ledger.forget(at, sector)
		} else if s.spilled == nil {
			s.spilled = map[int64]bool{}
		}
		s.spilled[at] = true
	}
	for p := int64(0); p < s.sector; p += scrapSize {
		if c.have>>(p/scrapSize)&1 == 1 {
			copy(sector[p:p+scrapSize], c.data[p:])
		}
	}
	return s.write(ctx, at, sector)
}

// spillRest spills the remaining parts of sectors that were spilled before.
func (s *Sink) spillRest(ctx context.Context) error {
	for _, at := range slices.Sorted(maps.Keys(s.scraps)) {
		if err := s.spill(ctx, at, s.scraps[at]); err != nil {
			return err
		}
	}
	s.scraps = nil
	return nil
}
