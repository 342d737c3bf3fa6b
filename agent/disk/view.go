package disk

import (
	"fmt"
	"io"
	"slices"
)

// PartitionsOn is Partitions including the logical ones of an MBR, without extended ones.
func (p *Pending) PartitionsOn(dev Device) []Partition {
	return append(primaries(p.table), p.logical(dev)...)
}

// primaries returns the partitions of a table, without extended ones.
func primaries(t table) []Partition {
	return slices.DeleteFunc(t.partitions(), func(p Partition) bool {
		return p.Type == "0x05" || p.Type == "0x0f" || p.Type == "0x85"
	})
}

// View gives access to a partition at any offset and length. On a disk that is not committed yet, the withheld parts
// are read and changed in memory, and reach the disk with the commit.
type View struct {
	p    *Pending // nil if nothing is withheld
	size int64    // the disk's
	dev  Device
	part Partition
}

// View gives access to the content of a partition before the commit.
func (p *Pending) View(dev Device, part Partition) (*View, error) {
	return view(p, p.Disk, dev, part)
}

func view(p *Pending, d Disk, dev Device, part Partition) (*View, error) {
	if part.Start < 0 || part.Size <= 0 || part.Start > d.Size || part.Size > d.Size-part.Start {
		return nil, fmt.Errorf("partition %d lies outside of %s", part.Number, d.Name)
	}
	return &View{p, d.Size, dev, part}, nil
}

// Size returns the partition's size.
func (v *View) Size() int64 { return v.part.Size }

// ReadAt reads bytes of the partition; io.EOF at its end.
func (v *View) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 || off > v.part.Size {
		return 0, errOutside
	}
	short := int64(len(b)) > v.part.Size-off
	if short {
		b = b[:v.part.Size-off]
	}
	n, err := v.each(b, off, func(held, b []byte, at int64) error {
		if held != nil {
			copy(b, held)
			return nil
		}
		_, err := Section(v.dev, 0, v.size).ReadAt(b, at)
		return err
	})
	if err == nil && short {
		err = io.EOF
	}
	return n, err
}

// WriteAt writes bytes of the partition, never outside of it.
func (v *View) WriteAt(b []byte, off int64) (int, error) {
	if off < 0 || int64(len(b)) > v.part.Size-off {
		return 0, errOutside
	}
	return v.each(b, off, func(held, b []byte, at int64) error {
		if held != nil {
			copy(held, b)
			return nil
		}
		sector := int64(v.dev.SectorSize())
		from, to := at/sector*sector, (at+int64(len(b))+sector-1)/sector*sector
		buf := Aligned(int(to - from))
		if from != at || to != at+int64(len(b)) {
			if _, err := v.dev.ReadAt(buf, from); err != nil {
				return err
			}
		}
		copy(buf[at-from:], b)
		_, err := v.dev.WriteAt(buf, from)
		return err
	})
}

// each splits a range into withheld data and data on the disk.
func (v *View) each(b []byte, off int64, do func(held, b []byte, at int64) error) (int, error) {
	done := 0
	for at := v.part.Start + off; done < len(b); {
		held, n := v.held(at)
		n = min(n, int64(len(b)-done))
		if held != nil {
			held = held[:n]
		}
		if err := do(held, b[done:done+int(n)], at); err != nil {
			return done, err
		}
		done, at = done+int(n), at+n
	}
	return done, nil
}

// held returns the withheld data from a byte of the disk on, or nil, and the minimum length for which that applies.
func (v *View) held(at int64) ([]byte, int64) {
	p := v.p
	if p == nil {
		return nil, v.size - at
	}
	end := p.tailOff + int64(len(p.tail))
	switch {
	case at < HeadSize:
		return p.head[at:], HeadSize - at
	case at < p.tailOff:
		return nil, p.tailOff - at
	case at >= end:
		return nil, p.Disk.Size - at
	}
	next := end
	for _, t := range p.taken { // already written to the disk
		switch {
		case at >= t.off && at < t.off+t.n:
			return nil, t.off + t.n - at
		case t.off > at:
			next = min(next, t.off)
		}
	}
	return p.tail[at-p.tailOff:], next - at
}
