package disk

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/gpt"
)

// Pending is a disk that is written but not bootable yet: the data still to be written, and the partition table, which
// can be changed until Commit. It is a fact of the plan; if the plan dies, the disk has no table.
type Pending struct {
	Disk Disk

	head    []byte // the image's first MiB
	tail    []byte // the image's end, padded to whole sectors
	tailOff int64
	table   table
	added   map[string]Partition
	taken   []span      // ranges of added partitions
	div     *Division   // of a partition image
	stale   []Partition // same name as an added partition, but too small
	noted   string      // repaired faults of the image

	committed bool // the table is on the disk
}

type pendingKey struct{}

// SetPending leaves p for later steps of the plan.
func SetPending(f *step.Facts, p *Pending) { f.Set(pendingKey{}, p) }

// PendingOf returns the disk that write_image left, until it is committed: later additions would miss the table.
func PendingOf(f *step.Facts) (*Pending, error) {
	p, err := WrittenOf(f)
	if err == nil && p.committed {
		return nil, step.Failf("run this step before prepare_instance_boot: give it a higher priority",
			"the partition table of %s is committed already", p.Disk.Name)
	}
	return p, err
}

// WrittenOf returns the disk that write_image left, committed or not.
func WrittenOf(f *step.Facts) (*Pending, error) {
	p, ok := f.Get(pendingKey{}).(*Pending)
	if !ok || p == nil {
		return nil, step.Failf("run write_image before this step, in the same deployment",
			"no image has been written in this plan")
	}
	return p, nil
}

// Wipe removes every partition table from an open disk, so that nothing boots from it: zeros at both ends, read back.
// After a power failure the disk has its old table or none; its other content is not touched either way.
func Wipe(ctx context.Context, dev Device) error {
	size, sector := dev.Size(), dev.SectorSize()
	if size < 4*HeadSize {
		return step.Failf("use a larger disk", "a disk of %d bytes is too small", size)
	}
	ranges := []Span{{0, HeadSize}, {size - HeadSize, HeadSize}}
	// A disk that grew, or an image that was never fitted, has its backup table somewhere else.
	buf := Aligned(HeadSize)
	if _, err := dev.ReadAt(buf, 0); err != nil {
		return fmt.Errorf("read the old partition table: %w", err)
	}
	if h, err := gpt.ParseHeader(buf[sector:], sector); err == nil && h.Alternate < uint64(size)/uint64(sector) {
		if off := int64(h.Alternate) * int64(sector); off >= HeadSize && off < size-HeadSize {
			ranges = append(ranges, Span{off, int64(sector)})
		}
	}
	return ZeroVerified(ctx, dev, ranges)
}

// Span is a range of bytes of a disk: whole sectors.
type Span struct{ Off, N int64 }

// ZeroVerified writes zeros over ranges, flushes and reads them back. It fails unless they read as zeros.
func ZeroVerified(ctx context.Context, dev Device, ranges []Span) error {
	z := NewOverwriter(dev) // small, critical ranges: written, not punched
	for _, r := range ranges {
		if err := z.Zero(ctx, r.Off, r.N); err != nil {
			return err
		}
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	buf := Aligned(HeadSize)
	for _, r := range ranges {
		for off := r.Off; off < r.Off+r.N; {
			part := buf[:min(int64(len(buf)), r.Off+r.N-off)]
			if _, err := dev.ReadAt(part, off); err != nil {
				return fmt.Errorf("read back byte %d: %w", off, err)
			}
			if !isZero(part) {
				return step.Failf("replace the disk: it does not keep what is written",
					"byte %d and following were zeroed, but do not read as zero", off)
			}
			off += int64(len(part))
		}
	}
	return nil
}

// NewPending returns the pending commit of an image of size bytes whose head and tail are not on the disk yet. The tail
// starts at tailOff, a whole sector, and ends with the image.
func NewPending(d Disk, head, tail []byte, tailOff, size int64) (*Pending, error) {
	sector := d.LogicalSectors
	if size > d.Size {
		return nil, tooLarge(size, d)
	}
	p := &Pending{Disk: d, head: make([]byte, HeadSize), tailOff: tailOff, added: map[string]Partition{}}
	copy(p.head, head)
	p.tail = slices.Clone(tail)
	if rest := len(p.tail) % sector; rest != 0 {
		p.tail = append(p.tail, make([]byte, sector-rest)...)
	}
	if tailOff%int64(sector) != 0 || len(head) > HeadSize || tailOff < HeadSize && len(tail) > 0 {
		return nil, fmt.Errorf("a tail at byte %d behind a head of %d bytes", tailOff, len(head))
	}
	t, err := parseTable(p.head, sector)
	if err != nil {
		return nil, err
	}
	if err := checkExtent(t, size); err != nil {
		return nil, err
	}
	if err := t.fit(uint64(d.Size) / uint64(sector)); err != nil {
		return nil, err
	}
	p.table = t
	if g, ok := t.(*gptTable); ok {
		p.noted = g.backupFault(p.tail, p.tailOff, size)
	}
	return p, nil
}

// Table is the kind of the partition table: "gpt" or "mbr".
func (p *Pending) Table() string { return p.table.kind() }

// Partitions returns the future table.
func (p *Pending) Partitions() []Partition { return p.table.partitions() }

// Reserve reserves a partition at the disk's end: want bytes, or at least the least. An existing partition of that name
// in the image is used if large enough. A repeated call returns the same partition.
func (p *Pending) Reserve(name string, want, least int64) (Partition, error) {
	if part, ok := p.added[name]; ok && part.Size >= least {
		return part, nil
	}
	for _, part := range p.table.partitions() {
		if part.Name == name && part.Size >= least && p.inBody(part) {
			return p.reuse(name, part), nil
		}
	}
	if p.div != nil {
		part, err := p.div.drive(name, want, least)
		if err != nil {
			return Partition{}, fmt.Errorf("add partition %s to %s: %w", name, p.Disk.Name, err)
		}
		p.added[name] = part
		return part, nil
	}
	part, err := p.table.add(name, wholeMiB(want, p.Disk.LogicalSectors))
	if err != nil && least < want {
		part, err = p.table.add(name, wholeMiB(least, p.Disk.LogicalSectors))
	}
	if err != nil {
		return Partition{}, fmt.Errorf("add partition %s to %s: %w", name, p.Disk.Name, err)
	}
	p.added[name] = part
	p.taken = append(p.taken, span{part.Start, part.Size})
	return part, nil
}

// Open opens the disk for writing into its partitions, after comparing its identity.
func (p *Pending) Open(ctx context.Context, m machine) (Device, error) {
	dev, _, err := OpenVerified(ctx, m, p.Disk.Identity())
	return dev, err
}

// Committed is a bootable disk.
type Committed struct {
	Disk       Disk
	Table      string // "gpt" or "mbr"
	Partitions []Partition
	Signature  uint32 // of an MBR; boot entries name the disk by it
}

// Commit makes the disk that write_image left bootable. If stopped at any point, the disk either has no table or is
// complete; a repeated run has the same result. The device is closed on return. A nil log is silent.
func Commit(ctx context.Context, f *step.Facts, m machine, log *slog.Logger) (*Committed, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	p, err := WrittenOf(f)
	if err != nil {
		return nil, err
	}
	dev, err := p.Open(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("commit the partition table: %w", err)
	}
	if err := cmp.Or(p.commit(ctx, dev, log), dev.Close()); err != nil {
		return nil, fmt.Errorf("commit the partition table of %s: %w", p.Disk.Name, err)
	}
	p.committed = true
	c := &Committed{Disk: p.Disk, Table: p.table.kind(), Partitions: p.table.partitions()}
	if c.Table == "mbr" {
		c.Signature = binary.LittleEndian.Uint32(p.head[440:])
	}
	return c, nil
}

// piece is data and its offset; both are whole sectors.
type piece struct {
	off  int64
	data []byte
}

// pieces returns the withheld data in groups: each group must be on the medium before the next begins.
func (p *Pending) pieces() [][]piece {
	sector := int64(p.Disk.LogicalSectors)
	head := slices.Clone(p.head)
	p.table.apply(head)
	backup, backupLBA := p.table.backup()
	end := p.Disk.Size
	if backup != nil {
		end = int64(backupLBA) * sector
	}

	// The image's own backup table is not content: at its place is nothing, or the middle of the disk.
	tail := slices.Clone(p.tail)
	if r := int64(p.table.reserved()) * sector; r > 0 && r < p.tailOff+int64(len(tail)) {
		clear(tail[max(0, r-p.tailOff):])
	}
	tails := []piece{{p.tailOff, tail}}
	for _, taken := range append([]span{{end, p.Disk.Size - end}}, p.taken...) {
		var left []piece
		for _, t := range tails {
			left = append(left, t.without(taken)...)
		}
		tails = left
	}

	groups := [][]piece{append(tails, piece{2 * sector, head[2*sector:]})}
	if backup != nil {
		groups = append(groups, []piece{{end, backup}})
	}
	return append(groups, []piece{{sector, head[sector : 2*sector]}}, []piece{{0, head[:sector]}})
}

// without returns the parts of a piece outside a span.
func (p piece) without(s span) []piece {
	end := p.off + int64(len(p.data))
	low, high := min(max(s.off, p.off), end), min(max(s.off+s.n, p.off), end)
	if low >= high {
		return []piece{p}
	}
	var left []piece
	if low > p.off {
		left = append(left, piece{p.off, p.data[:low-p.off]})
	}
	if high < end {
		left = append(left, piece{high, p.data[high-p.off:]})
	}
	return left
}

func (p *Pending) commit(ctx context.Context, dev Device, log *slog.Logger) error {
	groups := p.pieces()
	if err := p.untouched(dev, groups); err != nil {
		return err
	}
	if p.noted != "" {
		log.Warn(p.noted, "disk", p.Disk.Name)
	}
	if p.div != nil {
		if !p.div.booted {
			return step.Failf("run prepare_instance_boot in the same deployment",
				"nothing would boot: the EFI system partition is empty")
		}
		// Once only: after the table is on the disk, a half-made file system could be mounted.
		if !p.committed {
			if err := p.div.format(ctx, dev); err != nil {
				return err
			}
		}
	}
	for _, group := range groups {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		for _, w := range group {
			if len(w.data) == 0 {
				continue
			}
			if _, err := dev.WriteAt(w.data, w.off); err != nil {
				return fmt.Errorf("write %d bytes at byte %d: %w", len(w.data), w.off, err)
			}
		}
		if err := dev.Sync(); err != nil {
			return fmt.Errorf("flush: %w", err)
		}
	}
	for _, w := range slices.Concat(groups...) {
		got := make([]byte, len(w.data))
		if _, err := dev.ReadAt(got, w.off); err != nil {
			return fmt.Errorf("read back byte %d: %w", w.off, err)
		}
		if !bytes.Equal(got, w.data) {
			return step.Failf("replace the disk: it does not keep what is written",
				"byte %d and following read back different from what was written", w.off)
		}
	}
	if err := dev.RereadPartitions(); err != nil {
		// The table is on the disk; only this kernel, which is about to end, does not use it.
		log.Warn("kernel did not take the new partition table", "disk", p.Disk.Name, "err", err)
	}
	log.Info("partition table committed", "disk", p.Disk.Name, "table", p.table.kind(), "partitions",
		len(p.table.partitions()))
	return nil
}

// StillWithheld checks that the disk is as write_image left it: the same disk, no data at its beginning, nothing added
// or committed since.
func (p *Pending) StillWithheld(ctx context.Context, m machine) error {
	if p.committed || len(p.added) > 0 {
		return errors.New("more was written to the disk since the image")
	}
	dev, err := p.Open(ctx, m)
	if err != nil {
		return err
	}
	head := Aligned(HeadSize)
	_, err = dev.ReadAt(head, 0)
	if err == nil && !isZero(head) {
		err = errors.New("the disk was written to after the image was written")
	}
	return errors.Join(err, dev.Close())
}

// untouched checks that the head is zero, as write_image left it, or in the state of an interrupted commit. Anything
// else means that the disk was written to in between, so that its content is unknown.
func (p *Pending) untouched(dev Device, groups [][]piece) error {
	sector := p.Disk.LogicalSectors
	want := make([]byte, HeadSize)
	for _, w := range slices.Concat(groups...) {
		if w.off < HeadSize {
			copy(want[w.off:], w.data)
		}
	}
	got := Aligned(HeadSize)
	if _, err := dev.ReadAt(got, 0); err != nil {
		return fmt.Errorf("read the disk's beginning: %w", err)
	}
	for off := 0; off < HeadSize; off += sector {
		if s := got[off : off+sector]; !isZero(s) && !bytes.Equal(s, want[off:off+sector]) {
			return step.Fail("deploy again; see what else writes to the disk",
				errors.New("the disk was written to after the image was written"))
		}
	}
	return nil
}
