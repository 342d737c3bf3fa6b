package swarm

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"
)

// Next returns a received chunk, and false when all wanted ones have been returned. Chunk must follow.
func (m *Member) Next(ctx context.Context) (int, bool) {
	for {
		m.mu.Lock()
		over := m.ctx.Err() != nil || m.exhausted() && len(m.ready) == 0
		changed := m.changed
		m.mu.Unlock()
		if over {
			return 0, false
		}
		select {
		case i := <-m.ready:
			return i, true
		case <-changed:
		case <-ctx.Done():
			return 0, false
		}
	}
}

// exhausted reports whether there is nothing more to fetch, now or later.
func (m *Member) exhausted() bool { return m.complete && m.left == 0 && m.busy == 0 }

// fetch brings chunks into memory, each from the best source, for Next. It runs ahead of the writer, so that a
// neighbour that answers slowly, or not at all, delays nothing.
func (m *Member) fetch() {
	for {
		select {
		case m.places <- struct{}{}:
		case <-m.ctx.Done():
			return
		}
		for {
			i, nb := m.choose()
			if i < 0 {
				<-m.places
				return
			}
			if m.bring(i, nb) {
				break
			}
		}
	}
}

// choose waits for a chunk to fetch, and its source: nil is the origin. It returns -1 when there is nothing more, now
// or later. One goroutine chooses at a time; the others would choose the same.
func (m *Member) choose() (int, *neighbour) {
	select {
	case m.choosing <- struct{}{}:
		defer func() { <-m.choosing }()
	case <-m.ctx.Done():
		return -1, nil
	}
	t := time.Tick(tick)
	for {
		m.mu.Lock()
		if m.ctx.Err() != nil || m.exhausted() {
			m.mu.Unlock()
			return -1, nil
		}
		changed := m.changed
		now := time.Now()
		i, nb := m.choosePeer(now)
		if nb != nil {
			nb.active++
			m.down.take()
		} else if i = m.chooseOrigin(now); i >= 0 {
			m.origin[i], m.newer = true, true
		}
		if i >= 0 {
			m.state[i] = taken
			m.left--
			m.busy++
		}
		m.mu.Unlock()
		if i >= 0 {
			return i, nb
		}
		select {
		case <-changed:
		case <-t:
		case <-m.ctx.Done():
		}
	}
}

// bring fetches a chosen chunk. If a neighbour fails it must be chosen again.
func (m *Member) bring(i int, nb *neighbour) bool {
	began := time.Now()
	var p *parcel
	source := "origin"
	if nb != nil {
		source = nb.node
		var took time.Duration
		p, took = m.fromPeer(m.ctx, nb, i)
		m.down.give(took)
	} else {
		p = m.fromOrigin(m.ctx, i, 0)
	}
	if p != nil {
		m.log.Debug("a chunk has come", "chunk", i, "from", source, "bytes", len(p.data), "took", time.Since(began))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy--
	if p == nil && m.state[i] == taken {
		m.state[i] = wanted
		m.left++
	}
	if p != nil {
		m.parcels[i] = p
		m.ready <- i // never blocks: it has a place
	}
	m.rouseLocked()
	return p != nil
}

// choosePeer picks a neighbour that can send now, and of its wanted chunks the rarest. The neighbour comes first: if
// all members wanted the rarest chunk of all, the few that have it would refuse most of them while other uplinks are
// idle.
func (m *Member) choosePeer(now time.Time) (int, *neighbour) {
	if !m.down.open() {
		return -1, nil
	}
	most := 2
	if len(m.near) <= 3 {
		most = 4
	}
	free := make([]*neighbour, 0, len(m.near))
	for _, nb := range m.near {
		if nb.active < most && !now.Before(nb.after) {
			free = append(free, nb)
		}
	}
	rand.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	slices.SortStableFunc(free, func(a, b *neighbour) int { return a.active - b.active })
	for _, nb := range free {
		if i := m.rarest(1, nb.have.has); i >= 0 {
			return i, nb
		}
	}
	return -1, nil
}

// chooseOrigin picks a chunk to fetch from the origin, or -1 if this agent should wait.
func (m *Member) chooseOrigin(now time.Time) int {
	if !m.heard && m.n.session.Load() && now.Sub(m.joined) < joinWait && m.ctx.Err() == nil {
		return -1
	}
	if m.alone(now) {
		streams := aloneStreams
		switch since := now.Sub(m.joined); {
		case !m.n.session.Load():
		case since < meetWait:
			streams = 0
		case since < joinWait:
			streams = 2 // neighbours may still appear
		}
		if len(m.origin) >= streams {
			return -1
		}
		return m.pick(func(i int) bool { return !m.inFlight(i) || now.Sub(m.sign) >= m.times.quiet })
	}
	if slices.Contains(m.seeds, m.id.Node) && len(m.origin) < max(m.streams, seedStreams/len(m.seeds)) {
		missing := func(i int) bool { return m.avail[i] == 0 && !m.inFlight(i) }
		if i := m.pick(func(i int) bool { return missing(i) && owes(m.seeds, i, "") == m.id.Node }); i >= 0 {
			return i
		}
		// This agent's share is done: help the others with theirs, unless they are so fast that their chunks are not
		// reported yet.
		if len(m.origin) == 0 {
			quiet := now.Sub(m.moved) > helpAfter
			if i := m.pick(func(i int) bool { return missing(i) && (quiet || m.second(i, now)) }); i >= 0 {
				return i
			}
		}
	}
	if len(m.origin) > 0 {
		return -1
	}
	// Wait for the neighbours' transfers, but not longer than the timeout of a chunk: the next one may be as slow.
	patience := m.patience
	if m.receiving() {
		patience = m.patienceLocked()
	}
	if now.Sub(m.gain) < patience {
		return -1
	}
	i := m.pick(func(i int) bool { return !m.inFlight(i) })
	if i < 0 {
		i = m.pick(func(int) bool { return true })
	}
	if i >= 0 {
		m.patience = max(m.patience/2, m.times.minPatience)
		m.gain = now
	}
	return i
}

// maxLook bounds how many wanted chunks are considered for one choice: choices are frequent, and a thousand candidates
// are enough.
const maxLook = 4096

// rarest returns a wanted chunk that few neighbours have, or -1. It begins at a random place, so that agents with the
// same state choose differently, and accepts the first chunk that at most least neighbours have.
func (m *Member) rarest(least uint16, may func(int) bool) int {
	best, looked := -1, 0
	for k, start := 0, rand.IntN(len(m.state)); k < len(m.state) && looked < maxLook; k++ {
		i := (start + k) % len(m.state)
		if m.state[i] != wanted {
			continue
		}
		looked++
		if best >= 0 && m.avail[i] >= m.avail[best] || !may(i) {
			continue
		}
		if best = i; m.avail[i] <= least {
			break
		}
	}
	return best
}

// pick is rarest for the origin.
func (m *Member) pick(may func(int) bool) int { return m.rarest(0, may) }

// inFlight reports whether a neighbour is fetching a chunk from the origin.
func (m *Member) inFlight(i int) bool {
	return m.any(func(nb *neighbour) bool { return slices.Contains(nb.fetching, uint32(i)) })
}

func (m *Member) any(is func(*neighbour) bool) bool {
	for _, nb := range m.near {
		if is(nb) {
			return true
		}
	}
	return false
}

func (m *Member) receiving() bool { return m.any(func(nb *neighbour) bool { return nb.active > 0 }) }

// second reports whether this agent should fetch a chunk in place of the seed that owes it, which is busy with others
// for long.
func (m *Member) second(i int, now time.Time) bool {
	first := owes(m.seeds, i, "")
	nb := m.near[first]
	return nb != nil && len(nb.fetching) > 0 && now.Sub(nb.since) > helpAfter && owes(m.seeds, i, first) == m.id.Node
}

// owes returns the seed, other than but, that should fetch a chunk (rendezvous hashing: when a seed leaves, only its
// own chunks move to others).
func owes(seeds []string, i int, but string) string {
	best, most := "", uint64(0)
	for _, s := range seeds {
		if s == but {
			continue
		}
		h := fnv.New64a()
		_, _ = h.Write([]byte(s))
		v := (h.Sum64() ^ uint64(i)*0x9e3779b97f4a7c15)
		v ^= v >> 31
		v *= 0xbf58476d1ce4e5b9
		v ^= v >> 29
		if best == "" || v > most {
			best, most = s, v
		}
	}
	return best
}
