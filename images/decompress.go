package images

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"runtime"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"
)

// Memory of a decoder besides Limits.Window: zstd 2 MiB, gzip 0.2 MiB, bzip2 4 MiB, lz4 two blocks of at most 8 MiB.
// Each is one stream. With more than two cores zstd has goroutines of its own; the others are decoded by the reader's.
// Files of several frames of zstd or blocks of xz are decoded by several goroutines, where there is memory for that.

// decompressors has every detected compression. An entry returns the decoded stream, and a function that frees the
// decoder, if necessary.
var decompressors = map[Compression]func(r io.Reader, head []byte, l Limits) (io.Reader, func(), error){
	Zstd:  openZstd,
	Gzip:  openGzip,
	XZ:    openXZ,
	LZ4:   openLZ4,
	Bzip2: openBzip2,
}

// decompress starts the decoder of a compression. done frees its resources.
func decompress(c Compression, r io.Reader, head []byte, l Limits) (decoded io.Reader, done func(), err error) {
	below := &watched{Reader: r}
	d, end, err := decompressors[c](below, head, l)
	if err != nil {
		return nil, nil, below.explain(err, c, l)
	}
	if end == nil {
		end = func() {}
	}
	return &decoding{d, below, c, l}, end, nil
}

// unchecked reports, by the beginning of the file, whether the compressed data has no checksum of its own.
func unchecked(c Compression, head []byte) bool {
	switch c {
	case Zstd:
		var h zstd.Header
		return h.Decode(head) == nil && !h.Skippable && !h.HasCheckSum
	case XZ:
		return len(head) > 7 && head[7] == 0
	case LZ4:
		return len(head) > 4 &&
			(head[0] == lz4Legacy&0xff || head[0] == lz4Frame&0xff && head[4]&(lz4ContentSum|lz4BlockSum) == 0)
	}
	return false
}

// decoding is a decoder and the stream below it, whose errors are passed on unchanged: they are the fetcher's.
type decoding struct {
	io.Reader
	below *watched
	c     Compression
	l     Limits
}

func (d *decoding) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	if err != nil && err != io.EOF {
		err = d.below.explain(err, d.c, d.l)
	}
	return n, err
}

func (d *decoding) skipZeros() int64 { return skipZeros(d.Reader) }

// watched records how a stream ended. A decoder may read it in a goroutine of its own.
type watched struct {
	io.Reader
	mu  sync.Mutex
	err error
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.err = err
	}
	return n, err
}

// ended returns the error at the end of the stream; nil: it was not reached.
func (w *watched) ended() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// explain converts a decoder's errors to errors for operators.
func (w *watched) explain(err error, c Compression, l Limits) error {
	if end := w.ended(); end != nil && end != io.EOF && !errors.Is(end, io.ErrUnexpectedEOF) {
		return end
	}
	var known *Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, xz.ErrBuf):
		return refuse(remedyTruncated, "the image is truncated: the %s data in it has no end", c)
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded),
		errors.Is(err, zstd.ErrWindowSizeTooSmall), errors.Is(err, xz.ErrMemlimit):
		return windowError(c, 0, l)
	case errors.Is(err, zstd.ErrUnknownDictionary):
		return refuse("pack the image again without a dictionary file",
			"unpacking the image needs a dictionary that does not come with it")
	case errors.Is(err, xz.ErrOptions), errors.Is(err, xz.ErrUnsupportedCheck):
		return refuse("pack the image again with xz or zstd without special options",
			"the image is packed with options of xz that are not supported")
	case errors.Is(err, zstd.ErrMagicMismatch):
		return trailing(c)
	}
	return refuse(remedyDamaged, "the image is damaged: %w", err)
}

const (
	remedyTruncated = "check that the image file on the server is complete"
	remedyDamaged   = "compare the file with its origin, and publish or pack it again"
)

func trailing(c Compression) error {
	return refuse(remedyDamaged, "the image is damaged: something that is not %s follows within it", c)
}

func windowError(c Compression, asked uint64, l Limits) error {
	remedy := fmt.Sprintf("pack the image again with a smaller window, for example zstd -19 --long=%d",
		bits.Len64(l.Window)-1)
	switch c {
	case XZ:
		remedy = fmt.Sprintf("pack the image again: with zstd -19, or with xz --lzma2=dict=%dMiB", l.Window>>20)
	case LZ4:
		remedy = "pack the image again with smaller blocks: lz4 -B4"
	}
	if asked == 0 {
		return refuse(remedy, "unpacking the image needs more than the %d MiB of memory that are allowed for it",
			l.Window>>20)
	}
	return refuse(remedy, "unpacking the image needs a window of %d MiB, more than the %d MiB that are allowed for it",
		asked>>20, l.Window>>20)
}

// openZstd starts a decoder for one or more frames. The header of the first frame is checked before anything is
// decoded.
func openZstd(r io.Reader, head []byte, l Limits) (io.Reader, func(), error) {
	var h zstd.Header
	if err := h.Decode(head); err == nil && !h.Skippable && h.WindowSize > l.Window {
		return nil, nil, windowError(Zstd, h.WindowSize, l)
	}
	// Blocks that wait between the decoder's goroutines are memory, and the slowest of those decides: four are enough.
	blocks := 4
	if runtime.GOMAXPROCS(0) <= 2 || head == nil || h.WindowSize > 16<<20 {
		// Passing blocks on costs processor time and some MiB. On two cores digest, writes and the network need that
		// time as well: a whole write took as long with four blocks as with one, 1.9 to 2.3 s in four rounds of each.
		// Beside a large window, or the second decoder of tables (no head), there is no memory for it.
		blocks = 1
	}
	one := func(r io.Reader) (*sparseReader, func(), error) {
		return newSparseReader(r, blocks, zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(l.Window))
	}
	if l.Memory > 0 && severalFrames(head) {
		return newParallel(r, l, one)
	}
	return one(r)
}

// keeps returns the memory that a decoder keeps, by the beginning of the file. Later frames may need more.
func keeps(c Compression, head []byte, l Limits) int64 {
	switch c {
	case Zstd:
		var h zstd.Header
		if h.Decode(head) == nil && !h.Skippable && !severalFrames(head) {
			return int64(h.WindowSize)
		}
		return int64(l.Window)
	case XZ:
		return int64(l.Window)
	case LZ4:
		return 16 << 20
	}
	return 4 << 20
}

// claimedSize returns the first frame's content size, 0 if absent. There may be more frames, so the file has at least
// this size.
func claimedSize(c Compression, head []byte) uint64 {
	switch c {
	case Zstd:
		var h zstd.Header
		if h.Decode(head) == nil && !h.Skippable && h.HasFCS {
			return h.FrameContentSize
		}
	case LZ4:
		if f, n, err := parseLZ4Frame(head); err == nil && n > 0 {
			return f.size
		}
	}
	return 0
}

// gzipReader decodes one or more members. As in gzip itself, trailing zeros are allowed, as on tapes, but nothing else.
type gzipReader struct {
	in *bufio.Reader
	*gzip.Reader
	done bool
}

//nolint:unparam a row of the table of decoders
func openGzip(r io.Reader, _ []byte, _ Limits) (io.Reader, func(), error) {
	// A ByteReader is not read beyond the member's end.
	g := &gzipReader{in: bufio.NewReaderSize(r, 128<<10)}
	var err error
	if g.Reader, err = gzip.NewReader(g.in); err != nil {
		return nil, nil, err
	}
	g.Multistream(false)
	return g, nil, nil
}

func (g *gzipReader) Read(p []byte) (int, error) {
	for !g.done {
		n, err := g.Reader.Read(p)
		if err == nil || n > 0 && err == io.EOF {
			return n, nil
		}
		if err != io.EOF {
			return n, err
		}
		if err := g.next(); err != nil {
			return 0, err
		}
	}
	return 0, io.EOF
}

// next starts the next member, or detects the end.
func (g *gzipReader) next() error {
	padded := false
	for {
		b, err := g.in.ReadByte()
		switch {
		case err == io.EOF:
			g.done = true
			return nil
		case err != nil:
			return err
		case b == 0:
			padded = true
			continue
		case padded || b != 0x1f:
			return trailing(Gzip)
		}
		if err := g.in.UnreadByte(); err != nil {
			return err
		}
		err = g.Reset(g.in)
		if errors.Is(err, gzip.ErrHeader) {
			return trailing(Gzip)
		}
		g.Multistream(false)
		return err
	}
}

// openXZ starts a decoder for one or more streams, with padding between and after them as the format allows. Its
// checksums (CRC32, CRC64, SHA-256) and its index are verified. The second decoder of tables (no head) has no memory
// for several blocks.
func openXZ(r io.Reader, head []byte, l Limits) (io.Reader, func(), error) {
	if severalBlocks(head, l) {
		d, end := newXZBlocks(r, l)
		return d, end, nil
	}
	d, err := xz.NewReader(bufio.NewReaderSize(r, 128<<10), xzWindow(l))
	if err != nil {
		return nil, nil, err
	}
	return d, nil, nil
}

// xzWindow returns the largest dictionary that is accepted.
func xzWindow(l Limits) uint32 { return uint32(min(l.Window, math.MaxUint32)) }

// bzip2Reader gives data after the last stream an error of its own.
type bzip2Reader struct {
	io.Reader
	some bool
}

//nolint:unparam a row of the table of decoders
func openBzip2(r io.Reader, _ []byte, _ Limits) (io.Reader, func(), error) {
	return &bzip2Reader{Reader: bzip2.NewReader(bufio.NewReaderSize(r, 128<<10))}, nil, nil
}

func (b *bzip2Reader) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.some = b.some || n > 0
	var s bzip2.StructuralError
	if errors.As(err, &s) && b.some && bytes.Contains([]byte(s), []byte("continuation")) {
		err = trailing(Bzip2)
	}
	return n, err
}
