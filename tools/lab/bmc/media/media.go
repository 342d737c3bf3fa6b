// Package media reads the image of a virtual medium as a controller does: by HTTP or HTTPS, a range at a time, while
// the machine reads the drive.
//
// A File keeps the blocks read last, at most 16 MiB, and reads ahead while the machine reads on in order: a loader that
// asks for one sector after the other makes few requests, the largest for 1 MiB. There is one request at a time. A
// server that goes away is asked again until Options.Patience is over; then the read fails, and the machine sees an
// error of its drive. What the server can't mend by itself, such as a certificate that is not trusted or an image that
// has changed, fails at once.
package media

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// Sizes in bytes.
const (
	Sector      = 2048 // of a disc
	block       = 128 << 10
	mostBlocks  = 128 // that are kept
	mostAhead   = 8   // blocks of one request
	largest     = 64 << 30
	largestHead = 64 << 10
)

// Times.
const (
	patience   = 30 * time.Second
	answerTime = 10 * time.Second // until an answer begins
	wholeTime  = 30 * time.Second // of one request
	firstPause = 100 * time.Millisecond
	mostPause  = 2 * time.Second
	redirects  = 3
)

// Options are how images are read. The zero value checks no certificate.
type Options struct {
	// User and Password are sent to the server; "" sends nothing.
	User, Password string
	// Roots are who may sign the server's certificate; nil checks none.
	Roots *x509.CertPool
	// Dial connects to the server; nil is net.Dialer's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Patience is how long a read asks a server again that is away; 0 is 30 seconds.
	Patience time.Duration
}

// Why an image can't be read, besides connections that fail. Errors of Open are one of these or name the connection.
var (
	ErrAddress = errors.New("it is no address of HTTP or HTTPS")
	ErrDenied  = errors.New("the server denies access")
	ErrMissing = errors.New("the server has no such file")
	ErrFormat  = errors.New("the server gives no ranges of a file")
)

var (
	errChanged = errors.New("the image has changed")
	errClosed  = errors.New("the medium is out")
)

// Stats count what was read.
type Stats struct {
	// Requests are those that the server got, the failed ones too; Fetched is the bytes that they brought, Read the
	// bytes that the machine asked for.
	Requests, Fetched, Read int64
}

// File is an image. It may be read from several goroutines.
type File struct {
	url    string
	o      Options
	client *http.Client
	ctx    context.Context
	cancel context.CancelCauseFunc
	size   int64
	mark   string // of the image's version

	reading sync.Mutex // one request at a time; guards what follows
	blocks  map[int64]*kept
	turn    int64 // counts uses of blocks
	next    int64 // block after those of the last request
	ahead   int64 // blocks of the next request, if it goes on there

	counting sync.Mutex
	stats    Stats
}

// kept is a block in memory.
type kept struct {
	data []byte
	used int64
}

// Open reads the first bytes of an image. It makes one attempt, since who inserts a medium waits for it.
func Open(ctx context.Context, address string, o Options) (*File, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, ErrAddress // url.Parse's error has the address, which may have a password
	}
	o.Patience = cmp.Or(o.Patience, patience)
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	transport := &http.Transport{DialContext: dial, DisableCompression: true, ResponseHeaderTimeout: answerTime,
		TLSHandshakeTimeout: answerTime, MaxResponseHeaderBytes: largestHead, MaxIdleConnsPerHost: 1,
		IdleConnTimeout: time.Minute,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Roots,
			InsecureSkipVerify: o.Roots == nil}}
	f := &File{url: address, o: o, blocks: map[int64]*kept{}, ahead: 1, size: -1}
	f.client = &http.Client{Transport: transport, Timeout: wholeTime, CheckRedirect: follow}
	f.ctx, f.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { f.cancel(context.Cause(ctx)) })
	data, err := f.request(0, block)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	f.keep(0, data)
	f.next = 1
	return f, nil
}

// follow declines a way that leaves TLS, or has no end.
func follow(r *http.Request, via []*http.Request) error {
	if len(via) > redirects || via[len(via)-1].URL.Scheme == "https" && r.URL.Scheme != "https" {
		return http.ErrUseLastResponse
	}
	return nil
}

// Size is that of the disc: the file's, filled up to a whole sector with zeros.
func (f *File) Size() int64 { return (f.size + Sector - 1) / Sector * Sector }

// Stats returns what was read so far.
func (f *File) Stats() Stats {
	f.counting.Lock()
	defer f.counting.Unlock()
	return f.stats
}

func (f *File) count(c Stats) {
	f.counting.Lock()
	defer f.counting.Unlock()
	f.stats.Requests += c.Requests
	f.stats.Fetched += c.Fetched
	f.stats.Read += c.Read
}

// Close ends reads that are under way, and all later ones, with an error.
func (f *File) Close() error {
	f.cancel(errClosed)
	f.client.CloseIdleConnections()
	return nil
}

// ReadAt reads from the disc. Its error says that the server did not give the bytes.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.New("read a medium at a negative offset")
	}
	f.reading.Lock()
	defer f.reading.Unlock()
	n := 0
	for n < len(p) && off+int64(n) < f.Size() {
		at := off + int64(n)
		if at >= f.size { // filled up
			end := min(int64(len(p)-n), f.Size()-at)
			clear(p[n : n+int(end)])
			n += int(end)
			continue
		}
		data, err := f.block(at/block, (off+int64(len(p))-1)/block)
		if err != nil {
			return n, fmt.Errorf("read the medium at byte %d: %w", at, err)
		}
		n += copy(p[n:], data[at%block:])
	}
	f.count(Stats{Read: int64(n)})
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// block returns a block, from memory or from the server; last is the last one that the reader wants.
func (f *File) block(i, last int64) ([]byte, error) {
	if context.Cause(f.ctx) != nil {
		return nil, context.Cause(f.ctx)
	}
	f.turn++
	if k := f.blocks[i]; k != nil {
		k.used = f.turn
		return k.data, nil
	}
	if i == f.next {
		f.ahead = min(2*f.ahead, mostAhead)
	} else {
		f.ahead = 1
	}
	n := int64(1)
	for most := min(max(f.ahead, last-i+1), mostAhead); n < most && f.blocks[i+n] == nil; n++ {
	}
	data, err := f.patiently(i*block, min(n*block, f.size-i*block))
	if err != nil {
		return nil, err
	}
	f.next = i + n
	for j := int64(0); j < n && j*block < int64(len(data)); j++ {
		f.keep(i+j, data[j*block:min((j+1)*block, int64(len(data)))])
	}
	return f.blocks[i].data, nil
}

// keep takes a block into memory, and drops the one that was not used for longest.
func (f *File) keep(i int64, data []byte) {
	if len(f.blocks) >= mostBlocks {
		oldest := int64(-1)
		for j, k := range f.blocks {
			if oldest < 0 || k.used < f.blocks[oldest].used {
				oldest = j
			}
		}
		delete(f.blocks, oldest)
	}
	// A copy, so that a block does not hold the memory of all that came with it.
	f.blocks[i] = &kept{append([]byte(nil), data...), f.turn}
}

// patiently asks the server for bytes until it gives them, or is away for too long.
func (f *File) patiently(off, n int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(f.ctx, f.o.Patience)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		data, err := f.request(off, n)
		if err == nil || final(err) {
			return data, err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			if context.Cause(f.ctx) != nil {
				return nil, context.Cause(f.ctx)
			}
			return nil, fmt.Errorf("after %s: %w", f.o.Patience, err)
		}
	}
}

// final reports whether it makes no sense to ask again.
func final(err error) bool {
	var untrusted *tls.CertificateVerificationError
	for _, e := range []error{ErrDenied, ErrMissing, ErrFormat, errChanged, errClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return errors.As(err, &untrusted)
}

// request asks once for n bytes from off on, and for fewer where the file ends. The first one learns the file's size.
func (f *File) request(off, n int64) (_ []byte, err error) {
	defer func() {
		if cause := context.Cause(f.ctx); err != nil && cause != nil {
			err = cause
		}
	}()
	r, err := http.NewRequestWithContext(f.ctx, http.MethodGet, f.url, nil)
	if err != nil {
		return nil, ErrAddress
	}
	r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+n-1))
	r.Header.Set("User-Agent", "Ingot-Lab-BMC")
	if f.o.User != "" || f.o.Password != "" {
		r.SetBasicAuth(f.o.User, f.o.Password)
	}
	f.count(Stats{Requests: 1})
	resp, err := f.client.Do(r)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the address, which may have a password
		}
		return nil, err
	}
	defer resp.Body.Close()
	var first, last, size int64
	switch _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &size); {
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return nil, ErrDenied
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusGone:
		return nil, ErrMissing
	case resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests:
		return nil, fmt.Errorf("the server answers %d", resp.StatusCode)
	case resp.StatusCode != http.StatusPartialContent || err != nil || first != off || size < 1 || size > largest ||
		last != min(off+n, size)-1:
		return nil, ErrFormat
	}
	mark := cmp.Or(resp.Header.Get("ETag"), resp.Header.Get("Last-Modified"))
	if f.size < 0 {
		f.size, f.mark = size, mark
	}
	if size != f.size || mark != f.mark {
		return nil, errChanged
	}
	data := make([]byte, last-first+1)
	read, err := io.ReadFull(resp.Body, data)
	f.count(Stats{Fetched: int64(read)})
	if err != nil {
		return nil, fmt.Errorf("the server ends after %d of %d bytes: %w", read, len(data), err)
	}
	return data, nil
}
