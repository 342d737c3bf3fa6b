package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store/postgres"
)

// tail follows the writes of other conductors. IDs of events are given under the lock that all writers take in turn, so
// their order is that of the commits, and a store that reads those after the last one that it knows misses none.
type tail struct {
	shared bool   // other conductors may write
	quiet  bool   // and are not woken
	name   string // of this one
	wake   chan struct{}

	mu      sync.Mutex // of the order in which events are announced
	touched atomic.Pointer[func(nodeUUID string)]
}

// look has follow look for events now.
func (t *tail) look() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// pollEvery is how long an event of another conductor waits at most whose wake-up was lost.
const pollEvery = time.Second

// follow announces the events of other conductors, until the store is closed.
func (s *Store) follow() {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		case <-s.tail.wake:
		}
		for s.catchUp() {
		}
	}
}

// catchUp announces a page of events that this store has not announced, and reports whether there may be more.
func (s *Store) catchUp() bool {
	const page = 500
	ctx, cancel := context.WithTimeout(context.Background(), statementTime)
	defer cancel()
	events, err := s.Events(ctx, s.lastEvent.Load(), page)
	if err != nil {
		if s.Away() == nil && s.Fault() == nil {
			s.log.Warn("events of other conductors can't be read", "err", err)
		}
		return false
	}
	more := len(events) == page
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	last := s.lastEvent.Load() // this store may have announced some meanwhile
	events = slices.DeleteFunc(events, func(e node.Event) bool { return e.ID <= last })
	if len(events) > 0 {
		s.publish(events)
	}
	return more
}

// Words of a wake-up: there are events, and nodes were changed whose owner is another conductor; their UUIDs follow.
const (
	wakeEvents = "events"
	wakeNodes  = "nodes"
)

// endGroup ends a transaction: it stores the notes, and wakes other conductors.
func (s *Store) endGroup(tx *txn) error {
	if err := s.storeNotes(tx); err != nil || !s.tail.shared || s.tail.quiet || !s.hold.Others() {
		return err
	}
	var words []string
	if len(s.notes.pending) > 0 {
		words = append(words, wakeEvents)
	}
	size, named := len(wakeEvents)+1+len(wakeNodes), false
	for _, w := range s.fresh {
		if w.n == nil || w.n.Conductor == s.tail.name {
			continue
		}
		if size += 1 + len(w.uuid); size > postgres.MaxWake {
			break // the owners find the others themselves, a little later
		}
		if !named {
			words, named = append(words, wakeNodes), true
		}
		words = append(words, w.uuid)
	}
	if len(words) == 0 {
		return nil
	}
	return tx.exec("wake other conductors", postgres.Wake, strings.Join(words, " "))
}

// heard takes a wake-up; an empty one says that some may have been missed.
func (s *Store) heard(payload string) {
	words := strings.Fields(payload)
	if len(words) == 0 || words[0] == wakeEvents {
		s.tail.look()
	}
	f := s.tail.touched.Load()
	if f == nil {
		return
	}
	named := false
	for _, w := range words {
		if named {
			(*f)(w)
		}
		named = named || w == wakeNodes
	}
}

// Touched makes the store call f with each node of this or no conductor that another conductor has changed. f must not
// wait. Calls can be lost when the connection is.
func (s *Store) Touched(f func(nodeUUID string)) { s.tail.touched.Store(&f) }

// Conductors returns those that share the database, by name, those that are gone among them; none where there is only
// this one. Inside a change it is exact, else two seconds old at most.
func (s *Store) Conductors() []postgres.Member {
	if !s.tail.shared {
		return nil
	}
	return s.hold.Members()
}

// Lives reports whether the conductor of a name may write.
func (s *Store) Lives(name string) bool { return s.tail.shared && s.hold.Lives(name) }

// Check is nil while no other conductor can have taken this one for dead. It is an ErrAway otherwise.
func (s *Store) Check() error {
	if !s.tail.shared {
		return nil
	}
	return s.hold.Check()
}

// Moved makes the store call f when a conductor has joined, begun to drain, or is gone. f must not wait.
func (s *Store) Moved(f func()) {
	if s.tail.shared {
		s.hold.Moved(f)
	}
}

// Describe makes this conductor known to the others: its state, postgres.Up or Draining, and its description.
func (s *Store) Describe(ctx context.Context, state, doc string) error {
	if !s.tail.shared {
		return nil
	}
	return s.hold.Describe(ctx, state, doc)
}

// ComesBack has Close leave this conductor its nodes for as long as its lease lasts: no other one is there to take
// them, and after a restart of the whole site each finds those that it had, with their agents.
func (s *Store) ComesBack() {
	if s.hold != nil {
		s.hold.ComesBack()
	}
}

// sharedPurpose binds the seal of what Shared returns.
const sharedPurpose = "shared files"

// Shared returns what SetShared has stored; nil: nothing yet.
func (s *Store) Shared(ctx context.Context) ([]byte, error) { return s.sharedIn(ctx, s.r) }

func (s *Store) sharedIn(ctx context.Context, q queryer) ([]byte, error) {
	var sealed []byte
	err := q.QueryRowContext(ctx, `SELECT sealed FROM shared WHERE id = 1`).Scan(&sealed)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what conductors share: %w", err)
	}
	plain, err := s.sealer.Open(sharedPurpose, sealed)
	if err != nil {
		return nil, s.broken(err)
	}
	return plain, nil
}

// SetShared stores files that all conductors have in common, and reports whether it has: not if another conductor has
// stored others than was meanwhile.
func (s *Store) SetShared(ctx context.Context, was, now []byte) (stored bool, err error) {
	err = s.write(ctx, func(tx *txn) error {
		present, err := s.sharedIn(ctx, tx)
		if stored = err == nil && bytes.Equal(present, was); !stored {
			return err
		}
		return tx.exec("write what conductors share", `INSERT INTO shared (id, sealed) VALUES (1, ?)
			ON CONFLICT (id) DO UPDATE SET sealed = excluded.sealed`, s.sealer.Seal(sharedPurpose, now))
	})
	return stored && err == nil, err
}
