// Package progress gathers how far running work is on all conductors of a database. Each knows only that of its own
// nodes, in memory; a conductor whose clients want to see all asks the others, at most once a second, for as long as
// they do.
package progress

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

const (
	fresh  = 900 * time.Millisecond // how old answers of others may be
	askFor = 3 * time.Second        // how long one of them may take
)

// Source is this conductor and the others. Ask returns the progress that one of them knows, by node UUID. Others may be
// nil where there are none.
type Source struct {
	Local  func() map[string]node.Progress
	Others func() []string
	Ask    func(ctx context.Context, conductor string) (map[string]node.Progress, error)
	Log    *slog.Logger
}

// Gather gathers from a Source. Safe for concurrent use.
type Gather struct {
	src Source

	mu     sync.Mutex
	at     time.Time
	asking chan struct{} // closed when the others have been asked; nil: they are not
	others map[string]map[string]node.Progress
}

// New makes a Gather.
func New(src Source) *Gather { return &Gather{src: src} }

// Local is the progress of this conductor's nodes, by node UUID.
func (g *Gather) Local() map[string]node.Progress { return g.src.Local() }

// All is the progress of running work on all conductors, by node UUID, as far as it is known; what others know is about
// a second old. It does not wait, so that the first call has only this conductor's nodes.
func (g *Gather) All() map[string]node.Progress {
	g.ask()
	return g.known()
}

// Now is All, after it has asked the others or ctx has ended.
//
//nolint:contextcheck the answers are for all callers, and don't end with one of them
func (g *Gather) Now(ctx context.Context) map[string]node.Progress {
	select {
	case <-g.ask():
	case <-ctx.Done():
	}
	return g.known()
}

func (g *Gather) known() map[string]node.Progress {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := map[string]node.Progress{}
	for _, some := range g.others {
		maps.Copy(out, some)
	}
	maps.Copy(out, g.src.Local()) // what is here is newer, where both have a node that moved
	return out
}

var done = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// ask asks the others unless they were asked just now, and returns a channel that is closed when they have answered.
func (g *Gather) ask() <-chan struct{} {
	if g.src.Others == nil {
		return done
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asking != nil {
		return g.asking
	}
	if time.Since(g.at) < fresh {
		return done
	}
	names, asked := g.src.Others(), make(chan struct{})
	g.asking = asked
	go func() {
		found := g.from(names)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.others, g.at, g.asking = found, time.Now(), nil
		close(asked)
	}()
	return asked
}

// from asks conductors side by side. One that does not answer in time counts as one without running work.
func (g *Gather) from(names []string) map[string]map[string]node.Progress {
	ctx, cancel := context.WithTimeout(context.Background(), askFor)
	defer cancel()
	var mu sync.Mutex
	var work sync.WaitGroup
	found := map[string]map[string]node.Progress{}
	for _, name := range names {
		work.Go(func() {
			some, err := g.src.Ask(ctx, name)
			if err != nil {
				g.src.Log.Debug("another conductor does not say how far its work is", "conductor", name, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			found[name] = some
		})
	}
	work.Wait()
	return found
}
