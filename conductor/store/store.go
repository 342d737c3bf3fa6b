// Package store keeps nodes, ports, their history and everything else that must survive, in SQLite or PostgreSQL.
//
// A call that returns nil has its change on disk: the journal is synchronised before (WAL, synchronous=FULL). Writers
// queue for one connection, and those that wait together share one transaction and one synchronisation, each in a
// savepoint of its own. Readers have connections of their own and never wait. Times are UTC and kept to the
// microsecond.
//
// What a thief of the files must not read (driver_info, instance_info, config drives, the work in progress with its
// arguments) is sealed with AES-256-GCM; the key lies beside the data or comes from the caller. Seals are bound to
// their node and purpose.
//
// SQL here keeps to what SQLite and PostgreSQL have in common (ON CONFLICT, no functions of one of them), with "?" for
// parameters; dialect has the rest. On PostgreSQL too there is one writer: package postgres keeps others away.
package store

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store/postgres"
	"github.com/ingot-metal/ingot/conductor/store/prepared"
	"github.com/ingot-metal/ingot/conductor/store/seal"

	"modernc.org/sqlite"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Options says where the data is.
type Options struct {
	Dir string // made if it is missing, readable by its owner only
	// URL is the address of a PostgreSQL database, postgres://USER@HOST:PORT/DATABASE; "": SQLite, in a file in Dir.
	// Password is for it; "": what the environment says (PGPASSWORD, PGPASSFILE).
	URL, Password string
	Key           []byte // 32 bytes; nil: the file "key" in Dir, made at the first start
	Log           *slog.Logger
	Now           func() time.Time // nil: time.Now
	// Keep says how much of the past is kept.
	Keep Keep
	// CacheNodes is how many nodes are kept decoded in memory at most. Zero: 16384; negative: none.
	CacheNodes int
	// Alone promises that no other process and no other Store writes to the data while the store is open: nodes that
	// are kept in memory are then returned without asking the database, and the journal (16 MiB) is made in its full
	// size.
	Alone bool
	// Meter, unless nil, counts what the store does. It must be quick, and must not use the store.
	Meter meter
	// Full, unless nil, is called when the disk was too full for a write. It must not use the store.
	Full func()
	// Ephemeral takes an absent or empty database for that of a new start, always. Without it that is so only in a
	// directory where nothing shows that there was one before.
	Ephemeral bool
	// Name is that of this conductor, and lets several share a PostgreSQL database, each with a name of its own; "":
	// this is the only one.
	Name string
	// Lease is how long a conductor may act after its last sign of life; zero: 10 s. All must have the same.
	Lease time.Duration
	quiet bool // for tests: no conductor is woken
	// NewInstallation makes a new database in place of one that is lost or can't be used, which is moved aside; one
	// that can be used is refused.
	NewInstallation bool
}

// Store is the conductor's memory. Safe for concurrent use.
type Store struct {
	w, r   *sql.DB
	cache  *cache
	sealer *seal.Sealer
	log    *slog.Logger
	now    func() time.Time
	kept   Keep
	room   room
	meter  meter

	fresh []written // nodes of the transaction under way; the leader's alone

	notes     notes
	lastEvent atomic.Int64
	hook      atomic.Pointer[func([]node.Event)]
	tail      tail

	queue  queue
	stop   chan struct{}
	closed sync.Once

	d      *dialect
	server *postgres.Server // nil: SQLite
	hold   *postgres.Hold   // nil: SQLite
	// outcomeTime is how long the fate of a change is looked for whose COMMIT was not answered.
	outcomeTime time.Duration

	fault     fault
	checking  sync.WaitGroup // of the database, beside the work
	stopCheck context.CancelFunc
}

// ErrNotFound means that the node, port, lease or inventory does not exist.
var ErrNotFound = node.ErrNotFound

// ErrClosed means that the store has been closed.
var ErrClosed = errors.New("the store is closed")

// DuplicateError says that a value that must be unique is taken.
type DuplicateError struct {
	Field, Value string
	NodeUUID     string // the owner; empty when that is a resource of Kind
	Kind         string // of the resource: "chassis", "portgroup", ...; empty for nodes and ports
}

func (e *DuplicateError) Error() string {
	if e.Kind != "" {
		return fmt.Sprintf("%s %q is already used by another %s", e.Field, e.Value, e.Kind)
	}
	return fmt.Sprintf("%s %q is already used by node %s", e.Field, e.Value, e.NodeUUID)
}

// ConflictError says that a node was changed by another writer since it was read.
type ConflictError struct {
	NodeUUID  string
	Have, Had uint64 // version in the store, version of the caller
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("node %s was changed meanwhile (version %d, not %d): read it again", e.NodeUUID, e.Have, e.Had)
}

// Open opens the store in o.Dir, making or migrating it as needed. A database that is damaged, lost, newer or of
// another installation returns an *UnusableError.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	if o.URL != "" {
		return openServer(ctx, o)
	}
	path := filepath.Join(o.Dir, DatabaseFile)
	if err := o.readyFile(ctx, path); err != nil {
		return nil, err
	}
	s := newStore(o, &sqliteDialect, path)
	var err error
	if s.w, err = openDB(dsn(path, true), s.fault.notice, s.meter.Statement); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	s.w.SetMaxOpenConns(1)
	if s.r, err = openDB(dsn(path, false), s.fault.notice, s.meter.Statement); err != nil {
		return nil, errors.Join(fmt.Errorf("open database: %w", err), s.w.Close())
	}
	s.r.SetMaxOpenConns(4) // each keeps pages of its own, and a read takes a fraction of a millisecond
	s.r.SetMaxIdleConns(4)
	err = s.prepare(ctx, o, path)
	if err == nil {
		err = s.ready(ctx)
	}
	if err != nil {
		if pageError(err) {
			err = damaged(path, err)
		}
		s.stopCheck()
		s.checking.Wait()
		return nil, errors.Join(err, s.r.Close(), s.w.Close())
	}
	if o.Alone {
		if err := reserveJournal(path); err != nil { // it is slower without
			s.log.Warn("there is no room for the database's journal", "err", err)
		}
	}
	return s, nil
}

// newStore makes a store without its connections. database names it in logs.
func newStore(o Options, d *dialect, database string) *Store {
	log := cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	now := o.Now
	if now == nil {
		now = time.Now
	}
	shared := o.URL != "" && o.Name != ""
	s := &Store{log: log, cache: newCache(o.CacheNodes, o.Alone && !shared), d: d,
		now: func() time.Time { return now().UTC().Truncate(time.Microsecond) }, stop: make(chan struct{}),
		fault: fault{found: make(chan struct{}), log: log, file: database, full: o.Full, d: d,
			meter: meterOf(o)}, kept: o.Keep, meter: meterOf(o),
		room: room{marks: limit.KeptMarks, allocations: limit.KeptAllocations, events: limit.KeptEvents,
			every: 1024, tooOld: 16 << 10, tooMany: 256 << 10},
		stopCheck: func() {}, tail: tail{shared: shared, quiet: o.quiet, name: o.Name, wake: make(chan struct{}, 1)}}
	s.queue.idle.L = &s.queue.mu
	return s
}

// ready reads what the store keeps in memory, when the schema is there.
func (s *Store) ready(ctx context.Context) error {
	if err := s.openEvents(ctx); err != nil {
		return err
	}
	if err := s.traitRunbooks(ctx); err != nil {
		return err
	}
	s.fault.serving.Store(true)
	if s.tail.shared {
		s.checking.Go(s.follow)
		s.checking.Go(s.sweeping)
	}
	return nil
}

// readyFile makes sure that SQLite can open the file at path, as the database of this directory.
func (o Options) readyFile(ctx context.Context, path string) error {
	if o.NewInstallation {
		if err := o.beginAnew(ctx); err != nil {
			return err
		}
	}
	if err := o.expectData(path); err != nil {
		return err
	}
	if !hasData(path) { // the journal of a lost database is no part of a new one
		if err := errors.Join(removed(path+"-wal"), removed(path+"-shm")); err != nil {
			return err
		}
	}
	if o.Alone {
		switch lost, err := lostBehindDamage(path); {
		case err != nil:
			return err
		case lost > 0 && o.Log != nil:
			o.Log.Error("the database's journal is damaged: changes at its end are lost. If it was no loss of power, look at the disk, and compare with the last backup and with the machines",
				"file", path+"-wal", "changes", lost)
		}
	}
	// The file is made here so that other users can never read it, whatever the umask; SQLite gives its WAL the same
	// mode.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	return nil
}

func removed(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove what a lost database has left: %w", err)
	}
	return nil
}

// prepare checks the database in the file at path, migrates its schema and makes sure that it belongs to this
// installation and its key.
func (s *Store) prepare(ctx context.Context, o Options, path string) error {
	if err := s.check(ctx, path); err != nil {
		return err
	}
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, s.w, dir)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	have, want, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read version of the database in %s: %w", o.Dir, err)
	}
	if here, err := readInstallation(o.Dir); err != nil || have == 0 && here != nil && !o.Ephemeral {
		if err != nil {
			return err
		}
		return emptied(path, o.Dir)
	}
	if have > want {
		return newer(path, have, want)
	}
	if have < want {
		if err := s.migrate(ctx, p); err != nil {
			return fmt.Errorf("migrate the database in %s: %w", o.Dir, err)
		}
	}
	return s.identify(ctx, o, path)
}

// identify makes sure that the database belongs to this installation and its key. path names it.
func (s *Store) identify(ctx context.Context, o Options, path string) error {
	var check []byte
	err := s.w.QueryRowContext(ctx, `SELECT sealed FROM key_check WHERE id = 1`).Scan(&check)
	fresh := errors.Is(err, sql.ErrNoRows)
	if err != nil && !fresh {
		return fmt.Errorf("read key check: %w", err)
	}
	key := o.Key
	if key == nil {
		if fresh {
			key, err = seal.KeyFile(filepath.Join(o.Dir, KeyFile), true)
		} else {
			key, err = ownKey(o.Dir, check)
		}
		if err != nil {
			return o.unusable(unreadable(path, err, fresh))
		}
	}
	if s.sealer, err = seal.New(key); err != nil {
		return err
	}
	if fresh {
		sealed := s.sealer.Seal(checkPurpose, []byte("ingot"))
		if _, err := s.w.ExecContext(ctx, `INSERT INTO key_check (id, sealed) VALUES (1, ?)`, sealed); err != nil {
			return fmt.Errorf("write key check: %w", err)
		}
	} else if _, err := s.sealer.Open(checkPurpose, check); err != nil {
		return o.unusable(otherKey(path))
	}
	return o.unusable(s.belong(ctx, o, path, fresh))
}

// migrate brings the schema up to date. Foreign keys are off meanwhile: a table is changed by making another one in its
// place, and dropping the old one would take along what refers to it.
func (s *Store) migrate(ctx context.Context, p *goose.Provider) error {
	if _, err := s.w.ExecContext(ctx, `PRAGMA foreign_keys = 0`); err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		return err
	}
	lost, err := list(ctx, s.w, "look for what refers to nothing", into(text),
		`SELECT "table" || ' (to ' || parent || ')' FROM pragma_foreign_key_check`)
	if err != nil {
		return err
	}
	if len(lost) > 0 {
		return fmt.Errorf("rows of %s refer to nothing", strings.Join(slices.Compact(lost), ", of "))
	}
	if _, err := s.w.ExecContext(ctx, `PRAGMA foreign_keys = 1`); err != nil {
		return err
	}
	var on bool
	if err := s.w.QueryRowContext(ctx, `PRAGMA foreign_keys`).Scan(&on); err != nil || !on {
		return errors.Join(errors.New("foreign keys can't be switched on again"), err)
	}
	return nil
}

// openDB opens a database with connections that keep their prepared statements. failed, unless nil, is called with
// every error, and ran, unless nil, after every statement.
func openDB(dsn string, failed func(error), ran func(string, time.Duration)) (*sql.DB, error) {
	c, err := sqlite.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(prepared.Connector{Connector: c, Failed: failed, Ran: ran}), nil
}

func dsn(path string, write bool) string {
	q := url.Values{"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)"}}
	if write {
		q.Set("_txlock", "immediate")
		q.Add("_pragma", fmt.Sprintf("wal_autocheckpoint(%d)", journalPages))
	} else {
		q.Add("_pragma", "query_only(1)")
		q.Add("_pragma", "cache_size(-1000)") // KiB of pages, for each of them: half the default
	}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String()
}

// Close waits for the writes under way and closes the database.
//
//nolint:contextcheck the lock of a server is given up whatever has ended
func (s *Store) Close() error {
	var err error
	s.closed.Do(func() {
		close(s.stop)
		s.queue.close()
		s.stopCheck()
		s.checking.Wait()
		err = errors.Join(s.r.Close(), s.w.Close())
		if s.hold != nil {
			err = errors.Join(err, s.hold.Close(context.Background()))
		}
	})
	return err
}

// micros converts a time to the tables' form.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
