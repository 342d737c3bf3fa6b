// Package vhd reads dynamic VHD images, as Hyper-V, Azure's tools and "qemu-img convert -O vpc" write them, in one
// pass.
//
// A dynamic VHD begins with a copy of its footer, a header and a table of blocks; the blocks follow in any order, each
// a bitmap of its sectors and then its data. The table comes first, so Open reads it from the stream. Checksums, sizes
// and places are all cross-checked. A fixed VHD is a raw disk followed by a footer, and is only detectable at its end:
// it is not handled here.
//
// After "Virtual Hard Disk Image Format Specification", version 1.0, Microsoft 2006. Offsets and sizes are bytes.
package vhd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Limits of an image.
type Limits struct {
	Size int64 // of the disk; 0: that of the format, 2040 GiB
}

// Error is a fault of an image with the remedy.
type Error struct {
	Err    error
	Remedy string
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func refuse(remedy, format string, args ...any) error {
	return &Error{Err: fmt.Errorf(format, args...), Remedy: remedy}
}

func damaged(format string, args ...any) error {
	return refuse("compare the file with its origin, or make it again: qemu-img convert -f vpc -O qcow2",
		"the vhd image is damaged: "+format, args...)
}

const (
	sector    = 512
	maxSize   = 2040 << 30
	startSize = 1 << 20
	unused    = 0xffffffff
	// blockSize is used by every program; the table of a disk of maxSize takes 4 MiB with it. Smaller ones would only
	// need more memory.
	blockSize = 2 << 20
	bitmap    = blockSize / sector / 8 // one sector
)

// Extent is a piece of the disk: Data, or a hole.
type Extent struct {
	Off, Len int64
	Data     []byte
}

// place is a block in the file.
type place struct {
	sector uint32 // of its bitmap
	block  uint32
}

// Reader reads a disk from its image.
type Reader struct {
	r      io.Reader
	pos    int64
	size   int64
	places []place // ascending in the file
	start  []byte
	footer [sector]byte

	hole   int64 // the next block to check for a hole
	absent []bool
	next   int // of places
	left   int64
	off    int64 // of the next data of the current block
	bits   [bitmap]byte
	err    error
}

// Open reads the tables of an image from its stream. at reads at any offset of the file, for the disk's beginning if it
// is not the first in the file; nil if that is impossible.
func Open(stream io.Reader, at io.ReaderAt, l Limits) (*Reader, error) {
	r := &Reader{r: stream}
	var head [3 * sector]byte
	if err := r.read(head[:]); err != nil {
		return nil, err
	}
	copy(r.footer[:], head[:])
	if err := r.parseFooter(l); err != nil {
		return nil, err
	}
	if err := r.table(head[sector:]); err != nil {
		return nil, err
	}
	if err := r.beginning(at); err != nil {
		return nil, err
	}
	return r, nil
}

// sum returns the checksum of a header, which has it in the four bytes at off.
func sum(b []byte, off int) uint32 {
	var s uint32
	for i, c := range b {
		if i < off || i >= off+4 {
			s += uint32(c)
		}
	}
	return ^s
}

func (r *Reader) parseFooter(l Limits) error {
	b := r.footer[:]
	be32, be64 := binary.BigEndian.Uint32, binary.BigEndian.Uint64
	switch {
	case string(b[:8]) != "conectix" || be32(b[64:]) != sum(b, 64):
		return damaged("the check sum of its header is wrong")
	case be32(b[12:])>>16 != 1:
		return refuse("convert it: qemu-img convert -f vpc -O raw",
			"the vhd image is of version %d, which is not known", be32(b[12:])>>16)
	case be32(b[60:]) == 4:
		return refuse("make one file of it: qemu-img convert -f vpc -O raw",
			"the vhd image can't be used: it is only the difference to a parent disk")
	case be32(b[60:]) != 3:
		return damaged("its kind is %d", be32(b[60:]))
	case be64(b[16:]) != sector:
		return damaged("its header is at byte %d", be64(b[16:]))
	}
	size := be64(b[48:])
	if size == 0 || size > maxSize || size%sector != 0 {
		return damaged("the size of its disk is %d bytes", size)
	}
	if l.Size > 0 && size > uint64(l.Size) {
		return refuse("use a smaller image or a larger disk",
			"the image is larger than the disk: %d bytes, the disk has %d", size, l.Size)
	}
	r.size = int64(size)
	// If geometry and size differ, programs disagree which one to use, and the disk's end would differ. The size counts
	// in images made by these programs.
	geometry := int64(binary.BigEndian.Uint16(b[56:])) * int64(b[58]) * int64(b[59]) * sector
	if sized := []string{"win ", "qem2", "d2v ", "tap\x00", "CTXS", "wa\x00\x00"}; geometry != r.size &&
		geometry != 65535*16*255*sector && !slices.Contains(sized, string(b[28:32])) {
		return refuse("make it again with: qemu-img convert -O vpc -o force_size=on",
			"the vhd image has two sizes of its disk: %d bytes, and %d by its geometry", r.size, geometry)
	}
	return nil
}

// table reads the dynamic header, whose first two sectors are already read, and the table of blocks.
func (r *Reader) table(h []byte) error {
	be32, be64 := binary.BigEndian.Uint32, binary.BigEndian.Uint64
	n := (r.size + blockSize - 1) / blockSize
	at := be64(h[16:])
	switch {
	case string(h[:8]) != "cxsparse" || be32(h[36:]) != sum(h[:2*sector], 36):
		return damaged("the check sum of its second header is wrong")
	case be32(h[32:]) != blockSize:
		return refuse("convert it: qemu-img convert -f vpc -O raw",
			"the vhd image has blocks of %d bytes; only those of 2 MiB are supported", be32(h[32:]))
	case int64(be32(h[28:])) < n:
		return damaged("its table has %d blocks, its disk %d", be32(h[28:]), n)
	case at < uint64(r.pos) || at%sector != 0 || at > 1<<20:
		return damaged("its table is at byte %d", at)
	}
	if err := r.skip(int64(at) - r.pos); err != nil {
		return err
	}
	r.absent = make([]bool, n)
	var buf [4096]byte
	for i := int64(0); i < n; {
		b := buf[:min(n-i, int64(len(buf))/4)*4]
		if err := r.read(b); err != nil {
			return err
		}
		for ; len(b) > 0; b = b[4:] {
			if s := be32(b); s == unused {
				r.absent[i] = true
			} else {
				r.places = append(r.places, place{s, uint32(i)})
			}
			i++
		}
	}
	// The table may have more entries than the disk has blocks, and fills its sector.
	if err := r.skip((int64(at)+4*int64(be32(h[28:]))+sector-1)/sector*sector - r.pos); err != nil {
		return err
	}
	slices.SortFunc(r.places, func(a, b place) int { return int(int64(a.sector) - int64(b.sector)) })
	end := r.pos
	for _, p := range r.places {
		if off := int64(p.sector) * sector; off < end {
			return damaged("its block %d overlaps another part", p.block)
		} else {
			end = off + bitmap + blockSize
		}
	}
	return nil
}

// beginning reads the disk's first MiB.
func (r *Reader) beginning(at io.ReaderAt) error {
	r.start = make([]byte, min(startSize, r.size))
	i := slices.IndexFunc(r.places, func(p place) bool { return p.block == 0 })
	if i < 0 {
		return nil
	}
	b := make([]byte, bitmap+len(r.start))
	off := int64(r.places[i].sector) * sector
	switch {
	case i == 0:
		if err := r.skip(off - r.pos); err != nil {
			return err
		}
		if err := r.read(b); err != nil {
			return err
		}
		r.pos -= int64(len(b))
		r.r = io.MultiReader(bytes.NewReader(b), r.r)
	case at == nil:
		return refuse("serve the image from a server that answers range requests, or convert it: qemu-img convert -f vpc -O raw",
			"the beginning of the disk is not at the beginning of the vhd image")
	default:
		if n, err := at.ReadAt(b, off); n < len(b) {
			if err == io.EOF {
				return truncated()
			}
			return fmt.Errorf("read the beginning of the disk in the vhd image: %w", err)
		}
	}
	copy(r.start, b[bitmap:])
	mask(r.start, b[:bitmap])
	return nil
}

// mask clears the sectors that a bitmap marks as absent.
func mask(data, bits []byte) {
	for s := 0; s*sector < len(data); s++ {
		if bits[s/8]&(0x80>>(s%8)) == 0 {
			clear(data[s*sector : min((s+1)*sector, len(data))])
		}
	}
}

// Size returns the disk's size.
func (r *Reader) Size() int64 { return r.size }

// Start returns the disk's first MiB, or all of a smaller one.
func (r *Reader) Start() []byte { return r.start }

// Close does nothing.
func (r *Reader) Close() error { return nil }

// Next reads the next piece into buf, of at least 4096 bytes.
func (r *Reader) Next(buf []byte) (Extent, error) {
	if r.err != nil {
		return Extent{}, r.err
	}
	x, err := r.piece(buf)
	r.err = err
	return x, err
}

func (r *Reader) piece(buf []byte) (Extent, error) {
	for ; r.hole < int64(len(r.absent)); r.hole++ { // holes first: their places are known
		first := r.hole
		for r.hole < int64(len(r.absent)) && r.absent[r.hole] {
			r.hole++
		}
		if r.hole > first {
			off := first * blockSize
			return Extent{Off: off, Len: min(r.hole*blockSize, r.size) - off}, nil
		}
	}
	if r.left == 0 {
		if r.next == len(r.places) {
			return Extent{}, r.finish()
		}
		p := r.places[r.next]
		r.next++
		if err := r.skip(int64(p.sector)*sector - r.pos); err != nil {
			return Extent{}, err
		}
		if err := r.read(r.bits[:]); err != nil {
			return Extent{}, err
		}
		r.off = int64(p.block) * blockSize
		r.left = min(blockSize, r.size-r.off)
	}
	n := min(r.left, int64(len(buf))/(8*sector)*(8*sector)) // whole bytes of the bitmap
	data := buf[:n]
	if err := r.read(data); err != nil {
		return Extent{}, err
	}
	mask(data, r.bits[r.off%blockSize/sector/8:])
	if r.off < int64(len(r.start)) {
		if m := min(n, int64(len(r.start))-r.off); !bytes.Equal(data[:m], r.start[r.off:r.off+m]) {
			return Extent{}, damaged("its beginning was another when it was read before")
		}
	}
	x := Extent{Off: r.off, Len: n, Data: data}
	r.off += n
	r.left -= n
	return x, nil
}

// finish compares the footer with its copy at the beginning.
func (r *Reader) finish() error {
	var last [sector]byte
	end := r.pos
	if n := len(r.places); n > 0 { // the last block of the file may extend beyond the disk
		end = int64(r.places[n-1].sector)*sector + bitmap + blockSize
	}
	if err := r.skip(end - r.pos); err != nil {
		return err
	}
	for {
		n, err := io.ReadFull(r.r, last[:])
		switch {
		case err == io.EOF, err == io.ErrUnexpectedEOF && n < sector:
			return truncated()
		case err != nil:
			return err
		case bytes.Equal(last[:], r.footer[:]):
			if n, err := io.ReadFull(r.r, last[:1]); n > 0 {
				return damaged("data follows after its end")
			} else if err != io.EOF {
				return err
			}
			return io.EOF
		case bytes.HasPrefix(last[:], []byte("conectix")):
			return damaged("its header and its footer differ")
		}
		// Space of a former block is allowed between the last block and the footer.
	}
}

func truncated() error {
	return refuse("check that the image file on the server is complete", "the vhd image is truncated")
}

func (r *Reader) read(b []byte) error {
	n, err := io.ReadFull(r.r, b)
	r.pos += int64(n)
	return ended(err)
}

func (r *Reader) skip(n int64) error {
	m, err := io.CopyN(io.Discard, r.r, n)
	r.pos += m
	return ended(err)
}

func ended(err error) error {
	if errors.Is(err, io.EOF) || err == io.ErrUnexpectedEOF {
		return truncated()
	}
	return err
}
