package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/compat/bench"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// TestImportIronic: the command is ingotd's import, with all of its flags.
func TestImportIronic(t *testing.T) {
	c := bench.Start(t, nil)
	if err := c.Store.CreateNode(t.Context(), &node.Node{Name: "web1", Driver: "ipmi", Provision: node.Active,
		DriverInfo: map[string]any{"ipmi_password": "x"}}); err != nil {
		t.Fatal(err)
	}
	u, data := &user{t: t, url: "http://127.0.0.1:1"}, filepath.Join(t.TempDir(), "data")
	args := []string{"import", "ironic", "--ingotd", made.Program(t, "ingotd"), "--from", c.URL, "--data-dir", data}
	out := u.ok(append(args, "--dry-run")...)
	if !strings.Contains(out, "Dry run") || !strings.Contains(out, "1 nodes taken over, 0 were here already") {
		t.Errorf("dry run: %s", out)
	}
	if out = u.ok(args...); !strings.Contains(out, "1 nodes taken over, 0 were here already") ||
		!strings.Contains(out, "ipmi_password") {
		t.Errorf("import: %s", out)
	}
	if out = u.ok(args...); !strings.Contains(out, "0 nodes taken over, 1 were here already") {
		t.Errorf("import again: %s", out)
	}
	u.fails(append(args, "--secrets", "/nowhere"), "not complete")
	u.fails(append(args, "--ask"), "not complete")
	u.fails(append(args, "--ingotd", "/nowhere"), "/nowhere")
}
