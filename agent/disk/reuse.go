package disk

import (
	"fmt"
	"strings"

	"github.com/ingot-metal/ingot/images/fs/fat"
)

// ReserveOn is Reserve with the open disk. It also finds the image's partition by the label of its file system, ISO
// 9660 or FAT, as an MBR has no names and many GPT images leave them empty; logical partitions of an MBR are included.
// A partition that is too small can't stay beside the new one, or the system would have two: it is returned as stale,
// for the caller to clear.
func (p *Pending) ReserveOn(dev Device, name string, want, least int64) (part Partition, stale []Partition, err error) {
	if part, ok := p.added[name]; ok && part.Size >= least {
		return part, p.stale, nil
	}
	if p.div == nil {
		for _, part := range append(p.table.partitions(), p.logical(dev)...) {
			if !p.inBody(part) || part.Name != name && !strings.EqualFold(label(dev, part), name) {
				continue
			}
			if part.Size >= least {
				return p.reuse(name, part), nil, nil
			}
			stale = append(stale, part)
		}
	}
	part, err = p.Reserve(name, want, least)
	if err == nil {
		p.stale = stale
	}
	return part, stale, err
}

// inBody reports whether the start of a partition is on the disk already.
func (p *Pending) inBody(part Partition) bool {
	return part.Start >= HeadSize && part.Start < p.tailOff
}

// reuse uses a partition of the image. Its withheld part, at the end of an image with an MBR, is not written any more.
func (p *Pending) reuse(name string, part Partition) Partition {
	p.added[name] = part
	p.taken = append(p.taken, span{part.Start, part.Size})
	return part
}

// logical returns the logical partitions of an MBR.
func (p *Pending) logical(dev Device) []Partition { return logical(dev, p.table, p.head, p.Disk.Size) }

// logical returns those of a table; start is the beginning of the disk, present or future.
func logical(dev Device, t table, start []byte, size int64) []Partition {
	m, ok := t.(*mbr)
	if !ok {
		return nil
	}
	head := make([]byte, 512)
	copy(head, start)
	m.apply(head)
	var all []Partition
	sector := uint64(m.sector)
	seen, primary := 0, 0
	for _, e := range m.entries { // as from walkMBR, including those without sectors
		if kind := fmt.Sprintf("0x%02x", e[4]); kind != "0x00" && kind != "0xee" && !extended(kind) {
			primary++
		}
	}
	// Unreadable partitions are left out: they are only examined for labels.
	_ = walkMBR(dev, head, func(kind string, start, n uint64) {
		if seen++; seen <= primary || (start+n)*sector > uint64(size) {
			return
		}
		all = append(all,
			Partition{Number: 5 + len(all), Type: kind, StartLBA: start, Sectors: n, Start: int64(start * sector),
				Size: int64(n * sector)})
	})
	return all
}

// label reads the name of an ISO 9660 or FAT file system; "" if there is neither.
func label(dev Device, part Partition) string {
	r := Section(dev, part.Start, part.Size)
	const descriptor = 16 * 2048
	b := make([]byte, 80)
	if _, err := r.ReadAt(b, descriptor); err == nil && b[0] == 1 && string(b[1:6]) == "CD001" {
		return strings.TrimRight(string(b[40:72]), " \x00")
	}
	if f, err := fat.Open(r, part.Size); err == nil {
		if l, err := f.Label(); err == nil {
			return l
		}
	}
	return ""
}
