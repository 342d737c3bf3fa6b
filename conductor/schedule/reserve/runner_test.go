package reserve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
)

// hands does at once what an engine does in minutes.
type hands struct {
	st     *store.Store
	calls  []string
	refuse error
}

func (h *hands) change(ctx context.Context, what, ident, user string, f func(*node.Node)) error {
	h.calls = append(h.calls, what+" by "+strings.Fields(user)[0])
	if h.refuse != nil {
		return h.refuse
	}
	_, err := h.st.UpdateNode(ctx, ident, func(n *node.Node) error { f(n); return nil })
	return err
}

func (h *hands) Warm(ctx context.Context, ident, user string) error {
	return h.change(ctx, "warm", ident, user, func(n *node.Node) {
		n.Power, n.Boot = "power on", &node.Boot{Kept: true, Connected: true}
	})
}

func (h *hands) Cool(ctx context.Context, ident, user string) error {
	return h.change(ctx, "cool", ident, user, func(n *node.Node) { n.Power, n.Boot = "power off", nil })
}

func (h *hands) TearDown(ctx context.Context, ident, user string) error {
	return h.change(ctx, "tear down", ident, user, func(n *node.Node) {
		n.Provision, n.InstanceUUID, n.Boot = node.Cleaning, "", nil
	})
}

type site struct {
	t   *testing.T
	st  *store.Store
	do  *hands
	run *Runner
	now time.Time
}

// newSite is a site with machines, at a time that the test sets.
func newSite(t *testing.T, machines int) *site {
	t.Helper()
	s := &site{t: t, now: zero}
	var err error
	if s.st, err = store.Open(t.Context(), store.Options{Dir: storetest.Fresh(t),
		Now: func() time.Time { return s.now }}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.st.Close() })
	for i := range machines {
		err := s.st.CreateNode(t.Context(), &node.Node{Name: fmt.Sprint("n", i), Driver: "x", ResourceClass: "rc",
			Provision: node.Available, Power: "power off"})
		if err != nil {
			t.Fatal(err)
		}
	}
	s.do = &hands{st: s.st}
	s.run = New(s.st, s.do, nil,
		Config{Hostname: "c1", Warning: time.Hour, Now: func() time.Time { return s.now }}, nil)
	return s
}

func (s *site) reserve(r node.Reservation) *node.Reservation {
	s.t.Helper()
	r.ResourceClass, r.Owner = "rc", "p"
	if err := s.st.Reserve(s.t.Context(), &r, store.MostReservations{All: 100, OfProject: 100}, Choose); err != nil {
		s.t.Fatal(err)
	}
	return &r
}

// at lets the Runner look at a time, and returns the reservation as it is then, with its promises.
func (s *site) at(hour float64, id string) (*node.Reservation, []node.Promise) {
	s.t.Helper()
	s.now = zero.Add(time.Duration(hour * float64(time.Hour)))
	if _, _, err := s.run.Pass(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	r, err := s.st.Reservations().Get(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	ps, err := s.st.Promises(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return r, ps
}

func (s *site) node(ident string) *node.Node {
	s.t.Helper()
	n, err := s.st.Node(s.t.Context(), ident)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *site) set(ident string, f func(*node.Node)) {
	s.t.Helper()
	_, err := s.st.UpdateNode(s.t.Context(), s.node(ident).UUID, func(n *node.Node) error { f(n); return nil })
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) history(id, part string) {
	s.t.Helper()
	lines, err := s.st.History(s.t.Context(), id, 100)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, l := range lines {
		if strings.Contains(l.Event, part) {
			return
		}
	}
	s.t.Errorf("the history of %s does not say %q: %+v", id, part, lines)
}

// TestLifeOfAReservation: machines are warmed before the start, given at it, warned of and taken back at the end.
func TestLifeOfAReservation(t *testing.T) {
	s := newSite(t, 3)
	r := s.reserve(node.Reservation{Count: 2, From: at(1), Start: at(2), End: at(6), TearDown: true})
	if got, _ := s.at(0, r.UUID); got.State != node.ReservationPlanned || len(s.do.calls) != 0 {
		t.Errorf("before its time it is %q: %v", got.State, s.do.calls)
	}
	_, ps := s.at(1, r.UUID)
	if fmt.Sprint(s.do.calls) != "[warm by reservation warm by reservation]" || !s.node(ps[0].NodeUUID).IsWarm() {
		t.Errorf("to prepare, it did %v", s.do.calls)
	}
	got, ps := s.at(2, r.UUID)
	if got.State != node.ReservationActive || got.Fault != "" {
		t.Fatalf("at the start it is %+v", got)
	}
	for _, p := range ps {
		n, want := s.node(p.NodeUUID), AllocationUUID(r.UUID, p.Slot)
		a, err := s.st.Allocations().Get(t.Context(), want)
		if !p.Given || n.Lessee != "p" || n.AllocationUUID != want || n.InstanceUUID != want || err != nil ||
			a.State != node.AllocationActive || a.Owner != "p" || a.NodeUUID != n.UUID {
			t.Errorf("slot %d: node %+v, allocation %+v, %v", p.Slot, n, a, err)
		}
	}
	s.set(ps[0].NodeUUID, func(n *node.Node) { n.Provision = node.Active })
	if got, _ := s.at(4, r.UUID); !got.WarnedAt.IsZero() {
		t.Errorf("it warns at %v", got.WarnedAt)
	}
	if got, _ := s.at(5, r.UUID); !got.WarnedAt.Equal(at(5)) {
		t.Errorf("an hour before the end: warned at %v", got.WarnedAt)
	}
	s.history(ps[0].NodeUUID, "ends at 2026-12-01T14:00:00Z")
	s.history(ps[0].NodeUUID, "the instance is removed")

	s.do.refuse = errors.New("its lock is held")
	got, left := s.at(6, r.UUID)
	if n := s.node(ps[0].NodeUUID); got.State != node.ReservationEnding || n.Lessee != "" || n.AllocationUUID != "" ||
		n.InstanceUUID != r.UUID || len(left) != 1 || !strings.Contains(got.Fault, "its lock is held") {
		t.Errorf("at the end, with its lock held: %+v, node %+v, promises %v", got, n, left)
	}
	if n := s.node(ps[1].NodeUUID); n.Lessee != "" || n.InstanceUUID != "" || n.Provision != node.Available ||
		!n.IsWarm() { // its controller is not to be had either
		t.Errorf("the one without an instance: %+v", n)
	}
	s.do.refuse = nil
	got, left = s.at(6.1, r.UUID)
	if n := s.node(ps[0].NodeUUID); got.State != node.ReservationEnded || got.Fault != "" || len(left) != 0 ||
		n.Provision != node.Cleaning {
		t.Errorf("after the end: %+v, node %+v, promises %v", got, n, left)
	}
	s.history(ps[0].NodeUUID, "taken from reservation")
	s.now = zero.Add(Kept + 7*time.Hour)
	if _, _, err := s.run.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.st.Reservations().Get(t.Context(), r.UUID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("it is kept for ever: %v", err)
	}
}

// TestMachineIsReplaced: before the start, at it, and while it runs; and what is said when there is no other.
func TestMachineIsReplaced(t *testing.T) {
	s := newSite(t, 4)
	r := s.reserve(node.Reservation{Count: 1, From: at(1), Start: at(2), End: at(6)})
	_, ps := s.at(0, r.UUID)
	first := ps[0].NodeUUID
	s.set(first, func(n *node.Node) { n.Maintenance = true })
	_, ps = s.at(1, r.UUID)
	second := ps[0].NodeUUID
	if second == first || len(ps) != 1 {
		t.Fatalf("the machine in maintenance is still promised: %v", ps)
	}
	s.history(second, "in place of another: the machine is in maintenance")
	if err := s.st.DeleteNode(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	_, ps = s.at(2, r.UUID)
	third := ps[0].NodeUUID
	if n := s.node(third); !ps[0].Given || n.AllocationUUID != r.UUID || n.Lessee != "p" {
		t.Fatalf("in place of one that was deleted: %+v, node %+v", ps, n)
	}
	s.set(third, func(n *node.Node) { n.Provision, n.Fault = node.Active, "power failure" })
	_, ps = s.at(3, r.UUID)
	fourth := ps[0].NodeUUID
	if n := s.node(third); n.AllocationUUID != "" || n.Lessee != "" || n.InstanceUUID != "" {
		t.Errorf("the failed machine is still the project's: %+v", n)
	}
	if n := s.node(fourth); fourth == third || n.AllocationUUID != r.UUID || n.InstanceUUID != r.UUID ||
		n.Lessee != "p" {
		t.Errorf("in place of a failed one: %+v", n)
	}
	s.set(fourth, func(n *node.Node) { n.Provision = node.CleanFailed })
	got, ps := s.at(4, r.UUID)
	if !strings.Contains(got.Fault, `machine 1 of 1 is missing (the machine is in state "clean failed"), and no other`) ||
		ps[0].NodeUUID != fourth {
		t.Errorf("without another: %+v, %v", got, ps)
	}
	s.set(fourth, func(n *node.Node) { n.Provision = node.Available })
	if got, _ := s.at(4.5, r.UUID); got.Fault != "" {
		t.Errorf("it is well again, and yet: %q", got.Fault)
	}
}

// TestInstanceOfOthersStays: a machine that is in use by others when the reservation begins, with no other to be had,
// is not touched, at the end neither.
func TestInstanceOfOthersStays(t *testing.T) {
	s := newSite(t, 1)
	r := s.reserve(node.Reservation{Count: 1, From: at(1), Start: at(2), End: at(6), TearDown: true})
	_, ps := s.at(0, r.UUID)
	s.set(ps[0].NodeUUID, func(n *node.Node) {
		n.Provision, n.InstanceUUID, n.Lessee = node.Active, "8c9a4b5e-0000-4000-8000-00000000000f", "p"
	})
	got, _ := s.at(2, r.UUID)
	if !strings.Contains(got.Fault, "it is active") {
		t.Errorf("a machine is in use, and the reservation says %q", got.Fault)
	}
	got, ps = s.at(7, r.UUID)
	if n := s.node("n0"); got.State != node.ReservationEnded || len(ps) != 0 || n.Provision != node.Active ||
		n.Lessee != "p" || len(s.do.calls) != 0 {
		t.Errorf("after the end: %+v, %v, node %+v, %v", got, ps, n, s.do.calls)
	}
}

// TestOneConductorActs: the other one waits until the duty is its own.
func TestOneConductorActs(t *testing.T) {
	s := newSite(t, 1)
	r := s.reserve(node.Reservation{Count: 1, From: at(0), Start: at(0), End: at(6)})
	other := &hands{st: s.st}
	second := New(s.st, other, nil, Config{Hostname: "c2", Now: func() time.Time { return s.now }}, nil)
	s.at(-1, r.UUID)
	s.now = at(0).Add(-time.Hour + 10*time.Second)
	next, _, err := second.Pass(t.Context())
	if err != nil || !next.After(s.now) || len(other.calls) != 0 {
		t.Errorf("the second conductor: %v, %v, %v", next, other.calls, err)
	}
	s.now = at(0)
	if _, _, err := second.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := s.node("n0"); n.AllocationUUID != r.UUID {
		t.Errorf("the first is away, and the second did nothing: %+v", n)
	}
}

// TestMachineOfReservationIsGivenAgain: what the project does with a machine in its time does not end its access.
func TestMachineOfReservationIsGivenAgain(t *testing.T) {
	s := newSite(t, 1)
	r := s.reserve(node.Reservation{Count: 1, From: at(0), Start: at(0), End: at(6)})
	s.at(0, r.UUID)
	s.set("n0", func(n *node.Node) { n.Provision, n.InstanceUUID = node.Cleaning, "" }) // it removed its instance
	if _, ps := s.at(1, r.UUID); !ps[0].Given {
		t.Errorf("promises %+v", ps)
	}
	s.set("n0", func(n *node.Node) { n.Provision = node.Available })
	got, _ := s.at(2, r.UUID)
	if n := s.node("n0"); n.AllocationUUID != r.UUID || n.Lessee != "p" || got.Fault != "" {
		t.Errorf("node %+v, fault %q", n, got.Fault)
	}
}

// TestUnusedMachineIsTurnedOff after the end, unless a pool keeps it warm.
func TestUnusedMachineIsTurnedOff(t *testing.T) {
	s := newSite(t, 2)
	r := s.reserve(node.Reservation{Count: 2, From: at(0), Start: at(1), End: at(2)})
	_, ps := s.at(0, r.UUID)
	pools := ps[1].NodeUUID
	if err := s.st.SetPoolMember(t.Context(), node.PoolMember{NodeUUID: pools, Asked: at(0)}); err != nil {
		t.Fatal(err)
	}
	s.at(1, r.UUID)
	got, _ := s.at(2, r.UUID)
	if got.State != node.ReservationEnded || s.node(ps[0].NodeUUID).Power != "power off" || !s.node(pools).IsWarm() {
		t.Errorf("after the end: %+v, did %v", got, s.do.calls)
	}
}
