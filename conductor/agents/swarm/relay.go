package swarm

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ingot-metal/ingot/proto/agentv1"
	contract "github.com/ingot-metal/ingot/proto/swarm"
)

// Relay is a Registry whose swarms have members at several conductors. Each swarm has its home at one of them, which
// all of them choose alike: its registry knows the swarm. The others pass on what their agents report, and bring back
// the news. While the home can't be asked, a conductor's own agents are a swarm of their own.
//
// A relay keeps what each of its agents has reported, so that another home can have it. A message has all that changed
// since the one before; when its answer is lost, the next one has everything.
type Relay struct {
	cfg  Settings
	here Registry // the swarms that are at home here

	mu     sync.Mutex
	mine   map[string]*relayed // agents with a session here, by node
	memory int64
	homes  map[string]*home // other conductors, by name

	// guests are other conductors' agents in swarms that are at home here. Its lock is taken within the registry's, and
	// nothing is called under it.
	guestMu sync.Mutex
	guests  map[string]*guest // by conductor
}

// Settings are a Relay's.
type Settings struct {
	// Home names the conductor where the swarm of a key is at home, among those that live and are not to be skipped; ""
	// or this conductor's own name: here.
	Home func(key string, skip func(conductor string) bool) string
	Self string
	// Ask sends a message to another conductor, and returns the answer of its Relay.
	Ask func(ctx context.Context, conductor string, message []byte) ([]byte, error)
	Log *slog.Logger
}

const (
	// A home is asked this often while there is something to say or to hear, and else more and more seldom.
	askOften, askSeldom = 50 * time.Millisecond, 500 * time.Millisecond
	askTime             = 10 * time.Second
	// A home that can't be asked for so long is skipped for a while, so that agents need not wait for it.
	trust, mistrust = 3 * time.Second, time.Minute
	// Another conductor that is not heard of for so long has lost its agents' sessions, or the way to here.
	silence = 10 * time.Second

	maxReports = 2 << 20 // bytes of states in one message, about
	maxAnswer  = 4 << 20 // bytes of news in one answer, about
	maxWaiting = 4       // news that wait for an agent
	maxName    = 64      // bytes of a node's UUID or a network's name in a message; longer ones are refused
)

// relayed is an agent of this conductor, and what it has reported.
type relayed struct {
	who      Member
	st       State
	home     string // "" is here
	whole    bool   // the home is to get everything
	reported bool   // nothing has changed since
	added    []uint32
	again    time.Time // when the home asked for everything last
	news     []*News
}

// home is another conductor at which swarms are at home.
type home struct {
	left, lost []string // nodes
	asking     bool
	next       time.Time
	pause      time.Duration
	instance   string
	failing    time.Time // since when; zero: it is not
	skip       time.Time // until when
}

// guest is another conductor with agents in swarms that are at home here.
type guest struct {
	instance string // changes when all of its agents are forgotten, as at a start
	nodes    map[string]bool
	dirty    map[string]bool // nodes with news
	heard    time.Time
}

// message goes from a relay to a home.
type message struct {
	Members []report `json:"members,omitempty"`
	Left    []string `json:"left,omitempty"`
	Lost    []string `json:"lost,omitempty"`
	Full    []string `json:"full,omitempty"` // nodes that take no more news now
}

// report is an agent's, as it came.
type report struct {
	Node       string `json:"node"`
	Generation uint64 `json:"generation"`
	Network    string `json:"network"`
	Address    string `json:"address"`
	State      []byte `json:"state"` // agentv1.SwarmState
}

// answer is the home's to a message.
type answer struct {
	Instance string    `json:"instance"`
	News     []tidings `json:"news,omitempty"`
	Again    []string  `json:"again,omitempty"` // nodes of which everything has to be reported
}

// tidings are one agent's.
type tidings struct {
	Node string `json:"node"`
	News []byte `json:"news"` // agentv1.SwarmPeers
}

// NewRelay makes a relay; Run has to run.
func NewRelay(s Settings) *Relay {
	s.Log = cmp.Or(s.Log, slog.New(slog.DiscardHandler))
	return &Relay{cfg: s, mine: map[string]*relayed{}, homes: map[string]*home{},
		guests: map[string]*guest{}}
}

// Update takes an agent's report, as Registry.Update. Its accusations are heard at the home of its swarm.
func (r *Relay) Update(who Member, st State) (accused, barred []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.mine[who.Node]
	if m != nil && (st.Left || st.Whole || m.st.Image != st.Image || m.who.Network != who.Network ||
		m.who.Generation != who.Generation || m.st.Chunks != st.Chunks) {
		r.forget(m, st.Left || m.st.Image != st.Image || m.who.Network != who.Network)
		m = nil
	}
	if st.Left {
		return nil, nil
	}
	if m == nil {
		size := (st.Chunks + 7) / 8
		if !st.Whole || st.Chunks < 1 || st.Chunks > maxChunks || len(st.Have) != size ||
			r.memory+memory(st.Chunks) > maxMemory {
			return nil, nil
		}
		m = &relayed{st: st, whole: true}
		m.st.Have, m.st.Added = slices.Clone(st.Have), nil
		r.memory += memory(st.Chunks)
		r.mine[who.Node] = m
		r.unguest(who.Node, "")
	}
	m.who = who
	for _, i := range st.Added {
		if int(i) < m.st.Chunks && m.st.Have[i/8]>>(i%8)&1 == 0 {
			m.st.Have[i/8] |= 1 << (i % 8)
			m.added = append(m.added, i)
		}
	}
	m.st.Port, m.st.Fetching, m.st.Fetched, m.st.Done = st.Port, st.Fetching, st.Fetched, st.Done
	if m.whole {
		m.home = r.homeOf(m)
	}
	if m.home == "" {
		return r.keepHere(m, st.Liars)
	}
	m.st.Liars = append(m.st.Liars, st.Liars...)
	m.st.Liars = m.st.Liars[:min(len(m.st.Liars), maxDegree)]
	m.reported = false
	r.at(m.home).hurry()
	return nil, nil
}

// keepHere reports an agent to the own registry.
func (r *Relay) keepHere(m *relayed, liars []string) (accused, barred []string) {
	st := m.report()
	st.Liars = liars
	return r.here.Update(m.who, st)
}

// report makes an agent's report for its home, and counts it as sent.
func (m *relayed) report() State {
	st := m.st
	if st.Whole = m.whole; !m.whole {
		st.Have, st.Added = nil, m.added
	}
	m.whole, m.reported, m.added, m.st.Liars = false, true, nil, nil
	return st
}

// forget drops an agent; its home hears whether it has left the swarm.
func (r *Relay) forget(m *relayed, left bool) {
	node := m.who.Node
	delete(r.mine, node)
	r.memory -= memory(m.st.Chunks)
	if left {
		r.leave(m)
	}
}

// leave has an agent leave its swarm.
func (r *Relay) leave(m *relayed) {
	node := m.who.Node
	switch h := r.homes[m.home]; {
	case h != nil:
		h.left = append(h.left, node)
		h.hurry()
	case m.home == "" && !r.isGuest("", node):
		r.here.Update(m.who, State{Left: true})
	}
}

// Lost records that the session with a node's agent has ended, as Registry.Lost.
func (r *Relay) Lost(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.mine[node]
	if m == nil {
		return
	}
	r.forget(m, false)
	if m.home == "" {
		if !r.isGuest("", node) { // else it has a session with another conductor by now
			r.here.Lost(node)
		}
		return
	}
	h := r.at(m.home)
	h.lost = append(h.lost, node)
	h.hurry()
}

// News returns what a node's agent has not been sent yet, as Registry.News.
func (r *Relay) News(node string) *News {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.mine[node]
	switch {
	case m == nil:
		return nil
	case m.home == "":
		return r.here.News(node)
	case len(m.news) == 0:
		return nil
	}
	n := m.news[0]
	if m.news = m.news[1:]; len(m.news) > 0 {
		m.who.News()
	}
	return n
}

// homeOf chooses where an agent's swarm is at home now; "" is here.
func (r *Relay) homeOf(m *relayed) string {
	now := time.Now()
	name := r.cfg.Home(hex.EncodeToString(m.st.Image[:])+" "+m.who.Network, func(conductor string) bool {
		h := r.homes[conductor]
		return h != nil && now.Before(h.skip)
	})
	if name == r.cfg.Self {
		return ""
	}
	return name
}

func (r *Relay) at(name string) *home {
	h := r.homes[name]
	if h == nil {
		h = &home{pause: askOften}
		r.homes[name] = h
	}
	return h
}

// hurry has a home be asked soon.
func (h *home) hurry() {
	h.pause = askOften
	if soon := time.Now().Add(askOften); h.next.After(soon) {
		h.next = soon
	}
}

// Run relays until ctx ends.
func (r *Relay) Run(ctx context.Context) {
	var asked sync.WaitGroup
	defer asked.Wait()
	tick := time.NewTicker(askOften / 2)
	defer tick.Stop()
	var looked time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		if now.Sub(looked) >= askSeldom {
			looked = now
			r.settle()
			r.sweep(now)
		}
		r.mu.Lock()
		for name, h := range r.homes {
			if h.asking || now.Before(h.next) {
				continue
			}
			h.next = now.Add(askSeldom)
			if msg := r.collect(name, h); msg != nil {
				h.asking = true
				asked.Go(func() { r.exchange(ctx, name, h, msg) })
			}
		}
		r.mu.Unlock()
	}
}

// settle moves agents whose swarm has got another home, and drops homes of none.
func (r *Relay) settle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := map[string]bool{}
	for _, m := range r.mine {
		if to := r.homeOf(m); to != m.home {
			r.leave(m)
			m.home, m.whole, m.reported, m.news = to, true, false, nil
			if to == "" {
				r.unguest(m.who.Node, "")
				r.keepHere(m, nil)
				m.who.News()
			} else {
				r.at(to).hurry()
			}
		}
		used[m.home] = true
	}
	for name, h := range r.homes {
		if !used[name] && !h.asking && len(h.left)+len(h.lost) == 0 && time.Now().After(h.skip) {
			delete(r.homes, name)
		}
	}
}

// collect makes the message to a home; nil if none of its swarms has an agent of this conductor.
func (r *Relay) collect(name string, h *home) *message {
	msg := &message{Left: h.left, Lost: h.lost}
	size, members := 0, 0
	for node, m := range r.mine {
		if m.home != name {
			continue
		}
		members++
		if len(m.news) >= maxWaiting {
			msg.Full = append(msg.Full, node)
		}
		if m.reported || size > maxReports {
			continue
		}
		st := m.report()
		state, err := proto.Marshal(st.Message())
		if err != nil {
			r.cfg.Log.Error("an agent's report can't be passed on", "node", node, "err", err)
			continue
		}
		size += len(state)
		msg.Members = append(msg.Members, report{Node: node, Generation: m.who.Generation, Network: m.who.Network,
			Address: m.who.Addr.String(), State: state})
	}
	if h.left, h.lost = nil, nil; members == 0 && len(msg.Left)+len(msg.Lost) == 0 {
		return nil
	}
	return msg
}

// exchange sends a message to a home, and takes its answer.
func (r *Relay) exchange(ctx context.Context, name string, h *home, msg *message) {
	a, err := r.ask(ctx, name, msg)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	h.asking = false
	if err != nil {
		// What has arrived is not known, nor whose news were in the answer.
		h.left, h.lost = append(msg.Left, h.left...), append(msg.Lost, h.lost...)
		for _, m := range r.mine {
			if m.home == name {
				m.whole, m.reported = true, false
			}
		}
		if h.failing.IsZero() {
			h.failing = now
		}
		if now.Sub(h.failing) >= trust && ctx.Err() == nil {
			r.cfg.Log.Warn("another conductor can't be asked about swarms: its agents and those of this one give each other nothing",
				"conductor", name, "err", err)
			h.skip, h.failing, h.left, h.lost = now.Add(mistrust), time.Time{}, nil, nil
		}
		h.pause = askSeldom
		h.next = now.Add(h.pause)
		return
	}
	h.failing = time.Time{}
	if h.instance != "" && h.instance != a.Instance {
		a.Again = nil
		for node, m := range r.mine {
			if m.home == name {
				a.Again = append(a.Again, node)
			}
		}
	}
	h.instance = a.Instance
	for _, node := range a.Again {
		if m := r.mine[node]; m != nil && m.home == name && now.Sub(m.again) > trust {
			m.whole, m.reported, m.again = true, false, now
		}
	}
	for _, t := range a.News {
		if m := r.mine[t.Node]; m != nil && m.home == name {
			if n, err := newsOf(t.News); err == nil && n.Image == m.st.Image {
				m.news = append(m.news, n)
				m.who.News()
			}
		}
	}
	if h.pause = min(2*h.pause, askSeldom); len(msg.Members)+len(a.News)+len(a.Again) > 0 {
		h.pause = askOften
	}
	h.next = now.Add(h.pause)
}

func newsOf(b []byte) (*News, error) {
	var m agentv1.SwarmPeers
	if err := proto.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	n, err := contract.NewsOf(&m)
	return &n, err
}

func (r *Relay) ask(ctx context.Context, name string, msg *message) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	b, err := json.Marshal(msg)
	if err != nil {
		return nil, err
	}
	out, err := r.cfg.Ask(ctx, name, b)
	if err != nil {
		return nil, err
	}
	var a answer
	if err := json.Unmarshal(out, &a); err != nil {
		return nil, fmt.Errorf("its answer is none: %w", err)
	}
	return &a, nil
}
