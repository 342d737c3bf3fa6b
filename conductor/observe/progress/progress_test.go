package progress

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

func bytes(n uint64) node.Progress { return node.Progress{Bytes: n} }

// TestAllConductors: the work of all conductors is seen, however often it is looked at each is asked once a second, and
// one that does not answer hides nothing but its own.
func TestAllConductors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		g := New(Source{Log: slog.New(slog.DiscardHandler),
			Local: func() map[string]node.Progress {
				return map[string]node.Progress{"a": bytes(1), "moved": bytes(9)}
			},
			Others: func() []string { return []string{"c2", "c3", "c4"} },
			Ask: func(ctx context.Context, name string) (map[string]node.Progress, error) {
				n := asked.Add(1)
				switch name {
				case "c2":
					time.Sleep(100 * time.Millisecond)
					return map[string]node.Progress{"b": bytes(uint64(n)), "moved": bytes(2)}, nil
				case "c3":
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return nil, errors.New("older program")
			}})
		keys := func(m map[string]node.Progress) []string { return slices.Sorted(maps.Keys(m)) }
		if got := keys(g.All()); !slices.Equal(got, []string{"a", "moved"}) {
			t.Errorf("the first look shows %v", got)
		}
		all := g.Now(t.Context())
		if got := keys(all); !slices.Equal(got, []string{"a", "b", "moved"}) || all["moved"].Bytes != 9 {
			t.Errorf("all conductors have %v", all)
		}
		for range 100 {
			g.All()
			g.Now(t.Context())
		}
		if n := asked.Load(); n != 3 {
			t.Errorf("others were asked %d times, want each once", n)
		}
		time.Sleep(fresh)
		g.Now(t.Context())
		if n := asked.Load(); n != 6 {
			t.Errorf("after a second others were asked %d times, want each twice", n)
		}
	})
}

// TestOneConductor: without others nothing is asked.
func TestOneConductor(t *testing.T) {
	g := New(Source{Local: func() map[string]node.Progress { return map[string]node.Progress{"a": bytes(1)} }})
	if got := g.Now(t.Context()); len(got) != 1 || len(g.All()) != 1 {
		t.Errorf("progress = %v", got)
	}
}
