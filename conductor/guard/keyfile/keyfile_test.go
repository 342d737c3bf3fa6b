package keyfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhoMayReadAKey: its owner and the service's group, no other user; and the refusal names a command that leaves the
// service able to read it.
func TestWhoMayReadAKey(t *testing.T) {
	const user, group, other = 990, 991, 1000
	for _, c := range []struct {
		mode        fs.FileMode
		owner, gid  int
		wantCommand string // empty: it may be read
	}{
		{0o600, user, group, ""},
		{0o400, user, other, ""},
		{0o640, user, group, ""},
		{0o640, 0, group, ""},
		{0o600, 0, 0, ""},
		{0o644, user, group, "chmod 600 k"},
		{0o604, user, group, "chmod 600 k"},
		{0o602, user, group, "chmod 600 k"},
		{0o601, user, group, "chmod 600 k"},
		{0o660, user, group, "chmod 600 k"},
		{0o640, user, other, "chmod 600 k"},
		{0o644, 0, group, "chmod 640 k"},
		{0o644, 0, 0, "chown 990 k && chmod 600 k"},
		{0o600, other, group, "chown 990 k && chmod 600 k"},
		{0o640, other, group, "chown 990 k && chmod 600 k"},
	} {
		err := closed("k", c.mode, c.owner, c.gid, user, []int{5, group})
		if c.wantCommand == "" {
			if err != nil {
				t.Errorf("a key of %d:%d with mode %o: %v", c.owner, c.gid, c.mode, err)
			}
			continue
		}
		var open *ReadableError
		if !errors.As(err, &open) || open.Command != c.wantCommand {
			t.Errorf("a key of %d:%d with mode %o: %v, want %q", c.owner, c.gid, c.mode, err, c.wantCommand)
		}
	}
}

func TestReadAndWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read of nothing = %v", err)
	}
	for _, text := range []string{"first", "second"} {
		if err := Write(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if b, err := Read(path); err != nil || string(b) != text {
			t.Errorf("Read = %q, %v", b, err)
		}
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if b, err := Read(path); err == nil || b != nil || !strings.Contains(err.Error(), "chmod 600 "+path) {
		t.Errorf("Read of a key that everybody may read = %q, %v", b, err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := Write(filepath.Join(path, "x"), nil, 0o600); err == nil {
		t.Error("Write into what is no folder = nil")
	}
}
