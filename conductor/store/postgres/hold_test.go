package postgres

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

func TestMain(m *testing.M) { os.Exit(pgserver.Main(m)) }

// TestNumbered: each placeholder gets its number, and nothing in quotes is one.
func TestNumbered(t *testing.T) {
	for query, want := range map[string]string{
		`SELECT 1`:                       `SELECT 1`,
		`a = ? AND b IN (?, ?)`:          `a = $1 AND b IN ($2, $3)`,
		`a = '?' AND b = ?`:              `a = '?' AND b = $1`,
		`a = 'it''s ?' AND b = ?`:        `a = 'it''s ?' AND b = $1`,
		`"a?" LIKE ? ESCAPE '\' OR ?`:    `"a?" LIKE $1 ESCAPE '\' OR $2`,
		`é = ? AND '"' <> ? AND "'" = ?`: `é = $1 AND '"' <> $2 AND "'" = $3`,
	} {
		if got := numbered(query); got != want {
			t.Errorf("numbered(%s) = %s, want %s", query, got, want)
		}
	}
}

// TestNextOwnerWaits: the next owner has the database only when no transaction of the one before it can be committed
// any more, though that has not noticed that its lock is lost; and from then on the earlier one begins none.
func TestNextOwnerWaits(t *testing.T) {
	ctx := t.Context()
	cluster := pgserver.Shared(t)
	name, url := cluster.Database(t)
	if _, err := cluster.Query(ctx, name, `CREATE TABLE holder (id INTEGER PRIMARY KEY, token TEXT);
		CREATE TABLE t (n INTEGER)`); err != nil {
		t.Fatal(err)
	}
	s, err := Parse(url, pgserver.Password)
	if err != nil {
		t.Fatal(err)
	}
	var taken atomic.Int64
	hold := func() *Hold {
		t.Helper()
		h, err := s.Hold(ctx, slog.New(slog.DiscardHandler), func(error) { taken.Add(1) })
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	first := hold()
	if err := first.Claim(ctx); err != nil {
		t.Fatal(err)
	}
	db := s.Open(time.Minute, nil)
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	id, err := first.Begin(ctx, conn)
	if err != nil || id == "" {
		t.Fatalf("Begin = %q, %v", id, err)
	}
	exec(ctx, t, conn, `INSERT INTO t (n) VALUES (?)`, 1)
	if err := first.Close(ctx); err != nil { // the lock is lost, and nothing else of the process
		t.Fatal(err)
	}

	second := hold()
	claimed := make(chan error, 1)
	go func() { claimed <- second.Claim(ctx) }()
	select {
	case err := <-claimed:
		t.Fatalf("the database has a new owner (%v) while the old one writes", err)
	case <-time.After(300 * time.Millisecond):
	}
	exec(ctx, t, conn, `COMMIT`)
	if err := <-claimed; err != nil {
		t.Fatal(err)
	}
	if done, err := second.Committed(ctx, db, id); err != nil || !done {
		t.Errorf("Committed = %v, %v", done, err)
	}
	if _, err := first.Begin(ctx, conn); !errors.Is(err, ErrTaken) || taken.Load() != 1 {
		t.Errorf("Begin of the earlier owner = %v, %d", err, taken.Load())
	}
	exec(ctx, t, conn, `ROLLBACK`)

	undone, err := second.Begin(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if done, err := second.Committed(short, db, undone); done || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("of one under way, Committed = %v, %v", done, err)
	}
	exec(ctx, t, conn, `ROLLBACK`)
	if done, err := second.Committed(ctx, db, undone); done || err != nil {
		t.Errorf("of one that was undone, Committed = %v, %v", done, err)
	}
	if err := second.Close(ctx); err != nil {
		t.Error(err)
	}
}

func exec(ctx context.Context, t *testing.T, c *sql.Conn, query string, args ...any) {
	t.Helper()
	if _, err := c.ExecContext(ctx, query, args...); err != nil {
		t.Fatal(err)
	}
}

// TestSettings: what is confirmed is on the server's disk even if its administrator has switched that off; statements
// and locks end.
func TestSettings(t *testing.T) {
	cluster := pgserver.Shared(t)
	name, url := cluster.Database(t)
	if _, err := cluster.Query(t.Context(), name, "ALTER DATABASE "+name+" SET synchronous_commit = off"); err != nil {
		t.Fatal(err)
	}
	s, err := Parse(url, pgserver.Password)
	if err != nil {
		t.Fatal(err)
	}
	db := s.Open(1500*time.Millisecond, nil)
	defer db.Close()
	for name, want := range map[string]string{"synchronous_commit": "on", "statement_timeout": "1500ms",
		"lock_timeout": "10s", "application_name": "ingotd"} {
		var got string
		if err := db.QueryRowContext(t.Context(), `SELECT current_setting(?)`, name).Scan(&got); err != nil ||
			got != want {
			t.Errorf("%s = %s, %v, want %s", name, got, err, want)
		}
	}
	if _, err := db.ExecContext(t.Context(), `SELECT pg_sleep(10)`); Code(err) != "57014" || Away(err) {
		t.Errorf("a statement that takes too long = %v", err)
	}
}
