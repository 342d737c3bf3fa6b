package fetch

import (
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

// Source says where a file is.
type Source struct {
	// of the same file at several places; the first is preferred. user:password is for basic authentication
	URLs   []string
	CA     string // certificates in PEM form that the servers' must be signed by; empty: those of the system
	Digest bool   // the file's digest will be compared in the end: so pieces from several mirrors may be put together
	Local  bool   // the only URL may be a path or file:// too
	Limit  int64  // of the file's size; 0: none
}

// File is one file, read once and in order. One goroutine uses it; At and Again are for others too.
type File struct {
	o     *Origin
	k     *known
	log   *slog.Logger
	local *local

	a      *ahead
	window atomic.Int64
	piece  []byte // of which Read has given a part
	rest   []byte
	told   bool
}

// Open makes ready to fetch; nothing is asked of a server before Connect or Next.
func Open(src Source, wait Patience, log *slog.Logger) (*File, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
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

// Stats says how the fetch went so far.
type Stats struct {
	Resumes  int      // connections that went on where another broke
	Restarts int      // from byte zero
	From     []Mirror // that gave bytes
}

// Mirror is what one mirror gave.
type Mirror struct {
	URL   string // redacted
	Bytes int64
}

// Name is the file's first URL, redacted, or its path.
func (f *File) Name() string {
	if f.local != nil {
		return f.local.Name()
	}
	return f.o.Name()
}

// Path is the path of the file's first URL.
func (f *File) Path() string {
	if f.local != nil {
		return f.local.Name()
	}
	return f.o.mirrors[0].url.Path
}

// Size of the file in bytes, or -1 while nobody knows.
func (f *File) Size() int64 {
	if f.local != nil {
		return f.local.size
	}
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	return f.k.size
}

// Stats says how the fetch went so far.
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

// Connect gets the first answer, so that the size is known when the server tells it.
func (f *File) Connect(ctx context.Context) error {
	if f.local != nil || f.a != nil {
		return nil
	}
	for {
		s := newStream(ctx, f.o, f.k, "", 0, -1)
		err := s.connect()
		if errors.Is(err, ErrRestart) { // nothing is lost yet
			f.k.reset()
			continue
		}
		if err != nil {
			return err
		}
		f.a = newAhead(ctx, s, &f.window)
		return nil
	}
}

// Widen says how many MiB may wait or be not yet freed, 2 to 16. There are 2 before it is called: what unpacking needs
// is found out from the first bytes, and memory that was given once is not taken back.
func (f *File) Widen(pieces int) {
	f.window.Store(int64(min(max(pieces, narrow), window)))
	if f.a != nil {
		f.a.wake()
	}
}

// Next gives the next bytes of the file, 1 MiB or what is left at its end, in memory that belongs to the caller until
// Free. It goes on fetching, at most as many MiB that are waiting or not yet freed as Widen said; ctx is for the
// waiting only, the fetch ends with that of Connect, with Rewind or with Close. io.EOF comes with no bytes.
func (f *File) Next(ctx context.Context) ([]byte, error) {
	if f.local != nil {
		return f.local.next(ctx)
	}
	if err := f.Connect(ctx); err != nil {
		return nil, err
	}
	b, err := f.a.get(ctx)
	if err == io.EOF && !f.told {
		f.told = true
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

// Free gives the memory of a piece back, the oldest first. Any goroutine may do it, but not during or after a Rewind.
func (f *File) Free(piece []byte) {
	if f.local != nil {
		f.local.free(piece)
		return
	}
	f.a.free()
}

// Read reads on. It is not to be mixed with Next.
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

// Rewind makes the next piece be the first. Those given are not valid any more.
func (f *File) Rewind() {
	f.piece, f.rest, f.told = nil, nil, false
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

// Distrust tells that the bytes had a wrong digest, or with nil that they were found to be damaged before their end,
// and asks whether another attempt can make sense: from another mirror, or without having put together what nobody
// knows to be of one file. Then the file is to be read again after Rewind.
func (f *File) Distrust(got []byte) bool {
	if f.local != nil {
		return false
	}
	return f.k.distrust(got)
}

// Close ends all that is going on.
func (f *File) Close() {
	if f.local != nil {
		_ = f.local.Close() // it was only read
		return
	}
	if f.a != nil {
		f.a.stop()
	}
	f.o.Close()
}

// At reads anywhere in the file, while it is being read in order too. The bytes are from any mirror whose file has the
// same size: whoever uses them must compare them with those of the stream. Without ranges on the servers the file is
// read once more, forward; backward it begins again, which is refused after maxBack times. It is nil when reading
// elsewhere is not possible.
func (f *File) At(ctx context.Context) io.ReaderAt {
	if f.local != nil {
		return f.local.at()
	}
	return &at{ctx: ctx, f: f}
}

// Again opens the file once more from its beginning. What it gives may be from another mirror.
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

// maxBack is how often a file is begun again for reading elsewhere in it.
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

// Close ends the second reading, if there was one.
func (r *at) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.line != nil {
		r.line.close()
		r.line = nil
	}
	return nil
}

// full fills p, or says io.EOF.
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

// localPath is the path that a URL stands for when it is not one of a server.
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
	ready chan struct{} // that a piece has been freed
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
		err = step.Failf("see what the file is", "read %s: longer than %d bytes", l.Name(), l.max)
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
	_, _ = l.File.Seek(0, io.SeekStart) // an error comes again when it is read
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
	// By its descriptor: another file may have got the name.
	return io.NopCloser(io.NewSectionReader(l.File, 0, l.size)), nil
}
