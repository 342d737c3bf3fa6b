// Package images knows what an operating system image is: it tells formats apart by content, reads them as data and holes, and
// checks digests. It knows no network and no devices.
//
// Open takes the bytes of an image as they are fetched and gives Extents: pieces of the disk that the image describes, each at its
// place, holes left out. Raw images, plain or compressed by zstd, are read; everything else is recognised and refused, with what to do
// about it. Names and content types are never looked at: servers and people get them wrong.
//
// An image is hostile until its digest is known, and it is decoded before that. So sizes that a header claims are only compared,
// never allocated, memory is bounded by Limits, and a stream that ends early is an error, never an end.
//
// Offsets and sizes are bytes. Error carries a remedy; everything else is the error of the reader below.
package images

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"runtime"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

// Error says what is wrong with an image and what its owner can do.
type Error struct {
	Err    error
	Remedy string
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

func refuse(remedy, format string, args ...any) error {
	return &Error{Err: fmt.Errorf(format, args...), Remedy: remedy}
}

// Extent is a piece of an image: data, data that is still packed, or a hole.
type Extent struct {
	Off, Len int64
	// Data is in the buffer that Next was given. Nil, without Decode, stands for a hole: Len zeros.
	Data []byte
	// Decode, instead of Data, unpacks the piece into exactly Len bytes. Any goroutine may call it, once; it must be over before Close.
	// Len is not more than the buffer that Next was given.
	Decode func(dst []byte) error
}

// Extents reads an image piece by piece.
type Extents interface {
	// Size is the size of the disk that the image describes, or -1 when nobody can know before the end. Every byte of the disk comes
	// exactly once, in data or in a hole, at multiples of 512; in ascending order when the size is not known, else in any order.
	Size() int64
	// Next reads the next piece into buf, as much of it as there is in one place. io.EOF comes when the image is complete, and only
	// then. The data is valid until buf is used again.
	Next(buf []byte) (Extent, error)
	// Close gives back what decoding needed; it does not close the input.
	Close() error
}

// Input is an image as it is fetched.
type Input struct {
	// Stream is the bytes of the image file, once and in order. An early end must be io.ErrUnexpectedEOF.
	Stream io.Reader
	// Size of the file, or -1.
	Size int64
	// Cancel ends a Read of Stream that waits; nil when none ever waits for long. It is called before a decoder, which reads ahead, is
	// waited for: when Open fails, and by Close.
	Cancel func()
	// At reads anywhere in the file, for formats whose tables are not where they are needed; nil when that is not possible. It may be slow
	// anywhere but in ascending order.
	At io.ReaderAt
	// Again opens the file once more from its beginning, for such tables in a compressed file; nil when that is not possible.
	Again func() (io.ReadCloser, error)
}

// Limits bound what an image may ask for. Zero values mean the defaults.
type Limits struct {
	Size   int64  // of the disk; 0: none
	Window uint64 // of a zstd decoder, in bytes; 0: DefaultWindow
}

// DefaultWindow is how far back a zstd stream may refer: what "zstd -19" and "--long=25" need. It is what bounds a decoder's memory.
const DefaultWindow = 32 << 20

// Info is what Open found out.
type Info struct {
	Compression Compression
	Format      Format
	Head        Content // of the disk that the image describes
	Start       []byte  // the disk's first MiB, or all of it when it is smaller
}

// format is one way to describe a disk. Without open it is recognised and refused.
type format struct {
	name   Format
	remedy string
	open   func(decoded io.Reader, in Input, info *Info, l Limits) (Extents, error)
}

// peekSize is more than enough for the farthest magic number, that of btrfs: it is what a partition table takes.
const peekSize = 1 << 20

// Open finds out what an image is and reads it.
func Open(in Input, l Limits) (Extents, Info, error) {
	if l.Window == 0 {
		l.Window = DefaultWindow
	}
	var info Info
	head, stream, err := peek(in.Stream)
	if err != nil {
		return nil, info, fmt.Errorf("read the image's beginning: %w", err)
	}
	if len(head) == 0 {
		return nil, info, refuse("check what the URL serves", "the image is empty")
	}
	info.Compression = DetectCompression(head)
	decoded, closer := stream, func() {}
	switch info.Compression {
	case Plain:
	case Zstd:
		var end func()
		if decoded, end, err = openZstd(stream, head, l); err != nil {
			return nil, info, err
		}
		closer = func() {
			if in.Cancel != nil {
				in.Cancel()
			}
			end()
		}
		if head, decoded, err = peek(decoded); err != nil {
			closer()
			return nil, info, err
		}
	default:
		return nil, info, refuse("unpack it, or pack it with zstd", "images compressed with %s are not supported", info.Compression)
	}
	if len(head) == 0 {
		closer()
		return nil, info, refuse("check what the URL serves", "the image is empty once it is unpacked")
	}
	info.Format, info.Head = Detect(head)
	info.Start = head
	f, err := lookUp(info)
	if err == nil {
		var e Extents
		if e, err = f.open(decoded, in, &info, l); err == nil {
			return &closing{e, closer}, info, nil
		}
	}
	closer()
	return nil, info, err
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
	err := c.Extents.Close()
	c.more()
	return err
}

// peek reads the beginning of a stream and gives a reader that starts there again.
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
	return buf, io.MultiReader(bytes.NewReader(buf), r), nil
}

const remedyTruncated = "check that the image file on the server is complete"

// decoding is a decoder and the stream below it, whose errors pass untouched: they are the fetcher's and say enough.
type decoding struct {
	io.Reader
	below *watched
	l     Limits
}

func (d *decoding) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	if err != nil && err != io.EOF {
		if below := d.below.err.Load(); below != nil && *below != io.EOF && !errors.Is(*below, io.ErrUnexpectedEOF) {
			return n, *below
		}
		err = decodeError(err, d.l)
	}
	return n, err
}

// watched remembers how a stream ended. The decoder reads it from a goroutine of its own.
type watched struct {
	io.Reader
	err atomic.Pointer[error]
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if err != nil {
		w.err.Store(&err)
	}
	return n, err
}

// decodeError gives a decoder's faults the operator's words.
func decodeError(err error, l Limits) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return refuse(remedyTruncated, "the image is truncated: %w", err)
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeTooSmall):
		return windowError(0, l)
	case errors.Is(err, zstd.ErrMagicMismatch):
		return refuse("pack the image again", "the image is damaged: something that is not zstd follows within it")
	}
	return refuse("pack the image again", "the image is damaged: %w", err)
}

func windowError(asked uint64, l Limits) error {
	const remedy = "pack the image again with a smaller window, for example zstd -19 --long=%d"
	if asked == 0 {
		return refuse(fmt.Sprintf(remedy, bits.Len64(l.Window)-1), "unpacking the image needs more than the %d MiB of memory that are allowed for it", l.Window>>20)
	}
	return refuse(fmt.Sprintf(remedy, bits.Len64(l.Window)-1), "unpacking the image needs a window of %d MiB, more than the %d MiB that are allowed for it", asked>>20, l.Window>>20)
}

// openZstd starts a decoder for one or more frames. What the first frame says about itself is checked before anything is decoded.
func openZstd(r io.Reader, head []byte, l Limits) (io.Reader, func(), error) {
	var h zstd.Header
	if err := h.Decode(head); err == nil && !h.Skippable {
		switch {
		case h.WindowSize > l.Window:
			return nil, nil, windowError(h.WindowSize, l)
		case h.HasFCS && l.Size > 0 && h.FrameContentSize > uint64(l.Size):
			return nil, nil, tooLarge(h.FrameContentSize, l)
		}
	}
	below := &watched{Reader: r}
	d, err := zstd.NewReader(below, zstd.WithDecoderConcurrency(min(4, runtime.GOMAXPROCS(0))), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(l.Window))
	if err != nil {
		return nil, nil, decodeError(err, l)
	}
	return &decoding{d, below, l}, d.Close, nil
}

func tooLarge(size uint64, l Limits) error {
	return refuse("use a smaller image or a larger disk", "the image is larger than the disk: %d bytes, the disk has %d", size, l.Size)
}

// formats is every format that is told apart.
var formats = []format{
	{name: Raw, open: openRaw},
	{name: QCow2, remedy: "convert it: qemu-img convert -O raw"},
	{name: QED, remedy: "convert it: qemu-img convert -O raw"},
	{name: VHD, remedy: "convert it: qemu-img convert -f vpc -O raw"},
	{name: VHDX, remedy: "convert it: qemu-img convert -O raw"},
	{name: VMDK, remedy: "convert it: qemu-img convert -O raw"},
	{name: VDI, remedy: "convert it: qemu-img convert -O raw"},
	{name: Parallels, remedy: "convert it: qemu-img convert -f parallels -O raw"},
	{name: LUKS, remedy: "decrypt it: qemu-img convert -O raw"},
	{name: ISO9660, remedy: "give a disk image; an installation medium can't be written to a disk as a system"},
	{name: FileSystem, remedy: "give a whole-disk image, with a partition table"},
}

// raw is a disk, byte for byte.
type raw struct {
	r    io.Reader
	size int64
	l    Limits
	off  int64
	err  error
}

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
	// io.ReadFull would make the same error of an end and of a stream that was cut off.
	n := 0
	for n < len(buf) && r.err == nil {
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
