package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
)

// lookAtImage reads as much of the image as tells what it is.
func (p *Plan) lookAtImage(ctx context.Context, o Options, log *slog.Logger) error {
	switch {
	case o.Image == "":
		return step.Failf("give --image, a URL or the path of a file", "no image is given")
	case p.Trust == "":
		return step.Failf("give --sha256, --checksum or --key; or --allow-unverified, if you must", "the image has no digest or signature")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	src, err := fetch.Open(fetch.Source{URLs: append([]string{o.Image}, o.Mirrors...), CA: o.CA, Local: true}, fetch.DefaultPatience, log)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := src.Connect(ctx); err != nil {
		return err
	}
	p.FileSize = src.Size()
	stream := reader{ctx, src}
	head := make([]byte, 1<<10)
	n, err := io.ReadFull(stream, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && err != io.EOF {
		return err
	}
	all := io.MultiReader(strings.NewReader(string(head[:n])), stream)
	if index.IsIndex(head[:n]) {
		return p.lookAtIndex(all)
	}
	e, info, err := images.Open(images.Input{Stream: all, Size: src.Size(), Cancel: cancel, At: src.At(ctx), Again: func() (io.ReadCloser, error) { return src.Again(ctx) }}, images.Limits{Size: p.Disk.Size})
	if err != nil {
		var ie *images.Error
		if errors.As(err, &ie) {
			return step.Fail(ie.Remedy, err)
		}
		return err
	}
	defer e.Close()
	p.Format, p.Compression, p.Table, p.VirtualSize = string(info.Format), string(info.Compression), string(info.Head), e.Size()
	if len(o.Keys) > 0 {
		p.Notes = append(p.Notes, "only published images are signed: the key does not count for this one")
	}
	return disk.CheckHead(info.Start, e.Size(), p.Disk)
}

func (p *Plan) lookAtIndex(r io.Reader) error {
	b, err := io.ReadAll(io.LimitReader(r, maxIndex))
	if err != nil {
		return err
	}
	x, err := index.Parse(b)
	if err != nil {
		return fmt.Errorf("index: %w", err)
	}
	p.Format, p.Table, p.VirtualSize = "published", "known from its first chunk", x.Size
	p.FileSize, _ = x.Stored()
	if x.Size > p.Disk.Size {
		return step.Failf("use a larger disk", "the image is larger than the disk: %s, the disk has %s", size(uint64(x.Size)), size(uint64(p.Disk.Size)))
	}
	return nil
}

// reader reads a file with the context of its owner.
type reader struct {
	ctx context.Context
	src *fetch.File
}

func (r reader) Read(p []byte) (int, error) { return r.src.Read(r.ctx, p) }
