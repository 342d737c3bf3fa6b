package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ingot-metal/ingot/agent/step"
)

// Source is the location of a file.
type Source struct {
	// the same file at several places; the first is preferred. user:password is for basic authentication
	URLs   []string
	CA     string // certificates in PEM form that must have signed the servers'; empty: the system's
	Digest bool   // the file's digest will be compared at the end, so pieces of several mirrors may be combined
	Local  bool   // the only URL may be a path or file:// too
	Limit  int64  // of the file's size; 0: none
}

// File is one file, read once and in order. It is for one goroutine; At and Again are for other goroutines too.
type File struct {
	// Clock runs while bytes are fetched. It stands while no memory is free for more: see Widen.
	Clock step.Clock

	o     *Origin
	k     *known
	log   *slog.Logger
	local *local

	a      *ahead
	window atomic.Int64
	piece  []byte // partly returned by Read
	rest   []byte
	logged bool // the shares of the mirrors were logged
}

// Open prepares a fetch; no request is sent before Connect or Next.
func Open(src Source, wait Patience, log *slog.Logger) (*File, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	if src.Local && len(src.URLs) == 1 {
		if path, ok := localPath(src.URLs[0]); ok {
			l, err := openLocal(path, src.Limit)
			if err != nil {
				return nil, err
			}
			return &File{local: l, log: log}, nil
		}
	}
	o, err := NewOrigin(src.URLs, src.CA, wait, log)
	if err != nil {
		return nil, err
	}
	f := &File{o: o, k: newKnown(o, -1, src.Digest), log: log}
	f.window.Store(narrow)
	f.k.limit = src.Limit
	return f, nil
}

// Stats describes the fetch so far.
type Stats struct {
	Resumes  int      // connections that continued a broken one
	Restarts int      // from byte zero
	From     []Mirror // sources of the bytes
}

// Mirror is the share of one mirror.
type Mirror struct {
	URL   string // redacted
	Bytes int64
}

// Name returns the file's first URL, redacted, or its path.
func (f *File) Name() string {
	if f.local != nil {
		return f.local.Name()
	}
	return f.o.Name()
}

// Path returns the path of the file's first URL.
func (f *File) Path() string {
	if f.local != nil {
		return f.local.Name()
	}
	return f.o.mirrors[0].url.Path
}

// Size of the file in bytes, or -1 while unknown.
func (f *File) Size() int64 {
	if f.local != nil {
		return f.local.size
	}
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	return f.k.size
}

// Stats describes the fetch so far.
func (f *File) Stats() Stats {
	if f.local != nil {
		return Stats{}
	}
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	s := Stats{Resumes: f.k.resumes, Restarts: f.k.restarts}
	for _, m := range f.o.mirrors {
		if n := f.k.total[m]; n > 0 {
			s.From = append(s.From, Mirror{m.name, n})
		}
	}
	return s
}

// Connect gets the first response, so that the size is known if the server sends it.
func (f *File) Connect(ctx context.Context) error {
	if f.local != nil || f.a != nil {
		return nil
	}
	for {
		s := newStream(ctx, f.o, f.k, "", 0, -1)
		err := s.connect()
		if errors.Is(err, ErrRestart) { // nothing was read yet
			f.k.reset()
			continue
		}
		if err != nil {
			return err
		}
		f.a = newAhead(ctx, s, &f.window, &f.Clock)
		return nil
	}
}

// Widen sets how many MiB may be waiting or not yet freed, 2 to 64. Before the call it is 2: the memory of
// decompression is known only after the first bytes, and memory once allocated is not returned.
func (f *File) Widen(pieces int) {
	f.window.Store(int64(min(max(pieces, narrow), window)))
	if f.a != nil {
		f.a.wake()
	}
}

// Next returns the next bytes of the file, 1 MiB or the rest, in memory that belongs to the caller until Free. Fetching
// continues in the background, within the limit of Widen; ctx is only for the wait, the fetch ends with the context of
// Connect, with Rewind or with Close. io.EOF comes without bytes.
func (f *File) Next(ctx context.Context) ([]byte, error) {
	if f.local != nil {
		f.Clock.Enter()
		defer f.Clock.Leave()
		return f.local.next(ctx)
	}
	if err := f.Connect(ctx); err != nil {
		return nil, err
	}
	b, err := f.a.get(ctx)
	if err == io.EOF && !f.logged {
		f.logged = true
		if from := f.Stats().From; len(from) > 1 {
			var parts []string
			for _, m := range from {
				parts = append(parts, fmt.Sprintf("%s: %d", m.URL, m.Bytes))
			}
			f.log.Info("fetched from several mirrors", "bytes", strings.Join(parts, ", "))
		}
	}
	return b, err
}

// Free frees the memory of a piece, oldest first. Any goroutine may call it, but not during or after a Rewind.
func (f *File) Free(piece []byte) {
	if f.local != nil {
		f.local.free(piece)
		return
	}
	f.a.free()
}

// Read reads the next bytes. It must not be mixed with Next.
func (f *File) Read(ctx context.Context, p []byte) (int, error) {
	for len(f.rest) == 0 {
		if f.piece != nil {
			f.Free(f.piece)
			f.piece = nil
		}
		b, err := f.Next(ctx)
		if err != nil {
			return 0, err
		}
		f.piece, f.rest = b, b
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// Rewind returns to the first piece. Pieces returned before are not valid any more.
func (f *File) Rewind() {
	f.piece, f.rest, f.logged = nil, nil, false
	if f.local != nil {
		f.local.rewind()
		return
	}
	if f.a != nil {
		f.a.stop()
		f.a = nil
	}
	f.k.reset()
}

// Distrust reports that the bytes had a wrong digest, or with nil that they were damaged before their end, and returns
// whether another attempt makes sense: from another mirror, or without combining pieces of possibly different files.
// Then the file must be read again after Rewind.
func (f *File) Distrust(got []byte) bool {
	return f.local == nil && f.k.distrust(got)
}

// Close ends all requests.
func (f *File) Close() {
	if f.local != nil {
		_ = f.local.Close() // only read
		return
	}
	if f.a != nil {
		f.a.stop()
	}
	f.o.Close()
}

// At reads at any offset of the file, also during the sequential read. The bytes are from any mirror whose file has the
// same size: the caller must compare them with those of the stream. If the servers have no ranges the file is read a
// second time, forward; a step backward restarts it, at most maxBack times. It is nil if reading elsewhere is
// impossible.
func (f *File) At(ctx context.Context) io.ReaderAt {
	if f.local != nil {
		return f.local.at()
	}
	return &at{ctx: ctx, f: f}
}

// Again opens the file a second time from its beginning. The bytes may be from another mirror.
func (f *File) Again(ctx context.Context) (io.ReadCloser, error) {
	if f.local != nil {
		return f.local.again()
	}
	s := newStream(ctx, f.o, f.k, "", 0, -1)
	s.loose = true
	return &again{s}, nil
}

type again struct{ s *stream }

func (r *again) Read(p []byte) (int, error) { return r.s.read(p) }

func (r *again) Close() error {
	r.s.close()
	return nil
}

// maxBack is how often a file is restarted for reads at other offsets.
const maxBack = 8

type at struct {
	ctx context.Context
	f   *File

	mu   sync.Mutex
	line *stream // forward only, for servers without ranges
	back int
}

func (r *at) ReadAt(p []byte, off int64) (int, error) {
	want := len(p)
	if size := r.f.Size(); size >= 0 {
		if off >= size {
			return 0, io.EOF
		}
		p = p[:min(int64(len(p)), size-off)]
	}
	n, err := r.part(p, off)
	if errors.Is(err, errNoRanges) {
		n, err = r.forward(p, off)
	}
	if err == nil && n < want {
		err = io.EOF
	}
	return n, err
}

func (r *at) part(p []byte, off int64) (int, error) {
	s := newStream(r.ctx, r.f.o, r.f.k, "", off, off+int64(len(p)))
	s.loose, s.parts = true, true
	defer s.close()
	return s.full(p)
}

func (r *at) forward(p []byte, off int64) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.line == nil:
		r.f.log.Warn("the server sends no parts of files: the image is fetched a second time, for its tables", "url",
			r.f.Name())
	case off < r.line.off:
		if r.back++; r.back > maxBack {
			return 0, step.Failf("put the image on a server with range requests, or convert it to raw",
				"fetch %s: the image's tables are in no order that can be read without range requests", r.f.Name())
		}
		r.line.close()
		r.line = nil
	}
	if r.line == nil {
		r.line = newStream(r.ctx, r.f.o, r.f.k, "", off, -1)
		r.line.loose = true
	}
	for skip := make([]byte, 64<<10); r.line.off < off; {
		if _, err := r.line.read(skip[:min(int64(len(skip)), off-r.line.off)]); err != nil {
			return 0, err
		}
	}
	return r.line.full(p)
}

// Close ends the second read, if there is one.
func (r *at) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.line != nil {
		r.line.close()
		r.line = nil
	}
	return nil
}

// full fills p, or returns io.EOF.
func (s *stream) full(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		m, err := s.read(p[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// localPath returns the path of a local URL.
func localPath(url string) (string, bool) {
	if path, ok := strings.CutPrefix(url, "file://"); ok {
		return path, true
	}
	return url, !strings.Contains(url, "://")
}

// local is a file of this machine, or a block device, or a pipe.
type local struct {
	*os.File
	size int64 // -1: a pipe
	off  int64
	max  int64

	mu    sync.Mutex
	out   int
	spare [][]byte
	ready chan struct{} // signals a freed piece
}

func openLocal(path string, limit int64) (*local, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, step.Fail("correct the path of the image", fmt.Errorf("open the image: %w", err))
	}
	l := &local{File: file, size: -1, max: limit, ready: make(chan struct{}, 1)}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a folder", path)
	}
	if err == nil && (info.Mode().IsRegular() || info.Mode()&os.ModeDevice != 0 && info.Mode()&os.ModeCharDevice == 0) {
		if l.size, err = file.Seek(0, io.SeekEnd); err == nil {
			_, err = file.Seek(0, io.SeekStart)
		}
	}
	if err == nil && limit > 0 && l.size > limit {
		err = fmt.Errorf("%s is longer than %d bytes", path, limit)
	}
	if err != nil {
		file.Close()
		return nil, step.Fail("correct the path of the image", fmt.Errorf("open the image: %w", err))
	}
	return l, nil
}

// next reads a piece.
func (l *local) next(ctx context.Context) ([]byte, error) {
	var mem []byte
	for mem == nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		l.mu.Lock()
		switch last := len(l.spare) - 1; {
		case last >= 0:
			mem, l.spare = l.spare[last], l.spare[:last]
			l.out++
		case l.out < window:
			mem = make([]byte, pieceSize)
			l.out++
		}
		l.mu.Unlock()
		if mem == nil {
			select {
			case <-ctx.Done():
			case <-l.ready:
			}
		}
	}
	want := mem
	if l.size >= 0 {
		want = mem[:min(pieceSize, l.size-l.off)]
	}
	n, err := io.ReadFull(l.File, want)
	l.off += int64(n)
	switch {
	case l.size >= 0 && n < len(want) && (err == io.EOF || err == io.ErrUnexpectedEOF):
		err = step.Fail("see what changes the file",
			fmt.Errorf("read %s: it has become shorter than %d bytes", l.Name(), l.size))
	case err != nil && err != io.EOF && err != io.ErrUnexpectedEOF:
		err = step.Fail("see the kernel's log", fmt.Errorf("read the image at byte %d: %w", l.off, err))
	case l.max > 0 && l.off > l.max:
		err = step.Failf("check the file", "read %s: longer than %d bytes", l.Name(), l.max)
	case n > 0:
		return mem[:n], nil
	default:
		err = io.EOF
	}
	l.free(mem)
	return nil, err
}

func (l *local) free(piece []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out--
	l.spare = append(l.spare, piece[:pieceSize])
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

func (l *local) rewind() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out, l.off = 0, 0
	_, _ = l.File.Seek(0, io.SeekStart) // a read returns the error again
}

func (l *local) at() io.ReaderAt {
	if l.size < 0 {
		return nil
	}
	return l.File
}

func (l *local) again() (io.ReadCloser, error) {
	if l.size < 0 {
		return nil, step.Failf("give the image as a file", "a pipe can't be read a second time")
	}
	// By descriptor: the name may now be of another file.
	return io.NopCloser(io.NewSectionReader(l.File, 0, l.size)), nil
}
