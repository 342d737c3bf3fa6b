package store_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
)

// TestWithoutCache: the suite holds with nothing kept, and with next to nothing, so that nodes come and go.
func TestWithoutCache(t *testing.T) {
	for _, max := range []int{-1, 2} {
		t.Run(fmt.Sprint(max), func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) *store.Store { return openWith(t, storetest.Fresh(t), max) })
		})
	}
}

// TestAlone: a store that has its files to itself does all that others do, with room for everything and for next to
// nothing.
func TestAlone(t *testing.T) {
	for _, max := range []int{0, 2} {
		t.Run(fmt.Sprint(max), func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) *store.Store {
				return openOptions(t, store.Options{Dir: storetest.Fresh(t), CacheNodes: max, Alone: true})
			})
		})
	}
}

func openWith(t *testing.T, dir string, cacheNodes int) *store.Store {
	t.Helper()
	return openOptions(t, store.Options{Dir: dir, CacheNodes: cacheNodes})
}

func openOptions(t *testing.T, o store.Options) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// same compares all nodes of two stores over the same files, as single nodes and as lists.
func same(t *testing.T, a, b *store.Store) {
	t.Helper()
	la, err := a.Nodes(t.Context(), store.Query{})
	if err != nil {
		t.Fatal(err)
	}
	lb, err := b.Nodes(t.Context(), store.Query{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(la, lb); d != "" {
		t.Errorf("lists differ (-kept +read):\n%s", d)
	}
	for _, n := range la {
		x, err := a.Node(t.Context(), n.UUID)
		if err != nil {
			t.Fatal(err)
		}
		y, err := b.Node(t.Context(), n.UUID)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(x, y); d != "" {
			t.Errorf("node %s differs (-kept +read):\n%s", n.UUID, d)
		}
	}
}

// TestCacheIsTheDatabase: the cache has the same content as the files, after writes of all kinds, with values that
// don't come from JSON.
func TestCacheIsTheDatabase(t *testing.T) {
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprint("alone ", alone), func(t *testing.T) { cacheIsTheDatabase(t, alone) })
	}
}

func cacheIsTheDatabase(t *testing.T, alone bool) {
	dir := t.TempDir()
	kept, plain := openOptions(t, store.Options{Dir: dir, Alone: alone}), openWith(t, dir, -1)
	other := plain
	if alone {
		other = kept // which has the files to itself: plain only reads them
	}
	var ids []string
	for i := range 20 {
		n := &node.Node{Name: fmt.Sprint("n", i), Driver: "x", DriverInfo: map[string]any{}, Traits: []string{},
			Properties: map[string]any{"int": i, "list": []string{"a"}, "html": "<&>"}, InspectionStartedAt: time.Now(),
			InstanceInfo: map[string]any{"configdrive": "drive", "x": map[string]string{"k": "v"}}}
		if i%3 == 0 {
			n.InstanceInfo = nil
		}
		if err := kept.CreateNode(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, n.UUID)
	}
	same(t, kept, plain)
	for i := range 200 {
		id := ids[rand.N(len(ids))]
		_, err := kept.Change(t.Context(), id, func(n *node.Node, effects *node.SideEffects) error {
			switch i % 5 {
			case 0:
				n.Extra = map[string]any{"i": i, "at": time.Now()}
			case 1:
				n.Job = &node.Job{ID: "j", StartedAt: time.Now(),
					Steps: []node.JobStep{{Name: "s", Args: []byte(`{"a":"b"}`)}}}
			case 2:
				n.InstanceInfo = map[string]any{"configdrive": map[string]any{"user_data": i}}
			case 3:
				n.Job, n.InstanceInfo = nil, map[string]any{}
			case 4:
				n.Power = "power on"
				return errors.New("changed its mind")
			}
			effects.Marks = append(effects.Marks, node.Mark{Name: "x"})
			return nil
		})
		if (err != nil) != (i%5 == 4) {
			t.Fatal(err)
		}
	}
	same(t, kept, plain)
	// Somebody else writes to the same database.
	for _, id := range ids[:10] {
		if _, err := other.UpdateNode(t.Context(), id,
			func(n *node.Node) error { n.Description = "by another"; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	same(t, kept, plain)
	// A node that goes and comes back under its old UUID, with the version that is kept of the old one.
	if err := other.DeleteNode(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := kept.Node(t.Context(), ids[0]); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a node that another deleted: %v", err)
	}
	for range 3 {
		if err := other.CreateNode(t.Context(), &node.Node{UUID: ids[0], Driver: "new"}); err != nil {
			t.Fatal(err)
		}
		same(t, kept, plain)
		if err := other.DeleteNode(t.Context(), ids[0]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCacheIsShared: whatever is done to a node that the store returned or was given, the next one to ask gets what
// is stored.
func TestCacheIsShared(t *testing.T) {
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprint("alone ", alone), func(t *testing.T) { cacheIsNobodysOwn(t, alone) })
	}
}

func cacheIsNobodysOwn(t *testing.T, alone bool) {
	dir := t.TempDir()
	kept, plain := openOptions(t, store.Options{Dir: dir, Alone: alone}), openWith(t, dir, -1)
	spoil := func(n *node.Node) {
		n.Name, n.Power = "spoilt", "spoilt"
		for _, m := range []map[string]any{n.Extra, n.Properties, n.DriverInfo, n.InstanceInfo} {
			if inner, ok := m["inner"].(map[string]any); ok {
				inner["k"] = "spoilt"
				inner["list"].([]any)[0] = "spoilt"
			}
			maps.DeleteFunc(m, func(k string, _ any) bool { return k != "inner" })
		}
		n.Traits[0], n.Interfaces["boot"], *n.AutomatedClean, n.SystemGUIDs[0] = "SPOILT", "spoilt", true, "spoilt"
		n.Job.Steps[0].Name, n.Boot.BootID = "spoilt", "spoilt"
		n.Job.Steps[0].Args[2] = '!'
	}
	fresh := func() *node.Node {
		inner := func() map[string]any {
			return map[string]any{"a": "b", "inner": map[string]any{"k": "v", "list": []any{"x"}}}
		}
		return &node.Node{Driver: "x", Extra: inner(), Properties: inner(), DriverInfo: inner(), InstanceInfo: inner(),
			Traits: []string{"T"}, Interfaces: map[string]string{"boot": "b"}, AutomatedClean: new(bool),
			SystemGUIDs: []string{"g"}, Boot: &node.Boot{BootID: "b"},
			Job: &node.Job{ID: "j", Steps: []node.JobStep{{Name: "s", Args: []byte(`{"a":1}`)}}}}
	}
	n := fresh()
	if err := kept.CreateNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	id := n.UUID
	spoil(n)
	same(t, kept, plain)
	for _, get := range []func() (*node.Node, error){
		func() (*node.Node, error) { return kept.Node(t.Context(), id) },
		func() (*node.Node, error) {
			l, err := kept.Nodes(t.Context(), store.Query{})
			return l[0], err
		},
		func() (*node.Node, error) {
			return kept.UpdateNode(t.Context(), id, func(n *node.Node) error { n.Description += "x"; return nil })
		},
		func() (*node.Node, error) {
			var inside *node.Node
			_, err := kept.UpdateNode(t.Context(), id,
				func(n *node.Node) error { inside = n; spoil(n); return errors.New("no") })
			if err == nil {
				t.Error("a refused change went through")
			}
			return inside, nil
		},
	} {
		n, err := get()
		if err != nil {
			t.Fatal(err)
		}
		spoil(n)
		same(t, kept, plain)
	}
}

// TestCacheTogether: readers never see a version go back, or one that was not committed, while writers succeed, fail
// and delete.
func TestCacheTogether(t *testing.T) {
	for _, o := range []store.Options{{}, {Alone: true}, {Alone: true, CacheNodes: 1}} {
		t.Run(fmt.Sprintf("alone %v, %d kept", o.Alone, o.CacheNodes), func(t *testing.T) {
			o.Dir = t.TempDir()
			cacheTogether(t, openOptions(t, o))
		})
	}
}

// TestCacheTogetherOnServer is the same on PostgreSQL, as ingotd uses it.
func TestCacheTogetherOnServer(t *testing.T) {
	o := store.ServerOptions(t)
	o.Alone = true
	cacheTogether(t, openOptions(t, o))
}

func cacheTogether(t *testing.T, s *store.Store) {
	n := &node.Node{Name: "n", Driver: "x", Extra: map[string]any{"n": 0.0}}
	if err := s.CreateNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var readers, writers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			last := uint64(0)
			for i := 0; ctx.Err() == nil; i++ {
				got, err := s.Node(context.WithoutCancel(ctx), n.UUID)
				if err == nil && i%2 == 1 { // what a list shows first, a look at the node shows next
					var all []*node.Node
					all, err = s.Nodes(context.WithoutCancel(ctx), store.Query{Name: &n.Name})
					if err == nil {
						got = all[0]
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
				if got.Version < last || got.Extra["n"] != float64(got.Version-1) {
					t.Errorf("version %d (after %d) has n = %v", got.Version, last, got.Extra["n"])
					return
				}
				last = got.Version
				got.Extra["n"] = "spoilt"
			}
		})
	}
	for w := range 6 {
		writers.Go(func() {
			for i := range 60 {
				refused := errors.New("refused")
				_, err := s.UpdateNode(t.Context(), n.UUID, func(n *node.Node) error {
					n.Extra["n"] = n.Extra["n"].(float64) + 1
					if (i+w)%3 == 0 {
						return refused
					}
					return nil
				})
				if err != nil && !errors.Is(err, refused) {
					t.Error(err)
				}
			}
		})
	}
	for range 2 { // others come and go: a reader finds the answered state after the answer
		writers.Go(func() {
			for range 15 {
				m := &node.Node{Driver: "x"}
				err := s.CreateNode(t.Context(), m)
				for i := 0; err == nil && i < 3; i++ {
					var got *node.Node
					if got, err = s.UpdateNode(t.Context(), m.UUID,
						func(n *node.Node) error { n.Description += "x"; return nil }); err != nil {
						break
					}
					var seen *node.Node
					if seen, err = s.Node(t.Context(), m.UUID); err == nil && seen.Version != got.Version {
						t.Errorf("version %d after version %d was written", seen.Version, got.Version)
					}
				}
				if err == nil {
					err = s.DeleteNode(t.Context(), m.UUID)
				}
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := s.Node(t.Context(), m.UUID); !errors.Is(err, store.ErrNotFound) {
					t.Errorf("a node that was deleted: %v", err)
				}
			}
		})
	}
	writers.Wait()
	stop()
	readers.Wait()
	if got, err := s.Node(t.Context(), n.UUID); err != nil || got.Extra["n"] != 240.0 {
		t.Errorf("n = %v after 240 changes (%v)", got.Extra["n"], err)
	}
}
