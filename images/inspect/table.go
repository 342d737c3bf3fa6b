package inspect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/blkid"
	"github.com/ingot-metal/ingot/images/gpt"
)

// Table is a disk's partition table.
type Table struct {
	Kind string `json:"kind"` // gpt or mbr
	// of the table; an MBR does not hold it, but MBR disks with sectors of 4096 bytes don't boot
	SectorSize int         `json:"sector_size"`
	UUID       string      `json:"uuid,omitempty"`
	Partitions []Partition `json:"partitions"`
}

// Partition is an entry of a table.
type Partition struct {
	Number int    `json:"number"`
	Start  int64  `json:"start"` // bytes
	Size   int64  `json:"size"`  // bytes
	Type   string `json:"type"`
	Name   string `json:"name,omitempty"`
	ESP    bool   `json:"esp,omitempty"`
	Active bool   `json:"active,omitempty"`
}

// typeNames are the partition types of images, by GUID and by MBR type.
var typeNames = map[string]string{
	"C12A7328-F81F-11D2-BA4B-00A0C93EC93B": "EFI system",
	"21686148-6449-6E6F-744E-656564454649": "BIOS boot",
	"0FC63DAF-8483-4772-8E79-3D69D8477DE4": "Linux file system",
	"0657FD6D-A4AB-43C4-84E5-0933C84B4F4F": "Linux swap",
	"E6D6D379-F507-44C2-A23C-238F2A3DF928": "Linux LVM",
	"BC13C2FF-59E6-4262-A352-B275FD6F7172": "Linux extended boot",
	"4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709": "Linux root (x86-64)",
	"B921B045-1DF0-41C3-AF44-4C6F280D3FAE": "Linux root (ARM64)",
	"EBD0A0A2-B9E5-4433-87C0-68B6B72699C7": "Microsoft basic data",
	"E3C9E316-0B5C-4DB8-817D-F92DF00215AE": "Microsoft reserved",
	"DE94BBA4-06D1-4D40-A16A-BFD50179D6AC": "Microsoft recovery",
	"9E1A2D38-C612-4316-AA26-8B49521E5A8B": "PowerPC PReP boot",
	"01":                                   "FAT12", "05": "extended", "06": "FAT16", "07": "NTFS or exFAT",
	"0B": "FAT32", "0C": "FAT32", "0E": "FAT16", "0F": "extended", "82": "Linux swap", "83": "Linux", "8E": "Linux LVM",
	"EE": "GPT", "EF": "EFI system", "FD": "Linux RAID",
}

// CheckTable reads the partition table in the beginning of a whole disk, of which the first MiB is enough, and refuses
// one that the agent would refuse. A size of -1 is unknown so far. The readable part of the table is returned with the
// error too.
func CheckTable(start []byte, size int64) (*Table, error) {
	t, fault := readTable(start, size)
	if fault != "" {
		return t, &images.Error{Err: errors.New(fault), Remedy: "check that the image is complete, or make it again"}
	}
	if len(t.Partitions) == 0 {
		return t, &images.Error{Err: errors.New("its partition table has no partition"),
			Remedy: "give an image with a system in it"}
	}
	return t, nil
}

// CheckEnd refuses a disk by its last 512 bytes: a fixed VHD is a raw disk followed by a footer.
func CheckEnd(last []byte) error {
	if bytes.HasPrefix(last, []byte("conectix")) {
		return &images.Error{Err: errors.New("images in vhd format are not supported"),
			Remedy: "convert it: qemu-img convert -f vpc -O raw"}
	}
	return nil
}

// readTable reads the partition table in the beginning of a disk of the given size. Its fault is returned as a
// sentence.
func readTable(start []byte, size int64) (*Table, string) {
	if sector := gpt.SectorSize(start); sector != 0 {
		return readGPT(start, sector, size)
	}
	if !blkid.HasBootSignature(start) {
		return nil, "there is no partition table"
	}
	t := &Table{Kind: "mbr", SectorSize: 512}
	for i := range 4 {
		e := start[446+16*i:][:16]
		if e[4] == 0 {
			continue
		}
		first, n := int64(binary.LittleEndian.Uint32(e[8:])), int64(binary.LittleEndian.Uint32(e[12:]))
		p := Partition{Number: i + 1, Start: first * 512, Size: n * 512, Type: typeName(fmt.Sprintf("%02X", e[4])),
			ESP: e[4] == 0xef, Active: e[0] == 0x80}
		t.Partitions = append(t.Partitions, p)
		if e[4] == 0xee {
			return t, "its MBR protects a GPT that is not there"
		}
		if size >= 0 && p.Start+p.Size > size {
			return t, fmt.Sprintf("partition %d ends at byte %d, the disk at byte %d: the image is cut off", p.Number,
				p.Start+p.Size, size)
		}
	}
	return t, ""
}

func typeName(id string) string {
	if n, ok := typeNames[id]; ok {
		return n
	}
	return id
}

func readGPT(start []byte, sector int, size int64) (*Table, string) {
	t := &Table{Kind: "gpt", SectorSize: sector}
	g, err := gpt.Read(start, sector)
	if err != nil {
		return t, err.Error()
	}
	t.UUID = g.Disk.String()
	for _, e := range g.Partitions() {
		p := Partition{Number: e.Number, Start: int64(e.First) * int64(sector),
			Size: int64(e.Sectors()) * int64(sector), Type: typeName(e.Type.String()), Name: printable(e.Name),
			ESP: e.Type == gpt.ESP}
		t.Partitions = append(t.Partitions, p)
		if size >= 0 && p.Start+p.Size > size {
			return t, fmt.Sprintf("partition %d ends at byte %d, the disk at byte %d: the image is cut off", p.Number,
				p.Start+p.Size, size)
		}
	}
	return t, ""
}

// printable returns a partition's name without characters that could confuse a terminal.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == 0xfffd {
			return '?'
		}
		return r
	}, name)
}
