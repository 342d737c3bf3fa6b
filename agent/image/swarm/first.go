package swarm

import (
	"context"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/images/index"
)

// hurry is how long the first chunk is fetched from the origin before neighbours are considered.
const hurry = 250 * time.Millisecond

// First fetches a chunk before any other is wanted, into dst, which has its length: the beginning of an image must be
// known before the disk is touched. All agents that start at the same time need it, and a server on a slow link would
// be busy for long sending it to each of them. So an agent that does not get it quickly takes it from a neighbour, if
// there is one; and once verified it is served to others, from memory. Only the origin's errors, and the end of ctx,
// are errors.
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

// direct fetches a chunk from the origin; nil if it takes long and others can send it.
func (m *Member) direct(ctx context.Context, i int) *parcel {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got := make(chan *parcel, 1)
	go func() { got <- m.object(ctx, i, 0) }()
	t := time.Tick(tick)
	claimed := false
	defer func() {
		if claimed {
			m.claim(i, false)
		}
	}()
	for began := time.Now(); ; {
		select {
		case p := <-got:
			return p
		case now := <-t:
			stay, ours := m.duty(i, claimed, now, now.Sub(began))
			if ours && !claimed {
				claimed = true
				m.claim(i, true)
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

// duty reports whether to continue a fetch from the origin, and whether the others rely on this agent for it.
func (m *Member) duty(i int, claimed bool, now time.Time, since time.Duration) (stay, ours bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ours = slices.Contains(m.seeds, m.id.Node) && owes(m.seeds, i) == m.id.Node
	unheard := !m.heard && since < joinWait
	return ours || claimed && !m.inFlight(i) || since < hurry || unheard || m.alone(now), ours
}
