package reserve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
const Duty = "reservations"

// Kept is how long a reservation can be read after its end.
const Kept = 30 * 24 * time.Hour

// db is the part of the store that a Runner needs.
type db interface {
	Reservations() *store.Table[node.Reservation]
	Promises(ctx context.Context) ([]node.Promise, error)
	PoolMembers(ctx context.Context) (map[string]node.PoolMember, error)
	Node(ctx context.Context, ident string) (*node.Node, error)
	Change(ctx context.Context, uuid string, change func(n *node.Node, effects *node.SideEffects) error) (*node.Node,
		error)
	KeepPromise(ctx context.Context, p node.Promise, a *node.Allocation) error
	EndPromise(ctx context.Context, p node.Promise, allocation, lessee, why string) error
	DropPromise(ctx context.Context, p node.Promise) error
	ReplacePromise(ctx context.Context, p node.Promise, allocation, lessee, why string,
		choose func(*node.Reservation, []store.Reservable) ([]string, error)) (node.Promise, error)
	DeleteReservation(ctx context.Context, uuid string, allowed func(*node.Reservation) error) error
	TakeDuty(ctx context.Context, name, conductor string,
		during time.Duration) (holder string, until time.Time, err error)
}

// machines acts on nodes. An error means that nothing was begun.
type machines interface {
	// Warm boots the agent of an available node.
	Warm(ctx context.Context, ident, user string) error
	// Cool turns a warm node off.
	Cool(ctx context.Context, ident, user string) error
	// TearDown removes the instance of a node, which is cleaned then.
	TearDown(ctx context.Context, ident, user string) error
}

// Config is the configuration of a Runner.
type Config struct {
	Hostname string        // of this conductor
	Interval time.Duration // between two looks when nothing seems to change. Zero: ten seconds
	Warning  time.Duration // how long before its end a reservation is warned of it. Zero: not at all
	Pause    time.Duration // between two attempts to boot a machine ahead. Zero: a minute
	Now      func() time.Time
}

// Runner keeps the promises.
type Runner struct {
	db    db
	do    machines
	hub   *events.Hub
	cfg   Config
	log   *slog.Logger
	tried map[string]time.Time // by node: when it was last asked to be warm
}

// New makes a Runner; Run starts it. With a nil hub it looks from time to time only. A nil log is silent.
func New(st db, do machines, hub *events.Hub, cfg Config, log *slog.Logger) *Runner {
	cfg.Interval, cfg.Pause = cmp.Or(cfg.Interval, 10*time.Second), cmp.Or(cfg.Pause, time.Minute)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Runner{db: st, do: do, hub: hub, cfg: cfg, log: cmp.Or(log, slog.New(slog.DiscardHandler)),
		tried: map[string]time.Time{}}
}

// Run works until ctx ends or the hub is closed.
func (r *Runner) Run(ctx context.Context) {
	(&rounds.Rounds{
		Name: "reservations", Hub: r.hub, Interval: r.cfg.Interval, Now: r.cfg.Now, Log: r.log,
		Matters: func(e node.Event, idle bool) bool { return e.Kind == "reservation" || e.Kind == "node" && !idle },
		Look:    r.Pass,
	}).Run(ctx)
}

// lastMoment is how much of the duty must be left for an act to be begun: another conductor begins when it is over.
const lastMoment = 5 * time.Second

// Pass looks at all reservations once and does what is due. next is when something will be due; idle says that nothing
// is promised and nothing kept.
func (r *Runner) Pass(ctx context.Context) (next time.Time, idle bool, err error) {
	all, err := r.db.Reservations().List(ctx, "")
	if err != nil || len(all) == 0 {
		return time.Time{}, err == nil, err
	}
	holder, until, err := r.db.TakeDuty(ctx, Duty, r.cfg.Hostname, max(time.Minute, 3*r.cfg.Interval))
	if err != nil || holder != r.cfg.Hostname {
		return until, false, err
	}
	promises, err := r.db.Promises(ctx)
	if err != nil {
		return time.Time{}, false, err
	}
	of := map[string]map[int]node.Promise{}
	for _, p := range promises {
		if of[p.ReservationUUID] == nil {
			of[p.ReservationUUID] = map[int]node.Promise{}
		}
		of[p.ReservationUUID][p.Slot] = p
	}
	var faults []error
	for _, res := range all {
		if until.Sub(r.cfg.Now()) <= lastMoment || ctx.Err() != nil {
			break
		}
		if err := r.look(ctx, res, of[res.UUID]); err != nil && ctx.Err() == nil {
			faults = append(faults, fmt.Errorf("reservation %s: %w", res.UUID, err))
		}
		for _, at := range []time.Time{res.From, res.Start, res.End.Add(-r.cfg.Warning), res.End} {
			if at.After(r.cfg.Now()) && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	return next, false, errors.Join(faults...)
}

// look does what is due about one reservation.
func (r *Runner) look(ctx context.Context, res *node.Reservation, promises map[int]node.Promise) error {
	now := r.cfg.Now().UTC()
	if res.State == node.ReservationEnded {
		if now.Sub(res.EndedAt) < Kept {
			return nil
		}
		return r.db.DeleteReservation(ctx, res.UUID, func(*node.Reservation) error { return nil })
	}
	state := res.State
	switch {
	case !now.Before(res.End):
		state = node.ReservationEnding
	case !now.Before(res.Start) && state == node.ReservationPlanned:
		state = node.ReservationActive
	}
	if state != res.State {
		if err := r.set(ctx, res, func(v *node.Reservation) { v.State = state }); err != nil {
			return err
		}
	}
	var faults []error
	var missing []string // what keeps machines from being as promised, or from coming back
	left := 0
	for slot := range res.Count {
		p, ok := promises[slot]
		if !ok {
			p = node.Promise{ReservationUUID: res.UUID, Slot: slot}
		}
		done, why, err := r.promise(ctx, res, p, now)
		if err != nil {
			faults = append(faults, err)
		}
		if why != "" {
			missing = append(missing, why)
		}
		if !done {
			left++
		}
	}
	if err := r.warn(ctx, res, promises, now); err != nil {
		faults = append(faults, err)
	}
	err := r.set(ctx, res, func(v *node.Reservation) {
		v.Fault = strings.Join(slices.Compact(missing), "; ")
		if v.State == node.ReservationEnding && left == 0 {
			v.State, v.EndedAt = node.ReservationEnded, now
		}
	})
	return errors.Join(append(faults, err)...)
}

// set changes a reservation as it is in the store, and res with it.
func (r *Runner) set(ctx context.Context, res *node.Reservation, change func(*node.Reservation)) error {
	was := res.State
	v, err := r.db.Reservations().Update(ctx, res.UUID, func(v *node.Reservation) error {
		if v.Revision == res.Revision { // else it was changed meanwhile, and the event has it looked at again
			change(v)
		}
		return nil
	})
	switch {
	case errors.Is(err, store.ErrNotFound): // deleted
		return nil
	case err != nil:
		return err
	}
	*res = *v
	if v.State != was {
		r.log.Info("a reservation is "+v.State, "reservation", v.UUID, "project", v.Owner)
	}
	return nil
}

// promise does what is due about one promise. done: there is nothing left of it. why is for people; empty: all is well.
func (r *Runner) promise(ctx context.Context, res *node.Reservation, p node.Promise,
	now time.Time) (done bool, why string, err error) {
	for range 3 { // one act can be followed by the next at once; else that is done in the next look
		var n *node.Node
		if p.NodeUUID != "" {
			if n, err = r.db.Node(ctx, p.NodeUUID); err != nil && !errors.Is(err, store.ErrNotFound) {
				return false, "", err
			}
		}
		todo, reason := Do(res, p, n, now)
		switch todo {
		case nothing:
			return false, "", nil
		case drop:
			return true, "", errors.Join(r.cool(ctx, res, n), r.db.DropPromise(ctx, p))
		case wait:
			return false, reason, nil
		case warm:
			r.warm(ctx, res, p, now)
			return false, "", nil
		}
		if p, why, err = r.act(ctx, todo, res, p, reason); why != "" || err != nil {
			return false, why, err
		}
	}
	return false, "", nil
}

// warm boots the agent of a machine whose reservation begins soon. Without it the machine serves all the same.
func (r *Runner) warm(ctx context.Context, res *node.Reservation, p node.Promise, now time.Time) {
	if now.Sub(r.tried[p.NodeUUID]) < r.cfg.Pause {
		return
	}
	r.tried[p.NodeUUID] = now
	if err := r.do.Warm(ctx, p.NodeUUID, user(res)); err != nil {
		r.log.Info("a reserved machine is not booted ahead", "node", p.NodeUUID, "reservation", res.UUID, "err", err)
	}
}

// cool turns a machine off that is warm for a reservation that has ended, and that no pool has turned on.
func (r *Runner) cool(ctx context.Context, res *node.Reservation, n *node.Node) error {
	if n == nil || n.Provision != node.Available || !n.IsWarm() || n.InstanceUUID != "" {
		return nil
	}
	members, err := r.db.PoolMembers(ctx)
	if err != nil || !members[n.UUID].Asked.IsZero() {
		return err
	}
	if err := r.do.Cool(ctx, n.UUID, user(res)); err != nil {
		r.log.Info("a machine stays on after its reservation", "node", n.UUID, "reservation", res.UUID, "err", err)
	}
	return nil
}

// user names a reservation in the histories of nodes.
func user(res *node.Reservation) string { return "reservation " + res.UUID }

// act gives a machine, takes it back or puts another in its place. It returns the promise as it is then; why says what
// keeps it from that.
func (r *Runner) act(ctx context.Context, todo act, res *node.Reservation, p node.Promise,
	reason string) (now node.Promise, why string, err error) {
	allocation := AllocationUUID(res.UUID, p.Slot)
	switch todo {
	case takeBack:
		return p, "", r.db.EndPromise(ctx, p, allocation, res.Owner, reason)
	case remove:
		if err := r.do.TearDown(ctx, p.NodeUUID, user(res)); err != nil {
			return p, fmt.Sprintf("the instance on machine %s is not removed: %v", p.NodeUUID, err), nil
		}
	case keep:
		err := r.db.KeepPromise(ctx, p, &node.Allocation{
			Head: node.Head{UUID: allocation, Owner: res.Owner}, ResourceClass: res.ResourceClass, Traits: res.Traits,
			Conductor: r.cfg.Hostname, Requester: cmp.Or(res.Requester, user(res))})
		if err != nil {
			return p, fmt.Sprintf("machine %s can't be given: %v", p.NodeUUID, err), nil
		}
		p.Given = true
		r.log.Info("a reserved machine is the project's", "node", p.NodeUUID, "reservation", res.UUID, "project",
			res.Owner)
	case replace:
		next, err := r.db.ReplacePromise(ctx, p, allocation, res.Owner, reason, chooseNow)
		var short *ShortError
		switch {
		case errors.As(err, &short):
			return p, fmt.Sprintf("machine %d of %d is missing (%s), and no other is free", p.Slot+1, res.Count,
				reason), nil
		case err != nil:
			return p, reason, err
		}
		r.log.Warn("a reserved machine was replaced", "node", p.NodeUUID, "by", next.NodeUUID, "reservation", res.UUID,
			"reason", reason)
		return next, "", nil
	}
	return p, "", nil
}

// chooseNow is Choose for a machine that is needed at once.
func chooseNow(r *node.Reservation, from []store.Reservable) ([]string, error) {
	return Choose(r, slices.DeleteFunc(from, func(m store.Reservable) bool {
		return !heading[m.State] || m.State == node.Available && m.InstanceUUID != ""
	}))
}

// warn announces the end of a reservation once, in the histories of its machines and as a change of the reservation.
func (r *Runner) warn(ctx context.Context, res *node.Reservation, promises map[int]node.Promise, now time.Time) error {
	if res.State != node.ReservationActive || r.cfg.Warning <= 0 || !res.WarnedAt.IsZero() ||
		now.Before(res.End.Add(-r.cfg.Warning)) {
		return nil
	}
	what := "reservation " + res.UUID + " ends at " + stamp(res.End) + ": its access to the machine ends then"
	if res.TearDown {
		what += ", and the instance is removed"
	}
	for _, p := range promises {
		_, err := r.db.Change(ctx, p.NodeUUID, func(_ *node.Node, effects *node.SideEffects) error {
			effects.History = append(effects.History, node.HistoryEntry{Type: "reservation", Severity: "WARNING",
				Event: what, Conductor: r.cfg.Hostname})
			return nil
		})
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	r.log.Warn("a reservation ends soon", "reservation", res.UUID, "project", res.Owner, "end", res.End)
	return r.set(ctx, res, func(v *node.Reservation) { v.WarnedAt = now })
}
