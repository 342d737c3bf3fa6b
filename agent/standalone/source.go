package standalone

import (
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
	"strings"
	"sync"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
)

// serveIndex makes a URL of a path that leads to the index of a published image, because its objects are fetched from a server; end ends that
// server. Everything else stays as it is.
func serveIndex(image string) (url string, end func(), err error) {
	path := strings.TrimPrefix(image, "file://")
	if path == "" || strings.Contains(path, "://") {
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
	// Others on this machine may not read all that lies beside the image.
	secret := "/" + rand.Text() + "/"
	s := &http.Server{Handler: http.StripPrefix(secret, http.FileServer(http.Dir(filepath.Dir(path))))}
	var done sync.WaitGroup
	done.Go(func() { _ = s.Serve(l) }) // ends by Close
	u := neturl.URL{Scheme: "http", Host: l.Addr().String(), Path: secret + filepath.Base(path)}
	return u.String(), func() { s.Close(); done.Wait() }, nil
}

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
