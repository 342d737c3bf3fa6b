// Package health asks the controllers of nodes how their machines are, again and again, and keeps what they said last.
//
// It asks about nodes only that nothing is under way on and that are not in maintenance, so many at once and no more, a
// controller about one node at a time, and each node so long after its last reading. Nodes whose controllers fail are
// asked more and more rarely. A reading ends at once when work on its node begins. What is kept is beside the nodes; a
// node's record changes only when its health does, with a line in its history, as in Ironic.
package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/node"
)

// nodeStore has the needed part of the store.
type nodeStore interface {
	Idle(ctx context.Context) ([]node.Idle, error)
	Node(ctx context.Context, ident string) (*node.Node, error)
	Change(ctx context.Context, uuid string, f func(n *node.Node, effects *node.SideEffects) error) (*node.Node, error)
	Reading(ctx context.Context, nodeUUID string) (node.Reading, error)
	KeepReading(ctx context.Context, r node.Reading) error
	DropReading(ctx context.Context, nodeUUID string) error
}

// monitors finds what reads a node's machine.
type monitors interface {
	Monitor(n *node.Node) hardware.Monitor
}

// Config is the configuration.
type Config struct {
	Hostname string // of this conductor
	// Here returns why this conductor may not ask the machine of a node now, nil if it may; nil itself: it may ask all.
	Here     func(n *node.Node) error
	Interval time.Duration // between two readings of a node; zero or less: nothing is read
	AtOnce   int           // readings under way at a time
	Faults   bool          // parts that fail or are going to are a fault of the node
	Meter    meter         // nil: nothing is shown elsewhere
}

// meter shows what is read.
type meter interface {
	// Reading has a reading of a node, in place of the one before; Forget says that there is none to be shown.
	Reading(n *node.Node, r node.Reading)
	Forget(nodeUUID string)
	// HealthRead counts the call to the controller.
	HealthRead(n *node.Node, took time.Duration, err error)
}

type noMeter struct{}

func (noMeter) Reading(*node.Node, node.Reading)            {}
func (noMeter) Forget(string)                               {}
func (noMeter) HealthRead(*node.Node, time.Duration, error) {}

// Bounds of the waiting: of the first look at a node, of one after failures, between two looks at what is due.
const (
	firstWithin = time.Minute
	longestRest = 6 * time.Hour
	mostLook    = 10 * time.Second
	leastLook   = 50 * time.Millisecond
)

// readingLimit bounds one reading.
const readingLimit = 3 * time.Minute

// busyLook is how often a node is looked at while its machine is read.
const busyLook = time.Second

// Runner does it.
type Runner struct {
	store    nodeStore
	monitors monitors
	cfg      Config
	log      *slog.Logger

	mu    sync.Mutex
	nodes map[string]*watched // by UUID
	busy  map[string]bool     // controllers, by key
	under int                 // readings under way
}

type watched struct {
	due    time.Time
	failed int // in a row
	under  bool
}

// New makes a runner. log may be nil, which is silent.
func New(st nodeStore, m monitors, cfg Config, log *slog.Logger) *Runner {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg.Meter = cmp.Or(cfg.Meter, meter(noMeter{}))
	return &Runner{store: st, monitors: m, cfg: cfg, log: log, nodes: map[string]*watched{}, busy: map[string]bool{}}
}

// Run reads until ctx ends, and returns when the last reading has.
func (r *Runner) Run(ctx context.Context) {
	if r.cfg.Interval <= 0 {
		return
	}
	var under sync.WaitGroup
	defer under.Wait()
	look := time.NewTicker(min(max(r.cfg.Interval/20, leastLook), mostLook))
	defer look.Stop()
	for {
		if err := r.round(ctx, &under); err != nil && ctx.Err() == nil {
			r.log.Error("look for nodes whose health is to be read", "err", err)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// round begins the readings that are due, as far as there is room.
func (r *Runner) round(ctx context.Context, under *sync.WaitGroup) error {
	idle, err := r.store.Idle(ctx)
	if err != nil {
		return err
	}
	r.forget(idle)
	for _, i := range idle {
		if ctx.Err() != nil {
			return nil
		}
		// Those of other conductors are not even read: with thousands of them that would be most of an idle one's work.
		if r.cfg.Here != nil && i.Conductor != "" && i.Conductor != r.cfg.Hostname {
			r.cfg.Meter.Forget(i.UUID)
			continue
		}
		if !r.due(i.UUID) {
			continue
		}
		n, err := r.store.Node(ctx, i.UUID)
		if err != nil {
			r.log.Debug("read node", "node", i.UUID, "err", err)
			continue
		}
		if !r.may(n) {
			r.cfg.Meter.Forget(n.UUID)
			continue
		}
		m := r.monitors.Monitor(n)
		if m == nil {
			r.unmonitored(ctx, n)
			continue
		}
		key := m.Controller(n)
		if !r.begin(n.UUID, key) {
			continue
		}
		under.Go(func() { r.end(n.UUID, key, r.read(ctx, n, m)) })
	}
	return nil
}

// may reports whether this conductor may ask the machine of a node now.
func (r *Runner) may(n *node.Node) bool { return r.cfg.Here == nil || r.cfg.Here(n) == nil }

// forget drops what is known of nodes that are not watched any more.
func (r *Runner) forget(idle []node.Idle) {
	ids := make(map[string]bool, len(idle))
	for _, i := range idle {
		ids[i.UUID] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, w := range r.nodes {
		if !ids[id] && !w.under {
			delete(r.nodes, id)
		}
	}
}

// due reports whether a node is to be read now. Those that are new are spread over a while.
func (r *Runner) due(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.nodes[id]
	if w == nil {
		w = &watched{due: time.Now().Add(rand.N(min(firstWithin, r.cfg.Interval)))}
		r.nodes[id] = w
	}
	return !w.under && r.under < r.cfg.AtOnce && !time.Now().Before(w.due)
}

// begin takes a node and its controller.
func (r *Runner) begin(id, key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[key] {
		return false
	}
	r.busy[key], r.nodes[id].under = true, true
	r.under++
	return true
}

// end gives them back.
func (r *Runner) end(id, key string, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.busy, key)
	r.under--
	w := r.nodes[id]
	w.under = false
	if !failed {
		w.failed = 0
	} else {
		w.failed++
	}
	w.due = time.Now().Add(r.rest(w.failed))
}

// rest is the time to the next reading, a little more or less, so that readings do not gather.
func (r *Runner) rest(failed int) time.Duration {
	d := r.cfg.Interval
	for i := 0; i < failed && d < longestRest; i++ {
		d *= 2
	}
	d = max(min(d, longestRest), r.cfg.Interval)
	return d - d/20 + rand.N(d/10+1)
}

// unmonitored clears what was read of a node whose interface reads no health.
func (r *Runner) unmonitored(ctx context.Context, n *node.Node) {
	r.cfg.Meter.Forget(n.UUID)
	if n.Health != "" || n.Fault == node.FaultHardware {
		if err := r.store.DropReading(ctx, n.UUID); err != nil {
			r.log.Debug("forget health", "node", n.UUID, "err", err)
		}
		r.note(ctx, n, "", nil)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes[n.UUID].due = time.Now().Add(r.rest(0))
}

// errBusy ends a reading.
var errBusy = errors.New("work on the node has begun, or it is another conductor's")

// read reads a machine and keeps the result. A node that is worked on meanwhile is left alone; that is no failure.
func (r *Runner) read(ctx context.Context, n *node.Node, m hardware.Monitor) (failed bool) {
	rctx, stop := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { r.watch(rctx, n.UUID, stop) })
	tctx, cancel := context.WithTimeout(rctx, readingLimit)
	began := time.Now()
	got, err := m.Health(tctx, n)
	took := time.Since(began)
	cancel()
	busy := errors.Is(context.Cause(rctx), errBusy)
	stop(nil)
	watch.Wait()
	if ctx.Err() != nil || busy {
		return false
	}
	r.cfg.Meter.HealthRead(n, took, err)
	now := time.Now().UTC()
	if err != nil {
		r.log.Debug("the health can't be read", "node", n.UUID, "err", err)
		kept, kerr := r.store.Reading(ctx, n.UUID)
		if kerr == nil {
			kept.TriedAt, kept.Error = now, err.Error()
			kerr = r.store.KeepReading(ctx, kept)
		}
		if kerr != nil {
			r.log.Debug("keep health", "node", n.UUID, "err", kerr)
		}
		return true
	}
	got.NodeUUID, got.At, got.TriedAt = n.UUID, now, now
	r.cfg.Meter.Reading(n, *got)
	if err := r.store.KeepReading(ctx, *got); err != nil {
		r.log.Debug("keep health", "node", n.UUID, "err", err)
		return true
	}
	r.note(ctx, n, got.Health, got.Parts)
	return false
}

// watch ends a reading when the node is not idle any more.
func (r *Runner) watch(ctx context.Context, id string, stop context.CancelCauseFunc) {
	t := time.NewTicker(busyLook)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		if n, err := r.store.Node(ctx, id); ctx.Err() == nil && (err != nil || working(n) || !r.may(n)) {
			stop(errBusy)
			return
		}
	}
}

func working(n *node.Node) bool { return n.Job != nil || n.Reservation != "" || n.Maintenance }

// errNothing ends a change that changes nothing.
var errNothing = errors.New("nothing to change")

// note changes the node's record where its health or its fault is another one.
func (r *Runner) note(ctx context.Context, n *node.Node, health string, parts []node.Part) {
	why := ""
	if r.cfg.Faults {
		why = sentence(parts)
	}
	if n.Health == health && (why != "") == (n.Fault == node.FaultHardware) {
		return
	}
	_, err := r.store.Change(ctx, n.UUID, func(n *node.Node, effects *node.SideEffects) error {
		changed := false
		line := func(severity, event string) {
			changed = true
			effects.History = append(effects.History, node.HistoryEntry{Type: "monitoring", Severity: severity,
				Event: event, Conductor: r.cfg.Hostname})
		}
		if working(n) {
			return errNothing
		}
		if n.Health != health {
			severity := "INFO"
			if health == node.HealthWarning || health == node.HealthCritical {
				severity = "WARNING"
			}
			line(severity, fmt.Sprintf("Node health status changed: health='%s' (previously '%s')", shown(health),
				shown(n.Health)))
			n.Health = health
		}
		switch {
		case why != "" && n.Fault == "":
			n.Fault = node.FaultHardware
			n.SetLastError("Hardware failure: "+why, node.FaultHardware)
			line("ERROR", "hardware failure: "+why)
		case why == "" && n.Fault == node.FaultHardware:
			n.Fault = n.StandingFault()
			n.TakeBackError(node.FaultHardware)
			line("INFO", "the parts that failed are well again")
		}
		if !changed {
			return errNothing
		}
		return nil
	})
	if err != nil && !errors.Is(err, errNothing) && ctx.Err() == nil {
		r.log.Warn("the health of a node is not in its record", "node", n.UUID, "err", err)
	}
}

func shown(health string) string {
	if health == "" {
		return "None"
	}
	return health
}

// most parts that a sentence names.
const most = 5

// sentence says which parts fail; "" if none does.
func sentence(parts []node.Part) string {
	var words []string
	for _, p := range parts[:min(len(parts), most)] {
		words = append(words, fmt.Sprintf("%s %s %s", p.Kind, p.Name,
			map[bool]string{true: "is going to fail", false: "has failed"}[p.Predicted]))
	}
	if len(parts) > most {
		words = append(words, fmt.Sprintf("%d more", len(parts)-most))
	}
	if len(words) == 0 {
		return ""
	}
	return strings.Join(words, ", ") + "; replace it, and it is cleared by itself"
}
