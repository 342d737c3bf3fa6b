package erase

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
)

func TestErasePstore(t *testing.T) {
	m := fake.NewMachine(t.TempDir())
	run := func() (string, error) {
		out, err := PstoreStep(m)(t.Context(), &step.Call{Log: slog.New(slog.DiscardHandler), Facts: &step.Facts{}})
		b, _ := json.Marshal(out.Result)
		return string(b), err
	}
	if got, err := run(); err != nil || got != `{"removed":[]}` {
		t.Errorf("without a store: %s, %v", got, err)
	}
	dir, proc := filepath.Join(m.Root(), "sys/fs/pstore"), filepath.Join(m.Root(), "proc/self")
	for _, d := range []string{dir, proc} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(proc, "mounts"), "sysfs /sys sysfs rw 0 0\n")
	if _, err := run(); err == nil {
		t.Error("a store that is not mounted was taken for an empty one")
	}
	write(filepath.Join(proc, "mounts"), "pstore /sys/fs/pstore pstore rw,nosuid 0 0\n")
	write(filepath.Join(dir, "dmesg-efi-1"), "a secret")
	write(filepath.Join(dir, "dmesg-efi-2"), "another")
	if got, err := run(); err != nil || got != `{"removed":["dmesg-efi-1","dmesg-efi-2"]}` {
		t.Errorf("full: %s, %v", got, err)
	}
	if got, err := run(); err != nil || got != `{"removed":[]}` {
		t.Errorf("again: %s, %v", got, err)
	}
}
