package openfs

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// Bytes is a structure of fixed size as it lies on a disk.
func Bytes(order binary.ByteOrder, v any) []byte {
	b, err := binary.Append(nil, order, v)
	if err != nil {
		panic(err) // not of fixed size
	}
	return b
}

// Parse reads a structure of fixed size out of b, which is long enough.
func Parse(order binary.ByteOrder, b []byte, v any) {
	if _, err := binary.Decode(b, order, v); err != nil {
		panic(err)
	}
}

// Device holds a file system.
type Device interface {
	io.ReaderAt
	io.WriterAt
}

// Piece is bytes and where they belong.
type Piece struct {
	Off  int64
	Data []byte
}

// Unit is the unit of offsets in errors: bytes, or blocks of a size.
type Unit struct {
	Name string
	Size int64
}

// Commit writes pieces in stages, each in order and with neighbours joined, with sync after each stage; then it reads
// them back.
func (u Unit) Commit(dev Device, sync func() error, stages ...[]Piece) error {
	var run, got []byte
	for _, pieces := range stages {
		slices.SortFunc(pieces, func(a, b Piece) int { return cmp.Compare(a.Off, b.Off) })
		for k := 0; k < len(pieces); {
			const most = 1 << 20
			off := pieces[k].Off
			run = append(run[:0], pieces[k].Data...)
			for k++; k < len(pieces) && pieces[k].Off == off+int64(len(run)) && len(run) < most; k++ {
				run = append(run, pieces[k].Data...)
			}
			if _, err := dev.WriteAt(run, off); err != nil {
				return fmt.Errorf("write %s %d: %w", u.Name, off/u.Size, err)
			}
		}
		if err := sync(); err != nil {
			return err
		}
	}
	for _, p := range slices.Concat(stages...) {
		got = slices.Grow(got[:0], len(p.Data))[:len(p.Data)]
		if _, err := dev.ReadAt(got, p.Off); err != nil {
			return fmt.Errorf("read back %s %d: %w", u.Name, p.Off/u.Size, err)
		}
		if !bytes.Equal(got, p.Data) {
			return fmt.Errorf(
				"%s %d reads back different from what was written: the disk does not keep what is written", u.Name,
				p.Off/u.Size)
		}
	}
	return nil
}
