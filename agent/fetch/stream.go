package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// lately is how long a connection may be much slower than another mirror's.
const lately = 5 * time.Second

// stream reads a part of a file in order, over one connection at a time, and reconnects after errors. It is for one
// goroutine, except for kick.
type stream struct {
	ctx  context.Context
	o    *Origin
	k    *known
	path string
	off  int64 // of the next byte
	end  int64 // -1: the end of the file

	// loose: the bytes are tables that will be compared with the hashed stream, so they may come from any mirror.
	loose bool
	// parts: servers without ranges can't be used.
	parts bool
	// hasty, unless nil, reports whether to give up at once instead of waiting, because other flows can do the work.
	hasty func() bool

	m        *mirror
	body     io.ReadCloser
	skip     int64         // bytes of the body before off
	left     int64         // wanted bytes of the body; -1: all
	got      int64         // bytes of this connection
	fresh    int64         // of these, wanted bytes
	waited   time.Duration // for them
	winGot   int64         // the same since the last check for slowness
	winWait  time.Duration
	lateGot  int64 // and since the last comparison with others
	lateWait time.Duration
	down     time.Time // time of the last new byte; zero while bytes arrive
	// until when this stream avoids a mirror that refused it; other streams may use it
	rest    map[*mirror]time.Time
	silence *time.Timer
	silent  atomic.Bool

	mu     sync.Mutex
	cancel context.CancelCauseFunc // of the connection
	kicked bool
	rate   float64   // recent, of this connection; 0: unknown so far
	begun  time.Time // start of the read that waits for the server; zero: none
	some   int64     // bytes since rate was measured
	spent  time.Duration
}

func newStream(ctx context.Context, o *Origin, k *known, path string, off, end int64) *stream {
	return &stream{ctx: ctx, o: o, k: k, path: path, off: off, end: end}
}

// close ends the connection, if there is one.
func (s *stream) close() {
	if s.body == nil {
		return
	}
	if s.got > 0 {
		s.o.measured(s.m, s.got, s.waited, s.fresh >= goodEnough)
	}
	s.mu.Lock()
	s.cancel(nil)
	s.cancel, s.kicked, s.rate, s.some, s.spent = nil, false, 0, 0, 0
	s.mu.Unlock()
	s.body.Close()
	s.body = nil
	s.o.leave(s.m)
}

// kick ends the connection because another could be faster. Any goroutine may call it.
func (s *stream) kick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.kicked = true
		s.cancel(errSlow)
	}
}

// speed returns the recent rate of the present connection, silence included; 0: unknown.
func (s *stream) speed() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun.IsZero() {
		if spent := s.spent + time.Since(s.begun); spent > time.Second && s.cancel != nil {
			return max(1, float64(s.some)/spent.Seconds())
		}
	}
	return s.rate
}

// over reports whether everything has been read.
func (s *stream) over() bool {
	end := s.end
	if end < 0 {
		s.k.mu.Lock()
		end = s.k.size
		s.k.mu.Unlock()
	}
	return end >= 0 && s.off >= end
}

// read reads the next bytes, reconnecting after errors. io.EOF comes at the end of the part.
func (s *stream) read(p []byte) (int, error) {
	for {
		if s.body == nil {
			if s.over() && (s.off > 0 || s.end >= 0) { // an empty file must still exist
				return 0, io.EOF
			}
			if err := s.connect(); err != nil {
				return 0, err
			}
		}
		n, err := s.readBody(p)
		done := false
		if s.skip > 0 {
			s.skip -= int64(n)
			n = 0
		} else {
			if s.left >= 0 {
				s.left -= int64(n)
				done = s.left == 0
			}
			if n > 0 {
				if !s.loose {
					s.k.came(s.m, s.off, int64(n))
				}
				s.off += int64(n)
				s.fresh += int64(n)
				s.down = time.Time{}
			}
		}
		if err == io.EOF && s.skip == 0 && s.left < 0 {
			s.learn()
		}
		switch {
		case s.k.limit > 0 && s.off > s.k.limit:
			s.close()
			return 0, step.Failf("check the file at that URL", "fetch %s: %w: longer than %d bytes", s.m.name,
				ErrTooLong, s.k.limit)
		case err == nil && !done:
		case done || err == io.EOF && s.skip == 0 && s.over():
			s.o.worked(s.m)
			s.close()
			if n == 0 && s.over() {
				return 0, io.EOF
			}
		default:
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			s.broken(err)
		}
		if n > 0 {
			return n, nil
		}
		if s.ctx.Err() != nil {
			return 0, context.Cause(s.ctx)
		}
	}
}

// learn records that the file ends here, if its size was unknown.
func (s *stream) learn() {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	if s.k.size < 0 {
		s.k.size = s.off
	}
}

// broken records a lost connection. The next read decides what to do.
func (s *stream) broken(err error) {
	if s.ctx.Err() != nil {
		s.close()
		return
	}
	if s.down.IsZero() {
		s.down = time.Now()
	}
	err = plain(err)
	m, fresh := s.m, s.fresh
	s.close()
	if fresh < goodEnough || errors.Is(err, errSilent) || errors.Is(err, errSlow) {
		s.failed(m, step.Retryable("check the image server and the network between it and the machine",
			fmt.Errorf("fetch %s: %w", m.name, err)), 0)
	}
	s.o.log.Warn("download interrupted", "url", m.name, "bytes", s.off, "err", err)
}

// readBody reads once. The timeout for silence counts only the wait for the server, not a slow disk.
func (s *stream) readBody(p []byte) (int, error) {
	switch {
	case s.skip > 0:
		p = p[:min(int64(len(p)), s.skip)]
	case s.left >= 0:
		p = p[:min(int64(len(p)), s.left)]
	}
	if s.silence == nil {
		s.silence = time.AfterFunc(s.o.wait.Stall, s.tooSilent)
	} else {
		s.silence.Reset(s.o.wait.Stall)
	}
	began := time.Now()
	s.mu.Lock()
	s.begun = began
	s.mu.Unlock()
	n, err := s.body.Read(p)
	took := time.Since(began)
	s.silence.Stop()
	s.got += int64(n)
	s.waited += took
	s.winGot += int64(n)
	s.winWait += took
	s.lateGot += int64(n)
	s.lateWait += took
	s.mu.Lock()
	s.begun = time.Time{}
	s.some += int64(n)
	if s.spent += took; s.some >= pieceSize || s.spent > time.Second {
		s.rate = float64(s.some) / max(s.spent.Seconds(), 1e-6)
		s.some, s.spent = 0, 0
	}
	kicked := s.kicked
	s.mu.Unlock()
	switch {
	case err != nil && err != io.EOF && s.silent.Swap(false):
		err = errSilent
	case err != nil && err != io.EOF && kicked:
		err = errSlow
	case err == nil && s.lateWait >= lately:
		if s.o.faster(float64(s.lateGot)/s.lateWait.Seconds(), 4, true, s.another) {
			err = errSlow
		}
		s.lateGot, s.lateWait = 0, 0
	case err == nil && s.winWait >= s.o.wait.Stall:
		if rate := float64(s.winGot) / s.winWait.Seconds(); rate < float64(s.o.wait.Slow) &&
			s.o.faster(rate, 2, false, s.another) {
			err = errSlow
		}
		s.winGot, s.winWait = 0, 0
	}
	return n, err
}

// failed records a failed attempt, and how long the mirror asked to be left alone.
func (s *stream) failed(m *mirror, err error, asked time.Duration) {
	if s.rest == nil {
		s.rest = map[*mirror]time.Time{}
	}
	s.rest[m] = s.o.failed(m, err, asked, s.others())
}

// others reports whether other flows do the work, so that giving up at once is better than waiting.
func (s *stream) others() bool { return s.hasty != nil && s.hasty() }

// another reports whether a mirror may take over. The Origin's lock is held.
func (s *stream) another(m *mirror) bool { return m != s.m && s.may(m) && !s.rest[m].After(time.Now()) }

func (s *stream) tooSilent() {
	s.silent.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel(errSilent)
	}
}

// connect requests the file from off on, and retries as long as it may succeed.
func (s *stream) connect() error {
	for {
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		m, wait := s.o.pick(s.may, s.rest)
		if m == nil {
			return s.noMirror()
		}
		if wait > 0 {
			if err := s.pause(m, wait); err != nil {
				return err
			}
			continue
		}
		asked, err := s.request(m)
		if err == nil {
			return nil
		}
		s.o.leave(m)
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		switch {
		case errors.Is(err, ErrRestart):
			return err
		case errors.Is(err, errNoRanges): // the mirror is used without ranges, or not at all
		case final(err):
			if len(s.o.mirrors) > 1 {
				s.o.log.Warn("a mirror can't be used", "url", m.name, "err", err)
			}
			var d *differsError
			s.k.refuse(m, err, errors.As(err, &d))
		default:
			s.failed(m, err, asked)
			if s.down.IsZero() {
				s.down = time.Now()
			}
		}
	}
}

// may reports whether a mirror may be used. The Origin's lock is held.
func (s *stream) may(m *mirror) bool {
	return s.k.may(m, s.loose) && !(s.parts && m.ranges == no)
}

// noMirror returns the error of a stream without a usable mirror.
func (s *stream) noMirror() error {
	if s.parts {
		return errNoRanges
	}
	s.k.mu.Lock()
	owner := s.k.owner
	bare := owner != nil && !s.k.join(owner) && s.k.out[owner] == nil && s.k.tag(owner).refused == nil && !s.loose
	s.k.mu.Unlock()
	if bare {
		return s.k.restart(owner, "the server sends no strong ETag, so the file may have changed")
	}
	return s.k.stuck(0)
}

// pause waits until a mirror may be used again, if patience allows.
func (s *stream) pause(m *mirror, wait time.Duration) error {
	s.k.mu.Lock()
	// Per Origin, not per file: a published image has many small files, and each that starts during an outage would
	// have patience of its own.
	err, some := m.err, s.o.some
	s.k.mu.Unlock()
	if err == nil { // another stream has had a response since
		err = step.Retryable("check the image server",
			fmt.Errorf("fetch %s: the server is left alone for %s", m.name, wait.Round(time.Millisecond)))
	}
	if s.others() {
		return err
	}
	limit := s.o.wait.Outage
	if !some {
		limit = s.o.wait.Start
	}
	if s.down.IsZero() {
		s.down = time.Now()
	}
	if down := time.Since(s.down); down+wait > limit {
		return s.k.stuck(down)
	}
	s.o.log.Warn("download will be tried again", "url", m.name, "bytes", s.off, "in", wait.Round(time.Millisecond),
		"err", err)
	return step.Sleep(s.ctx, wait)
}

// request makes one attempt, and returns how long the server asked to be left alone. Errors are final, Retryable,
// errNoRanges or ErrRestart.
//
//nolint:contextcheck a stream lives in the context of its file, which it was made with
func (s *stream) request(m *mirror) (time.Duration, error) {
	u, err := m.at(s.path)
	if err != nil {
		return 0, err
	}
	where := Redact(u)
	ctx, cancel := context.WithCancelCause(s.ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		cancel(nil)
		return 0, step.Failf("correct "+s.o.arg, "fetch %s: %s", where, plain(err))
	}
	req.Header.Set("User-Agent", "ingot-agent")
	req.Header.Set("Accept-Encoding", "identity")
	if m.user != nil {
		password, _ := m.user.Password()
		req.SetBasicAuth(m.user.Username(), password)
	}
	accessOf(ctx).authorize(req)
	s.k.mu.Lock()
	t := *s.k.tag(m)
	s.k.mu.Unlock()
	part := (s.off > 0 || s.end >= 0) && s.o.hasRanges(m) != no
	if part {
		if s.end >= 0 {
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", s.off, s.end-1))
		} else {
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-", s.off))
		}
		switch {
		case t.etag != "":
			req.Header.Set("If-Range", t.etag)
		case t.modified != "":
			req.Header.Set("If-Range", t.modified)
		}
	}
	began := time.Now()
	resp, err := s.o.client.Do(req)
	if err != nil {
		cancel(nil)
		return 0, s.o.unreachable(err, where)
	}
	if err := s.accept(m, resp, where, part); err != nil {
		cancel(nil)
		resp.Body.Close()
		return retryAfter(resp.Header.Get("Retry-After")), err
	}
	s.m, s.body = m, resp.Body
	s.got, s.fresh, s.waited = 0, 0, time.Since(began)
	s.winGot, s.winWait, s.lateGot, s.lateWait = 0, 0, 0, 0
	s.silent.Store(false)
	s.mu.Lock()
	s.cancel, s.kicked, s.rate = cancel, false, 0
	s.mu.Unlock()
	if !s.down.IsZero() && s.off > 0 && !s.loose {
		s.k.mu.Lock()
		s.k.resumes++
		s.k.mu.Unlock()
		s.o.log.Info("download resumed", "url", where, "bytes", s.off)
	}
	return 0, nil
}

// differsError: a mirror's file differs from the others'.
type differsError struct{ error }

// accept checks a response, and records its data about the file.
func (s *stream) accept(m *mirror, resp *http.Response, where string, part bool) error {
	if !plainEncoding(resp.Header.Get("Content-Encoding"), resp.Request.URL.Path, where) {
		return step.Failf("make the server send the file without an encoding",
			"fetch %s: the server sends it with content encoding %q, which was not requested", where,
			resp.Header.Get("Content-Encoding"))
	}
	var first, last, total int64
	switch code := resp.StatusCode; {
	case code == http.StatusOK:
		total = resp.ContentLength
	case code == http.StatusPartialContent && part:
		var ok bool
		first, last, total, ok = contentRange(resp.Header.Get("Content-Range"))
		if !ok || first != s.off || s.end >= 0 && last >= s.end || resp.ContentLength >= 0 &&
			resp.ContentLength != last-first+1 {
			s.o.ranged(m, no)
			s.o.log.Warn("the server sent another range of the file than requested; no more ranges are requested from it",
				"url", where, "bytes", s.off)
			return errNoRanges
		}
	case code == http.StatusRequestedRangeNotSatisfiable && part, code == http.StatusPreconditionFailed && part:
		return s.changed(m, where, "the file on the server has changed")
	default:
		return s.o.statusError(code, where)
	}

	s.k.mu.Lock()
	t := s.k.tag(m)
	size, limit, owner := s.k.size, s.k.limit, s.k.owner
	was := *t // other connections modify it
	mine := was.seen
	s.k.mu.Unlock()
	etag, modified := resp.Header.Get("ETag"), resp.Header.Get("Last-Modified")
	if !strings.HasPrefix(etag, `"`) { // weak or none
		etag = ""
	}
	switch {
	case mine && (was.etag != etag && (etag != "" || resp.StatusCode == http.StatusOK) || was.modified != "" &&
		modified != "" && was.modified != modified && etag == ""):
		return s.changed(m, where, "the file on the server has changed")
	case total >= 0 && size >= 0 && total != size:
		// of two mirrors, the first of which fell silent after it had sent its size
		if mine || owner == nil && !s.loose && s.k.wanted < 0 {
			return s.changed(m, where, "the file on the server has changed its size")
		}
		return &step.Error{Err: &differsError{fmt.Errorf("fetch %s: it has %d bytes, not %d", where, total, size)},
			Remedy: "check the file at that URL"}
	case limit > 0 && total > limit:
		return step.Failf("check the file at that URL", "fetch %s: %w: longer than %d bytes", where,
			ErrTooLong, limit)
	case resp.StatusCode == http.StatusOK && part:
		s.o.ranged(m, no)
		if s.parts {
			return errNoRanges
		}
	case resp.StatusCode == http.StatusPartialContent, strings.EqualFold(resp.Header.Get("Accept-Ranges"), "bytes"):
		s.o.ranged(m, yes)
	case strings.EqualFold(resp.Header.Get("Accept-Ranges"), "none"):
		s.o.ranged(m, no)
	}

	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	if !s.loose && !s.k.join(m) && s.k.owner != m { // another connection has chosen the mirror first
		return step.Retryable("", fmt.Errorf("fetch %s: the file is being read from another mirror", where))
	}
	if s.k.size < 0 {
		s.k.size = total
	}
	if etag == "" && resp.StatusCode == http.StatusPartialContent && mine {
		etag = t.etag // a 206 to If-Range may omit it
	}
	t.seen, t.etag, t.modified = true, etag, modified
	if !s.loose && s.k.owner == m && etag == "" {
		s.k.blind = true
	}
	s.skip, s.left = s.off-first, -1
	switch {
	case resp.StatusCode == http.StatusPartialContent:
		s.left = last - first + 1
	case s.end >= 0:
		s.left = s.end - s.off
	case s.k.size >= 0:
		s.left = s.k.size - s.off
	}
	return nil
}

// changed returns the error when a mirror's file has changed.
func (s *stream) changed(m *mirror, where, why string) error {
	s.k.mu.Lock()
	gave, owner := s.k.tag(m).gave, s.k.owner
	s.k.mu.Unlock()
	if gave == 0 && len(s.o.mirrors) > 1 && !s.loose && owner != nil {
		return &step.Error{Err: &differsError{fmt.Errorf("fetch %s: %s", where, why)},
			Remedy: "check the file at that URL"}
	}
	return s.k.restart(m, why)
}

// plainEncoding reports whether the body is the unchanged file. With gzip for a .gz file, a server means the type of
// the file, not an encoding of its own.
func plainEncoding(enc string, names ...string) bool {
	ending := ""
	switch enc {
	case "", "identity":
		return true
	case "gzip", "x-gzip":
		ending = ".gz"
	case "zstd":
		ending = ".zst"
	case "xz", "x-xz":
		ending = ".xz"
	case "bzip2", "x-bzip2":
		ending = ".bz2"
	}
	return ending != "" && slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, ending) })
}

// contentRange parses "bytes 5-9/10"; total is -1 for "*".
func contentRange(h string) (first, last, total int64, ok bool) {
	rest, ok1 := strings.CutPrefix(h, "bytes ")
	span, all, ok2 := strings.Cut(rest, "/")
	from, to, ok3 := strings.Cut(span, "-")
	if !ok1 || !ok2 || !ok3 {
		return 0, 0, 0, false
	}
	total = -1
	var err1, err2, err3 error
	first, err1 = strconv.ParseInt(from, 10, 64)
	last, err2 = strconv.ParseInt(to, 10, 64)
	if all != "*" {
		total, err3 = strconv.ParseInt(all, 10, 64)
	}
	if err1 != nil || err2 != nil || err3 != nil || first < 0 || last < first || total >= 0 && last >= total ||
		total < 0 && all != "*" {
		return 0, 0, 0, false
	}
	return first, last, total, true
}

// retryAfter parses how long a server asks to be left alone: in seconds, or until a date.
func retryAfter(h string) time.Duration {
	if s, err := strconv.ParseInt(h, 10, 32); err == nil && s > 0 {
		return time.Duration(s) * time.Second
	}
	if t, err := http.ParseTime(h); err == nil {
		return time.Until(t)
	}
	return 0
}

// all reads the rest.
func (s *stream) all() ([]byte, error) {
	if err := s.connect(); err != nil {
		return nil, err
	}
	buf := make([]byte, 0, max(s.left, 64<<10)+1) // does not grow if the server sends the size
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := s.read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
