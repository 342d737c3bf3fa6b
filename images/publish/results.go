package publish

import (
	"context"
	"crypto/sha256"
	"hash"
	"sync"
	"sync/atomic"

	"github.com/ingot-metal/ingot/images/index"
)

// ahead is how many complete chunks wait in memory for earlier ones, because the whole disk's digest needs them in
// order. Compressed qcow2 images have some of their clusters slightly out of order.
const ahead = 8

// Stored counts what was written.
type Stored struct{ bytes, objects atomic.Int64 }

// chunk is a complete chunk of the disk. It has two users.
type chunk struct {
	i     int
	n     int64
	b     []byte // nil: zeros; else some byte is not zero
	buf   []byte
	free  chan<- []byte
	users atomic.Int32
}

// release returns the buffer after its last use.
func (c *chunk) release() {
	if c.users.Add(-1) == 0 && c.buf != nil {
		c.free <- c.buf
		c.buf, c.b = nil, nil
	}
}

// results collects the content of an index.
type results struct {
	dir       Dir
	o         Options
	packLists func(context.Context, []byte) ([]byte, error)
	stored    Stored
	sum       hash.Hash

	mu     sync.Mutex
	more   sync.Cond // a chunk has been stored
	size   int64
	chunks map[int]index.Object // those with data
	lists  map[int]*list
	listed map[int]index.Object
}

// list is an incomplete block list.
type list struct {
	have int    // chunks
	used int    // of sums, which has the length of a full list: the disk's last chunk may be short
	sums []byte // nil: only zeros so far
}

func newResults(dir Dir, o Options, size int64) *results {
	r := &results{
		dir: dir, o: o, packLists: encoder(3, 1), sum: sha256.New(), size: size, chunks: map[int]index.Object{},
		lists: map[int]*list{}, listed: map[int]index.Object{},
	}
	r.more.L = &r.mu
	return r
}

// store compresses a chunk, stores it in the directory, and adds its digests to their list.
func (r *results) store(ctx context.Context, c *chunk) error {
	var sums []byte
	var o index.Object
	if c.b != nil {
		sums = sumsOf(c.b, c.n)
		var err error
		if o, err = r.put(ctx, c.b, r.o.Compress); err != nil {
			return err
		}
	}
	c.release()
	return r.add(ctx, c, o, sums)
}

func (r *results) put(ctx context.Context, raw []byte,
	pack func(context.Context, []byte) ([]byte, error)) (index.Object, error) {
	if ctx.Err() != nil {
		return index.Object{}, context.Cause(ctx)
	}
	b, err := pack(ctx, raw)
	if err != nil {
		return index.Object{}, err
	}
	o := index.Of(b)
	fresh, err := r.dir.put(o, b)
	if err != nil {
		return o, err
	}
	r.o.Meter.Stored.Add(o.Len)
	if fresh {
		r.stored.bytes.Add(o.Len)
		r.stored.objects.Add(1)
	}
	return o, nil
}

// add records a stored chunk, and stores its list when that is complete.
func (r *results) add(ctx context.Context, c *chunk, o index.Object, sums []byte) error {
	const perChunk = index.ChunkSize / index.BlockSize * index.SumSize
	r.mu.Lock()
	if o.Len > 0 {
		r.chunks[c.i] = o
	}
	r.more.Broadcast()
	at := c.i / index.ListChunks
	l := r.lists[at]
	if l == nil {
		l = new(list)
		r.lists[at] = l
	}
	if sums != nil {
		if l.sums == nil {
			l.sums = make([]byte, index.ListChunks*perChunk)
		}
		copy(l.sums[c.i%index.ListChunks*perChunk:], sums)
	}
	l.used = max(l.used, c.i%index.ListChunks*perChunk+index.BlocksOf(c.n)*index.SumSize)
	l.have++
	full := l.have == index.ListChunks
	r.mu.Unlock()
	if full {
		return r.putList(ctx, at, l)
	}
	return nil
}

// putList stores a complete block list.
func (r *results) putList(ctx context.Context, at int, l *list) error {
	var o index.Object
	if l.sums != nil {
		var err error
		if o, err = r.put(ctx, l.sums[:l.used], r.packLists); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.lists, at)
	r.listed[at] = o
	return nil
}

// digest computes the digest of the whole disk. A chunk that arrives too early to be kept is read back from the
// directory.
func (r *results) digest(ctx context.Context, in <-chan *chunk) error {
	// With the lock, so that no goroutine is between its check and its wait.
	defer context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.more.Broadcast()
	})()
	early, inMemory := map[int]*chunk{}, 0
	aside := map[int]int64{} // lengths of those that were not kept
	next := 0
	for c := range in {
		switch {
		case c.b == nil || c.i == next:
			early[c.i] = c
		case inMemory < ahead:
			early[c.i] = c
			inMemory++
		default:
			aside[c.i] = c.n
			c.release()
		}
		for first := next; ; next++ {
			if c := early[next]; c != nil {
				delete(early, next)
				if c.b == nil {
					writeZeros(r.sum, c.n)
				} else if r.sum.Write(c.b); next != first {
					inMemory--
				}
				c.release()
			} else if n, ok := aside[next]; ok {
				delete(aside, next)
				if err := r.again(ctx, next, n); err != nil {
					return err
				}
			} else {
				break
			}
		}
	}
	return nil
}

var zeros [1 << 20]byte

func writeZeros(w hash.Hash, n int64) {
	for ; n > 0; n -= min(n, int64(len(zeros))) {
		w.Write(zeros[:min(n, int64(len(zeros)))])
	}
}

// again adds a chunk to the digest that is in the directory, or will be as soon as a worker has stored it.
func (r *results) again(ctx context.Context, i int, n int64) error {
	r.mu.Lock()
	for r.chunks[i].Len == 0 && ctx.Err() == nil {
		r.more.Wait()
	}
	o := r.chunks[i]
	r.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	b, err := r.dir.Object(ctx, o)
	if err != nil {
		return err
	}
	raw := make([]byte, n)
	if err := index.DecodeChunk(b, raw); err != nil {
		return err
	}
	r.sum.Write(raw)
	return nil
}

// index builds the index after all chunks are stored.
func (r *results) index(ctx context.Context) (*index.Index, error) {
	n := int((r.size + index.ChunkSize - 1) / index.ChunkSize)
	x := &index.Index{Size: r.size, SHA256: [sha256.Size]byte(r.sum.Sum(nil)), Chunks: make([]index.Object, n),
		Lists: make([]index.Object, (n+index.ListChunks-1)/index.ListChunks)}
	for i, o := range r.chunks {
		x.Chunks[i] = o
	}
	for i := range x.Lists {
		if l := r.lists[i]; l != nil { // the last list is rarely full
			if err := r.putList(ctx, i, l); err != nil {
				return nil, err
			}
		}
		x.Lists[i] = r.listed[i]
	}
	return x, nil
}
