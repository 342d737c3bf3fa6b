package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/postgres"
)

// own are the tables that belong to a database and not to the data in it: they are not copied. The schema's version is
// written by makeSchema; the others say which ingotd works with it.
var own = []string{goose.DefaultTablename, "holder", "conductors"}

// side is one of the two databases, in a transaction.
type side struct {
	name   string
	tx     *sql.Tx
	db     *sql.DB
	server *postgres.Server // nil: SQLite
	hold   *postgres.Hold   // nil: SQLite

	dir, folder string // of SQLite's new file: where it is to be, and the folder that it is made in
}

// folderPrefix begins the names of the folders that SQLite's files are made in.
const folderPrefix = ".migrate-"

// open begins a transaction in a database.
func open(ctx context.Context, o store.Options, read bool,
	file func(path string) (*sql.DB, error)) (_ *side, err error) {
	s := &side{dir: o.Dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	var how *sql.TxOptions
	if o.URL == "" {
		path := filepath.Join(o.Dir, store.DatabaseFile)
		s.name = "the database " + path
		if s.db, err = file(path); err != nil {
			return nil, err
		}
	} else {
		if s.server, err = postgres.Parse(o.URL, o.Password); err != nil {
			return nil, err
		}
		s.name = s.server.String()
		if s.hold, err = s.server.Hold(ctx, postgres.Options{}); err != nil {
			return nil, err
		}
		s.db = s.server.Open(0, nil, nil)
		if read {
			how = &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}
		}
	}
	s.db.SetMaxOpenConns(1)
	if s.tx, err = s.db.BeginTx(ctx, how); err == nil && s.server != nil {
		// it waits for the other one, and for a long time when that is read back
		_, err = s.tx.ExecContext(ctx, `SET LOCAL idle_in_transaction_session_timeout = 0`)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", s.name, err)
	}
	return s, nil
}

// openSource opens a database at the newest schema. An older one is migrated first, by opening the store in it.
func openSource(ctx context.Context, o store.Options, dryRun bool) (*side, error) {
	if o.URL == "" {
		path := filepath.Join(o.Dir, store.DatabaseFile)
		if info, err := os.Stat(path); err != nil || info.Size() == 0 {
			return nil, fmt.Errorf("there is no database in %s: name the conductor's data directory", o.Dir)
		}
		if err := store.Check(ctx, o.Dir, o.Key); err != nil {
			return nil, err
		}
	}
	for again := false; ; again = true {
		s, err := open(ctx, o, true, store.OpenReading)
		if err != nil {
			return nil, err
		}
		have, want, err := s.schemas(ctx)
		switch {
		case err != nil:
		case have == 0:
			err = fmt.Errorf("%s has no tables: there is nothing to move", s.name)
		case have > want:
			err = fmt.Errorf("%s has schema %d, newer than %d of this program: use the newer program", s.name, have, want)
		case have == want:
			return s, nil
		case dryRun || again:
			err = fmt.Errorf(
				"%s has schema %d, older than %d of this program: without --dry-run it is migrated first, as by a start of this ingotd", s.name, have, want)
		}
		if err := errors.Join(err, s.close()); err != nil {
			return nil, err
		}
		st, err := store.Open(ctx, o)
		if err != nil {
			return nil, err
		}
		if err := st.Close(); err != nil {
			return nil, err
		}
	}
}

// openTarget opens a database without tables, or makes that.
func openTarget(ctx context.Context, o store.Options, dryRun bool) (*side, error) {
	var folder string
	if o.URL == "" {
		for _, suffix := range []string{"", "-wal", "-shm"} {
			path := filepath.Join(o.Dir, store.DatabaseFile+suffix)
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("%s is there already: move it away, or name another directory", path)
			}
		}
	}
	s, err := open(ctx, o, false, func(string) (*sql.DB, error) {
		if dryRun {
			return store.OpenMade(":memory:")
		}
		var err error
		folder, err = makeFolder(o.Dir)
		if err != nil {
			return nil, err
		}
		return store.OpenMade(filepath.Join(folder, store.DatabaseFile))
	})
	if err != nil {
		if folder != "" {
			err = errors.Join(err, os.RemoveAll(folder))
		}
		return nil, err
	}
	s.folder = folder
	there, err := s.all(ctx)
	if err == nil && len(there) > 0 {
		err = fmt.Errorf(
			"%s is not empty, it has the table %q: name a database without tables, or remove it and make it again", s.name,
			there[0].name)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// makeFolder makes a folder for SQLite's new file, which only this user can read, and removes those of earlier moves.
func makeFolder(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make data directory: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, folderPrefix+"*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		return "", fmt.Errorf("remove what an earlier move has left: %w", err)
	}
	folder, err := os.MkdirTemp(dir, folderPrefix)
	if err != nil {
		return "", fmt.Errorf("make a folder in %s: %w", dir, err)
	}
	f, err := os.OpenFile(filepath.Join(folder, store.DatabaseFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("make a database in %s: %w", dir, err), os.RemoveAll(folder))
	}
	return folder, nil
}

// finish makes what was written permanent.
func (s *side) finish(ctx context.Context) error {
	if s.server == nil {
		var lost sql.NullString
		if err := s.tx.QueryRowContext(ctx, `SELECT MIN("table") FROM pragma_foreign_key_check`).Scan(&lost); err != nil {
			return fmt.Errorf("look for what refers to nothing: %w", err)
		}
		if lost.Valid {
			return fmt.Errorf("rows of table %q refer to nothing: nothing was kept, please report this", lost.String)
		}
	}
	tx := s.tx
	s.tx = nil
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("the end of the move was not confirmed by %s: look with --dry-run whether the data are there: %w",
			s.name, err)
	}
	if s.server != nil {
		return nil
	}
	db := s.db
	s.db = nil
	if err := db.Close(); err != nil {
		return fmt.Errorf("close the new database: %w", err)
	}
	made := filepath.Join(s.folder, store.DatabaseFile)
	f, err := os.OpenFile(made, os.O_RDWR, 0)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err == nil {
		err = os.Rename(made, filepath.Join(s.dir, store.DatabaseFile))
	}
	if err == nil {
		err = keyfile.SyncDir(s.dir)
	}
	if err != nil {
		return fmt.Errorf("put the database in place: %w", err)
	}
	return nil
}

// close gives the database up. What was not finished is not there any more.
//
//nolint:contextcheck the lock of a server is given up whatever has ended
func (s *side) close() error {
	var errs []error
	if s.tx != nil {
		if err := s.tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
			errs = append(errs, err)
		}
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.hold != nil {
		errs = append(errs, s.hold.Close(context.Background()))
	}
	if s.folder != "" {
		errs = append(errs, os.RemoveAll(s.folder))
	}
	return errors.Join(errs...)
}

// version is the number of a migration's file.
func version(name string) (int64, error) {
	n, _, _ := strings.Cut(name, "_")
	return strconv.ParseInt(n, 10, 64)
}

// migrations are the files that make the newest schema, in order.
func (s *side) migrations() (fs.FS, []string, error) {
	files, err := store.Schema(s.server != nil)
	if err != nil {
		return nil, nil, fmt.Errorf("read migrations: %w", err)
	}
	names, err := fs.Glob(files, "*.sql")
	slices.Sort(names)
	return files, names, err
}

// schemas returns the schema that a database has, 0 if it has none, and the newest that this program knows.
func (s *side) schemas(ctx context.Context) (have, want int64, err error) {
	_, names, err := s.migrations()
	if err == nil {
		want, err = version(names[len(names)-1])
	}
	if err != nil {
		return 0, 0, err
	}
	there, err := s.all(ctx)
	if err != nil || !slices.ContainsFunc(there, func(t table) bool { return t.name == goose.DefaultTablename }) {
		return 0, want, err
	}
	if err := s.tx.QueryRowContext(ctx, `SELECT MAX(version_id) FROM `+goose.DefaultTablename).Scan(&have); err != nil {
		return 0, 0, fmt.Errorf("read version of %s: %w", s.name, err)
	}
	return have, want, nil
}

// makeSchema makes the newest schema in the transaction, which goose does in one for each migration.
func (s *side) makeSchema(ctx context.Context) error {
	files, names, err := s.migrations()
	if err != nil {
		return err
	}
	dialect := goose.DialectSQLite3
	if s.server != nil {
		dialect = goose.DialectPostgres
	}
	versions, err := database.NewStore(dialect, goose.DefaultTablename)
	if err == nil {
		err = versions.CreateVersionTable(ctx, s.tx)
	}
	if err == nil {
		err = versions.Insert(ctx, s.tx, database.InsertRequest{Version: 0})
	}
	for _, name := range names {
		if err != nil {
			break
		}
		err = s.run(ctx, files, name, versions)
	}
	if err != nil {
		return fmt.Errorf("make tables in %s: %w", s.name, err)
	}
	made, err := s.tables(ctx)
	if err != nil {
		return err
	}
	for _, t := range made { // rows that migrations have written are copied like all others
		if _, err := s.tx.ExecContext(ctx, `DELETE FROM `+quoted(t.name)); err != nil {
			return fmt.Errorf("empty table %s: %w", t.name, err)
		}
	}
	return nil
}

// run runs one migration.
func (s *side) run(ctx context.Context, files fs.FS, name string, versions database.Store) error {
	text, err := fs.ReadFile(files, name)
	if err != nil {
		return err
	}
	up, _, _ := strings.Cut(string(text), "-- +goose Down")
	if _, err := s.tx.ExecContext(ctx, up); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	v, err := version(name)
	if err != nil {
		return err
	}
	return versions.Insert(ctx, s.tx, database.InsertRequest{Version: v})
}
