package swarm

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/ingot-metal/ingot/images/index"
)

// parcel is a received packed chunk.
type parcel struct {
	encoding encoding
	data     []byte
	nb       *neighbour // its sender; nil: the origin
	reserved int        // of the pool's memory: enough for the published chunk, if this one is wrong
	err      error      // of the origin
}

// Chunk stores the verified content of a chunk that Next returned in dst, which has its length. Only the origin's
// errors, and the end of ctx, are errors.
func (m *Member) Chunk(ctx context.Context, i int, dst []byte) error {
	m.mu.Lock()
	p := m.parcels[i]
	delete(m.parcels, i)
	m.mu.Unlock()
	if p == nil { // not returned by Next
		if p = m.fromOrigin(ctx, i, 0); p.err != nil {
			return p.err
		}
		defer m.release(p)
		return index.DecodeChunk(p.data, dst)
	}
	defer func() { <-m.places }()
	if p.err != nil {
		return p.err
	}
	err := index.DecodeChunk(p.data, dst)
	if p.encoding == repacked {
		err = m.compare(ctx, i, dst, err)
	}
	if err == nil {
		m.pool.keep(i, p.encoding, p.data, p.reserved, false)
		return nil
	}
	if p.nb == nil || p.encoding == published {
		m.release(p)
		return err // the digest was right: the image itself is broken
	}
	m.accuse(p.nb, i, err)
	// Chunks that wait to be unpacked may hold all other memory, and only this goroutine unpacks them: it must not wait
	// for memory.
	m.pool.free(p.data)
	again := m.fromOrigin(ctx, i, p.reserved)
	if again.err != nil {
		return again.err
	}
	defer m.release(again)
	return index.DecodeChunk(again.data, dst)
}

// release frees a parcel's memory.
func (m *Member) release(p *parcel) {
	m.pool.free(p.data)
	m.pool.release(p.reserved)
}

// compare verifies a chunk that a neighbour packed again, by its content. An errNonsense is the neighbour's fault.
func (m *Member) compare(ctx context.Context, i int, data []byte, unpacked error) error {
	if unpacked != nil {
		return errNonsense{unpacked.Error()}
	}
	err := m.sums.check(ctx, i, data)
	if errors.Is(err, errContent) {
		return errNonsense{err.Error()}
	}
	return err // without the list nothing can be verified
}

// fromOrigin fetches a chunk from the image's own server, and announces that to the others. reserved bytes of memory
// are already reserved for it; 0: none.
func (m *Member) fromOrigin(ctx context.Context, i, reserved int) *parcel {
	m.claim(i)
	p := m.object(ctx, i, reserved)
	m.unclaim(i, p)
	return p
}

// claim announces that this agent fetches a chunk from the origin.
func (m *Member) claim(i int) {
	m.mu.Lock()
	m.origin[i], m.newer = true, true
	m.rouseLocked()
	m.mu.Unlock()
	m.n.notify()
}

// unclaim says that the fetch of a chunk from the origin has ended, with p. A chunk that has come stays announced until
// this agent has it: else others would fetch it while it is being written.
func (m *Member) unclaim(i int, p *parcel) {
	m.mu.Lock()
	delete(m.origin, i)
	if p != nil && p.err == nil && m.state[i] != had {
		m.landed[i] = true
	}
	m.newer = true
	m.rouseLocked()
	m.mu.Unlock()
	m.n.notify()
}

// object fetches a chunk from the image's own server. If its err is nil the memory of its data is taken, else nothing
// is reserved any more.
func (m *Member) object(ctx context.Context, i, reserved int) *parcel {
	o := m.x.Chunks[i]
	p := &parcel{encoding: published, reserved: reserved}
	if reserved == 0 {
		if p.err = m.pool.reserve(ctx, int(o.Len)); p.err != nil {
			return p
		}
		p.reserved = int(o.Len)
	}
	began := time.Now()
	p.data = m.pool.take(int(o.Len))
	if p.err = m.from.Object(ctx, o, p.data); p.err != nil {
		m.release(p)
		return p
	}
	m.fetched(o.Len, time.Since(began))
	return p
}

// fetched records a chunk from the origin.
func (m *Member) fetched(n int64, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes += n
	m.stats.FromOrigin += n
	if !m.gained(int(n), took) {
		return
	}
	// As many streams as make a chunk take about a second: a slow link is not divided, a fast one is kept busy.
	m.streams = int(min(max(goal/max(took, 1), 1), seedStreams))
}

// telling reports whether the time of a transfer is representative: that of a small chunk, as the first often is, is
// not.
func (m *Member) telling(bytes int) bool { return int64(bytes) >= m.usual/2 }

// gained records a received chunk of n bytes, and sets the timeout for the next one. It reports whether the time is
// representative.
func (m *Member) gained(n int, took time.Duration) bool {
	m.gain = time.Now()
	if !m.telling(n) {
		return false
	}
	m.took = cmp.Or(m.took, took)
	m.took = (3*m.took + took) / 4
	m.patience = m.patienceLocked()
	return true
}

// patienceLocked is the timeout of a chunk, from recent transfers.
func (m *Member) patienceLocked() time.Duration {
	if m.took == 0 {
		return m.times.maxPatience
	}
	return min(max(20*m.took, 2*m.times.minPatience), m.times.maxPatience)
}

// fromPeer fetches a chunk from a neighbour, whose active count the caller has raised, and returns how long it took if
// that is representative; nil if it failed, which counts against the neighbour.
func (m *Member) fromPeer(ctx context.Context, nb *neighbour, i int) (p *parcel, took time.Duration) {
	mem := int(m.x.Chunks[i].Len)
	if err := m.pool.reserve(ctx, mem); err != nil {
		m.settle(nb, nil, nil)
		return nil, 0
	}
	// Otherwise a neighbour that sends a little each time would occupy one of few transfers for as long as the whole
	// image should take.
	m.mu.Lock()
	ctx, stop := context.WithTimeout(ctx, m.patienceLocked())
	m.mu.Unlock()
	defer stop()
	l, a, err := m.ask(ctx, nb, i)
	if err != nil {
		m.pool.release(mem)
		return nil, 0
	}
	if n := int(a.length); n > mem {
		// A chunk packed again is larger. A goroutine that waits for memory must hold none.
		m.pool.release(mem)
		if err := m.pool.reserve(ctx, n); err != nil {
			_ = l.Close()
			m.settle(nb, nil, nil)
			return nil, 0
		}
		mem = n
	}
	began := time.Now()
	data := m.pool.take(int(a.length))
	err = l.body(ctx, data)
	if err == nil && a.encoding == published {
		if wrong := m.x.Chunks[i].Verify(data); wrong != nil {
			err = errNonsense{wrong.Error()}
		}
	}
	if err != nil {
		_ = l.Close()
		m.release(&parcel{data: data, reserved: mem})
		m.settle(nb, nil, err)
		m.accuse(nb, i, err)
		return nil, 0
	}
	m.settle(nb, l, nil)
	m.mu.Lock()
	m.stats.FromPeers += int64(len(data))
	m.sign = time.Now()
	if took = time.Since(began); !m.gained(len(data), took) {
		took = 0
	}
	m.mu.Unlock()
	return &parcel{encoding: a.encoding, data: data, nb: nb, reserved: mem}, took
}

// accuse bars a neighbour if an error is its fault.
func (m *Member) accuse(nb *neighbour, i int, err error) {
	var lie errNonsense
	if errors.As(err, &lie) {
		m.bar(nb, i, err)
	}
}
