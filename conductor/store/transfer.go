package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Schema returns the files that make the newest schema, of PostgreSQL or of SQLite, in goose's format.
func Schema(server bool) (fs.FS, error) {
	if server {
		return fs.Sub(serverMigrations, "migrations/postgres")
	}
	return fs.Sub(migrations, "migrations")
}

// OpenReading opens the database file at path outside of a Store, without changing it, not even by copying its journal
// into it.
func OpenReading(path string) (*sql.DB, error) { return openReading(path) }

// OpenMade opens the database file at path outside of a Store, to be filled; foreign keys are not looked at.
func OpenMade(path string) (*sql.DB, error) { return openFile(path) }

// Fits makes sure that a database is the one that o.Dir and its key are of, as far as those are there: an empty
// directory fits. name is the database's, for errors.
func (o Options) Fits(ctx context.Context, tx *sql.Tx, name string) error {
	var check []byte
	err := tx.QueryRowContext(ctx, `SELECT sealed FROM key_check WHERE id = 1`).Scan(&check)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%s is of no installation: no ingotd has worked with it yet", name)
	}
	if err != nil {
		return fmt.Errorf("read the key check of %s: %w", name, err)
	}
	key, path := o.Key, filepath.Join(o.Dir, KeyFile)
	if _, serr := os.Lstat(path); key == nil && !errors.Is(serr, fs.ErrNotExist) {
		if key, err = ReadKey(path); err != nil {
			return err
		}
	}
	if key != nil && !fits(key, check) {
		return fmt.Errorf(
			"the key of %s does not fit %s: put the one there that it was made with, or, after a rotation that was cut short, start ingotd on it once", o.Dir, name)
	}
	here, err := readInstallation(o.Dir)
	if err != nil || here == nil {
		return err
	}
	stored, err := storedInstallation(ctx, tx)
	if err == nil && (stored == nil || *stored != *here) {
		err = fmt.Errorf("%s says that %s is of another installation than %s: use the data directory of that one",
			filepath.Join(o.Dir, InstallationFile), o.Dir, name)
	}
	return err
}
