// Package drain empties a conductor of its nodes before it is stopped, so that no work waits for its return.
//
// A Drainer makes its conductor known as draining, and hands its nodes over to the conductors that are to have them,
// until none is left that another can have. A node that is in an act is tried again until it is between two. Meanwhile
// the conductor answers requests as ever. The command `ingotd drain` reaches the running conductor by a socket in the
// data directory, which answers the user of the process and root alone; a conductor that is told to stop drains by
// itself for a short while.
package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingot-metal/ingot/conductor/engine"
)

// ErrAlone means that no other conductor takes nodes: draining would not move one.
var ErrAlone = errors.New("no other conductor can take nodes")

// nodes are the nodes of this conductor.
type nodes interface {
	Owned(ctx context.Context) ([]string, error)
	HandAway(ctx context.Context, nodeUUID string) (*engine.Left, error)
}

// Config is the configuration of a Drainer.
type Config struct {
	Name string // of this conductor
	// Describe makes it known to the others whether this conductor drains, and whether its process is about to end.
	Describe func(ctx context.Context, draining, leaving bool) error
	// Others reports whether another conductor takes nodes.
	Others func() bool
	// Stop stops this process.
	Stop func()
}

// Drainer drains a conductor. Make it with New.
type Drainer struct {
	nodes nodes
	cfg   Config
	log   *slog.Logger
	kick  chan struct{}

	changing sync.Mutex // held while the state changes for the others

	mu       sync.Mutex
	status   Status
	over     bool // the last round has found that nothing is left that could move
	begun    int  // how often draining was begun or undone
	stopping bool
}

// Status is how far the draining is.
type Status struct {
	Conductor string `json:"conductor"`
	Draining  bool   `json:"draining"`
	// Rounds is how often all nodes were tried; the rest is known from the first on.
	Rounds int `json:"rounds"`
	Total  int `json:"total"` // nodes at the beginning
	Left   int `json:"left"`
	// Busy are the nodes left that are tried again, and Staying those that no other conductor can have; of many, the
	// first ones.
	Busy     []engine.Left `json:"busy"`
	Staying  []engine.Left `json:"staying"`
	Stay     int           `json:"stay"` // how many stay
	LastFail string        `json:"last_fail,omitempty"`
}

// Over reports whether nothing is left that could move.
func (s *Status) Over() bool { return s.Rounds > 0 && s.Left == s.Stay && s.LastFail == "" }

// shown bounds how many nodes a Status names.
const shown = 20

// atOnce is how many nodes are handed over at the same time: an agent that does not take its leave holds up one of
// them.
const atOnce = 8

// Pauses between two rounds: while nodes are busy, and when none is left.
const (
	soon  = 100 * time.Millisecond
	later = time.Second
)

// New makes a Drainer, which Run runs.
func New(n nodes, cfg Config, log *slog.Logger) *Drainer {
	return &Drainer{nodes: n, cfg: cfg, log: log, kick: make(chan struct{}, 1), status: Status{Conductor: cfg.Name}}
}

// Begin begins to drain, or goes on. It is ErrAlone when no other conductor takes nodes; then nothing has changed.
func (d *Drainer) Begin(ctx context.Context) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	if d.Status().Draining { // another command: all nodes are tried again now
		d.begin()
		return nil
	}
	d.mu.Lock()
	leaving := d.stopping
	d.mu.Unlock()
	if !d.cfg.Others() { // as far as is known here, which may be two seconds old: a description is answered with more
		if err := d.cfg.Describe(ctx, leaving, leaving); err != nil {
			return fmt.Errorf("ask for the other conductors: %w", err)
		}
		if !d.cfg.Others() {
			return ErrAlone
		}
	}
	if err := d.cfg.Describe(ctx, true, leaving); err != nil {
		return fmt.Errorf("tell the other conductors that this one drains: %w", err)
	}
	if !d.cfg.Others() { // the last one has just gone
		if leaving { // those that leave too are not to hand their nodes over to this one
			return ErrAlone
		}
		return errors.Join(ErrAlone, d.cfg.Describe(ctx, false, false))
	}
	d.log.Info("this conductor drains: it takes no nodes, and hands over those that it has")
	d.begin()
	return nil
}

// begin has Run begin a round.
func (d *Drainer) begin() {
	d.mu.Lock()
	d.status, d.over = Status{Conductor: d.cfg.Name, Draining: true}, false
	d.begun++
	d.mu.Unlock()
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// Undo has the conductor take nodes again. Those that were handed over come back little by little.
func (d *Drainer) Undo(ctx context.Context) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	if !d.Status().Draining {
		return nil
	}
	if err := d.cfg.Describe(ctx, false, false); err != nil {
		return fmt.Errorf("tell the other conductors that this one takes nodes again: %w", err)
	}
	d.mu.Lock()
	d.status = Status{Conductor: d.cfg.Name}
	d.begun++
	d.mu.Unlock()
	d.log.Info("this conductor takes nodes again")
	return nil
}

// Status returns how far the draining is.
func (d *Drainer) Status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.status
	s.Busy, s.Staying = slices.Clone(s.Busy), slices.Clone(s.Staying)
	return s
}

// Leaving says why clients had better go to another conductor; "": they need not.
func (d *Drainer) Leaving() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.stopping:
		return "This server is about to stop; it answers requests until then."
	case d.status.Draining:
		return "This server is being drained, and may be stopped soon; it answers requests until then."
	}
	return ""
}

// Run hands nodes over while the conductor drains, until ctx ends.
func (d *Drainer) Run(ctx context.Context) {
	for ctx.Err() == nil {
		pause := d.hand(ctx)
		select {
		case <-ctx.Done():
		case <-d.kick:
		case <-pause:
		}
	}
}

// hand does a round, if the conductor drains, and returns when the next one is due: never, if it does not.
func (d *Drainer) hand(ctx context.Context) <-chan time.Time {
	d.mu.Lock()
	begun, draining := d.begun, d.status.Draining
	d.mu.Unlock()
	if !draining {
		return nil
	}
	busy, staying, err := d.try(ctx)
	if ctx.Err() != nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.status
	if d.begun != begun { // the round says nothing about what is so now; Begin has kicked
		return nil
	}
	was := d.over
	s.LastFail = ""
	if err != nil {
		s.LastFail = err.Error()
		d.log.Warn("hand nodes over", "err", err)
	}
	s.Rounds++
	s.Left, s.Stay = len(busy)+len(staying), len(staying)
	s.Busy, s.Staying = first(busy), first(staying)
	if d.over = s.Over(); d.over && !was {
		d.log.Info("this conductor is drained", "nodes", s.Total, "left", s.Left)
	}
	if len(busy) > 0 {
		return time.After(soon)
	}
	return time.After(later)
}

// first orders nodes by name and returns those that a Status shows.
func first(left []engine.Left) []engine.Left {
	slices.SortFunc(left, func(a, b engine.Left) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.UUID, b.UUID))
	})
	return left[:min(len(left), shown)]
}

// try tries to hand each node over once.
func (d *Drainer) try(ctx context.Context) (busy, staying []engine.Left, err error) {
	ids, err := d.nodes.Owned(ctx)
	if err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	if d.status.Rounds == 0 {
		d.status.Total = len(ids)
	}
	d.status.Left = len(ids)
	d.mu.Unlock()
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, id := range ids {
		g.Go(func() error {
			if ctx.Err() != nil || !d.Status().Draining {
				return ctx.Err()
			}
			left, err := d.nodes.HandAway(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				busy = append(busy, engine.Left{UUID: id, Why: err.Error()})
				return err
			case left == nil:
				d.mu.Lock()
				d.status.Left--
				d.mu.Unlock()
			case left.Nowhere:
				staying = append(staying, *left)
			default:
				busy = append(busy, *left)
			}
			return nil
		})
	}
	err = g.Wait()
	return busy, staying, err
}

// Leave prepares the end of the process: clients are asked to go elsewhere, and the conductor drains until no node is
// left that another can have, or ctx ends.
func (d *Drainer) Leave(ctx context.Context) {
	d.mu.Lock()
	d.stopping = true
	d.mu.Unlock()
	err := d.Begin(ctx)
	if errors.Is(err, ErrAlone) {
		return
	}
	if err != nil {
		d.log.Warn("this conductor stops without handing its nodes over", "err", err)
		return
	}
	tick := time.NewTicker(soon / 2)
	defer tick.Stop()
	for {
		d.mu.Lock()
		over := d.over
		d.mu.Unlock()
		if over {
			return
		}
		select {
		case <-ctx.Done():
			s := d.Status()
			d.log.Warn("this conductor stops with nodes that were not handed over: others take them over", "nodes",
				s.Left)
			return
		case <-tick.C:
		}
	}
}
