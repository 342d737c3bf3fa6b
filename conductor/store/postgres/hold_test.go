package postgres

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
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

// world is a database with the table of conductors.
type world struct {
	*Server
	cluster *pgserver.Cluster
	name    string
	db      *sql.DB
	taken   atomic.Int64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, pgserver.Shared(t))
}

func newWorldOn(t *testing.T, c *pgserver.Cluster) *world {
	t.Helper()
	w := &world{cluster: c}
	name, url := w.cluster.Database(t)
	ddl, err := os.ReadFile("../migrations/postgres/00002_conductors.sql")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(ddl), "DROP TABLE")
	if _, err := w.cluster.Query(t.Context(), name, table+"; CREATE TABLE t (n INTEGER)"); err != nil {
		t.Fatal(err)
	}
	if w.Server, err = Parse(url, pgserver.Password); err != nil {
		t.Fatal(err)
	}
	w.name, w.db = name, w.Open(time.Minute, nil, nil)
	t.Cleanup(func() { w.db.Close() })
	return w
}

func (w *world) hold(t *testing.T, name string, lease time.Duration) *Hold {
	t.Helper()
	h, err := w.Hold(t.Context(), Options{Name: name, Lease: lease, Log: slog.New(slog.DiscardHandler),
		Taken: func(error) { w.taken.Add(1) }, Heard: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (w *world) join(t *testing.T, name string, lease time.Duration) *Hold {
	t.Helper()
	h := w.hold(t, name, lease)
	if err := h.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (w *world) conn(t *testing.T) *sql.Conn {
	t.Helper()
	conn, err := w.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestNextOwnerWaits: the next owner has the database only when no transaction of the one before it can be committed
// any more, though that has not noticed that its lock is lost; and from then on the earlier one begins none.
func TestNextOwnerWaits(t *testing.T) {
	for _, next := range []string{"", "c2"} {
		t.Run("next "+next, func(t *testing.T) {
			ctx, w := t.Context(), newWorld(t)
			first := w.hold(t, "", 0)
			if err := first.Join(ctx); err != nil {
				t.Fatal(err)
			}
			conn := w.conn(t)
			id, err := first.Begin(ctx, conn)
			if err != nil || id == "" {
				t.Fatalf("Begin = %q, %v", id, err)
			}
			exec(ctx, t, conn, `INSERT INTO t (n) VALUES (?)`, 1)
			first.stop() // the lock is lost, and nothing else of the process
			first.watcher.Wait()
			if err := first.conn.Close(ctx); err != nil {
				t.Fatal(err)
			}
			second := w.hold(t, next, 0)
			joined := make(chan error, 1)
			go func() { joined <- second.Join(ctx) }()
			select {
			case err := <-joined:
				t.Fatalf("the database has a new owner (%v) while the old one writes", err)
			case <-time.After(300 * time.Millisecond):
			}
			exec(ctx, t, conn, `COMMIT`)
			if err := <-joined; err != nil {
				t.Fatal(err)
			}
			if done, err := second.Committed(ctx, w.db, id); err != nil || !done {
				t.Errorf("Committed = %v, %v", done, err)
			}
			if _, err := first.Begin(ctx, conn); !errors.Is(err, ErrTaken) || w.taken.Load() != 1 {
				t.Errorf("Begin of the earlier owner = %v, %d", err, w.taken.Load())
			}
			exec(ctx, t, conn, `ROLLBACK`)

			undone, err := second.Begin(ctx, conn)
			if err != nil {
				t.Fatal(err)
			}
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			if done, err := second.Committed(short, w.db, undone); done || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("of one under way, Committed = %v, %v", done, err)
			}
			exec(ctx, t, conn, `ROLLBACK`)
			if done, err := second.Committed(ctx, w.db, undone); done || err != nil {
				t.Errorf("of one that was undone, Committed = %v, %v", done, err)
			}
			const future = "4611686018427388904" // such as one that the server forgot in a crash
			soon, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			if done, err := second.Committed(soon, w.db, future); done || err != nil {
				t.Errorf("of one that the server does not know, Committed = %v, %v", done, err)
			}
			if err := second.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNames: conductors share a database if each has a name of its own, and a command that needs it alone waits for
// none of them.
func TestNames(t *testing.T) {
	w := newWorld(t)
	first := w.join(t, "c1", 0)
	w.join(t, "c2", 0)
	for _, c := range []struct{ name, says string }{{"c1", "with the name c1"}, {"", "this one needs it alone"}} {
		_, err := w.Hold(t.Context(), Options{Name: c.name})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q beside them = %v", c.name, err)
		}
	}
	states := func(h *Hold) string {
		var s string
		for _, m := range h.Members() {
			s += m.Name + " " + m.State + ", "
		}
		return s
	}
	if err := first.Describe(t.Context(), Draining, "the first"); err != nil {
		t.Fatal(err)
	}
	third := w.join(t, "c3", 0)
	if got := states(third); got != "c1 draining, c2 up, c3 up, " {
		t.Errorf("states: %s", got)
	}
	if got := third.Members()[0].Doc; got != "the first" {
		t.Errorf("description: %s", got)
	}
	if !third.Lives("c1") || third.Lives("c4") || !third.Others() {
		t.Error("who lives?")
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn := w.conn(t)
	if _, err := third.Begin(t.Context(), conn); err != nil { // sees it, whatever was heard before
		t.Fatal(err)
	}
	exec(t.Context(), t, conn, `ROLLBACK`)
	if third.Lives("c1") {
		t.Errorf("one that has ended lives: %s", states(third))
	}
}

// TestWriterStandsStill: who waits too long for a transaction of another one has written nothing, and is told to try
// again.
func TestWriterStandsStill(t *testing.T) {
	w := newWorld(t)
	first, second := w.join(t, "c1", 0), w.join(t, "c2", 0)
	still, waits := w.conn(t), w.conn(t)
	if _, err := first.Begin(t.Context(), still); err != nil {
		t.Fatal(err)
	}
	exec(t.Context(), t, waits, `SET statement_timeout = 200`)
	if _, err := second.Begin(t.Context(), waits); !errors.Is(err, ErrAway) {
		t.Errorf("Begin beside a writer that stands still = %v", err)
	}
	exec(t.Context(), t, waits, `ROLLBACK`)
	exec(t.Context(), t, still, `ROLLBACK`)
	if _, err := second.Begin(t.Context(), waits); err != nil {
		t.Errorf("Begin afterwards = %v", err)
	}
	exec(t.Context(), t, waits, `ROLLBACK`)
}

// TestComesBack: a conductor that closes so is not gone for the others until its lease has ended, and its next life
// begins at once.
func TestComesBack(t *testing.T) {
	w := newWorld(t)
	first, other := w.join(t, "c1", time.Second), w.join(t, "c2", time.Second)
	first.ComesBack()
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	lives := func() bool {
		conn := w.conn(t)
		if _, err := other.Begin(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
		exec(t.Context(), t, conn, `ROLLBACK`)
		return other.Lives("c1")
	}
	if !lives() {
		t.Error("it is gone already")
	}
	again := w.join(t, "c1", time.Second)
	if !lives() {
		t.Error("its next life is not known")
	}
	again.ComesBack()
	if err := again.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "it is not taken for dead when its lease has ended", func() bool { return !lives() })
}

// TestChangesAreHeard: that a conductor joins, drains or is gone is known to the others before their next beat.
func TestChangesAreHeard(t *testing.T) {
	w := newWorld(t)
	const lease = 10 * time.Minute // with a beat every two
	first := w.join(t, "c1", lease)
	state := func() string {
		for _, m := range first.Members() {
			if m.Name == "c2" {
				return m.State
			}
		}
		return ""
	}
	second := w.join(t, "c2", lease)
	until(t, "it is not heard that one joined", func() bool { return state() == Up })
	if err := second.Describe(t.Context(), Draining, "the second"); err != nil {
		t.Fatal(err)
	}
	until(t, "it is not heard that one drains", func() bool { return state() == Draining })
	if err := second.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "it is not heard that one is gone", func() bool { return state() == Gone })
}

func until(t *testing.T, otherwise string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(otherwise)
		}
	}
}

// TestFrozen: a conductor that stands still loses its lease by its own clock before the others take it for dead; they
// do so although it holds the writers' lock. When it goes on, nothing of it is written.
func TestFrozen(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	ctx, w := t.Context(), newWorld(t)
	first, second := w.hold(t, "c1", lease), w.join(t, "c2", lease)
	if err := first.Join(ctx); err != nil {
		t.Fatal(err)
	}
	second.Moved(func() {
		if !second.Lives("c1") && first.Check() == nil {
			t.Error("it was taken for dead while its lease lasted")
		}
	})
	time.Sleep(2 * lease)
	if err := errors.Join(first.Check(), second.Check()); err != nil {
		t.Fatal("while all is well:", err)
	}
	conn := w.conn(t)
	if _, err := first.Begin(ctx, conn); err != nil {
		t.Fatal(err)
	}
	first.stop()
	first.watcher.Wait()
	until(t, "it is not noticed", func() bool { return !second.Lives("c1") })
	if first.Check() == nil {
		t.Error("it may still act")
	}
	if err := second.Check(); err != nil {
		t.Error("the other one's lease:", err)
	}
	if _, err := conn.ExecContext(ctx, `INSERT INTO t (n) VALUES (1)`); err == nil {
		t.Error("its transaction goes on")
	}
	again := w.conn(t)
	if _, err := first.Begin(ctx, again); !errors.Is(err, ErrTaken) {
		t.Errorf("its next transaction = %v", err)
	}
	exec(ctx, t, again, `ROLLBACK`)
	if err := first.beat(ctx); !errors.Is(err, ErrTaken) {
		t.Errorf("its next beat = %v", err)
	}
	first.conn.Close(ctx)
}

// TestServerAway: when the server was away for longer than the lease, no conductor may act meanwhile, and none is taken
// for dead afterwards.
func TestServerAway(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	w := newWorld(t)
	first, second := w.join(t, "c1", lease), w.join(t, "c2", lease)
	held := w.conn(t) // no beat is stored while this has the table
	exec(t.Context(), t, held, `BEGIN`)
	exec(t.Context(), t, held, `LOCK TABLE conductors`)
	for end := time.Now().Add(7 * time.Second); time.Now().Before(end); time.Sleep(lease / 3) {
		exec(t.Context(), t, held, `SELECT 1`) // not idle
	}
	if first.Check() == nil || second.Check() == nil {
		t.Error("they may act without a beat that was stored")
	}
	exec(t.Context(), t, held, `ROLLBACK`)
	until(t, "they may not act again", func() bool { return errors.Join(first.Check(), second.Check()) == nil })
	time.Sleep(2 * lease)
	if !first.Lives("c2") || !second.Lives("c1") || w.taken.Load() != 0 {
		t.Error("one was taken for dead")
	}
}

// TestClockOfTheDatabase: when the clock of the server is set, forward or back, conductors may go on, and none is taken
// for dead; one that has died is, as soon as ever, though the clock was set back by an hour meanwhile.
func TestClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	ctx, c := t.Context(), pgserver.New(t)
	if err := errors.Join(c.FakeClock(filepath.Join(c.Dir, "clock")), c.Stop(), c.Start()); err != nil {
		t.Fatal(err)
	}
	w := newWorldOn(t, c)
	first, second := w.hold(t, "c1", lease), w.join(t, "c2", lease)
	if err := first.Join(ctx); err != nil {
		t.Fatal(err)
	}
	set := func(by time.Duration) {
		t.Helper()
		var ahead float64
		err := errors.Join(c.SetClock(by), w.db.QueryRow(`SELECT extract(epoch FROM clock_timestamp()) - ?::float8`,
			float64(time.Now().UnixMilli())/1000).Scan(&ahead))
		if err != nil || math.Abs(ahead-by.Seconds()) > 60 {
			t.Fatalf("the server's clock was set by %v, and is %v s ahead: %v", by, ahead, err)
		}
	}
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		set(by)
		for end := time.Now().Add(first.patience() + lease); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			err := errors.Join(first.Check(), second.Check())
			if err != nil || !first.Lives("c2") || !second.Lives("c1") {
				t.Fatalf("after the clock was set by %v: %v, %v, %v", by, err, first.Members(), second.Members())
			}
		}
	}
	first.stop()
	first.watcher.Wait()
	died := time.Now()
	set(-2 * time.Hour)
	until(t, "it is not taken for dead", func() bool { return !second.Lives("c1") })
	if after := time.Since(died); after < lease {
		t.Errorf("it was taken for dead %s after its last beat", after)
	}
	first.conn.Close(ctx)
}

func exec(ctx context.Context, t *testing.T, c *sql.Conn, query string, args ...any) {
	t.Helper()
	if _, err := c.ExecContext(ctx, query, args...); err != nil {
		t.Fatal(err)
	}
}

// TestSettings: what is confirmed is on the server's disk even if its administrator has switched that off, and
// transactions are isolated as the store needs it; statements and locks end.
func TestSettings(t *testing.T) {
	cluster := pgserver.Shared(t)
	name, url := cluster.Database(t)
	for _, setting := range []string{"synchronous_commit = off", "default_transaction_isolation = 'serializable'"} {
		if _, err := cluster.Query(t.Context(), name, "ALTER DATABASE "+name+" SET "+setting); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Parse(url, pgserver.Password)
	if err != nil {
		t.Fatal(err)
	}
	db := s.Open(1500*time.Millisecond, nil, nil)
	defer db.Close()
	for name, want := range map[string]string{"synchronous_commit": "on", "statement_timeout": "1500ms",
		"lock_timeout": "20s", "application_name": "ingotd", "default_transaction_isolation": "read committed",
		"transaction_isolation": "read committed"} {
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
