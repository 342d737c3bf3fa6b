package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/events"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
)

// hands does at once what an engine does in minutes, and watches how many machines are on.
type hands struct {
	t     *testing.T
	st    *store.Store
	limit int

	mu     sync.Mutex
	calls  []string
	refuse map[string]error // by node
}

func (h *hands) change(ident, what, user string, f func(*node.Node)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, what+" "+ident+" by "+user)
	if err := h.refuse[ident]; err != nil {
		return err
	}
	_, err := h.st.UpdateNode(h.t.Context(), ident, func(n *node.Node) error { f(n); return nil })
	if err != nil {
		return err
	}
	nodes, err := h.st.Nodes(h.t.Context(), store.Query{})
	on := 0
	for _, n := range nodes {
		if n.Power == "power on" {
			on++
		}
	}
	if err != nil || h.limit > 0 && on > h.limit {
		h.t.Errorf("%d machines are on, %d may be (%v)", on, h.limit, err)
	}
	return nil
}

func (h *hands) Warm(_ context.Context, ident, user string) error {
	return h.change(ident, "warm", user, func(n *node.Node) {
		n.Power, n.Boot = "power on", &node.Boot{Kept: true, Connected: true}
	})
}

func (h *hands) Cool(_ context.Context, ident, user string) error {
	return h.change(ident, "cool", user, func(n *node.Node) { n.Power, n.Boot = "power off", nil })
}

func (h *hands) Stage(_ context.Context, ident string, image map[string]any, user string) error {
	return h.change(ident, "stage", user, func(n *node.Node) { n.Boot.Staged = &node.Staged{Digest: Digest(image)} })
}

func (h *hands) count(what string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.calls {
		if len(c) > len(what) && c[:len(what)] == what {
			n++
		}
	}
	return n
}

func openStore(t *testing.T, announce func([]node.Event)) *store.Store {
	t.Helper()
	st, err := store.Open(t.Context(), store.Options{Dir: storetest.Fresh(t)})
	if err != nil {
		t.Fatal(err)
	}
	if announce != nil {
		st.Announce(announce)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return st
}

func machinesOf(t *testing.T, st *store.Store, k int, class string) (ids []string) {
	t.Helper()
	for i := range k {
		n := &node.Node{Name: fmt.Sprintf("%s%d", class, i), Driver: "x", ResourceClass: class,
			Provision: node.Available, Power: "power off"}
		if err := st.CreateNode(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, n.UUID)
	}
	return ids
}

func warmOnes(t *testing.T, st *store.Store) (names []string) {
	t.Helper()
	nodes, err := st.Nodes(t.Context(), store.Query{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if n.IsWarm() {
			names = append(names, n.UUID)
		}
	}
	slices.Sort(names)
	return names
}

func pass(t *testing.T, r *Runner) {
	t.Helper()
	if _, _, err := r.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// One look after the other, as they come: warm, image, refused, out, back, deleted.
func TestPass(t *testing.T) {
	st, now := openStore(t, nil), time.Now()
	ids := machinesOf(t, st, 4, "large")
	machinesOf(t, st, 2, "small")
	h := &hands{t: t, st: st, limit: 3, refuse: map[string]error{}}
	locked := errors.New("locked")
	r := New(st, h, nil,
		Config{Hostname: "c1", Now: func() time.Time { return now },
			Passing: func(err error) bool { return errors.Is(err, locked) }}, nil)
	pass(t, r) // no pools: nothing
	p := &node.Pool{Head: node.Head{Name: "web"}, ResourceClass: "large", Count: 2, MaxOn: 3, Image: image}
	if err := st.Pools().Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	first := slices.Sorted(slices.Values(ids))[0]
	h.refuse[first] = locked
	pass(t, r)
	if got := warmOnes(t, st); len(got) != 1 {
		t.Fatalf("%d are warm while one is locked: %v", len(got), h.calls)
	}
	if m, err := st.PoolMembers(t.Context()); err != nil || m[first].Touched() {
		t.Errorf("a lock was taken for a failure: %+v, %v", m[first], err)
	}
	h.refuse[first] = errors.New("it has no boot interface")
	pass(t, r)
	if m, err := st.PoolMembers(t.Context()); err != nil || m[first].Failures != 1 ||
		m[first].Reason != "it has no boot interface" || !m[first].Asked.IsZero() {
		t.Errorf("a machine that can't be warmed: %+v, %v", m[first], err)
	}
	pass(t, r) // another takes its place
	warm := warmOnes(t, st)
	if len(warm) != 2 || slices.Contains(warm, first) || h.count("stage") == 0 {
		t.Fatalf("warm are %v after %v", warm, h.calls)
	}
	pass(t, r)
	if n := h.count("stage"); n != 2 {
		t.Errorf("the image was written %d times, want twice: %v", n, h.calls)
	}
	before := len(h.calls)
	pass(t, r)
	if len(h.calls) != before {
		t.Errorf("nothing was to be done, and it did %v", h.calls[before:])
	}
	// One is turned off by hand.
	if _, err := st.UpdateNode(t.Context(), warm[0],
		func(n *node.Node) error { n.Power, n.Boot = "power off", nil; return nil }); err != nil {
		t.Fatal(err)
	}
	pass(t, r)
	if again := warmOnes(t, st); len(again) != 2 || slices.Contains(again, warm[0]) {
		t.Errorf("warm are %v, want another instead of %s", again, warm[0])
	}
	// What no pool is for any more is turned off, and forgotten.
	if err := st.Pools().Delete(t.Context(), p.UUID); err != nil {
		t.Fatal(err)
	}
	pass(t, r)
	pass(t, r)
	if got := warmOnes(t, st); len(got) != 0 {
		t.Errorf("the pool is gone and %v are warm", got)
	}
	if m, err := st.PoolMembers(t.Context()); err != nil || len(m) != 0 {
		t.Errorf("the pool is gone, and remembered is %v, %v", m, err)
	}
	for _, c := range h.calls {
		if slices.Contains([]string{"", " "}, c) {
			t.Errorf("calls %v", h.calls)
		}
	}
	if n := h.count("warm"); n != 5 {
		t.Errorf("warmed %d times: %v", n, h.calls)
	}
}

// A node is in the pool that says most about it.
func TestWhoseNode(t *testing.T) {
	st := openStore(t, nil)
	group := "rack1"
	for _, p := range []node.Pool{{Head: node.Head{Name: "all"}},
		{Head: node.Head{Name: "rack"}, ConductorGroup: &group},
		{Head: node.Head{Name: "large"}, ResourceClass: "large"},
		{Head: node.Head{Name: "both"}, ConductorGroup: &group, ResourceClass: "large"}} {
		if err := st.Pools().Create(t.Context(), &p); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{}
	for _, c := range [][3]string{{"", "", "all"}, {"rack1", "", "rack"}, {"", "large", "large"},
		{"rack1", "large", "both"}, {"rack2", "large", "large"}, {"rack1", "small", "rack"}} {
		n := &node.Node{Driver: "x", ConductorGroup: c[0], ResourceClass: c[1]}
		if err := st.CreateNode(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		want[n.UUID] = c[2]
	}
	w, err := Look(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	for id, name := range want {
		if p := w.Of(id); p == nil || p.Name != name {
			t.Errorf("a node is in pool %v, want %s", p, name)
		}
	}
}

// Two conductors on one database: one of them decides, and the other when the first is gone. The limit holds all the
// time.
func TestOneDecides(t *testing.T) {
	hub := events.New(nil)
	st := openStore(t, hub.Publish)
	defer hub.Close()
	machinesOf(t, st, 6, "large")
	h := &hands{t: t, st: st, limit: 3}
	late := time.Now()
	var mu sync.Mutex
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return late }
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for _, who := range []string{"c1", "c2"} {
		r := New(st, h, hub, Config{Hostname: who, Interval: 50 * time.Millisecond}, nil)
		wg.Go(func() { r.Run(ctx) })
	}
	if err := st.Pools().Create(t.Context(),
		&node.Pool{Head: node.Head{Name: "web"}, ResourceClass: "large", Count: 3, MaxOn: 3}); err != nil {
		t.Fatal(err)
	}
	until(t, "three are warm", func() bool { return len(warmOnes(t, st)) == 3 })
	gone := warmOnes(t, st)[1]
	until(t, "it was seen", func() bool {
		m, err := st.PoolMembers(t.Context())
		return err == nil && !m[gone].Since.IsZero()
	})
	if _, err := st.UpdateNode(t.Context(), gone,
		func(n *node.Node) error { n.Power, n.Boot = "power off", nil; return nil }); err != nil {
		t.Fatal(err)
	}
	until(t, "it is replaced", func() bool { w := warmOnes(t, st); return len(w) == 3 && !slices.Contains(w, gone) })
	holder, _, err := st.TakeDuty(t.Context(), Duty, "c3", time.Hour)
	if err != nil || holder != "c1" && holder != "c2" {
		t.Fatalf("the duty is that of %q, %v", holder, err)
	}
	// Somebody who has not got it does nothing, whatever there is to do.
	before := h.count("")
	other := New(st, h, nil, Config{Hostname: "c3", Now: clock}, nil)
	if _, err := st.Pools().Update(t.Context(), poolID(t, st),
		func(p *node.Pool) error { p.Description = "x"; return nil }); err != nil {
		t.Fatal(err)
	}
	pass(t, other)
	if n := h.count(""); n != before {
		t.Errorf("a conductor without the duty did %v", h.calls[before:])
	}
	// And one whose duty is about to end begins nothing more.
	mu.Lock()
	late = time.Now().Add(24 * time.Hour)
	mu.Unlock()
	mine := New(st, h, nil, Config{Hostname: holder, Now: clock}, nil)
	stop()
	wg.Wait()
	if _, err := st.Pools().Update(t.Context(), poolID(t, st),
		func(p *node.Pool) error { p.Count = 1; return nil }); err != nil {
		t.Fatal(err)
	}
	before = h.count("")
	pass(t, mine)
	if n := h.count(""); n != before {
		t.Errorf("with no time left it did %v", h.calls[before:])
	}
}

func poolID(t *testing.T, st *store.Store) string {
	t.Helper()
	p, err := st.Pools().Get(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	return p.UUID
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s: waited a minute", what)
		}
	}
}

// TestPromisedMachinesAreLeftAlone: a machine whose time in a reservation has begun is neither warmed nor turned off by
// a pool; one that is promised for later is.
func TestPromisedMachinesAreLeftAlone(t *testing.T) {
	st := openStore(t, nil)
	ids := machinesOf(t, st, 3, "large")
	h := &hands{t: t, st: st, refuse: map[string]error{}}
	if err := h.Warm(t.Context(), ids[0], "reservation"); err != nil {
		t.Fatal(err)
	}
	for i, from := range []time.Duration{-time.Minute, -time.Minute, time.Hour} {
		r := &node.Reservation{ResourceClass: "large", Count: 1, From: time.Now().Add(from),
			Start: time.Now().Add(from), End: time.Now().Add(2 * time.Hour)}
		err := st.Reserve(t.Context(), r, store.MostReservations{All: 9},
			func(*node.Reservation, []store.Reservable) ([]string, error) { return []string{ids[i]}, nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	p := &node.Pool{Head: node.Head{Name: "web"}, ResourceClass: "large", Count: 2}
	if err := st.Pools().Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	r := New(st, h, nil, Config{Hostname: "c1"}, nil)
	h.calls = nil
	pass(t, r)
	pass(t, r)
	if want := []string{"warm " + ids[2] + " by pool web"}; !slices.Equal(h.calls, want) {
		t.Errorf("the pool did %v, want %v", h.calls, want)
	}
	w, err := Look(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range w.Facts(w.Pools[0]) {
		if (f.UUID != ids[2]) != (f.Excluded == "it is promised to a reservation, which has it ready") {
			t.Errorf("machine %s is left alone because of %q", f.UUID, f.Excluded)
		}
	}
}
