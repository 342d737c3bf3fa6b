package reserve

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

var zero = time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)

func at(hour int) time.Time { return zero.Add(time.Duration(hour) * time.Hour) }

// TestChooseAgainstBruteForce makes sites at random, promises them away one reservation after the other, and compares
// each answer with one found by looking at every set of machines, hour by hour.
func TestChooseAgainstBruteForce(t *testing.T) {
	kept, refused, again := 0, 0, 0
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 27))
		site := make([]store.Reservable, 2+random.IntN(4))
		for i := range site {
			m := &site[i]
			m.UUID, m.State = fmt.Sprint("m", i), node.Available
			for _, trait := range []string{"A", "B"} {
				if random.IntN(2) == 0 {
					m.Traits = append(m.Traits, trait)
				}
			}
			switch random.IntN(12) {
			case 0:
				m.Maintenance = true
			case 1:
				m.State, m.InstanceUUID = node.Active, "other"
			case 2:
				m.Owner = "q"
			}
		}
		for k := range 8 {
			from := random.IntN(30)
			r := &node.Reservation{Head: node.Head{UUID: fmt.Sprint("r", k), Owner: "p"}, ResourceClass: "c",
				Count: 1 + random.IntN(3), From: at(from), Start: at(from), End: at(from + 1 + random.IntN(10)),
				TearDown: random.IntN(2) == 0, Traits: [][]string{nil, nil, {"A"}, {"A", "B"}}[random.IntN(4)]}
			possible := bruteForce(site, r, r.From)
			got, err := Choose(r, site)
			var short *ShortError
			if (err == nil) != possible || err != nil && !errors.As(err, &short) {
				t.Fatalf("seed %d: %+v of %+v: %v, %v; brute force: %v", seed, r, site, got, err, possible)
			}
			if err != nil {
				refused++
				first := time.Time{}
				for hour := from + 1; hour < 60 && first.IsZero(); hour++ {
					if bruteForce(site, r, at(hour)) {
						first = at(hour)
					}
				}
				if !short.Earliest.Equal(first) {
					t.Fatalf("seed %d: %+v of %+v is possible from %v, not %v", seed, r, site, first, short.Earliest)
				}
				if !first.IsZero() {
					again++
				}
				continue
			}
			kept++
			for _, id := range got {
				i := slices.IndexFunc(site, func(m store.Reservable) bool { return m.UUID == id })
				site[i].Promises = append(site[i].Promises, store.Promised{TearDown: r.TearDown,
					Promise: node.Promise{ReservationUUID: r.UUID, NodeUUID: id, From: r.From, Until: r.End}})
			}
			noTwoMeet(t, seed, site)
		}
	}
	t.Logf("%d were kept, %d refused, %d of these would be later", kept, refused, again)
	if kept < 500 || refused < 500 || again < 200 {
		t.Errorf("%d were kept, %d refused, %d of these would be later: too few to show anything", kept, refused, again)
	}
}

// bruteForce reports whether any set of machines could have a reservation that began at from.
func bruteForce(site []store.Reservable, r *node.Reservation, from time.Time) bool {
	until := from.Add(r.End.Sub(r.From))
	for set := range 1 << len(site) {
		chosen, good := 0, true
		for i, m := range site {
			if set&(1<<i) == 0 {
				continue
			}
			chosen++
			good = good && !m.Maintenance && m.Owner == "" && m.State == node.Available
			for _, trait := range r.Traits {
				good = good && slices.Contains(m.Traits, trait)
			}
			for hour := from; hour.Before(until); hour = hour.Add(time.Hour) {
				for _, p := range m.Promises {
					good = good && (hour.Before(p.From) || !hour.Before(p.Until))
				}
			}
		}
		if good && chosen == r.Count {
			return true
		}
	}
	return false
}

func noTwoMeet(t *testing.T, seed uint64, site []store.Reservable) {
	t.Helper()
	for _, m := range site {
		for i, p := range m.Promises {
			for _, q := range m.Promises[i+1:] {
				if p.Meets(q.From, q.Until) || q.Meets(p.From, p.Until) {
					t.Fatalf("seed %d: machine %s is promised twice: %+v and %+v", seed, m.UUID, p, q)
				}
			}
		}
	}
}

func TestChoose(t *testing.T) {
	promised := func(from, until int, tearDown bool) []store.Promised {
		return []store.Promised{{Promise: node.Promise{ReservationUUID: "x", From: at(from), Until: at(until)},
			TearDown: tearDown}}
	}
	free := func(id string, change ...func(*store.Reservable)) store.Reservable {
		m := store.Reservable{UUID: id, State: node.Available}
		for _, f := range change {
			f(&m)
		}
		return m
	}
	active := func(m *store.Reservable) { m.State, m.InstanceUUID, m.Lessee = node.Active, "i", "other" }
	for _, c := range []struct {
		name string
		r    node.Reservation
		from []store.Reservable
		want string // the machines, or a part of the error
	}{
		{"one that others need less", node.Reservation{Count: 1},
			[]store.Reservable{free("a", func(m *store.Reservable) { m.Traits = []string{"A"} }), free("b")}, "b"},
		{"a short gap before", node.Reservation{Count: 1}, []store.Reservable{free("a"),
			free("b", func(m *store.Reservable) { m.Promises = promised(-9, -5, true) }),
			free("c", func(m *store.Reservable) { m.Promises = promised(-9, -1, true) })}, "c"},
		{"in use until a reservation removes it", node.Reservation{Count: 1},
			[]store.Reservable{free("a", active, func(m *store.Reservable) { m.Promises = promised(-9, 0, true) })},
			"a"},
		{"in use, and it stays", node.Reservation{Head: node.Head{Owner: "other"}, Count: 1},
			[]store.Reservable{free("a", active, func(m *store.Reservable) {
				m.Promises, m.Lessee = promised(-9, 0, false), ""
			})}, "1 in use without an end"},
		{"being cleaned", node.Reservation{Count: 1}, []store.Reservable{
			free("a", func(m *store.Reservable) { m.State, m.Target = node.Cleaning, node.Available })}, "a"},
		{"being cleaned by hand", node.Reservation{Count: 1}, []store.Reservable{
			free("a", func(m *store.Reservable) { m.State, m.Target = node.Cleaning, node.Manageable })},
			"1 out of service"},
		{"all kinds of reasons", node.Reservation{Head: node.Head{Owner: "p"}, Count: 3, ResourceClass: "large",
			Traits: []string{"A"}}, []store.Reservable{free("a"),
			free("b", func(m *store.Reservable) { m.Owner = "q" }), free("c", active),
			free("d", func(m *store.Reservable) { m.Traits, m.Fault = []string{"A"}, "power failure" }),
			free("e", func(m *store.Reservable) { m.Traits, m.Promises = []string{"A"}, promised(3, 9, true) }),
			free("f", func(m *store.Reservable) { m.Traits = []string{"A"} })},
			"2 of 3 machines of resource class large with the traits A are missing from 2026-12-01T08:00:00Z until " +
				"2026-12-01T13:00:00Z: 1 can be promised; 2 of other projects, 1 without the traits, 1 out of service, " +
				"1 promised to others in that time"},
		{"none", node.Reservation{Count: 2}, nil, "there are no others"},
		{"later", node.Reservation{Count: 1}, []store.Reservable{
			free("a", func(m *store.Reservable) { m.Promises = promised(3, 9, true) })},
			"As many are free from 2026-12-01T17:00:00Z"},
		{"its own and those of no one", node.Reservation{Head: node.Head{Owner: "p"}, Count: 2},
			[]store.Reservable{free("a"), free("b", func(m *store.Reservable) { m.Owner = "p" })}, "a b"},
		{"a project's own alone", node.Reservation{Head: node.Head{Owner: "p"}, Count: 1, OwnOnly: true},
			[]store.Reservable{free("a"), free("b", func(m *store.Reservable) { m.Owner = "p" })}, "b"},
		{"a project is not told of others' machines",
			node.Reservation{Head: node.Head{Owner: "p"}, Count: 1, OwnOnly: true}, []store.Reservable{free("a")},
			"0 can be promised; there are no others"},
	} {
		c.r.From, c.r.Start, c.r.End = at(0), at(0), at(5)
		got, err := Choose(&c.r, c.from)
		text := strings.Join(got, " ")
		if err != nil {
			if text = err.Error(); strings.Contains(text, c.want) {
				continue
			}
		}
		if text != c.want {
			t.Errorf("%s: %q, want %q", c.name, text, c.want)
		}
	}
}

func TestAllocationUUID(t *testing.T) {
	const id = "8c9a4b5e-0000-4000-8000-000000000001"
	seen := map[string]bool{}
	for slot := range 100 {
		seen[AllocationUUID(id, slot)] = true
	}
	// Written down: clients compute them, too.
	if len(seen) != 100 || AllocationUUID(id, 0) != id ||
		AllocationUUID(id, 1) != "02078488-7b1f-5cf9-b981-9dd205a171b6" {
		t.Errorf("%d UUIDs, that of slot 1 is %s", len(seen), AllocationUUID(id, 1))
	}
}

func TestDo(t *testing.T) {
	const id = "8c9a4b5e-0000-4000-8000-000000000001"
	r := node.Reservation{Head: node.Head{UUID: id, Owner: "p"}, Count: 1, From: at(0), Start: at(1), End: at(5),
		State: node.ReservationActive}
	n := func(s node.State, change ...func(*node.Node)) *node.Node {
		n := &node.Node{UUID: "n", Provision: s}
		for _, f := range change {
			f(n)
		}
		return n
	}
	ours := func(n *node.Node) { n.InstanceUUID, n.AllocationUUID, n.Lessee = id, id, "p" }
	left := func(n *node.Node) { n.InstanceUUID = id }
	faulty := func(n *node.Node) { n.Fault = "power failure" }
	maintained := func(n *node.Node) { n.Maintenance = true }
	for _, c := range []struct {
		name  string
		hour  int
		given bool
		stays bool // the instance, at the end
		n     *node.Node
		want  act
	}{
		{"before", -1, false, false, n(node.Available), nothing},
		{"before, although it is broken", -1, false, false, n(node.Manageable), nothing},
		{"deleted before", -1, false, false, nil, replace},
		{"cold", 0, false, false, n(node.Available), warm},
		{"warm", 0, false, false, n(node.Available, func(n *node.Node) {
			n.Boot = &node.Boot{Kept: true, Connected: true}
		}), nothing},
		{"being warmed", 0, false, false, n(node.Available, func(n *node.Node) { n.Job = &node.Job{} }), nothing},
		{"still in use", 0, false, false, n(node.Active), nothing},
		{"still in use at the start", 1, false, false, n(node.Active), replace},
		{"being cleaned at the start", 1, false, false, n(node.Cleaning), wait},
		{"taken at the start", 1, false, false, n(node.Available, func(n *node.Node) { n.InstanceUUID = "x" }),
			replace},
		{"maintenance", 0, false, false, n(node.Available, maintained), replace},
		{"clean failed", 0, false, false, n(node.CleanFailed), replace},
		{"manageable", 0, false, false, n(node.Manageable), replace},
		{"the start", 1, false, false, n(node.Available), keep},
		{"given", 2, true, false, n(node.Available, ours), nothing},
		{"deployed", 2, true, false, n(node.Active, ours), nothing},
		{"deployed, in maintenance", 2, true, false, n(node.Active, ours, maintained), nothing},
		{"given, in maintenance", 2, true, false, n(node.Available, ours, maintained), replace},
		{"deployed, with a fault", 2, true, false, n(node.Active, ours, faulty), replace},
		{"deployed, in quarantine", 2, true, false,
			n(node.Active, ours, func(n *node.Node) { n.Quarantine = &node.Quarantine{} }), replace},
		{"deploy failed", 2, true, false, n(node.DeployFailed, ours), nothing},
		{"tear-down failed", 2, true, false, n(node.Error, ours), replace},
		{"removed by the project", 2, true, false, n(node.Cleaning), nothing},
		{"free again", 2, true, false, n(node.Available), keep},
		{"gone", 2, true, false, nil, replace},
		{"the end", 5, true, false, n(node.Active, ours), takeBack},
		{"the end: the instance", 5, true, false, n(node.Active, left), remove},
		{"the end: an instance without its UUID", 5, true, false, n(node.Active), remove},
		{"the end: the instance stays", 5, true, true, n(node.Active, left), drop},
		{"the end: being deployed", 5, true, false, n(node.Deploying, left), remove},
		{"the end: being removed", 5, true, false, n(node.Deleting, left), wait},
		{"the end: clean", 5, true, false, n(node.Available), drop},
		{"the end: not deployed", 5, true, false, n(node.Available, ours), takeBack},
		{"the end: never given, another's instance", 5, false, false, n(node.Active), drop},
		{"the end: leased to others by now", 5, true, true, n(node.Active, func(n *node.Node) { n.Lessee = "q" }), drop},
		{"the end: gone", 5, true, false, nil, drop},
	} {
		r.TearDown = !c.stays
		p := node.Promise{ReservationUUID: id, NodeUUID: "n", From: r.From, Until: r.End, Given: c.given}
		if got, why := Do(&r, p, c.n, at(c.hour)); got != c.want || why == "" && (got == replace || got == wait) {
			t.Errorf("%s: Do = %q (%s), want %q", c.name, got, why, c.want)
		}
	}
}
