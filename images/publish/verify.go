package publish

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/inspect"
)

// Objects is the store of a published image's objects. Object returns only content checked by Object.Verify.
type Objects interface {
	Object(ctx context.Context, o index.Object) ([]byte, error)
}

// maxFaults is how many faults Verify reports before it gives up.
const maxFaults = 20

// UnfitError says that an image is complete and undamaged, but agents would not deploy it.
type UnfitError struct{ Err error }

func (e *UnfitError) Error() string { return "no agent would deploy it: " + e.Err.Error() }

// Unwrap returns the reason.
func (e *UnfitError) Unwrap() error { return e.Err }

// Verify reads everything that an index refers to and checks it, down to the digest of the whole disk. It continues
// after a fault, to report several. An UnfitError comes alone.
func Verify(ctx context.Context, x *index.Index, from Objects, m *Meter) error {
	m = cmp.Or(m, new(Meter))
	m.Total.Store(x.Size)
	ctx, cancel := context.WithCancel(ctx)
	var loading sync.WaitGroup
	defer loading.Wait()
	defer cancel()
	// Results are consumed in order, from workers that are a few chunks ahead.
	type result struct {
		raw []byte
		err error
	}
	queue := make(chan chan result, runtime.GOMAXPROCS(0))
	loading.Go(func() {
		defer close(queue)
		for i := range x.Chunks {
			r := make(chan result, 1)
			select {
			case queue <- r:
			case <-ctx.Done():
				return
			}
			loading.Go(func() {
				raw, err := load(ctx, x, i, from)
				r <- result{raw, err}
			})
		}
	})
	var faults []error
	sum := sha256.New()
	var first, last []byte // chunks
	var blocks index.Blocks
	i := 0
	for next := range queue {
		r := <-next
		if i%index.ListChunks == 0 && len(faults) < maxFaults {
			var err error
			if blocks, err = loadBlocks(ctx, x, i/index.ListChunks, from); err != nil {
				faults = append(faults, fmt.Errorf("block list %d: %w", i/index.ListChunks, err))
			}
		}
		n := x.ChunkLen(i)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case len(faults) >= maxFaults:
			return errors.Join(append(faults, errors.New("there may be more faults"))...)
		case r.err != nil:
			faults = append(faults, fmt.Errorf("chunk %d: %w", i, r.err))
		case blocks != nil:
			if want := sumsOf(r.raw, n); !bytes.Equal(want, blocks.Chunk(i%index.ListChunks)) {
				faults = append(faults,
					fmt.Errorf("block list %d says other digests of chunk %d than it has", i/index.ListChunks, i))
			}
		}
		if r.raw != nil {
			sum.Write(r.raw)
		} else {
			writeZeros(sum, n)
		}
		if last = r.raw; i == 0 {
			first = r.raw
		}
		m.Done.Add(n)
		m.Stored.Add(x.Chunks[i].Len)
		i++
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if faults == nil && !bytes.Equal(sum.Sum(nil), x.SHA256[:]) {
		faults = append(faults, fmt.Errorf("the disk's SHA-256 is %x, and the index says %x", sum.Sum(nil), x.SHA256))
	}
	if faults != nil {
		return errors.Join(faults...)
	}
	// Byte for byte correct, but from a source that publishing did not always check.
	if err := deployable(x, first, last); err != nil {
		return &UnfitError{err}
	}
	return nil
}

// deployable refuses a disk that publishing would refuse, by its first and last chunk.
func deployable(x *index.Index, first, last []byte) error {
	if x.Head == images.GPT || x.Head == images.MBR {
		if _, err := inspect.CheckTable(first[:min(len(first), 1<<20)], x.Size); err != nil {
			return err
		}
	}
	return checkEnd(last)
}

// load returns the content of a chunk of the disk; nil stands for zeros.
func load(ctx context.Context, x *index.Index, i int, from Objects) ([]byte, error) {
	o := x.Chunks[i]
	if o.Len == 0 {
		return nil, nil
	}
	b, err := from.Object(ctx, o)
	if err != nil {
		return nil, err
	}
	if index.IsLZ4(b) && !x.LZ4 {
		return nil, refuse("publish the image again", "it is packed with lz4, and the index does not say so")
	}
	raw := make([]byte, x.ChunkLen(i))
	return raw, index.DecodeChunk(b, raw)
}

func loadBlocks(ctx context.Context, x *index.Index, i int, from Objects) (index.Blocks, error) {
	if x.Lists[i].Len == 0 {
		return index.ParseBlocks(nil, x.ListBytes(i))
	}
	b, err := from.Object(ctx, x.Lists[i])
	if err != nil {
		return nil, err
	}
	return index.ParseBlocks(b, x.ListBytes(i))
}

// sumsOf returns the block list entries of a chunk of n bytes; raw is nil for zeros.
func sumsOf(raw []byte, n int64) []byte {
	size := index.BlocksOf(n) * index.SumSize
	return index.AppendSums(make([]byte, 0, size), raw)[:size]
}
