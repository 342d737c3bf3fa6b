// Package fetch downloads files from web servers over unreliable connections, and from servers that may be slow, wrong
// or hostile.
//
// File is one large file, read in order. It may be on several mirrors; a broken transfer is continued where it broke,
// on the same mirror or another:
//
//   - on the same mirror by a Range request with If-Range, if that sent a strong ETag: then the bytes are of the same
//     file;
//   - on any mirror, if a digest of the whole will be compared (Source.Digest) and the sizes agree: the digest detects
//     pieces that do not belong together, and Distrust then fetches the file from one mirror alone;
//   - else not: Next returns ErrRestart, the data read so far is invalid, and after Rewind the file starts again.
//
// It starts with one plain GET. While the reader waits for the network, another connection is tried, with ranges ahead
// of the first, and kept if that is faster: a flow through a long or shared path often gets only a part of the path's
// capacity. Pieces of 1 MiB that came early wait in a window of 2 to 64 MiB (Widen), which is also the memory limit of
// a fetch. On a fast link there is one connection.
//
// Origin is for many small files below one or several URLs: each is fetched from the mirror with the least load
// relative to its speed.
//
// Timeouts are for lack of progress: a slow download may take forever, unless another mirror could be faster. Nothing
// is read past the size that a server announced. HTTP/1.1 only: with HTTP/2 all connections would share one flow.
// Errors are step.Errors with a remedy, without user, password and query of the URL.
package fetch

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// Patience holds timeouts. They are for lack of progress: a slow download may take forever.
type Patience struct {
	Start  time.Duration // for the first response
	Outage time.Duration // without a new byte during the transfer
	Stall  time.Duration // silence on an open connection
	// bytes per second, on average over Stall: a lower rate counts as silence if another mirror may be faster; 0: no
	// minimum
	Slow     int64
	First    time.Duration // between the first two attempts; doubles
	Longest  time.Duration // between two attempts
	Restarts int           // from byte zero
}

// DefaultPatience is write_image's. A step's own limit without progress must be longer.
var DefaultPatience = Patience{
	Start: 20 * time.Second, Outage: 60 * time.Second, Stall: 30 * time.Second, Slow: 64 << 10,
	First: 250 * time.Millisecond, Longest: 8 * time.Second, Restarts: 5,
}

// ErrRestart says that the data read so far is invalid: no mirror can continue the transfer, or the file has changed.
var ErrRestart = errors.New("the download must start again from its beginning")

// ErrTooLong says that a file is longer than the caller accepts.
var ErrTooLong = errors.New("the file is too long")

var (
	errSilent   = errors.New("no data for too long")
	errSlow     = errors.New("much slower than another connection may be")
	errNoRanges = errors.New("the server does not send parts of files")
)

const maxRedirects = 5

// redirectError is the reason why a redirect was not followed.
type redirectError string

func (e redirectError) Error() string { return string(e) }

func checkRedirect(req *http.Request, via []*http.Request) error {
	req.Header.Del("Referer") // contains the query, which may be a signature
	last := via[len(via)-1].URL
	switch {
	case len(via) > maxRedirects:
		return redirectError(fmt.Sprintf("more than %d redirects", maxRedirects))
	case req.URL.Scheme != "http" && req.URL.Scheme != "https":
		return redirectError(fmt.Sprintf("redirected to scheme %q", req.URL.Scheme))
	case last.Scheme == "https" && req.URL.Scheme != "https":
		return redirectError("redirected from https to http")
	}
	// net/http sends a password to other ports and to subdomains too.
	if first := via[0].URL; req.URL.Host != first.Host &&
		!(req.URL.Hostname() == first.Hostname() && first.Port() == "" && req.URL.Port() == "") {
		req.Header.Del("Authorization")
	}
	return nil
}

// Redact returns a URL without possible secrets: user, password, query.
func Redact(u *url.URL) string {
	v := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	return v.String()
}

func (o *Origin) statusError(code int, where string) error {
	err := fmt.Errorf("fetch %s: the server answered %d %s", where, code, http.StatusText(code))
	switch {
	case code == http.StatusNotFound || code == http.StatusGone:
		return step.Fail("correct "+o.arg+", or put the "+o.thing+" there", err)
	case code == http.StatusUnauthorized || code == http.StatusForbidden || code == http.StatusProxyAuthRequired:
		return step.Fail("allow the machine to read the "+o.thing+", or give user and password in "+o.arg, err)
	case code >= 500 || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout:
		return step.Retryable("see the log of the "+o.thing+"'s server", err)
	}
	return step.Fail("see the log of the "+o.thing+"'s server", err)
}

// unreachable returns the error of a request without a response, without net/http's URL.
func (o *Origin) unreachable(err error, where string) error {
	err = plain(err)
	remedy := "check that the " + o.thing + "'s server runs and that the provisioning network leads to it"
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var redirect redirectError
	switch {
	case errors.As(err, &dns):
		remedy = "check the host name in " + o.arg + " and the DNS server of the provisioning network"
	case errors.As(err, &unknown):
		return step.Failf("give the certificate of its authority in image_ca",
			"fetch %s: the server's certificate is signed by an unknown authority", where)
	case errors.As(err, &host), errors.As(err, &invalid):
		return step.Fail("correct the server's certificate, or the host name in "+o.arg,
			fmt.Errorf("fetch %s: %w", where, err))
	case errors.Is(err, syscall.ECONNREFUSED):
		remedy = "start the " + o.thing + "'s server, or correct host and port in " + o.arg
	case errors.As(err, &redirect):
		return step.Fail("correct "+o.arg+": it redirects too often, or to where it must not",
			fmt.Errorf("fetch %s: %w", where, err))
	}
	return step.Retryable(remedy, fmt.Errorf("fetch %s: not reachable: %w", where, err))
}

// plain removes URLs from an error of net/http.
func plain(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	if err != nil && strings.Contains(err.Error(), "Location header") { // quotes the URL
		return redirectError("redirected to an invalid URL")
	}
	return err
}

// final reports whether a retry is pointless.
func final(err error) bool {
	var se *step.Error
	return errors.As(err, &se) && !se.Retryable
}
