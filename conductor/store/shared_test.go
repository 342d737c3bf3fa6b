package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// conductors opens a new database for several conductors.
func conductors(t *testing.T, quiet bool, names ...string) (all []*Store) {
	t.Helper()
	return openAll(t, ServerOptions(t), quiet, names...)
}

func openAll(t *testing.T, o Options, quiet bool, names ...string) (all []*Store) {
	t.Helper()
	o.Key, o.quiet = bytes.Repeat([]byte{7}, 32), quiet
	for _, name := range names {
		o.Dir, o.Name, o.Alone = t.TempDir(), name, true
		all = append(all, openTest(t, o))
	}
	return all
}

// TestTwoWriters: what one conductor has written the other one reads at once, and both can write to the same nodes as
// fast as they like: no change is lost, none is made twice, and none fails because of the other.
func TestTwoWriters(t *testing.T) {
	ctx, both := t.Context(), conductors(t, false, "c1", "c2")
	var nodes []*node.Node
	for i := range 4 {
		n := &node.Node{Name: fmt.Sprint("n", i), Driver: "x"}
		if err := both[i%2].CreateNode(ctx, n); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	const writers, times = 4, 25 // at each conductor
	var wg sync.WaitGroup
	for i, s := range both {
		other := both[1-i]
		for w := range writers {
			wg.Go(func() {
				for k := range times {
					id := nodes[(w+k)%len(nodes)].UUID
					n, err := s.UpdateNode(ctx, id, func(n *node.Node) error { n.Description += "x"; return nil })
					if err != nil {
						t.Error(err)
						return
					}
					got, err := other.Node(ctx, id)
					if err != nil || got.Version < n.Version || len(got.Description) < len(n.Description) {
						t.Errorf("the other conductor reads version %d after %d, %v", got.Version, n.Version, err)
					}
				}
			})
		}
	}
	wg.Wait()
	total := 0
	for _, n := range nodes {
		got, err := both[0].Node(ctx, n.UUID)
		if err != nil {
			t.Fatal(err)
		}
		total += len(got.Description)
		if got.Version != uint64(1+len(got.Description)) {
			t.Errorf("version %d after %d changes", got.Version, len(got.Description))
		}
	}
	if total != 2*writers*times {
		t.Errorf("%d changes of %d are there", total, 2*writers*times)
	}
	if err := both[1].CreateNode(ctx, &node.Node{Name: "n0", Driver: "x"}); !errors.As(err, new(*DuplicateError)) {
		t.Errorf("a name twice = %v", err)
	}
}

// TestIsolation: conductors share a database also where its administrator has given transactions a snapshot from before
// their turn, in which a writer would miss what was written until then.
func TestIsolation(t *testing.T) {
	server := pgserver.Shared(t)
	name, url := server.Database(t)
	if _, err := server.Query(t.Context(), name,
		"ALTER DATABASE "+name+" SET default_transaction_isolation = 'serializable'"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i, s := range openAll(t, Options{URL: url, Password: pgserver.Password}, false, "c1", "c2") {
		wg.Go(func() {
			for k := range 50 {
				n := &node.Node{Name: fmt.Sprintf("n%d-%d", i, k), Driver: "x"}
				if err := s.CreateNode(t.Context(), n); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestTakenForDead: a conductor that was taken for dead keeps none of the others from writing when it goes on and
// tries to write.
func TestTakenForDead(t *testing.T) {
	ctx, both := t.Context(), conductors(t, false, "c1", "c2")
	query := func(statement string) string {
		got, err := pgserver.Shared(t).Query(ctx, both[0].server.Database(), statement)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	query(`UPDATE conductors SET state = 'gone', changed = changed + 100 WHERE name = 'c2'`)
	if err := both[1].CreateNode(ctx, &node.Node{Name: "late", Driver: "x"}); !errors.Is(err, ErrLost) {
		t.Fatalf("a write of one that was taken for dead = %v, want ErrLost", err)
	}
	if open := query(`SELECT COUNT(*) FROM pg_stat_activity
		WHERE datname = current_database() AND state LIKE 'idle in transaction%'`); open != "0" {
		t.Errorf("%s of its transactions are open, for which the other conductor waits", open)
	}
	if err := both[0].CreateNode(ctx, &node.Node{Name: "next", Driver: "x"}); err != nil {
		t.Errorf("a write of the other conductor = %v", err)
	}
}

// TestEventsOfAll: every conductor announces the events of all of them, once and in order, also when no wake-up arrives
// and when connections are cut meanwhile.
func TestEventsOfAll(t *testing.T) {
	for _, mode := range []string{"woken", "not woken", "cut"} {
		t.Run(mode, func(t *testing.T) {
			ctx, all := t.Context(), conductors(t, mode == "not woken", "c1", "c2", "c3")
			var mu sync.Mutex
			heard := make([][]int64, len(all))
			for i, s := range all {
				s.Announce(func(events []node.Event) {
					mu.Lock()
					defer mu.Unlock()
					for _, e := range events {
						heard[i] = append(heard[i], e.ID)
					}
				})
			}
			query := func(statement string) {
				if _, err := pgserver.Shared(t).Query(ctx, all[0].server.Database(), statement); err != nil {
					t.Error(err)
				}
			}
			const each = 40
			var wg sync.WaitGroup
			var written sync.Map
			for i, s := range all {
				wg.Go(func() {
					for k := range each {
						n := &node.Node{Name: fmt.Sprintf("n%d-%d", i, k), Driver: "x"}
						err := s.CreateNode(ctx, n)
						if err == nil {
							written.Store(n.UUID, true)
						} else if mode != "cut" || !errors.Is(err, ErrAway) {
							t.Error(err)
						}
					}
				})
			}
			if mode == "cut" {
				for range 5 {
					query(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ingotd' AND datname = current_database()`)
				}
			}
			wg.Wait()
			count := int64(0)
			written.Range(func(any, any) bool { count++; return true })
			if mode != "cut" && count != int64(len(all)*each) || count == 0 {
				t.Fatalf("%d nodes were made", count)
			}
			var stored []node.Event
			eventually(t, "events can be read", func() (ok bool) {
				var err error
				stored, err = all[0].Events(ctx, 0, 1000)
				return err == nil
			})
			if int64(len(stored)) < count {
				t.Fatalf("%d events are stored of %d", len(stored), count)
			}
			var want []int64
			for _, e := range stored {
				want = append(want, e.ID)
			}
			for i := range all {
				eventually(t, fmt.Sprintf("conductor %d hears all", i), func() bool {
					mu.Lock()
					defer mu.Unlock()
					return len(heard[i]) >= len(want)
				})
				if !slices.Equal(heard[i], want) {
					t.Errorf("conductor %d heard %v, want %v", i, heard[i], want)
				}
			}
		})
	}
}

// TestTouched: a conductor is told of its nodes that another one has changed, and not of what it has changed itself.
func TestTouched(t *testing.T) {
	ctx, both := t.Context(), conductors(t, false, "c1", "c2")
	heard := make(chan string, 1000)
	both[0].Touched(func(id string) { heard <- "c1 " + id })
	both[1].Touched(func(id string) { heard <- "c2 " + id })
	n := &node.Node{Name: "n", Driver: "x"}
	if err := both[0].CreateNode(ctx, n); err != nil {
		t.Fatal(err)
	}
	edit := func(s *Store, f func(n *node.Node)) {
		t.Helper()
		if _, err := s.UpdateNode(ctx, n.UUID, func(n *node.Node) error { f(n); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	drain := func() (all string) {
		edit(both[0], func(n *node.Node) { n.Conductor = "" }) // which both hear
		for !strings.Contains(all, "c2 ") || !strings.Contains(all, "c1 ") {
			all += <-heard + ", "
		}
		return all
	}
	drain()
	edit(both[0], func(n *node.Node) { n.Conductor = "c1" })
	edit(both[0], func(n *node.Node) { n.Description = "by its owner" })
	for len(heard) > 0 {
		<-heard
	}
	edit(both[1], func(n *node.Node) { n.Description = "by another" })
	if got := <-heard; !strings.HasSuffix(got, n.UUID) {
		t.Errorf("heard %s", got)
	}
}

// TestOneIsGone: a conductor that has ended is gone for the others at once, one that was fenced never writes again, and
// what it was writing is not there.
func TestOneIsGone(t *testing.T) {
	ctx, all := t.Context(), conductors(t, false, "c1", "c2", "c3")
	if err := all[2].Close(); err != nil {
		t.Fatal(err)
	}
	lives := ""
	n := &node.Node{Name: "n", Driver: "x"}
	if err := all[0].CreateNode(ctx, n); err != nil {
		t.Fatal(err)
	}
	if _, err := all[0].UpdateNode(ctx, n.UUID, func(*node.Node) error {
		for _, name := range []string{"c1", "c2", "c3", "c4"} {
			if all[0].Lives(name) {
				lives += name + " "
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if lives != "c1 c2 " {
		t.Errorf("those live: %s", lives)
	}
	if err := errors.Join(all[0].Check(), all[1].Check()); err != nil {
		t.Error(err)
	}
	if _, err := pgserver.Shared(t).Query(ctx, all[0].server.Database(),
		`UPDATE conductors SET state = 'gone', changed = changed + 100 WHERE name = 'c2'`); err != nil {
		t.Fatal(err)
	}
	if err := all[1].CreateNode(context.Background(), &node.Node{Name: "late", Driver: "x"}); !errors.Is(err, ErrLost) {
		t.Errorf("a write of a fenced conductor = %v", err)
	}
	<-all[1].Damaged()
	if _, err := all[0].Node(ctx, "late"); !errors.Is(err, ErrNotFound) {
		t.Errorf("what it wrote: %v", err)
	}
	if got := all[0].Conductors(); len(got) != 3 || got[1].Name != "c2" || got[0].LastBeat.Before(got[0].Joined) {
		t.Errorf("conductors: %+v", got)
	}
}

// TestSharedFiles: what conductors share is kept sealed, survives another key, and of two that store at once one learns
// that it was not the first.
func TestSharedFiles(t *testing.T) {
	Engines(t, func(t *testing.T, o Options) {
		s, ctx := openTest(t, o), t.Context()
		if b, err := s.Shared(ctx); b != nil || err != nil {
			t.Errorf("in a new database: %q, %v", b, err)
		}
		for _, c := range []struct {
			was, now string
			stored   bool
		}{{"", "one", true}, {"", "other", false}, {"other", "third", false}, {"one", "two", true}} {
			if stored, err := s.SetShared(ctx, []byte(c.was), []byte(c.now)); stored != c.stored || err != nil {
				t.Errorf("SetShared(%q, %q) = %v, %v", c.was, c.now, stored, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := RotateKey(ctx, o, nil); err != nil {
			t.Fatal(err)
		}
		s = openTest(t, o)
		if b, err := s.Shared(ctx); string(b) != "two" || err != nil {
			t.Errorf("with another key: %q, %v", b, err)
		}
	})
}
