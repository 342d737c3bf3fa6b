package store

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// refusedWith opens a store that must be refused in one sentence with these words, without the password.
func refusedWith(t *testing.T, o Options, words ...string) {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err == nil {
		t.Fatal("the database was opened", s.Close())
	}
	text := err.Error()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not say %q", text, w)
		}
	}
	if strings.Contains(text, "\n") || strings.Contains(text, "passw0rd") || len(text) > 500 {
		t.Errorf("this is not one sentence without a password: %q", text)
	}
}

// TestServersThatAreRefused: each fault of the address, the server or the database is said in one sentence.
func TestServersThatAreRefused(t *testing.T) {
	good := ServerOptions(t)
	with := func(f func(o *Options)) Options {
		o := good
		f(&o)
		return o
	}
	at := func(url string) Options { return with(func(o *Options) { o.URL = url }) }
	for _, c := range []struct {
		name  string
		o     Options
		words []string
	}{
		{"another scheme", at("mysql://u@h/d"), []string{"store.url", "postgres://USER@HOST"}},
		{"no URL", at("postgres://u:bad passw0rd@h/d"), []string{"store.url"}},
		{"a password inside that breaks it", at("postgres://u:passw0rd/x@h:1/d"), []string{"store.url"}},
		{"a password inside", at("postgres://u:passw0rd@h/d"), []string{"store.password_file"}},
		{"a password among the parameters", at("postgres://u@h/d?password=passw0rd"), []string{"store.password_file"}},
		{"a parameter's value", at("postgres://u@h/d?sslmode=perhaps"), []string{"store.url", "sslmode"}},
		{"no server there", at("postgres://u@127.0.0.1:1/d?sslmode=disable"),
			[]string{"127.0.0.1:1", "can't be reached", "refused"}},
		{"no such host", at("postgres://u@nowhere.invalid/d"), []string{"nowhere.invalid", "its host has no address", "store.url"}},
		{"without TLS", at(strings.Replace(good.URL, "sslmode=disable", "sslmode=verify-full", 1)),
			[]string{"can't be used", "TLS"}},
		{"wrong password", with(func(o *Options) { o.Password = "wrong-passw0rd" }),
			[]string{"refuses user ingot", "store.password_file"}},
		{"no such database", at(strings.Replace(good.URL, "/test", "/none", 1)),
			[]string{"does not exist", "createdb"}},
		{"new installation", with(func(o *Options) { o.NewInstallation = true }), []string{"store.url"}},
	} {
		t.Run(c.name, func(t *testing.T) { refusedWith(t, c.o, c.words...) })
	}
	if entries, err := os.ReadDir(good.Dir); err != nil || len(entries) > 0 {
		t.Errorf("a refused start has left %v, %v", entries, err)
	}
}

// TestSecondIsRefused: there is one ingotd per database; when it has ended, or was killed, the next one can start.
func TestSecondIsRefused(t *testing.T) {
	o := ServerOptions(t)
	first := openTest(t, o)
	refusedWith(t, o, "another ingotd works with PostgreSQL at 127.0.0.1:")
	if err := first.CreateNode(t.Context(), &node.Node{Name: "kept", Driver: "x"}); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, o)
	if n, err := s.Node(t.Context(), "kept"); err != nil || n.Driver != "x" {
		t.Errorf("after opening again: %+v, %v", n, err)
	}
}

// TestOtherDatabases: a newer schema, a database that is not this directory's, and one without its tables.
func TestOtherDatabases(t *testing.T) {
	o := ServerOptions(t)
	s := openTest(t, o)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	other := o
	other.Dir = t.TempDir()
	refusedWith(t, other, "store.url") // no key
	other.Key = bytes.Repeat([]byte{1}, 32)
	refusedWith(t, other, "the key does not fit", "store.url")
	other = ServerOptions(t)
	other.Dir = o.Dir
	refusedWith(t, other, "has no tables", filepath.Join(o.Dir, InstallationFile), "store.url")
	c := pgserver.Shared(t)
	name := s.server.Database()
	if _, err := c.Query(t.Context(), name,
		"INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)"); err != nil {
		t.Fatal(err)
	}
	refusedWith(t, o, "has schema 99, newer than", "Start the newer program again")
	o = ServerOptions(t)
	name, _, _ = strings.Cut(path.Base(o.URL), "?")
	if _, err := c.Query(t.Context(), name, "ALTER DATABASE "+name+" SET default_transaction_read_only = on"); err != nil {
		t.Fatal(err)
	}
	refusedWith(t, o, "may only be read (default_transaction_read_only is on)", "user ingot")
}

// TestOldServer: a server of another age is refused before it is asked anything.
func TestOldServer(t *testing.T) {
	refusedWith(t, Options{Dir: t.TempDir(), URL: pgserver.Old(t)}, "is version 12.9", "needs 15 or later")
}

// TestServerRestart: while the server is away writes are refused and nodes that are known can still be read; when it is
// back, all goes on without a restart of the store. A standby is refused.
func TestServerRestart(t *testing.T) {
	c := pgserver.New(t)
	_, url := c.Database(t)
	o := Options{Dir: t.TempDir(), URL: url, Password: pgserver.Password, Alone: true}
	s := openTest(t, o)
	n := &node.Node{Name: "n", Driver: "x"}
	write := func() error {
		_, err := s.UpdateNode(t.Context(), n.UUID, func(n *node.Node) error { n.Description += "x"; return nil })
		return err
	}
	if err := s.CreateNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	for round, stop := range []func() error{c.Stop, c.Kill} {
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if err := write(); !errors.Is(err, ErrAway) {
			t.Errorf("a write without a server = %v, want ErrAway", err)
		}
		if got, err := s.Node(t.Context(), n.UUID); err != nil || len(got.Description) != round {
			t.Errorf("a read without a server = %+v, %v", got, err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "writes go on", func() bool { return write() == nil })
		if err := s.Fault(); err != nil {
			t.Errorf("Fault = %v", err)
		}
	}
	if got, err := s.Node(t.Context(), n.UUID); err != nil || got.Description != "xx" {
		t.Errorf("in the end: %+v, %v", got, err)
	}
	if err := errors.Join(s.Close(), c.Stop(), c.MakeStandby(), c.Start()); err != nil {
		t.Fatal(err)
	}
	refusedWith(t, o, "is a standby", "primary")
}

// TestCutInARead: a read whose connection is ended by the server says so, and the next one succeeds; one for which no
// connection can be opened says so as well, also before the store has noticed that the server is away.
func TestCutInARead(t *testing.T) {
	c := pgserver.New(t)
	_, url := c.Database(t)
	s := openTest(t, Options{Dir: t.TempDir(), URL: url, Password: pgserver.Password, Alone: true})
	read := func(query string) error {
		_, err := list(t.Context(), s.r, "read", into(text), query)
		return err
	}
	got := make(chan error, 1)
	go func() { got <- read(`SELECT pg_sleep(60)::text`) }()
	eventually(t, "the read is under way, and is ended", func() bool {
		n, err := c.Query(t.Context(), s.server.Database(),
			"SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'")
		return err == nil && n == "1"
	})
	if err := <-got; !errors.Is(err, ErrCut) || errors.Is(err, ErrAway) {
		t.Errorf("a read that was cut = %v, want ErrCut", err)
	}
	if err := read(`SELECT 'x'`); err != nil {
		t.Errorf("the next read = %v", err)
	}
	// A conductor that stands still can have the lock for writes for longer than this one waits.
	if err := s.failed("begin", &pgconn.PgError{Code: "55P03"}); !errors.Is(err, ErrAway) {
		t.Errorf("a lock that was not had = %v, want ErrAway", err)
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	s.r.SetMaxIdleConns(0) // none of those from before
	if err := read(`SELECT 'x'`); !errors.Is(err, ErrCut) || errors.Is(err, ErrAway) {
		t.Errorf("a read without a server = %v, want ErrCut", err)
	}
}

// TestServerCanNot: what the server could not do now, as it has no connection left, or somebody has a table for long,
// is no fault of the store: it can be tried again, and nothing was changed.
func TestServerCanNot(t *testing.T) {
	s := openTest(t, ServerOptions(t))
	ctx, n := t.Context(), &node.Node{Name: "n", Driver: "x"}
	if err := s.CreateNode(ctx, n); err != nil {
		t.Fatal(err)
	}
	read := func() error {
		_, err := s.Node(ctx, n.UUID)
		return err
	}
	write := func() error {
		_, err := s.UpdateNode(ctx, n.UUID, func(n *node.Node) error { n.Description = "x"; return nil })
		return err
	}
	both := func(what string, wantRead, wantWrite error) {
		t.Helper()
		if err := read(); !errors.Is(err, wantRead) || errors.Is(err, ErrAway) {
			t.Errorf("a read %s = %v, want %v", what, err, wantRead)
		}
		if err := write(); !errors.Is(err, wantWrite) {
			t.Errorf("a write %s = %v, want %v", what, err, wantWrite)
		}
	}
	for _, db := range []*sql.DB{s.r, s.w} {
		db.SetMaxOpenConns(1)
		if _, err := db.ExecContext(ctx, `SET lock_timeout = 100`); err != nil {
			t.Fatal(err)
		}
	}
	other := s.server.Open(0, nil, nil)
	defer other.Close()
	tx, err := other.BeginTx(ctx, nil)
	if err == nil {
		_, err = tx.ExecContext(ctx, `LOCK TABLE nodes`)
	}
	if err != nil {
		t.Fatal(err)
	}
	both("of a table that another one has", ErrBusy, ErrBusy)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(read(), write()); err != nil {
		t.Fatal("afterwards:", err)
	}
	if _, err := s.r.ExecContext(ctx, `SET statement_timeout = 100`); err != nil {
		t.Fatal(err)
	}
	if _, err := list(ctx, s.r, "read", into(text), `SELECT pg_sleep(60)::text`); !errors.Is(err, ErrBusy) {
		t.Errorf("a read that takes too long = %v, want ErrBusy", err)
	}
	s.r.SetMaxIdleConns(0)
	s.w.SetMaxIdleConns(0)
	connections := func(allowed bool) {
		if _, err := pgserver.Shared(t).Query(ctx, "postgres",
			fmt.Sprintf("ALTER DATABASE %s ALLOW_CONNECTIONS %v", s.server.Database(), allowed)); err != nil {
			t.Fatal(err)
		}
	}
	connections(false)
	both("without a connection", ErrCut, ErrAway)
	connections(true)
	if err := errors.Join(read(), write()); err != nil {
		t.Error("in the end:", err)
	}
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// TestTakenOver: when another ingotd has had the database, this one writes nothing any more: whether it has noticed the
// loss of its lock or not.
func TestTakenOver(t *testing.T) {
	for _, noticed := range []bool{false, true} {
		t.Run(fmt.Sprint("noticed ", noticed), func(t *testing.T) {
			s := openTest(t, ServerOptions(t))
			c := pgserver.Shared(t)
			if _, err := c.Query(t.Context(), s.server.Database(), "UPDATE conductors SET epoch = epoch + 1"); err != nil {
				t.Fatal(err)
			}
			if noticed {
				if _, err := c.Query(t.Context(), s.server.Database(),
					"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"); err != nil {
					t.Fatal(err)
				}
				<-s.Damaged()
			}
			n := &node.Node{Name: "n", Driver: "x"}
			for range 2 {
				if err := s.CreateNode(t.Context(), n); !errors.Is(err, ErrLost) {
					t.Errorf("a write = %v, want ErrLost", err)
				}
			}
			if err := s.Fault(); !errors.Is(err, ErrLost) || errors.Is(err, ErrDamaged) {
				t.Errorf("Fault = %v", err)
			}
			if all, err := s.Nodes(t.Context(), Query{}); err != nil || len(all) != 0 {
				t.Errorf("nodes = %v, %v", all, err)
			}
		})
	}
}

// TestCutInATransaction: a connection that is cut in the middle of a change undoes it, and says so; the next change is
// made. The changes of others in the same transaction fail with it.
func TestCutInATransaction(t *testing.T) {
	s := openTest(t, ServerOptions(t))
	c := pgserver.Shared(t)
	n := &node.Node{Name: "n", Driver: "x"}
	if err := s.CreateNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	var heard atomic.Int64
	s.Announce(func(e []node.Event) { heard.Add(int64(len(e))) })
	_, err := s.UpdateNode(t.Context(), n.UUID, func(n *node.Node) error {
		n.Description = "cut"
		_, err := c.Query(t.Context(), s.server.Database(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()")
		return err
	})
	if !errors.Is(err, ErrAway) {
		t.Errorf("a change that was cut = %v, want ErrAway", err)
	}
	if got, err := s.Node(t.Context(), n.UUID); err != nil || got.Description != "" || heard.Load() != 0 {
		t.Errorf("after it: %+v, %v, %d events", got, err, heard.Load())
	}
	got, err := s.UpdateNode(t.Context(), n.UUID, func(n *node.Node) error { n.Description = "next"; return nil })
	if err != nil || got.Version != 2 {
		t.Errorf("the next change: %+v, %v", got, err)
	}
	if events, err := s.Events(t.Context(), 0, 10); err != nil || len(events) != 2 || events[1].ID != 2 {
		t.Errorf("events: %+v, %v", events, err)
	}
}

// proxy stands between a store and its server, and loses answers.
type proxy struct {
	net.Listener
	to   string
	mode atomic.Int32
	lost func() // unless nil: called before drops cuts the connection
}

// What the proxy does at the next COMMIT.
const (
	passes   = iota
	drops    // it cuts the connection before
	swallows // it cuts the connection after the server has got it
	vanishes // and no connection is made any more
	silent
	frozen // nothing passes, and connections stay open
)

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l, to: to}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if p.mode.Load() == silent {
				c.Close()
				continue
			}
			wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return p
}

// through has a store reach its server by a proxy.
func through(t *testing.T, o *Options) *proxy {
	t.Helper()
	host := fmt.Sprint("127.0.0.1:", pgserver.Shared(t).Port)
	p := newProxy(t, host)
	o.URL = strings.Replace(o.URL, host, p.Addr().String(), 1)
	return p
}

func (p *proxy) serve(c net.Conn) {
	defer c.Close()
	up, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer up.Close()
	var cut, dropped atomic.Bool
	gone := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			n, err := up.Read(buf)
			if err != nil || cut.Load() {
				if cut.Load() && dropped.Load() {
					<-gone
				}
				c.Close()
				return
			}
			for p.mode.Load() == frozen {
				time.Sleep(10 * time.Millisecond)
			}
			if _, err := c.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		if err != nil {
			break
		}
		mode := p.mode.Load()
		for ; mode == frozen; mode = p.mode.Load() {
			time.Sleep(10 * time.Millisecond)
		}
		if mode != passes && bytes.Contains(buf[:n], []byte("COMMIT\x00")) {
			dropped.Store(mode == drops)
			cut.Store(true)
			next := int32(passes)
			if mode == vanishes {
				next = silent
			}
			p.mode.Store(next)
			if mode == drops {
				if p.lost != nil {
					p.lost()
				}
				close(gone)
				break
			}
		}
		if _, err := up.Write(buf[:n]); err != nil {
			break
		}
	}
	up.Close()
	<-done
}

// TestLostAnswerOfCommit: where the answer to COMMIT is lost, the store finds out what became of the change; where it
// can't, it says that it does not know, and writes nothing any more.
func TestLostAnswerOfCommit(t *testing.T) {
	for _, c := range []struct {
		name  string
		mode  int32
		want  error
		after string
	}{{"committed", swallows, nil, "new"}, {"not committed", drops, ErrAway, ""},
		{"unknown", vanishes, ErrLost, "new"}} {
		t.Run(c.name, func(t *testing.T) {
			o := ServerOptions(t)
			straight := o.URL
			p := through(t, &o)
			o.Alone = true
			s := openTest(t, o)
			s.outcomeTime = time.Second
			n := &node.Node{Name: "n", Driver: "x"}
			if err := s.CreateNode(t.Context(), n); err != nil {
				t.Fatal(err)
			}
			var heard atomic.Int64
			s.Announce(func(e []node.Event) { heard.Add(int64(len(e))) })
			p.mode.Store(c.mode)
			_, err := s.UpdateNode(t.Context(), n.UUID, func(n *node.Node) error { n.Description = "new"; return nil })
			if !errors.Is(err, c.want) ||
				errors.Is(c.want, ErrLost) && !strings.Contains(err.Error(), "not known whether") {
				t.Fatalf("the change = %v, want %v", err, c.want)
			}
			if (heard.Load() == 1) != (c.want == nil) {
				t.Errorf("%d events were announced", heard.Load())
			}
			if errors.Is(c.want, ErrLost) {
				if err := s.CreateNode(t.Context(), &node.Node{Driver: "x"}); !errors.Is(err, ErrLost) {
					t.Errorf("the next write = %v", err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				o.URL = straight
				s = openTest(t, o)
			} else if err := s.CreateNode(t.Context(), &node.Node{Driver: "x"}); err != nil {
				t.Errorf("the next write = %v", err)
			}
			if got, err := s.Node(t.Context(), n.UUID); err != nil || got.Description != c.after {
				t.Errorf("after it: %+v, %v", got, err)
			}
		})
	}
}

// TestNumberIsUsedAgain: a server that crashes forgets a transaction that was not committed, and may give its number to
// another one: if that is committed, the first one is not.
func TestNumberIsUsedAgain(t *testing.T) {
	c := pgserver.New(t)
	_, url := c.Database(t)
	// What was not committed is not written to the log of the server before it crashes.
	start := func() error { return c.Start("wal_writer_delay=10s", "wal_writer_flush_after=1GB") }
	if err := errors.Join(c.Stop(), start()); err != nil {
		t.Fatal(err)
	}
	host := fmt.Sprint("127.0.0.1:", c.Port)
	p := newProxy(t, host)
	o := Options{Dir: t.TempDir(), URL: strings.Replace(url, host, p.Addr().String(), 1),
		Password: pgserver.Password, Alone: true, Name: "c1", Lease: 10 * time.Minute}
	s := openTest(t, o)
	ctx, n := t.Context(), &node.Node{Name: "n", Driver: "x"}
	if err := s.CreateNode(ctx, n); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*node.Node){
		func(n *node.Node) { n.Description = "lost" }, // of which there is an event
		func(n *node.Node) { n.Job = &node.Job{} },    // and of this none
	} {
		before, err := s.Node(ctx, n.UUID)
		if err != nil {
			t.Fatal(err)
		}
		number := func(statement string) (n int) {
			t.Helper()
			text, err := c.Query(ctx, s.server.Database(), statement)
			if err == nil {
				n, err = strconv.Atoi(text)
			}
			if err != nil {
				t.Error(err)
			}
			return n
		}
		p.lost = func() {
			lost := number(`SELECT backend_xid FROM pg_stat_activity WHERE state = 'idle in transaction'`)
			if err := errors.Join(c.Kill(), start()); err != nil {
				t.Error(err)
				return
			}
			used := 0
			for n := 0; n < 20 && used < lost; n++ {
				used = number(`SELECT pg_current_xact_id()::text`)
			}
			if used != lost {
				t.Errorf("the server goes on with %d, and not with %d again", used, lost)
			}
		}
		p.mode.Store(drops)
		_, err = s.UpdateNode(ctx, n.UUID, func(n *node.Node) error { change(n); return nil })
		if !errors.Is(err, ErrAway) {
			t.Errorf("a change that is lost = %v, want ErrAway", err)
		}
		if got, err := s.Node(ctx, n.UUID); err != nil || got.Version != before.Version {
			t.Errorf("after it: %+v, %v", got, err)
		}
		eventually(t, "writes go on", func() bool {
			_, err := s.UpdateNode(ctx, n.UUID, func(n *node.Node) error { n.Description = "next"; return nil })
			return err == nil
		})
	}
}

// TestServerStandsStill: reads that wait for a server which stands still, or is cut off without a word, end when the
// store has noticed, and later ones at once. When the server goes on, so do they.
func TestServerStandsStill(t *testing.T) {
	o := ServerOptions(t)
	p := through(t, &o)
	o.Name = "c1"
	s := openTest(t, o)
	n := &node.Node{Name: "n", Driver: "x"}
	if err := s.CreateNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	p.mode.Store(frozen)
	defer p.mode.Store(passes)
	const readers = 3 * serverReaders // most of which wait for a connection
	got := make(chan error, readers)
	for range readers {
		go func() {
			_, err := s.Node(t.Context(), n.UUID)
			got <- err
		}()
	}
	late := time.After(time.Minute)
	for range readers {
		select {
		case err := <-got:
			if !errors.Is(err, ErrCut) {
				t.Errorf("a read = %v, want ErrCut", err)
			}
		case <-late:
			t.Fatal("reads wait on, and the store knows: ", s.Away())
		}
	}
	p.mode.Store(passes)
	eventually(t, "reads go on", func() bool {
		_, err := s.Node(t.Context(), n.UUID)
		return err == nil
	})
}

// TestZeroInTexts: documents keep U+0000 on both databases; a text that is searched is refused by PostgreSQL's store,
// in a sentence for the client. Sorted lists work all the same.
func TestZeroInTexts(t *testing.T) {
	Engines(t, func(t *testing.T, o Options) {
		s, ctx := openTest(t, o), t.Context()
		n := &node.Node{Name: "n", Driver: "x", Extra: map[string]any{"z": "a\x00b"}}
		if err := s.CreateNode(ctx, n); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Node(ctx, "n"); err != nil || got.Extra["z"] != "a\x00b" {
			t.Errorf("%+v, %v", got, err)
		}
		for i, d := range []string{"b\x00", "a", `\u0000 as text`, ""} {
			p := &node.Port{NodeUUID: n.UUID, Address: fmt.Sprintf("52:54:00:00:00:0%d", i), Description: d,
				Category: []string{"b", "_", "B", "a"}[i], IsSmartNIC: i%2 == 0}
			if err := s.CreatePort(ctx, p); err != nil {
				t.Fatal(err)
			}
		}
		order := func(key string, desc bool) (s1 string) {
			t.Helper()
			list, err := s.Ports(ctx, PortQuery{Sort: key, Desc: desc})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range list {
				s1 += p.Address[16:]
			}
			return s1
		}
		for key, want := range map[string]string{"category": "2130", "description": "3210", "is_smartnic": "1302",
			"available_for_dynamic_portgroup": "0123", "vendor": "0123"} {
			if got := order(key, false); got != want {
				t.Errorf("by %s: %s, want %s", key, got, want)
			}
		}
		part := "U0000 AS"
		if list, err := s.Ports(ctx, PortQuery{DescriptionContains: &part}); err != nil || len(list) != 1 {
			t.Errorf("found %v, %v", list, err)
		}
		err := s.CreateNode(ctx, &node.Node{Name: "x\x00y", Driver: "x"})
		if (err != nil) != (o.URL != "") || o.URL != "" && !errors.Is(err, ErrText) {
			t.Errorf("a name with U+0000 = %v", err)
		}
	})
}

// TestOrderIsThatOfBytes: names are sorted by their bytes, whatever the database's language.
func TestOrderIsThatOfBytes(t *testing.T) {
	Engines(t, func(t *testing.T, o Options) {
		s := openTest(t, o)
		for _, name := range []string{"b", "Z", "a-c", "ab", "é"} {
			n := &node.Node{Name: name, Driver: "x", Description: "É " + name}
			if err := s.CreateNode(t.Context(), n); err != nil {
				t.Fatal(err)
			}
		}
		list, err := s.Nodes(t.Context(), Query{Sort: "name", Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, n := range list {
			names = append(names, n.Name)
		}
		if want := []string{"Z", "a-c", "ab", "b", "é"}; !slices.Equal(names, want) {
			t.Errorf("order = %q, want %q", names, want)
		}
		for _, key := range SortKeys() {
			page, err := s.Nodes(t.Context(), Query{Sort: key, Limit: 2})
			if err != nil || len(page) != 2 {
				t.Fatalf("by %s: %v, %v", key, page, err)
			}
			rest, err := s.Nodes(t.Context(), Query{Sort: key, Marker: page[1].UUID})
			if err != nil || len(rest) != 3 {
				t.Errorf("by %s, the rest: %v, %v", key, rest, err)
			}
		}
		part := "É Z"
		if list, err := s.Nodes(t.Context(), Query{DescriptionContains: &part}); err != nil || len(list) != 1 {
			t.Errorf("found %v, %v", list, err)
		}
	})
}
