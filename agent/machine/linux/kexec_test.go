package linux

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReadOnly holds that a loaded file can't be written, and that its content stays.
func TestReadOnly(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("kernel"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := readOnly(f); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 6)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "kernel" {
		t.Errorf("read %q, %v", b, err)
	}
	if _, err := f.WriteString("x"); err == nil {
		t.Error("it can still be written")
	}
}

// TestRefusal holds that a refusal says what the machine's state has to do with it.
func TestRefusal(t *testing.T) {
	for _, c := range []struct {
		err   error
		files map[string]string
		want  string
	}{
		{unix.EKEYREJECTED, map[string]string{"sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
			"sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": "\x06\x00\x00\x00\x01"},
			"trusts; Secure Boot is on and the agent's kernel is locked down"},
		{unix.EPERM, map[string]string{"sys/kernel/security/lockdown": "none [integrity] confidentiality\n"},
			"kernel trusts; the agent's kernel is locked down"},
		{unix.EPERM, map[string]string{"sys/kernel/security/lockdown": "[none] integrity confidentiality\n"},
			"does not allow it"},
		{unix.EPERM, map[string]string{"proc/sys/kernel/kexec_load_disabled": "1\n"}, "kexec_load_disabled"},
		{unix.ENOSYS, nil, "CONFIG_KEXEC_FILE"},
		{unix.ENOEXEC, nil, "no kernel"},
		{unix.ENOMEM, nil, "no room"},
		{unix.EIO, nil, "refuses"},
	} {
		root := t.TempDir()
		for name, text := range c.files {
			p := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := refusal(c.err, root); !strings.HasSuffix(got, c.want) && !strings.Contains(got, c.want) {
			t.Errorf("refusal(%v) = %q, want %q", c.err, got, c.want)
		}
	}
}
