// Package pool keeps available nodes warm: booted into the agent, which waits, so that a deployment begins without
// firmware.
//
// The decision of a pool is a pure function (Decide) of its policy, of the state of each of its machines, and of the
// time. Around it are FactOf, which describes a node, and Observe, which returns the record to keep of it: since when
// it is warm, and how often and why it stopped. A node belongs to one pool, the most specific one. Runner looks at all
// pools after a change and from time to time, and makes the engine carry out the decision. All records are in the
// store, so another conductor, or the same one after a restart, goes on from there.
//
// The limits of power hold for the machines of a pool that are available and on, for whatever reason; those that are
// used by an instance, or being cleaned or inspected, are not the pool's. A machine counts from before it is asked to
// turn on until its power was read as off, so the limits hold at every moment and not just in the end.
//
// One conductor at a time decides for all pools: the one that has the duty named Duty in the store.
package pool

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/events"
	"github.com/ingot-metal/ingot/conductor/schedule/rounds"
	"github.com/ingot-metal/ingot/conductor/store"
)

// Duty is the name in the store of what one conductor does at a time.
const Duty = "pools"

// User begins the name of a pool's actions in histories; the pool's name follows.
const User = "pool "

// db is the part of the store that a Runner needs.
type db interface {
	facts
	SetPoolMember(ctx context.Context, m node.PoolMember) error
	TakeDuty(ctx context.Context, name, conductor string,
		during time.Duration) (holder string, until time.Time, err error)
}

// facts is where pools and their machines are read from.
type facts interface {
	Pools() *store.Table[node.Pool]
	PoolMembers(ctx context.Context) (map[string]node.PoolMember, error)
	Promises(ctx context.Context) ([]node.Promise, error)
	Nodes(ctx context.Context, q store.Query) ([]*node.Node, error)
}

// machines carries out decisions. An error means that nothing was begun.
type machines interface {
	// Warm boots the agent of an available node.
	Warm(ctx context.Context, ident, user string) error
	// Cool turns a node off that is warm, or was meant to be.
	Cool(ctx context.Context, ident, user string) error
	// Stage has an image (instance_info of it) written ahead to a warm node.
	Stage(ctx context.Context, ident string, image map[string]any, user string) error
}

// Config is the configuration of a Runner.
type Config struct {
	Hostname string        // of this conductor
	Interval time.Duration // between two looks when nothing seems to change. Zero: ten seconds
	Pace     Pace
	// Passing reports whether an error of machines says nothing about the node, as when another client holds its lock.
	// Nil: none does.
	Passing func(error) bool
	Now     func() time.Time // nil: time.Now
}

// Runner carries out the policies.
type Runner struct {
	db  db
	do  machines
	hub *events.Hub
	cfg Config
	log *slog.Logger
}

// New makes a Runner; Run starts it. With a nil hub it looks from time to time only. A nil log is silent.
func New(st db, do machines, hub *events.Hub, cfg Config, log *slog.Logger) *Runner {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	if cfg.Interval <= 0 {
		cfg.Interval = 10 * time.Second
	}
	if cfg.Passing == nil {
		cfg.Passing = func(error) bool { return false }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Pace = cfg.Pace.filled()
	return &Runner{db: st, do: do, hub: hub, cfg: cfg, log: log}
}

// Run works until ctx ends or the hub is closed.
func (r *Runner) Run(ctx context.Context) {
	(&rounds.Rounds{
		Name: "pools", Hub: r.hub, Interval: r.cfg.Interval, Now: r.cfg.Now, Log: r.log,
		Matters: func(e node.Event, idle bool) bool { return e.Kind == "pool" || e.Kind == "node" && !idle },
		Look: func(ctx context.Context) (time.Time, bool, error) {
			next, pools, err := r.Pass(ctx)
			return next, pools == 0, err
		},
	}).Run(ctx)
}

// lastMoment is how much of the duty must be left for an act to be begun: another conductor begins when it is over.
const lastMoment = 5 * time.Second

// Pass checks all pools once and begins the actions that are due. next is when it should be called again even if
// nothing changes; zero says nothing. pools is the number of pools.
func (r *Runner) Pass(ctx context.Context) (next time.Time, pools int, err error) {
	w, err := Look(ctx, r.db)
	if err != nil {
		return time.Time{}, 0, err
	}
	if len(w.Pools) == 0 && len(w.Orphans()) == 0 {
		return time.Time{}, 0, nil
	}
	holder, until, err := r.db.TakeDuty(ctx, Duty, r.cfg.Hostname, max(time.Minute, 3*r.cfg.Interval))
	if err != nil {
		return time.Time{}, len(w.Pools), err
	}
	if holder != r.cfg.Hostname {
		return until, len(w.Pools), nil
	}
	var faults []error
	mine := func() bool { return until.Sub(r.cfg.Now()) > lastMoment && ctx.Err() == nil }
	for _, p := range append(slices.Clone(w.Pools), nil) {
		facts := w.Facts(p)
		for i := range facts {
			f := &facts[i]
			m := Observe(f, r.cfg.Now(), r.cfg.Pace)
			if p == nil && m.Asked.IsZero() && !m.Left {
				m = node.PoolMember{NodeUUID: f.UUID} // there is nothing more to do about it
			}
			if m == f.Member {
				continue
			}
			if m.Failures > f.Member.Failures {
				r.log.Warn("a machine fell out of its pool", "node", f.UUID, "pool", poolName(p), "reason", m.Reason,
					"failures", m.Failures)
			}
			if err := r.remember(ctx, f, m); err != nil {
				faults = append(faults, err)
			}
		}
		policy := p
		if p == nil { // what no pool is for any more is turned off
			policy = &node.Pool{}
		}
		d := Decide(policy, facts, r.cfg.Now(), r.cfg.Pace)
		if !d.Next.IsZero() && (next.IsZero() || d.Next.Before(next)) {
			next = d.Next
		}
		for _, a := range d.Acts {
			if !mine() {
				return next, len(w.Pools), errors.Join(faults...)
			}
			f := &facts[slices.IndexFunc(facts, func(f Fact) bool { return f.UUID == a.Node })]
			if err := r.act(ctx, policy, f, a); err != nil {
				faults = append(faults, err)
			}
		}
	}
	return next, len(w.Pools), errors.Join(faults...)
}

func poolName(p *node.Pool) string {
	if p == nil {
		return ""
	}
	return p.Name
}

// remember stores the new record of a machine. One that was deleted meanwhile is ignored.
func (r *Runner) remember(ctx context.Context, f *Fact, m node.PoolMember) error {
	m.NodeUUID = f.UUID
	if err := r.db.SetPoolMember(ctx, m); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	f.Member = m
	return nil
}

// act begins one action. The intent is stored before, so that a conductor that is killed in between finds the action
// that it may have begun.
func (r *Runner) act(ctx context.Context, p *node.Pool, f *Fact, a Act) error {
	now := r.cfg.Now().UTC()
	before, m := f.Member, f.Member
	user := User + p.Name
	if p.Name == "" {
		user = "pool that is gone"
	}
	var begin func() error
	switch a.Do {
	case DoWarm:
		m.Pool, m.Asked, m.Since, m.Left = p.UUID, now, time.Time{}, false
		begin = func() error { return r.do.Warm(ctx, f.UUID, user) }
	case DoCool:
		m.Asked, m.Since, m.Left, m.Cooled = time.Time{}, time.Time{}, true, now
		begin = func() error { return r.do.Cool(ctx, f.UUID, user) }
	case DoStage:
		m.Staging = now
		begin = func() error { return r.do.Stage(ctx, f.UUID, p.Image, user) }
	}
	if err := r.remember(ctx, f, m); err != nil {
		return err
	}
	err := begin()
	switch {
	case err == nil:
		r.log.Info("a pool has a machine "+a.Do+"ed", "node", f.UUID, "pool", p.Name, "reason", a.Why)
		return nil
	case ctx.Err() != nil:
		return nil // the next conductor finds the intent
	case r.cfg.Passing(err), errors.Is(err, store.ErrNotFound):
		r.log.Debug("a pool's machine is busy", "node", f.UUID, "pool", p.Name, "err", err)
		return r.remember(ctx, f, before)
	}
	switch a.Do {
	case DoWarm:
		before.Failures, before.FailedAt, before.Reason = before.Failures+1, now, err.Error()
	case DoCool:
		before.Cooled = now
	case DoStage:
		before.StageFailures, before.StageFailedAt, before.StageReason = before.StageFailures+1, now, err.Error()
	}
	r.log.Warn("a pool's machine can't be "+a.Do+"ed", "node", f.UUID, "pool", p.Name, "err", err)
	return r.remember(ctx, f, before)
}

// World is all pools, and all machines as they stand.
type World struct {
	Pools    []*node.Pool // those that say most about their nodes first
	nodes    []*node.Node
	byID     map[string]*node.Node
	of       map[string]*node.Pool // by node
	members  map[string]node.PoolMember
	promised map[string]bool // nodes whose time in a reservation has begun
}

// Look reads pools, nodes and the pools' records of them.
func Look(ctx context.Context, st facts) (*World, error) {
	pools, err := st.Pools().List(ctx, "")
	if err != nil {
		return nil, err
	}
	members, err := st.PoolMembers(ctx)
	if err != nil || len(pools) == 0 && len(members) == 0 {
		return &World{}, err
	}
	nodes, err := st.Nodes(ctx, store.Query{})
	if err != nil {
		return nil, err
	}
	promises, err := st.Promises(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(pools, func(a, b *node.Pool) int {
		if a.Before(b) {
			return -1
		}
		if b.Before(a) {
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	w := &World{Pools: pools, nodes: nodes, byID: make(map[string]*node.Node, len(nodes)), of: map[string]*node.Pool{},
		members: members, promised: map[string]bool{}}
	for _, p := range promises {
		if now := time.Now(); p.Meets(now, now.Add(1)) {
			w.promised[p.NodeUUID] = true
		}
	}
	for _, n := range nodes {
		w.of[n.UUID], w.byID[n.UUID] = w.poolFor(n), n
	}
	return w, nil
}

func (w *World) poolFor(n *node.Node) *node.Pool {
	for _, p := range w.Pools {
		if p.Matches(n) {
			return p
		}
	}
	return nil
}

// Of is the pool that a node belongs to; nil when there is none.
func (w *World) Of(nodeUUID string) *node.Pool { return w.of[nodeUUID] }

// Node returns a node as it was when it was read; nil if it did not exist, or was not read.
func (w *World) Node(nodeUUID string) *node.Node { return w.byID[nodeUUID] }

// Member returns the pool's record of a node.
func (w *World) Member(nodeUUID string) node.PoolMember {
	m := w.members[nodeUUID]
	m.NodeUUID = nodeUUID
	return m
}

// Facts are those of the nodes that belong to a pool; with nil, those of the nodes that a pool has touched and that
// belong to none any more.
func (w *World) Facts(p *node.Pool) []Fact {
	var out []Fact
	for _, n := range w.nodes {
		if w.of[n.UUID] != p {
			continue
		}
		m, known := w.members[n.UUID]
		if p == nil && !known {
			continue
		}
		m.NodeUUID = n.UUID
		policy := p
		if p == nil {
			policy = &node.Pool{}
		}
		f := FactOf(n, policy, m)
		if w.promised[n.UUID] && f.Excluded == "" {
			f.Excluded = "it is promised to a reservation, which has it ready"
		}
		out = append(out, f)
	}
	return out
}

// Orphans are the facts of nodes that a pool has touched and that belong to none any more.
func (w *World) Orphans() []Fact { return w.Facts(nil) }
