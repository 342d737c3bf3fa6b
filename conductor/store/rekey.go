package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
	"github.com/ingot-metal/ingot/conductor/store/seal"
)

// NextKeyFile is the key that is to follow the one in KeyFile. It is there while keys are rotated only; which of the
// two is the database's is for the database to say.
const NextKeyFile = "key.next"

// RotateKey seals everything in the database of o anew, with another key, which no ingotd may be using meanwhile.
// With a nil key the key file is replaced by one that is made; else the key comes from elsewhere, and to is the new
// one. Killed at any moment it has happened or has not: the next start, or another RotateKey, goes on with the key that
// the database has.
func RotateKey(ctx context.Context, o Options, to []byte) (err error) {
	dir, key := o.Dir, o.Key
	s, err := Open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if key == nil {
		to = make([]byte, 32)
		rand.Read(to)
		if err := keyfile.Write(filepath.Join(dir, NextKeyFile), EncodeKey(to), 0o600); err != nil {
			return fmt.Errorf("write the new key: %w", err)
		}
	}
	sealer, err := seal.New(to)
	if err != nil {
		return err
	}
	if err := s.write(ctx, func(tx *txn) error { return s.reseal(ctx, tx, sealer) }); err != nil {
		return fmt.Errorf("seal the database anew: %w", err)
	}
	// What was sealed with the old key is still in pages that are free now, and in the journal.
	if err := s.vacuum(ctx); err != nil {
		return fmt.Errorf(
			"the database has the new key, but what was sealed with the old one may still be in its file: remove it with another rotation: %w", err)
	}
	if key != nil {
		return nil
	}
	return promote(dir)
}

// promote puts the next key in place of the current one.
func promote(dir string) error {
	if err := os.Rename(filepath.Join(dir, NextKeyFile), filepath.Join(dir, KeyFile)); err != nil {
		return fmt.Errorf("put the new key in place: %w", err)
	}
	return keyfile.SyncDir(dir)
}

// ownKey reads the key file of dir for a database with this key check. A rotation that was cut short is brought to the
// end that the database has come to.
func ownKey(dir string, check []byte) ([]byte, error) {
	next := filepath.Join(dir, NextKeyFile)
	if _, err := os.Lstat(next); err == nil {
		candidate, err := ReadKey(next)
		if err != nil {
			return nil, err
		}
		if fits(candidate, check) {
			return candidate, promote(dir)
		}
		if err := os.Remove(next); err != nil {
			return nil, fmt.Errorf("remove the key of a rotation that was cut short: %w", err)
		}
	}
	return ReadKey(filepath.Join(dir, KeyFile))
}

// fits reports whether a key is the one that a key check was sealed with.
func fits(key, check []byte) bool {
	s, err := seal.New(key)
	if err != nil {
		return false
	}
	_, err = s.Open(checkPurpose, check)
	return err == nil
}

// reseal opens everything that is sealed in the database, and seals it with another key.
func (s *Store) reseal(ctx context.Context, tx *txn, to *seal.Sealer) error {
	for _, t := range []struct{ table, id, column, purpose string }{
		{"nodes", "uuid", "sealed", "'node ' || uuid"},
		{"config_drives", "node_uuid", "sealed", "'config drive ' || node_uuid"},
		{"results", "seq", "sealed", "'result ' || ref"},
		{"resources", "seq", "doc", "kind || ' ' || uuid"},
		{"key_check", "id", "sealed", "'" + checkPurpose + "'"},
		{"shared", "id", "sealed", "'" + sharedPurpose + "'"},
	} {
		ids, err := list(ctx, tx, "read "+t.table, into(func(id *any) []any { return []any{id} }),
			`SELECT `+t.id+` FROM `+t.table)
		if err != nil {
			return err
		}
		for _, id := range ids {
			var (
				purpose string
				sealed  []byte
			)
			if err := tx.QueryRow(`SELECT `+t.purpose+`, `+t.column+` FROM `+t.table+` WHERE `+t.id+` = ?`, id).Scan(
				&purpose, &sealed); err != nil {
				return err
			}
			if !seal.Is(sealed) {
				continue // of a kind that holds no secrets
			}
			plain, err := s.sealer.Open(purpose, sealed)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(`UPDATE `+t.table+` SET `+t.column+` = ? WHERE `+t.id+` = ?`,
				to.Seal(purpose, plain), id); err != nil {
				return err
			}
		}
	}
	var name string
	if found, err := tx.find([]any{&name}, `SELECT name FROM installation WHERE id = 1`); err != nil || !found {
		return err
	}
	_, err := tx.Exec(`UPDATE installation SET proof = ? WHERE id = 1`, prove(to, name).proof)
	return err
}
