package xfs

import (
	"cmp"
	"fmt"
	"sort"
)

const (
	logMagic = 0xfeedbabe
	// logCycles is the number of bytes of a record per sector of its header.
	logCycles = 32 << 10
	// maxRecord is the maximum number of sectors of a record: 256 KiB, its header, and rounding.
	maxRecord   = 2 * (256<<10 + 8*sector) / sector
	flagUnmount = 0x20
)

// cleanLog refuses a file system whose log does not end with an unmount record, which proves that nothing must be
// replayed.
//
// The log is a ring of sectors, each of which begins with the number of its cycle (in a record's header after the magic
// number). The end is where that number decreases. If sectors were written out of order before a crash, there are
// several such places; then either the record before the found one is no unmount, or the kernel ignores everything
// after it too.
func (f *FS) cleanLog() error {
	if f.logStart == 0 {
		return fmt.Errorf("%w that can be read: its log is on another device", ErrNot)
	}
	first, err := f.place(f.logStart, f.logBlocks)
	if err != nil || f.logBlocks == 0 {
		return fmt.Errorf("%w: its log lies outside", ErrNot)
	}
	base, count := int64(first)*int64(f.BlockSize), int(f.logBlocks)*(f.BlockSize/sector)
	var b [sector]byte
	load := func(at int) error { return f.read(b[:], base+int64(at)*sector) }
	round := func(at int) uint32 {
		if rerr := load(at); rerr != nil {
			err = cmp.Or(err, fmt.Errorf("read the log: %w", rerr))
			return 0
		}
		if n := be.Uint32(b[:]); n != logMagic {
			return n
		}
		return be.Uint32(b[4:])
	}
	start, last := round(0), round(count-1)
	if err != nil {
		return err
	}
	if start == 0 && last == 0 {
		return nil // never used
	}
	end := count // the same as 0
	if start != last {
		end = sort.Search(count, func(at int) bool { return round(at) == last })
	}
	dirty := fmt.Errorf(
		"%w that is whole: its log has not been replayed; mount the image once, or run xfs_repair on it", ErrNot)
	torn := false
	for back := 1; back <= min(maxRecord, count) && err == nil; back++ {
		at := (end - back + count) % count
		if err = load(at); err != nil {
			break
		}
		if be.Uint32(b[:]) != logMagic {
			continue
		}
		heads, length, size := 1, int64(be.Uint32(b[12:])), int64(be.Uint32(b[320:]))
		if be.Uint32(b[8:])&2 != 0 && size > logCycles {
			heads = int(min(size, 1<<30)+logCycles-1) / logCycles
		}
		if length > 256<<10 || heads > 8 {
			return dirty
		}
		if (at+heads+int((length+sector-1)/sector))%count != end%count {
			// The last record is incomplete, as after a power cut, or after xfs_repair and xfs_admin rewrote the log:
			// it does not count.
			if torn {
				return dirty
			}
			torn, end, back = true, at, 0
			continue
		}
		if be.Uint32(b[40:]) != 1 {
			return dirty
		}
		if err = load((at + heads) % count); err != nil {
			break
		}
		if b[9]&flagUnmount == 0 {
			return dirty
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	return dirty
}
