package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// Origin is one or more web servers that have the same files. It may be used by many goroutines at once.
type Origin struct {
	urls   []*url.URL
	client *http.Client
	log    *slog.Logger
	wait   Patience
	turn   atomic.Uint32
}

// NewOrigin takes the URLs of the same file, or folder, on each server. Paths are relative to them, as links in a page are: with
// http://a/x/disk.ingot, "objects/ab" is http://a/x/objects/ab and "" is the file itself. A query is kept.
func NewOrigin(urls []string, ca string, wait Patience, log *slog.Logger) (*Origin, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if len(urls) == 0 {
		return nil, step.Failf("set image_source in instance_info", "no URL is given")
	}
	o := &Origin{log: log, wait: wait}
	for _, raw := range urls {
		u, err := url.Parse(raw)
		if err != nil {
			// The error of url.Parse quotes the URL, which may have a password in it.
			return nil, step.Failf("correct image_source", "the image's URL can't be understood")
		}
		if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return nil, step.Failf("give image_source as an http or https URL", "the image's URL %s is not of a kind that can be fetched", Redact(u))
		}
		o.urls = append(o.urls, u)
	}
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: wait.Stall,
		DisableCompression:    true, // offsets must be those of the file
		ReadBufferSize:        64 << 10,
		MaxIdleConnsPerHost:   16,
		IdleConnTimeout:       90 * time.Second,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if ca != "" {
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(ca)) {
			return nil, step.Failf("correct image_ca", "image_ca holds no certificate in PEM form")
		}
	}
	o.client = &http.Client{Transport: t, CheckRedirect: checkRedirect}
	return o, nil
}

// Name is the first URL, redacted.
func (o *Origin) Name() string { return Redact(o.urls[0]) }

// Wrap lets requests pass through another RoundTripper, for servers that ask for a token. It must be called before anything is fetched.
func (o *Origin) Wrap(wrap func(http.RoundTripper) http.RoundTripper) {
	o.client.Transport = wrap(o.client.Transport)
}

// Close gives up idle connections.
func (o *Origin) Close() { o.client.CloseIdleConnections() }

func resolve(base *url.URL, path string) (*url.URL, error) {
	if path == "" {
		return base, nil
	}
	ref, err := url.Parse(path)
	if err != nil || ref.IsAbs() || ref.Host != "" {
		return nil, fmt.Errorf("%q is not a relative path", path)
	}
	u := base.ResolveReference(ref)
	if ref.RawQuery == "" {
		u.RawQuery = base.RawQuery // a signature for a whole folder
	}
	return u, nil
}

// Get fetches a small file of exactly size bytes into dst, which is made larger when it is too small, and gives dst's first size bytes.
// It waits and retries as patiently as File does, and asks all mirrors.
func (o *Origin) Get(ctx context.Context, path string, size int64, dst []byte) ([]byte, error) {
	return o.GetChecked(ctx, path, size, dst, nil)
}

// GetChecked is Get for a file that is known when it is seen: what check refuses is fetched again, from another mirror while there is one.
func (o *Origin) GetChecked(ctx context.Context, path string, size int64, dst []byte, check func([]byte) error) ([]byte, error) {
	if int64(cap(dst)) < size {
		dst = make([]byte, size)
	}
	return o.get(ctx, path, size, dst[:0:size], check)
}

// GetUpTo fetches a file whose size is not known beforehand, but at most limit.
func (o *Origin) GetUpTo(ctx context.Context, path string, limit int64) ([]byte, error) {
	return o.get(ctx, path, -1, make([]byte, 0, limit), nil)
}

func (o *Origin) get(ctx context.Context, path string, size int64, dst []byte, check func([]byte) error) ([]byte, error) {
	var last error
	start := int(o.turn.Add(1))
	for i := range o.urls {
		u, err := resolve(o.urls[(start+i)%len(o.urls)], path)
		if err != nil {
			return nil, err
		}
		got, err := o.getFrom(ctx, u, size, dst[:0])
		if err == nil && check != nil {
			err = check(got)
		}
		if err == nil {
			return got, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		last = err
	}
	return nil, last
}

func (o *Origin) getFrom(ctx context.Context, u *url.URL, size int64, dst []byte) ([]byte, error) {
	f := &File{URL: u, client: o.client, at: o, log: o.log, wait: o.wait, size: -1}
	defer f.close()
	for {
		n, err := 0, error(nil)
		if len(dst) < cap(dst) {
			n, err = f.Read(ctx, dst[len(dst):cap(dst)])
		} else {
			var more [1]byte
			if n, err = f.Read(ctx, more[:]); n > 0 {
				return nil, step.Failf("see what the server has at that URL", "fetch %s: longer than %d bytes", Redact(u), cap(dst))
			}
		}
		dst = dst[:len(dst)+n]
		switch {
		case errors.Is(err, ErrRestart):
			f.Rewind()
			dst = dst[:0]
		case err == io.EOF && size >= 0 && int64(len(dst)) != size:
			return nil, step.Failf("see what the server has at that URL", "fetch %s: %d bytes, not %d", Redact(u), len(dst), size)
		case err == io.EOF:
			return dst, nil
		case err != nil:
			return nil, err
		}
	}
}
