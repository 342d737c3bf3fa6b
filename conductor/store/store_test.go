package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
)

func open(t *testing.T, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestSQLite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) *store.Store { return open(t, t.TempDir()) })
}

// TestOpenAgain: what was answered is there after a restart, and a store that was never closed (killed) is no obstacle.
func TestOpenAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "with space & 100%?#")
	s := open(t, dir)
	n := &node.Node{Name: "kept", Driver: "x", DriverInfo: map[string]any{"p": "secret"}}
	if err := s.CreateNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, dir).Node(t.Context(), "kept")
	if err != nil || got.DriverInfo["p"] != "secret" {
		t.Fatalf("after opening again: %+v, %v", got, err)
	}
	if fi, err := os.Stat(filepath.Join(dir, "ingot.db")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the database is readable by others: %v, %v", fi.Mode(), err)
	}
}

// TestSecretsAreSealed looks for secrets in everything that the store leaves on disk.
func TestSecretsAreSealed(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	secrets := []string{"bmc-passw0rd", "ssh-ed25519-in-configdrive", "token-in-image-url", "argument-of-a-step",
		"changed-passw0rd"}
	n := &node.Node{Name: "visible-name", Driver: "ipmi",
		DriverInfo: map[string]any{"ipmi_password": secrets[0]},
		InstanceInfo: map[string]any{"configdrive": map[string]any{"user_data": secrets[1]},
			"image_source": "http://u:" + secrets[2] + "@h/i"},
		Job: &node.Job{ID: "j", Steps: []node.JobStep{{Name: "s", Args: []byte(`"` + secrets[3] + `"`)}}},
	}
	if err := s.CreateNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if _, err := s.UpdateNode(t.Context(), n.UUID,
		func(n *node.Node) error { n.DriverInfo["ipmi_password"] = secrets[4]; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	if !bytes.Contains(all.Bytes(), []byte("visible-name")) {
		t.Error("the search itself does not work: the node's name is not in the files")
	}
	for _, secret := range secrets {
		if bytes.Contains(all.Bytes(), []byte(secret)) {
			t.Errorf("%q can be read in the files", secret)
		}
	}
}

func TestKey(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	if err := open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(ctx, store.Options{Dir: dir, Key: bytes.Repeat([]byte{1}, 32)}); err == nil ||
		!strings.Contains(err.Error(), "does not fit") {
		t.Errorf("Open with another key = %v", err)
	}
	if _, err := store.Open(ctx, store.Options{Dir: t.TempDir(), Key: []byte("short")}); err == nil {
		t.Error("Open with a short key = nil")
	}
	key := filepath.Join(dir, "key")
	if fi, err := os.Stat(key); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v", fi, err)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(ctx, store.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("Open without the key file = %v", err)
	}
	if _, err := os.Stat(key); !errors.Is(err, os.ErrNotExist) {
		t.Error("a new key was made beside data of another")
	}
}

func TestWriteStops(t *testing.T) { store.Engines(t, testWriteStops) }

func testWriteStops(t *testing.T, o store.Options) {
	s := openOptions(t, o)
	n := &node.Node{Driver: "x"}
	if err := s.CreateNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	// A writer that is held up keeps a later one waiting, which gives up when its context ends and is then never run.
	hold, held := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := s.UpdateNode(t.Context(), n.UUID, func(*node.Node) error { close(held); <-hold; return nil })
		if err != nil {
			t.Error(err)
		}
	})
	<-held
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.UpdateNode(ctx, n.UUID, func(n *node.Node) error { n.Name = "late"; return nil }); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("a write whose context ended = %v", err)
	}
	close(hold)
	wg.Wait()
	if got, err := s.Node(t.Context(), n.UUID); err != nil || got.Name != "" {
		t.Errorf("the write that was given up came through: %+v, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.AddMark(t.Context(), node.Mark{NodeUUID: n.UUID}); !errors.Is(err, store.ErrClosed) {
		t.Errorf("write after Close = %v, want ErrClosed", err)
	}
}

// BenchmarkTogether shows what sharing transactions brings.
func BenchmarkTogether(b *testing.B) {
	s, err := store.Open(b.Context(), store.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	n := &node.Node{Driver: "x"}
	if err := s.CreateNode(b.Context(), n); err != nil {
		b.Fatal(err)
	}
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if err := s.AddMark(b.Context(), node.Mark{NodeUUID: n.UUID, Name: fmt.Sprint(i)}); err != nil {
				b.Error(err)
			}
		}
	})
}
