// Package imagecheck looks at images on web servers for users who are about to deploy them.
//
// It reads an image's beginning and its tables, as images/inspect does, and no more of it than limits allow. The
// address is a user's: what it leads to is decided by the guard of the transport (conductor/guard/dial), also after
// redirects, and an error says what the conductor saw there. So who may not know the insides of the site is told only
// that it could not be read.
package imagecheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/inspect"
)

// Errors of a look at an image that was not taken, or not to its end.
var (
	ErrBusy     = errors.New("too many images are looked at: try again in a moment")
	ErrScheme   = errors.New("only images at http and https addresses can be looked at from here; those in registries with ingot image verify")
	errTooMuch  = fmt.Errorf("more than %d MiB would have to be read to say what it is: use ingot image inspect", limit.ImageCheckBytes>>20)
	errTooLong  = fmt.Errorf("it could not be read within %v: use ingot image inspect", limit.ImageCheckTime)
	errChanged  = errors.New("the file on the server changes while it is read")
	errRedirect = errors.New("the address leads from one to the next too often, or to one that is not of http")
)

// Checker looks at images. Safe for concurrent use.
type Checker struct {
	client *http.Client
	places chan struct{}
}

// New makes a Checker whose requests go through a transport.
func New(through http.RoundTripper) *Checker {
	return &Checker{places: make(chan struct{}, limit.ImageChecks), client: &http.Client{Transport: through,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > 5 || !web(r.URL) || via[0].URL.Scheme == "https" && r.URL.Scheme != "https" {
				return errRedirect
			}
			return nil
		}}}
}

func web(u *url.URL) bool { return (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" }

// Check says what an image is, or why that could not be found out.
func (c *Checker) Check(ctx context.Context, address string) (*inspect.Report, error) {
	u, err := url.Parse(address)
	if err != nil || !web(u) {
		return nil, ErrScheme // the parser's error may have a password in it
	}
	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
	default:
		return nil, ErrBusy
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit.ImageCheckTime, errTooLong)
	defer cancel()
	f := &file{ctx: ctx, client: c.client, url: u.String(), left: limit.ImageCheckBytes}
	body, err := f.open()
	if err != nil {
		return nil, f.cause(err)
	}
	defer body.Close()
	in := images.Input{Stream: body, Size: f.size, Again: f.open}
	if f.same != "" {
		in.At = f
	}
	report, err := inspect.Inspect(ctx, in, inspect.Options{Quick: true})
	if err != nil {
		return nil, f.cause(err)
	}
	return report, nil
}

// file is a file on a web server.
type file struct {
	ctx    context.Context //nolint:containedctx io.ReaderAt has no context
	client *http.Client
	url    string
	size   int64
	same   string // ETag or date that a range must be of; "": there are no ranges

	mu   sync.Mutex
	left int64 // bytes that may be read
}

// cause is the error that a person can do something about.
func (f *file) cause(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.left <= 0:
		return errTooMuch
	case f.ctx.Err() != nil:
		return context.Cause(f.ctx)
	}
	return err
}

// get asks for the file, or for a part of it.
func (f *file) get(span string, want int) (*http.Response, error) {
	r, err := http.NewRequestWithContext(f.ctx, http.MethodGet, f.url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept-Encoding", "identity")
	r.Header.Set("User-Agent", "ingotd")
	if span != "" {
		r.Header.Set("Range", span)
		r.Header.Set("If-Range", f.same)
	}
	resp, err := f.client.Do(r)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // else the URL with its password is in the text
		}
		return nil, err
	}
	if resp.StatusCode != want {
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return nil, errChanged
		}
		return nil, fmt.Errorf("the server answers %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	return resp, nil
}

// open reads the file from its beginning.
func (f *file) open() (io.ReadCloser, error) {
	resp, err := f.get("", http.StatusOK) //nolint:bodyclose the reader of the file closes it
	if err != nil {
		return nil, err
	}
	f.size = resp.ContentLength
	if resp.Header.Get("Accept-Ranges") == "bytes" && f.size >= 0 {
		tag := resp.Header.Get("ETag")
		if strings.HasPrefix(tag, "W/") {
			tag = ""
		}
		f.same = cmp.Or(tag, resp.Header.Get("Last-Modified"))
	}
	return &body{resp.Body, f}, nil
}

// ReadAt implements io.ReaderAt.
func (f *file) ReadAt(b []byte, off int64) (int, error) {
	n := min(int64(len(b)), f.size-off)
	if n <= 0 {
		return 0, io.EOF
	}
	resp, err := f.get(fmt.Sprintf("bytes=%d-%d", off, off+n-1), http.StatusPartialContent)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", off)) {
		return 0, errChanged
	}
	got, err := io.ReadFull(&body{resp.Body, f}, b[:n])
	if err == nil && got < len(b) {
		err = io.EOF
	}
	return got, err
}

// body is a part of the file that counts what is read of it.
type body struct {
	io.ReadCloser
	f *file
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.f.mu.Lock()
	left := b.f.left
	b.f.mu.Unlock()
	if left <= 0 {
		return 0, errTooMuch
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), left)])
	b.f.mu.Lock()
	b.f.left -= int64(n)
	b.f.mu.Unlock()
	return n, err
}
