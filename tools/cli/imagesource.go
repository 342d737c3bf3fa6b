package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/oci"
)

// imageSource is an image to read: a file, a block device, an http or https URL, or standard input.
type imageSource struct {
	images.Input
	name    string       // without user and password
	changed func() error // an error when the image changed while it was read
	close   func() error
	words   *strings.Replacer // what advice about files on servers is called here
}

// atHand is advice about a file on a server, for one that is here.
var atHand = strings.NewReplacer(
	"check what the URL serves", "see where it comes from",
	"check the URL: the server answered with a message instead of an image", "give the file of a whole-disk image",
	"check the URL: it must lead to a whole-disk image", "give the file of a whole-disk image",
	"check that the image file on the server is complete", "check that the file is complete",
	// There is always a way to read a file's tables; these are of a pipe.
	"serve the image from a server that answers range requests, or convert it: qemu-img convert -O raw",
	"save it as a file and give that, instead of a pipe",
	"serve the qcow2 image as it is; its clusters may be packed: qemu-img convert -c",
	"save it as a file and give that, instead of a pipe",
	"serve the image from a server that answers range requests, or convert it: qemu-img convert -f vpc -O raw",
	"save it as a file and give that, instead of a pipe",
)

// inWords gives an error about an image the words of where the image is.
func (s *imageSource) inWords(err error) error {
	var refused *images.Error
	if s.words == nil || !errors.As(err, &refused) {
		return err
	}
	return &images.Error{Err: err, Remedy: s.words.Replace(refused.Remedy)}
}

// openSource opens an image that a command was given.
func (p *program) openSource(ctx context.Context, source string) (*imageSource, error) {
	if source == "-" {
		if f, ok := p.stdin.(*os.File); ok {
			info, err := f.Stat()
			if at, serr := f.Seek(0, io.SeekCurrent); err == nil && serr == nil && at == 0 && info.Mode().IsRegular() {
				return fileSource(f, "standard input") // of "< file"
			}
		}
		nothing := func() error { return nil }
		return &imageSource{Input: images.Input{Stream: p.stdin, Size: -1}, name: "standard input", changed: nothing,
			close: nothing, words: atHand}, nil
	}
	if isURL(source) {
		return openURL(ctx, source)
	}
	f, err := openImage(source)
	if err != nil {
		return nil, err
	}
	return fileSource(f, source)
}

func isURL(source string) bool {
	return strings.HasPrefix(source, "http://") || strings.HasPrefix(source, "https://")
}

// openImage opens a file. A URL of an unknown kind is not the name of one.
func openImage(source string) (*os.File, error) {
	f, err := os.Open(source)
	switch {
	case err == nil:
		return f, nil
	case oci.IsReference(source):
		return nil, advise(fmt.Errorf("%s is an image in a registry, which is published already", source),
			"Look at it with: ingot image verify %s", source)
	case urlLike.MatchString(source):
		return nil, usage("%s is neither a file nor an http or https URL", source)
	}
	return nil, err
}

func fileSource(f *os.File, name string) (*imageSource, error) {
	before, err := f.Stat()
	if err == nil && before.IsDir() {
		err = fmt.Errorf("%s is a folder", name)
	}
	var size int64
	if err == nil {
		size, err = f.Seek(0, io.SeekEnd) // a block device's size is nowhere else
	}
	if errors.Is(err, syscall.ESPIPE) {
		err = advise(fmt.Errorf("%s is a pipe", name), "Give - and let it be standard input.")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &imageSource{
		Input: images.Input{Stream: io.NewSectionReader(f, 0, size), Size: size, At: f,
			Again: func() (io.ReadCloser, error) {
				return io.NopCloser(io.NewSectionReader(f, 0, size)), nil
			}},
		name: name,
		changed: func() error {
			after, err := f.Stat()
			if err == nil && before.Mode().IsRegular() &&
				(after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime())) {
				err = fmt.Errorf("%s was changed while it was read", name)
			}
			return err
		},
		close: f.Close,
		words: atHand,
	}, nil
}

const (
	// silence is how long a server may send nothing.
	silence = time.Minute
	// attempts is how often in a row a download is taken up again without one new byte.
	attempts = 5
)

// remoteImage is a file on a web server.
type remoteImage struct {
	ctx    context.Context // of the command: the file is open no longer
	client *http.Client
	url    string
	name   string
	size   int64
	same   string // ETag or date that a range must be of; empty: there are no ranges
}

func openURL(ctx context.Context, source string) (*imageSource, error) {
	u, err := parseURL(source)
	if err != nil {
		return nil, err
	}
	tr := newTransport()
	r := remote(ctx, &http.Client{Transport: tr}, u)
	s, err := r.from(0)
	if err != nil {
		return nil, err
	}
	in := images.Input{Stream: s, Size: r.size, Again: func() (io.ReadCloser, error) { return r.from(0) }}
	if r.same != "" {
		in.At = r
	}
	return &imageSource{
		Input: in, name: r.name,
		changed: func() error { return nil }, // the stream reports it
		close:   func() error { tr.CloseIdleConnections(); return s.Close() },
	}, nil
}

func parseURL(source string) (*url.URL, error) {
	u, err := url.Parse(source)
	if err != nil {
		var bad *url.Error
		if errors.As(err, &bad) {
			err = bad.Err // the URL may have a password in it
		}
		return nil, usage("that is not a URL: %v", err)
	}
	return u, nil
}

func newTransport() *http.Transport {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.ResponseHeaderTimeout = silence
	tr.DisableCompression = true
	return tr
}

func remote(ctx context.Context, c *http.Client, u *url.URL) *remoteImage {
	name := *u
	name.User, name.RawQuery, name.Fragment = nil, "", ""
	return &remoteImage{ctx: ctx, client: c, url: u.String(), name: name.String(), size: -1}
}

// statusError is an answer that is not the file.
type statusError struct {
	code   int
	status string
}

func (e *statusError) Error() string { return "the server answers " + e.status }

// get asks for the file from off on, n bytes of it or to its end.
func (r *remoteImage) get(ctx context.Context, off, n int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		return nil, err
	}
	want := http.StatusOK
	if off > 0 || n >= 0 {
		want = http.StatusPartialContent
		to := ""
		if n >= 0 {
			to = fmt.Sprint(off + n - 1)
		}
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%s", off, to))
		req.Header.Set("If-Range", r.same)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // else the URL with its password is in the text
		}
		return nil, fmt.Errorf("fetch %s: %w", r.name, err)
	}
	switch {
	case resp.StatusCode == http.StatusOK && want == http.StatusPartialContent:
		resp.Body.Close()
		return nil, fmt.Errorf("fetch %s: the file on the server was changed meanwhile", r.name)
	case resp.StatusCode != want:
		resp.Body.Close()
		return nil, fmt.Errorf("fetch %s: %w", r.name, &statusError{resp.StatusCode, resp.Status})
	case want == http.StatusPartialContent &&
		!strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", off)):
		resp.Body.Close()
		return nil, fmt.Errorf("fetch %s: the server sends another range than it was asked for", r.name)
	}
	return resp, nil
}

// from opens the file at an offset.
func (r *remoteImage) from(off int64) (*remoteStream, error) {
	s := &remoteStream{r: r, off: off}
	ctx, cancel := context.WithCancel(r.ctx)
	s.ctx, s.cancel = ctx, cancel
	if err := s.connect(); err != nil {
		cancel()
		return nil, err
	}
	return s, nil
}

// ReadAt reads anywhere.
func (r *remoteImage) ReadAt(b []byte, off int64) (int, error) {
	short := false
	if off+int64(len(b)) > r.size {
		if off >= r.size {
			return 0, io.EOF
		}
		b, short = b[:r.size-off], true
	}
	ctx, cancel := context.WithTimeout(r.ctx, silence)
	defer cancel()
	resp, err := r.get(ctx, off, int64(len(b)))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.ReadFull(resp.Body, b)
	if err == nil && short {
		err = io.EOF
	}
	return n, err
}

// remoteStream reads to the end of the file, and takes a broken download up again.
type remoteStream struct {
	r      *remoteImage
	ctx    context.Context
	cancel context.CancelFunc
	off    int64
	body   io.ReadCloser
	guard  *time.Timer // ends a connection that is silent
	failed int
}

//nolint:contextcheck a stream lives in the context of its source, which it was made with
func (s *remoteStream) connect() error {
	ctx, cut := context.WithCancel(s.ctx)
	resp, err := s.r.get(ctx, s.off, -1)
	if err != nil {
		cut()
		return err
	}
	if s.off == 0 && s.r.size < 0 {
		s.r.size = resp.ContentLength
		if resp.Header.Get("Accept-Ranges") == "bytes" && resp.ContentLength >= 0 {
			if s.r.same = resp.Header.Get("ETag"); strings.HasPrefix(s.r.same, "W/") {
				s.r.same = ""
			}
			s.r.same = cmp.Or(s.r.same, resp.Header.Get("Last-Modified"))
		}
	}
	if s.off == 0 && resp.ContentLength != s.r.size {
		resp.Body.Close()
		cut()
		return fmt.Errorf("fetch %s: the file on the server was changed meanwhile", s.r.name)
	}
	s.body, s.guard = resp.Body, time.AfterFunc(silence, cut)
	return nil
}

func (s *remoteStream) Read(b []byte) (int, error) {
	for {
		if s.body == nil {
			if err := s.connect(); err != nil {
				if s.failed++; s.failed >= attempts || s.ctx.Err() != nil {
					return 0, err
				}
				select {
				case <-time.After(time.Second):
				case <-s.ctx.Done():
					return 0, context.Cause(s.ctx)
				}
				continue
			}
		}
		s.guard.Reset(silence)
		n, err := s.body.Read(b)
		s.guard.Stop()
		s.off += int64(n)
		if n > 0 {
			s.failed = 0
		}
		if err == io.EOF && s.r.size >= 0 && s.off < s.r.size {
			err = io.ErrUnexpectedEOF
		}
		if err == nil || err == io.EOF {
			return n, err
		}
		s.body.Close()
		s.body = nil
		if s.failed++; s.r.same == "" || s.failed >= attempts || s.ctx.Err() != nil {
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				err = fmt.Errorf("fetch %s, after %d bytes: %w", s.r.name, s.off, err)
			}
			return n, err
		}
		if n > 0 {
			return n, nil
		}
	}
}

// Close ends the download.
func (s *remoteStream) Close() error {
	s.cancel()
	if s.body != nil {
		s.guard.Stop()
		return s.body.Close()
	}
	return nil
}
