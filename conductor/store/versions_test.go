package store

import (
	"bytes"
	"database/sql"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/pressly/goose/v3"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store/postgres"
	"github.com/ingot-metal/ingot/conductor/store/seal"
)

// old is a database of an earlier version with rows in its tables.
type old struct {
	*testing.T
	db     *sql.DB
	server bool
	sealer *seal.Sealer
	ids    []string
}

// column of a table. Its values are texts or numbers; those of parents are there.
type column struct{ name, kind string }

func (o *old) columns(table string) []column {
	o.Helper()
	query := `SELECT name, type FROM pragma_table_info('` + table + `')`
	if o.server {
		query = `SELECT column_name, data_type FROM information_schema.columns
			WHERE table_schema = 'public' AND table_name = '` + table + `'`
	}
	both := into(func(c *column) []any { return []any{&c.name, &c.kind} })
	all, err := list(o.Context(), o.db, "columns", both, query)
	if err != nil {
		o.Fatal(err)
	}
	return all
}

// tables are those with what a site has recorded, in an order in which they can be filled.
func (o *old) tables() []string {
	o.Helper()
	query := `SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'`
	if o.server {
		query = `SELECT tablename FROM pg_tables WHERE schemaname = 'public'`
	}
	all, err := list(o.Context(), o.db, "tables", into(text), query)
	if err != nil {
		o.Fatal(err)
	}
	of := []string{"goose_db_version", "key_check", "installation", "pending", "holder", "conductors"} // of the program
	all = slices.DeleteFunc(all, func(name string) bool { return slices.Contains(of, name) })
	first := func(name string) int { return slices.Index([]string{"resources", "nodes"}, name) }
	slices.SortFunc(all, func(a, b string) int { return first(b) - first(a) })
	return all
}

// fill puts a row for each node into a table.
func (o *old) fill(table string) {
	o.Helper()
	for i, id := range o.ids {
		if i > 0 && table == "shared" { // which has one
			return
		}
		var names []string
		var values []any
		for _, c := range o.columns(table) {
			if o.server && c.name == "seq" { // which the server gives
				continue
			}
			v := any(fmt.Sprintf("%s %d", c.name, i))
			number := strings.Contains(strings.ToUpper(c.kind), "INT")
			switch {
			case table == "nodes" && c.name == "sealed":
				v = o.sealer.Seal("node "+id, []byte("{}"))
			case table == "config_drives" && c.name == "sealed":
				v = o.sealer.Seal("config drive "+id, []byte(`"drive"`))
			case number && slices.Contains([]string{"id", "seq"}, c.name):
				v = i + 1
			case number:
				v = i
			case c.name == "uuid", c.name == "node_uuid":
				v = id
			case c.name == "doc":
				v = []byte("{}")
			case c.name == "kind":
				v = "a kind"
			}
			names, values = append(names, c.name), append(values, v)
		}
		if _, err := o.db.ExecContext(o.Context(), `INSERT INTO `+table+` (`+strings.Join(names, ", ")+`) VALUES (?`+
			strings.Repeat(", ?", len(names)-1)+`)`, values...); err != nil {
			o.Fatalf("fill %s: %v", table, err)
		}
	}
}

// rows are the values of these columns of a table, as texts.
func (o *old) rows(table string, columns []column) []string {
	o.Helper()
	var parts []string
	for _, c := range columns {
		parts = append(parts, `'`+c.name+`=' || COALESCE(CAST(`+c.name+` AS TEXT), 'none')`)
	}
	query := `SELECT ` + strings.Join(parts, ` || ', ' || `) + ` FROM ` + table
	all, err := list(o.Context(), o.db, "rows", into(text), query)
	if err != nil {
		o.Fatalf("rows of %s: %v", table, err)
	}
	slices.Sort(all)
	return all
}

// TestFromEveryVersion: a database of each earlier version, with rows in all its tables, is migrated to the newest one
// by a start of this program, with PostgreSQL by one of three that start at the same time; each row is kept, and the
// store can be worked with.
func TestFromEveryVersion(t *testing.T) {
	Engines(t, func(t *testing.T, o Options) {
		newest := int64(0)
		for v := int64(1); newest == 0 || v < newest; v++ {
			t.Run(fmt.Sprint("version ", v), func(t *testing.T) {
				if o.URL != "" {
					o = ServerOptions(t)
				}
				o.Dir = t.TempDir()
				newest = fromVersion(t, o, v)
			})
			if t.Failed() {
				return
			}
		}
	})
}

// fromVersion tests a version, and returns the newest.
func fromVersion(t *testing.T, o Options, v int64) (newest int64) {
	ctx := t.Context()
	o.Key = bytes.Repeat([]byte{7}, 32)
	was := &old{T: t, server: o.URL != "", ids: []string{uuid.NewString(), uuid.NewString()}}
	var err error
	if was.sealer, err = seal.New(o.Key); err != nil {
		t.Fatal(err)
	}
	dialect, files, dir := goose.DialectSQLite3, fs.FS(migrations), "migrations"
	if was.server {
		dialect, files, dir = goose.DialectPostgres, serverMigrations, "migrations/postgres"
		server, err := postgres.Parse(o.URL, o.Password)
		if err != nil {
			t.Fatal(err)
		}
		was.db = server.Open(statementTime, nil, nil)
	} else if was.db, err = sql.Open("sqlite", dsn(filepath.Join(o.Dir, DatabaseFile), true)); err != nil {
		t.Fatal(err)
	}
	defer was.db.Close()
	sub, err := fs.Sub(files, dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(dialect, was.db, sub)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(ctx, v); err != nil {
		t.Fatal(err)
	}
	if _, newest, err = p.GetVersions(ctx); err != nil || newest <= v {
		t.Fatalf("the newest version is %d, %v", newest, err)
	}
	tables := was.tables()
	columns, want := map[string][]column{}, map[string][]string{}
	for _, table := range tables {
		was.fill(table)
		columns[table] = was.columns(table)
		want[table] = was.rows(table, columns[table])
	}

	stores := make([]*Store, 1)
	if was.server {
		stores = make([]*Store, 3)
	}
	var starts sync.WaitGroup
	for i := range stores {
		o := o
		if was.server {
			o.Name = fmt.Sprint("c", i)
		}
		if i > 0 {
			o.Dir = t.TempDir()
		}
		starts.Go(func() {
			var err error
			if stores[i], err = Open(ctx, o); err != nil {
				t.Error(err)
			}
		})
	}
	starts.Wait()
	for _, s := range stores {
		if s != nil {
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if t.Failed() {
		return newest
	}
	for _, table := range tables {
		if got := was.rows(table, columns[table]); !slices.Equal(got, want[table]) {
			t.Errorf("table %s has %q, and had %q", table, got, want[table])
		}
	}
	done, err := list(ctx, was.db, "versions", into(text),
		`SELECT CAST(version_id AS TEXT) FROM goose_db_version WHERE version_id > 0 ORDER BY version_id`)
	if err != nil || int64(len(done)) != newest {
		t.Errorf("the migrations that were made are %v, %v", done, err)
	}
	for _, s := range stores {
		for _, id := range was.ids {
			var drive any
			n, err := s.UpdateNode(ctx, id, func(n *node.Node) error {
				n.Description += "x"
				drive = n.InstanceInfo["configdrive"]
				return nil
			})
			if err != nil || n.UUID != id || drive != "drive" {
				t.Errorf("a change of an old node: %+v, %v, its config drive is %v", n, err, drive)
			}
		}
		if err := s.CreateNode(ctx, &node.Node{Driver: "x"}); err != nil {
			t.Error(err)
		}
		if l, err := s.Log(ctx, node.LogQuery{Limit: 10}); err != nil || len(l) < len(was.ids) {
			t.Errorf("the log has %d lines, %v", len(l), err)
		}
	}
	return newest
}
