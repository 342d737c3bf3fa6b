package image

import (
	"context"
	"errors"
	"hash"
	"io"
	"sync"
	"sync/atomic"

	"github.com/ingot-metal/ingot/agent/image/trace"
)

// file is the source, read piece by piece: a fetch.File.
type file interface {
	// Next returns the next piece, in memory that stays until Free. io.EOF comes without bytes.
	Next(ctx context.Context) ([]byte, error)
	Free(piece []byte)
}

// hashedAhead is how many pieces may be hashed and not read yet. The file itself limits the pieces not hashed yet.
const hashedAhead = 2

// flow hashes the fetched pieces ahead of their reader, who gets them without a copy.
type flow struct {
	src     file
	hash    hash.Hash
	hashed  chan []byte
	cancel  context.CancelFunc
	done    sync.WaitGroup
	err     error // error of the fetch; set before hashed is closed
	fetched atomic.Int64

	now   []byte // rest of the current piece
	piece []byte // the whole current piece

	hashing *trace.Track
	reading *trace.Track // of those who read the format: the reader, and a decoder's goroutine
}

// startFlow starts the fetch. The flow must be closed.
func startFlow(ctx context.Context, src file, h hash.Hash, rec *trace.Recorder) *flow {
	ctx, cancel := context.WithCancel(ctx)
	f := &flow{src: src, hash: h, hashed: make(chan []byte, hashedAhead), cancel: cancel,
		hashing: rec.Track(trace.Digest), reading: rec.Track(trace.UnpackStream)}
	f.done.Go(func() {
		defer close(f.hashed)
		f.err = f.run(ctx)
	})
	return f
}

func (f *flow) run(ctx context.Context) error {
	for {
		piece, err := f.src.Next(ctx)
		f.hashing.Spent(trace.Input)
		if len(piece) > 0 {
			f.fetched.Add(int64(len(piece)))
			f.hash.Write(piece)
			f.hashing.Spent(trace.Digest)
			select {
			case f.hashed <- piece:
				f.hashing.Spent(trace.Output)
			case <-ctx.Done():
				f.src.Free(piece)
				return context.Cause(ctx)
			}
		}
		if err != nil {
			return err
		}
	}
}

// Read returns the fetched bytes to a decoder.
func (f *flow) Read(p []byte) (int, error) {
	for len(f.now) == 0 {
		if f.piece != nil {
			f.src.Free(f.piece)
			f.piece = nil
		}
		f.reading.Spent(trace.UnpackStream)
		piece, ok := <-f.hashed
		f.reading.Spent(trace.Input)
		if !ok {
			return 0, f.err
		}
		f.now, f.piece = piece, piece
	}
	n := copy(p, f.now)
	f.now = f.now[n:]
	return n, nil
}

// finish reads to the end, so that the digest covers the whole file, and returns it.
func (f *flow) finish() ([]byte, error) {
	if _, err := io.Copy(io.Discard, struct{ io.Reader }{f}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	f.done.Wait()
	return f.hash.Sum(nil), nil
}

// close ends the fetch and waits for it. No reads may follow.
func (f *flow) close() {
	f.cancel()
	for piece := range f.hashed {
		f.src.Free(piece)
	}
	if f.piece != nil {
		f.src.Free(f.piece)
		f.piece = nil
	}
	f.done.Wait()
}
