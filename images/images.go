// Package images reads operating system images: it detects formats by content, reads them as data and holes, and checks
// digests. It uses no network and no devices.
//
// Open takes the bytes of an image as they are fetched and returns Extents: pieces of the disk that the image
// describes, each with its offset, without the holes. Unsupported formats are recognized and refused, with a remedy.
// Names and content types are ignored: servers and people get them wrong.
//
// An image is hostile until its digest is known, and it is decoded before that. So sizes in headers are only compared,
// never allocated, memory is bounded by Limits, and a stream that ends early is an error, never an end.
//
// Offsets and sizes are bytes. Error carries a remedy; all other errors are those of the reader below.
package images

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
)

// Error is a fault of an image with the remedy for its owner.
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

// Extent is a piece of an image: data, data still to be decoded, or a hole.
type Extent struct {
	Off, Len int64
	// Data is in the buffer passed to Next. Nil, without Decode, stands for a hole: Len zeros.
	Data []byte
	// Decode, instead of Data, decodes the piece into exactly Len bytes. Any goroutine may call it, once; it must have
	// returned before Close. Len is at most the length of the buffer passed to Next.
	Decode func(dst []byte) error
}

// Extents reads an image piece by piece.
type Extents interface {
	// Size is the size of the disk that the image describes, or -1 if it is unknown before the end. Every byte of the
	// disk comes exactly once, in data or in a hole, at multiples of 512; in ascending order if the size is unknown,
	// else in any order.
	Size() int64
	// Next reads the next piece into buf, as much of it as is contiguous. io.EOF comes only when the image is complete.
	// The data is valid until buf is used again.
	Next(buf []byte) (Extent, error)
	// Close frees the decoder; it does not close the input. No call of Next may be in progress. A decoder may be
	// reading the input: Close waits until that read returns. A second call does nothing.
	Close() error
}

// Input is an image that is being fetched.
type Input struct {
	// Stream is the bytes of the image file, once and in order. An early end must be io.ErrUnexpectedEOF. It is read
	// from Open to Close, by one goroutine at a time, and little further than needed.
	Stream io.Reader
	// Stop ends a read of Stream in progress, and all later ones: Open calls it when it fails, so that a refusal does
	// not wait for bytes of a slow server. May be nil.
	Stop func()
	// Size of the file, or -1.
	Size int64
	// At reads at any offset of the file, for formats whose tables are not where they are needed; nil if that is
	// impossible. It may be slow except in ascending order.
	At io.ReaderAt
	// Again opens the file a second time from its beginning, for such tables in a compressed file or without At; nil if
	// that is impossible.
	Again func() (io.ReadCloser, error)
}

// Limits of an image. Zero values mean the defaults.
type Limits struct {
	Size   int64  // of the disk; 0: none
	Window uint64 // of a decoder, in bytes; 0: DefaultWindow
	// Memory is bytes for parts of a stream that are unpacked at once, beside Window. With 0, frames of zstd are
	// unpacked one after the other, and blocks of xz as far as half of Window allows.
	Memory int64
}

// DefaultWindow is how far back compressed data may refer: enough for "zstd -19" and "--long=25", and "xz -8". It
// bounds a decoder's memory.
const DefaultWindow = 32 << 20

// Info is the result of detection.
type Info struct {
	Compression Compression
	Format      Format
	Head        Content  // of the disk that the image describes
	Keeps       int64    // approximate memory of the decoder in bytes; 0: little
	Start       []byte   // the disk's first MiB, or all of a smaller one
	Partition   bool     // a bare file system, for a partition and not for a whole disk
	Unchecked   bool     // the compressed data has no checksum: only a digest of the file detects damage
	Details     []string // properties of the format, for people
	Twice       bool     // the file was opened a second time, for tables that were needed early
}

// WholeDisk refuses an image of a partition.
func (i Info) WholeDisk() error {
	if i.Partition {
		return refuse("give a whole-disk image, with a partition table",
			"the image is not of a whole disk: it holds %s without a partition table", i.Head)
	}
	return nil
}

// format is a format of disk images. Without open it is recognized and refused.
type format struct {
	name   Format
	remedy string
	open   func(decoded io.Reader, in Input, info *Info, l Limits) (Extents, error)
}

// peekSize is enough for a partition table, and more than enough for the farthest magic number, that of btrfs.
const peekSize = 1 << 20

// Open detects an image's format and opens it.
func Open(in Input, l Limits) (Extents, Info, error) {
	l.Window = cmp.Or(l.Window, DefaultWindow)
	var info Info
	head, stream, err := peek(in.Stream)
	if err != nil {
		return nil, info, fmt.Errorf("read the image's beginning: %w", err)
	}
	if len(head) == 0 {
		return nil, info, refuse("check what the URL serves", "the image is empty")
	}
	info.Compression = DetectCompression(head)
	decoded, done := stream, func() {}
	fail := func(err error) (Extents, Info, error) {
		if in.Stop != nil {
			in.Stop()
		}
		done()
		return nil, info, err
	}
	if info.Compression != Plain {
		info.Unchecked = unchecked(info.Compression, head)
		claimed := claimedSize(info.Compression, head)
		if decoded, done, err = decompress(info.Compression, stream, head, l); err != nil {
			return nil, info, err
		}
		info.Keeps = keeps(info.Compression, head, l)
		if head, decoded, err = peek(decoded); err != nil {
			return fail(err)
		}
		if in, decoded, err = unpacked(in, decoded, head, claimed, &info, l); err != nil {
			return fail(err)
		}
	}
	if info.Compression == Plain && in.At == nil && in.Again != nil {
		in.At = &rewinder{open: in.Again, start: head, l: l, left: maxReplays, used: &info.Twice}
	}
	e, err := openFormat(decoded, in, head, &info, l)
	if r, ok := in.At.(*rewinder); ok {
		r.Close() // the tables have been read: frees the second decoder's memory
		r.start = nil
	}
	if err != nil {
		return fail(err)
	}
	return &closing{e, done}, info, nil
}

// openFormat opens the format inside the compression.
func openFormat(decoded io.Reader, in Input, head []byte, info *Info, l Limits) (Extents, error) {
	info.Format, info.Head = Detect(head)
	info.Start = head // a format replaces it by its disk's beginning
	f, err := lookUp(*info)
	if err != nil {
		return nil, err
	}
	if info.Partition = info.Format == FileSystem; info.Partition {
		info.Format = Raw
	}
	e, err := f.open(decoded, in, info, l)
	if err != nil || info.Format == Raw {
		return e, err
	}
	// A format describes a disk, whose content is detected as in a raw image.
	inner, content := Detect(info.Start)
	switch info.Head = content; inner {
	case Raw:
	case FileSystem:
		info.Partition = true
	case NotAnImage:
		err = refuse(content.remedy(), "the disk in the %s image holds no system: %s", info.Format, content)
	default:
		err = refuse("convert the image once more",
			"the disk in the %s image holds an image in %s format, not a system", info.Format, inner)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// unpacked prepares the input of a format inside a compression.
func unpacked(in Input, decoded io.Reader, head []byte, claimed uint64, info *Info,
	l Limits) (Input, io.Reader, error) {
	if len(head) == 0 {
		return in, nil, refuse("check what the URL serves", "the image is empty once it is unpacked")
	}
	if c := DetectCompression(head); c != Plain {
		return in, nil, refuse("unpack it once", "the image is packed twice, with %s in %s", c, info.Compression)
	}
	again, start := in.Again, head
	in.Size, in.At, in.Again = -1, nil, nil
	if f, _ := Detect(head); f == Raw || f == FileSystem {
		if l.Size > 0 && claimed > uint64(l.Size) {
			return in, nil, tooLarge(claimed, l)
		}
		return in, decoded, nil
	}
	if again != nil {
		in.At = &rewinder{open: again, c: info.Compression, start: start, l: l, left: maxReplays, used: &info.Twice}
	}
	if l.Size > 0 {
		decoded = &bounded{r: decoded, left: containerLimit(l.Size)}
	}
	return in, decoded, nil
}

func lookUp(info Info) (format, error) {
	if info.Format == NotAnImage {
		return format{}, refuse(info.Head.remedy(), "not an image: %s", info.Head)
	}
	for _, f := range formats {
		if f.name != info.Format {
			continue
		}
		if f.open == nil {
			return format{}, refuse(f.remedy, "images in %s format are not supported", f.name)
		}
		return f, nil
	}
	return format{}, refuse("convert it to raw", "images in %s format are not supported", info.Format)
}

type closing struct {
	Extents
	more func()
}

func (c *closing) Close() error {
	if c.more == nil {
		return nil
	}
	err := c.Extents.Close()
	c.more()
	c.more = nil
	return err
}

// peek reads the beginning of a stream and returns a reader that starts there again.
func peek(r io.Reader) ([]byte, io.Reader, error) {
	buf := make([]byte, peekSize)
	n := 0
	for n < len(buf) {
		m, err := r.Read(buf[n:])
		n += m
		if err == io.EOF {
			return buf[:n], bytes.NewReader(buf[:n]), nil
		}
		if err == io.ErrUnexpectedEOF {
			return nil, nil, refuse(remedyTruncated, "the image is truncated after %d bytes: %w", n, err)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return buf, &peeked{head: buf, r: r}, nil
}

// peeked is a stream whose beginning was already read.
type peeked struct {
	head []byte
	r    io.Reader
}

func (p *peeked) Read(b []byte) (int, error) {
	if len(p.head) == 0 {
		p.head = nil
		return p.r.Read(b)
	}
	n := copy(b, p.head)
	p.head = p.head[n:]
	return n, nil
}

func (p *peeked) skipZeros() int64 {
	if len(p.head) > 0 {
		return 0
	}
	return skipZeros(p.r)
}

func tooLarge(size uint64, l Limits) error {
	return refuse("use a smaller image or a larger disk",
		"the image is larger than the disk: %d bytes, the disk has %d", size, l.Size)
}

// formats has every detected format.
var formats = []format{
	{name: Raw, open: openRaw},
	{name: QCow2, open: openQCow2},
	{name: Published, remedy: "use it as it is where published images are read; ingot image publish made it"},
	{name: QED, remedy: "convert it: qemu-img convert -O raw"},
	{name: VHD, open: openVHD}, // dynamic; a fixed one is only detected at its end
	{name: VHDX, remedy: "convert it: qemu-img convert -O raw"},
	{name: VMDK, remedy: "convert it: qemu-img convert -O raw"},
	{name: VDI, remedy: "convert it: qemu-img convert -O raw"},
	{name: Parallels, remedy: "convert it: qemu-img convert -f parallels -O raw"},
	{name: LUKS, remedy: "decrypt it: qemu-img convert -O raw"},
	{name: ISO9660, remedy: "give a disk image; an installation medium can't be written to a disk as a system"},
	{name: FileSystem, open: openRaw}, // of a partition, as Info.Partition says: the caller decides
}

// raw is a disk, byte for byte.
type raw struct {
	r    io.Reader
	size int64
	l    Limits
	off  int64
	gap  int64 // known coming zeros
	err  error
}

// holeAlign is the alignment of holes: that of any disk's sectors, and of writers' blocks.
const holeAlign = 64 << 10

func openRaw(decoded io.Reader, in Input, info *Info, l Limits) (Extents, error) {
	size := int64(-1)
	if info.Compression == Plain {
		size = in.Size
	}
	if l.Size > 0 && size > l.Size {
		return nil, tooLarge(uint64(size), l)
	}
	return &raw{r: decoded, size: size, l: l}, nil
}

func (r *raw) Size() int64  { return r.size }
func (r *raw) Close() error { return nil }

func (r *raw) Next(buf []byte) (Extent, error) {
	if r.err != nil {
		return Extent{}, r.err
	}
	// io.ReadFull would return the same error for an end and for a truncated stream.
	n := 0
	for n < len(buf) && r.err == nil {
		if r.gap == 0 {
			r.gap = skipZeros(r.r)
		}
		if r.gap > 0 {
			at := r.off + int64(n)
			before := -at & (holeAlign - 1)
			if r.gap-before >= minCut/2 {
				if n == 0 && before == 0 {
					return r.hole()
				}
				if before <= int64(len(buf)-n) {
					clear(buf[n : n+int(before)])
					n += int(before)
					r.gap -= before
					break
				}
			}
			m := int(min(r.gap, int64(len(buf)-n)))
			clear(buf[n : n+m])
			n += m
			r.gap -= int64(m)
			continue
		}
		var m int
		m, r.err = r.r.Read(buf[n:])
		n += m
	}
	if r.err != nil && r.err != io.EOF {
		if r.err == io.ErrUnexpectedEOF {
			r.err = refuse(remedyTruncated, "the image is truncated after %d bytes: %w", r.off+int64(n), r.err)
		}
		return Extent{}, r.err
	}
	if r.l.Size > 0 && r.off+int64(n) > r.l.Size {
		r.err = tooLarge(uint64(r.off)+uint64(n), r.l)
		return Extent{}, r.err
	}
	if n == 0 {
		return Extent{}, r.err
	}
	e := Extent{Off: r.off, Len: int64(n), Data: buf[:n]}
	r.off += int64(n)
	return e, nil
}

// hole returns the aligned part of the coming zeros.
func (r *raw) hole() (Extent, error) {
	e := Extent{Off: r.off, Len: r.gap &^ (holeAlign - 1)}
	if r.l.Size > 0 && e.Len > r.l.Size-r.off {
		r.err = tooLarge(uint64(r.off)+uint64(r.gap), r.l)
		return Extent{}, r.err
	}
	r.off += e.Len
	r.gap -= e.Len
	return e, nil
}
