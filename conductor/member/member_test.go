package member

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store/postgres"
)

func conductors(weights ...float64) (all []Conductor) {
	for i, w := range weights {
		all = append(all, Conductor{Name: fmt.Sprint("c", i+1), Alive: true,
			About: About{Types: []string{"ipmi"}, Weight: w}})
	}
	return all
}

// TestShares: each conductor gets a share of the nodes as large as its weight, and one that joins or leaves moves its
// share and no other node.
func TestShares(t *testing.T) {
	const nodes = 20000
	all := conductors(1, 1, 2)
	four := conductors(1, 1, 2, 1)
	count, moved, left := map[string]int{}, 0, 0
	without := conductors(1, 1, 2)
	without[1].Alive = false
	for range nodes {
		id := uuid.NewString()
		owner := Owner(all, id, "", "ipmi")
		count[owner]++
		if to := Owner(four, id, "", "ipmi"); to != owner {
			moved++
			if to != "c4" {
				t.Fatalf("a node moves from %s to %s because c4 has joined", owner, to)
			}
		}
		if to := Owner(without, id, "", "ipmi"); to != owner {
			left++
			if owner != "c2" {
				t.Fatalf("a node moves from %s because c2 is gone", owner)
			}
		}
	}
	for i, want := range []float64{0.25, 0.25, 0.5} {
		if got := float64(count[fmt.Sprint("c", i+1)]) / nodes; math.Abs(got-want) > 0.02 {
			t.Errorf("c%d has %.3f of the nodes, want %.2f", i+1, got, want)
		}
	}
	if got := float64(moved) / nodes; math.Abs(got-0.2) > 0.02 || left != count["c2"] {
		t.Errorf("one that joined has got %.3f of the nodes, want 0.2; one that left has moved %d of %d", got, left,
			count["c2"])
	}
}

// rows is a database with these conductors.
type rows []postgres.Member

func (r rows) Conductors() []postgres.Member { return r }
func (rows) Lives(string) bool               { return true }
func (rows) Check() error                    { return nil }

// TestWhoMayHaveANode: those that live, serve the group and have the type, one that drains where there is no other;
// not one that says what this program does not know.
func TestWhoMayHaveANode(t *testing.T) {
	about := func(group string, types ...string) string {
		return About{Group: group, Types: types, Weight: 1}.Text()
	}
	c := New("c1", rows{
		{Name: "c1", Epoch: 1, State: postgres.Up, Doc: about("", "ipmi")},
		{Name: "c2", Epoch: 2, State: postgres.Draining, Doc: about("rack", "ipmi")},
		{Name: "c3", Epoch: 3, State: postgres.Up, Doc: about("rack", "redfish")},
		{Name: "c6", Epoch: 6, State: postgres.Draining, Doc: about("", "ipmi")},
		{Name: "c4", Epoch: 4, State: postgres.Gone, Doc: about("hall", "ipmi")},
		{Name: "c5", Epoch: 5, State: postgres.Up, Doc: "not JSON"},
	})
	for _, w := range []struct{ group, driver, owner string }{{"", "ipmi", "c1"}, {"", "redfish", ""},
		{"rack", "ipmi", "c2"}, {"rack", "redfish", "c3"}, {"hall", "ipmi", ""}} {
		n := &node.Node{UUID: "u", ConductorGroup: w.group, Driver: w.driver}
		if got := c.Owner(n); got != w.owner {
			t.Errorf("owner in %q with %s = %q, want %q", w.group, w.driver, got, w.owner)
		}
	}
	c.Store.(rows)[1].State, c.Store.(rows)[1].Doc = postgres.Up, about("later", "ipmi") // in the same life
	if got := c.Owner(&node.Node{UUID: "u", ConductorGroup: "later", Driver: "ipmi"}); got != "c2" {
		t.Errorf("owner after a new description = %q", got)
	}
	c.Store.(rows)[1].State, c.Store.(rows)[1].Doc = postgres.Draining, about("rack", "ipmi")
	if m, ok := c.Find("c2"); !ok || !m.Draining || !m.Alive || m.Group != "rack" {
		t.Errorf("Find(c2) = %+v, %v", m, ok)
	}
	if _, ok := c.Find("c9"); ok {
		t.Error("c9 was found")
	}
	for name, takes := range map[string]bool{"c1": true, "c2": false, "c4": false, "c9": false} {
		if c.Takes(name) != takes {
			t.Errorf("%s takes nodes: %v, want %v", name, !takes, takes)
		}
	}
	if c.Store.(rows)[2].State, c.Store.(rows)[5].State = postgres.Gone, postgres.Draining; c.Others() {
		t.Error("c1 sees others that take nodes, but one drains, and the rest are gone")
	}
	if c.self = "c2"; !c.Others() {
		t.Error("c2 does not see that c1 takes nodes")
	}
}

// TestRemains: one that is gone or about to end does not remain, one that drains by command does.
func TestRemains(t *testing.T) {
	c := New("c1", rows{{Name: "c1", State: postgres.Draining, Doc: About{Leaving: true}.Text()},
		{Name: "c2", State: postgres.Gone, Doc: About{}.Text()},
		{Name: "c3", State: postgres.Draining, Doc: About{Leaving: true}.Text()}})
	if c.Remains() {
		t.Error("another remains, but one is gone and one about to end")
	}
	c.Store.(rows)[2].Doc = About{}.Text()
	if !c.Remains() {
		t.Error("one that drains does not remain")
	}
}

// TestHome: all conductors choose the same home for a key, those that can be asked alone; one that is skipped or gone
// moves its own keys and no others.
func TestHome(t *testing.T) {
	about := About{Peer: "10.0.0.1:6387"}.Text()
	all := rows{{Name: "c1", State: postgres.Up, Doc: about}, {Name: "c2", State: postgres.Up, Doc: about},
		{Name: "c3", State: postgres.Up, Doc: about}, {Name: "drains", State: postgres.Draining, Doc: about},
		{Name: "gone", State: postgres.Gone, Doc: about}, {Name: "older", State: postgres.Up, Doc: About{}.Text()}}
	none := func(string) bool { return false }
	count := map[string]int{}
	for i := range 3000 {
		key := fmt.Sprint("image ", i)
		home := New("c1", all).Home(key, none)
		if count[home]++; New("older", all).Home(key, none) != home {
			t.Fatalf("two conductors choose another home for %s", key)
		}
		if to := New("c1", all).Home(key, func(name string) bool { return name == "c2" }); to == "c2" ||
			home != "c2" && to != home {
			t.Fatalf("without c2 %s moves from %s to %s", key, home, to)
		}
	}
	if len(count) != 3 || count["c1"] < 900 || count["c2"] < 900 || count["c3"] < 900 {
		t.Errorf("the homes are %v", count)
	}
	if home := New("c1", all).Home("k", func(string) bool { return true }); home != "" {
		t.Errorf("without any the home is %q", home)
	}
}

// TestTurns: for each machine the conductors of a segment have an order, in which each is first for its share. One that
// is gone, drains, is silent, has another segment or takes no turns is not in it.
func TestTurns(t *testing.T) {
	on := Segment{Mode: "server", Network: "10.77.0.0/24"}
	beat := time.Now()
	all := conductors(1, 7, 2) // the weights are those of nodes
	for i := range all {
		all[i].Boot, all[i].LastBeat = &Segment{Mode: "server", Network: "10.77.0.0/24"}, beat.Add(-2*time.Second)
	}
	all[0].LastBeat = beat
	const machines = 3000
	mac := func(i int) string { return fmt.Sprintf("52:54:00:00:%02x:%02x", i>>8, i&0xff) }
	// order returns which of the conductors has which place for a machine.
	order := func(among []Conductor, key string) map[int]string {
		got := map[int]string{}
		for _, m := range among {
			place := Turns(among, m.Name, on)(key)
			if m.Alive && !m.Draining && m.Boot != nil && *m.Boot == on && beat.Sub(m.LastBeat) <= doubt {
				got[place] += m.Name
			}
		}
		return got
	}
	first := map[string]int{}
	for i := range machines {
		got := order(all, mac(i))
		if len(got) != 3 || len(got[0]) != 2 || len(got[1]) != 2 || len(got[2]) != 2 {
			t.Fatalf("the order for %s is %v", mac(i), got)
		}
		first[got[0]]++
	}
	for name, n := range first {
		if math.Abs(float64(n)/machines-1./3) > 0.04 {
			t.Errorf("%s is the first for %d of %d machines", name, n, machines)
		}
	}
	for name, out := range map[string]func(*Conductor){
		"gone":            func(m *Conductor) { m.Alive = false },
		"draining":        func(m *Conductor) { m.Draining = true },
		"silent":          func(m *Conductor) { m.LastBeat = beat.Add(-doubt - time.Millisecond) },
		"another mode":    func(m *Conductor) { m.Boot = &Segment{Mode: "proxy", Network: on.Network} },
		"another network": func(m *Conductor) { m.Boot = &Segment{Mode: on.Mode, Network: "10.78.0.0/24"} },
		"an older one":    func(m *Conductor) { m.Boot = nil },
	} {
		two := slices.Clone(all)
		out(&two[1])
		for i := range 100 {
			was, got := order(all, mac(i)), order(two, mac(i))
			if len(got) != 2 || got[0] == "" || got[1] == "" || was[0] != "c2" && got[0] != was[0] {
				t.Errorf("%s: the order for %s is %v, and was %v", name, mac(i), got, was)
			}
		}
	}
	// The database's clock was set back when one was gone already.
	late := append(slices.Clone(all), Conductor{Name: "c4", About: About{Boot: &on}, LastBeat: beat.Add(time.Hour)})
	for i := range 100 {
		if was, got := order(all, mac(i)), order(late, mac(i)); !maps.Equal(got, was) {
			t.Errorf("beside one that is gone the order for %s is %v, and was %v", mac(i), got, was)
		}
	}
	all[0].Draining = true
	if got := Turns(all, "c1", on)("x"); got != -1 {
		t.Errorf("one that drains is number %d", got)
	}
	all[1].Alive, all[2].Alive = false, false
	if got := Turns(all, "c1", on)("x"); got != 0 {
		t.Errorf("one that drains, and is alone, is number %d", got)
	}
	c := New("c2", rows{{Name: "c1", Epoch: 1, State: postgres.Up, Doc: About{Boot: &on}.Text()},
		{Name: "c2", Epoch: 2, State: postgres.Up, Doc: About{Boot: &on}.Text()}})
	if a, b := c.Turns(on)("k"), Turns(c.All(), "c1", on)("k"); a+b != 1 {
		t.Errorf("the two are number %d and %d", a, b)
	}
}
