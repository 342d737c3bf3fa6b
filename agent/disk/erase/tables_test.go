package erase

import (
	"encoding/binary"
	"hash/crc32"
	"io"
)

// part is a partition in sectors.
type part struct {
	kind     byte // of an MBR; 0 is 0x83
	start, n uint64
}

// putGPT writes a whole GPT with its backup for sectors of a size.
func putGPT(w io.WriterAt, size, sector int64, parts ...part) {
	le := binary.LittleEndian
	entries := make([]byte, 128*128)
	for i, p := range parts {
		e := entries[128*i:]
		copy(e, "\xaf\x3d\xc6\x0f\x83\x84\x72\x47\x8e\x79\x3d\x69\xd8\x47\x7d\xe4") // Linux
		copy(e[16:], "unique of part  ")
		e[30] = byte(i)
		le.PutUint64(e[32:], p.start)
		le.PutUint64(e[40:], p.start+p.n-1)
	}
	sectors := uint64(size / sector)
	table := uint64(16384 / sector)
	header := func(mine, other, at uint64) []byte {
		b := make([]byte, sector)
		copy(b, "EFI PART\x00\x00\x01\x00")
		le.PutUint32(b[12:], 92)
		le.PutUint64(b[24:], mine)
		le.PutUint64(b[32:], other)
		le.PutUint64(b[40:], 2+table)
		le.PutUint64(b[48:], sectors-2-table)
		copy(b[56:], "guid of the disk")
		le.PutUint64(b[72:], at)
		le.PutUint32(b[80:], 128)
		le.PutUint32(b[84:], 128)
		le.PutUint32(b[88:], crc32.ChecksumIEEE(entries))
		le.PutUint32(b[16:], crc32.ChecksumIEEE(b[:92]))
		return b
	}
	putMBR(w, 0, part{0xee, 1, min(sectors-1, 0xffffffff)})
	put(w, header(1, sectors-1, 2), sector)
	put(w, entries, 2*sector)
	put(w, entries, size-sector-16384)
	put(w, header(sectors-1, 1, sectors-1-table), size-sector)
}

// putMBR writes the table of an MBR, or of an extended boot record.
func putMBR(w io.WriterAt, at int64, parts ...part) {
	b := make([]byte, 66)
	b[64], b[65] = 0x55, 0xaa
	for i, p := range parts {
		e := b[16*i:]
		if e[4] = p.kind; p.kind == 0 {
			e[4] = 0x83
		}
		binary.LittleEndian.PutUint32(e[8:], uint32(p.start))
		binary.LittleEndian.PutUint32(e[12:], uint32(p.n))
	}
	put(w, b, at+446)
}

func put(w io.WriterAt, b []byte, off int64) {
	if _, err := w.WriteAt(b, off); err != nil {
		panic(err)
	}
}
