package swarm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// site is conductors that share swarms, by name.
type site struct {
	t      *testing.T
	mu     sync.Mutex
	relays map[string]*Relay
	stop   map[string]func()
	homes  []string        // in the order in which they are chosen
	cut    map[string]bool // conductors that can't be asked
	agents map[string]*agent
}

// agent is a session of an agent, and what it has heard of its neighbours.
type agent struct {
	r     *Relay
	who   Member
	known map[string]map[int]bool
	seeds []string
}

func newSite(t *testing.T, names ...string) *site {
	s := &site{t: t, relays: map[string]*Relay{}, stop: map[string]func(){}, homes: names, cut: map[string]bool{},
		agents: map[string]*agent{}}
	for _, name := range names {
		s.start(name)
	}
	t.Cleanup(func() {
		for _, stop := range s.stop {
			stop()
		}
	})
	return s
}

// start starts a conductor, anew if there is one of that name.
func (s *site) start(self string) {
	if stop := s.stop[self]; stop != nil {
		stop()
	}
	r := NewRelay(Settings{Self: self,
		Home: func(_ string, skip func(string) bool) string {
			s.mu.Lock()
			homes := slices.Clone(s.homes)
			s.mu.Unlock()
			for _, name := range homes {
				if name == self || !skip(name) {
					return name
				}
			}
			return ""
		},
		Ask: func(_ context.Context, name string, message []byte) ([]byte, error) {
			s.mu.Lock()
			to, cut := s.relays[name], s.cut[name] || s.cut[self]
			s.mu.Unlock()
			if cut {
				return nil, errors.New("the link is cut")
			}
			return to.Answer(self, message)
		}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	s.mu.Lock()
	s.relays[self] = r
	s.mu.Unlock()
	s.stop[self] = func() { cancel(); <-done }
}

func (s *site) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

const chunks = 100

// join has an agent report that it begins, at a conductor.
func (s *site) join(conductor, node string, have ...int) *agent {
	b := make([]byte, (chunks+7)/8)
	for _, h := range have {
		b[h/8] |= 1 << (h % 8)
	}
	a := &agent{r: s.relays[conductor], known: map[string]map[int]bool{}, who: Member{Node: node, Generation: 1,
		Network: "hall", Addr: netip.MustParseAddr("10.0.0.1"), News: func() {}}}
	s.agents[node] = a
	a.r.Update(a.who, State{Image: Image{1}, Port: 7, Chunks: chunks, Whole: true, Have: b})
	return a
}

func (a *agent) add(added ...uint32) {
	a.r.Update(a.who, State{Image: Image{1}, Port: 7, Chunks: chunks, Added: added, Fetched: uint64(len(added))})
}

// hear takes all news that are there.
func (a *agent) hear() {
	for range 100 {
		n := a.r.News(a.who.Node)
		if n == nil {
			return
		}
		if n.Whole {
			a.known = map[string]map[int]bool{}
		}
		a.seeds = n.Seeds
		for _, gone := range n.Gone {
			delete(a.known, gone)
		}
		for _, p := range n.Peers {
			if p.Whole {
				a.known[p.Node] = map[int]bool{}
				for i := range chunks {
					if p.Have[i/8]>>(i%8)&1 == 1 {
						a.known[p.Node][i] = true
					}
				}
			}
			for _, i := range p.Added {
				a.known[p.Node][int(i)] = true
			}
		}
	}
}

// text shows the agent's knowledge: "b:[1,2] c:[]".
func (a *agent) text() string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(a.known)) {
		has := slices.Sorted(maps.Keys(a.known[name]))
		words = append(words, strings.ReplaceAll(fmt.Sprint(name, ":", has), " ", ","))
	}
	return strings.Join(words, " ")
}

// until waits until agents know what is wanted.
func (s *site) until(want map[string]string) {
	s.t.Helper()
	end := time.Now().Add(time.Minute)
	for {
		wrong := ""
		for _, node := range slices.Sorted(maps.Keys(want)) {
			a := s.agents[node]
			if a.hear(); a.text() != want[node] {
				wrong += fmt.Sprintf("%s knows %q, want %q\n", node, a.text(), want[node])
			}
		}
		if wrong == "" {
			return
		}
		if time.Now().After(end) {
			s.t.Fatal(wrong)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestSwarmOfSeveralConductors: agents with sessions at three conductors are one swarm, of which all hear what the
// others have; also after its home was started anew, is away, and another one is chosen.
func TestSwarmOfSeveralConductors(t *testing.T) {
	t.Parallel()
	s := newSite(t, "c1", "c2", "c3")
	s.join("c1", "a", 1)
	b, c := s.join("c2", "b"), s.join("c3", "c", 3)
	s.until(map[string]string{"a": "b:[] c:[3]", "b": "a:[1] c:[3]", "c": "a:[1] b:[]"})
	if got := slices.Sorted(slices.Values(b.seeds)); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("the seeds are %v", got)
	}
	b.add(1, 2)
	c.add(99, 98)
	s.until(map[string]string{"a": "b:[1,2] c:[3,98,99]", "b": "a:[1] c:[3,98,99]", "c": "a:[1] b:[1,2]"})

	// The home is started anew, and has forgotten all. Its own agent comes back by itself.
	s.start("c1")
	a := s.join("c1", "a", 1, 4)
	s.until(map[string]string{"a": "b:[1,2] c:[3,98,99]", "b": "a:[1,4] c:[3,98,99]", "c": "a:[1,4] b:[1,2]"})

	// A link is cut and comes back: nothing is missing, and what was said meanwhile is heard.
	s.set(func() { s.cut["c2"] = true })
	b.add(7)
	a.add(8)
	time.Sleep(5 * askOften)
	s.set(func() { s.cut["c2"] = false })
	s.until(map[string]string{"a": "b:[1,2,7] c:[3,98,99]", "b": "a:[1,4,8] c:[3,98,99]", "c": "a:[1,4,8] b:[1,2,7]"})

	// Another home is chosen.
	s.set(func() { s.homes = []string{"c2", "c1", "c3"} })
	c.add(50)
	s.until(map[string]string{"a": "b:[1,2,7] c:[3,50,98,99]", "b": "a:[1,4,8] c:[3,50,98,99]",
		"c": "a:[1,4,8] b:[1,2,7]"})
	for end := time.Now().Add(time.Minute); s.relays["c1"].here.knows("b"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the former home does not hear that an agent has left")
		}
	}
	// And now it can't be asked: the others have a swarm without its agent, at the next best home.
	s.set(func() { s.cut["c2"] = true })
	s.until(map[string]string{"a": "c:[3,50,98,99]", "c": "a:[1,4,8]"})

	c.r.Update(c.who, State{Image: Image{1}, Left: true})
	s.until(map[string]string{"a": ""})
}

// TestAgentGoesToAnotherConductor: what its former conductor says of it afterwards does not count.
func TestAgentGoesToAnotherConductor(t *testing.T) {
	t.Parallel()
	s := newSite(t, "c1", "c2", "c3")
	s.join("c1", "a", 1)
	was := s.join("c2", "b", 2)
	s.until(map[string]string{"a": "b:[2]", "b": "a:[1]"})
	for _, next := range []string{"c3", "c1", "c2"} { // from guest to guest, to the home, and away from there
		is := s.join(next, "b", 2, 3)
		s.until(map[string]string{"b": "a:[1]", "a": "b:[2,3]"})
		was.r.Lost("b")
		time.Sleep(3 * askOften)
		if s.relays["c1"].here.mu.Lock(); !s.relays["c1"].here.members["b"].lost.IsZero() {
			t.Errorf("at %s it counts as lost, since its former conductor has lost it", next)
		}
		s.relays["c1"].here.mu.Unlock()
		is.add(4)
		s.until(map[string]string{"a": "b:[2,3,4]"})
		was = is
	}
	was.r.Lost("b")
	end := time.Now().Add(time.Minute)
	for lost := false; !lost; time.Sleep(10 * time.Millisecond) {
		r := s.relays["c1"]
		r.here.mu.Lock()
		lost = !r.here.members["b"].lost.IsZero()
		r.here.mu.Unlock()
		if time.Now().After(end) {
			t.Fatal("its end is not heard of")
		}
	}
}

// TestSilentConductor: the agents of a conductor that is not heard of any more are lost; when it is back, it reports
// everything.
func TestSilentConductor(t *testing.T) {
	t.Parallel()
	s := newSite(t, "c1", "c2")
	s.join("c1", "a", 1)
	s.join("c2", "b", 2)
	s.until(map[string]string{"a": "b:[2]", "b": "a:[1]"})
	home := s.relays["c1"]
	home.sweep(time.Now().Add(silence + time.Second))
	home.here.mu.Lock()
	home.here.drop(home.here.members["b"]) // as after its time
	home.here.mu.Unlock()
	s.until(map[string]string{"a": "b:[2]", "b": "a:[1]"})
	if home.greet("c2") == "" || len(home.guests["c2"].nodes) != 1 {
		t.Errorf("the home knows %+v", home.guests["c2"])
	}
}

// TestLiarAtAnotherConductor: two conductors' agents accuse one of a third.
func TestLiarAtAnotherConductor(t *testing.T) {
	t.Parallel()
	s := newSite(t, "c1", "c2", "c3")
	a, b := s.join("c1", "a"), s.join("c2", "b")
	s.join("c3", "liar", 9)
	s.until(map[string]string{"a": "b:[] liar:[9]", "b": "a:[] liar:[9]"})
	for _, x := range []*agent{a, b} {
		x.r.Update(x.who, State{Image: Image{1}, Port: 7, Chunks: chunks, Liars: []string{"liar"}})
	}
	s.until(map[string]string{"a": "b:[]", "b": "a:[]"})
}

// TestMessagesThatMakeNoSense: they are refused, or bounded, and nothing is kept of them.
func TestMessagesThatMakeNoSense(t *testing.T) {
	r := NewRelay(Settings{Self: "c1", Home: func(string, func(string) bool) string { return "" }})
	long := strings.Repeat("x", 300)
	for _, m := range []string{"", "[]", `{"members":[{}]}`,
		`{"members":[{"node":"` + long + `","address":"10.0.0.1"}]}`,
		`{"members":[{"node":"n","network":"` + long + `","address":"10.0.0.1"}]}`,
		`{"members":[{"node":"n","address":"nowhere"}]}`,
		`{"members":[{"node":"n","address":"10.0.0.1","state":"/w=="}]}`,
		`{"members":[{"node":"n","address":"10.0.0.1"}]}`} {
		if out, err := r.Answer("c2", []byte(m)); err == nil {
			t.Errorf("%.60s is answered with %s", m, out)
		}
	}
	if _, err := r.Answer("c2", []byte(`{"left":["x"],"lost":["y"],"full":["z"]}`)); err != nil {
		t.Error(err)
	}
	if len(r.here.members) > 0 || len(r.guests["c2"].nodes) > 0 {
		t.Errorf("%d members are kept", len(r.here.members))
	}
}

// TestManyAtSeveralConductors: agents begin, go on, lose their sessions and end as chance has it, at conductors that
// are started anew; in the end all know their neighbours.
func TestManyAtSeveralConductors(t *testing.T) {
	t.Parallel()
	names := []string{"c1", "c2", "c3"}
	s := newSite(t, names...)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		node := fmt.Sprint("n", rnd.IntN(12))
		switch a := s.agents[node]; {
		case a == nil || rnd.IntN(10) == 0:
			if a != nil {
				a.r.Lost(node)
			}
			s.join(names[rnd.IntN(3)], node, i%chunks)
		case rnd.IntN(20) == 0:
			a.r.Update(a.who, State{Image: Image{1}, Left: true})
			delete(s.agents, node)
		default:
			a.add(uint32(rnd.IntN(chunks)))
			a.hear()
		}
		if i%60 == 59 {
			name := names[rnd.IntN(3)]
			was := s.relays[name]
			s.start(name)
			for node, a := range s.agents {
				if a.r == was {
					s.join(name, node, 5)
				}
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	for i := range 12 {
		if node := fmt.Sprint("n", i); s.agents[node] == nil {
			s.join(names[i%3], node, i)
		}
	}
	want := map[string]string{}
	holds := func(a *agent) []int {
		a.r.mu.Lock()
		defer a.r.mu.Unlock()
		var has []int
		for i := range chunks {
			if a.r.mine[a.who.Node].st.Have[i/8]>>(i%8)&1 == 1 {
				has = append(has, i)
			}
		}
		return has
	}
	for node := range s.agents {
		var words []string
		for _, other := range slices.Sorted(maps.Keys(s.agents)) {
			if other != node {
				words = append(words, strings.ReplaceAll(fmt.Sprint(other, ":", holds(s.agents[other])), " ", ","))
			}
		}
		want[node] = strings.Join(words, " ")
	}
	s.until(want)
}
