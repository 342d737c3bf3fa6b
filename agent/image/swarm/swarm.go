// Package swarm lets agents that write the same published image give each other its chunks, so that the image's server
// sends each chunk about once however many machines there are.
//
// Nothing here has to work: whatever goes wrong with neighbours, a chunk comes from the image's own server (the
// origin). A chunk that a neighbour sent is checked before anybody sees it, either against the digest that the index
// has of its packed form or, when the neighbour packed it anew from its disk, its content against the image's block
// lists. A chunk is given to others only after it was checked and, but for the first one, written.
//
// Who has what is told by the conductor over the session. An agent talks, either way, only to nodes that the conductor
// told it of, over TLS with the certificates from enrolment, and listens only while it writes a published image and a
// short while after.
//
// To ask the origin for each chunk once, agents go by the conductor's list of seeds: the chunks are divided among them,
// and who is no seed waits to be given them. The wait is bounded: an agent that sees no progress goes to the origin
// itself. Next gives the chunk to fetch next, rarest first.
package swarm

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/index"
	contract "github.com/ingot-metal/ingot/proto/swarm"
)

// The messages between this agent and the conductor.
type (
	// Image is one image of a swarm, as its members name it.
	Image = contract.Image
	// State is what a member has of an image.
	State = contract.State
	// News is what has changed since the last message.
	News = contract.News
	// Peer is another member.
	Peer = contract.Peer
)

const (
	announceEvery = 100 * time.Millisecond // what comes in between is told together
	progressEvery = time.Second            // for what only shows that something moves
)

// Node is this agent's part in all swarms; it is in one at a time. Until Enable, and when it is nil, it is in none and
// listens nowhere.
type Node struct {
	log    *slog.Logger
	notify func() // called, without locks, when Tell may have something
	times  times

	session atomic.Bool // there is one, so neighbours may be told of

	mu      sync.Mutex
	on      bool
	id      Identity
	limit   *limiter
	local   netip.Addr // of the session
	member  *Member
	leaving *State // to be told: a swarm that was left
	whole   bool   // tell all
	told    time.Time
}

// New makes a node. notify is called when Tell may have something new.
func New(log *slog.Logger, notify func()) *Node {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Node{log: log, notify: notify, times: patient}
}

// Enable lets the node take part, as id, and send rate bytes per second at most; zero is no limit.
func (n *Node) Enable(id Identity, rate uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.on, n.id, n.limit = true, id, &limiter{rate: float64(rate)}
}

type factKey struct{}

// Offer leaves the node to the steps of a plan.
func Offer(f *step.Facts, n *Node) { f.Set(factKey{}, n) }

// Of is the node that Offer left; nil when there is none.
func Of(f *step.Facts) *Node {
	n, _ := f.Get(factKey{}).(*Node)
	return n
}

// Session tells that a session with the conductor was opened from a local address: everything has to be told again.
func (n *Node) Session(local netip.Addr) {
	n.mu.Lock()
	n.session.Store(true)
	n.whole = true
	moved := local.IsValid() && local != n.local
	if local.IsValid() {
		n.local = local
	}
	m := n.member
	n.mu.Unlock()
	if m != nil && (moved || m.port() == 0) {
		m.listen(local)
	}
	n.notify()
}

// SessionLost tells that there is no session. What was known of neighbours stays true for a while.
func (n *Node) SessionLost() {
	n.session.Store(false)
	n.mu.Lock()
	m := n.member
	n.mu.Unlock()
	if m != nil {
		m.rouse()
	}
}

// Join enters the swarm of an image, which is left by Leave, the member's or the node's. It returns nil when there is
// none: swarms are off, or the image is too large for one.
func (n *Node) Join(x *index.Index, image Image, from Origin, read Read) *Member {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	if !n.on || len(x.Chunks) > maxChunks {
		n.mu.Unlock()
		return nil
	}
	old := n.member
	m := newMember(n, x, image, from, read)
	n.member, n.whole, n.leaving = m, true, nil
	local := n.local
	n.mu.Unlock()
	if old != nil {
		old.shut()
	}
	if local.IsValid() {
		m.listen(local)
	}
	n.notify()
	return m
}

// anew has all of a member told again.
func (n *Node) anew(m *Member) {
	n.mu.Lock()
	if n.member == m {
		n.whole = true
	}
	n.mu.Unlock()
	n.notify()
}

// Leave leaves whatever swarm the node is in.
func (n *Node) Leave() {
	if n == nil {
		return
	}
	n.mu.Lock()
	m := n.member
	n.mu.Unlock()
	if m != nil {
		m.Leave()
	}
}

// left is what Member.Leave has the conductor told.
func (n *Node) left(m *Member) {
	n.mu.Lock()
	if n.member == m {
		n.member = nil
		n.leaving = &State{Image: m.image, Chunks: len(m.x.Chunks), Left: true}
	}
	n.mu.Unlock()
	n.notify()
}

// Tell is what the conductor is to be told now; nil when that is nothing. wait, unless zero, is when there may be
// something.
func (n *Node) Tell(now time.Time) (st *State, wait time.Duration) {
	if n == nil {
		return nil, 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if st = n.leaving; st != nil {
		n.leaving = nil
		return st, 0
	}
	m := n.member
	if m == nil || m.port() == 0 {
		return nil, 0
	}
	if n.whole {
		n.whole, n.told = false, now
		return m.tell(true), 0
	}
	switch news, progress := m.fresh(); {
	case news:
		wait = announceEvery - now.Sub(n.told)
	case progress:
		wait = progressEvery - now.Sub(n.told)
	default:
		return nil, 0
	}
	if wait > 0 {
		return nil, wait
	}
	n.told = now
	return m.tell(false), 0
}

// Hear takes what the conductor tells.
func (n *Node) Hear(news News) {
	n.mu.Lock()
	m := n.member
	n.mu.Unlock()
	if m == nil || m.image != news.Image {
		return // of a swarm that was left
	}
	m.hear(news)
}

// address is the local end of the newest session.
func (n *Node) address() netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.local
}

// bits is a set of chunks.
type bits []byte

func newBits(n int) bits              { return make(bits, (n+7)/8) }
func (b bits) has(i int) bool         { return b[i/8]>>(i%8)&1 == 1 }
func (b bits) set(i int)              { b[i/8] |= 1 << (i % 8) }
func (b bits) drop(i int)             { b[i/8] &^= 1 << (i % 8) }
func contains(s []uint32, i int) bool { return slices.Contains(s, uint32(i)) }
