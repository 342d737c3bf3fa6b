package image

import (
	"context"
	"errors"
	"hash"
	"io"
	"sync"
	"sync/atomic"

	"github.com/ingot-metal/ingot/agent/fetch"
)

// flow fetches and hashes ahead of whoever reads it.
type flow struct {
	hash    hash.Hash
	fetched atomic.Int64

	free   chan []byte
	hashed chan chunk
	cancel context.CancelFunc
	done   sync.WaitGroup

	now []byte // what is left of the chunk that is being read
	mem []byte // the chunk's memory
	err error  // how the fetch ended
}

// chunk is fetched bytes and the memory they are in.
type chunk struct{ mem, data []byte }

// startFlow begins to fetch. The flow must be closed.
func startFlow(ctx context.Context, s *fetch.File, h hash.Hash) *flow {
	ctx, cancel := context.WithCancel(ctx)
	f := &flow{hash: h, free: make(chan []byte, chunks), hashed: make(chan chunk, chunks), cancel: cancel}
	for range chunks {
		f.free <- make([]byte, chunkSize)
	}
	fetched := make(chan chunk, chunks)
	f.done.Go(func() {
		defer close(fetched)
		f.fetch(ctx, s, fetched)
	})
	f.done.Go(func() {
		defer close(f.hashed)
		for c := range fetched {
			h.Write(c.data)
			f.hashed <- c // never blocks: there are no more chunks than room
		}
	})
	return f
}

func (f *flow) fetch(ctx context.Context, s *fetch.File, out chan<- chunk) {
	for {
		var mem []byte
		select {
		case <-ctx.Done():
			return
		case mem = <-f.free:
		}
		n := 0
		var err error
		// Full chunks: a decoder works better on large pieces than on what single packets bring.
		for n < len(mem) && err == nil {
			var m int
			m, err = s.Read(ctx, mem[n:])
			n += m
			f.fetched.Add(int64(m))
		}
		if n > 0 {
			out <- chunk{mem: mem, data: mem[:n]}
		}
		if err != nil {
			f.err = err // read after the channel is closed
			return
		}
	}
}

// Read gives the fetched bytes to a decoder.
func (f *flow) Read(p []byte) (int, error) {
	for len(f.now) == 0 {
		if f.mem != nil {
			f.free <- f.mem
			f.mem = nil
		}
		c, ok := <-f.hashed
		if !ok {
			if f.err == nil {
				return 0, context.Canceled
			}
			return 0, f.err
		}
		f.now, f.mem = c.data, c.mem
	}
	n := copy(p, f.now)
	f.now = f.now[n:]
	return n, nil
}

// finish reads to the end, so that the digest is over the whole file, and gives it.
func (f *flow) finish() ([]byte, error) {
	if _, err := io.Copy(io.Discard, struct{ io.Reader }{f}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	f.done.Wait()
	return f.hash.Sum(nil), nil
}

// close ends the fetch and waits for it.
func (f *flow) close() {
	f.cancel()
	for range f.hashed { // let the middle stage come to its end
	}
	f.done.Wait()
}
