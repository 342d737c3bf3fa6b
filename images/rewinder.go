package images

import (
	"errors"
	"io"
	"math"
)

// maxReplays is how often a compressed file is decompressed from its beginning to read its tables. Formats read their
// tables in ascending order, so once for each kind of table is enough.
const maxReplays = 4

// rewinder is an io.ReaderAt over a file that can only be read from its beginning, or exists only compressed: forward
// by decompressing and discarding, backward by restarting, a limited number of times. It needs the memory of a second
// decoder while open.
type rewinder struct {
	open  func() (io.ReadCloser, error)
	c     Compression
	start []byte // of the unpacked file
	l     Limits
	left  int
	used  *bool

	file io.ReadCloser
	r    io.Reader
	done func()
	off  int64
}

var errReplays = &Error{
	Err:    errors.New("the tables of the image lie in it in an order for which it would have to be fetched too often"),
	Remedy: "unpack it, or convert it: qemu-img convert -O qcow2 writes its tables in order",
}

// ReadAt implements io.ReaderAt, for one goroutine.
func (p *rewinder) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.New("negative offset")
	}
	n := 0
	if off < int64(len(p.start)) {
		n = copy(b, p.start[off:])
		if n == len(b) {
			return n, nil
		}
		off += int64(n)
	}
	if p.r == nil || off < p.off {
		if err := p.restart(); err != nil {
			return n, err
		}
	}
	limit := int64(math.MaxInt64)
	if p.l.Size > 0 {
		limit = containerLimit(p.l.Size)
	}
	if off > limit-int64(len(b)) {
		return n, io.EOF
	}
	m, err := io.CopyN(io.Discard, p.r, off-p.off)
	p.off += m
	if err != nil {
		return n, err
	}
	m2, err := io.ReadFull(p.r, b[n:])
	p.off += int64(m2)
	if err == io.ErrUnexpectedEOF {
		err = io.EOF // of the decompressed file; a truncated compressed one has another error
	}
	return n + m2, err
}

func (p *rewinder) restart() error {
	p.Close()
	if p.left == 0 {
		return errReplays
	}
	p.left--
	*p.used = true
	file, err := p.open()
	if err != nil {
		return err
	}
	if p.c == Plain {
		p.file, p.r, p.done, p.off = file, file, func() { file.Close() }, 0
		return nil
	}
	r, done, err := decompress(p.c, file, nil, p.l)
	if err != nil {
		file.Close()
		return err
	}
	p.file, p.r, p.done, p.off = file, r, func() { done(); file.Close() }, 0
	return nil
}

// Close closes the second decoder. Another ReadAt opens it again.
func (p *rewinder) Close() error {
	if p.r != nil {
		p.done()
		p.r, p.file, p.done = nil, nil, nil
	}
	return nil
}

// containerLimit is the maximum size of a decompressed file that describes a disk of at most size bytes: it allows for
// tables, a few snapshots and unused clusters, but not for an endless stream of zeros.
func containerLimit(size int64) int64 {
	if size > (math.MaxInt64-1<<30)/4 {
		return math.MaxInt64
	}
	return 4*size + 1<<30
}

// bounded ends a stream that exceeds its limit.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, refuse("convert the image: qemu-img convert leaves out unused parts",
			"the unpacked image file is far larger than the disk it describes")
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
