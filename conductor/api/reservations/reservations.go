// Package reservations answers requests below /ingot/v1/reservations: machines that are promised to a project for a
// time. Who may do what is as with allocations. Package conductor/schedule/reserve chooses the machines and keeps the
// promises.
package reservations

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/schedule/reserve"
	"github.com/ingot-metal/ingot/conductor/store"
)

// reservationStore is the part of the store that reservations need.
type reservationStore interface {
	Reservations() *store.Table[node.Reservation]
	Promises(ctx context.Context) ([]node.Promise, error)
	Node(ctx context.Context, ident string) (*node.Node, error)
	Reserve(ctx context.Context, r *node.Reservation, most store.MostReservations,
		choose func(*node.Reservation, []store.Reservable) ([]string, error)) error
	ExtendReservation(ctx context.Context, uuid string, change func(*node.Reservation) error,
		choose func(*node.Reservation, []store.Reservable) ([]string, error)) (*node.Reservation, error)
	DeleteReservation(ctx context.Context, uuid string, allowed func(*node.Reservation) error) error
}

// Handlers answer the requests.
type Handlers struct {
	store   reservationStore
	prepare time.Duration
}

// New makes Handlers. prepare is how long before a start the machines are out of ordinary use.
func New(st reservationStore, prepare time.Duration) *Handlers {
	return &Handlers{store: st, prepare: prepare}
}

const all, one = "/ingot/v1/reservations", "/ingot/v1/reservations/{reservation}"

// Routes are those of reservations.
func (s *Handlers) Routes() []call.Route {
	return []call.Route{
		{Method: http.MethodGet, Path: all, Access: call.Read, Answers: call.OK(rest.Reservations{}), Handle: s.list},
		{Method: http.MethodPost, Path: all, Access: call.Use, Takes: schema,
			Answers: call.Answers{http.StatusCreated: rest.Reservation{}}, Handle: s.create},
		{Method: http.MethodGet, Path: one, Access: call.Read, Answers: call.OK(rest.Reservation{}), Handle: s.get},
		{Method: http.MethodPatch, Path: one, Access: call.Use, Takes: rest.PatchOf(changeable, always{}),
			Answers: call.OK(rest.Reservation{}), Handle: s.change},
		{Method: http.MethodDelete, Path: one, Access: call.Use,
			Answers: call.Answers{http.StatusAccepted: rest.Reservation{}, http.StatusNoContent: nil},
			Handle:  s.delete},
	}
}

var (
	moment = &rest.Schema{Types: []string{"string", "null"}, MaxLen: 64}
	schema = &rest.Schema{Types: []string{"object"}, Closed: true, Props: map[string]*rest.Schema{
		"name":           document.OptionalText,
		"project":        {Types: []string{"string", "null"}, MaxLen: 255},
		"resource_class": {Types: []string{"string"}, MaxLen: 80},
		"traits":         document.TextList,
		"count":          {Types: []string{"integer"}},
		"start":          moment,
		"end":            {Types: []string{"string"}, MaxLen: 64},
		"tear_down":      {Types: []string{"boolean"}},
	}, Required: []string{"resource_class", "end"}}
	// changeable are the attributes that a PATCH can change; changed is the schema of their new values.
	changeable = []string{"end", "tear_down"}
	changed    = &rest.Schema{Types: []string{"object"}, Closed: true, Required: changeable,
		Props: map[string]*rest.Schema{
			"end":       {Types: []string{"string"}, MaxLen: 64},
			"tear_down": {Types: []string{"boolean"}},
		}}
)

// always says of all attributes that each version has them.
type always struct{}

func (always) Since(string) (rest.Version, bool) { return 0, true }

func ownedBy(r *node.Reservation) access.Object { return access.Object{Owner: r.Owner} }

func (s *Handlers) list(ctx context.Context, c *call.Call) (*call.Reply, error) {
	rs, err := s.store.Reservations().List(ctx, "")
	if err != nil {
		return nil, err
	}
	rs = slices.DeleteFunc(rs, func(r *node.Reservation) bool { return !c.Actor.May(access.AllocationGet, ownedBy(r)) })
	slices.SortStableFunc(rs, func(a, b *node.Reservation) int { return a.Start.Compare(b.Start) })
	shown, err := s.show(ctx, c, rs...)
	if err != nil {
		return nil, err
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.Reservations{Reservations: shown}}, nil
}

// show writes reservations as the caller sees them: a project is not told which machines it will have.
func (s *Handlers) show(ctx context.Context, c *call.Call, rs ...*node.Reservation) ([]rest.Reservation, error) {
	promises, err := s.store.Promises(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]rest.Reservation, len(rs))
	at := map[string]*rest.Reservation{}
	for i, r := range rs {
		out[i] = rest.Reservation{UUID: r.UUID, Name: rest.Null(r.Name), Project: rest.Null(r.Owner),
			ResourceClass: r.ResourceClass, Traits: append([]string{}, r.Traits...),
			Count: r.Count, Start: rest.NullTime{Time: r.Start},
			End: rest.NullTime{Time: r.End}, TearDown: r.TearDown, State: r.State, Fault: rest.Null(r.Fault),
			WarnedAt: rest.NullTime{Time: r.WarnedAt}, EndedAt: rest.NullTime{Time: r.EndedAt},
			CreatedAt: rest.NullTime{Time: r.CreatedAt}, UpdatedAt: rest.NullTime{Time: r.UpdatedAt},
			Machines: []rest.ReservedMachine{}}
		if r.Fault != "" && !c.Actor.MaySee(&node.Node{}) { // it reports on the site's other machines
			out[i].Fault = "not all machines are as promised"
		}
		at[r.UUID] = &out[i]
	}
	for _, p := range promises {
		r := at[p.ReservationUUID]
		if r == nil {
			continue
		}
		m := rest.ReservedMachine{Slot: p.Slot, AllocationUUID: reserve.AllocationUUID(r.UUID, p.Slot),
			From: rest.NullTime{Time: p.From}, Given: p.Given}
		n, err := s.store.Node(ctx, p.NodeUUID)
		switch {
		case errors.Is(err, store.ErrNotFound): // deleted just now
			continue
		case err != nil:
			return nil, err
		case c.Actor.MaySee(n):
			m.NodeUUID, m.Name = rest.Null(n.UUID), rest.Null(n.Name)
		}
		r.Machines = append(r.Machines, m)
	}
	for i := range out {
		slices.SortFunc(out[i].Machines, func(a, b rest.ReservedMachine) int { return cmp.Compare(a.Slot, b.Slot) })
	}
	return out, nil
}

func (s *Handlers) reply(ctx context.Context, c *call.Call, status int, r *node.Reservation) (*call.Reply, error) {
	shown, err := s.show(ctx, c, r)
	if err != nil {
		return nil, err
	}
	return &call.Reply{Status: status, Body: shown[0]}, nil
}

// named finds the reservation that the address names. One that the caller may not see is not there.
func (s *Handlers) named(ctx context.Context, c *call.Call, rule access.Rule) (*node.Reservation, error) {
	r, err := s.store.Reservations().Get(ctx, c.Path["reservation"])
	if errors.Is(err, store.ErrNotFound) || err == nil && !c.Actor.May(access.AllocationGet, ownedBy(r)) {
		return nil, missing(c)
	}
	if err != nil {
		return nil, err
	}
	return r, c.MayFor(rule, ownedBy(r))
}

func missing(c *call.Call) *rest.Error {
	return rest.NotFound("Reservation %s could not be found.", c.Path["reservation"])
}

func (s *Handlers) get(ctx context.Context, c *call.Call) (*call.Reply, error) {
	r, err := s.named(ctx, c, access.AllocationGet)
	if err != nil {
		return nil, err
	}
	return s.reply(ctx, c, http.StatusOK, r)
}

func (s *Handlers) create(ctx context.Context, c *call.Call) (*call.Reply, error) {
	d, aerr := c.Checked("reservation", schema)
	if aerr != nil {
		return nil, aerr
	}
	r, aerr := s.wanted(d, time.Now().UTC())
	if aerr != nil {
		return nil, aerr
	}
	r.Requester = c.User
	if !c.Actor.May(access.AllocationAny, access.Object{}) { // it is the project's own
		r.Owner, r.OwnOnly = cmp.Or(r.Owner, c.Actor.ProjectID), true
		if r.Owner != c.Actor.ProjectID {
			return nil, c.MayFor(access.AllocationAny, access.Object{})
		}
		if err := c.MayFor(access.AllocationCreate, ownedBy(r)); err != nil {
			return nil, err
		}
	}
	err := s.store.Reserve(ctx, r, store.MostReservations{All: limit.Reservations,
		OfProject: limit.ReservationsPerProject}, reserve.Choose)
	if err != nil {
		return nil, refusal(err, c)
	}
	rep, err := s.reply(ctx, c, http.StatusCreated, r)
	if err == nil {
		rep.Location = c.Base + all + "/" + r.UUID
	}
	return rep, err
}

// refusal translates the error of a reservation that can't be kept.
func refusal(err error, c *call.Call) error {
	var short *reserve.ShortError
	var taken *store.PromisedError
	var full *store.FullError
	switch {
	case errors.As(err, &short):
		return rest.Conflict("The reservation can't be kept: %s.", short)
	case errors.As(err, &taken) && c.Actor.MaySee(&node.Node{}):
		return rest.Conflict("The reservation can't be kept: %s.", err)
	case errors.As(err, &taken):
		return rest.Conflict("The reservation can't be kept: one of its machines is promised to others from %s on.",
			taken.Promise.From.Format(time.RFC3339))
	case errors.As(err, &full):
		return rest.Conflict("No more reservations can be made: %s. Delete one that is not needed.", full)
	}
	return err
}

// Longest is how far ahead a reservation can end.
const Longest = 5 * 366 * 24 * time.Hour

// late is how long ago a start may be that means now.
const late = time.Minute

// wanted is a new reservation, as the body of a request has it.
func (s *Handlers) wanted(d map[string]any, now time.Time) (*node.Reservation, *rest.Error) {
	r := &node.Reservation{Head: node.Head{Name: document.Text(d, "name"), Owner: document.Text(d, "project")},
		ResourceClass: document.Text(d, "resource_class"), Count: 1, Start: now}
	if _, ok := d["count"]; ok {
		r.Count = document.Number(d, "count")
	}
	r.TearDown, _ = d["tear_down"].(bool)
	for _, t := range document.Texts(d["traits"]) {
		if fault := document.TraitFault(t); fault != "" {
			return nil, rest.BadRequest("Schema error for reservation: %s", fault)
		}
		if !slices.Contains(r.Traits, t) {
			r.Traits = append(r.Traits, t)
		}
	}
	var err *rest.Error
	if text := document.Text(d, "start"); text != "" {
		if r.Start, err = instant("start", text); err != nil {
			return nil, err
		}
	}
	if r.End, err = instant("end", document.Text(d, "end")); err != nil {
		return nil, err
	}
	switch {
	case r.Name != "" && !document.ValidName(rest.VersionURLNames, r.Name):
		return nil, rest.BadRequest("Cannot create reservation with invalid name '%s'", r.Name)
	case r.ResourceClass == "":
		return nil, rest.BadRequest("The resource_class of a reservation is empty.")
	case r.Count < 1 || r.Count > limit.ReservedMachines:
		return nil, rest.BadRequest("count is %d: it must be from 1 to %d", r.Count, limit.ReservedMachines)
	case r.Start.Before(now.Add(-late)):
		return nil, rest.BadRequest("start is %s, which is over; leave it out to begin now",
			r.Start.Format(time.RFC3339))
	}
	if r.Start.Before(now) {
		r.Start = now
	}
	r.From = r.Start.Add(-s.prepare)
	if r.From.Before(now) {
		r.From = now
	}
	return r, fits(r, now)
}

// fits refuses times that make no sense.
func fits(r *node.Reservation, now time.Time) *rest.Error {
	switch {
	case !r.End.After(r.Start), !r.End.After(now):
		return rest.BadRequest("end is %s: it must be after start and after now", r.End.Format(time.RFC3339))
	case r.End.Sub(now) > Longest:
		return rest.BadRequest("end is %s: it must be within five years", r.End.Format(time.RFC3339))
	}
	return nil
}

// instant reads a time; one without an offset is UTC.
func instant(name, text string) (time.Time, *rest.Error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04"} {
		if at, err := time.Parse(layout, text); err == nil && at.Year() > 1970 && at.Year() < 9999 {
			return at.UTC().Truncate(time.Second), nil
		}
	}
	return time.Time{}, rest.BadRequest("%s is no time: give it as 2026-11-29T14:00:00Z", name)
}

func (s *Handlers) change(ctx context.Context, c *call.Call) (*call.Reply, error) {
	patch, aerr := rest.ParsePatch(c.Body, c.Version, changeable)
	if aerr != nil {
		return nil, aerr
	}
	r, err := s.named(ctx, c, access.AllocationUpdate)
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	r, err = s.store.ExtendReservation(ctx, r.UUID, func(r *node.Reservation) error {
		if r.State == node.ReservationEnding || r.State == node.ReservationEnded || !now.Before(r.End) {
			return rest.Conflict("Reservation %s has ended: make a new one.", r.UUID)
		}
		was := r.End.Format(time.RFC3339)
		d := map[string]any{"end": was, "tear_down": r.TearDown}
		if err := patch.Apply(d); err != nil {
			return err
		}
		if fault := changed.Check(d); fault != "" {
			return rest.BadRequest("Schema error for patch: %s", fault)
		}
		r.TearDown, _ = d["tear_down"].(bool)
		text := document.Text(d, "end")
		if text == was {
			return nil
		}
		end, err := instant("end", text)
		if err != nil {
			return err
		}
		if end.After(r.End) {
			r.WarnedAt = time.Time{}
		}
		r.End = end
		if err := fits(r, now); err != nil {
			return err
		}
		return nil
	}, reserve.Choose)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, missing(c)
	case err != nil:
		return nil, refusal(err, c)
	}
	return s.reply(ctx, c, http.StatusOK, r)
}

// delete removes a reservation to come, or one that has ended; one whose machines are prepared or in use ends now.
func (s *Handlers) delete(ctx context.Context, c *call.Call) (*call.Reply, error) {
	r, err := s.named(ctx, c, access.AllocationDelete)
	if err != nil {
		return nil, err
	}
	begun, now := errors.New("it has begun"), time.Now().UTC()
	err = s.store.DeleteReservation(ctx, r.UUID, func(r *node.Reservation) error {
		if r.State == node.ReservationEnded || r.State == node.ReservationPlanned && now.Before(r.From) {
			return nil
		}
		return begun
	})
	if errors.Is(err, begun) {
		r, err = s.store.ExtendReservation(ctx, r.UUID, func(r *node.Reservation) error {
			if r.State != node.ReservationEnding {
				r.State, r.End = node.ReservationEnding, now
			}
			return nil
		}, reserve.Choose)
		if err == nil {
			return s.reply(ctx, c, http.StatusAccepted, r)
		}
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil, missing(c)
	}
	return call.NoContent(), err
}
