package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// lockWrites takes the lock that writers have in turn.
const lockWrites = `SELECT pg_advisory_xact_lock(115922902676482)`

// stranger is a client of the database that is no ingotd.
type stranger struct {
	*testing.T
	conn *pgx.Conn
}

func newStranger(t *testing.T, o Options) *stranger {
	t.Helper()
	config, err := pgx.ParseConfig(o.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.Password = o.Password
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return &stranger{t, conn}
}

func (c *stranger) does(query string, args ...any) {
	if _, err := c.conn.Exec(c.Context(), query, args...); err != nil {
		c.Errorf("%s: %v", query, err)
	}
}

// others asks for something of the connections that wait for a lock with a statement that begins so.
func (c *stranger) others(what, statement string) string {
	out, err := pgserver.Shared(c).Query(c.Context(), c.conn.Config().Database, fmt.Sprintf(`SELECT %s FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%s%%'`, what, statement))
	if err != nil {
		c.Error(err)
	}
	return out
}

// waits waits until another client's statement that begins so waits for a lock.
func (c *stranger) waits(statement string) {
	c.Helper()
	eventually(c.T, statement+" waits", func() bool {
		return c.others("COUNT(*)", statement) == "1"
	})
}

// oneGroup has writes wait for a change of a node that is at work, so that they share the next transaction.
func oneGroup(t *testing.T, s *Store, nodeUUID string, writes ...func()) {
	t.Helper()
	var all sync.WaitGroup
	if _, err := s.UpdateNode(t.Context(), nodeUUID, func(n *node.Node) error {
		for _, w := range writes {
			all.Go(w)
		}
		eventually(t, "all wait", func() bool { return s.Waiting() == len(writes) })
		return nil
	}); err != nil {
		t.Error(err)
	}
	all.Wait()
}

// TestDeadlock: a write that PostgreSQL undoes because it and another client wait for each other is run again, and is
// made once; so are those that share its transaction. One that is undone every time has changed nothing, and says so.
func TestDeadlock(t *testing.T) {
	for _, c := range []struct{ others, deadlocks int }{{0, 1}, {8, 1}, {0, tries}} {
		t.Run(fmt.Sprintf("%d deadlocks beside %d writes", c.deadlocks, c.others), func(t *testing.T) {
			ctx, o := t.Context(), ServerOptions(t)
			s := openTest(t, o)
			n, first := &node.Node{Name: "n", Driver: "x"}, &node.Node{Name: "first", Driver: "x"}
			if err := errors.Join(s.CreateNode(ctx, n), s.CreateNode(ctx, first)); err != nil {
				t.Fatal(err)
			}
			var heard []int64
			s.Announce(func(events []node.Event) {
				for _, e := range events {
					heard = append(heard, e.ID)
				}
			})
			other := newStranger(t, o)
			other.does(`SET deadlock_timeout = '10min'`) // so that it is not the one that is undone
			var strangers sync.WaitGroup
			ran := 0
			// It has the lock of those who write, and is going to need the node, which the other client has, that waits
			// for that lock.
			change := func(n *node.Node) error {
				n.Description = "once"
				if ran++; ran > c.deadlocks {
					return nil
				}
				strangers.Wait() // that of the time before
				other.does(`BEGIN`)
				other.does(`UPDATE nodes SET description = description WHERE uuid = $1`, n.UUID)
				strangers.Go(func() {
					other.does(lockWrites)
					other.does(`COMMIT`)
				})
				other.waits(lockWrites)
				return nil
			}
			var err error
			changes := []func(){func() { _, err = s.UpdateNode(ctx, n.UUID, change) }}
			for i := range c.others {
				changes = append(changes, func() {
					if err := s.CreateNode(ctx, &node.Node{Name: fmt.Sprint("other", i), Driver: "x"}); err != nil {
						t.Error(err)
					}
				})
			}
			oneGroup(t, s, first.UUID, changes...)
			strangers.Wait()
			want, wantErr, version := "once", error(nil), uint64(2)
			if c.deadlocks == tries {
				want, wantErr, version = "", ErrBusy, 1
			}
			if !errors.Is(err, wantErr) || errors.Is(err, ErrAway) {
				t.Errorf("the change = %v, want %v", err, wantErr)
			}
			if got, err := s.Node(ctx, n.UUID); err != nil || got.Description != want || got.Version != version {
				t.Errorf("after it: %+v, %v", got, err)
			}
			if ran != min(c.deadlocks+1, tries) || len(heard) != int(version)-1+c.others {
				t.Errorf("it was run %d times, with %d events", ran, len(heard))
			}
			for i, id := range heard {
				if id != int64(i)+3 {
					t.Errorf("event %d has ID %d", i, id)
				}
			}
		})
	}
}

// TestCancelled: a write or a read that waits for another client, and that the administrator or a limit on its time
// ends, says that nothing was changed; the next one is carried out.
func TestCancelled(t *testing.T) {
	ctx, o := t.Context(), ServerOptions(t)
	s := openTest(t, o)
	n := &node.Node{Name: "n", Driver: "x"}
	if err := s.CreateNode(ctx, n); err != nil {
		t.Fatal(err)
	}
	other := newStranger(t, o)
	for _, ask := range []func() error{
		func() error { _, err := s.Nodes(ctx, Query{}); return err },
		func() error {
			_, err := s.UpdateNode(ctx, n.UUID, func(n *node.Node) error { n.Description += "x"; return nil })
			return err
		},
	} {
		other.does(`BEGIN`)
		other.does(`LOCK TABLE nodes`)
		done := make(chan error, 1)
		go func() { done <- ask() }()
		eventually(t, "it waits, and is ended", func() bool {
			return other.others("COUNT(pg_cancel_backend(pid))", "") == "1"
		})
		if err := <-done; !errors.Is(err, ErrBusy) || errors.Is(err, ErrCut) || errors.Is(err, ErrAway) {
			t.Errorf("what was ended = %v, want ErrBusy", err)
		}
		other.does(`ROLLBACK`)
		if err := ask(); err != nil {
			t.Errorf("the next = %v", err)
		}
	}
	if got, err := s.Node(ctx, n.UUID); err != nil || got.Description != "x" {
		t.Errorf("after it: %+v, %v", got, err)
	}
}

// TestOneWakeUpForMany: writes that share a transaction wake the other conductors once, with the events of all.
func TestOneWakeUpForMany(t *testing.T) {
	ctx, o := t.Context(), ServerOptions(t)
	both := openAll(t, o, false, "c1", "c2")
	s := both[0]
	n := &node.Node{Name: "n", Driver: "x"}
	if err := s.CreateNode(ctx, n); err != nil {
		t.Fatal(err)
	}
	before := s.LastEvent()
	other := newStranger(t, o)
	other.does(`LISTEN ingot`)
	var writes []func()
	for i := range 40 {
		writes = append(writes, func() {
			if err := s.CreateNode(ctx, &node.Node{Name: fmt.Sprint("n", i), Driver: "x"}); err != nil {
				t.Error(err)
			}
		})
	}
	oneGroup(t, s, n.UUID, writes...)
	other.does(`SELECT pg_notify('ingot', 'the end')`)
	var heard []string
	for {
		got, err := other.conn.WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got.Payload == "the end" {
			break
		}
		heard = append(heard, got.Payload)
	}
	if len(heard) != 1 || !strings.HasPrefix(heard[0], wakeEvents) {
		t.Errorf("%d writes were followed by %d wake-ups: %q", len(writes), len(heard), heard)
	}
	eventually(t, "the other conductor knows all events",
		func() bool { return both[1].LastEvent() == before+int64(len(writes)) })
}
