package disk

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/ingot-metal/ingot/agent/step"
)

// The layout of a GPT is in the UEFI specification 2.10, section 5.3.
const (
	gptSignature  = "EFI PART"
	gptHeaderSize = 92
	maxEntries    = 1024
)

// gptHeader is a header with nothing left out that we would have to keep.
type gptHeader struct {
	revision    uint32
	size        uint32
	mine        uint64
	alternate   uint64
	firstUsable uint64
	lastUsable  uint64
	diskGUID    [16]byte
	entriesLBA  uint64
	count       uint32
	entrySize   uint32
	entriesCRC  uint32
}

// gpt is a table and the sector 0 before it.
type gpt struct {
	gptHeader
	sector      int
	entries     []byte
	imageUsable uint64 // last usable sector as the image said, before fit
	sectors     uint64 // of the disk
}

func errDamaged(format string, args ...any) error {
	return step.Failf("fetch or build the image again", "the image's partition table is damaged: "+format, args...)
}

func parseGPTHeader(b []byte, sector int) (gptHeader, error) {
	le := binary.LittleEndian
	if len(b) < sector || !bytes.HasPrefix(b, []byte(gptSignature)) {
		return gptHeader{}, errDamaged("no GPT header")
	}
	h := gptHeader{
		revision: le.Uint32(b[8:]), size: le.Uint32(b[12:]), mine: le.Uint64(b[24:]), alternate: le.Uint64(b[32:]),
		firstUsable: le.Uint64(b[40:]), lastUsable: le.Uint64(b[48:]), entriesLBA: le.Uint64(b[72:]),
		count: le.Uint32(b[80:]), entrySize: le.Uint32(b[84:]), entriesCRC: le.Uint32(b[88:]),
	}
	copy(h.diskGUID[:], b[56:72])
	if h.size < gptHeaderSize || int(h.size) > sector {
		return gptHeader{}, errDamaged("a header of %d bytes", h.size)
	}
	check := slices.Clone(b[:h.size])
	clear(check[16:20])
	if got, want := crc32.ChecksumIEEE(check), le.Uint32(b[16:]); got != want {
		return gptHeader{}, errDamaged("the header's checksum is %08x, not %08x", got, want)
	}
	if h.entrySize < 128 || h.entrySize > 4096 || h.entrySize&(h.entrySize-1) != 0 || h.count == 0 || h.count > maxEntries {
		return gptHeader{}, errDamaged("%d entries of %d bytes", h.count, h.entrySize)
	}
	return h, nil
}

func parseGPT(head []byte, sector int) (*gpt, error) {
	h, err := parseGPTHeader(head[sector:], sector)
	if err != nil {
		return nil, err
	}
	if h.mine != 1 {
		return nil, errDamaged("the primary header says that it is sector %d", h.mine)
	}
	size := uint64(h.count) * uint64(h.entrySize)
	room := uint64(len(head) / sector)
	if h.entriesLBA < 2 || h.entriesLBA >= room || h.entriesLBA*uint64(sector)+size > uint64(len(head)) {
		return nil, errDamaged("its entries are not in the first MiB (%d at sector %d)", h.count, h.entriesLBA)
	}
	g := &gpt{gptHeader: h, sector: sector, imageUsable: h.lastUsable}
	g.entries = slices.Clone(head[h.entriesLBA*uint64(sector):][:size])
	if got := crc32.ChecksumIEEE(g.entries); got != h.entriesCRC {
		return nil, errDamaged("the entries' checksum is %08x, not %08x", got, h.entriesCRC)
	}
	return g, g.check()
}

// check refuses what no partitioning tool makes: partitions out of bounds, reversed or one over the other.
func (g *gpt) check() error {
	const most = 1 << 50 // sectors; keeps sums and byte offsets far from overflowing
	if g.firstUsable > g.lastUsable || g.lastUsable > most {
		return errDamaged("usable sectors %d to %d", g.firstUsable, g.lastUsable)
	}
	for i := range int(g.count) {
		e := g.entry(i)
		if isZero(e[:16]) {
			continue
		}
		first, last := binary.LittleEndian.Uint64(e[32:]), binary.LittleEndian.Uint64(e[40:])
		if first > last || first < g.firstUsable || last > g.lastUsable {
			return errDamaged("partition %d is at sectors %d to %d, usable are %d to %d", i+1, first, last, g.firstUsable, g.lastUsable)
		}
	}
	parts := g.partitions()
	if len(parts) == 0 {
		return step.Failf(remedyImage, "the image has a partition table without a single partition")
	}
	slices.SortFunc(parts, func(a, b Partition) int {
		if a.StartLBA < b.StartLBA {
			return -1
		}
		return 1
	})
	for i := range parts[1:] {
		if a, b := parts[i], parts[i+1]; a.StartLBA+a.Sectors > b.StartLBA {
			return errDamaged("partitions %d and %d overlap", a.Number, b.Number)
		}
	}
	return nil
}

func (g *gpt) entry(i int) []byte {
	return g.entries[i*int(g.entrySize):][:g.entrySize]
}

func (g *gpt) kind() string { return "gpt" }

func (g *gpt) partitions() []Partition {
	var parts []Partition
	le := binary.LittleEndian
	for i := range int(g.count) {
		e := g.entry(i)
		if isZero(e[:16]) {
			continue
		}
		first, last := le.Uint64(e[32:]), le.Uint64(e[40:])
		parts = append(parts, Partition{
			Number: i + 1, Type: guidText(e[:16]), GUID: guidText(e[16:32]), Name: gptName(e[56:128]),
			StartLBA: first, Sectors: last - first + 1, Start: int64(first) * int64(g.sector), Size: int64(last-first+1) * int64(g.sector),
			Bootable: e[48]&4 != 0, // attribute bit 2: legacy BIOS bootable
		})
	}
	return parts
}

func (g *gpt) entrySectors() uint64 {
	return (uint64(len(g.entries)) + uint64(g.sector) - 1) / uint64(g.sector)
}

func (g *gpt) fit(sectors uint64) error {
	need := g.entrySectors() + 1
	if sectors < need+g.firstUsable+1 {
		return step.Failf("use a larger disk", "the disk's %d sectors have no room for the image's partition table", sectors)
	}
	last := sectors - need - 1
	for _, p := range g.partitions() {
		if end := p.StartLBA + p.Sectors - 1; end > last {
			return step.Failf("use a smaller image or a larger disk",
				"the image is larger than the disk: partition %d ends at sector %d, the disk's last usable one is %d", p.Number, end, last)
		}
	}
	g.lastUsable, g.sectors, g.alternate = last, sectors, sectors-1
	return nil
}

func (g *gpt) add(name string, sectors uint64) (Partition, error) {
	start, err := place(g.partitions(), sectors, g.lastUsable+1, alignSectors(g.sector))
	if err != nil {
		return Partition{}, err
	}
	for i := range int(g.count) {
		e := g.entry(i)
		if !isZero(e[:16]) {
			continue
		}
		clear(e)
		copy(e[:16], guidBytes(TypeBasicData))
		guid := randomGUID()
		copy(e[16:32], guid[:])
		binary.LittleEndian.PutUint64(e[32:], start)
		binary.LittleEndian.PutUint64(e[40:], start+sectors-1)
		putName(e, name)
		parts := g.partitions()
		return parts[slices.IndexFunc(parts, func(p Partition) bool { return p.Number == i+1 })], nil
	}
	return Partition{}, step.Failf("use an image with a free entry in its partition table", "all %d entries of the partition table are taken", g.count)
}

// header makes the header for one of the two places.
func (g *gpt) header(mine, other, entriesLBA uint64) []byte {
	le := binary.LittleEndian
	b := make([]byte, g.sector)
	copy(b, gptSignature)
	le.PutUint32(b[8:], g.revision)
	le.PutUint32(b[12:], gptHeaderSize)
	le.PutUint64(b[24:], mine)
	le.PutUint64(b[32:], other)
	le.PutUint64(b[40:], g.firstUsable)
	le.PutUint64(b[48:], g.lastUsable)
	copy(b[56:], g.diskGUID[:])
	le.PutUint64(b[72:], entriesLBA)
	le.PutUint32(b[80:], g.count)
	le.PutUint32(b[84:], g.entrySize)
	le.PutUint32(b[88:], crc32.ChecksumIEEE(g.entries))
	le.PutUint32(b[16:], crc32.ChecksumIEEE(b[:gptHeaderSize]))
	return b
}

func (g *gpt) apply(head []byte) {
	protect(head, g.sectors)
	copy(head[g.sector:], g.header(1, g.sectors-1, g.entriesLBA))
	copy(head[g.entriesLBA*uint64(g.sector):], g.entries)
}

func (g *gpt) backup() ([]byte, uint64) {
	start := g.sectors - 1 - g.entrySectors()
	b := make([]byte, g.entrySectors()*uint64(g.sector))
	copy(b, g.entries)
	return append(b, g.header(g.sectors-1, 1, start)...), start
}

// backupFault says what is wrong with the backup table that an image brings, or "". It is not needed: a new one is made of the primary.
func (g *gpt) backupFault(tail []byte, tailOff, size int64) string {
	const but = "; the new one is made from the primary table"
	last := size/int64(g.sector) - 1
	at := last*int64(g.sector) - tailOff
	if at < 0 || at+int64(g.sector) > int64(len(tail)) {
		return "the image has no backup partition table" + but
	}
	h, err := parseGPTHeader(tail[at:], g.sector)
	switch {
	case err != nil && !bytes.HasPrefix(tail[at:], []byte(gptSignature)):
		return "the image has no backup partition table at its end" + but
	case err != nil:
		return "the image's backup partition table is damaged" + but
	case h.entriesCRC != g.entriesCRC || h.diskGUID != g.diskGUID:
		return "the image's backup partition table is another one than the primary" + but
	}
	return ""
}

func (g *gpt) reserved() uint64 { return g.imageUsable + 1 }

// protect makes sector 0 a protective MBR of the right size. Boot code stays. A hybrid MBR, where other partitions stand beside the
// protective one, stays as it is: its protective partition must not grow over them.
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
			if binary.LittleEndian.Uint32(e[8:]) == 1 && others == 0 {
				binary.LittleEndian.PutUint32(e[12:], size)
			}
			return
		case e[4] == 0 && free < 0:
			free = i
		}
	}
	if free < 0 {
		free = 3 // what looks like partitions is none, or the table would have been read as an MBR
	}
	e := head[446+16*free:][:16]
	copy(e, []byte{0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0})
	binary.LittleEndian.PutUint32(e[12:], size)
}

var zeroPage [4096]byte

func isZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeroPage))
		if !bytes.Equal(b[:n], zeroPage[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

// guidText prints a GUID as stored: the first three fields are little-endian.
func guidText(b []byte) string {
	le := binary.LittleEndian
	return strings.ToUpper(fmt.Sprintf("%08x-%04x-%04x-%x-%x", le.Uint32(b), le.Uint16(b[4:]), le.Uint16(b[6:]), b[8:10], b[10:16]))
}

func guidBytes(s string) []byte {
	b, err := parseGUID(s)
	if err != nil {
		panic("malformed GUID constant " + s)
	}
	return b
}

func parseGUID(s string) ([]byte, error) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != 16 || len(s) != 36 {
		return nil, fmt.Errorf("%q is not a GUID", s)
	}
	slices.Reverse(b[0:4])
	slices.Reverse(b[4:6])
	slices.Reverse(b[6:8])
	return b, nil
}

func randomGUID() (g [16]byte) {
	rand.Read(g[:])         // never fails: crypto/rand ends the program rather than hand out something else
	g[7] = g[7]&0x0f | 0x40 // version 4; the third field is little-endian
	g[8] = g[8]&0x3f | 0x80
	return g
}

func gptName(b []byte) string {
	var u []uint16
	for i := 0; i+1 < len(b); i += 2 {
		c := binary.LittleEndian.Uint16(b[i:])
		if c == 0 {
			break
		}
		u = append(u, c)
	}
	return clean(string(utf16.Decode(u)))
}
