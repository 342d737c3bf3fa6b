package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/conductor/store/postgres"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// ErrDamaged means that a page of the database can't be read or trusted. From then on nothing is written, because
// writes on top of damage damage more; undamaged pages are still read.
var ErrDamaged = errors.New("the database is damaged, nothing is written any more")

// ErrLost means that the store can't go on: its database belongs to another ingotd now, or it is not known what became
// of a change. From then on nothing is written.
var ErrLost = errors.New("the database is lost to this ingotd, which writes nothing any more")

// ErrAway means that the database's server can't be reached, and nothing was written. Writes are taken again when it is
// back.
var ErrAway = postgres.ErrAway

// ErrCut means that the connection to the database's server was cut or could not be opened: in a read, or, if the error
// is no ErrAway, after a write.
var ErrCut = postgres.ErrCut

// ErrBusy means that the database's server did not carry out a statement for a reason that passes. Nothing was written.
var ErrBusy = postgres.ErrBusy

// ErrText means that a text has the character U+0000, which PostgreSQL can't keep.
var ErrText = postgres.ErrText

// ErrFull means that the database's file system is full. Nothing was written; the next write is tried again.
var ErrFull = errors.New("the file system of the database is full")

// fault watches the errors of all connections for those that say that the database itself is bad.
type fault struct {
	file    string
	log     *slog.Logger
	full    func() // may be nil
	d       *dialect
	meter   meter
	serving atomic.Bool // Open is done: before, its caller gets the fault
	once    sync.Once
	err     atomic.Pointer[error]
	found   chan struct{} // closed at the first
}

func (f *fault) notice(err error) {
	f.meter.StatementFailed(f.d.kindOf(err))
	if f.d.damaged(err) {
		f.damage(err)
	}
	if f.full != nil && f.d.full(err) {
		f.full()
	}
}

func (f *fault) damage(err error) {
	f.end(fmt.Errorf("%w: %w", ErrDamaged, err),
		"a page of the database is damaged: nothing is written and no machine is acted on any more; stop ingotd, look at the disk, and restore a backup (ingotd restore)")
}

func (f *fault) lose(err error) {
	f.end(fmt.Errorf("%w: %w", ErrLost, err),
		"the database is lost: nothing is written and no machine is acted on any more; see whether another ingotd uses it, and start this one again")
}

// end makes the store write nothing any more.
func (f *fault) end(err error, text string) {
	f.once.Do(func() {
		f.err.Store(&err)
		if f.serving.Load() {
			f.log.Error(text, "database", f.file, "err", err)
		}
		close(f.found)
	})
}

// broken reports a seal that can't be opened as damage, since the key fits the database: the page's content was
// overwritten.
func (s *Store) broken(err error) error {
	s.fault.damage(err)
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

// Fault is why the store writes no more, an error that is ErrDamaged or ErrLost; nil while it is well.
func (s *Store) Fault() error {
	if err := s.fault.err.Load(); err != nil {
		return *err
	}
	return nil
}

// Damaged is closed when Fault is not nil any more.
func (s *Store) Damaged() <-chan struct{} { return s.fault.found }

// resultCode is SQLite's extended result code (sqlite.org/rescode.html), or 0.
func resultCode(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

// pageError reports whether an error says that the database's file is damaged, or the disk below it.
func pageError(err error) bool {
	code := resultCode(err)
	return code&0xff == sqlite3.SQLITE_CORRUPT || code&0xff == sqlite3.SQLITE_NOTADB || slices.Contains([]int{
		sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_FSYNC,
		sqlite3.SQLITE_IOERR_DIR_FSYNC, sqlite3.SQLITE_IOERR_CORRUPTFS, sqlite3.SQLITE_IOERR_DATA,
	}, code)
}

// sqliteFull reports whether an error says that the disk is full. The journal's index is a file of its own.
func sqliteFull(err error) bool {
	code := resultCode(err)
	return code&0xff == sqlite3.SQLITE_FULL || code == sqlite3.SQLITE_IOERR_SHMSIZE
}

// sqliteBusy reports whether an error says that another process held the database for too long.
func sqliteBusy(err error) bool {
	code := resultCode(err) & 0xff
	return code == sqlite3.SQLITE_BUSY || code == sqlite3.SQLITE_LOCKED
}

func damaged(path string, err error) error {
	return &UnusableError{File: path, Why: "is damaged", Err: err}
}

// checkFor is how long a start waits for the check of the database. Some ten thousand nodes take that long; the rest of
// a larger one is checked in the background.
const checkFor = 100 * time.Millisecond

// check looks for damage in all pages of the database, not in the content of the rows.
func (s *Store) check(ctx context.Context, path string) error {
	done := make(chan error, 1)
	ctx, s.stopCheck = context.WithCancel(context.WithoutCancel(ctx))
	s.checking.Go(func() {
		defer s.stopCheck()
		var verdict string
		err := s.r.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&verdict)
		if err == nil && verdict != "ok" {
			err = errors.New(verdict)
			s.fault.damage(err)
		}
		done <- err
	})
	select {
	case err := <-done:
		if err != nil && (s.fault.err.Load() != nil || pageError(err)) {
			return damaged(path, err)
		}
		return err
	case <-time.After(checkFor):
		return nil // damage that is found later is reported by fault
	}
}
