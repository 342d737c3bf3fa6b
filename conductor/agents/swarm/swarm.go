// Package swarm knows which agents write the same published image now, and which of its chunks each of them has.
//
// It moves no chunk: agents fetch from each other, and this package only introduces them. All of it is in memory. The
// reports of an agent are dropped a while after its session ended, and an agent that connects again reports everything
// anew, so a restart of the conductor loses nothing else. Every report is taken for a claim: a false one costs other
// agents one request to the liar.
//
// A swarm is one image in one network. Its members form a random graph of bounded degree, in which being neighbours is
// mutual, so that an agent may refuse those that were not announced to it. In a small swarm all members are neighbours.
// Seeds are the few members who have been there longest and still miss chunks: they fetch from the image's own server
// the chunks that no member has.
package swarm

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	contract "github.com/ingot-metal/ingot/proto/swarm"
)

// The messages between agents and the conductor.
type (
	// Image is one image of a swarm, as its members name it.
	Image = contract.Image
	// State is a member's report of an image.
	State = contract.State
	// News holds the changes since the last message.
	News = contract.News
	// Peer is another member.
	Peer = contract.Peer
)

// Bounds of what agents can make the registry hold.
const (
	maxChunks = 1 << 18   // of an image: 1 TiB
	maxMemory = 128 << 20 // for all members' chunks
	maxNews   = 1 << 20   // bytes of one message, about
	accusers  = 2         // who must call a member a liar before it is thrown out
)

const (
	degree    = 24 // neighbours that a member is given
	maxDegree = 48 // and that it can come to have
	seeds     = 4
	stuck     = 15 * time.Second // without progress, after which a seed is none
	reseed    = 500 * time.Millisecond
	// grace is how long a member is kept whose session ended. A swarm fills the links that sessions go over: a session
	// that is lost in it says nothing about the machine, which is back in a moment. Its neighbours notice themselves
	// when it does not answer.
	grace = 15 * time.Second

	cheerEvery = time.Second
)

// Member identifies the sender of a report.
type Member struct {
	Node       string
	Generation uint64
	Network    string     // where its neighbours are looked for
	Addr       netip.Addr // where its session comes from
	News       func()     // called when News has something for it; must not block
}

// Registry is all swarms of a conductor. The zero value is ready.
type Registry struct {
	mu      sync.Mutex
	members map[string]*member // by node
	swarms  map[key]*swarm
	memory  int64
	lost    []*member        // whose sessions ended, the first first
	now     func() time.Time // nil: time.Now
}

type key struct {
	image   Image
	network string
}

type swarm struct {
	key       key
	chunks    int
	holders   []uint16  // members that have it, by chunk
	missing   int       // chunks that no member has
	members   []*member // who came first stands first
	seeds     []string
	seeded    time.Time
	fetched   uint64 // from the image's own server, by all
	announced uint64
	cheered   time.Time
	barred    map[string]bool // nodes that were thrown out
}

type member struct {
	Member
	s        *swarm
	addr     netip.AddrPort
	have     []byte
	log      []uint32 // chunks in the order they came, to send each neighbour those it lacks
	fetching []uint32
	fetched  uint64
	rev      uint64 // rises with each change of the rest
	done     bool
	moved    time.Time // when it last got further
	lost     time.Time // when its session ended; zero: it has one
	near     map[*member]*view
	gone     []string
	fresh    bool     // it has been sent nothing yet
	seeds    []string // as sent
	sum      uint64   // of the swarm's bytes, as sent
	accused  map[string]bool
}

// view is how much of a member's state another one has been sent.
type view struct {
	log int
	rev uint64
}

func (r *Registry) clock() time.Time {
	if r.now != nil {
		return r.now()
	}
	return time.Now()
}

// Update takes an agent's report. It returns the nodes that are newly accused of lying by this agent, and those thrown
// out for it.
func (r *Registry) Update(who Member, st State) (accused, barred []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire()
	m := r.members[who.Node]
	if m != nil {
		r.found(m)
	}
	if m != nil && (st.Left || m.s.key != (key{st.Image, who.Network}) || m.Generation != who.Generation ||
		st.Chunks != m.s.chunks) {
		r.drop(m)
		m = nil
	}
	if st.Left {
		return nil, nil
	}
	if m == nil || st.Whole {
		if !st.Whole {
			return nil, nil // a rest of a swarm that it has left
		}
		if m = r.join(m, who, st); m == nil {
			return nil, nil
		}
	}
	m.Member = who
	r.take(m, st)
	accused, barred = r.accuse(m, st.Liars)
	r.link(m)
	r.choose(m.s, false)
	for n := range m.near {
		n.News()
	}
	m.News()
	r.cheer(m.s)
	return accused, barred
}

// join makes a member, or starts one anew with its report. It returns nil when that one can't take part.
func (r *Registry) join(m *member, who Member, st State) *member {
	size := (st.Chunks + 7) / 8
	if st.Chunks < 1 || st.Chunks > maxChunks || len(st.Have) != size || st.Port == 0 || !who.Addr.IsValid() {
		if m != nil {
			r.drop(m)
		}
		return nil
	}
	if m != nil {
		m.hold(false)
		clear(m.have)
		// Neighbours that were sent a larger state must get everything again.
		for n := range m.near {
			n.near[m] = &view{}
		}
		m.log, m.fresh, m.seeds, m.gone = m.log[:0], true, nil, nil
		for _, v := range m.near {
			*v = view{}
		}
	} else {
		cost := memory(st.Chunks)
		if r.memory+cost > maxMemory {
			return nil
		}
		k := key{st.Image, who.Network}
		s := r.swarms[k]
		if s != nil && (s.chunks != st.Chunks || s.barred[who.Node] || len(s.members) >= 1<<16-1) {
			return nil // one of them lies about the image: who came first is believed
		}
		if s == nil {
			s = &swarm{key: k, chunks: st.Chunks, holders: make([]uint16, st.Chunks), missing: st.Chunks,
				barred: map[string]bool{}}
			if r.swarms == nil {
				r.swarms, r.members = map[key]*swarm{}, map[string]*member{}
			}
			r.swarms[k] = s
		}
		m = &member{Member: who, s: s, have: make([]byte, size), near: map[*member]*view{}, fresh: true,
			moved: r.clock(), accused: map[string]bool{}}
		r.memory += cost
		r.members[who.Node] = m
		s.members = append(s.members, m)
	}
	for i := range uint32(st.Chunks) {
		if st.Have[i/8]>>(i%8)&1 == 1 {
			m.add(i)
		}
	}
	return m
}

// memory returns roughly what a member takes: bitmap and log.
func memory(chunks int) int64 { return int64(chunks)/8 + int64(chunks)*4 + 1024 }

func (m *member) has(i uint32) bool { return m.have[i/8]>>(i%8)&1 == 1 }

func (m *member) add(i uint32) bool {
	if int(i) >= m.s.chunks || m.has(i) {
		return false
	}
	m.have[i/8] |= 1 << (i % 8)
	m.log = append(m.log, i)
	if m.s.holders[i]++; m.s.holders[i] == 1 {
		m.s.missing--
	}
	return true
}

// hold counts a member's chunks among those that are there, or not any more.
func (m *member) hold(on bool) {
	s := m.s
	for i := range uint32(s.chunks) {
		switch {
		case !m.has(i):
		case on:
			if s.holders[i]++; s.holders[i] == 1 {
				s.missing--
			}
		default:
			if s.holders[i]--; s.holders[i] == 0 {
				s.missing++
			}
		}
	}
}

// take keeps what changes.
func (r *Registry) take(m *member, st State) {
	moved := false
	for _, i := range st.Added {
		if m.add(i) {
			moved = true
		}
	}
	const most = 64 // chunks that one agent fetches at once
	fetching := st.Fetching[:min(len(st.Fetching), most)]
	addr := netip.AddrPortFrom(m.Addr, st.Port)
	if addr != m.addr || st.Fetched != m.fetched || !slices.Equal(fetching, m.fetching) {
		moved = moved || st.Fetched != m.fetched
		if st.Fetched > m.fetched {
			m.s.fetched += st.Fetched - m.fetched
		}
		m.addr, m.fetched, m.fetching = addr, st.Fetched, slices.Clone(fetching)
		m.rev++
	}
	m.done = st.Done
	if moved {
		m.moved = r.clock()
	}
}

// accuse records accusations of lying. One accuser proves nothing: it may be the liar itself.
func (r *Registry) accuse(m *member, liars []string) (accused, barred []string) {
	for _, name := range liars {
		l := r.members[name]
		if l == nil || l == m || l.s != m.s || l.accused[m.Node] {
			continue
		}
		l.accused[m.Node] = true
		accused = append(accused, name)
		if len(l.accused) >= accusers {
			m.s.barred[name] = true
			barred = append(barred, name)
			r.drop(l)
		}
	}
	return accused, barred
}

// link connects a member with neighbours, first with those who have few.
func (r *Registry) link(m *member) {
	want := min(degree, len(m.s.members)-1)
	if len(m.near) >= want {
		return
	}
	var free []*member
	for _, o := range m.s.members {
		if o != m && o.lost.IsZero() && m.near[o] == nil && len(o.near) < maxDegree {
			free = append(free, o)
		}
	}
	rand.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	slices.SortStableFunc(free, func(a, b *member) int { return len(a.near) - len(b.near) })
	for _, o := range free[:min(len(free), want-len(m.near))] {
		m.near[o], o.near[m] = &view{}, &view{}
		o.News()
	}
}

// choose picks the seeds.
func (r *Registry) choose(s *swarm, now bool) {
	if t := r.clock(); now || t.Sub(s.seeded) >= reseed {
		s.seeded = t
	} else if s.missing > 0 && len(s.seeds) >= min(seeds, len(s.members)) || s.missing == 0 && len(s.seeds) == 0 {
		return
	}
	var next, slow []string
	if s.missing > 0 {
		for _, m := range s.members {
			switch {
			case m.done, !m.lost.IsZero():
			case s.seeded.Sub(m.moved) > stuck:
				slow = append(slow, m.Node)
			case len(next) < seeds:
				next = append(next, m.Node)
			}
		}
		if len(next) == 0 {
			next = slow[:min(len(slow), seeds)]
		}
	}
	if slices.Equal(next, s.seeds) {
		return
	}
	for _, name := range append(slices.Clone(s.seeds), next...) {
		if m := r.members[name]; m != nil && m.s == s {
			m.News()
		}
	}
	s.seeds = next
}

// cheer sends the swarm's progress to all members now and then: most of them have no neighbour who fetches.
func (r *Registry) cheer(s *swarm) {
	t := r.clock()
	if t.Sub(s.cheered) < cheerEvery || s.fetched == s.announced {
		return
	}
	s.cheered, s.announced = t, s.fetched
	for _, m := range s.members {
		m.News()
	}
}

// tidy drops members who have been lost too long, where no report does it.
func (r *Registry) tidy() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire()
}

// knows reports whether a node's agent is a member of a swarm.
func (r *Registry) knows(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.members[node] != nil
}

// Lost records that the session with a node's agent has ended. Its reports are dropped after a while, unless it comes
// back.
func (r *Registry) Lost(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire()
	m := r.members[node]
	if m == nil {
		return
	}
	r.found(m)
	m.lost, m.News = r.clock(), func() {}
	r.lost = append(r.lost, m)
	m.hold(false) // no member should wait for chunks that only this one has
	r.choose(m.s, true)
}

// found says that a member is not lost, or not any more.
func (r *Registry) found(m *member) {
	if !m.lost.IsZero() {
		m.lost = time.Time{}
		m.hold(true)
		r.lost = slices.DeleteFunc(r.lost, func(o *member) bool { return o == m })
	}
}

// expire drops members who have been lost too long.
func (r *Registry) expire() {
	for len(r.lost) > 0 && r.clock().Sub(r.lost[0].lost) >= grace {
		r.drop(r.lost[0])
	}
}

func (r *Registry) drop(m *member) {
	r.found(m)
	s := m.s
	m.hold(false)
	for n := range m.near {
		delete(n.near, m)
		n.gone = append(n.gone, m.Node)
		n.News()
	}
	s.members = slices.DeleteFunc(s.members, func(o *member) bool { return o == m })
	delete(r.members, m.Node)
	r.memory -= memory(s.chunks)
	if len(s.members) == 0 {
		delete(r.swarms, s.key)
		return
	}
	r.choose(s, true)
}

// News returns the changes that the node's agent has not been sent yet, and counts them as sent; nil when there are
// none. If more changes exist than fit into a message, the member's own News is called again.
func (r *Registry) News(node string) *News {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[node]
	if m == nil {
		return nil
	}
	r.choose(m.s, false)
	n := &News{Image: m.s.key.image, Whole: m.fresh, Gone: m.gone, Seeds: m.s.seeds}
	m.gone = nil
	size := 0
	for o, v := range m.near {
		first := v.log == 0 && v.rev == 0
		if !first && v.log == len(o.log) && v.rev == o.rev {
			continue
		}
		if size > maxNews {
			m.News()
			break
		}
		p := Peer{Node: o.Node, Generation: o.Generation, Addr: o.addr, Whole: first, Fetching: o.fetching,
			Fetched: o.fetched}
		if first {
			p.Have = slices.Clone(o.have)
		} else {
			p.Added = slices.Clone(o.log[v.log:])
		}
		size += 64 + len(p.Have) + 4*len(p.Added)
		v.log, v.rev = len(o.log), o.rev
		n.Peers = append(n.Peers, p)
	}
	if !m.fresh && len(n.Peers) == 0 && len(n.Gone) == 0 && slices.Equal(m.seeds, m.s.seeds) && m.sum == m.s.announced {
		return nil
	}
	m.fresh, m.seeds, m.sum, n.Fetched = false, m.s.seeds, m.s.announced, m.s.announced
	return n
}
