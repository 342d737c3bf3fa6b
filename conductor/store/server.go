package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/ingot-metal/ingot/conductor/store/postgres"
)

//go:embed migrations/postgres/*.sql
var serverMigrations embed.FS

// Times for PostgreSQL. A transaction takes a fraction of a second; of a server that does not answer, it is given up.
const (
	statementTime   = 30 * time.Second
	transactionTime = time.Minute
	outcomeTime     = 30 * time.Second
	serverReaders   = 8
)

// openServer is Open for PostgreSQL.
func openServer(ctx context.Context, o Options) (*Store, error) {
	if o.NewInstallation {
		return nil, errors.New("--new-installation is for SQLite: name an empty database in store.url instead")
	}
	server, err := postgres.Parse(o.URL, o.Password)
	if err != nil {
		return nil, err
	}
	s := newStore(o, &postgresDialect, server.String())
	s.server, s.outcomeTime = server, outcomeTime
	if s.hold, err = server.Hold(ctx, postgres.Options{Name: o.Name, Lease: o.Lease, Log: s.log,
		Taken: s.fault.lose, Heard: s.heard}); err != nil {
		return nil, err
	}
	s.w = server.Open(statementTime, s.fault.notice, s.meter.Statement)
	s.r = server.OpenReaders(statementTime, s.fault.notice, s.meter.Statement)
	s.w.SetMaxOpenConns(1)
	s.r.SetMaxOpenConns(serverReaders)
	s.r.SetMaxIdleConns(serverReaders)
	if err := s.prepareServer(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// prepareServer migrates the schema, while no other ingotd does, and begins this one's life as a writer.
func (s *Store) prepareServer(ctx context.Context, o Options) error {
	dir, err := fs.Sub(serverMigrations, "migrations/postgres")
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	db := s.server.Open(0, nil, nil) // a migration takes as long as it takes
	p, err := goose.NewProvider(goose.DialectPostgres, db, dir)
	if err != nil {
		return errors.Join(fmt.Errorf("read migrations: %w", err), db.Close())
	}
	err = s.hold.Migrating(ctx, func() error {
		if err := s.migrateServer(ctx, o, p); err != nil {
			return err
		}
		return s.identify(ctx, o, s.server.String())
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := s.hold.Join(ctx); err != nil {
		return err
	}
	return s.ready(ctx)
}

func (s *Store) migrateServer(ctx context.Context, o Options, p *goose.Provider) error {
	name := s.server.String()
	have, want, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read version of the database %s: %w", name, err)
	}
	here, err := readInstallation(o.Dir)
	switch {
	case err != nil:
		return err
	case have == 0 && here != nil && !o.Ephemeral:
		return o.unusable(emptied(name, o.Dir))
	case have > want:
		return o.unusable(newer(name, have, want))
	case have < want:
		if _, err := p.Up(ctx); err != nil {
			return fmt.Errorf("migrate the database %s: %w", name, err)
		}
	}
	return nil
}

// bounded is the context of a transaction: none of its callers ends it, but a server that does not answer does.
func (s *Store) bounded() (context.Context, context.CancelFunc) {
	if s.hold == nil {
		return context.Background(), func() {}
	}
	return context.WithTimeout(context.Background(), transactionTime)
}

// begin begins the transaction of a group, and returns its ID for outcome.
func (s *Store) begin(tx *txn) (id string, err error) {
	if s.hold == nil {
		_, err = tx.Exec(`BEGIN IMMEDIATE`)
		return "", err
	}
	return s.hold.Begin(tx.ctx, tx.c)
}

// failed wraps an error of the connection, which is ErrAway for a server that can't be reached, or whose lock for
// writes another conductor does not give up: one that stands still is disconnected after a while.
func (s *Store) failed(what string, err error) error {
	switch {
	case s.hold == nil || errors.Is(err, postgres.ErrAway):
	case errors.Is(err, postgres.ErrTaken):
		err = s.Fault()
	case postgres.Away(err), postgres.Locked(err), errors.Is(err, ErrCut):
		err = fmt.Errorf("%w: %w", ErrAway, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// cut makes an ErrAway of the error of a write whose connection was cut, or could not be had, before its end was asked
// for.
func (s *Store) cut(err error) error {
	passing := postgres.Cut(err) || errors.Is(err, ErrCut)
	if s.hold != nil && passing && !errors.Is(err, ErrAway) && !errors.Is(err, ErrLost) {
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	return err
}

// outcome finds out what became of a transaction whose COMMIT returned an error: nil says that it is committed. Where
// that can't be found out, nothing is written any more, because what is in memory may be wrong.
func (s *Store) outcome(id string, err error) error {
	if s.hold == nil || !postgres.Away(err) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.outcomeTime)
	defer cancel()
	committed, unknown := s.hold.Committed(ctx, s.r, id)
	for committed && unknown == nil {
		if committed, unknown = s.wrote(ctx); unknown == nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
			committed, unknown = true, nil
		}
	}
	switch {
	case unknown != nil:
		err = fmt.Errorf("the connection to PostgreSQL was lost while a change was committed, and it is not known whether it was: %w", err)
		s.fault.lose(err)
		return errors.Join(s.Fault(), err)
	case committed:
		return nil
	}
	return fmt.Errorf("%w: %w", ErrAway, err)
}

// wrote reports whether the transaction's last event, or else its last node, is in the database: after a crash the
// server may have given the number of a transaction that it forgot to another one.
func (s *Store) wrote(ctx context.Context) (bool, error) {
	var at int64
	if n := len(s.notes.pending); n > 0 {
		last, kind := s.notes.pending[n-1], ""
		err := s.r.QueryRowContext(ctx, `SELECT at, type FROM events WHERE id = ?`, last.ID).Scan(&at, &kind)
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		return at == micros(last.At) && kind == last.Type, err
	}
	for _, w := range slices.Backward(s.fresh) {
		if w.n == nil {
			continue
		}
		var version uint64
		err := s.r.QueryRowContext(ctx, `SELECT version, updated_at FROM nodes WHERE uuid = ?`, w.uuid).Scan(&version, &at)
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		if err == nil && version > w.n.Version {
			err = fmt.Errorf("node %s was changed since", w.uuid)
		}
		return version == w.n.Version && at == micros(w.n.UpdatedAt), err
	}
	return true, nil // which nothing contradicts
}

// Away is an ErrAway while the database's server can't be reached; nil otherwise, when Fault is not, and for SQLite.
func (s *Store) Away() error {
	if s.hold == nil || s.Fault() != nil {
		return nil
	}
	return s.hold.Err()
}

// AwaySince is the time from which on Away was not nil until now; zero when it is.
func (s *Store) AwaySince() time.Time {
	if s.hold == nil {
		return time.Time{}
	}
	return s.hold.AwaySince()
}

// vacuum makes what was deleted unreadable in the database's files.
func (s *Store) vacuum(ctx context.Context) error {
	if s.server == nil {
		_, err := s.w.ExecContext(ctx, s.d.vacuum)
		return err
	}
	db := s.server.Open(0, nil, nil)
	_, err := db.ExecContext(ctx, s.d.vacuum)
	return errors.Join(err, db.Close())
}
