package disk

import (
	"io"
)

// Section reads a part of a disk at any offset and length, although the disk takes whole sectors only.
func Section(dev Device, start, size int64) io.ReaderAt {
	return &section{dev, start, size, int64(dev.SectorSize())}
}

type section struct {
	r                   io.ReaderAt
	start, size, sector int64
}

func (p *section) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 || off > p.size {
		return 0, io.ErrUnexpectedEOF
	}
	short := off+int64(len(b)) > p.size
	if short {
		b = b[:p.size-off]
	}
	from := (p.start + off) / p.sector * p.sector
	to := (p.start + off + int64(len(b)) + p.sector - 1) / p.sector * p.sector
	buf := Aligned(int(to - from))
	if _, err := p.r.ReadAt(buf, from); err != nil {
		return 0, err
	}
	n := copy(b, buf[p.start+off-from:])
	if short {
		return n, io.EOF
	}
	return n, nil
}
