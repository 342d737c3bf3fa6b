package app

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/agents"
)

// memory is a database that all conductors have in common.
type memory struct {
	mu   sync.Mutex
	text []byte
}

func (m *memory) Shared(context.Context) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text, nil
}

func (m *memory) SetShared(_ context.Context, was, now []byte) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !bytes.Equal(m.text, was) {
		return false, nil
	}
	m.text = now
	return true, nil
}

// TestSharedKeys: conductors that start together, join later, or were stopped while the CA was rotated at another one
// all have the same CA and key of erasures; keys from elsewhere are neither overwritten nor given to the others.
func TestSharedKeys(t *testing.T) {
	ctx, st := t.Context(), &memory{}
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	var cas, keys [3]string
	open := func(i int) error {
		ca, key, err := openKeys(ctx, dirs[i], st)
		if err == nil {
			cas[i], keys[i] = ca.Fingerprint()+" "+ca.NextFingerprint(), string(key.PEM())
		}
		return err
	}
	same := func(when string) {
		t.Helper()
		for i := range dirs {
			if cas[i] != cas[0] || keys[i] != keys[0] || cas[0] == "" {
				t.Errorf("%s: conductor %d has %s, the first one %s", when, i, cas[i], cas[0])
			}
		}
	}
	var wg sync.WaitGroup
	for i := range dirs {
		wg.Go(func() {
			if err := open(i); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	same("started together")
	before := cas[0]

	if _, err := agents.RotateCA(dirs[1], time.Now(), time.Hour); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{1, 0, 2} {
		if err := open(i); err != nil {
			t.Fatal(err)
		}
	}
	same("after a rotation")
	if cas[0] == before || strings.HasSuffix(cas[0], " ") {
		t.Errorf("the rotation is not there: %s", cas[0])
	}
	if _, err := agents.RotateCA(dirs[2], time.Now(), 0); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{2, 1, 0, 2} {
		if err := open(i); err != nil {
			t.Fatal(err)
		}
	}
	same("after a rotation at once")
	for _, name := range []string{"ca.key", "erasure.key", "shared"} {
		info, err := os.Stat(filepath.Join(dirs[0], name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}

	other, stored := t.TempDir(), bytes.Clone(st.text)
	if _, _, err := openKeys(ctx, other, nil); err != nil { // one that worked alone
		t.Fatal(err)
	}
	pem, err := os.ReadFile(filepath.Join(other, agents.CACertFile))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := openKeys(ctx, other, st); err == nil ||
		!strings.Contains(err.Error(), "move ca.crt, erasure.key") || strings.Contains(err.Error(), "\n") {
		t.Errorf("keys from elsewhere: %v", err)
	}
	after, err := os.ReadFile(filepath.Join(other, agents.CACertFile))
	if err != nil || !bytes.Equal(pem, after) || !bytes.Equal(st.text, stored) {
		t.Error("keys were overwritten")
	}
}
