package app

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
	"github.com/ingot-metal/ingot/conductor/store"
)

// sharedBase names the file that says with which shared files of the database those of a data directory agreed last.
const sharedBase = "shared"

// sharedNames are the files of a data directory that all conductors of a database have in common.
func sharedNames() []string {
	return append([]string{agents.CACertFile, erasure.KeyFile}, agents.OtherFiles()...)
}

// commons is where the shared files are kept for all.
type commons interface {
	Shared(ctx context.Context) ([]byte, error)
	SetShared(ctx context.Context, was, now []byte) (stored bool, err error)
}

// sharedIn is where shared files are kept with a database that can have several conductors; nil with SQLite.
func sharedIn(o store.Options, st *store.Store) commons {
	if o.URL == "" {
		return nil
	}
	return st
}

// openKeys opens the CA of the agents and the key of erasures in dir, and makes those that are not there. With st they
// are the same for all conductors: a conductor that joins gets them from the database, and one whose files were
// changed, as by a rotation, gives them to it.
func openKeys(ctx context.Context, dir string, st commons) (*agents.CA, *erasure.Key, error) {
	made := false
	for range 10 {
		if st != nil {
			if err := takeShared(ctx, dir, st, made); err != nil {
				return nil, nil, err
			}
		}
		before, err := sharedFiles(dir)
		if err != nil {
			return nil, nil, err
		}
		ca, err := agents.OpenCA(dir)
		if err != nil {
			return nil, nil, err
		}
		key, err := erasure.OpenKey(dir)
		if err != nil || st == nil {
			return ca, key, err
		}
		if given, err := giveShared(ctx, dir, st); err != nil || given {
			return ca, key, err
		}
		made = len(before) == 0 // of two that are new, one is the first
	}
	return nil, nil, errors.New("the keys that conductors share are changed all the time: start this one again later")
}

// sharedFiles reads those of a data directory that exist.
func sharedFiles(dir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, name := range sharedNames() {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read what conductors share: %w", err)
		}
		files[name] = b
	}
	return files, nil
}

func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// takeShared puts the database's files in place of those in dir, if these are the older ones, or were made just now.
func takeShared(ctx context.Context, dir string, st commons, made bool) error {
	stored, err := st.Shared(ctx)
	if err != nil || stored == nil {
		return err
	}
	files, err := sharedFiles(dir)
	if err != nil {
		return err
	}
	here, err := json.Marshal(files)
	if err != nil || bytes.Equal(here, stored) {
		return err
	}
	b, err := os.ReadFile(filepath.Join(dir, sharedBase))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read what conductors share: %w", err)
	}
	switch base := strings.TrimSpace(string(b)); {
	case base == digestOf(stored): // changed here since
		return nil
	case len(files) > 0 && !made && base != digestOf(here):
		return fmt.Errorf(
			"the CA and keys in %s are not those of the other conductors of this database: to take theirs, move %s away; agents that trust the one here will not trust them",
			dir, strings.Join(sharedNames(), ", "))
	}
	var theirs map[string][]byte
	if err := json.Unmarshal(stored, &theirs); err != nil {
		return fmt.Errorf("read what conductors share: %w", err)
	}
	// The certificate of the CA comes last: without it a start that was cut short is made up for.
	names := sharedNames()
	for i := range names {
		name := names[len(names)-1-i]
		path := filepath.Join(dir, name)
		if b, ok := theirs[name]; !ok {
			err = os.Remove(path)
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		} else if name == agents.CACertFile {
			err = keyfile.Write(path, b, 0o644)
		} else {
			err = keyfile.Write(path, b, 0o600)
		}
		if err != nil {
			return fmt.Errorf("write what conductors share: %w", err)
		}
	}
	return nil
}

// giveShared stores the files of dir in the database, unless another conductor has stored others meanwhile.
func giveShared(ctx context.Context, dir string, st commons) (given bool, err error) {
	files, err := sharedFiles(dir)
	if err != nil {
		return false, err
	}
	here, err := json.Marshal(files)
	if err != nil {
		return false, err
	}
	stored, err := st.Shared(ctx)
	if err != nil {
		return false, err
	}
	if !bytes.Equal(here, stored) {
		b, err := os.ReadFile(filepath.Join(dir, sharedBase))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("read what conductors share: %w", err)
		}
		if stored != nil && strings.TrimSpace(string(b)) != digestOf(stored) {
			return false, nil
		}
		if given, err := st.SetShared(ctx, stored, here); err != nil || !given {
			return false, err
		}
	}
	if err := keyfile.Write(filepath.Join(dir, sharedBase), []byte(digestOf(here)+"\n"), 0o600); err != nil {
		return false, fmt.Errorf("write what conductors share: %w", err)
	}
	return true, nil
}
