package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
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

// secretly types when the terminal has stopped to show what is typed, which it does just after the question.
type secretly struct{ keys *os.File }

func (s secretly) Write(b []byte) (int, error) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		now, err := unix.IoctlGetTermios(int(s.keys.Fd()), unix.TCGETS)
		if err != nil {
			return 0, err
		}
		if now.Lflag&unix.ECHO == 0 {
			return s.keys.Write(b)
		}
		if time.Now().After(end) {
			return 0, errors.New("the terminal would show a password")
		}
	}
}

// TestImportAsks: on a terminal the import asks for what the API masks, node by node, and does not show what is typed.
// Enter takes the answer before.
func TestImportAsks(t *testing.T) {
	c := bench.Start(t, nil)
	for _, name := range []string{"web1", "web2", "web3"} {
		if err := c.Store.CreateNode(t.Context(), &node.Node{Name: name, Driver: "ipmi", Provision: node.Active,
			DriverInfo: map[string]any{"ipmi_password": "theirs"}}); err != nil {
			t.Fatal(err)
		}
	}
	data, file := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "secrets.yaml")
	if err := os.WriteFile(file, []byte("web3: {ipmi_password: of the file}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, stdin := terminal(t)
	screen := &prompts{keys: secretly{keys}, answers: [][2]string{
		{"ipmi_password of node web1 (Enter leaves it out): ", "typed"},
		{"ipmi_password of node web2 (Enter takes the one before): ", ""}}}
	err := Run(t.Context(), []string{"import", "ironic", "--ingotd", made.Program(t, "ingotd"), "--from", c.URL,
		"--data-dir", data, "--secrets", file, "--ask"}, stdin, screen, screen, func(string) string { return "" })
	if err != nil || len(screen.answers) > 0 {
		t.Fatalf("%v, not asked: %q\n%s", err, screen.answers, &screen.all)
	}
	// What the terminal has shown of it.
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCINQ)
	if err != nil {
		t.Fatal(err)
	}
	echo := make([]byte, n)
	if _, err := io.ReadFull(keys, echo); err != nil || strings.Contains(string(echo)+screen.all.String(), "typed") {
		t.Errorf("the terminal shows %q, %v, and the program\n%s", echo, err, &screen.all)
	}
	st, err := store.Open(t.Context(), store.Options{Dir: data})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	for name, want := range map[string]string{"web1": "typed", "web2": "typed", "web3": "of the file"} {
		if n, err := st.Node(t.Context(), name); err != nil || n.DriverInfo["ipmi_password"] != want || n.Maintenance {
			t.Errorf("%s: %+v, %v", name, n, err)
		}
	}
}
