package alloc

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// db is the part of the store that a Runner needs.
type db interface {
	Allocate(ctx context.Context, uuid string,
		choose func(a *node.Allocation, from []store.Candidate) (nodeUUID, why string)) (*node.Allocation, error)
	Allocating(ctx context.Context) ([]string, error)
}

const (
	workers = 8 // the store writes for several of them at once
	rescan  = time.Minute
)

// Runner processes allocations in the background. Safe for concurrent use.
type Runner struct {
	db  db
	log *slog.Logger

	mu      sync.Mutex
	pending []string
	ready   chan struct{} // holds one when pending is not empty
}

// New makes a Runner; Run starts it. A nil log is silent.
func New(st db, log *slog.Logger) *Runner {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Runner{db: st, log: log, ready: make(chan struct{}, 1)}
}

// Wake has an allocation processed soon. It never waits.
func (r *Runner) Wake(uuid string) {
	r.mu.Lock()
	r.pending = append(r.pending, uuid)
	r.mu.Unlock()
	r.signal()
}

func (r *Runner) signal() {
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

// next takes one of what waits, and calls the next worker if there is more.
func (r *Runner) next() (uuid string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending) == 0 {
		return "", false
	}
	uuid = r.pending[0]
	r.pending = r.pending[1:]
	if len(r.pending) > 0 {
		r.signal()
	}
	return uuid, true
}

// Run works until ctx ends: first on allocations that were waiting when the conductor was last stopped. Attempts that
// fail for lack of a working database are repeated within a minute.
func (r *Runner) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for range workers {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-r.ready:
				}
				if id, ok := r.next(); ok {
					r.Process(ctx, id)
				}
			}
		})
	}
	tick := time.NewTicker(rescan)
	defer tick.Stop()
	for {
		r.wakeAll(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (r *Runner) wakeAll(ctx context.Context) {
	ids, err := r.db.Allocating(ctx)
	if err != nil {
		if ctx.Err() == nil {
			r.log.Error("allocations can't be listed: those that wait for a node go on waiting", "err", err)
		}
		return
	}
	for _, id := range ids {
		r.Wake(id) // one that is waiting in line already is found done the second time
	}
}

// Process finds a node for one allocation now. What it came to is stored with the allocation.
func (r *Runner) Process(ctx context.Context, uuid string) {
	chosen := false
	a, err := r.db.Allocate(ctx, uuid, func(a *node.Allocation, from []store.Candidate) (string, string) {
		chosen = true
		return Choose(a, from, rand.IntN)
	})
	switch {
	case ctx.Err() != nil, errors.Is(err, node.ErrNotFound): // deleted meanwhile
	case err != nil:
		r.log.Error("an allocation was not processed: it is tried again", "allocation", uuid, "err", err)
	case !chosen: // done before
	case a.State == node.AllocationError:
		r.log.Warn("an allocation found no node", "allocation", uuid, "reason", a.LastError)
	case a.State == node.AllocationActive:
		r.log.Info("an allocation has its node", "allocation", uuid, "node", a.NodeUUID)
	}
}
