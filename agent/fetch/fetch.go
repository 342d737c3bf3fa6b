// Package fetch gets a file from a web server, whole and in order, over connections that may break.
//
// A break is mended by a Range request with If-Range when the server gave a strong ETag: then the bytes are those of the same file. Without
// one Read says ErrRestart: what was read is worth nothing, and after Rewind the file begins anew.
//
// Times are by lack of progress: a slow download may take for ever. Errors are step.Errors with a remedy, without user, password and query of
// the URL.
package fetch

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// patience is how long a source waits for what. Times are by lack of progress: a slow download may take for ever.
type Patience struct {
	Start    time.Duration // for the first answer
	Outage   time.Duration // without a new byte in the middle
	Stall    time.Duration // silence on an open connection
	First    time.Duration // between the first two attempts; doubles
	Longest  time.Duration // between two attempts
	Restarts int           // from byte zero
}

var DefaultPatience = Patience{
	Start: 20 * time.Second, Outage: 60 * time.Second, Stall: 30 * time.Second,
	First: 250 * time.Millisecond, Longest: 8 * time.Second, Restarts: 5,
}

const maxRedirects = 5

// ErrRestart says that what was read so far is worth nothing: the server can't go on from there, or has another file now.
var ErrRestart = errors.New("the download must start again from its beginning")

// File is a file at a URL, read once and in order.
type File struct {
	URL    *url.URL
	client *http.Client
	log    *slog.Logger
	wait   Patience
	at     *Origin

	body   io.ReadCloser
	cancel context.CancelCauseFunc
	etag   string // strong, or ""
	size   int64  // -1 when the server does not say
	off    int64  // of the next byte

	furthest int64     // highest off ever reached
	down     time.Time // since when no new byte has come; zero while they come
	retry    time.Duration
	resumes  int
	restarts int
}

// Source says where a file is.
type Source struct {
	URLs   []string // of the same file at several places; the first is preferred. user:password is for basic authentication
	CA     string   // certificates in PEM form that the servers' must be signed by; empty: those of the system
	Digest bool     // the file's digest will be compared in the end: so pieces from several mirrors may be put together
	Local  bool     // URLs may be paths and file:// too
	Limit  int64    // of the file's size; 0: none
}

// Open makes ready to fetch; nothing is asked of a server before Connect or Next.
func Open(src Source, wait Patience, log *slog.Logger) (*File, error) {
	o, err := NewOrigin(src.URLs, src.CA, wait, log)
	if err != nil {
		return nil, err
	}
	return &File{URL: o.urls[0], client: o.client, at: o, log: o.log, wait: wait, size: -1}, nil
}

// Stats says how the fetch went so far.
type Stats struct {
	Resumes  int
	Restarts int
	From     []Mirror
}

// Mirror is what one mirror gave.
type Mirror struct {
	URL   string // redacted
	Bytes int64
}

// Name is the file's first URL, redacted.
func (s *File) Name() string { return Redact(s.URL) }

// Path is the path of the file's first URL.
func (s *File) Path() string { return s.URL.Path }

// Size of the file in bytes, or -1 while nobody knows.
func (s *File) Size() int64 { return s.size }

// Stats says how the fetch went so far.
func (s *File) Stats() Stats { return Stats{Resumes: s.resumes, Restarts: s.restarts} }

// Next gives the next bytes of the file, a piece of at most 1 MiB, in memory that belongs to the caller until Free. The fetch goes on while no more than
// 16 MiB are waiting or not yet freed. io.EOF comes with no bytes.
func (s *File) Next(ctx context.Context) ([]byte, error) {
	b := make([]byte, 1<<20)
	n := 0
	for n < len(b) {
		m, err := s.Read(ctx, b[n:])
		n += m
		if err == io.EOF && n > 0 {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return b[:n], nil
}

// Free gives the memory of a piece back, the oldest first.
func (s *File) Free(piece []byte) {}

// Distrust tells that the bytes had a wrong digest, and asks whether another attempt can make sense: from another mirror, or without having
// put together what nobody could know to be one file. Then the file is to be read again after Rewind.
func (s *File) Distrust(got []byte) bool { return false }

// redirectError says why a redirect was not followed.
type redirectError string

func (e redirectError) Error() string { return string(e) }

func checkRedirect(req *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return redirectError(fmt.Sprintf("more than %d redirects", maxRedirects))
	case req.URL.Scheme != "http" && req.URL.Scheme != "https":
		return redirectError(fmt.Sprintf("redirected to scheme %q", req.URL.Scheme))
	case via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https":
		return redirectError("redirected from https to http")
	}
	return nil
}

// Redact is a URL without what may be secret: user, password, query.
func Redact(u *url.URL) string {
	v := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	return v.String()
}

func (s *File) close() {
	if s.body != nil {
		s.cancel(nil)
		s.body.Close()
		s.body = nil
	}
}

func (s *File) Close() {
	s.close()
	s.client.CloseIdleConnections()
}

// rewind makes the next Read begin at byte zero.
func (s *File) Rewind() {
	s.close()
	s.off, s.etag, s.size = 0, "", -1
}

// read reads on, mending what breaks.
func (s *File) Read(ctx context.Context, p []byte) (int, error) {
	for {
		if s.body == nil {
			if err := s.Connect(ctx); err != nil {
				return 0, err
			}
		}
		n, err := s.readBody(p)
		s.off += int64(n)
		if s.off > s.furthest {
			s.furthest, s.down, s.retry = s.off, time.Time{}, 0
		}
		switch {
		case n > 0:
			if err != nil && err != io.EOF {
				s.broken(err)
			}
			return n, nil
		case err == io.EOF && (s.size < 0 || s.off == s.size):
			return 0, io.EOF
		case err == nil:
			continue
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		s.broken(err)
	}
}

// broken notes that a connection was lost. What to do about it is decided when the next byte is asked for.
func (s *File) broken(err error) {
	s.close()
	if s.down.IsZero() {
		s.down = time.Now()
	}
	s.log.Warn("download interrupted", "url", Redact(s.URL), "bytes", s.off, "err", plain(err))
}

var errSilent = errors.New("no data for too long")

// readBody reads once. The clock for silence runs only while we wait for the server, not while the disk is slow.
func (s *File) readBody(p []byte) (int, error) {
	cancel := s.cancel
	var silent atomic.Bool
	timer := time.AfterFunc(s.wait.Stall, func() {
		silent.Store(true)
		cancel(errSilent)
	})
	defer timer.Stop()
	n, err := s.body.Read(p)
	if err != nil && silent.Load() {
		err = errSilent
	}
	return n, err
}

// connect asks for the file from s.off on, again and again for as long as there is hope.
func (s *File) Connect(ctx context.Context) error {
	limit := s.wait.Outage
	if s.furthest == 0 {
		limit = s.wait.Start
	}
	for {
		err := s.request(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var se *step.Error
		if errors.Is(err, ErrRestart) || errors.As(err, &se) && !se.Retryable {
			return err
		}
		if s.down.IsZero() {
			s.down = time.Now()
		}
		if down := time.Since(s.down); down+s.retry > limit {
			if s.furthest > 0 {
				return step.Retryable("check the image server and the network between it and the machine, then deploy again",
					fmt.Errorf("fetch %s: no new data for %s after %d bytes: %w", Redact(s.URL), down.Round(time.Second), s.furthest, err))
			}
			return err
		}
		s.retry = min(max(2*s.retry, s.wait.First), s.wait.Longest)
		s.log.Warn("download will be tried again", "url", Redact(s.URL), "bytes", s.off, "in", s.retry, "err", plain(err))
		t := time.NewTimer(s.retry)
		select {
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		case <-t.C:
		}
	}
}

// request makes one attempt. Errors that are not final are Retryable or plain.
func (s *File) request(ctx context.Context) error {
	if s.off > 0 && s.etag == "" {
		return s.restart("the server gives no strong ETag, so nobody knows whether the file is still the same")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL.String(), nil)
	if err != nil {
		cancel(nil)
		return step.Failf("correct image_source", "fetch %s: %s", Redact(s.URL), plain(err))
	}
	req.Header.Set("User-Agent", "ingot-agent")
	req.Header.Set("Accept-Encoding", "identity")
	if s.off > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", s.off))
		req.Header.Set("If-Range", s.etag)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		cancel(nil)
		return s.unreachable(err)
	}
	if err := s.accept(resp); err != nil {
		cancel(nil)
		resp.Body.Close()
		return err
	}
	if s.off > 0 {
		s.resumes++
		s.log.Info("download resumed", "url", Redact(s.URL), "bytes", s.off)
	}
	s.body, s.cancel = resp.Body, cancel
	return nil
}

func (s *File) accept(resp *http.Response) error {
	where := Redact(s.URL)
	if enc := resp.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return step.Failf("make the server send the file as it is", "fetch %s: the server sends it with content encoding %q, which nobody asked for", where, enc)
	}
	etag := resp.Header.Get("ETag")
	if !strings.HasPrefix(etag, `"`) { // weak or none
		etag = ""
	}
	switch {
	case s.off == 0 && resp.StatusCode == http.StatusOK:
		s.etag, s.size = etag, resp.ContentLength
		return nil
	case resp.StatusCode == http.StatusPartialContent:
		first, total, ok := contentRange(resp.Header.Get("Content-Range"))
		if s.off > 0 && ok && first == s.off && (total < 0 || s.size < 0 || total == s.size) && (etag == "" || etag == s.etag) {
			return nil
		}
		return s.restart("the server sent another part of the file than was asked for")
	case s.off > 0 && resp.StatusCode == http.StatusOK:
		if etag != s.etag {
			return s.restart("the file on the server has changed")
		}
		// The same file, from a server without ranges: what is known already flows by.
		if _, err := io.CopyN(io.Discard, resp.Body, s.off); err != nil {
			return fmt.Errorf("fetch %s: skip to byte %d: %w", where, s.off, plain(err))
		}
		return nil
	case s.off > 0 && (resp.StatusCode == http.StatusRequestedRangeNotSatisfiable || resp.StatusCode == http.StatusPreconditionFailed):
		return s.restart("the file on the server has changed")
	}
	return statusError(resp.StatusCode, where)
}

// restart gives up what was read, a few times.
func (s *File) restart(why string) error {
	if s.restarts++; s.restarts > s.wait.Restarts {
		return step.Retryable("see whether the image file is being replaced on the server all the time; let the server send a strong ETag",
			fmt.Errorf("fetch %s: started again %d times: %s", Redact(s.URL), s.wait.Restarts, why))
	}
	s.log.Warn("download starts again from its beginning", "url", Redact(s.URL), "bytes", s.off, "why", why)
	return ErrRestart
}

func contentRange(h string) (first, total int64, ok bool) {
	rest, ok := strings.CutPrefix(h, "bytes ")
	if !ok {
		return 0, 0, false
	}
	span, all, ok := strings.Cut(rest, "/")
	if !ok {
		return 0, 0, false
	}
	from, _, ok := strings.Cut(span, "-")
	if !ok {
		return 0, 0, false
	}
	first, err := strconv.ParseInt(from, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	total = -1
	if all != "*" {
		if total, err = strconv.ParseInt(all, 10, 64); err != nil {
			return 0, 0, false
		}
	}
	return first, total, true
}

func statusError(code int, where string) error {
	err := fmt.Errorf("fetch %s: the server answered %d %s", where, code, http.StatusText(code))
	switch {
	case code == http.StatusNotFound || code == http.StatusGone:
		return step.Fail("correct image_source, or put the image file there", err)
	case code == http.StatusUnauthorized || code == http.StatusForbidden || code == http.StatusProxyAuthRequired:
		return step.Fail("allow the machine to read the image, or give user and password in image_source", err)
	case code >= 500 || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout:
		return step.Retryable("see the image server's log", err)
	}
	return step.Fail("see the image server's log", err)
}

// unreachable says why there was no answer at all, without the URL that net/http puts into its errors.
func (s *File) unreachable(err error) error {
	err = plain(err)
	remedy := "check that the image server runs and that the provisioning network leads to it"
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var redirect redirectError
	switch {
	case errors.As(err, &dns):
		remedy = "check the host name in image_source and the DNS server of the provisioning network"
	case errors.As(err, &unknown):
		return step.Failf("give the certificate of its authority in image_ca", "fetch %s: the server's certificate is signed by an unknown authority", Redact(s.URL))
	case errors.As(err, &host), errors.As(err, &invalid):
		return step.Fail("correct the server's certificate, or the host name in image_source", fmt.Errorf("fetch %s: %w", Redact(s.URL), err))
	case errors.Is(err, syscall.ECONNREFUSED):
		remedy = "start the image server, or correct host and port in image_source"
	case errors.As(err, &redirect):
		return step.Fail("correct image_source: it redirects too often, or to where it must not", fmt.Errorf("fetch %s: %w", Redact(s.URL), err))
	}
	return step.Retryable(remedy, fmt.Errorf("fetch %s: not reachable: %w", Redact(s.URL), err))
}

// plain takes the URL out of an error of net/http.
func plain(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}
