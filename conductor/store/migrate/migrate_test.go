package migrate

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pressly/goose/v3"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/postgres"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

func TestMain(m *testing.M) { os.Exit(pgserver.Main(m)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// server is an empty database of PostgreSQL for the installation in dir.
func server(t testing.TB, dir string) store.Options {
	t.Helper()
	_, url := pgserver.Shared(t).Database(t)
	return store.Options{Dir: dir, URL: url, Password: pgserver.Password}
}

// query runs a statement of an administrator in a database of server.
func query(t testing.TB, o store.Options, statement string) string {
	t.Helper()
	_, name, _ := strings.Cut(strings.TrimSuffix(o.URL, "?sslmode=disable"), "127.0.0.1:")
	_, name, _ = strings.Cut(name, "/")
	out, err := pgserver.Shared(t).Query(t.Context(), name, statement)
	must(t, err)
	return out
}

// connect opens a database without a store.
func connect(t testing.TB, o store.Options) *sql.DB {
	t.Helper()
	var db *sql.DB
	var err error
	if o.URL == "" {
		db, err = store.OpenMade(filepath.Join(o.Dir, store.DatabaseFile))
	} else {
		var s *postgres.Server
		if s, err = postgres.Parse(o.URL, o.Password); err == nil {
			db = s.Open(0, nil, nil)
		}
	}
	must(t, err)
	return db
}

// rows returns what a query finds, a line for each row, sorted.
func rows(t testing.TB, db *sql.DB, query string) []string {
	t.Helper()
	r, err := db.QueryContext(context.Background(), query) // at the end of a test, too
	must(t, err)
	defer r.Close()
	names, err := r.Columns()
	must(t, err)
	var lines []string
	for r.Next() {
		values, into := make([]any, len(names)), make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		must(t, r.Scan(into...))
		var line strings.Builder
		for i, v := range values {
			fmt.Fprintf(&line, "%s=%T:%x ", names[i], v, v)
		}
		lines = append(lines, line.String())
	}
	must(t, r.Err())
	slices.Sort(lines)
	return lines
}

// contents are the rows of all tables that hold data, by table.
func contents(t testing.TB, o store.Options) map[string][]string {
	t.Helper()
	db := connect(t, o)
	defer db.Close()
	list := `SELECT name AS t FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'`
	if o.URL != "" {
		list = `SELECT tablename AS t FROM pg_tables WHERE schemaname = 'public'`
	}
	all := map[string][]string{}
	for _, name := range texts(t, db, list) {
		if name == "goose_db_version" || name == "holder" || name == "conductors" {
			continue
		}
		columns := `SELECT name FROM pragma_table_info('` + name + `') ORDER BY name`
		if o.URL != "" {
			columns = `SELECT column_name FROM information_schema.columns WHERE table_name = '` + name + `' ORDER BY 1`
		}
		all[name] = rows(t, db, `SELECT `+strings.Join(texts(t, db, columns), ", ")+` FROM `+name)
	}
	return all
}

// queryer is a database or a transaction.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// texts returns the only column of a query.
func texts(t testing.TB, db queryer, query string) (all []string) {
	t.Helper()
	r, err := db.QueryContext(context.Background(), query)
	must(t, err)
	defer r.Close()
	for r.Next() {
		var s string
		must(t, r.Scan(&s))
		all = append(all, s)
	}
	must(t, r.Err())
	return all
}

// made is an installation with a database of SQLite, without nodes.
func made(t testing.TB) store.Options {
	t.Helper()
	return store.Options{Dir: storetest.Fresh(t)}
}

// filled is an installation whose tables all have rows, of all that columns can hold.
func filled(t testing.TB) store.Options {
	t.Helper()
	o := made(t)
	db := connect(t, o)
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	for _, name := range texts(t, tx,
		`SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'`) {
		if len(texts(t, tx, `SELECT 'x' FROM `+name+` LIMIT 1`)) == 0 {
			fill(t, tx, name)
		}
	}
	// a number that was given and is not there any more
	_, err = tx.ExecContext(t.Context(), `DELETE FROM erasures WHERE seq = (SELECT MAX(seq) FROM erasures)`)
	must(t, err)
	must(t, tx.Commit())
	return o
}

// most is how many rows a table gets: more than two batches.
const most = 250

// fill makes the rows of a table. What refers to another table refers to its row of the same number.
func fill(t testing.TB, tx *sql.Tx, name string) {
	t.Helper()
	type parent struct{ table, column string }
	parents := map[string]parent{}
	for _, line := range texts(t, tx,
		`SELECT "from" || ' ' || "table" || ' ' || "to" FROM pragma_foreign_key_list('`+name+`')`) {
		f := strings.Fields(line)
		parents[f[0]] = parent{f[1], f[2]}
	}
	var names []string
	var make []func(i int) any
	for _, line := range texts(t, tx,
		`SELECT name || ' ' || type || ' ' || "notnull" || ' ' || pk FROM pragma_table_info('`+name+`')`) {
		f := strings.Fields(line)
		from := parent{name, f[0]}
		if p, ok := parents[f[0]]; ok {
			from = p
		}
		names = append(names, f[0])
		make = append(make, func(i int) any {
			switch {
			case f[2] == "0" && f[3] == "0" && i%3 == 0:
				return nil
			case f[1] == "TEXT":
				return fmt.Sprintf(`%s.%s.%d é '?" \u0000`, from.table, from.column, i)
			case f[1] == "BLOB" && i == 0:
				return []byte{}
			case f[1] == "BLOB" && i == 1:
				return bytes.Repeat([]byte{0, 255, 1, 'x'}, batchBytes/3)
			case f[1] == "BLOB":
				return []byte{0, 0xff, byte(i)}
			case f[3] != "0":
				return i + 1
			case f[1] == "BIGINT":
				return int64(1)<<53 + int64(i)
			}
			return i % 2
		})
	}
	rows := most
	if name == "shared" { // which has one
		rows = 1
	}
	for i := range rows {
		var values []any
		for _, f := range make {
			values = append(values, f(i))
		}
		_, err := tx.ExecContext(t.Context(), `INSERT INTO `+name+` (`+strings.Join(names, ", ")+`) VALUES (?`+
			strings.Repeat(", ?", len(names)-1)+`)`, values...)
		must(t, err)
	}
}

// run moves and returns how many rows.
func run(t testing.TB, from, to store.Options) (n int64) {
	t.Helper()
	rep, err := Run(t.Context(), Options{From: from, To: to})
	must(t, err)
	for _, table := range rep.Tables {
		n += table.Rows
	}
	return n
}

// back is where a move from PostgreSQL goes: a new folder with the files of the installation, but no database.
func back(t testing.TB, home string) store.Options {
	t.Helper()
	o := store.Options{Dir: t.TempDir()}
	for _, name := range []string{store.KeyFile, store.InstallationFile} {
		b, err := os.ReadFile(filepath.Join(home, name))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(o.Dir, name), b, 0o600))
	}
	return o
}

// TestThereAndBack: a store with rows in all tables has the same contents in PostgreSQL, and in SQLite again, the last
// numbers that its tables have given included.
func TestThereAndBack(t *testing.T) {
	first := filled(t)
	want := contents(t, first)
	rows := int64(0)
	for name, lines := range want {
		if len(lines) == 0 {
			t.Errorf("table %s has no rows: this shows nothing of it", name)
		}
		rows += int64(len(lines))
	}
	second := server(t, first.Dir)
	if n := run(t, first, second); n != rows {
		t.Errorf("%d rows were moved, want %d", n, rows)
	}
	if d := cmp.Diff(want, contents(t, second)); d != "" {
		t.Fatalf("in PostgreSQL (-want +got):\n%.2000s", d)
	}
	third := back(t, first.Dir)
	if n := run(t, second, third); n != rows {
		t.Errorf("%d rows were moved back, want %d", n, rows)
	}
	if d := cmp.Diff(want, contents(t, third)); d != "" {
		t.Fatalf("in SQLite again (-want +got):\n%.2000s", d)
	}
	if d := cmp.Diff(want, contents(t, first)); d != "" {
		t.Errorf("the source has changed (-want +got):\n%.2000s", d)
	}
	const erasure = `INSERT INTO erasures (id, node_uuid, at, doc) VALUES ('new', 'x', 1, 'x') RETURNING seq`
	for _, o := range []store.Options{first, second, third} {
		db := connect(t, o)
		var seq int
		if err := db.QueryRow(erasure).Scan(&seq); err != nil || seq != most+1 {
			t.Errorf("%s%s: the next number is %d, %v, want %d", o.URL, o.Dir, seq, err, most+1)
		}
		must(t, db.Close())
	}
	query(t, second, `INSERT INTO marks (node_uuid, job_id, name, at, detail) SELECT uuid, '', '', 0, '' FROM nodes`)
	info, err := os.Stat(filepath.Join(third.Dir, store.DatabaseFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the new file: %v, %v", info, err)
	}
	left(t, third.Dir, "ingot.db", "installation", "key")
}

// left checks which files are in a folder.
func left(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has %v, want %v", dir, got, want)
	}
}

// suited are the cases of the store's suite that leave different kinds of records.
var suited = []string{"NodeRoundTrip", "ConfigDrive", "Ports", "Inventory", "Results", "Leases", "Resources", "Pools"}

// TestWhatTheStoreKeeps: what the store's suite leaves in a store is the same on the other side, where a store can be
// opened.
func TestWhatTheStoreKeeps(t *testing.T) {
	storetest.Run(t, func(t *testing.T) *store.Store {
		from := made(t)
		s, err := store.Open(t.Context(), from)
		must(t, err)
		t.Cleanup(func() {
			ctx := context.Background()
			must(t, s.Close())
			if !slices.Contains(suited, path.Base(t.Name())) {
				return
			}
			want, to := contents(t, from), server(t, from.Dir)
			_, err := Run(ctx, Options{From: from, To: to})
			must(t, err)
			if d := cmp.Diff(want, contents(t, to)); d != "" {
				t.Errorf("in PostgreSQL (-want +got):\n%s", d)
			}
			moved, err := store.Open(ctx, to)
			must(t, err)
			if _, err := moved.Nodes(ctx, store.Query{}); err != nil {
				t.Error(err)
			}
			must(t, moved.Close())
		})
		return s
	})
}

// TestSchema: the tables that a move makes are those that goose makes at a store's first start.
func TestSchema(t *testing.T) {
	for _, c := range []struct {
		name   string
		o      store.Options
		target func(o store.Options) store.Options
		asks   []string
	}{
		{"SQLite", made(t), func(o store.Options) store.Options { return back(t, o.Dir) },
			[]string{`SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite%'`}},
		{"PostgreSQL", server(t, t.TempDir()), func(o store.Options) store.Options {
			return server(t, o.Dir)
		}, []string{
			`SELECT table_name, column_name, data_type, column_default, is_nullable, collation_name, identity_generation
				FROM information_schema.columns WHERE table_schema = 'public'`,
			`SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'`,
			`SELECT conname, pg_get_constraintdef(oid) AS def FROM pg_constraint
				WHERE connamespace = 'public'::regnamespace`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := store.Open(t.Context(), c.o)
			must(t, err)
			must(t, s.Close())
			to := c.target(c.o)
			side, err := openTarget(t.Context(), to, false)
			must(t, err)
			must(t, side.makeSchema(t.Context()))
			must(t, side.finish(t.Context()))
			must(t, side.close())
			want, got := connect(t, c.o), connect(t, to)
			defer want.Close()
			defer got.Close()
			for _, ask := range append(c.asks, `SELECT version_id, is_applied FROM goose_db_version`) {
				if d := cmp.Diff(rows(t, want, ask), rows(t, got, ask)); d != "" {
					t.Errorf("%s (-goose +ours):\n%s", ask, d)
				}
			}
		})
	}
}

// TestDryRun: everything is read, and nothing is written.
func TestDryRun(t *testing.T) {
	from := filled(t)
	want := contents(t, from)
	to := server(t, from.Dir)
	check := func(from, to store.Options) {
		t.Helper()
		rep, err := Run(t.Context(), Options{From: from, To: to, DryRun: true})
		must(t, err)
		for _, table := range rep.Tables {
			if int(table.Rows) != len(want[table.Name]) {
				t.Errorf("table %s has %d rows, want %d", table.Name, table.Rows, len(want[table.Name]))
			}
		}
		if len(rep.Tables) != len(want) {
			t.Errorf("%d tables, want %d", len(rep.Tables), len(want))
		}
	}
	check(from, to)
	if got := query(t, to, `SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'`); got != "0" {
		t.Errorf("a dry run has left %s tables", got)
	}
	run(t, from, to)
	absent := store.Options{Dir: filepath.Join(t.TempDir(), "data")}
	check(to, absent)
	if _, err := os.Stat(absent.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dry run has made %s: %v", absent.Dir, err)
	}
}

// TestKilledMove is not a test of its own: TestKilled runs it in a process that it kills.
func TestKilledMove(t *testing.T) {
	dir := os.Getenv("INGOT_TEST_MOVE_FROM")
	if dir == "" {
		return
	}
	from, to := store.Options{Dir: dir}, store.Options{Dir: os.Getenv("INGOT_TEST_MOVE_TO")}
	server := store.Options{URL: os.Getenv("INGOT_TEST_MOVE_URL"), Password: pgserver.Password}
	if to.Dir != "" {
		from = server
	} else {
		to = server
	}
	_, err := Run(t.Context(), Options{From: from, To: to, Progress: func(table string, rows int64) {
		if table == "history" && rows >= 100 {
			fmt.Println("in the middle")
			select {}
		}
	}})
	t.Fatal("it ended:", err)
}

// TestKilled: a move that is killed in its middle leaves an empty target and the source as it was; the next one works.
func TestKilled(t *testing.T) {
	home := filled(t)
	want := contents(t, home)
	pg := server(t, home.Dir)
	kill := func(to string) {
		t.Helper()
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledMove$")
		cmd.Env = append(os.Environ(), "INGOT_TEST_MOVE_FROM="+home.Dir, "INGOT_TEST_MOVE_TO="+to,
			"INGOT_TEST_MOVE_URL="+pg.URL)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		b := make([]byte, 4096)
		n, err := out.Read(b)
		must(t, cmd.Process.Kill())
		if err != nil || !strings.HasPrefix(string(b[:n]), "in the middle") {
			t.Fatalf("the move said %q, %v", b[:n], err)
		}
		_ = cmd.Wait() // it was killed
	}
	same := func(o store.Options) {
		t.Helper()
		if d := cmp.Diff(want, contents(t, o)); d != "" {
			t.Errorf("%s%s (-want +got):\n%.2000s", o.Dir, o.URL, d)
		}
	}
	kill("")
	same(home)
	if got := query(t, pg, `SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'`); got != "0" {
		t.Errorf("PostgreSQL has %s tables after the kill", got)
	}
	run(t, home, pg)
	same(pg)

	there := back(t, home.Dir)
	kill(there.Dir)
	same(pg)
	if found, err := filepath.Glob(filepath.Join(there.Dir, folderPrefix+"*")); err != nil || len(found) != 1 {
		t.Errorf("the killed move has left %v, %v", found, err)
	}
	// ingotd does not take it for a new start
	if s, err := store.Open(t.Context(), there); err == nil || !strings.Contains(err.Error(), "is missing, though") {
		t.Errorf("a store opened on the target: %v, %v", s, err)
	}
	run(t, pg, there)
	same(there)
	left(t, there.Dir, "ingot.db", "installation", "key")
}

// TestSpoiledCopy: a server that keeps other rows than it was given is found out before the end.
func TestSpoiledCopy(t *testing.T) {
	from := filled(t)
	for what, returns := range map[string]string{"another text": "NEW", "a row less": "NULL"} {
		to := server(t, from.Dir)
		query(t, to, `CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS
				$$ BEGIN NEW.detail := NEW.detail || '!'; IF NEW.seq < 9 THEN RETURN NEW; END IF;
				RETURN `+returns+`; END $$;
			CREATE FUNCTION arm() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
				IF to_regclass('marks') IS NOT NULL AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'spoil') THEN
					CREATE TRIGGER spoil BEFORE INSERT ON marks FOR EACH ROW EXECUTE FUNCTION spoil();
				END IF; END $$;
			CREATE EVENT TRIGGER arm ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION arm()`)
		_, err := Run(t.Context(), Options{From: from, To: to})
		if err == nil || !strings.Contains(err.Error(), "table marks of PostgreSQL") {
			t.Errorf("%s: %v", what, err)
		}
		if got := query(t, to, `SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'`); got != "0" {
			t.Errorf("%s: it has left %s tables", what, got)
		}
	}
}

// TestBadText: a text that PostgreSQL can't keep is refused with the name of its node, or replaced.
func TestBadText(t *testing.T) {
	from := made(t)
	s, err := store.Open(t.Context(), from)
	must(t, err)
	bad := &node.Node{Name: "n", Driver: "x", Description: "a\x00b", Owner: "c\x00", Extra: map[string]any{"z": "\x00"}}
	must(t, s.CreateNode(t.Context(), bad))
	must(t, s.AddHistory(t.Context(), node.HistoryEntry{NodeUUID: bad.UUID, Event: "x"}))
	must(t, s.Close())
	db := connect(t, from)
	_, err = db.Exec(`UPDATE history SET event = CAST(x'78ff' AS TEXT)`)
	must(t, errors.Join(err, db.Close()))
	to := server(t, from.Dir)
	for _, dry := range []bool{true, false} {
		_, err = Run(t.Context(), Options{From: from, To: to, DryRun: dry})
		if err == nil || !strings.Contains(err.Error(), bad.UUID) || !strings.Contains(err.Error(), "in column") ||
			!strings.Contains(err.Error(), "--replace-bad-text") {
			t.Errorf("dry run %t: %v", dry, err)
		}
	}
	_, err = Run(t.Context(), Options{From: from, To: to, ReplaceBad: true})
	must(t, err)
	if got := query(t, to, `SELECT description || owner FROM nodes`); got != "a\ufffdbc\ufffd" {
		t.Errorf("description and owner %q", got)
	}
	if got := query(t, to, `SELECT event || owner FROM history WHERE event LIKE 'x%'`); got != "x\ufffdc\ufffd" {
		t.Errorf("history %q", got)
	}
	if s, err = store.Open(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Node(t.Context(), "n"); err != nil || n.Extra["z"] != "\x00" {
		t.Errorf("the node = %+v, %v", n, err)
	}
	must(t, s.Close())
}

// TestOlderSource: it is migrated as by a start, but not by a dry run.
func TestOlderSource(t *testing.T) {
	from := filled(t)
	files, err := store.Schema(false)
	must(t, err)
	db := connect(t, from)
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files)
	must(t, err)
	_, err = p.DownTo(t.Context(), 11)
	must(t, err)
	must(t, db.Close())
	want := contents(t, from)
	to := server(t, from.Dir)
	refused(t, Options{From: from, To: to, DryRun: true}, "has schema 11, older than", "without --dry-run")
	if d := cmp.Diff(want, contents(t, from)); d != "" {
		t.Errorf("the dry run has changed the source:\n%.2000s", d)
	}
	run(t, from, to)
	if d := cmp.Diff(contents(t, from), contents(t, to)); d != "" {
		t.Errorf("in PostgreSQL (-want +got):\n%.2000s", d)
	}
}

// refused checks that a move is refused in one sentence with these words.
func refused(t *testing.T, o Options, words ...string) {
	t.Helper()
	_, err := Run(t.Context(), o)
	if err == nil {
		t.Fatal("it was not refused")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "passw0rd") || len(err.Error()) > 600 {
		t.Errorf("this is not one sentence without a password: %q", err)
	}
}

// TestRefusals: each fault of the source or the target is said in one sentence, and nothing is made or changed.
func TestRefusals(t *testing.T) {
	home := filled(t)
	full := server(t, home.Dir)
	run(t, home, full)
	empty := server(t, home.Dir)
	other := store.Options{Dir: t.TempDir()} // another installation
	s, err := store.Open(t.Context(), other)
	must(t, err)
	must(t, s.Close())
	newer := made(t)
	db := connect(t, newer)
	_, err = db.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)`)
	must(t, errors.Join(err, db.Close()))
	newerServer := server(t, other.Dir)
	run(t, other, newerServer)
	query(t, newerServer, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)`)
	running := server(t, t.TempDir())
	s, err = store.Open(t.Context(), running)
	must(t, err)
	defer s.Close()
	at := func(url string) store.Options { return store.Options{URL: url, Password: pgserver.Password} }
	nothing := store.Options{Dir: t.TempDir()}
	wrongKey := back(t, home.Dir)
	must(t, os.Remove(filepath.Join(wrongKey.Dir, store.InstallationFile)))
	key := store.EncodeKey(bytes.Repeat([]byte{1}, 32))
	must(t, os.WriteFile(filepath.Join(wrongKey.Dir, store.KeyFile), key, 0o600))
	stranger := back(t, other.Dir)
	must(t, os.Remove(filepath.Join(stranger.Dir, store.KeyFile)))
	journal := back(t, home.Dir)
	must(t, os.WriteFile(filepath.Join(journal.Dir, "ingot.db-wal"), []byte("x"), 0o600))
	damaged := made(t)
	f, err := os.OpenFile(filepath.Join(damaged.Dir, store.DatabaseFile), os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, 8192), 8192)
	must(t, errors.Join(err, f.Close()))
	for _, c := range []struct {
		name  string
		o     Options
		words []string
	}{
		{"two of SQLite", Options{From: home, To: nothing}, []string{"one of the two", "ingotd backup"}},
		{"two of PostgreSQL", Options{From: full, To: empty}, []string{"one of the two", "pg_dump"}},
		{"a full target", Options{From: home, To: full}, []string{"is not empty", "PostgreSQL at", "without tables"}},
		{"a directory that has a database", Options{From: full, To: home}, []string{"ingot.db is there already"}},
		{"a journal", Options{From: full, To: journal}, []string{"ingot.db-wal is there already"}},
		{"no database", Options{From: nothing, To: empty}, []string{"there is no database in"}},
		{"an empty source", Options{From: empty, To: nothing}, []string{"has no tables", "nothing to move"}},
		{"a newer schema in SQLite", Options{From: newer, To: empty}, []string{"has schema 99, newer than"}},
		{"a newer schema in PostgreSQL", Options{From: newerServer, To: nothing},
			[]string{"has schema 99, newer than"}},
		{"another key at the target", Options{From: full, To: wrongKey}, []string{"the key of", "does not fit"}},
		{"another installation's directory", Options{From: full, To: stranger},
			[]string{"is of another installation"}},
		{"damage", Options{From: damaged, To: empty}, []string{"ingot.db is damaged"}},
		{"another scheme", Options{From: home, To: at("mysql://u:passw0rd@h/d")}, []string{"postgres://USER@HOST"}},
		{"a password inside", Options{From: home, To: at("postgres://u:passw0rd@h/d")}, []string{"holds a password"}},
		{"a wrong password", Options{From: home, To: store.Options{URL: empty.URL, Password: "x-passw0rd"}},
			[]string{"refuses user ingot"}},
		{"no server", Options{From: home, To: at("postgres://u@127.0.0.1:1/d?sslmode=disable")},
			[]string{"can't be reached"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, dry := range []bool{true, false} {
				c.o.DryRun = dry
				refused(t, c.o, c.words...)
			}
		})
	}
	// these wait for three seconds
	refused(t, Options{From: running, To: nothing, DryRun: true}, "another ingotd works with", "stop it first")
	refused(t, Options{From: home, To: running}, "another ingotd works with", "stop it first")
	left(t, nothing.Dir)
	if got := query(t, empty, `SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'`); got != "0" {
		t.Errorf("the refused moves have left %s tables", got)
	}
}

// TestDifference: a table or column that one database alone has, or as another kind, is named.
func TestDifference(t *testing.T) {
	id := column{"uuid", text, false}
	a := []table{{"nodes", []column{id, {"seq", number, true}}}, {"ports", []column{id}}}
	if d := difference(a, a); d != "" {
		t.Error(d)
	}
	for want, b := range map[string][]table{
		`column "seq" of table "nodes", a number`: {{"nodes", []column{id}}, a[1]},
		`column "uuid" of table "ports", a text`:  a[:1],
		`column "uuid" of table "ports", bytes`:   {a[0], {"ports", []column{id, {"uuid", blob, false}}}},
	} {
		if d, e := difference(a, b), difference(b, a); !strings.HasPrefix(d, want) || !strings.HasPrefix(e, want) {
			t.Errorf("%q and %q, want %q", d, e, want)
		}
	}
}

// TestSorted: tables come after those that they refer to; a circle ends.
func TestSorted(t *testing.T) {
	all := []table{{name: "a"}, {name: "b"}, {name: "c"}, {name: "d"}, {name: "e"}}
	var got []string
	for _, x := range sorted(all, map[string][]string{"a": {"b", "a"}, "b": {"e"}, "c": {"d"}, "d": {"c"}}) {
		got = append(got, x.name)
	}
	if want := "e b a c d"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// TestSum: a digest does not depend on the order of rows, and on all else.
func TestSum(t *testing.T) {
	of := func(rows ...[]any) (s sum) {
		for _, r := range rows {
			s.add(r)
		}
		return s
	}
	a, b := []any{int64(1), "x", []byte("y"), nil}, []any{int64(2), "", []byte{}, nil}
	if of(a, b) != of(b, a) {
		t.Error("the order counts")
	}
	seen := map[sum]int{}
	for i, rows := range [][][]any{{}, {a}, {b}, {a, a}, {a, b}, {{int64(1), "x", "y", nil}},
		{{int64(1), "xy", []byte(""), nil}}, {{int64(1), "x", []byte("y"), ""}}, {{nil, "x", []byte("y"), nil}}} {
		if k, ok := seen[of(rows...)]; ok {
			t.Errorf("%v has the digest of number %d", rows, k)
		}
		seen[of(rows...)] = i
	}
}
