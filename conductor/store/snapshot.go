package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingot-metal/ingot/conductor/store/seal"
)

// DatabaseFile is the database in a data directory, KeyFile the key that its secrets are sealed with.
const (
	DatabaseFile = "ingot.db"
	KeyFile      = "key"
)

// Snapshot copies the database in dir to the file dest, which must not exist: the state of one moment, while this or
// another process writes. Every write that was answered before the call is in it. No write waits for it.
func Snapshot(ctx context.Context, dir, dest string) error {
	path := filepath.Join(dir, DatabaseFile)
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("find the database: %w", err)
	}
	db, err := openFile(path)
	if err != nil {
		return err
	}
	// The file is made here, so that no other user can read it; SQLite fills an empty one.
	f, err := os.OpenFile(dest, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return errors.Join(fmt.Errorf("copy the database: %w", err), db.Close())
	}
	if err := f.Close(); err != nil {
		return errors.Join(fmt.Errorf("copy the database: %w", err), db.Close())
	}
	if _, err := db.ExecContext(ctx, `VACUUM INTO ?`, dest); err != nil {
		return errors.Join(fmt.Errorf("copy the database in %s: %w", dir, err), db.Close())
	}
	return db.Close()
}

// openFile opens a database file as it is, without changing how it keeps its journal.
func openFile(path string) (*sql.DB, error) { return openWith(path, url.Values{}) }

// openReading opens a database file without changing it, not even by copying its journal into it.
func openReading(path string) (*sql.DB, error) { return openWith(path, url.Values{"mode": {"ro"}}) }

func openWith(path string, q url.Values) (*sql.DB, error) {
	q.Set("_pragma", "busy_timeout(10000)")
	at := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}
	db, err := openDB(at.String(), nil, nil)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	return db, nil
}

// ErrKey means that a key is not the one that a database was made with.
var ErrKey = errors.New("the key is not the one that the database was made with")

// Verify makes sure that a database file is whole and that key fits it; ErrKey if it does not.
func Verify(ctx context.Context, file string, key []byte) (err error) {
	db, err := openFile(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return verify(ctx, db, key)
}

// verify looks at every page and at the key.
func verify(ctx context.Context, db *sql.DB, key []byte) error {
	var verdict string
	if err := db.QueryRowContext(ctx, `PRAGMA integrity_check(1)`).Scan(&verdict); err != nil {
		return fmt.Errorf("check database: %w", err)
	}
	if verdict != "ok" {
		return fmt.Errorf("check database: %w: %s", errPages, strings.ReplaceAll(verdict, "\n", " "))
	}
	var check []byte
	if err := db.QueryRowContext(ctx, `SELECT sealed FROM key_check WHERE id = 1`).Scan(&check); err != nil {
		return fmt.Errorf("check database: read key check: %w", err)
	}
	if !fits(key, check) {
		return ErrKey
	}
	return nil
}

// checkPurpose is the purpose of the sealed row that identifies the database's key.
const checkPurpose = "key check"

// errPages is the result of a check that found damage.
var errPages = errors.New("it is damaged")

// ReadKey reads a key file.
func ReadKey(path string) ([]byte, error) { return seal.KeyFile(path, false) }

// DecodeKey reads a key as a key file has it; EncodeKey makes the content of one.
func DecodeKey(text string) ([]byte, error) { return seal.Decode(text) }

// EncodeKey makes the content of a key file.
func EncodeKey(key []byte) []byte { return seal.Encode(key) }

// Seal encrypts data that is kept outside of the database with the database's key. Unseal needs the same purpose.
func Seal(key []byte, purpose string, data []byte) ([]byte, error) {
	s, err := seal.New(key)
	if err != nil {
		return nil, err
	}
	return s.Seal(purpose, data), nil
}

// Unseal undoes Seal.
func Unseal(key []byte, purpose string, sealed []byte) ([]byte, error) {
	s, err := seal.New(key)
	if err != nil {
		return nil, err
	}
	return s.Open(purpose, sealed)
}
