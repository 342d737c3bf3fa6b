package images

import (
	"errors"
	"io"

	"github.com/ingot-metal/ingot/images/vhd"
)

// fromVHD adapts package vhd to this one.
type fromVHD struct{ *vhd.Reader }

func openVHD(decoded io.Reader, in Input, info *Info, l Limits) (Extents, error) {
	r, err := vhd.Open(decoded, in.At, vhd.Limits{Size: l.Size})
	if err != nil {
		return nil, vhdError(err)
	}
	info.Start, info.Details = r.Start(), []string{"dynamic"}
	return fromVHD{r}, nil
}

func (f fromVHD) Next(buf []byte) (Extent, error) {
	x, err := f.Reader.Next(buf)
	return Extent{Off: x.Off, Len: x.Len, Data: x.Data}, vhdError(err)
}

func vhdError(err error) error {
	var e *vhd.Error
	if errors.As(err, &e) {
		return &Error{Err: e.Err, Remedy: e.Remedy}
	}
	return err
}
