package standalone

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	neturl "net/url"
	"os"
	"path/filepath"
	"sync"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/image/chunked"
	"github.com/ingot-metal/ingot/agent/image/configdrive"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/oci"
)

// serveIndex returns a URL for a path of a published image's index, because its objects are fetched from a server; end
// stops that server. Other images are returned unchanged.
func serveIndex(image string) (url string, end func(), err error) {
	path, local := localImage(image)
	if !local || isPipe(image) {
		return image, func() {}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", nil, step.Fail("correct the path of the image, or give a URL", fmt.Errorf("open the image: %w", err))
	}
	defer f.Close()
	head := make([]byte, 64)
	if n, err := io.ReadFull(f, head); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) || !index.IsIndex(head[:n]) {
		return image, func() {}, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("serve the published image: %w", err)
	}
	// Other users of this machine must not read the files beside the image.
	secret := "/" + rand.Text() + "/"
	s := &http.Server{Handler: http.StripPrefix(secret, http.FileServer(http.Dir(filepath.Dir(path))))}
	var done sync.WaitGroup
	done.Go(func() { _ = s.Serve(l) }) // ends by Close
	u := neturl.URL{Scheme: "http", Host: l.Addr().String(), Path: secret + filepath.Base(path)}
	return u.String(), func() { s.Close(); done.Wait() }, nil
}

// lookAtImage reads enough of the image to identify it. Rehearse checks its trust and placement; only for an image from
// a pipe this checks that a config drive of beside bytes fits on the disk.
func (p *Plan) lookAtImage(ctx context.Context, o Options, beside int64, log *slog.Logger) error {
	if oci.IsReference(o.Image) {
		return p.lookAtPublished(ctx, o.Image, o, log)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	src, err := fetch.Open(fetch.Source{URLs: append([]string{o.Image}, o.Mirrors...), CA: o.CA, Local: true},
		fetch.DefaultPatience, log)
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
	if index.IsIndex(head[:n]) {
		url, end, err := serveIndex(o.Image)
		if err != nil {
			return err
		}
		defer end()
		return p.lookAtPublished(ctx, url, o, log)
	}
	all := io.MultiReader(bytes.NewReader(head[:n]), stream)
	e, info, err := images.Open(
		images.Input{Stream: all, Size: src.Size(), At: src.At(ctx),
			Again: func() (io.ReadCloser, error) { return src.Again(ctx) }}, images.Limits{Size: p.Disk.Size})
	if err != nil {
		return err
	}
	defer e.Close()
	p.Format, p.Compression, p.Table, p.VirtualSize = string(info.Format), string(info.Compression), string(info.Head),
		e.Size()
	if isPipe(o.Image) {
		p.Notes = append(p.Notes,
			"the image comes from a pipe, which can be read only once: it was not looked at as closely as others")
		if !info.Partition {
			return disk.CheckRoom(info.Start, e.Size(), p.Disk, configdrive.Label, beside)
		}
	}
	if info.Partition {
		p.Notes = append(p.Notes,
			"the disk will be divided, and the image be its root partition; whether it has a boot loader is known only once it is written")
	}
	return nil
}

func (p *Plan) lookAtPublished(ctx context.Context, url string, o Options, log *slog.Logger) error {
	img, err := chunked.Open(ctx,
		chunked.Where{URLs: append([]string{url}, o.Mirrors...), CA: o.CA, Wait: fetch.DefaultPatience, Log: log},
		chunked.Trust{Unverified: true})
	if err != nil {
		return err
	}
	defer img.Close()
	p.Format, p.Table, p.VirtualSize = string(images.Published), string(img.Index.Head), img.Index.Size
	p.FileSize, _ = img.Index.Stored()
	return nil
}

// reader reads a file with the context of its owner.
type reader struct {
	ctx context.Context
	src *fetch.File
}

func (r reader) Read(p []byte) (int, error) { return r.src.Read(r.ctx, p) }
