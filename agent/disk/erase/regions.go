package erase

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/images/blkid"
	"github.com/ingot-metal/ingot/images/gpt"
)

// region is a range of a disk with content of its own, present or past: the disk itself, or a partition.
type region struct {
	off, n int64
	kind   string // a partition's type: a GUID in capitals, or "0x83"
	depth  int    // 0: the disk
}

func (r region) span() disk.Span { return disk.Span{Off: r.off, N: r.n} }

// Limits of the search: crafted tables must not keep it busy.
const (
	maxRegions = 4096
	maxDepth   = 3 // a partition inside the disk of a virtual machine inside a partition
	maxEntries = 1024
	maxLinks   = 128 // logical partitions
	maxReads   = 20_000
	maxBytes   = 64 << 20 // read in all
)

// regions returns the disk and all partitions in its tables, innermost last. Every table counts, valid or not, for
// sectors of any size: GPT and its backup, MBR with logical partitions, tables inside partitions (disks of virtual
// machines, members of arrays), and the kernel's partitions (below root), since the kernel knows more kinds of tables.
func regions(dev disk.Device, root string, d disk.Disk) ([]region, error) {
	f := finder{dev: dev, found: []region{{off: 0, n: dev.Size()}}}
	f.kernel(root, d)
	for i := 0; i < len(f.found); i++ { // it grows in the loop
		if f.found[i].depth >= maxDepth {
			continue
		}
		if err := f.look(f.found[i]); err != nil {
			return nil, err
		}
	}
	return f.found, nil
}

type finder struct {
	dev   disk.Device
	found []region
	seen  map[region]bool
	reads int
	bytes int
}

// add adds a partition of a region.
func (f *finder) add(in region, kind string, off, n int64) {
	sector := int64(f.dev.SectorSize())
	if off < 0 || n <= 0 || off >= in.n || len(f.found) >= maxRegions {
		return
	}
	n = min(n, in.n-off)
	// Whole sectors of this disk; the table may be for smaller ones.
	start, end := (in.off+off)/sector*sector, (in.off+off+n+sector-1)/sector*sector
	r := region{off: start, n: min(end, f.dev.Size()) - start, kind: kind, depth: in.depth + 1}
	if r.n <= 0 || r.off == in.off && r.n == in.n {
		return
	}
	key := region{off: r.off, n: r.n, kind: kind}
	if f.seen == nil {
		f.seen = map[region]bool{}
	}
	if !f.seen[key] {
		f.seen[key] = true
		f.found = append(f.found, r)
	}
}

// kernel adds the kernel's partitions.
func (f *finder) kernel(root string, d disk.Disk) {
	name := strings.ReplaceAll(strings.TrimPrefix(d.Name, "/dev/"), "/", "!")
	files, _ := filepath.Glob(filepath.Join(root, "sys/block", name, name+"*", "start"))
	for _, file := range files {
		start, err1 := number(file)
		n, err2 := number(filepath.Join(filepath.Dir(file), "size"))
		if err1 == nil && err2 == nil && start > 0 && start < 1<<50 && n < 1<<50 {
			f.add(f.found[0], "", start*512, n*512) // always in 512 bytes
		}
	}
}

func number(file string) (int64, error) {
	b, _ := os.ReadFile(file)
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// look reads the tables of a region.
func (f *finder) look(r region) error {
	if r.n < 8192 {
		return nil
	}
	in := disk.Section(f.dev, r.off, r.n)
	read := func(off int64, n int) ([]byte, error) {
		if off < 0 || off+int64(n) > r.n || f.reads >= maxReads || f.bytes+n > maxBytes {
			return nil, nil
		}
		f.reads++
		f.bytes += n
		b := make([]byte, n)
		if _, err := in.ReadAt(b, off); err != nil {
			return nil, fmt.Errorf("read the partition table at byte %d: %w", r.off+off, err)
		}
		return b, nil
	}
	for _, sector := range []int64{512, 4096} {
		for _, header := range []int64{sector, r.n/sector*sector - sector} {
			if err := f.gpt(r, read, header, sector); err != nil {
				return err
			}
		}
		if err := f.mbr(r, read, sector); err != nil {
			return err
		}
	}
	return nil
}

type reader func(off int64, n int) ([]byte, error)

// gpt reads a table leniently: a wrong checksum does not remove partitions.
func (f *finder) gpt(r region, read reader, header, sector int64) error {
	h, err := read(header, 512)
	if err != nil {
		return err
	}
	t, ok := gpt.ScanHeader(h)
	size := int(t.EntrySize)
	if !ok || t.EntrySize < 128 || t.EntrySize > 4096 || t.EntriesLBA > 1<<50 {
		return nil
	}
	b, err := read(int64(t.EntriesLBA)*sector, int(min(t.Count, maxEntries))*size)
	if err != nil {
		return err
	}
	for ; len(b) >= size; b = b[size:] {
		if e := gpt.ParseEntry(b); e.First != 0 && e.First <= e.Last && e.Last <= 1<<50 {
			f.add(r, e.Type.String(), int64(e.First)*sector, int64(e.Sectors())*sector)
		}
	}
	return nil
}

// mbr reads primary and logical partitions.
func (f *finder) mbr(r region, read reader, sector int64) error {
	const extended = "\x05\x0f\x85"
	var base, next int64
	for link := range maxLinks {
		at := next
		if link > 0 && at == 0 {
			return nil
		}
		b, err := read(at*sector, 512)
		if err != nil || !blkid.HasBootSignature(b) {
			return err
		}
		next = 0
		for i := range 4 {
			e := b[446+16*i:]
			kind, start, n := e[4], int64(binary.LittleEndian.Uint32(e[8:])), int64(binary.LittleEndian.Uint32(e[12:]))
			switch {
			case start == 0 || n == 0 || kind == 0 || kind == 0xee:
			case strings.IndexByte(extended, kind) >= 0 && link == 0:
				base, next = start, start
			case strings.IndexByte(extended, kind) >= 0:
				next = base + start
			default:
				f.add(r, fmt.Sprintf("0x%02x", kind), (at+start)*sector, n*sector)
			}
		}
		if next <= at { // a chain that goes back might never end
			return nil
		}
	}
	return nil
}
