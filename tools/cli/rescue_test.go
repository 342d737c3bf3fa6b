package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/compat/bench"
)

// TestRescue: what opens a machine is read from files, and what can't is refused before the conductor is asked.
func TestRescue(t *testing.T) {
	c := bench.Start(t, nil)
	u := &user{t: t, url: c.URL}
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key := file("id.pub",
		"# mine\nssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGzRr1dU7qV1m3Xx0vQyqzJ4mFm2n0w7Cw8Yk3q1r9aL me\n")
	u.ok(words("node create n1 --driver fake-hardware")...)
	u.ok(words("node manage n1")...)
	u.ok(words("node provide n1")...)
	u.ok(words("node deploy n1 --image http://images/x --checksum sha256:" + strings.Repeat("0", 64))...)

	u.fails(words("node rescue n1"), "what opens the machine")
	u.fails([]string{"node", "rescue", "n1", "--ssh-key", file("id", "-----BEGIN OPENSSH PRIVATE KEY-----\n")},
		"private key")
	u.fails([]string{"node", "rescue", "n1", "--ssh-key", file("none", "# nothing\n")}, "no key")
	u.fails([]string{"node", "rescue", "n1", "--ssh-key", file("bad", "ssh-rsa nonsense\n")}, "key 1")
	u.fails([]string{"node", "rescue", "n1", "--password-file", file("empty", "\nx\n")}, "is empty")
	u.fails([]string{"node", "rescue", "n1", "--password-file", filepath.Join(dir, "missing")}, "read the password")

	u.ok("node", "rescue", "n1", "--ssh-key", key)
	u.ok(words("node unrescue n1")...)
	u.ok("node", "rescue", "n1", "--password-file", file("password", "open sesame\n"), "--wait")
	if out := u.ok(words("node show n1 -o json")...); strings.Contains(out, "sesame") ||
		!strings.Contains(out, `"rescue"`) {
		t.Errorf("rescued, the node is\n%s", out)
	}
	u.ok(words("node unrescue n1 --wait")...)
	u.fails(words("node reset-network n1"), "no agent that is connected")
}
