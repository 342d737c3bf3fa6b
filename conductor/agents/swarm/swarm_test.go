package swarm

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// crowd holds agents as the registry sees them, each with the news it was sent.
type crowd struct {
	t     *testing.T
	r     *Registry
	clock time.Time
	woken map[string]bool
	known map[string]map[string]map[uint32]bool // by member and its neighbour: the chunks announced to it
	seeds map[string][]string
}

func newCrowd(t *testing.T) *crowd {
	c := &crowd{t: t, clock: time.Unix(1e9, 0), woken: map[string]bool{},
		known: map[string]map[string]map[uint32]bool{},
		seeds: map[string][]string{}}
	c.r = &Registry{now: func() time.Time { return c.clock }}
	return c
}

func name(i int) string { return fmt.Sprintf("node-%d", i) }

func (c *crowd) member(i int) Member {
	return Member{Node: name(i), Generation: 1, Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}),
		News: func() { c.woken[name(i)] = true }}
}

func (c *crowd) join(i, chunks int, have ...uint32) {
	b := make([]byte, (chunks+7)/8)
	for _, h := range have {
		b[h/8] |= 1 << (h % 8)
	}
	c.r.Update(c.member(i), State{Image: Image{1}, Port: 7, Chunks: chunks, Whole: true, Have: b})
}

func (c *crowd) leave(i int) { c.r.Update(c.member(i), State{Left: true}) }

func (c *crowd) add(i, chunks int, added ...uint32) {
	c.r.Update(c.member(i), State{Image: Image{1}, Port: 7, Chunks: chunks, Added: added})
}

// deliver sends news to all members that were woken, until none is.
func (c *crowd) deliver() {
	c.t.Helper()
	for len(c.woken) > 0 {
		for who := range c.woken {
			delete(c.woken, who)
			n := c.r.News(who)
			if n == nil {
				continue
			}
			if n.Whole || c.known[who] == nil {
				if !n.Whole {
					c.t.Fatalf("%s was sent changes before the whole state", who)
				}
				c.known[who] = map[string]map[uint32]bool{}
			}
			for _, g := range n.Gone {
				delete(c.known[who], g)
			}
			for _, p := range n.Peers {
				m := c.known[who][p.Node]
				if p.Whole {
					m = map[uint32]bool{}
					for i, b := range p.Have {
						for j := range 8 {
							if b>>j&1 == 1 {
								m[uint32(i*8+j)] = true
							}
						}
					}
					c.known[who][p.Node] = m
				} else if m == nil {
					c.t.Fatalf("%s was sent a change of %s before its whole state", who, p.Node)
				}
				for _, a := range p.Added {
					m[a] = true
				}
			}
			c.seeds[who] = n.Seeds
		}
	}
}

// TestEverybodyHears: the news sent to each neighbour adds up to the truth, whatever happens in which order.
func TestEverybodyHears(t *testing.T) {
	const chunks = 300
	c := newCrowd(t)
	truth := map[string]map[uint32]bool{}
	for range 4000 {
		i := rand.IntN(70)
		switch rand.IntN(12) {
		case 0:
			c.leave(i)
			delete(truth, name(i))
			delete(c.known, name(i))
			delete(c.woken, name(i))
		case 1:
			c.join(i, chunks, uint32(i))
			truth[name(i)] = map[uint32]bool{uint32(i): true}
		default:
			a := rand.Uint32N(chunks)
			c.add(i, chunks, a, chunks+5)
			if truth[name(i)] != nil {
				truth[name(i)][a] = true
			}
		}
		if rand.IntN(5) == 0 {
			c.deliver()
		}
	}
	c.deliver()
	for who, near := range c.known {
		if len(near) > maxDegree || len(near) < min(degree, len(truth)-1)/2 {
			t.Errorf("%s has %d neighbours of %d members", who, len(near), len(truth))
		}
		for peer, has := range near {
			if truth[peer] == nil {
				t.Fatalf("%s believes that %s is there", who, peer)
			}
			if len(has) != len(truth[peer]) {
				t.Fatalf("%s believes that %s has %d chunks, it has %d", who, peer, len(has), len(truth[peer]))
			}
			if c.known[peer][who] == nil {
				t.Errorf("%s knows %s, but not the other way round", who, peer)
			}
		}
	}
	for i := range 70 {
		c.leave(i)
	}
	if len(c.r.members)+len(c.r.swarms) != 0 || c.r.memory != 0 {
		t.Errorf("without agents the registry keeps %d members, %d swarms, %d bytes", len(c.r.members), len(c.r.swarms),
			c.r.memory)
	}
}

func TestSeeds(t *testing.T) {
	c := newCrowd(t)
	for i := range 6 {
		c.join(i, 4)
	}
	c.deliver()
	want := []string{name(0), name(1), name(2), name(3)}
	if got := c.seeds[name(0)]; !slices.Equal(got, want) {
		t.Fatalf("seeds = %v, want those who came first", got)
	}
	// One that does not get further is replaced.
	c.clock = c.clock.Add(stuck + time.Second)
	for i := range 6 {
		if i != 2 {
			c.add(i, 4, 0)
		}
	}
	c.deliver()
	if got := c.seeds[name(0)]; !slices.Equal(got, []string{name(0), name(1), name(3), name(4)}) {
		t.Fatalf("seeds = %v, want all but node-2, which is stuck", got)
	}
	// One that leaves too, at once.
	c.leave(0)
	c.deliver()
	if got := c.seeds[name(1)]; !slices.Equal(got, []string{name(1), name(3), name(4), name(5)}) {
		t.Fatalf("seeds = %v after node-0 left", got)
	}
	// Nothing is left to fetch when the swarm has it all.
	c.add(5, 4, 1, 2, 3)
	c.deliver()
	if got := c.seeds[name(1)]; len(got) != 0 {
		t.Fatalf("seeds = %v though every chunk is in the swarm", got)
	}
	c.leave(5)
	c.deliver()
	if got := c.seeds[name(1)]; len(got) == 0 {
		t.Fatal("no seeds though chunks are missing again")
	}
}

// TestLostSession: a member that comes back soon was never gone for its neighbours; but meanwhile they don't count on
// it.
func TestLostSession(t *testing.T) {
	c := newCrowd(t)
	for i := range 3 {
		c.join(i, 4, 0)
	}
	c.add(2, 4, 1, 2, 3)
	c.deliver()
	if len(c.seeds[name(0)]) != 0 {
		t.Fatalf("seeds = %v though every chunk is in the swarm", c.seeds[name(0)])
	}
	known := func() int { return len(c.known[name(0)][name(2)]) }

	c.r.Lost(name(2))
	c.deliver()
	if got := c.seeds[name(0)]; !slices.Equal(got, []string{name(0), name(1)}) {
		t.Errorf("seeds = %v for chunks that only a lost member has", got)
	}
	if known() != 4 {
		t.Errorf("a lost member is known for %d chunks, want 4", known())
	}
	c.clock = c.clock.Add(grace - time.Second)
	c.join(2, 4, 0, 1, 2, 3)
	c.clock = c.clock.Add(2 * time.Second)
	c.join(0, 4, 0) // what was too long ago is looked for
	c.deliver()
	if got := c.seeds[name(0)]; len(got) != 0 || known() != 4 {
		t.Errorf("seeds = %v, %d chunks known, after the member was back", got, known())
	}

	c.r.Lost(name(2))
	c.r.Lost(name(2))
	c.clock = c.clock.Add(grace)
	c.add(1, 4)
	c.deliver()
	if known() != 0 {
		t.Errorf("a member that was lost for %v is known for %d chunks", grace, known())
	}
	if got := c.seeds[name(0)]; !slices.Equal(got, []string{name(0), name(1)}) {
		t.Errorf("seeds = %v after a member was given up", got)
	}
	for i := range 2 {
		c.leave(i)
	}
	if len(c.r.members)+len(c.r.swarms)+len(c.r.lost) != 0 || c.r.memory != 0 {
		t.Errorf("%d members, %d swarms, %d lost ones and %d bytes are left without agents", len(c.r.members),
			len(c.r.swarms), len(c.r.lost), c.r.memory)
	}
}

func TestSeparateSwarms(t *testing.T) {
	c := newCrowd(t)
	other := func(i int, f func(*Member, *State)) {
		m, s := c.member(i), State{Image: Image{1}, Port: 7, Chunks: 4, Whole: true, Have: []byte{0}}
		f(&m, &s)
		c.r.Update(m, s)
	}
	c.join(0, 4)
	c.join(1, 4)
	other(2, func(m *Member, _ *State) { m.Network = "rack7" })
	other(3, func(_ *Member, s *State) { s.Image = Image{2} })
	other(4, func(_ *Member, s *State) { s.Chunks = 5 })
	other(5, func(_ *Member, s *State) { s.Have = []byte{0, 0} })
	other(6, func(_ *Member, s *State) { s.Port = 0 })
	other(7, func(_ *Member, s *State) { s.Chunks = 1 << 30 })
	other(8, func(m *Member, _ *State) { m.Addr = netip.Addr{} })
	other(9, func(_ *Member, s *State) { s.Whole = false })
	c.deliver()
	for who, near := range c.known {
		want := 0
		if who == name(0) || who == name(1) {
			want = 1
		}
		if len(near) != want {
			t.Errorf("%s has %d neighbours, want %d", who, len(near), want)
		}
	}
	if len(c.known) != 4 {
		t.Errorf("%d members, want 4", len(c.known))
	}
	// A new boot of a machine is not the one that was there.
	other(1, func(m *Member, _ *State) { m.Generation = 2 })
	if n := c.r.News(name(0)); n == nil || !slices.Equal(n.Gone, []string{name(1)}) || len(n.Peers) != 1 ||
		n.Peers[0].Generation != 2 {
		t.Errorf("after a new boot node-0 hears %+v", n)
	}
	// Another image ends the one before.
	other(1, func(m *Member, s *State) { m.Generation, s.Image = 2, Image{3} })
	if n := c.r.News(name(0)); n == nil || !slices.Equal(n.Gone, []string{name(1)}) {
		t.Errorf("after another image node-0 hears %+v", n)
	}
}

func TestLiars(t *testing.T) {
	c := newCrowd(t)
	for i := range 4 {
		c.join(i, 4)
	}
	tell := func(i int, liars ...string) (a, b []string) {
		return c.r.Update(c.member(i), State{Image: Image{1}, Port: 7, Chunks: 4, Liars: liars})
	}
	if a, b := tell(0, name(3), "unknown", name(0)); !slices.Equal(a, []string{name(3)}) || b != nil {
		t.Errorf("the first accuser: %v, %v", a, b)
	}
	if a, b := tell(0, name(3)); a != nil || b != nil {
		t.Errorf("the same again: %v, %v", a, b)
	}
	if a, b := tell(1, name(3)); len(a) != 1 || !slices.Equal(b, []string{name(3)}) {
		t.Errorf("the second accuser: %v, %v", a, b)
	}
	c.join(3, 4, 0, 1, 2, 3)
	if n := c.r.News(name(3)); n != nil {
		t.Errorf("thrown out, and back: %+v", n)
	}
}

// TestMemory holds that agents can't make the registry keep more than its bound.
func TestMemory(t *testing.T) {
	c := newCrowd(t)
	for i := range 200 {
		c.join(i, maxChunks)
	}
	if c.r.memory > maxMemory || len(c.r.members) == 200 || len(c.r.members) < 50 {
		t.Errorf("%d members with %d bytes", len(c.r.members), c.r.memory)
	}
}
