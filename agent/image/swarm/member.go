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
	maxChunks = 1 << 17 // of an image that has a swarm: 512 GiB

	leastInWindow = 64 << 10 // bytes that a neighbour must send in times.window, or all

	busyPause = 40 * time.Millisecond // before who was busy is asked again
	maxPause  = time.Minute
	joinWait  = time.Second // for the conductor's first word
	tick      = 50 * time.Millisecond
	meetWait  = 300 * time.Millisecond // for others who begin at the same time
	helpAfter = 500 * time.Millisecond // without anything new from anybody

	open = 8 // chunks that are being fetched, or wait to be unpacked

	aloneStreams = open // chunks from the origin at once, for who has no neighbours
	seedStreams  = 4    // for all seeds together, and for each when a chunk takes but a moment
)

// Origin is where the image's objects come from when no neighbour gives them: web servers, a registry.
type Origin interface {
	// Object reads an object into dst, which has exactly its length, and checks it. Any number of goroutines may call
	// it.
	Object(ctx context.Context, o index.Object, dst []byte) error
}

// Read reads of a chunk that Have named, what is held back in memory included, from byte off of it on, a multiple of
// index.BlockSize. Dst is as long as so many blocks, or ends with the chunk. What the disk gives back is checked here.
type Read = func(i int, off int64, dst []byte) error

// times is how long to put up with others.
type times struct {
	dial   time.Duration
	answer time.Duration // a neighbour may have to read and pack first
	window time.Duration
	fail   time.Duration // rest for who failed, the first time
	again  time.Duration // for which another neighbour is looked for when one failed in the middle

	quiet       time.Duration // without any sign of progress of anybody
	maxPatience time.Duration // without a chunk for this agent
	minPatience time.Duration
}

var patient = times{dial: 5 * time.Second, answer: 10 * time.Second, window: 5 * time.Second,
	fail: 500 * time.Millisecond, again: 3 * time.Second, quiet: 20 * time.Second, maxPatience: time.Minute,
	minPatience: 2 * time.Second}

type chunkState uint8

const (
	idle   chunkState = iota // not wanted, as far as is known
	wanted                   // nobody fetches it
	taken                    // this agent does
	had                      // verified and written
)

// Member is this agent in the swarm of one image. It is a chunked.Member.
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
	down     *slots        // from neighbours
	places   chan struct{} // one for each chunk that is on its way to Chunk
	ready    chan int      // for Next
	choosing chan struct{} // held by who looks for the next one to fetch

	disk   sync.Mutex // held while one chunk is read back and packed
	read   Read       // nil: not any more
	packer *packer

	// Nothing is logged while mu is held: a log line goes to the conductor through the same queue whose lock is held
	// when Tell is called.
	mu       sync.Mutex
	changed  chan struct{} // closed, and made anew, when a waiter should look again
	joined   time.Time
	heard    bool // the conductor has told of neighbours, if only that there are none
	state    []chunkState
	left     int  // chunks that are wanted
	busy     int  // chunks that are being fetched
	complete bool // no more will be wanted
	resting  bool // only what is in memory is given
	have     bits
	avail    []uint16 // neighbours that have it, by chunk
	near     map[string]*neighbour
	barred   map[string]bool // liars
	seeds    []string
	parcels  map[int]*parcel // what has come and waits for Chunk
	origin   map[int]bool    // chunks that are being fetched from the origin
	streams  int             // of the origin, that this agent as a seed may use
	bytes    int64           // from the origin
	sign     time.Time       // of life of the others
	moved    time.Time       // when a neighbour last came by a chunk
	gain     time.Time       // when this agent last came by a chunk
	took     time.Duration   // of late, for a chunk that is not small
	usual    int64           // bytes of a chunk as published, on average
	patience time.Duration
	moves    uint64   // what the conductor told of the whole swarm's progress
	added    []uint32 // not told yet
	liars    []string // not told yet
	newer    bool     // something else is not told yet
	told     int64    // bytes
	listener net.Listener
	conns    map[net.Conn]string // accepted ones, and whose they are
	stats    Stats
}

// Stats is where the chunks came from.
type Stats struct {
	FromOrigin, FromPeers int64 // bytes as sent
	Sent                  int64
	Repacked              int64 // chunks read back and packed for others
	Liars                 int
}

// neighbour is what is known of one.
type neighbour struct {
	who
	addr     netip.AddrPort
	have     bits
	fetching []uint32
	fetched  uint64
	active   int       // transfers from it
	fails    int       // in a row
	after    time.Time // not to be asked before
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
		near: map[string]*neighbour{}, barred: map[string]bool{}, parcels: map[int]*parcel{}, origin: map[int]bool{},
		streams: 1, sign: now, gain: now, patience: n.times.maxPatience, conns: map[net.Conn]string{}}
	chunks := int64(0)
	for i, c := range x.Chunks {
		if c.Len == 0 { // zeros: nobody needs to fetch them
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

// Want names chunks that this agent needs: those Next will give.
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

// alone tells whether there are no neighbours to wait for.
func (m *Member) alone(now time.Time) bool {
	return len(m.near) == 0 || m.ctx.Err() != nil || now.Sub(m.sign) >= m.times.quiet
}

// Have says that a chunk is on the disk as the image has it: written now, or found there and verified. From now on
// others may have it.
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
	m.rouseLocked()
	m.mu.Unlock()
	m.n.notify()
}

// Rest ends the fetching and the reading from the disk, and returns when nothing of it goes on. What is in memory is
// still given to others, until Leave.
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

// Leave ends it: the listener is closed, and nobody is served any more. It returns when all that it started has ended.
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

// Stats returns where the chunks came from so far.
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

// fresh tells whether there is something to tell, and whether it is only a sign of life.
func (m *Member) fresh() (news, progress bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.added) > 0 || len(m.liars) > 0 || m.newer, m.bytes != m.told
}

// tell is what the conductor is told.
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
	for i := range m.origin {
		st.Fetching = append(st.Fetching, uint32(i))
	}
	m.told = m.bytes
	st.Fetched = uint64(m.told)
	m.added, m.liars, m.newer = nil, nil, false
	return st
}

// hear takes what the conductor tells.
func (m *Member) hear(news News) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if news.Whole {
		// Who is not named any more is gone; a transfer that runs may end.
		named := map[string]bool{}
		for _, p := range news.Peers {
			named[p.Node] = true
		}
		for name := range m.near {
			if !named[name] {
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

// meet takes what is new about a neighbour, and tells whether that has got further.
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
	nb.fetching, nb.fetched = p.Fetching, p.Fetched
	return further
}

// count adds a neighbour's chunks to what is around, or takes them away.
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

// bar never again speaks to who sent wrong bytes.
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
	m.log.Warn("a neighbour sent wrong bytes of the image; they are thrown away, and it is asked for nothing any more",
		"neighbour", nb.node, "address", nb.addr.String(), "chunk", chunk, "err", err)
	m.n.notify()
}
