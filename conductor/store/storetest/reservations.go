package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

var hour0 = time.Date(2126, 12, 1, 8, 0, 0, 0, time.UTC)

func hour(n int) time.Time { return hour0.Add(time.Duration(n) * time.Hour) }

var plenty = store.MostReservations{All: 1000, OfProject: 1000}

// these picks the given nodes.
func these(ids ...string) func(*node.Reservation, []store.Reservable) ([]string, error) {
	return func(*node.Reservation, []store.Reservable) ([]string, error) { return ids, nil }
}

func reservation(from, until int) *node.Reservation {
	return &node.Reservation{Head: node.Head{Owner: "p"}, ResourceClass: "rc", Count: 1, From: hour(from),
		Start: hour(from), End: hour(until)}
}

func promises(t *testing.T, ctx context.Context, s *store.Store) {
	n := free(t, s, "n", func(n *node.Node) { n.Traits = []string{"CUSTOM_A"} })
	other := free(t, s, "other", nil)
	free(t, s, "another class", func(n *node.Node) { n.ResourceClass = "small" })
	r := reservation(0, 4)
	r.Name, r.Traits, r.TearDown = "first", []string{"CUSTOM_A"}, true
	must(t, s.Reserve(ctx, r, plenty, these(n.UUID)))
	same(t, "stored and read", r, given(s.Reservations().Get(ctx, "first"))(t))
	p := node.Promise{ReservationUUID: r.UUID, NodeUUID: n.UUID, From: hour(0), Until: hour(4)}
	same(t, "promises", []node.Promise{p}, given(s.Promises(ctx))(t))
	same(t, "what can be reserved", []store.Reservable{
		{UUID: n.UUID, Name: "n", State: node.Available, Traits: []string{"CUSTOM_A"},
			Promises: []store.Promised{{Promise: p, TearDown: true}}},
		{UUID: other.UUID, Name: "other", State: node.Available}}, given(s.Reservable(ctx, "rc"))(t))

	// Whatever is chosen, no machine is promised twice, and nothing is left of a reservation that is refused.
	var taken *store.PromisedError
	for _, c := range []struct{ from, until int }{{0, 4}, {1, 2}, {-3, 1}, {3, 9}, {-3, 9}} {
		if err := s.Reserve(ctx, reservation(c.from, c.until), plenty, these(n.UUID)); !errors.As(err, &taken) ||
			taken.Promise.ReservationUUID != r.UUID {
			t.Errorf("from %d until %d: %v", c.from, c.until, err)
		}
	}
	if err := s.Reserve(ctx, reservation(-3, -1), plenty, these(other.UUID, other.UUID)); !errors.As(err, &taken) {
		t.Errorf("the same machine in two slots: %v", err)
	}
	no := errors.New("no")
	refused(t, "choose refuses", no, s.Reserve(ctx, reservation(0, 4), plenty,
		func(*node.Reservation, []store.Reservable) ([]string, error) { return nil, no }))
	var full *store.FullError
	own := reservation(50, 51)
	own.OwnOnly = true
	if err := s.Reserve(ctx, own, store.MostReservations{All: 1}, these(n.UUID)); !errors.As(err, &full) {
		t.Errorf("one more than there may be: %v", err)
	}
	must(t, s.Reserve(ctx, own, store.MostReservations{All: 9, OfProject: 1}, these(n.UUID)))
	more := reservation(52, 53)
	more.OwnOnly = true
	if err := s.Reserve(ctx, more, store.MostReservations{All: 9, OfProject: 1}, these(n.UUID)); !errors.As(err,
		&full) {
		t.Errorf("one more than a project may have: %v", err)
	}
	if all := given(s.Reservations().List(ctx, ""))(t); len(all) != 2 {
		t.Errorf("%d reservations are stored, want 2", len(all))
	}

	// Ordinary allocations get no machine that is promised.
	for range 2 {
		a := given(s.Allocate(ctx, request(t, s, node.Allocation{}).UUID,
			func(_ *node.Allocation, from []store.Candidate) (string, string) {
				if len(from) == 0 {
					return "", "none"
				}
				return from[0].UUID, ""
			}))(t)
		if a.NodeUUID == n.UUID {
			t.Error("an allocation got a promised machine")
		}
	}

	second := reservation(4, 8)
	must(t, s.Reserve(ctx, second, plenty, these(n.UUID))) // right after the first
	extend := func(until int) error {
		_, err := s.ExtendReservation(ctx, r.UUID, func(r *node.Reservation) error {
			r.End = hour(until)
			return nil
		}, func(*node.Reservation, []store.Reservable) ([]string, error) { return nil, no })
		return err
	}
	if err := extend(5); !errors.As(err, &taken) || taken.Promise.ReservationUUID != second.UUID ||
		!strings.Contains(err.Error(), "can't get another: no") {
		t.Errorf("extended into another: %v", err)
	}
	if got := given(s.Reservations().Get(ctx, r.UUID))(t); !got.End.Equal(hour(4)) {
		t.Errorf("an extension that was refused is stored: %+v", got)
	}
	must(t, extend(3))
	must(t, extend(4))
	keepAndEnd(t, ctx, s, r, p)
	extendIntoAnother(t, ctx, s)

	refused(t, "a deletion that is not allowed", no,
		s.DeleteReservation(ctx, second.UUID, func(*node.Reservation) error { return no }))
	for _, r := range []*node.Reservation{r, second, own} {
		must(t, s.DeleteReservation(ctx, r.UUID, func(*node.Reservation) error { return nil }))
	}
	if left := given(s.Promises(ctx))(t); len(left) != 0 {
		t.Errorf("promises of reservations that are deleted: %v", left)
	}
}

// keepAndEnd gives a promised machine to its project, replaces it by another, and takes that back.
func keepAndEnd(t *testing.T, ctx context.Context, s *store.Store, r *node.Reservation, p node.Promise) {
	t.Helper()
	a := &node.Allocation{Head: node.Head{UUID: r.UUID, Owner: "p"}, ResourceClass: "rc", Traits: r.Traits}
	for _, change := range []func(n *node.Node){
		func(n *node.Node) { n.Provision = node.Cleaning }, func(n *node.Node) { n.Maintenance = true },
	} {
		was := given(s.Node(ctx, p.NodeUUID))(t)
		must(t, second(s.UpdateNode(ctx, p.NodeUUID, func(n *node.Node) error { change(n); return nil })))
		refused(t, "a machine that is not free", store.ErrInUse, s.KeepPromise(ctx, p, a))
		must(t, second(s.UpdateNode(ctx, p.NodeUUID, func(n *node.Node) error {
			n.Provision, n.Maintenance = was.Provision, was.Maintenance
			return nil
		})))
	}
	if _, err := s.Allocations().Get(ctx, r.UUID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an allocation without a node: %v", err)
	}
	elsewhere := p
	elsewhere.NodeUUID = r.UUID
	refused(t, "a promise that does not stand", store.ErrNotFound, s.KeepPromise(ctx, elsewhere, a))
	must(t, s.KeepPromise(ctx, p, a))
	n := given(s.Node(ctx, p.NodeUUID))(t)
	if n.Lessee != "p" || n.InstanceUUID != r.UUID || n.AllocationUUID != r.UUID || n.LeasedAt.IsZero() ||
		!given(s.Promises(ctx))(t)[0].Given {
		t.Errorf("given: %+v", n)
	}
	third := free(t, s, "third", nil)
	must(t, second(s.UpdateNode(ctx, p.NodeUUID, func(n *node.Node) error { n.Provision = node.Active; return nil })))
	next := given(s.ReplacePromise(ctx, p, r.UUID, "p", "it burns", these(third.UUID)))(t)
	if next.NodeUUID != third.UUID || next.Given || !next.Until.Equal(r.End) {
		t.Errorf("replaced by %+v", next)
	}
	if n := given(s.Node(ctx, p.NodeUUID))(t); n.Lessee != "" || n.InstanceUUID != "" || n.AllocationUUID != "" ||
		n.Provision != node.Active {
		t.Errorf("the one that was replaced: %+v", n)
	}
	must(t, s.KeepPromise(ctx, next, a))
	next.Given = true
	must(t, second(s.UpdateNode(ctx, third.UUID, func(n *node.Node) error { n.Provision = node.Active; return nil })))
	for range 2 { // it can be repeated
		must(t, s.EndPromise(ctx, next, r.UUID, "p", "its time is over"))
		if n := given(s.Node(ctx, third.UUID))(t); n.Lessee != "" || n.AllocationUUID != "" ||
			n.InstanceUUID != r.UUID {
			t.Errorf("taken back: %+v", n)
		}
	}
	if _, err := s.Allocations().Get(ctx, r.UUID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the allocation is still there: %v", err)
	}
	must(t, s.DropPromise(ctx, next))
	must(t, s.DeleteNode(ctx, third.UUID))
	must(t, second(s.UpdateNode(ctx, p.NodeUUID, func(n *node.Node) error {
		n.Provision = node.Available
		return nil
	})))
}

// extendIntoAnother keeps the machines of a reservation for longer: those of the next one move to others.
func extendIntoAnother(t *testing.T, ctx context.Context, s *store.Store) {
	t.Helper()
	var ids []string
	for i := range 4 {
		ids = append(ids, free(t, s, fmt.Sprint("extend", i), nil).UUID)
	}
	two := func(from, until int, nodes ...string) *node.Reservation {
		r := reservation(from, until)
		r.Count = 2
		must(t, s.Reserve(ctx, r, plenty, these(nodes...)))
		return r
	}
	first, next := two(60, 64, ids[0], ids[1]), two(64, 68, ids[0], ids[1])
	must(t, second(s.ExtendReservation(ctx, first.UUID, func(r *node.Reservation) error {
		r.End = hour(66)
		return nil
	}, func(r *node.Reservation, from []store.Reservable) ([]string, error) {
		for _, m := range from {
			if m.UUID == ids[0] || m.UUID == ids[1] {
				t.Errorf("node %s is offered, which the reservation keeps", m.UUID)
			}
		}
		if r.UUID != next.UUID || r.Count != 1 || !r.From.Equal(hour(64)) || !r.End.Equal(hour(68)) {
			t.Errorf("a machine is chosen for %+v", r)
		}
		for _, m := range from {
			if (m.UUID == ids[2] || m.UUID == ids[3]) && len(m.Promises) == 0 {
				return []string{m.UUID}, nil
			}
		}
		return nil, errors.New("none is left")
	})))
	want := []node.Promise{
		{ReservationUUID: first.UUID, Slot: 0, NodeUUID: ids[0], From: hour(60), Until: hour(66)},
		{ReservationUUID: first.UUID, Slot: 1, NodeUUID: ids[1], From: hour(60), Until: hour(66)},
		{ReservationUUID: next.UUID, Slot: 0, NodeUUID: ids[2], From: hour(64), Until: hour(68)},
		{ReservationUUID: next.UUID, Slot: 1, NodeUUID: ids[3], From: hour(64), Until: hour(68)}}
	got := slices.DeleteFunc(given(s.Promises(ctx))(t),
		func(p node.Promise) bool { return !slices.Contains(ids, p.NodeUUID) })
	same(t, "promises after the extension", want, got)
	for _, r := range []*node.Reservation{first, next} {
		must(t, s.DeleteReservation(ctx, r.UUID, func(*node.Reservation) error { return nil }))
	}
}

// usedWhilePromised begins a use of a promised node in ways that know no promise.
func usedWhilePromised(t *testing.T, ctx context.Context, s *store.Store) {
	n := free(t, s, "n", nil)
	now := time.Now().UTC().Truncate(time.Second)
	r := &node.Reservation{ResourceClass: "rc", Count: 1, From: now.Add(-time.Hour), Start: now,
		End: now.Add(time.Hour)}
	later := &node.Reservation{ResourceClass: "rc", Count: 1, From: now.Add(time.Hour), Start: now.Add(time.Hour),
		End: now.Add(2 * time.Hour)}
	must(t, s.Reserve(ctx, r, plenty, these(n.UUID)))
	must(t, s.Reserve(ctx, later, plenty, these(n.UUID)))
	var taken *store.PromisedError
	uses := []func(*node.Node) error{
		func(n *node.Node) error { n.Provision, n.TargetProvision = node.Deploying, node.Active; return nil },
		func(n *node.Node) error { n.Provision = node.Active; return nil },
		func(n *node.Node) error { n.InstanceUUID = "8c9a4b5e-0000-4000-8000-00000000000f"; return nil },
	}
	for i, use := range uses {
		if _, err := s.UpdateNode(ctx, n.UUID, use); !errors.As(err, &taken) ||
			taken.Promise.ReservationUUID != r.UUID {
			t.Errorf("use %d of a promised node: %v", i, err)
		}
	}
	for _, change := range []func(*node.Node) error{ // what is no use
		func(n *node.Node) error { n.Maintenance = true; return nil },
		func(n *node.Node) error { n.Provision, n.Maintenance = node.Manageable, false; return nil },
		func(n *node.Node) error { n.Provision = node.Available; return nil },
	} {
		must(t, second(s.UpdateNode(ctx, n.UUID, change)))
	}
	a := given(s.Allocate(ctx, request(t, s, node.Allocation{CandidateNodes: []string{strings.ToUpper(n.UUID)}}).UUID,
		func(_ *node.Allocation, from []store.Candidate) (string, string) {
			return "", fmt.Sprint(len(from), " fit.")
		}))(t)
	if want := "0 fit. Node " + n.UUID + " is promised to a reservation from "; !strings.HasPrefix(a.LastError, want) {
		t.Errorf("an allocation that names it ends with %q, want %q", a.LastError, want)
	}
	must(t, s.KeepPromise(ctx, node.Promise{ReservationUUID: r.UUID, NodeUUID: n.UUID, From: r.From, Until: r.End},
		&node.Allocation{Head: node.Head{UUID: r.UUID}, ResourceClass: "rc"}))
	must(t, second(s.UpdateNode(ctx, n.UUID, uses[0]))) // by the reservation itself
	// A reservation to come does not keep a machine from others.
	other := free(t, s, "other", nil)
	must(t, s.Reserve(ctx, &node.Reservation{ResourceClass: "rc", Count: 1, From: later.From, Start: later.Start,
		End: later.End}, plenty, these(other.UUID)))
	must(t, second(s.UpdateNode(ctx, other.UUID, uses[2])))
}

// PromiseOnce lets people reserve the same machines at two writers of a database at once, each for a time that meets
// others'. Machines are promised, none twice in a moment, and a reservation that is refused leaves nothing.
func PromiseOnce(t *testing.T, ctx context.Context, a, b *store.Store) {
	const machines, people, hours = 3, 40, 6
	var ids []string
	for i := range machines {
		ids = append(ids, free(t, a, fmt.Sprint("m", i), nil).UUID)
	}
	var mu sync.Mutex
	made, full := 0, 0
	var wg sync.WaitGroup
	for i := range people {
		s := []*store.Store{a, b}[i%2]
		wg.Go(func() {
			from := i % hours
			for k := range machines { // each is tried blindly, as if it were free: what the store promises holds alone
				err := s.Reserve(ctx, reservation(from, from+2), plenty, these(ids[(i+k)%machines]))
				var taken *store.PromisedError
				mu.Lock()
				switch {
				case err == nil:
					made++
				case errors.As(err, &taken):
					full++
				default:
					t.Errorf("reserve at hour %d: %v", from, err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	all := given(b.Promises(ctx))(t)
	for i, p := range all {
		for _, q := range all[i+1:] {
			if p.NodeUUID == q.NodeUUID && p.Meets(q.From, q.Until) {
				t.Errorf("promised twice: %+v and %+v", p, q)
			}
		}
	}
	stored := given(a.Reservations().List(ctx, ""))(t)
	if made != len(all) || made != len(stored) || made < machines*2 || full < people || made+full != people*machines {
		t.Errorf("%d were made, %d refused; %d promises and %d reservations are stored", made, full, len(all),
			len(stored))
	}
}
