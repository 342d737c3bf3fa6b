package store_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// filled is a data directory with some nodes, closed.
func filled(t *testing.T, o store.Options) string {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		n := &node.Node{Name: fmt.Sprint("n", i), Driver: "x", DriverInfo: map[string]any{"p": "secret"},
			Extra: map[string]any{"filler": strings.Repeat("x", 60000)}}
		if err := s.CreateNode(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return o.Dir
}

// overwrite writes garbage into a file from an offset on; a negative one counts from its end.
func overwrite(t *testing.T, path string, from, to int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xa5}, int(to-from)), from); err != nil {
		t.Fatal(err)
	}
}

// TestUnusableDatabaseIsRefused: whatever happened to the database of an installation, a start says so and names what
// helps, and neither the start nor a look at it changes a file. A restore and a new installation are then possible, and
// an ephemeral store takes a lost one for new.
func TestUnusableDatabaseIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		want   string
		lost   bool
	}{
		{"no file", func(t *testing.T, dir string) { remove(t, dir, "ingot.db") }, "is missing", true},
		{"no file and no key", func(t *testing.T, dir string) { remove(t, dir, "ingot.db", "key") }, "is missing",
			true},
		{"no file, of an older version", func(t *testing.T, dir string) { remove(t, dir, "ingot.db", "installation") },
			"is missing", true},
		{"zero bytes", func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, "ingot.db"), 0); err != nil {
				t.Fatal(err)
			}
		}, "is empty", true},
		{"no tables", func(t *testing.T, dir string) {
			remove(t, dir, "ingot.db")
			db, err := sql.Open("sqlite", filepath.Join(dir, "ingot.db"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(`CREATE TABLE x (y); DROP TABLE x`); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}, "has no tables", false},
		{"first page", func(t *testing.T, dir string) { overwrite(t, filepath.Join(dir, "ingot.db"), 0, 4096) },
			"is damaged", false},
		{"pages", func(t *testing.T, dir string) { overwrite(t, filepath.Join(dir, "ingot.db"), 20*4096, 60*4096) },
			"is damaged", false},
		{"cut", func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, "ingot.db"), 20*4096); err != nil {
				t.Fatal(err)
			}
		}, "is damaged", false},
		{"another key", func(t *testing.T, dir string) { copyFile(t, filled(t, store.Options{}), dir, "key") },
			"key does not fit", false},
		{"no key", func(t *testing.T, dir string) { remove(t, dir, "key") }, "key is missing", false},
		{"of another installation", func(t *testing.T, dir string) {
			copyFile(t, filled(t, store.Options{}), dir, "ingot.db", "key")
		}, "of another installation", false},
		{"newer", func(t *testing.T, dir string) {
			db, err := sql.Open("sqlite", filepath.Join(dir, "ingot.db"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (900, 1)`); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}, "newer than", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filled(t, store.Options{})
			c.damage(t, dir)
			before := content(t, dir, "ingot.db", "key", "installation")
			refused := func(what string, err error) {
				t.Helper()
				var unusable *store.UnusableError
				if !errors.As(err, &unusable) || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("%s = %v, want a refusal with %q", what, err, c.want)
				}
				for _, want := range []string{filepath.Join(dir, "ingot.db"), "ingotd restore",
					"ingotd --new-installation"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s = %v, which does not name %q", what, err, want)
					}
				}
			}
			refused("Check", store.Check(t.Context(), dir, nil))
			for range 2 {
				_, err := store.Open(t.Context(), store.Options{Dir: dir})
				refused("Open", err)
			}
			// to which goose adds its own
			if after := content(t, dir, "ingot.db", "key", "installation"); after != before && c.name != "no tables" {
				t.Error("a refused start has changed files")
			}
			if c.lost {
				s, err := store.Open(t.Context(), store.Options{Dir: dir, Ephemeral: true})
				if err != nil {
					t.Fatalf("Open of an ephemeral store: %v", err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				remove(t, dir, "ingot.db")
			}
			s, err := store.Open(t.Context(), store.Options{Dir: dir, NewInstallation: true})
			if err != nil {
				t.Fatalf("a new installation: %v", err)
			}
			if ids, err := s.UUIDs(t.Context(), false); err != nil || len(ids) > 0 {
				t.Errorf("a new installation has nodes %v, %v", ids, err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := store.Open(t.Context(), store.Options{Dir: dir, NewInstallation: true}); err == nil ||
				!strings.Contains(err.Error(), "is whole") {
				t.Errorf("another new installation over a good one = %v", err)
			}
			if !c.lost {
				if kept, err := filepath.Glob(filepath.Join(dir, "set-aside-*", "ingot.db")); err != nil ||
					len(kept) != 1 {
					t.Errorf("what was moved aside: %v, %v", kept, err)
				}
			}
		})
	}
}

// TestInstallationWithAKeyFromElsewhere: the directory knows that it had a database though there is no key in it.
func TestInstallationWithAKeyFromElsewhere(t *testing.T) {
	o := store.Options{Dir: t.TempDir(), Key: bytes.Repeat([]byte{7}, 32)}
	filled(t, o)
	if _, err := os.Stat(filepath.Join(o.Dir, "key")); err == nil {
		t.Error("a key file was made though the key is given")
	}
	if err := store.Check(t.Context(), o.Dir, o.Key); err != nil {
		t.Errorf("Check = %v", err)
	}
	remove(t, o.Dir, "ingot.db")
	if _, err := store.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("Open without the database = %v", err)
	}
}

// TestFirstStartCutShort: a start that was killed before it was through is no obstacle to the next.
func TestFirstStartCutShort(t *testing.T) {
	for _, statement := range []string{`DELETE FROM installation; DELETE FROM key_check`, `DELETE FROM installation`} {
		dir := t.TempDir()
		if err := open(t, dir).Close(); err != nil {
			t.Fatal(err)
		}
		remove(t, dir, "installation")
		db, err := sql.Open("sqlite", filepath.Join(dir, "ingot.db"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if err := open(t, dir).Close(); err != nil {
			t.Error(err)
		}
		if err := store.Check(t.Context(), dir, nil); err != nil {
			t.Error(err)
		}
	}
}

// TestDamageWhileServing: once a page is found to be bad, nothing is written any more, and it is reported.
func TestDamageWhileServing(t *testing.T) {
	dir := filled(t, store.Options{})
	s, err := store.Open(t.Context(), store.Options{Dir: dir, Alone: true, CacheNodes: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Fault(); err != nil {
		t.Fatalf("Fault of a good database = %v", err)
	}
	overwrite(t, filepath.Join(dir, "ingot.db"), 20*4096, 700*4096)
	var failed error
	for i := range 12 {
		if _, err := s.Node(context.WithoutCancel(t.Context()), fmt.Sprint("n", i)); err != nil {
			failed = err
		}
	}
	if failed == nil {
		t.Fatal("all nodes can be read after pages were overwritten: the test does not work")
	}
	select {
	case <-s.Damaged():
	default:
		t.Errorf("%v is not taken for damage", failed)
	}
	if err := s.CreateNode(t.Context(), &node.Node{Name: "late", Driver: "x"}); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("a write after damage was found = %v", err)
	}
}

func remove(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func copyFile(t *testing.T, from, to string, names ...string) {
	t.Helper()
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// content returns the content of files, or that they are absent.
func content(t *testing.T, dir string, names ...string) string {
	t.Helper()
	var all strings.Builder
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(dir, name))
		fmt.Fprintf(&all, "%s %v %s\n", name, err, b)
	}
	return all.String()
}
