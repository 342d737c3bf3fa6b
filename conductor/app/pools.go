package app

import (
	"context"
	"errors"
	"log/slog"

	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/events"
	"github.com/ingot-metal/ingot/conductor/schedule/pool"
	"github.com/ingot-metal/ingot/conductor/schedule/reserve"
	"github.com/ingot-metal/ingot/conductor/store"
)

// poolRunner keeps machines warm.
func poolRunner(cfg config.Config, st *store.Store, en *engine.Engine, hub *events.Hub, log *slog.Logger) *pool.Runner {
	return pool.New(st, en, hub, pool.Config{
		Hostname: cfg.Name(), Interval: cfg.Pools.Interval, Pace: poolPace(cfg),
		Passing: func(err error) bool {
			var locked *engine.LockedError
			return errors.As(err, &locked)
		},
	}, log)
}

func poolPace(cfg config.Config) pool.Pace {
	return pool.Pace{Pause: cfg.Pools.Pause, Longest: cfg.Pools.LongestPause}
}

// reservationRunner keeps the promises of reservations.
func reservationRunner(cfg config.Config, st *store.Store, en *engine.Engine, hub *events.Hub,
	log *slog.Logger) *reserve.Runner {
	return reserve.New(st, reserved{en}, hub, reserve.Config{Hostname: cfg.Name(),
		Interval: cfg.Reservations.Interval, Warning: cfg.Reservations.Warning}, log)
}

// reserved is the engine, with the calls that reservations need.
type reserved struct{ *engine.Engine }

// TearDown removes the instance of a node.
func (r reserved) TearDown(ctx context.Context, ident, user string) error {
	return r.Provision(ctx, ident, engine.Request{Verb: node.Delete, User: user})
}
