// Package engine moves nodes from state to state.
//
// It is one loop over the store. The work on a node is its Job, a list of steps, stored in the same transaction as the
// state it belongs to. A worker takes a node, reads it, does one action of the current step, and stores the result;
// before each action it stores its intent (Job.Note), and each action can be repeated. So a conductor that dies at any
// point leaves a node that the next one goes on with.
//
// For each verb, one row of the table in verbs.go says what it refuses, does at once, which steps it needs, where they
// lead, and what a failure takes back. Steps that the conductor does (power, boot device, network) are in one table in
// steps.go. Steps of the agent go to it as one plan per maximal run; the agent carries the plan out by itself and its
// results come in through AgentEvent. A plan is sent again until the agent has it; its results are identified by plan
// and index, so that each counts once.
//
// Three mechanisms guard a node. A node is in one worker at a time. A controller (power.Driver.Key) is used by one node
// at a time; the others wait in line. And one conductor owns the node, for as long as it lives (Conductors): it alone
// acts on the machine, each claim of the node raises its fencing number, and a former owner can't write to the node any
// more. Requests come in at any conductor: they are stored without touching the ownership (request), and the owner is
// woken; what an act writes goes by change, which only the owner may. Node.Reservation is only shown by the API: it is
// set while the conductor has the next move.
//
// A conductor asks before each call to a controller or an agent whether it may still act (Conductors.Check). If not,
// the act ends with a *LapsedError: nothing is stored, no try is counted, and the node is looked at again soon. A job
// whose conductor died is taken over by another, as by the same one after a restart, after a reading of the power. So
// is one that was handed over (HandOver) between two acts, whatever it waits for: plans are identified, and power
// actions are repeated until the machine is as it is to be.
//
// Code that needs neither the engine's locks nor a pass over a node is in packages below, none of which imports the
// engine:
//
//   - turn: which node is looked at next, and who may use a controller
//   - instance: the node's settings for its system: image, disk, traits, rescue keys
//   - catalog: the steps that exist, and the arguments of the agent's
//   - start: how the installed system is started, and known to have come up
//   - program: the steps of a request, in order, with their arguments
//   - record: where a job is in the agent's plan, which of its results stay, how far a boot came
//   - findings: the results of an inspection, hooks and rules, and the requests of rules
//   - watch: signs of life of a started system
//
// Nothing spins: every request to a machine is made a bounded number of times, with growing pauses, and within a limit
// of time, after which the job fails with a sentence that says what happened and what to do.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/findings"
	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/engine/turn"
	"github.com/ingot-metal/ingot/conductor/engine/watch"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// db is the part of the store that the engine needs.
type db interface {
	Change(ctx context.Context, uuid string, change func(*node.Node, *node.SideEffects) error) (*node.Node, error)
	UUIDs(ctx context.Context, busy bool) ([]string, error)
	Kept(ctx context.Context) ([]string, error)
	Idle(ctx context.Context) ([]node.Idle, error)
	Owned(ctx context.Context, conductor string) ([]string, error)
	Marks(ctx context.Context, nodeUUID, jobID string) ([]node.Mark, error)
	Leases(ctx context.Context) ([]node.Lease, error)
	program.Library
	findings.Store
}

// AgentLink reaches the agents that are connected.
type AgentLink interface {
	// Connected reports whether the node's agent has a session here.
	Connected(nodeUUID string) bool
	// SendPlan sends a plan to the node's agent, or fails when none is connected. An agent ignores a plan that it has.
	SendPlan(ctx context.Context, nodeUUID string, p node.Plan) error
	// CancelPlan stops a plan: at once if the running step is abortable, else at that step's end.
	CancelPlan(ctx context.Context, nodeUUID, planID string) error
	// Power asks the agent to end this boot.
	Power(ctx context.Context, nodeUUID string, a node.PowerAction) error
	// Kexec asks the agent to leave and, after delay, to jump into the kernel that it has loaded. It returns nil when
	// the agent has ended its session in order, an error when it has not by the end of ctx.
	Kexec(ctx context.Context, nodeUUID string, delay time.Duration) error
	// CloseSession ends the agent's stream.
	CloseSession(nodeUUID string)
	// Redirect ends the agent's stream, if it has one here, and sends the agent to the conductor that owns the node
	// now. It returns when nothing of that stream acts any more, or with the error of ctx.
	Redirect(ctx context.Context, nodeUUID string) error
}

// Drivers opens controllers of machines.
type Drivers interface {
	// Open makes the node's power driver. Errors are of type *power.Error.
	Open(n *node.Node) (power.Driver, error)
	// Interface returns the interface of a kind ("deploy", "inspect", ...) that the node uses: its own choice or its
	// type's default.
	Interface(n *node.Node, kind string) string
}

// Network connects machines to networks.
type Network interface {
	// Attach connects the node's ports to a network, and is called again when in doubt: also after a *ServiceError,
	// which says that it may work later.
	Attach(ctx context.Context, n *node.Node, to NetworkName) error
}

// networkValidator is a network that knows without touching a switch whether a node has what a deployment to the
// tenant's network needs. Its errors are for people: a request is refused with them.
type networkValidator interface {
	Validate(ctx context.Context, n *node.Node) error
}

// networkFault returns why a node can't be brought to its tenant's network, as an *InvalidError, or as a *ServiceError
// when the network service can't be asked.
func (e *Engine) networkFault(ctx context.Context, n *node.Node) error {
	v, ok := e.network.(networkValidator)
	if !ok {
		return nil
	}
	err := v.Validate(ctx, n)
	var down *ServiceError
	if err == nil || ctx.Err() != nil || errors.As(err, &down) {
		return cmp.Or(ctx.Err(), err)
	}
	return node.Invalidf("network interface %s: %v", e.drivers.Interface(n, "network"), err)
}

// networkDescriber is a network that knows the addresses of an instance beforehand.
type networkDescriber interface {
	// NetworkData returns OpenStack's network_data of a node's instance; nil: the network does not know.
	NetworkData(ctx context.Context, n *node.Node) (map[string]any, error)
}

// networkData returns the network_data for the config drive of a deployment that brings one as an object without it;
// nil when it has its own, or none is known.
func (e *Engine) networkData(ctx context.Context, n *node.Node, drive any) (map[string]any, error) {
	d, ok := e.network.(networkDescriber)
	if drive == nil {
		drive = n.InstanceInfo["configdrive"]
	}
	object, _ := drive.(map[string]any)
	if !ok || object == nil || object["network_data"] != nil {
		return nil, nil
	}
	data, err := d.NetworkData(ctx, n)
	var down *ServiceError
	if err == nil || ctx.Err() != nil || errors.As(err, &down) {
		return data, cmp.Or(ctx.Err(), err)
	}
	return nil, node.Invalidf("network interface %s: %v", e.drivers.Interface(n, "network"), err)
}

// NetworkName says which network a machine is to be on.
type NetworkName string

// Networks.
const (
	ProvisioningNetwork NetworkName = "provisioning"
	TenantNetwork       NetworkName = "tenant"
	NoNetwork           NetworkName = "none"
)

// Engine moves nodes. Safe for concurrent use.
type Engine struct {
	db      db
	drivers Drivers // checked
	network Network
	cfg     Config
	log     *slog.Logger

	queue *turn.Queue
	bmcs  *turn.Locks

	conductors Conductors

	claims claims
	plugs  program.Plugs
	images BootImages
	steps  []conductorStep // that the conductor does
	rows   []steparg.Row   // of steps
	sync   *powerSync
	began  time.Time // of this engine's life

	rescans chan struct{} // requests for a search of the store

	watches *watch.Watches // of systems that are being started
	hearing hearing

	onState func(node.Transition) // for tests: called for every change of state, stored or not

	mu       sync.Mutex
	link     AgentLink
	owned    map[string]uint64        // fencing numbers of nodes this engine has claimed
	unread   map[string]bool          // of those, jobs that another had: the power is read before they go on
	changed  map[string]bool          // perhaps by another conductor, since they were looked at
	progress map[string]node.Progress // of running plans
	inStep   map[string]string        // step that runs
	alive    map[string]time.Time     // last sign of life of an agent
	holds    map[string]string        // plan that the agent said it holds
	sent     map[string]string        // plan that was sent last, in this session
	asked    map[string]ask           // when power actions were requested
	met      map[string]string        // boot whose agent had a session with this conductor
	differs  map[string]time.Time     // since when the store's agent is not as the session here
	returned time.Time                // when an agent that had lost its session last came back
}

// New makes an engine; Run starts it. link and network may be nil: no agent is reachable, all machines are on one
// network.
func New(store db, drivers Drivers, link AgentLink, network Network, cfg Config, log *slog.Logger) *Engine {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	e := &Engine{
		db: store, link: link, network: network, cfg: cfg.withDefaults(), log: log, rescans: make(chan struct{}, 1),
		queue: turn.NewQueue(), bmcs: turn.NewLocks(),
		owned: map[string]uint64{}, unread: map[string]bool{}, changed: map[string]bool{},
		progress: map[string]node.Progress{}, inStep: map[string]string{}, alive: map[string]time.Time{},
		holds: map[string]string{}, sent: map[string]string{}, asked: map[string]ask{}, met: map[string]string{},
		differs: map[string]time.Time{},
		claims:  claims{seed: maphash.MakeSeed()}, sync: newPowerSync(), began: time.Now(), steps: conductorSteps(),
	}
	e.conductors = cmp.Or(e.cfg.Conductors, Conductors(alone(e.cfg.Hostname)))
	e.db = metered{store, e.cfg.Meter}
	e.drivers = checkedDrivers{drivers, e.check, func(n *node.Node, call string, took time.Duration, err error) {
		e.called(n, "power", call, took, err)
	}}
	e.rows = rowsOf(e.steps)
	e.watches = watch.New(store, e.drivers, e.sign, e.cfg.SignNetworks, e.cfg.signGuard, log)
	return e
}

// SetLink sets how to reach agents, for a link that itself needs the engine.
func (e *Engine) SetLink(l AgentLink) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.link = l
}

// errNoLink is the error of requests to agents when no link is set.
var errNoLink = errors.New("agents are not reachable")

func (e *Engine) agents() checkedLink {
	e.mu.Lock()
	defer e.mu.Unlock()
	return checkedLink{cmp.Or(e.link, AgentLink(noLink{})), e.check}
}

type noLink struct{}

func (noLink) Connected(string) bool                                 { return false }
func (noLink) SendPlan(context.Context, string, node.Plan) error     { return errNoLink }
func (noLink) CancelPlan(context.Context, string, string) error      { return errNoLink }
func (noLink) Power(context.Context, string, node.PowerAction) error { return errNoLink }
func (noLink) Kexec(context.Context, string, time.Duration) error    { return errNoLink }
func (noLink) CloseSession(string)                                   {}
func (noLink) Redirect(context.Context, string) error                { return nil }

// Run works until ctx ends: first on everything that was under way when the conductor was last stopped.
func (e *Engine) Run(ctx context.Context) error {
	ids, err := e.unfinished(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find work: %w", err)
	}
	e.wakeAll(ids)
	if len(ids) > 0 {
		e.log.Info("going on with unfinished work", "nodes", len(ids))
	}

	defer e.watches.Wait()
	var wg sync.WaitGroup
	defer wg.Wait()
	if e.cfg.PowerSync > 0 {
		wg.Go(func() { e.every(ctx, e.cfg.PowerSync, nil, func() error { return e.syncPower(ctx) }) })
	}
	wg.Go(func() { e.hear(ctx) })
	wg.Go(func() { e.rescan(ctx) })
	slots := make(chan struct{}, e.cfg.Workers)
	for {
		id, ok := e.queue.Next(ctx)
		if !ok {
			return nil
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		wg.Go(func() {
			defer func() { <-slots }()
			after := e.look(ctx, id)
			e.bmcs.Release(id)
			e.queue.Done(id, after)
		})
	}
}

// rescan looks for unfinished work that was not reported to this engine, such as that of a conductor that died, and for
// nodes that are to be another conductor's.
func (e *Engine) rescan(ctx context.Context) {
	e.every(ctx, e.cfg.Rescan, e.rescans, func() error {
		ids, err := e.unfinished(ctx)
		e.wakeAll(ids)
		return errors.Join(err, e.rebalance(ctx))
	})
}

// Rescan has the store searched now for work that is this conductor's, as when another has died or has come.
func (e *Engine) Rescan() {
	select {
	case e.rescans <- struct{}{}:
	default:
	}
}

// Bounds of the time over which nodes are spread that this conductor looks at for the first time, such as all those of
// a conductor that died: their controllers and its store are not to be asked all at once.
const (
	firstApart  = 10 * time.Millisecond
	firstWithin = 10 * time.Second
)

// wakeAll has nodes looked at, whose conductors may be others: those that this one owns now, the rest little by little.
func (e *Engine) wakeAll(ids []string) {
	e.mu.Lock()
	var first []string
	for _, id := range ids {
		e.changed[id] = true
		if _, ok := e.owned[id]; !ok {
			first = append(first, id)
		}
	}
	e.mu.Unlock()
	for _, id := range ids {
		if _, ok := e.fence(id); ok {
			e.wake(id)
		}
	}
	now, apart := time.Now(), min(firstApart, firstWithin/time.Duration(max(1, len(first))))
	for i, id := range first {
		e.queue.Wake(id, now.Add(time.Duration(i)*apart))
	}
}

// unfinished lists the nodes that have to be looked at: those with work under way, and those whose agent is kept.
func (e *Engine) unfinished(ctx context.Context) ([]string, error) {
	busy, err := e.db.UUIDs(ctx, true)
	if err != nil {
		return nil, err
	}
	kept, err := e.db.Kept(ctx)
	if err != nil || e.cfg.Conductors == nil || len(kept) == 0 {
		return append(busy, kept...), err
	}
	// To read thousands of nodes only to find that other conductors have them would be most of an idle one's work.
	idle, err := e.db.Idle(ctx)
	theirs := map[string]bool{}
	for _, r := range idle {
		theirs[r.UUID] = r.Conductor != "" && r.Conductor != e.cfg.Hostname && e.conductors.Lives(r.Conductor)
	}
	return append(busy, slices.DeleteFunc(kept, func(id string) bool { return theirs[id] })...), err
}

// every calls f each time so long has passed since it was called last, or when now says so; a call that takes longer
// than half of that is followed by a pause of half.
func (e *Engine) every(ctx context.Context, interval time.Duration, now <-chan struct{}, f func() error) {
	tick := time.NewTimer(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-now:
		}
		begun := time.Now()
		if err := f(); err != nil && ctx.Err() == nil {
			e.log.Error("nodes can't be listed: unfinished work and power states are not looked at", "err", err)
		}
		tick.Reset(max(interval-time.Since(begun), interval/2)) // from one begin to the next
	}
}

// never is how long a node waits that only an event can move.
const never = turn.Never

// look does the work that is due on a node, and returns after how long to look again.
func (e *Engine) look(ctx context.Context, id string) time.Duration {
	log := e.log.With("node", id)
	after, err := e.advance(power.WithCheck(ctx, e.check), id)
	switch {
	case err == nil:
		return after
	case ctx.Err() != nil, errors.Is(err, node.ErrNotFound):
		return never
	case errors.Is(err, errMoved):
		return 0 // another writer changed the node meanwhile: look again
	case errors.Is(err, errFenced):
		return 0 // what was begun before is over: it is claimed anew
	case held(err):
		return never // should its owner die, rescan finds it
	case lapsed(err):
		log.Debug("the node waits", "err", err)
		return e.cfg.RetryBase
	}
	// The store itself fails: nothing can be promised, but the next look may find it well again.
	log.Error("work on the node failed", "err", err)
	return e.cfg.RetryBase
}

// Enrolled wakes the node's job after its agent has enrolled.
func (e *Engine) Enrolled(_ context.Context, nodeUUID string) { e.wake(nodeUUID) }

// Wake has a node looked at now that another conductor has changed; one that is not this conductor's is left alone.
func (e *Engine) Wake(nodeUUID string) {
	e.mu.Lock()
	e.changed[nodeUUID] = true
	e.mu.Unlock()
	e.wake(nodeUUID)
}

// wake has a node looked at now.
func (e *Engine) wake(id string) { e.queue.Wake(id, time.Now()) }
