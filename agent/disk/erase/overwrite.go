package erase

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
)

const (
	pieceSize = 64 << 20 // between two checks of the context and two reports
	flushSize = 1 << 30  // between two flushes and progress notes
)

// During an overwrite the last 4 KiB of the disk hold a note of its progress, for a power failure: the part before it
// is then read, and written only where it is not zero. So a forged note gains nothing.
const (
	noteSize = 4096
	noteText = "INGOT IS OVERWRITING THIS DISK\n"
)

// noteOf reads the note: 0 if there is none.
func noteOf(dev disk.Device) int64 {
	at := dev.Size() - noteSize
	if at < 0 {
		return 0
	}
	b := disk.Aligned(noteSize)
	if _, err := dev.ReadAt(b, at); err != nil {
		return 0
	}
	le := binary.LittleEndian
	done := int64(le.Uint64(b[40:]))
	if !bytes.HasPrefix(b, []byte(noteText)) || le.Uint64(b[48:]) != uint64(dev.Size()) ||
		le.Uint32(b[56:]) != crc32.ChecksumIEEE(b[:56]) ||
		done < 0 || done > at || done%int64(dev.SectorSize()) != 0 {
		return 0
	}
	return done
}

func putNote(dev disk.Device, done int64) error {
	b := disk.Aligned(noteSize)
	le := binary.LittleEndian
	copy(b, noteText)
	le.PutUint64(b[40:], uint64(done))
	le.PutUint64(b[48:], uint64(dev.Size()))
	le.PutUint32(b[56:], crc32.ChecksumIEEE(b[:56]))
	if _, err := dev.WriteAt(b, dev.Size()-noteSize); err != nil {
		return fmt.Errorf("note how far the overwrite is: %w", err)
	}
	return dev.Sync()
}

// overwrite writes zeros over the whole disk; an earlier run has done it up to resumed.
func overwrite(ctx context.Context, dev disk.Device, resumed int64, report func(done, total int64)) error {
	size, tail := dev.Size(), dev.Size()-noteSize
	look, z := disk.NewOverwriter(dev), disk.NewOverwriter(dev)
	look.Look = true
	unflushed := int64(0)
	for off := int64(0); off < tail; {
		n := min(pieceSize, tail-off)
		by := z
		if off < resumed {
			n, by = min(n, resumed-off), look
		}
		if err := by.Zero(ctx, off, n); err != nil {
			return err
		}
		off += n
		if unflushed += n; unflushed >= flushSize && off > resumed {
			if err := dev.Sync(); err != nil {
				return fmt.Errorf("flush: %w", err)
			}
			if err := putNote(dev, off); err != nil {
				return err
			}
			unflushed = 0
		}
		report(off, size)
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	if err := z.Zero(ctx, tail, noteSize); err != nil {
		return err
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	report(size, size)
	return nil
}

// inPieces applies do to the whole device, in requests between which it can be stopped.
func inPieces(ctx context.Context, dev disk.Device, do func(off, n int64) error, report func(done, total int64)) error {
	size := dev.Size()
	for off := int64(0); off < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(flushSize, size-off)
		if err := do(off, n); err != nil {
			return fmt.Errorf("%d bytes at byte %d: %w", n, off, err)
		}
		off += n
		report(off, size)
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// readAll reads every byte and fails at the first that is not zero.
func readAll(ctx context.Context, dev disk.Device, report func(done, total int64)) error {
	buf := disk.Aligned(1 << 20)
	size := dev.Size()
	for off := int64(0); off < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := buf[:min(int64(len(buf)), size-off)]
		if _, err := dev.ReadAt(part, off); err != nil {
			return fmt.Errorf("read back byte %d: %w", off, err)
		}
		if b, one := uniform(part); !one || b != 0 {
			return step.Failf("replace the disk: it does not keep what is written",
				"byte %d and following were overwritten with zeros, but do not read as zeros", off)
		}
		off += int64(len(part))
		report(off, size)
	}
	return nil
}
