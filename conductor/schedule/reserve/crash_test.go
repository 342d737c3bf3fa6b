package reserve

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
)

var errDead = errors.New("the conductor was killed")

// mortal is a conductor's database and hands: all that it asks of them from a call on fails, as after a kill.
type mortal struct {
	*store.Store
	hands  *hands
	closed *store.Store
	left   int // calls until the kill
}

func (m *mortal) dead() bool {
	m.left--
	return m.left < 0
}

// alive does something unless the conductor is dead.
func alive[T any](m *mortal, do func() (T, error)) (T, error) {
	if m.dead() {
		return *new(T), errDead
	}
	return do()
}

func done(m *mortal, do func() error) error {
	_, err := alive(m, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

func (m *mortal) Reservations() *store.Table[node.Reservation] {
	if m.dead() {
		return m.closed.Reservations()
	}
	return m.Store.Reservations()
}

func (m *mortal) Promises(ctx context.Context) ([]node.Promise, error) {
	return alive(m, func() ([]node.Promise, error) { return m.Store.Promises(ctx) })
}

func (m *mortal) PoolMembers(ctx context.Context) (map[string]node.PoolMember, error) {
	return alive(m, func() (map[string]node.PoolMember, error) { return m.Store.PoolMembers(ctx) })
}

func (m *mortal) Node(ctx context.Context, ident string) (*node.Node, error) {
	return alive(m, func() (*node.Node, error) { return m.Store.Node(ctx, ident) })
}

func (m *mortal) Change(ctx context.Context, uuid string,
	change func(*node.Node, *node.SideEffects) error) (*node.Node, error) {
	return alive(m, func() (*node.Node, error) { return m.Store.Change(ctx, uuid, change) })
}

func (m *mortal) KeepPromise(ctx context.Context, p node.Promise, a *node.Allocation) error {
	return done(m, func() error { return m.Store.KeepPromise(ctx, p, a) })
}

func (m *mortal) EndPromise(ctx context.Context, p node.Promise, allocation, lessee, why string) error {
	return done(m, func() error { return m.Store.EndPromise(ctx, p, allocation, lessee, why) })
}

func (m *mortal) DropPromise(ctx context.Context, p node.Promise) error {
	return done(m, func() error { return m.Store.DropPromise(ctx, p) })
}

func (m *mortal) ReplacePromise(ctx context.Context, p node.Promise, allocation, lessee, why string,
	choose func(*node.Reservation, []store.Reservable) ([]string, error)) (node.Promise, error) {
	return alive(m, func() (node.Promise, error) {
		return m.Store.ReplacePromise(ctx, p, allocation, lessee, why, choose)
	})
}

func (m *mortal) DeleteReservation(ctx context.Context, uuid string, allowed func(*node.Reservation) error) error {
	return done(m, func() error { return m.Store.DeleteReservation(ctx, uuid, allowed) })
}

func (m *mortal) TakeDuty(ctx context.Context, name, conductor string,
	during time.Duration) (holder string, until time.Time, err error) {
	if m.dead() {
		return "", time.Time{}, errDead
	}
	return m.Store.TakeDuty(ctx, name, conductor, during)
}

func (m *mortal) Warm(ctx context.Context, ident, user string) error {
	return done(m, func() error { return m.hands.Warm(ctx, ident, user) })
}

func (m *mortal) Cool(ctx context.Context, ident, user string) error {
	return done(m, func() error { return m.hands.Cool(ctx, ident, user) })
}

func (m *mortal) TearDown(ctx context.Context, ident, user string) error {
	return done(m, func() error { return m.hands.TearDown(ctx, ident, user) })
}

// TestNextConductorConverges kills the conductor between any two calls in which it gives machines, replaces one or
// takes them back. The next one ends what was begun: there is one promise, allocation and lessee for each slot, or
// none.
func TestNextConductorConverges(t *testing.T) {
	closed, err := store.Open(t.Context(), store.Options{Dir: storetest.Fresh(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	deploy := func(n *node.Node) { n.Provision = node.Active }
	// Each reservation is of two machines out of three, from hour 2 until hour 6.
	for _, c := range []struct {
		name     string
		begun    []float64 // when the first conductor looked before
		prepare  func(s *site, ps []node.Promise)
		hour     float64 // of the look in which it is killed
		tearDown bool
		atLeast  int // calls of that look
		check    func(s *site, r *node.Reservation, ps []node.Promise) string
	}{
		{"preparation", []float64{0}, nil, 1, false, 6, func(s *site, _ *node.Reservation, ps []node.Promise) string {
			for _, p := range ps {
				if n := s.node(p.NodeUUID); !n.IsWarm() {
					return "a machine is not warm"
				}
			}
			return held(s, 2, false)
		}},
		{"start", []float64{0, 1}, nil, 2, false, 8, func(s *site, _ *node.Reservation, _ []node.Promise) string {
			return held(s, 2, true)
		}},
		{"replacement before the start", []float64{0}, func(s *site, ps []node.Promise) {
			s.set(ps[0].NodeUUID, func(n *node.Node) { n.Maintenance = true })
		}, 1, false, 6, func(s *site, _ *node.Reservation, _ []node.Promise) string { return held(s, 2, false) }},
		{"replacement in use", []float64{0, 1, 2}, func(s *site, ps []node.Promise) {
			s.set(ps[1].NodeUUID, deploy)
			s.set(ps[1].NodeUUID, func(n *node.Node) { n.Fault = "power failure" })
		}, 3, false, 7, func(s *site, _ *node.Reservation, _ []node.Promise) string { return held(s, 2, true) }},
		{"replacement of one that was deleted", []float64{0, 1, 2}, func(s *site, ps []node.Promise) {
			if err := s.st.DeleteNode(s.t.Context(), ps[0].NodeUUID); err != nil {
				s.t.Fatal(err)
			}
		}, 3, false, 7, func(s *site, _ *node.Reservation, _ []node.Promise) string { return held(s, 2, true) }},
		{"end with its instances", []float64{0, 1, 2}, func(s *site, ps []node.Promise) {
			s.set(ps[0].NodeUUID, deploy)
		}, 6, true, 12, func(s *site, r *node.Reservation, _ []node.Promise) string {
			n := strings.Count(strings.Join(s.do.calls, ","), "tear down")
			if n != 1 || r.State != node.ReservationEnded {
				return "it has not ended, or an instance was not removed once"
			}
			for _, n := range s.nodes() {
				if n.InstanceUUID != "" || n.Provision == node.Active || n.IsWarm() {
					return "an instance is left, or a machine is on"
				}
			}
			return held(s, 0, false)
		}},
		{"end without its instances", []float64{0, 1, 2}, func(s *site, ps []node.Promise) {
			s.set(ps[1].NodeUUID, deploy)
		}, 6, false, 10, func(s *site, r *node.Reservation, _ []node.Promise) string {
			instances := 0
			for _, n := range s.nodes() {
				if n.InstanceUUID == AllocationUUID(r.UUID, 1) && n.Provision == node.Active {
					instances++
				}
			}
			if instances != 1 || r.State != node.ReservationEnded {
				return "it has not ended, or its instance is not what it was"
			}
			return held(s, 0, false)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for k := 0; ; k++ {
				s := newSite(t, 3)
				r := s.reserve(node.Reservation{Count: 2, From: at(1), Start: at(2), End: at(6), TearDown: c.tearDown})
				var ps []node.Promise
				for _, hour := range c.begun {
					_, ps = s.at(hour, r.UUID)
				}
				if c.prepare != nil {
					c.prepare(s, ps)
				}
				m := &mortal{s.st, s.do, closed, k}
				s.run.db, s.run.do = m, m
				s.now = zero.Add(time.Duration(c.hour * float64(time.Hour)))
				_, _, err := s.run.Pass(t.Context())
				killed := m.left < 0
				if killed && err == nil && k == 0 {
					t.Fatal("it does not notice that it is dead")
				}
				s.run = New(s.st, s.do, nil, Config{Hostname: "c2", Now: func() time.Time { return s.now }}, nil)
				for look := range 3 { // the first may follow an act of which the rest is due in the next
					r, ps = s.at(c.hour+0.1+float64(look)/100, r.UUID)
				}
				if why := c.check(s, r, ps); why != "" || r.Fault != "" {
					t.Errorf("killed at call %d: %s; reservation %+v, promises %+v, nodes %+v", k, why, r, ps, s.nodes())
				}
				if !killed {
					if k < c.atLeast {
						t.Errorf("it asks only %d times for anything: too little was cut", k)
					}
					return
				}
			}
		})
	}
}

func (s *site) nodes() []*node.Node {
	s.t.Helper()
	var all []*node.Node
	for _, name := range []string{"n0", "n1", "n2"} {
		n, err := s.st.Node(s.t.Context(), name)
		switch {
		case err == nil:
			all = append(all, n)
		case !errors.Is(err, store.ErrNotFound):
			s.t.Fatal(err)
		}
	}
	return all
}

// held says what is wrong if there are not so many promises, or if not each of their machines, and no other, has the
// allocation of its slot and the lessee; none has if they are not given yet.
func held(s *site, promises int, given bool) string {
	s.t.Helper()
	ps, err := s.st.Promises(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	allocations, err := s.st.Allocations().List(s.t.Context(), "")
	if err != nil {
		s.t.Fatal(err)
	}
	if len(ps) != promises || given != (len(allocations) > 0) || given && len(allocations) != promises {
		return "there are too many promises or allocations, or too few"
	}
	for _, n := range s.nodes() {
		i := slices.IndexFunc(ps, func(p node.Promise) bool { return p.NodeUUID == n.UUID })
		allocation, lessee := "", ""
		if i >= 0 && given {
			allocation, lessee = AllocationUUID(ps[i].ReservationUUID, ps[i].Slot), "p"
		}
		switch {
		case i >= 0 && (ps[i].Given != given || n.Maintenance || n.Fault != ""):
			return "a promise is not given, or of a broken machine"
		case n.AllocationUUID != allocation || n.Lessee != lessee:
			return "machine " + n.Name + " has allocation " + n.AllocationUUID + " and lessee " + n.Lessee
		case given && i >= 0 && !slices.ContainsFunc(allocations, func(a *node.Allocation) bool {
			return a.UUID == allocation && a.NodeUUID == n.UUID && a.State == node.AllocationActive
		}):
			return "machine " + n.Name + " has no active allocation"
		}
	}
	if slot := func(i int) int { return ps[i].Slot }; len(ps) == 2 && (slot(0) == slot(1) ||
		ps[0].NodeUUID == ps[1].NodeUUID) {
		return "a slot or a machine is promised twice"
	}
	return ""
}
