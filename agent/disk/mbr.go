package disk

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/ingot-metal/ingot/agent/step"
)

// mbr is a table of four primary partitions. Logical ones are part of the image's content and unchanged.
type mbr struct {
	sector  int
	entries [4][16]byte
	sectors uint64 // of the disk
}

func parseMBR(head []byte, sector int) (*mbr, error) {
	if head[510] != 0x55 || head[511] != 0xaa {
		return nil, step.Failf(remedyImage, "the image has no partition table")
	}
	m := &mbr{sector: sector}
	for i := range m.entries {
		copy(m.entries[i][:], head[446+16*i:])
		// A boot sector of a bare file system ends in 55 AA too, with code or text in place of the table.
		if s := m.entries[i][0]; s != 0 && s != 0x80 {
			return nil, step.Failf(remedyImage,
				"the image is no whole-disk image: its first sector is not a partition table but a boot sector")
		}
	}
	parts := m.partitions()
	if len(parts) == 0 {
		return nil, step.Failf(remedyImage, "the image has a partition table without a single partition")
	}
	for i, p := range parts {
		if p.Type == "0xee" {
			return nil, errDamaged("a protective MBR without a GPT after it")
		}
		for _, q := range parts[:i] {
			if p.StartLBA < q.StartLBA+q.Sectors && q.StartLBA < p.StartLBA+p.Sectors {
				return nil, errDamaged("partitions %d and %d overlap", q.Number, p.Number)
			}
		}
	}
	if sector != 512 {
		// An MBR does not hold its sector size; practically all are for 512 bytes, and 4096 would shift the partitions
		// by a factor of eight.
		return nil, step.Failf("use an image with a GPT that was built for sectors of 4096 bytes",
			"the image's MBR counts in sectors of 512 bytes, but the disk has sectors of %d bytes", sector)
	}
	return m, nil
}

func (m *mbr) kind() string { return "mbr" }

func (m *mbr) partitions() []Partition {
	var parts []Partition
	for i, e := range m.entries {
		first, n := uint64(binary.LittleEndian.Uint32(e[8:])), uint64(binary.LittleEndian.Uint32(e[12:]))
		if e[4] == 0 || n == 0 {
			continue
		}
		parts = append(parts, Partition{
			Number: i + 1, Type: fmt.Sprintf("0x%02x", e[4]), StartLBA: first, Sectors: n,
			Start: int64(first) * int64(m.sector), Size: int64(n) * int64(m.sector), Bootable: e[0] == 0x80,
		})
	}
	return parts
}

func (m *mbr) fit(sectors uint64) error {
	m.sectors = sectors
	for _, p := range m.partitions() {
		if p.StartLBA+p.Sectors > sectors {
			return step.Failf("use a smaller image or a larger disk",
				"the image is larger than the disk: partition %d ends at sector %d, the disk has %d", p.Number,
				p.StartLBA+p.Sectors, sectors)
		}
	}
	return nil
}

func (m *mbr) add(_ string, sectors uint64) (Partition, error) {
	// 32-bit sector numbers end at 2 TiB, on larger disks too. The last MiB stays free for a possible GPT.
	limit := min(m.sectors-alignSectors(m.sector), 1<<32-1)
	start, err := place(m.partitions(), sectors, limit, alignSectors(m.sector))
	if err != nil {
		return Partition{}, err
	}
	for i := range m.entries {
		e := &m.entries[i]
		if e[4] != 0 {
			continue
		}
		// Type 0x0c, FAT with LBA: every system reads it. The CHS fields mean "beyond CHS".
		*e = [16]byte{0, 0xfe, 0xff, 0xff, 0x0c, 0xfe, 0xff, 0xff}
		binary.LittleEndian.PutUint32(e[8:], uint32(start))
		binary.LittleEndian.PutUint32(e[12:], uint32(sectors))
		parts := m.partitions()
		return parts[slices.IndexFunc(parts, func(p Partition) bool { return p.Number == i+1 })], nil
	}
	return Partition{},
		step.Failf("use an image with a GPT, or with at most three primary partitions",
			"all four primary partitions of the image's MBR are taken")
}

func (m *mbr) apply(head []byte) {
	for i, e := range m.entries {
		copy(head[446+16*i:], e[:])
	}
}

func (m *mbr) backup() ([]byte, uint64) { return nil, 0 }
func (m *mbr) reserved() uint64         { return 0 }

// walkMBR visits primary and logical partitions; a chain of extended boot records is followed for at most 128 links.
func walkMBR(dev Device, sector0 []byte, add func(kind string, start, n uint64)) error {
	type entry struct {
		kind     string // as in Partition
		start, n uint64
	}
	read := func(b []byte) (es []entry) {
		for i := range 4 {
			e := b[446+16*i:]
			es = append(es, entry{fmt.Sprintf("0x%02x", e[4]), uint64(binary.LittleEndian.Uint32(e[8:])),
				uint64(binary.LittleEndian.Uint32(e[12:]))})
		}
		return es
	}
	var base, next uint64
	for _, e := range read(sector0) {
		switch {
		case extended(e.kind):
			base, next = e.start, e.start
		case e.kind != "0x00" && e.kind != "0xee":
			add(e.kind, e.start, e.n)
		}
	}
	sector := int64(dev.SectorSize())
	buf := Aligned(int(sector))
	seen := map[uint64]bool{} // a chain may go back, but not in a loop
	for range 128 {
		if next == 0 || seen[next] || int64(next) >= dev.Size()/sector {
			return nil
		}
		if _, err := dev.ReadAt(buf, int64(next)*sector); err != nil {
			return fmt.Errorf("read the extended boot record in sector %d: %w", next, err)
		}
		if buf[510] != 0x55 || buf[511] != 0xaa {
			return nil
		}
		here := next
		seen[here], next = true, 0
		for _, e := range read(buf) {
			switch {
			case extended(e.kind):
				next = base + e.start
			case e.kind != "0x00":
				add(e.kind, here+e.start, e.n)
			}
		}
	}
	return nil
}
