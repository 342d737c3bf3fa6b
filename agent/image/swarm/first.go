package swarm

import (
	"context"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/images/index"
)

// hurry is how long an agent waits for the conductor's first message before it fetches the first chunk.
const hurry = 250 * time.Millisecond

// First fetches a chunk before any other is wanted, into dst, which has its length: the beginning of an image must be
// known before the disk is touched. All agents that start at the same time need it, and a server on a slow link would
// be busy for long sending it to each of them, and then each of its other chunks would be late for all. So only an
// agent that is alone, or whose part it is, fetches it from the origin; the others take it from a neighbour; and once
// verified it is served to others, from memory. Only the origin's errors, and the end of ctx, are errors.
func (m *Member) First(ctx context.Context, i int, dst []byte) error {
	p := m.direct(ctx, i)
	if p == nil {
		m.Want(i)
		_, _ = m.Next(ctx) // if it returns none, Chunk uses the origin
		if err := m.Chunk(ctx, i, dst); err != nil {
			return err
		}
		m.verified(i)
		return nil
	}
	if p.err != nil {
		return p.err
	}
	if err := index.DecodeChunk(p.data, dst); err != nil {
		m.release(p)
		return err
	}
	m.pool.keep(i, p.encoding, p.data, p.reserved, false)
	m.verified(i)
	return nil
}

// verified marks a chunk as verified, so that others may have it.
func (m *Member) verified(i int) {
	if p := m.pool.pin(i); p != nil {
		m.pool.unpin(p)
		m.Have(i)
	}
}

// direct fetches a chunk from the origin; nil if others can send it.
func (m *Member) direct(ctx context.Context, i int) (p *parcel) {
	began := time.Now()
	m.awaitNews(ctx)
	stay, claimed := m.duty(i, false, time.Now(), time.Since(began))
	if !stay {
		return nil
	}
	if claimed {
		m.claim(i)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got := make(chan *parcel, 1)
	go func() { got <- m.object(ctx, i, 0) }()
	t := time.Tick(tick)
	defer func() {
		if claimed {
			m.unclaim(i, p)
		}
	}()
	for {
		select {
		case p := <-got:
			return p
		case now := <-t:
			stay, ours := m.duty(i, claimed, now, now.Sub(began))
			if ours && !claimed {
				claimed = true
				m.claim(i)
			}
			if stay {
				continue
			}
			cancel()
			if p := <-got; p.err == nil { // at the last moment
				return p
			}
			return nil
		}
	}
}

// awaitNews waits for the conductor's first message, if one may come soon.
func (m *Member) awaitNews(ctx context.Context) {
	late := time.After(hurry)
	for {
		m.mu.Lock()
		heard, changed := m.heard || !m.n.session.Load() || m.ctx.Err() != nil, m.changed
		m.mu.Unlock()
		if heard {
			return
		}
		select {
		case <-changed:
		case <-late:
			return
		case <-ctx.Done():
			return
		}
	}
}

// duty reports whether to continue a fetch from the origin, and whether the others rely on this agent for it.
func (m *Member) duty(i int, claimed bool, now time.Time, since time.Duration) (stay, ours bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ours = slices.Contains(m.seeds, m.id.Node) && owes(m.seeds, i, "") == m.id.Node
	unheard := !m.heard && since < joinWait
	return ours || claimed && !m.inFlight(i) || unheard || m.alone(now), ours
}
