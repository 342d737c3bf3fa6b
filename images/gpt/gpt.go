// Package gpt reads and writes GUID partition tables, by section 5.3 of the UEFI specification 2.10.
//
// Tables may be hostile: Read refuses a table with wrong checksums, with entries far from it, or with partitions that
// are out of bounds, reversed or overlapping. Positions are sectors, of Table.Sector bytes each. Names of partitions
// are returned unchanged: clean them before showing them to people.
package gpt

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"unicode/utf16"
)

// Signature begins every header.
const Signature = "EFI PART"

const (
	headerSize = 92
	entrySize  = 128
	entryCount = 128  // of new tables, as with all tools
	maxEntries = 1024 // of a table that is read
	mostSector = 1 << 50
)

var le = binary.LittleEndian

// Header is a table's header as it lies behind the signature.
type Header struct {
	Revision    uint32
	Size        uint32
	CRC         uint32
	_           uint32
	Self        uint64
	Alternate   uint64
	FirstUsable uint64
	LastUsable  uint64
	Disk        GUID
	EntriesLBA  uint64
	Count       uint32
	EntrySize   uint32
	EntriesCRC  uint32
}

// Entry is a partition. First and Last are its first and last sector.
type Entry struct {
	Number      int // from 1 on: its place in the table
	Type, GUID  GUID
	First, Last uint64
	Attributes  uint64
	Name        string // at most 36 UTF-16 units
}

// Sectors is the partition's length.
func (e Entry) Sectors() uint64 { return e.Last - e.First + 1 }

// Bootable reports the attribute that BIOS boot loaders check.
func (e Entry) Bootable() bool { return e.Attributes&4 != 0 }

// SectorSize returns the sector size of the GPT at the beginning of a disk; 0 without a GPT.
func SectorSize(start []byte) int {
	for _, n := range []int{512, 4096} {
		if len(start) >= n+len(Signature) && string(start[n:n+len(Signature)]) == Signature {
			return n
		}
	}
	return 0
}

// ScanHeader parses a header of at least headerSize bytes and checks only its signature, to find remains of tables.
func ScanHeader(b []byte) (Header, bool) {
	if len(b) < headerSize || string(b[:len(Signature)]) != Signature {
		return Header{}, false
	}
	var h Header
	_, err := binary.Decode(b[len(Signature):], le, &h)
	return h, err == nil
}

// ParseHeader parses the header in the sector at the beginning of b.
func ParseHeader(b []byte, sector int) (Header, error) {
	h, ok := ScanHeader(b)
	if !ok || len(b) < sector {
		return Header{}, fmt.Errorf("it has no GPT header")
	}
	if h.Size < headerSize || int64(h.Size) > int64(sector) {
		return Header{}, fmt.Errorf("the GPT's header is damaged: it says that it has %d bytes", h.Size)
	}
	check := slices.Clone(b[:h.Size])
	clear(check[16:20])
	if got := crc32.ChecksumIEEE(check); got != h.CRC {
		return Header{}, fmt.Errorf("the GPT's header is damaged: its checksum is %08x, not %08x", got, h.CRC)
	}
	if h.EntrySize < entrySize || h.EntrySize > 4096 || h.EntrySize&(h.EntrySize-1) != 0 || h.Count == 0 ||
		h.Count > maxEntries {
		return Header{}, fmt.Errorf("the GPT's header is damaged: it has %d entries of %d bytes", h.Count, h.EntrySize)
	}
	return h, nil
}

// stored is an entry as it lies in the table.
type stored struct {
	Type, GUID              GUID
	First, Last, Attributes uint64
	Name                    [36]uint16
}

// ParseEntry reads an entry, of which the first 128 bytes are needed. Its number is not in it.
func ParseEntry(b []byte) Entry {
	var s stored
	if _, err := binary.Decode(b, le, &s); err != nil {
		panic(err) // fewer bytes
	}
	name, _, _ := strings.Cut(string(utf16.Decode(s.Name[:])), "\x00")
	return Entry{Type: s.Type, GUID: s.GUID, First: s.First, Last: s.Last, Attributes: s.Attributes, Name: name}
}

// Table is a partition table in memory. Fit moves it to a disk.
type Table struct {
	Header
	Sector  int
	sectors uint64 // of the disk
	entries []byte
}

// New returns an empty table for sectors of this size. Fit it to a disk before use.
func New(sector int, disk GUID) *Table {
	const size = entryCount * entrySize
	return &Table{Sector: sector, entries: make([]byte, size),
		Header: Header{Revision: 0x10000, Size: headerSize, Self: 1, Disk: disk,
			FirstUsable: uint64(2 + size/sector), EntriesLBA: 2, Count: entryCount, EntrySize: entrySize}}
}

// Read parses the primary table in the beginning of a disk, of which a MiB is enough. A table without partitions is not
// an error.
func Read(head []byte, sector int) (*Table, error) {
	if len(head) < 2*sector {
		return nil, fmt.Errorf("it has no GPT header")
	}
	h, err := ParseHeader(head[sector:], sector)
	if err != nil {
		return nil, err
	}
	if h.Self != 1 {
		return nil, fmt.Errorf("the GPT's header is damaged: it says that it is sector %d", h.Self)
	}
	size := uint64(h.Count) * uint64(h.EntrySize)
	if h.EntriesLBA < 2 || h.EntriesLBA >= uint64(len(head)/sector) || h.EntriesLBA*uint64(sector)+
		size > uint64(len(head)) {
		return nil, fmt.Errorf("the GPT's entries are not in the first MiB (%d at sector %d)", h.Count, h.EntriesLBA)
	}
	t := &Table{Header: h, Sector: sector, entries: slices.Clone(head[h.EntriesLBA*uint64(sector):][:size])}
	if got := crc32.ChecksumIEEE(t.entries); got != h.EntriesCRC {
		return nil, fmt.Errorf("the GPT's entries are damaged: their checksum is %08x, not %08x", got, h.EntriesCRC)
	}
	return t, t.check()
}

// check refuses tables that no partitioning tool makes.
func (t *Table) check() error {
	if t.FirstUsable > t.LastUsable || t.LastUsable > mostSector {
		return fmt.Errorf("the GPT's header is damaged: its usable sectors are %d to %d", t.FirstUsable, t.LastUsable)
	}
	parts := t.Partitions()
	for _, p := range parts {
		if p.First > p.Last || p.First < t.FirstUsable || p.Last > t.LastUsable {
			return fmt.Errorf("the GPT's partition %d is at sectors %d to %d, usable are %d to %d", p.Number, p.First,
				p.Last, t.FirstUsable, t.LastUsable)
		}
	}
	slices.SortFunc(parts, func(a, b Entry) int { return cmp.Compare(a.First, b.First) })
	for i := range max(len(parts)-1, 0) {
		if a, b := parts[i], parts[i+1]; a.Last >= b.First {
			return fmt.Errorf("the GPT's partitions %d and %d overlap", a.Number, b.Number)
		}
	}
	return nil
}

func (t *Table) entry(number int) []byte {
	return t.entries[(number-1)*int(t.EntrySize):][:t.EntrySize]
}

// Partition returns the partition with a number; false if there is none.
func (t *Table) Partition(number int) (Entry, bool) {
	e := ParseEntry(t.entry(number))
	e.Number = number
	return e, e.Type != GUID{}
}

// Partitions returns all partitions, in the table's order.
func (t *Table) Partitions() []Entry {
	var parts []Entry
	for n := 1; n <= int(t.Count); n++ {
		if e, ok := t.Partition(n); ok {
			parts = append(parts, e)
		}
	}
	return parts
}

// Free returns the first number without a partition; 0 if all are taken.
func (t *Table) Free() int {
	for n := 1; n <= int(t.Count); n++ {
		if _, ok := t.Partition(n); !ok {
			return n
		}
	}
	return 0
}

// Set sets the partition of its number. A name that is too long is truncated.
func (t *Table) Set(e Entry) {
	s := stored{Type: e.Type, GUID: e.GUID, First: e.First, Last: e.Last, Attributes: e.Attributes}
	copy(s.Name[:], utf16.Encode([]rune(e.Name)))
	b := t.entry(e.Number)
	clear(b)
	_, _ = binary.Encode(b, le, s) // an entry is as large at least
}

func (t *Table) entrySectors() uint64 {
	return (uint64(len(t.entries)) + uint64(t.Sector) - 1) / uint64(t.Sector)
}

// LastFor returns the last usable sector of a disk of that many sectors, which the backup table follows; false if the
// disk is too small for both tables.
func (t *Table) LastFor(sectors uint64) (uint64, bool) {
	behind := t.entrySectors() + 1
	return sectors - behind - 1, sectors >= behind+t.FirstUsable+1
}

// Fit adapts the table to a disk of that many sectors, for which LastFor is true.
func (t *Table) Fit(sectors uint64) {
	t.sectors, t.Alternate = sectors, sectors-1
	t.LastUsable, _ = t.LastFor(sectors)
}

// header returns the header for one of the two places.
func (t *Table) header(self, other, entriesLBA uint64) []byte {
	h := t.Header
	h.Size, h.CRC, h.Self, h.Alternate = headerSize, 0, self, other
	h.EntriesLBA, h.EntriesCRC = entriesLBA, crc32.ChecksumIEEE(t.entries)
	b := append(make([]byte, 0, t.Sector), Signature...)
	b, _ = binary.Append(b, le, h) // a Header has a fixed size
	le.PutUint32(b[16:], crc32.ChecksumIEEE(b))
	return b[:t.Sector]
}

// Put writes the fitted table into a disk's beginning, with a protective MBR. Boot code in sector 0 stays.
func (t *Table) Put(head []byte) {
	protect(head, t.sectors)
	copy(head[t.Sector:], t.header(1, t.sectors-1, t.EntriesLBA))
	copy(head[t.EntriesLBA*uint64(t.Sector):], t.entries)
}

// Backup returns the data for the end of the fitted disk, and the sector where it begins.
func (t *Table) Backup() (data []byte, start uint64) {
	start = t.sectors - 1 - t.entrySectors()
	b := make([]byte, t.entrySectors()*uint64(t.Sector))
	copy(b, t.entries)
	return append(b, t.header(t.sectors-1, 1, start)...), start
}

// protect makes sector 0 a protective MBR of the right size. A hybrid MBR, which has other partitions beside the
// protective one, is not changed: its protective partition must not grow over them.
func protect(head []byte, sectors uint64) {
	head[510], head[511] = 0x55, 0xaa
	size := uint32(min(sectors-1, 0xffffffff))
	free, others := -1, 0
	for i := range 4 {
		if t := head[446+16*i+4]; t != 0 && t != 0xee {
			others++
		}
	}
	for i := range 4 {
		e := head[446+16*i:][:16]
		switch {
		case e[4] == 0xee:
			if le.Uint32(e[8:]) == 1 && others == 0 {
				le.PutUint32(e[12:], size)
			}
			return
		case e[4] == 0 && free < 0:
			free = i
		}
	}
	if free < 0 {
		free = 3 // the apparent partitions are none, or the table would have been read as an MBR
	}
	e := head[446+16*free:][:16]
	copy(e, []byte{0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0})
	le.PutUint32(e[12:], size)
}
