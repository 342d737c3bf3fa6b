// Package swarm lets agents that write the same published image exchange its chunks, so that the image's server sends
// each chunk about once, independent of the number of machines.
//
// The swarm is optional: after any failure of a neighbour, a chunk comes from the image's own server (the origin). A
// chunk from a neighbour is verified before use, either against the digest of its packed form in the index or, if the
// neighbour packed it from its disk, by its content against the image's block lists. A chunk is served to others only
// after it was verified and, except for the first one, written.
//
// The conductor sends the members' state over the session. An agent connects to, and accepts connections from, only the
// nodes that the conductor listed, over TLS with the certificates from enrolment, and listens only while it writes a
// published image and a short while after.
//
// To fetch each chunk from the origin once, agents use the conductor's list of seeds: the chunks are divided among
// them, and the other agents wait for chunks from neighbours. The wait is bounded: an agent that sees no progress uses
// the origin itself. Next returns the chunk to process next.
package swarm

import (
	"cmp"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/index"
	contract "github.com/ingot-metal/ingot/proto/swarm"
)

// Messages between this agent and the conductor.
type (
	// Image identifies one image of a swarm among its members.
	Image = contract.Image
	// State is a member's state of an image.
	State = contract.State
	// News are the changes since the last message.
	News = contract.News
	// Peer is another member.
	Peer = contract.Peer
)

const (
	announceEvery = 100 * time.Millisecond // changes in between are sent together
	progressEvery = time.Second            // for mere progress
)

// Node is this agent's part in all swarms; it is in one at a time. Before Enable, and if nil, it is in none and does
// not listen.
type Node struct {
	log    *slog.Logger
	notify func() // called, without locks, when Tell may return something
	times  times

	session atomic.Bool // a session exists, so the conductor may send neighbours

	mu      sync.Mutex
	on      bool
	id      Identity
	limit   *limiter
	local   netip.Addr // of the session
	member  *Member
	leaving *State // to be sent: a swarm that was left
	whole   bool   // send the complete state
	sent    time.Time
}

// New returns a node. notify is called when Tell may return something new.
func New(log *slog.Logger, notify func()) *Node {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Node{log: log, notify: notify, times: patient}
}

// Enable lets the node take part, as id, and send at most rate bytes per second; zero is no limit.
func (n *Node) Enable(id Identity, rate uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.on, n.id, n.limit = true, id, &limiter{rate: float64(rate)}
}

type factKey struct{}

// Offer makes the node available to the steps of a plan.
func Offer(f *step.Facts, n *Node) { f.Set(factKey{}, n) }

// Of returns the node of Offer; nil if there is none.
func Of(f *step.Facts) *Node {
	n, _ := f.Get(factKey{}).(*Node)
	return n
}

// Session starts a session with the conductor from a local address: the complete state must be sent again.
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

// SessionLost ends the session. The known neighbours stay valid for a while.
func (n *Node) SessionLost() {
	n.session.Store(false)
	if m := n.current(); m != nil {
		m.rouse()
	}
}

// Join enters the swarm of an image, which ends with Leave, the member's or the node's. It returns nil without a swarm:
// swarms are disabled, or the image is too large.
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

// anew makes the node send the complete state of a member again.
func (n *Node) anew(m *Member) {
	n.mu.Lock()
	if n.member == m {
		n.whole = true
	}
	n.mu.Unlock()
	n.notify()
}

// Leave leaves the node's present swarm.
func (n *Node) Leave() {
	if n == nil {
		return
	}
	if m := n.current(); m != nil {
		m.Leave()
	}
}

// left queues the message of Member.Leave to the conductor.
func (n *Node) left(m *Member) {
	n.mu.Lock()
	if n.member == m {
		n.member = nil
		n.leaving = &State{Image: m.image, Chunks: len(m.x.Chunks), Left: true}
	}
	n.mu.Unlock()
	n.notify()
}

// Tell returns the message for the conductor; nil if there is none. wait, unless zero, is the time until there may be
// one.
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
		n.whole, n.sent = false, now
		return m.tell(true), 0
	}
	switch news, progress := m.fresh(); {
	case news:
		wait = announceEvery - now.Sub(n.sent)
	case progress:
		wait = progressEvery - now.Sub(n.sent)
	default:
		return nil, 0
	}
	if wait > 0 {
		return nil, wait
	}
	n.sent = now
	return m.tell(false), 0
}

// Hear handles a message from the conductor.
func (n *Node) Hear(news News) {
	if m := n.current(); m != nil && m.image == news.Image { // else of a swarm that was left
		m.hear(news)
	}
}

// address is the local address of the newest session.
func (n *Node) address() netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.local
}

func (n *Node) current() *Member {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.member
}

// bits is a set of chunks.
type bits []byte

func newBits(n int) bits      { return make(bits, (n+7)/8) }
func (b bits) has(i int) bool { return b[i/8]>>(i%8)&1 == 1 }
func (b bits) set(i int)      { b[i/8] |= 1 << (i % 8) }
func (b bits) drop(i int)     { b[i/8] &^= 1 << (i % 8) }
