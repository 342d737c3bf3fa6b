package backup_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/backup"
)

func open(t *testing.T, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// files are those that belong to a data directory beside its database.
var files = map[string]string{"ca.crt": "certificate", "ca.key": "private-key-of-the-CA",
	"erasure.key": "private-key-of-erasures", "ca.next.crt": "next certificate",
	"ca.next.key": "private-key-of-the-next-CA", "ca.next.from": "2030-01-01T00:00:00Z"}

// source is a data directory with a node, a secret and a CA.
func source(t *testing.T) (string, *store.Store) {
	t.Helper()
	dir := t.TempDir()
	s := open(t, dir)
	n := &node.Node{Name: "first", Driver: "x", DriverInfo: map[string]any{"password": "hunter2"},
		InstanceInfo: map[string]any{"configdrive": "drive"}}
	if err := s.CreateNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, s
}

// TestBackupWhileWriting: everything that was answered before the backup began is in it, whatever is written meanwhile,
// and what it has of that is whole.
func TestBackupWhileWriting(t *testing.T) {
	dir, s := source(t)
	ctx, stop := context.WithCancel(t.Context())
	var (
		mu       sync.Mutex
		written  []string
		writers  sync.WaitGroup
		progress = make(chan int, 1) // the newest count of written nodes
	)
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				n := &node.Node{Name: fmt.Sprintf("n-%d-%d", w, i), Driver: "x",
					Extra: map[string]any{"filler": strings.Repeat("x", 2000)}}
				if err := s.CreateNode(t.Context(), n); err != nil {
					t.Error(err)
					return
				}
				// A line of history in the same breath, so that the two could be torn apart.
				if _, err := s.Change(t.Context(), n.UUID, func(n *node.Node, effects *node.SideEffects) error {
					n.Power = "power on"
					effects.History = append(effects.History, node.HistoryEntry{Event: "on"})
					return nil
				}); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				written = append(written, n.UUID)
				select {
				case <-progress:
				default:
				}
				progress <- len(written)
				mu.Unlock()
			}
		})
	}
	for round := range 3 {
		for count := 0; count < 10*(round+1); { // the writers are at work, however slow the machine is
			select {
			case count = <-progress:
			case <-time.After(time.Minute):
				t.Fatalf("round %d: only %d nodes were written", round, count)
			}
		}
		mu.Lock()
		before := append([]string(nil), written...)
		mu.Unlock()
		file := filepath.Join(t.TempDir(), "backup")
		if err := backup.Write(t.Context(), dir, file, nil, true); err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("the backup is readable by others: %v, %v", fi.Mode(), err)
		}
		to := t.TempDir()
		if _, err := backup.Restore(t.Context(), file, backup.Target{Dir: to, Key: nil}); err != nil {
			t.Fatal(err)
		}
		r := open(t, to)
		for _, id := range before {
			n, err := r.Node(t.Context(), id)
			if err != nil || n.Power != "power on" {
				t.Fatalf("round %d: node %s was stored before the backup and is not in it as it was: %+v, %v", round,
					id, n, err)
			}
		}
		all, err := r.Nodes(t.Context(), store.Query{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range all {
			if h, err := r.History(t.Context(), n.UUID, 0); err != nil || (n.Power == "power on") != (len(h) == 1) {
				t.Errorf("node %s is %q with %d lines of history (%v): half a write", n.UUID, n.Power, len(h), err)
			}
		}
	}
	stop()
	writers.Wait()
}

func TestRestoreIsTheSame(t *testing.T) {
	dir, s := source(t)
	want, err := s.Node(t.Context(), "first")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "backup")
	if err := backup.Write(t.Context(), dir, file, nil, false); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range [][]byte{[]byte("hunter2"), []byte("private-key-of-the-CA"),
		[]byte("private-key-of-the-next-CA"), []byte("private-key-of-erasures"), bytes.TrimSpace(key)} {
		if bytes.Contains(content, secret) {
			t.Errorf("a backup without key gives %q away", secret)
		}
	}
	// The key that lies in the directory is used, or the one that is given.
	raw, err := store.ReadKey(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, given := range [][]byte{nil, raw} {
		to := t.TempDir()
		if given == nil {
			if err := os.WriteFile(filepath.Join(to, "key"), key, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := backup.Restore(t.Context(), file, backup.Target{Dir: to, Key: given}); err != nil {
			t.Fatal(err)
		}
		got, err := open(t, to).Node(t.Context(), "first")
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("restored: %v\n%s", err, d)
		}
		for name, data := range files {
			if b, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(b) != data {
				t.Errorf("restored %s = %q, %v", name, b, err)
			}
		}
		if left, err := filepath.Glob(filepath.Join(to, ".*")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

func TestRestoreRefuses(t *testing.T) {
	dir, _ := source(t)
	file := filepath.Join(t.TempDir(), "backup")
	if err := backup.Write(t.Context(), dir, file, nil, false); err != nil {
		t.Fatal(err)
	}
	if err := backup.Write(t.Context(), dir, file, nil, false); err == nil ||
		!strings.Contains(err.Error(), "there already") {
		t.Errorf("a backup over another = %v", err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(content)
	damaged[len(damaged)-3000] ^= 1
	key, err := store.ReadKey(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		content []byte
		key     []byte
		prepare func(to string) error
		want    string
	}{
		{"no key", content, nil, nil, "--key"},
		{"another key", content, bytes.Repeat([]byte{7}, 32), nil, "does not fit"},
		{"another key in place", content, key, func(to string) error {
			return os.WriteFile(filepath.Join(to, "key"), []byte("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n"),
				0o600)
		}, "another key"},
		{"damaged", damaged, key, nil, "damaged"},
		{"cut off", content[:len(content)/2], key, nil, "not a whole backup"},
		{"no backup", []byte("not a backup"), key, nil, "not a whole backup"},
		{"empty", nil, key, nil, "no database"},
		{"a database in place", content, key, func(to string) error { return open(t, to).Close() }, "already"},
		{"another CA in place", content, key, func(to string) error {
			return os.WriteFile(filepath.Join(to, "ca.key"), []byte("other"), 0o600)
		}, "differs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			to, bad := t.TempDir(), filepath.Join(t.TempDir(), "bad")
			if err := os.WriteFile(bad, c.content, 0o600); err != nil {
				t.Fatal(err)
			}
			had := false
			if c.prepare != nil {
				if err := c.prepare(to); err != nil {
					t.Fatal(err)
				}
				_, err := os.Stat(filepath.Join(to, "ingot.db"))
				had = err == nil
			}
			if _, err := backup.Restore(t.Context(), bad, backup.Target{Dir: to, Key: c.key}); err == nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("Restore = %v, want an error with %q", err, c.want)
			}
			if _, err := os.Stat(filepath.Join(to, "ingot.db")); (err == nil) != had {
				t.Errorf("after a refused restore the database: %v", err)
			}
		})
	}
}
