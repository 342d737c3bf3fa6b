// Package qcow2 reads qcow2 images, versions 2 and 3, in one pass over the file: the tables first, then every byte
// once, in the order of the file, each cluster returned with its offset on the disk. There is no copy of the image,
// neither in memory nor in a file.
//
// Open reads the tables through an io.ReaderAt and detects all faults that are detectable without the data. Next then
// reads the stream, which contains the same tables: they must be unchanged, else an image that was replaced in between
// would become a mixture (ErrChanged). So a digest over the stream covers all used data.
//
// Every byte of the disk comes exactly once: as data, as a hole, or compressed, as an Extent with Decode, for the
// caller's workers to decode on all cores. Refused with a remedy are: backing and external data files, encryption,
// unknown features, images marked as corrupt, tables or clusters that are used twice or outside the file, compressed
// clusters that are not exactly one cluster. Snapshots and bitmaps are ignored. An image marked as dirty is read: only
// its reference counts are in doubt then, which reading does not need.
//
// Memory is bounded for any image: Limits.Memory for the list of pieces, which is about 3 bytes for a compressed
// cluster in order, 19 for one out of order and 16 for a run of plain ones; and a buffer of compressed data for each
// buffer of the caller's that waits for its Decode, of one MiB, or of two and the cluster for clusters of 2 MiB.
//
// All offsets and sizes are bytes. Error carries a remedy; other errors are those of the stream and of the io.ReaderAt.
// The format follows docs/interop/qcow2.txt in the QEMU sources.
package qcow2

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"io"
)

const (
	sector    = 512
	startSize = 1 << 20
	maxHole   = 1 << 30
)

// DefaultMemory is enough for 500 GiB of compressed clusters of 64 KiB in order, and for 75 GiB in the worst order.
const DefaultMemory = 24 << 20

// Limits of an image. Zero values mean the defaults.
type Limits struct {
	Size   int64 // of the disk; 0: none
	Memory int64 // of the list of pieces; 0: DefaultMemory
}

// Extent is a piece of the disk: Data, in the buffer passed to Next; or Decode, which decodes exactly Len bytes, may be
// called by any goroutine, once, and must return before Close; or neither, for a hole, Len zeros.
type Extent struct {
	Off, Len int64
	Data     []byte
	Decode   func(dst []byte) error
}

// Reader reads an image piece by piece. Its methods are for one goroutine; the Decodes are for any.
type Reader struct {
	h     *Header
	m     *mapping
	pass  pass
	start []byte
	err   error

	walk     walk
	plain    piece // rest of the current run
	dataDone int64
	holes    holeWalk
	holeDone int64

	win   *window
	cut   int    // items of it already returned
	part  *large // the item being returned in parts
	carry []byte // the last sector read, where another cluster may begin

	windows  pool[*window]
	clusters pool[[]byte]
	decoders pool[*decoder]
}

// Open reads the tables of an image through at. stream is the same file from its beginning. fileSize may be -1 if
// unknown; references beyond the end of the file are then detected only at the end of the stream. at is read in
// ascending order, except for the beginning of the disk, which comes last, and an L1 table after its L2 tables.
func Open(stream io.Reader, at io.ReaderAt, fileSize int64, l Limits) (*Reader, error) {
	l.Memory = cmp.Or(l.Memory, DefaultMemory)
	o := &opener{at: at, fileSize: fileSize, budget: budget{l.Memory}}
	if err := o.header(l); err != nil {
		return nil, err
	}
	o.m = &mapping{budget: &o.budget, cluster: o.h.cluster(), size: o.h.Size}
	steps := []func() error{o.refcounts, o.l1, o.l2}
	if o.h.l1 < o.h.refcounts {
		steps = []func() error{o.l1, o.refcounts, o.l2}
	}
	for _, f := range append(steps, o.m.findHoles, o.m.untangle, o.overlaps) {
		if err := f(); err != nil {
			return nil, err
		}
	}
	r := &Reader{
		h: o.h, m: o.m,
		pass: pass{
			r: stream, fileSize: fileSize, end: o.end, scratch: make([]byte, 128<<10),
			fixed: o.fixed, cluster: o.h.cluster(), tables: o.tables, groups: o.groups, h: sha256.New(),
		},
		walk: walk{m: o.m}, holes: holeWalk{m: o.m},
	}
	return r, r.readStart(o)
}

// Header returns the image's properties.
func (r *Reader) Header() Header { return *r.h }

// Size of the disk.
func (r *Reader) Size() int64 { return r.h.Size }

// Start returns the first MiB of the disk, or all of a smaller one. It must not be changed.
func (r *Reader) Start() []byte { return r.start }

// Close ends reading. It does not close the stream.
func (r *Reader) Close() error {
	for {
		d, ok := r.decoders.get()
		if !ok {
			break
		}
		d.close()
	}
	r.err = errors.New("the image is closed")
	r.win, r.part = nil, nil
	return nil
}

// readStart reads the beginning of the disk.
func (r *Reader) readStart(o *opener) error {
	r.start = make([]byte, min(startSize, r.h.Size))
	var pieces []piece
	for w := (walk{m: o.m}); ; {
		p, ok := w.next()
		if !ok {
			break
		}
		if p.guest >= int64(len(r.start)) {
			continue
		}
		p.n = min(p.n, int64(len(r.start))-p.guest)
		if !p.packed {
			p.end = p.host + p.n
		}
		pieces = append(pieces, p)
	}
	d, err := r.decoder()
	if err != nil {
		return err
	}
	defer r.putDecoder(d)
	return o.fetch(len(pieces), func(i int) span { return span{pieces[i].host, pieces[i].end} }, sector-1, func(int) {},
		func(i int, b []byte) error {
			p := pieces[i]
			to := r.start[p.guest : p.guest+p.n : p.guest+p.n]
			if !p.packed {
				copy(to, b)
				return nil
			}
			return d.item(to, item{guest: p.guest, n: p.n, host: p.host}, b, r.m.cluster)
		})
}

// Next returns the next piece, data in the order of the file and holes in between. It reads data directly into buf,
// which should be 1 MiB. io.EOF comes only when the whole file was read and is complete.
func (r *Reader) Next(buf []byte) (Extent, error) {
	if r.err != nil {
		return Extent{}, r.err
	}
	if len(buf) < sector {
		return Extent{}, io.ErrShortBuffer
	}
	var e Extent
	if e, r.err = r.next(buf[:len(buf)&^(sector-1)]); r.err != nil {
		return Extent{}, r.err
	}
	return e, nil
}

func (r *Reader) next(buf []byte) (Extent, error) {
	if r.win != nil {
		return r.give(len(buf)), nil
	}
	if r.plain.n == 0 {
		// Holes come slightly faster than data: making them and waiting for data alternate, and none is left for the
		// end.
		if float64(r.holeDone)*float64(r.m.dataSum)*3 <= float64(r.dataDone)*float64(r.m.holeSum)*4 {
			if e, ok := r.hole(); ok {
				return e, nil
			}
		}
		ahead := r.walk
		p, ok := ahead.next()
		if !ok {
			if e, ok := r.hole(); ok {
				return e, nil
			}
			if err := r.pass.finish(); err != nil {
				return Extent{}, err
			}
			return Extent{}, io.EOF
		}
		if p.packed {
			if err := r.fill(len(buf)); err != nil {
				return Extent{}, err
			}
			return r.give(len(buf)), nil
		}
		r.plain, r.walk = p, ahead
	}
	return r.data(buf)
}

// hole returns the next part of a hole.
func (r *Reader) hole() (Extent, bool) {
	if r.holes.n == 0 && !r.holes.next() {
		return Extent{}, false
	}
	e := Extent{Off: r.holes.off, Len: min(r.holes.n, maxHole)}
	r.holes.off += e.Len
	r.holes.n -= e.Len
	r.holeDone += e.Len
	return e, true
}

// data reads plain bytes, and those of further runs that continue on the disk after a small gap in the file.
func (r *Reader) data(buf []byte) (Extent, error) {
	off, n := r.plain.guest, 0
	for {
		m := int(min(r.plain.n, int64(len(buf)-n)))
		if err := r.pass.advance(r.plain.host); err != nil {
			return Extent{}, err
		}
		if err := r.pass.read(buf[n:n+m], 0); err != nil {
			return Extent{}, err
		}
		n += m
		r.plain.host += int64(m)
		r.plain.guest += int64(m)
		r.plain.n -= int64(m)
		r.dataDone += int64(m)
		if r.plain.n > 0 || n == len(buf) {
			break
		}
		ahead := r.walk
		p, ok := ahead.next()
		if !ok || p.packed || p.guest != r.plain.guest || p.host > r.plain.host+maxRequest {
			break
		}
		r.plain, r.walk = p, ahead
	}
	e := Extent{Off: off, Len: int64(n), Data: buf[:n]}
	return e, r.sameStart(off, e.Data)
}
