package swarm

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/images/index"
)

const (
	maxChunks = 1 << 17 // of an image with a swarm: 512 GiB

	leastInWindow = 64 << 10 // bytes that a neighbour must send in times.window, or all

	busyPause = 40 * time.Millisecond // before a busy neighbour is asked again
	maxPause  = time.Minute
	joinWait  = time.Second // for the conductor's first message
	tick      = 50 * time.Millisecond
	meetWait  = 300 * time.Millisecond // for others that start at the same time
	helpAfter = 500 * time.Millisecond // without news from any member, or from the seed that owes a chunk

	open = 8 // chunks being fetched, or waiting to be unpacked

	aloneStreams = open // concurrent chunks from the origin without neighbours
	seedStreams  = 4    // for all seeds together, and for each if chunks are fast
)

// Origin is the source of the image's objects if no neighbour sends them: web servers, a registry.
type Origin interface {
	// Object reads an object into dst, which has exactly its length, and verifies it. Any number of goroutines may call
	// it.
	Object(ctx context.Context, o index.Object, dst []byte) error
}

// Read reads from a chunk announced with Have, including withheld data in memory, from its byte off on, a multiple of
// index.BlockSize. Dst is a multiple of blocks, or ends with the chunk. The data is verified here.
type Read = func(i int, off int64, dst []byte) error

// times holds the timeouts of transfers.
type times struct {
	dial   time.Duration
	answer time.Duration // includes reading and packing by the neighbour
	window time.Duration
	fail   time.Duration // rest of a neighbour after its first failure
	again  time.Duration // for finding another neighbour after one failed during a transfer

	quiet       time.Duration // without progress of any member
	maxPatience time.Duration // without a chunk for this agent
	minPatience time.Duration
}

var patient = times{dial: 5 * time.Second, answer: 10 * time.Second, window: 5 * time.Second,
	fail: 500 * time.Millisecond, again: 3 * time.Second, quiet: 20 * time.Second, maxPatience: time.Minute,
	minPatience: 2 * time.Second}

type chunkState uint8

const (
	idle   chunkState = iota // not wanted so far
	wanted                   // and not being fetched
	taken                    // being fetched by this agent
	had                      // verified and written
)

// Member is this agent in the swarm of one image. It implements chunked.Member.
type Member struct {
	n     *Node
	x     *index.Index
	image Image
	from  Origin
	log   *slog.Logger
	id    Identity
	limit *limiter
	times times
	sums  *sums
	pool  *pool

	ctx      context.Context // ends with the membership
	cancel   context.CancelFunc
	work     sync.WaitGroup
	up       *slots
	down     *slots        // transfers from neighbours
	places   chan struct{} // one for each chunk on its way to Chunk
	ready    chan int      // for Next
	choosing chan struct{} // held while choosing the next chunk to fetch

	disk   sync.Mutex // held while one chunk is read back and packed
	read   Read       // nil: ended
	packer *packer

	// Nothing is logged while mu is held: a log line goes to the conductor through the queue whose lock is held during
	// a call of Tell.
	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when waiters should check again
	joined   time.Time
	heard    bool // the conductor has sent the neighbours, possibly none
	state    []chunkState
	left     int  // wanted chunks
	busy     int  // chunks being fetched
	complete bool // no more will be wanted
	resting  bool // only chunks in memory are served
	have     bits
	avail    []uint16 // number of neighbours with it, by chunk
	near     map[string]*neighbour
	barred   map[string]bool // senders of wrong data
	seeds    []string
	parcels  map[int]*parcel // received, waiting for Chunk
	origin   map[int]bool    // chunks being fetched from the origin
	landed   map[int]bool    // chunks from the origin that this agent does not have yet
	streams  int             // to the origin, for this agent as a seed
	bytes    int64           // from the origin
	sign     time.Time       // last sign of life of the others
	moved    time.Time       // when a neighbour last got a chunk
	gain     time.Time       // when this agent last got a chunk
	took     time.Duration   // recent duration, for chunks that are not small
	usual    int64           // average bytes of a published chunk
	patience time.Duration
	moves    uint64   // the whole swarm's progress by the conductor
	added    []uint32 // not reported yet
	liars    []string // not reported yet
	newer    bool     // another change is not reported yet
	reported int64    // bytes
	listener net.Listener
	conns    map[net.Conn]string // accepted connections, and their nodes
	stats    Stats
}

// Stats is the origin of the chunks.
type Stats struct {
	FromOrigin, FromPeers int64 // bytes as sent
	Sent                  int64
	Repacked              int64 // chunks read back and packed for others
	Liars                 int
}

// neighbour is the state of one neighbour.
type neighbour struct {
	who
	addr     netip.AddrPort
	have     bits
	fetching []uint32
	since    time.Time // when fetching changed last
	fetched  uint64
	active   int       // transfers from it
	fails    int       // in a row
	after    time.Time // no request before
	idle     []*link
	gone     bool
}

func newMember(n *Node, x *index.Index, image Image, from Origin, read Read) *Member {
	ctx, cancel := context.WithCancel(context.Background())
	now := time.Now()
	m := &Member{n: n, x: x, image: image, from: from, read: read, log: n.log, id: n.id, limit: n.limit, times: n.times,
		ctx: ctx, cancel: cancel, sums: newSums(x, from), pool: newPool(len(x.Chunks)), up: newSlots(2, 8),
		down: newSlots(2, open), places: make(chan struct{}, open), ready: make(chan int, open),
		choosing: make(chan struct{}, 1), changed: make(chan struct{}), joined: now,
		state: make([]chunkState, len(x.Chunks)), have: newBits(len(x.Chunks)), avail: make([]uint16, len(x.Chunks)),
		near: map[string]*neighbour{}, barred: map[string]bool{}, parcels: map[int]*parcel{},
		origin: map[int]bool{}, landed: map[int]bool{}, streams: 1, sign: now, gain: now,
		patience: n.times.maxPatience, conns: map[net.Conn]string{}}
	chunks := int64(0)
	for i, c := range x.Chunks {
		if c.Len == 0 { // zeros need not be fetched
			m.state[i] = had
			m.have.set(i)
			continue
		}
		m.usual += c.Len
		chunks++
	}
	m.usual /= max(chunks, 1)
	for range open {
		m.work.Go(m.fetch)
	}
	return m
}

// Want adds chunks that this agent needs: those that Next will return.
func (m *Member) Want(chunks ...int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range chunks {
		if m.state[i] == idle {
			m.state[i] = wanted
			m.left++
		}
	}
	m.rouseLocked()
}

// Complete says that no more chunks will be wanted.
func (m *Member) Complete() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.complete = true
	m.rouseLocked()
}

// alone reports whether there are no neighbours to wait for.
func (m *Member) alone(now time.Time) bool {
	return len(m.near) == 0 || m.ctx.Err() != nil || now.Sub(m.sign) >= m.times.quiet
}

// Have says that a chunk is on the disk as in the image: written now, or found there and verified. From now on others
// may have it.
func (m *Member) Have(i int) {
	m.mu.Lock()
	if m.state[i] == had {
		m.mu.Unlock()
		return
	}
	if m.state[i] == wanted {
		m.left--
	}
	m.state[i] = had
	m.have.set(i)
	m.added = append(m.added, uint32(i))
	delete(m.landed, i)
	m.rouseLocked()
	m.mu.Unlock()
	m.n.notify()
}

// Rest ends fetching and reading from the disk, and returns when both have ended. Chunks in memory are still served to
// others, until Leave.
func (m *Member) Rest() {
	m.disk.Lock()
	m.read, m.packer = nil, nil
	m.disk.Unlock()
	m.mu.Lock()
	m.complete, m.resting = true, true
	for i, st := range m.state {
		if st == wanted {
			m.state[i] = idle
		}
	}
	m.left = 0
	st := m.stats
	clear(m.have)
	for _, i := range m.pool.chunks() {
		if m.state[i] == had {
			m.have.set(i)
		}
	}
	m.rouseLocked()
	m.mu.Unlock()
	m.log.Info("image complete", "from_origin", st.FromOrigin, "from_neighbours", st.FromPeers, "sent", st.Sent,
		"repacked", st.Repacked)
	m.n.anew(m)
}

// Leave ends the membership: it closes the listener, and stops serving. It returns when everything it started has
// ended.
func (m *Member) Leave() {
	m.n.left(m)
	m.shut()
}

func (m *Member) shut() {
	m.mu.Lock()
	st, first := m.stats, m.ctx.Err() == nil
	m.cancel()
	if m.listener != nil {
		_ = m.listener.Close()
	}
	for c := range m.conns {
		_ = c.Close()
	}
	for _, nb := range m.near {
		nb.close()
	}
	m.rouseLocked()
	m.mu.Unlock()
	m.work.Wait()
	if first {
		m.log.Info("swarm left", "from_origin", st.FromOrigin, "from_neighbours", st.FromPeers, "sent", st.Sent,
			"repacked", st.Repacked)
	}
}

// Stats returns the origin of the chunks so far.
func (m *Member) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

func (m *Member) rouse() {
	m.mu.Lock()
	m.rouseLocked()
	m.mu.Unlock()
}

func (m *Member) rouseLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// fresh reports whether there is something to report, and whether it is only progress.
func (m *Member) fresh() (news, progress bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.added) > 0 || len(m.liars) > 0 || m.newer, m.bytes != m.reported
}

// tell returns the message for the conductor.
func (m *Member) tell(whole bool) *State {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := &State{Image: m.image, Chunks: len(m.x.Chunks), Whole: whole, Done: m.exhausted() && len(m.ready) == 0,
		Liars: m.liars}
	if m.listener != nil {
		st.Port = uint16(m.listener.Addr().(*net.TCPAddr).Port)
	}
	if whole {
		st.Have = slices.Clone(m.have)
		st.Liars = slices.Collect(maps.Keys(m.barred))
		m.heard, m.joined = false, time.Now()
	} else {
		st.Added = m.added
	}
	for _, chunks := range []map[int]bool{m.origin, m.landed} {
		for i := range chunks {
			st.Fetching = append(st.Fetching, uint32(i))
		}
	}
	slices.Sort(st.Fetching) // the same again is no news
	m.reported = m.bytes
	st.Fetched = uint64(m.reported)
	m.added, m.liars, m.newer = nil, nil, false
	return st
}

// hear handles a message from the conductor.
func (m *Member) hear(news News) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if news.Whole {
		// Neighbours that are not listed any more are gone; a running transfer may end.
		for name := range m.near {
			if !slices.ContainsFunc(news.Peers, func(p Peer) bool { return p.Node == name }) {
				m.forget(name)
			}
		}
	}
	for _, name := range news.Gone {
		m.forget(name)
	}
	for _, p := range news.Peers[:min(len(news.Peers), 256)] {
		if m.meet(p) {
			m.sign = now
		}
	}
	if news.Fetched != m.moves {
		m.moves, m.sign = news.Fetched, now
	}
	m.seeds, m.heard = news.Seeds, true
	m.rouseLocked()
}

// meet updates a neighbour, and reports whether it made progress.
func (m *Member) meet(p Peer) (further bool) {
	if p.Node == m.id.Node || m.barred[p.Node] || !p.Addr.IsValid() {
		return false
	}
	nb := m.near[p.Node]
	if nb != nil && (nb.generation != p.Generation || nb.addr != p.Addr) {
		m.forget(p.Node)
		nb = nil
	}
	if nb == nil {
		if !p.Whole {
			return false
		}
		nb = &neighbour{who: who{p.Node, p.Generation}, addr: p.Addr, have: newBits(len(m.x.Chunks))}
		m.near[p.Node] = nb
	}
	if p.Whole {
		m.count(nb, -1)
		clear(nb.have)
		if len(p.Have) == len(nb.have) {
			copy(nb.have, p.Have)
			m.count(nb, 1)
		}
		further = true
	}
	for _, i := range p.Added {
		if int64(i) < int64(len(m.x.Chunks)) && !nb.have.has(int(i)) {
			nb.have.set(int(i))
			m.avail[i]++
			further, m.moved = true, time.Now()
		}
	}
	further = further || p.Fetched != nb.fetched
	if !slices.Equal(nb.fetching, p.Fetching) {
		nb.fetching, nb.since = p.Fetching, time.Now()
	}
	nb.fetched = p.Fetched
	return further
}

// count adds a neighbour's chunks to avail, or subtracts them.
func (m *Member) count(nb *neighbour, by int) {
	for i := range m.avail {
		if nb.have.has(i) {
			m.avail[i] = uint16(int(m.avail[i]) + by)
		}
	}
}

func (m *Member) forget(name string) {
	nb := m.near[name]
	if nb == nil {
		return
	}
	m.count(nb, -1)
	delete(m.near, name)
	nb.gone = true
	nb.close()
	for c, whose := range m.conns {
		if whose == name {
			_ = c.Close()
		}
	}
}

// bar excludes a sender of wrong bytes for good.
func (m *Member) bar(nb *neighbour, chunk int, err error) {
	m.mu.Lock()
	if m.barred[nb.node] {
		m.mu.Unlock()
		return
	}
	m.barred[nb.node] = true
	m.liars = append(m.liars, nb.node)
	m.stats.Liars++
	m.forget(nb.node)
	m.rouseLocked()
	m.mu.Unlock()
	m.log.Warn("a neighbour sent wrong bytes of the image; they are discarded, and nothing more is requested from it",
		"neighbour", nb.node, "address", nb.addr.String(), "chunk", chunk, "err", err)
	m.n.notify()
}
