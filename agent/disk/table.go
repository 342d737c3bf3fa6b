package disk

import (
	"fmt"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/blkid"
	"github.com/ingot-metal/ingot/images/gpt"
)

// HeadSize is the length of an image's beginning that is withheld until the commit, and of the zeroed range at either
// end of a disk.
const HeadSize = 1 << 20

// TailSectors is the length of an image's end that is withheld: a backup GPT with the usual 128 entries on 512-byte
// sectors.
const TailSectors = 33

// Partition is one entry of a partition table.
type Partition struct {
	Number   int    `json:"number"` // from 1 on; the entry's place in the table
	Name     string `json:"name,omitempty"`
	Type     string `json:"type"` // GPT: upper-case GUID; MBR: "0x83"
	GUID     string `json:"guid,omitempty"`
	StartLBA uint64 `json:"start_lba"`
	Sectors  uint64 `json:"sectors"`
	Start    int64  `json:"start"` // bytes
	Size     int64  `json:"size"`
	Bootable bool   `json:"bootable,omitempty"`
}

// TypeESP marks an EFI system partition in a GPT.
var TypeESP = gpt.ESP.String()

// table is a partition table in memory, of an image or a disk. Positions are unchanged until fit moves them to a disk.
type table interface {
	kind() string
	partitions() []Partition
	// fit adapts the table to a disk of that many sectors.
	fit(sectors uint64) error
	// add adds a partition of that many sectors as near to the disk's end as alignment allows, after fit.
	add(name string, sectors uint64) (Partition, error)
	// apply writes the table into an image's head.
	apply(head []byte)
	// backup returns the data for the end of the disk and its start; nil if the table has none.
	backup() (data []byte, start uint64)
	// reserved is the first sector of the image's end that belongs to the table and not to content; 0 if there is none.
	reserved() uint64
}

const remedyImage = "give a whole-disk image that was made for disks like this one"

// parseTable parses the partition table in the first MiB of an image or a disk with the given sector size.
func parseTable(head []byte, sector int) (table, error) {
	if len(head) < 2*sector {
		return nil, step.Failf(remedyImage, "the image has only %d bytes: too short for a partition table", len(head))
	}
	if size := gpt.SectorSize(head); size != 0 && !onlyMBR(head) {
		if size != sector {
			return nil, step.Failf(
				fmt.Sprintf("build the image for sectors of %d bytes, or use a disk with sectors of %d", sector, size),
				"the image's partition table counts in sectors of %d bytes, but the disk has sectors of %d bytes", size,
				sector)
		}
		return parseGPT(head, sector)
	}
	return parseMBR(head, sector)
}

// onlyMBR reports whether sector 0 has MBR partitions and no protective one. Linux and firmware then ignore a GPT that
// follows: it is left from an earlier partitioning.
func onlyMBR(head []byte) bool {
	used := 0
	for i := range 4 {
		e := head[446+16*i:][:16]
		switch {
		case e[0] != 0 && e[0] != 0x80, e[4] == 0xee:
			return false
		case e[4] != 0:
			used++
		}
	}
	return used > 0 && blkid.HasBootSignature(head)
}

// HasTable reports whether the beginning of a disk or image looks bootable to firmware: an MBR signature, or a valid
// GPT header.
func HasTable(head []byte, sector int) bool {
	if len(head) < 2*sector {
		return blkid.HasBootSignature(head)
	}
	_, err := gpt.ParseHeader(head[sector:2*sector], sector)
	return err == nil || blkid.HasBootSignature(head)
}

// CheckHead checks that an image can be put on a disk, by head, its first MiB or all of a smaller one: that it has a
// partition table for the disk's sector size, whose partitions lie within the image (size, or -1 if unknown so far) and
// on the disk. Nothing is written.
func CheckHead(head []byte, size int64, d Disk) error {
	_, err := fitted(head, size, d)
	return err
}

// fitted returns an image's table adapted to a disk.
func fitted(head []byte, size int64, d Disk) (table, error) {
	if size > d.Size {
		return nil, tooLarge(size, d)
	}
	if len(head) < HeadSize {
		head = append(head[:len(head):len(head)], make([]byte, HeadSize-len(head))...)
	}
	t, err := parseTable(head[:HeadSize], d.LogicalSectors)
	if err != nil {
		return nil, err
	}
	if err := t.fit(uint64(d.Size) / uint64(d.LogicalSectors)); err != nil {
		return nil, err
	}
	return t, checkExtent(t, size)
}

func checkExtent(t table, size int64) error {
	if size < 0 {
		return nil
	}
	for _, p := range t.partitions() {
		if p.Start+p.Size > size {
			return step.Failf("fetch or build the image again",
				"the image is truncated: its partition %d ends at byte %d, the image at byte %d", p.Number,
				p.Start+p.Size, size)
		}
	}
	return nil
}

func tooLarge(size int64, d Disk) error {
	return step.Failf("use a smaller image or a larger disk",
		"the image is larger than the disk: %d bytes onto %s with %d bytes", size, d.Name, d.Size)
}

// alignSectors is the alignment of partitions: every MiB, as in all current tools.
func alignSectors(sector int) uint64 { return uint64(1<<20) / uint64(sector) }

// place finds space for that many sectors, ending before limit and starting at a multiple of align after all
// partitions.
func place(parts []Partition, sectors, limit, align uint64) (start uint64, err error) {
	used := align // never inside the head
	for _, p := range parts {
		used = max(used, p.StartLBA+p.Sectors)
	}
	start = (limit - min(sectors, limit)) / align * align
	if start < used {
		return 0, step.Failf("use a larger disk, or an image that leaves room behind its last partition",
			"no room for another %d MiB behind the last partition", (sectors+align-1)/align)
	}
	return start, nil
}
