package store_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// secretsIn is a data directory with something of each kind that is sealed.
func secretsIn(t *testing.T, o store.Options) {
	t.Helper()
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	n := &node.Node{Name: "n", Driver: "x", DriverInfo: map[string]any{"p": "secret-p"},
		InstanceInfo: map[string]any{"configdrive": "secret-drive"}}
	if err := s.CreateNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Change(t.Context(), n.UUID, func(_ *node.Node, effects *node.SideEffects) error {
		effects.Results = []node.LargeResult{{Ref: "r", Doc: []byte(`"secret-result"`)}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Runbooks().Create(t.Context(), &node.Runbook{Description: "secret-text"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Chassis().Create(t.Context(), &node.Chassis{Description: "open"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// readable fails the test unless everything of secretsIn can be read.
func readable(t *testing.T, o store.Options) {
	t.Helper()
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	n, err := s.Node(t.Context(), "n")
	if err != nil || n.DriverInfo["p"] != "secret-p" || n.InstanceInfo["configdrive"] != "secret-drive" {
		t.Errorf("the node: %+v, %v", n, err)
	}
	if results, err := s.Results(t.Context(), n.UUID); err != nil || string(results["r"]) != `"secret-result"` {
		t.Errorf("results: %s, %v", results, err)
	}
	books, err := s.Runbooks().List(t.Context(), "")
	if err != nil || len(books) != 1 || books[0].Description != "secret-text" {
		t.Errorf("runbooks: %+v, %v", books, err)
	}
	if chassis, err := s.Chassis().List(t.Context(), ""); err != nil || len(chassis) != 1 ||
		chassis[0].Description != "open" {
		t.Errorf("chassis: %+v, %v", chassis, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRotateKey: after a rotation the old key opens nothing, and no seal of it is left in the files.
func TestRotateKey(t *testing.T) {
	o := store.Options{Dir: t.TempDir()}
	secretsIn(t, o)
	old := content(t, o.Dir, "key")
	oldKey, err := store.ReadKey(filepath.Join(o.Dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := store.RotateKey(t.Context(), o, nil); err != nil {
			t.Fatal(err)
		}
		readable(t, o)
		if err := store.Check(t.Context(), o.Dir, nil); err != nil {
			t.Error(err)
		}
		if err := store.Check(t.Context(), o.Dir, oldKey); err == nil {
			t.Error("the old key still fits")
		}
	}
	if content(t, o.Dir, "key") == old {
		t.Error("the key is the same")
	}
	if _, err := os.Stat(filepath.Join(o.Dir, store.NextKeyFile)); err == nil {
		t.Error("the next key was left behind")
	}

	given := store.Options{Dir: t.TempDir(), Key: bytes.Repeat([]byte{1}, 32)}
	secretsIn(t, given)
	next := bytes.Repeat([]byte{2}, 32)
	if err := store.RotateKey(t.Context(), given, next); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(t.Context(), given); err == nil {
		t.Error("a key from elsewhere still fits after its rotation")
	}
	given.Key = next
	readable(t, given)
}

// TestRotateKeyOnServer: as with SQLite, by the same files in the data directory.
func TestRotateKeyOnServer(t *testing.T) {
	o := store.ServerOptions(t)
	secretsIn(t, o)
	old, err := store.ReadKey(filepath.Join(o.Dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := store.RotateKey(t.Context(), o, nil); err != nil {
			t.Fatal(err)
		}
		readable(t, o)
	}
	o.Key = old
	if _, err := store.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "does not fit") {
		t.Errorf("with the old key: %v", err)
	}
}

// TestRotationCutShort: whatever a kill left behind, the next start has a key that fits, and a rotation after it works.
func TestRotationCutShort(t *testing.T) {
	before, after := t.TempDir(), t.TempDir()
	secretsIn(t, store.Options{Dir: before})
	copyFile(t, before, after, "ingot.db", "key", "installation")
	if err := store.RotateKey(t.Context(), store.Options{Dir: after}, nil); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ database, key, next string }{
		{before, before, ""},
		{before, before, after}, // the new key was written, the database was not
		{after, before, after},  // the database was written, and the key not put in place
		{after, after, ""},
	} {
		dir := t.TempDir()
		copyFile(t, c.database, dir, "ingot.db")
		copyFile(t, before, dir, "installation")
		copyFile(t, c.key, dir, "key")
		if c.next != "" {
			b, err := os.ReadFile(filepath.Join(c.next, "key"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, store.NextKeyFile), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if err := store.Check(t.Context(), dir, nil); err != nil {
				t.Errorf("Check = %v", err)
			}
			readable(t, store.Options{Dir: dir})
			if content(t, dir, "key") != content(t, c.database, "key") {
				t.Error("the key in place is not the database's")
			}
			if _, err := os.Stat(filepath.Join(dir, store.NextKeyFile)); err == nil {
				t.Error("the next key was left behind")
			}
			if err := store.RotateKey(t.Context(), store.Options{Dir: dir}, nil); err != nil {
				t.Error(err)
			}
			readable(t, store.Options{Dir: dir})
		})
	}
}
