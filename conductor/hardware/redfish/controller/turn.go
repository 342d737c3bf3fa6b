package controller

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// turn lets one request at a time through to a host.
type turn struct {
	taken   chan struct{}
	waiting atomic.Int32
}

func newTurn() *turn { return &turn{taken: make(chan struct{}, 1)} }

var errCrowd = errors.New("too many requests wait for this controller")

// take waits for the turn.
func (t *turn) take(ctx context.Context) error {
	if t.waiting.Add(1) > limit.RedfishWaiting {
		t.waiting.Add(-1)
		return errCrowd
	}
	defer t.waiting.Add(-1)
	select {
	case t.taken <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *turn) give() { <-t.taken }

func (t *turn) idle() bool { return len(t.taken) == 0 && t.waiting.Load() == 0 }
