package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

// A journal that was made in its full size holds what was written, and nothing else: what a cut of the power leaves at
// any moment can be opened again.
func TestReservedJournal(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	s, err := Open(ctx, Options{Dir: dir, Alone: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	size := func() int64 {
		info, err := os.Stat(filepath.Join(dir, DatabaseFile+"-wal"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	reserved := size()
	if reserved < journalSize {
		t.Errorf("the journal has %d bytes, want %d", reserved, journalSize)
	}
	for i := range 6 {
		if err := s.CreateNode(ctx, &node.Node{Driver: "x", Name: fmt.Sprint("n", i)}); err != nil {
			t.Fatal(err)
		}
		copied := t.TempDir()
		for _, name := range []string{DatabaseFile, DatabaseFile + "-wal", KeyFile} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(copied, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		again, err := Open(ctx, Options{Dir: copied, Alone: i%2 == 0})
		if err != nil {
			t.Fatalf("after %d nodes: %v", i+1, err)
		}
		if ids, err := again.UUIDs(ctx, false); err != nil || len(ids) != i+1 {
			t.Errorf("after %d nodes the copy has %d, %v", i+1, len(ids), err)
		}
		if err := again.CreateNode(ctx, &node.Node{Driver: "x"}); err != nil {
			t.Error(err)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(copied); err != nil {
			t.Error(err)
		}
	}
	if got := size(); got != reserved {
		t.Errorf("the journal grew from %d to %d bytes, though there is room in it", reserved, got)
	}
}
