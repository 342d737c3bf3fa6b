package store_test

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// TestKilledWriter is not a test of its own: TestKill runs it in a process that it kills.
func TestKilledWriter(t *testing.T) {
	dir := os.Getenv("INGOT_TEST_KILL_DIR")
	if dir == "" {
		return
	}
	s, err := store.Open(t.Context(), store.Options{Dir: dir, Alone: os.Getenv("INGOT_TEST_KILL_ALONE") != ""})
	if err != nil {
		t.Fatal(err)
	}
	var out sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				n := &node.Node{Driver: "x", DriverInfo: map[string]any{"k": "v"}}
				if err := s.CreateNode(t.Context(), n); err != nil {
					return
				}
				out.Lock()
				fmt.Println("stored", n.UUID)
				out.Unlock()
			}
		})
	}
	wg.Wait()
}

// TestKill kills a process in the middle of writing: everything that was reported as stored is there.
func TestKill(t *testing.T) {
	t.Run("with others", func(t *testing.T) { kill(t, false) })
	t.Run("alone", func(t *testing.T) { kill(t, true) })
}

func kill(t *testing.T, alone bool) {
	dir := t.TempDir()
	for round := range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$")
		cmd.Env = append(os.Environ(), "INGOT_TEST_KILL_DIR="+dir)
		if alone {
			cmd.Env = append(cmd.Env, "INGOT_TEST_KILL_ALONE=1")
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var stored []string
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			var id string
			if _, err := fmt.Sscanf(lines.Text(), "stored %s", &id); err == nil && len(id) == 36 {
				stored = append(stored, id)
			}
			if len(stored) == 150+37*round {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the writer ended by itself")
		}
		s, err := store.Open(t.Context(), store.Options{Dir: dir, Alone: alone})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range stored {
			if n, err := s.Node(t.Context(), id); err != nil || n.DriverInfo["k"] != "v" {
				t.Errorf("round %d: node %s was stored and is not there: %v", round, id, err)
			}
		}
		if len(stored) < 100 {
			t.Errorf("round %d: only %d writes", round, len(stored))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDamagedJournalIsReported: what SQLite leaves out of a damaged journal without a word is in the log, and a whole
// one is not.
func TestDamagedJournalIsReported(t *testing.T) {
	o := store.Options{Dir: t.TempDir(), Alone: true}
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := s.CreateNode(t.Context(), &node.Node{Name: fmt.Sprint("n", i), Driver: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	left := t.TempDir() // as a kill would leave it
	for _, name := range []string{"ingot.db", "ingot.db-wal", "key", "installation"} {
		copyFile(t, o.Dir, left, name)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		at   int64 // offset that is overwritten
		logs bool
	}{
		{"whole", -1, false}, {"header", 16, true}, {"first page", 32 + 24 + 100, true},
		{"a page in the middle", 32 + 40*(24+4096) + 1000, true}, {"behind the end", 12 << 20, false},
	} {
		dir := t.TempDir()
		for _, name := range []string{"ingot.db", "ingot.db-wal", "key", "installation"} {
			copyFile(t, left, dir, name)
		}
		if tt.at >= 0 {
			overwrite(t, filepath.Join(dir, "ingot.db-wal"), tt.at, tt.at+4)
		}
		var log strings.Builder
		s, err := store.Open(t.Context(),
			store.Options{Dir: dir, Alone: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err == nil {
			err = s.Close()
		}
		if logs := strings.Contains(log.String(), "journal is damaged"); logs != tt.logs {
			t.Errorf("%s: logged: %v, want %v (%v)\n%s", tt.name, logs, tt.logs, err, log.String())
		}
	}
}
