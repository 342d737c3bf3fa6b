package build

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"unicode/utf16"

	"github.com/google/uuid"
)

const (
	sector     = 512 // of most disks, and of GRUB for BIOS
	mib        = 1 << 20
	gptEntries = 128
)

// Partition types.
var (
	typeBIOSBoot = uuid.MustParse("21686148-6449-6E6F-744E-656564454649")
	typeESP      = uuid.MustParse("C12A7328-F81F-11D2-BA4B-00A0C93EC93B")
	typeRoot     = uuid.MustParse("4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709") // x86-64 root
)

// partition is one entry of the table.
type partition struct {
	kind  uuid.UUID
	name  string
	start int64
	size  int64
}

// named makes an identifier that depends on nothing but the names: images are the same whenever they are made of the same.
func named(image, what string) uuid.UUID {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte("ingot:image:"+image+":"+what))
}

// writeGPT writes the table of a disk of size bytes in sectors of so many bytes, twice, and the protective MBR. The first 440 bytes, boot
// code, are left alone.
func writeGPT(w io.WriterAt, size, sector int64, image string, parts []partition) error {
	gptSectors := gptEntries * 128 / sector
	last := size/sector - 1
	mbr := make([]byte, 512-440)
	entry := mbr[446-440:]
	// The active flag: some BIOSes boot no disk without it, and UEFI is told to ignore it.
	copy(entry, []byte{0x80, 0, 2, 0, 0xEE, 0xFF, 0xFF, 0xFF, 1, 0, 0, 0})
	binary.LittleEndian.PutUint32(entry[12:], uint32(min(last, 0xFFFFFFFF)))
	mbr[510-440], mbr[511-440] = 0x55, 0xAA
	if _, err := w.WriteAt(mbr, 440); err != nil {
		return err
	}
	table := make([]byte, gptSectors*sector)
	for i, p := range parts {
		e := table[i*128:]
		copy(e, guid(p.kind))
		copy(e[16:], guid(named(image, p.name)))
		binary.LittleEndian.PutUint64(e[32:], uint64(p.start/sector))
		binary.LittleEndian.PutUint64(e[40:], uint64((p.start+p.size)/sector-1))
		for j, c := range utf16.Encode([]rune(p.name)) {
			binary.LittleEndian.PutUint16(e[56+2*j:], c)
		}
	}
	for _, at := range []struct{ header, other, table int64 }{{1, last, 2}, {last, 1, last - gptSectors}} {
		h := make([]byte, sector)
		copy(h, "EFI PART")
		binary.LittleEndian.PutUint32(h[8:], 0x10000)
		binary.LittleEndian.PutUint32(h[12:], 92)
		binary.LittleEndian.PutUint64(h[24:], uint64(at.header))
		binary.LittleEndian.PutUint64(h[32:], uint64(at.other))
		binary.LittleEndian.PutUint64(h[40:], uint64(2+gptSectors))
		binary.LittleEndian.PutUint64(h[48:], uint64(last-gptSectors-1))
		copy(h[56:], guid(named(image, "disk")))
		binary.LittleEndian.PutUint64(h[72:], uint64(at.table))
		binary.LittleEndian.PutUint32(h[80:], gptEntries)
		binary.LittleEndian.PutUint32(h[84:], 128)
		binary.LittleEndian.PutUint32(h[88:], crc32.ChecksumIEEE(table))
		binary.LittleEndian.PutUint32(h[16:], crc32.ChecksumIEEE(h[:92]))
		if _, err := w.WriteAt(table, at.table*sector); err != nil {
			return err
		}
		if _, err := w.WriteAt(h, at.header*sector); err != nil {
			return err
		}
	}
	return nil
}

// guid is a UUID as GPT stores it: the first three fields little-endian.
func guid(u uuid.UUID) []byte {
	b := u[:]
	return append([]byte{b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6]}, b[8:]...)
}
