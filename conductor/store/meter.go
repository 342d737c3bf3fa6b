package store

import (
	"context"
	"os"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// meter counts what the store does.
type meter interface {
	// Statement is called after every statement, with its text.
	Statement(text string, took time.Duration)
	// StatementFailed is called for every error of one: "busy", "full", "away", "damaged" or "other".
	StatementFailed(kind string)
	// Group is called with the number of writes that share a transaction.
	Group(writes int)
}

type noMeter struct{}

func (noMeter) Statement(string, time.Duration) {}
func (noMeter) StatementFailed(string)          {}
func (noMeter) Group(int)                       {}

func meterOf(o Options) meter {
	if o.Meter == nil {
		return noMeter{}
	}
	return o.Meter
}

// Waiting is how many writes wait for their turn.
func (s *Store) Waiting() int {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return len(s.queue.waiting)
}

// Bytes is the size of SQLite's file and its journal; 0 with a server.
func (s *Store) Bytes() (n int64) {
	if s.server != nil {
		return 0
	}
	for _, name := range []string{s.fault.file, s.fault.file + "-wal"} {
		if info, err := os.Stat(name); err == nil { // the journal may be absent
			n += info.Size()
		}
	}
	return n
}

// Census counts the nodes of all conductors.
func (s *Store) Census(ctx context.Context) ([]node.Count, error) {
	return list(ctx, s.r, "count nodes", into(func(c *node.Count) []any {
		return []any{&c.State, &c.Power, &c.Fault, &c.Conductor, &c.Maintenance, &c.Nodes, timeColumn{&c.Since}}
	}), `SELECT provision_state, power_state, fault, conductor, maintenance, COUNT(*), MIN(provision_updated_at)
		FROM nodes GROUP BY provision_state, power_state, fault, conductor, maintenance`)
}
