package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/test/compat/bench"
)

// terminal makes a terminal: what is typed at keys comes from the other one.
func terminal(t *testing.T) (keys, stdin *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keys.Close() })
	if err := unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	stdin, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close() })
	return keys, stdin
}

// prompts is an output that types the next answer when a question with some text has come.
type prompts struct {
	keys    io.Writer
	answers [][2]string // text of the question, answer

	mu  sync.Mutex
	all bytes.Buffer
	at  int // of what has been answered
}

func (p *prompts) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all.Write(b)
	if len(p.answers) > 0 && strings.Contains(p.all.String()[p.at:], p.answers[0][0]) {
		p.at = p.all.Len()
		answer := p.answers[0][1]
		p.answers = p.answers[1:]
		if _, err := io.WriteString(p.keys, answer+"\n"); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// TestGuidedDeployment: on a terminal, what a deployment lacks is asked for; the command that says the same is shown;
// and nothing is done without a yes.
func TestGuidedDeployment(t *testing.T) {
	u := &user{t: t, url: bench.Start(t, nil).URL}
	for _, name := range []string{"web1", "web2"} {
		u.ok(words("node create " + name + " --driver fake-hardware --property cpus=4 --property memory_mb=2048")...)
		u.ok(words("node manage " + name)...)
		u.ok(words("node provide " + name)...)
	}
	home := t.TempDir()
	key := filepath.Join(home, ".ssh", "id_ed25519.pub")
	if err := os.MkdirAll(filepath.Dir(key), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, []byte("ssh-ed25519 AAAA ann@example\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := "sha256:" + strings.Repeat("ab", 32)
	run := func(answers [][2]string, args ...string) (string, error) {
		t.Helper()
		keys, stdin := terminal(t)
		screen := &prompts{keys: keys, answers: answers}
		err := Run(t.Context(), args, stdin, screen, screen, func(k string) string {
			return map[string]string{"INGOT_ENDPOINT": u.url, "HOME": home}[k]
		})
		if len(screen.answers) > 0 {
			t.Errorf("ingot %v did not ask %q:\n%s", args, screen.answers[0][0], &screen.all)
		}
		return screen.all.String(), err
	}
	asked := func(last string) [][2]string {
		return [][2]string{{"Machine, by its number or name [web1]: ", "web9"}, {"web9", "2"}, {"serves: ", ""},
			{"serves: ", "http://images.example/it's.raw"}, {"Its checksum", sum}, {"Host name [web2]: ", ""},
			{"[" + key + "]: ", ""}, {"Go on? [y/N] ", last}}
	}
	out, err := run(asked("n"), "node", "deploy")
	if err == nil || !strings.Contains(Message(err), "nothing was done") {
		t.Errorf("without a yes: %v\n%s", err, out)
	}
	want := `ingot node deploy web2 --image 'http://images.example/it'\''s.raw' --checksum ` + sum +
		" --hostname web2 --ssh-key " + key
	for _, part := range []string{want, "web1", "2.00 GiB", "No available machine is called web9"} {
		if !strings.Contains(out, part) {
			t.Errorf("it does not show %q:\n%s", part, out)
		}
	}
	if out, err = run(asked("y"), "node", "deploy"); err != nil || !strings.Contains(out, "web2 is active") {
		t.Errorf("with a yes: %v\n%s", err, out)
	}
	// With all that is needed nothing is asked; neither is it without a terminal.
	out, err = run(nil, "node", "deploy", "web1", "--image", "http://images.example/x.raw", "--checksum", sum)
	if err != nil {
		t.Errorf("with all that is needed: %v\n%s", err, out)
	}
	u.fails(words("node deploy"), "one node")
	u.fails(words("node deploy web9"), "web9")
}
