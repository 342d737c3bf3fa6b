// Package rounds looks at what is planned after each change that matters, when something is due, and from time to time.
package rounds

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/events"
)

// Rounds are the looks at one thing. Hub, Now and Log must be set, Hub may be nil: then changes are not seen at once.
type Rounds struct {
	Name     string // for the log: "pools"
	Hub      *events.Hub
	Interval time.Duration // between two looks when nothing seems to change
	Now      func() time.Time
	Log      *slog.Logger
	// Matters reports whether an event is a reason to look; idle: the last look found nothing to look after.
	Matters func(e node.Event, idle bool) bool
	// Look looks once. next is when it should be called again even if nothing changes; zero says nothing.
	Look func(ctx context.Context) (next time.Time, idle bool, err error)
}

// While things change all the time, Look is called so often, and for no more than this part of the time: with many
// nodes a look takes long.
const (
	atMost  = 4  // a second
	oneOf   = 10 // a tenth of the time
	soonest = time.Second / atMost
)

// Run works until ctx ends or the hub is closed.
func (r *Rounds) Run(ctx context.Context) {
	var changes <-chan struct{}
	var reader *events.Reader
	if r.Hub != nil {
		var err error
		if reader, err = r.Hub.Follow(r.Name, -1); err != nil {
			r.Log.Warn(r.Name+" don't see changes at once", "err", err)
		} else {
			defer reader.Close()
			changes = reader.Wake()
		}
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	idle := false
	gap := soonest
	at := r.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
			matters, err := r.read(ctx, reader, idle)
			if errors.Is(err, events.ErrClosed) {
				return
			}
			if !matters {
				continue
			}
			// What comes together is looked at together.
			if soon := r.Now().Add(gap); soon.Before(at) {
				at = soon
				timer.Reset(time.Until(at))
			}
		case <-timer.C:
			began := time.Now()
			next, none, err := r.Look(ctx)
			gap = max(soonest, oneOf*time.Since(began))
			if err != nil && ctx.Err() == nil {
				r.Log.Error(r.Name+" can't be looked after: it is tried again", "err", err)
			}
			idle = err == nil && none
			wait := r.Interval
			if d := next.Sub(r.Now()); !next.IsZero() && d < wait {
				wait = max(d, gap)
			}
			at = r.Now().Add(wait)
			timer.Reset(wait)
		}
	}
}

// read takes all pending events and reports whether one of them matters.
func (r *Rounds) read(ctx context.Context, reader *events.Reader, idle bool) (matters bool, err error) {
	for {
		list, gap, err := reader.Next(ctx)
		if err != nil {
			return true, err
		}
		if gap != nil {
			matters = true
		}
		for _, e := range list {
			if r.Matters(e, idle) {
				matters = true
			}
		}
		if len(list) == 0 && gap == nil {
			return matters, nil
		}
	}
}
