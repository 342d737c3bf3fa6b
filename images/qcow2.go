package images

import (
	"errors"
	"fmt"
	"io"

	"github.com/ingot-metal/ingot/images/qcow2"
)

// fromQCow2 adapts package qcow2 to this one.
type fromQCow2 struct{ *qcow2.Reader }

func openQCow2(decoded io.Reader, in Input, info *Info, l Limits) (Extents, error) {
	if in.At == nil && info.Compression != Plain {
		return nil, refuse("serve the qcow2 image uncompressed; its clusters may be compressed: qemu-img convert -c",
			"the tables of a qcow2 image inside %s can't be read before its data", info.Compression)
	}
	if in.At == nil {
		return nil, refuse(
			"serve the image from a server that answers range requests, or convert it: qemu-img convert -O raw",
			"the tables of the qcow2 image can't be read before its data")
	}
	r, err := qcow2.Open(decoded, in.At, in.Size, qcow2.Limits{Size: l.Size})
	if err != nil {
		return nil, qcow2Error(err)
	}
	info.Start, info.Details = r.Start(), aboutQCow2(r.Header())
	return fromQCow2{r}, nil
}

func aboutQCow2(h qcow2.Header) []string {
	packing := "deflate"
	if h.Zstd {
		packing = "zstd"
	}
	about := []string{
		fmt.Sprintf("version %d, clusters of %d KiB, packed ones with %s", h.Version, 1<<h.ClusterBits>>10, packing)}
	if h.ClusterBits < 10 {
		about[0] = fmt.Sprintf("version %d, clusters of %d bytes, packed ones with %s", h.Version, 1<<h.ClusterBits,
			packing)
	}
	if h.Extended {
		about = append(about, "subclusters")
	}
	if h.Snapshots > 0 {
		about = append(about, fmt.Sprintf("%d snapshots, which are ignored", h.Snapshots))
	}
	if h.Dirty {
		about = append(about, "not closed by the program that wrote it last")
	}
	return about
}

func (f fromQCow2) Next(buf []byte) (Extent, error) {
	x, err := f.Reader.Next(buf)
	if err != nil {
		return Extent{}, qcow2Error(err)
	}
	if decode := x.Decode; decode != nil {
		x.Decode = func(dst []byte) error { return qcow2Error(decode(dst)) }
	}
	return Extent(x), nil
}

func qcow2Error(err error) error {
	var e *qcow2.Error
	if errors.As(err, &e) {
		return &Error{Err: e.Err, Remedy: e.Remedy}
	}
	return err
}
