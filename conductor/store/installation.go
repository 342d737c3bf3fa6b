package store

import (
	"context"
	"crypto/hmac"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
	"github.com/ingot-metal/ingot/conductor/store/seal"
)

// InstallationFile says to which installation a data directory belongs: a name, and the proof of it that is made with
// the key. The database holds the same, so that one that is lost, or is another's, is not taken for that of a first
// start. The proof holds wherever the key comes from.
const InstallationFile = "installation"

// UnusableError says that the database can't be used, and what helps. Nothing has been changed.
type UnusableError struct {
	File string // the database's path
	Why  string // continues "the database FILE"
	Err  error  // may be nil
	// Other is a sentence with what to do before a restore; may be empty.
	Other string
	// Server says that it is in PostgreSQL, and File its name.
	Server bool
}

func (e *UnusableError) Error() string { return e.What() + ". " + e.Remedy() }

// What describes the fault.
func (e *UnusableError) What() string {
	text := fmt.Sprintf("the database %s %s", e.File, e.Why)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Remedy says what helps.
func (e *UnusableError) Remedy() string {
	text := `"ingotd restore BACKUP" puts a backup in its place and moves what is there aside; "ingotd --new-installation" moves it aside and starts without any node`
	if e.Server {
		text = "Restore it with PostgreSQL's own tools, or name another database in store.url"
	}
	if e.Other != "" {
		text = e.Other + ". " + text
	}
	return text
}

// unusable gives an UnusableError the remedies of its kind of database.
func (o Options) unusable(err error) error {
	var u *UnusableError
	if o.URL != "" && errors.As(err, &u) {
		u.Server = true
	}
	return err
}

func (e *UnusableError) Unwrap() error { return e.Err }

// installation holds the identity in the file and in the database.
type installation struct{ name, proof string }

func (i installation) text() []byte { return []byte(i.name + " " + i.proof + "\n") }

// prove makes the proof of an installation's name.
func prove(s *seal.Sealer, name string) installation {
	return installation{name, hex.EncodeToString(s.MAC("installation", name))}
}

func (i installation) provedBy(s *seal.Sealer) bool {
	return hmac.Equal([]byte(i.proof), []byte(prove(s, i.name).proof))
}

// readInstallation reads the file; nil if there is none.
func readInstallation(dir string) (*installation, error) {
	path := filepath.Join(dir, InstallationFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read to which installation the data directory belongs: %w", err)
	}
	words := strings.Fields(string(b))
	if len(words) != 2 {
		return nil, fmt.Errorf(
			"%s is damaged: it has to hold a name and its proof. Remove it if the database beside it is the right one; it is made again", path)
	}
	return &installation{words[0], words[1]}, nil
}

// storedInstallation reads the identity in the database; nil if it has none, as in one of an older version.
func storedInstallation(ctx context.Context, db queryer) (*installation, error) {
	var i installation
	err := db.QueryRowContext(ctx, `SELECT name, proof FROM installation WHERE id = 1`).Scan(&i.name, &i.proof)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read to which installation the database belongs: %w", err)
	}
	return &i, nil
}

// hasData reports whether a file exists and is not empty.
func hasData(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Size() > 0
}

// expectData refuses a directory whose database is gone. What lies beside it shows that there was one: the key is made
// after it.
func (o Options) expectData(path string) error {
	if hasData(path) || o.Ephemeral || o.NewInstallation {
		return nil
	}
	why := "is missing"
	if _, err := os.Stat(path); err == nil {
		why = "is empty"
	}
	for _, name := range []string{InstallationFile, KeyFile} {
		if _, err := os.Stat(filepath.Join(o.Dir, name)); err == nil {
			return &UnusableError{
				File: path, Why: why + fmt.Sprintf(", though %s beside it shows that this installation had one",
					filepath.Join(o.Dir, name))}
		}
	}
	return nil
}

// beginAnew moves an unusable database aside. A usable one is refused: with the flag left in place, every start would
// begin anew.
func (o Options) beginAnew(ctx context.Context) error {
	path := filepath.Join(o.Dir, DatabaseFile)
	if hasData(path) {
		err := Check(ctx, o.Dir, o.Key)
		if err == nil {
			return fmt.Errorf(
				"the database %s is whole and belongs to this installation: start without --new-installation, or, to give up all that is in it, move it away yourself", path)
		}
		var unusable *UnusableError
		if !errors.As(err, &unusable) {
			return err
		}
	}
	to, err := SetAside(o.Dir, time.Now())
	if err == nil && to != "" && o.Log != nil {
		o.Log.Warn("a new installation is made, and what was there is moved aside", "to", to)
	}
	return err
}

// Check checks every page of the database in dir, and whether it is this installation's, without changing anything; an
// ingotd may be at work on it. Faults are an *UnusableError. A nil key stands for the file in dir. A directory that
// never had a database is fine.
func Check(ctx context.Context, dir string, key []byte) (err error) {
	path := filepath.Join(dir, DatabaseFile)
	if !hasData(path) {
		return Options{Dir: dir}.expectData(path)
	}
	here, err := readInstallation(dir)
	if err != nil {
		return err
	}
	db, err := openReading(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	have, want, err := schemas(ctx, db)
	switch {
	case pageError(err):
		return damaged(path, err)
	case err != nil:
		return err
	case have > want:
		return newer(path, have, want)
	case have == 0 && here != nil:
		return emptied(path, dir)
	case have == 0:
		return nil
	}
	if key == nil {
		if key, err = ReadKey(filepath.Join(dir, KeyFile)); err != nil {
			return unreadable(path, err, false)
		}
		if next, nerr := ReadKey(filepath.Join(dir, NextKeyFile)); nerr == nil &&
			errors.Is(verify(ctx, db, key), ErrKey) {
			key = next // a rotation was cut short, and the next start brings it to its end
		}
	}
	sealer, err := seal.New(key)
	if err != nil {
		return err
	}
	err = verify(ctx, db, key)
	switch {
	case errors.Is(err, errPages), pageError(err), errors.Is(err, sql.ErrNoRows):
		return damaged(path, err)
	case errors.Is(err, ErrKey):
		return otherKey(path)
	case err != nil:
		return err
	}
	if have < installationSchema {
		return nil
	}
	stored, err := storedInstallation(ctx, db)
	if err != nil || stored == nil && here == nil {
		return err
	}
	return matches(path, dir, stored, here, sealer)
}

// installationSchema is the first that says whose the database is.
const installationSchema = 8

// schemas returns the schema that a database has, 0 if it has none, and the newest that this program knows.
func schemas(ctx context.Context, db queryer) (have, want int64, err error) {
	var tables int
	err = db.QueryRowContext(ctx, `SELECT COUNT(*) FROM sqlite_master WHERE name = 'goose_db_version'`).Scan(&tables)
	if err == nil && tables > 0 {
		err = db.QueryRowContext(ctx, `SELECT MAX(version_id) FROM goose_db_version`).Scan(&have)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read version of the database: %w", err)
	}
	files, err := migrations.ReadDir("migrations")
	if err != nil {
		return 0, 0, fmt.Errorf("read migrations: %w", err)
	}
	want, err = strconv.ParseInt(files[len(files)-1].Name()[:5], 10, 64)
	return have, want, err
}

func emptied(path, dir string) error {
	return &UnusableError{
		File: path, Why: fmt.Sprintf("has no tables, though %s shows that this installation had some",
			filepath.Join(dir, InstallationFile))}
}

func newer(path string, have, want int64) error {
	return &UnusableError{File: path, Why: fmt.Sprintf("has schema %d, newer than %d of this program", have, want),
		Other: "Start the newer program again"}
}

// unreadable is for a key that can't be had. One that is there and open to others is to be closed, and nothing else.
func unreadable(path string, err error, fresh bool) error {
	var open *keyfile.ReadableError
	if fresh || errors.As(err, &open) {
		return err
	}
	return &UnusableError{File: path, Why: "can't be read", Err: err,
		Other: "If you keep a copy of the key elsewhere, put it back"}
}

func otherKey(path string) error {
	return &UnusableError{File: path, Why: "is of another installation: the key does not fit it",
		Other: "If the key was exchanged, put the one back that it was made with"}
}

// matches compares the installation in the database with that in the directory; one of them may be nil.
func matches(path, dir string, stored, here *installation, s *seal.Sealer) error {
	beside := filepath.Join(dir, InstallationFile)
	switch {
	case stored == nil:
		return &UnusableError{
			File: path, Why: fmt.Sprintf("is of no installation, and %s says that this one is %s", beside, here.name),
			Other: "If it is the right one, brought here from an older version, remove that file"}
	case !stored.provedBy(s):
		return &UnusableError{File: path, Why: "is of another installation: its name is not proved by this key"}
	case here != nil && stored.name != here.name:
		return &UnusableError{
			File: path, Why: fmt.Sprintf("is of another installation: it is of %s, and %s says that this is %s",
				stored.name, beside, here.name),
			Other: "If it is the right one, remove that file"}
	}
	return nil
}

// belong makes sure that database, data directory and key are of the same installation, and makes one of a directory
// that is new. fresh says that the database has been made just now.
func (s *Store) belong(ctx context.Context, o Options, path string, fresh bool) error {
	here, err := readInstallation(o.Dir)
	if err != nil {
		return err
	}
	stored, err := storedInstallation(ctx, s.w)
	if err != nil {
		return err
	}
	if !fresh && (stored != nil || here != nil) {
		if err := matches(path, o.Dir, stored, here, s.sealer); err != nil {
			return err
		}
	}
	if stored == nil {
		i := prove(s.sealer, uuid.NewString())
		// an ephemeral database is made anew, the installation is the same
		if fresh && here != nil && here.provedBy(s.sealer) {
			i = *here
		}
		if _, err := s.w.ExecContext(ctx, `INSERT INTO installation (id, name, proof) VALUES (1, ?, ?)`, i.name,
			i.proof); err != nil {
			return fmt.Errorf("write to which installation the database belongs: %w", err)
		}
		stored = &i
	}
	if here == nil || *here != *stored {
		if err := keyfile.Write(filepath.Join(o.Dir, InstallationFile), stored.text(), 0o600); err != nil {
			return fmt.Errorf("write to which installation the data directory belongs: %w", err)
		}
	}
	return nil
}

// Adopt makes a data directory that of the database file, for a restore that is about to put that file in place.
func Adopt(ctx context.Context, dir, file string) (err error) {
	db, err := openFile(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	path := filepath.Join(dir, InstallationFile)
	var older bool
	if err := db.QueryRowContext(ctx, `SELECT COUNT(*) = 0 FROM sqlite_master WHERE name = 'installation'`).Scan(
		&older); err != nil {
		return fmt.Errorf("read to which installation the database belongs: %w", err)
	}
	if !older {
		stored, err := storedInstallation(ctx, db)
		if err != nil {
			return err
		}
		if stored != nil {
			return keyfile.Write(path, stored.text(), 0o600)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// SetAside moves the database's files, and others of the data directory by their names, into a folder of their own in
// it. It returns the folder; "" if there was nothing to move.
func SetAside(dir string, now time.Time, others ...string) (string, error) {
	to := filepath.Join(dir, "set-aside-"+now.UTC().Format("20060102T150405.000000Z"))
	moved := false
	for _, name := range append([]string{DatabaseFile, DatabaseFile + "-wal", DatabaseFile + "-shm", InstallationFile},
		others...) {
		from := filepath.Join(dir, name)
		if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if !moved {
			if err := os.Mkdir(to, 0o700); err != nil {
				return "", fmt.Errorf("make a folder for damaged files: %w", err)
			}
			moved = true
		}
		if err := os.Rename(from, filepath.Join(to, name)); err != nil {
			return "", fmt.Errorf("move damaged files aside: %w", err)
		}
	}
	if !moved {
		return "", nil
	}
	return to, keyfile.SyncDir(dir)
}
