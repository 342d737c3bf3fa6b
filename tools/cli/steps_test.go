package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/compat/bench"
)

// TestPlanAndSteps: what would be done, and what came of it.
func TestPlanAndSteps(t *testing.T) {
	c := bench.Start(t, nil)
	u := &user{t: t, url: c.URL}
	u.ok(words("node create n1 --driver fake-hardware")...)
	if out := u.ok(words("node steps n1")...); !strings.Contains(out, "nothing has been done on n1") {
		t.Errorf("a new node: %q", out)
	}
	u.ok(words("node manage n1")...)
	out := u.ok(words("node plan n1 --for clean --step deploy.wait")...)
	if !strings.Contains(out, "deploy.wait") || !strings.Contains(out, "conductor") ||
		strings.Contains(out, "refused") {
		t.Errorf("the plan is\n%s", out)
	}
	dry := u.ok(words("node clean n1 --step deploy.wait --dry-run")...)
	if dry != out {
		t.Errorf("--dry-run says\n%sand plan\n%s", dry, out)
	}
	u.fails(words("node plan n1 --for clean --step deploy.dance"), "deploy.dance")
	u.fails([]string{"node", "plan", "n1", "--for", "clean", "--step", `deploy.wait={"harder":"yes"}`},
		"no argument harder")
	u.fails(words("node plan n1 --for dancing"), "--for", "provide")
	u.fails(words("node plan n1 --for clean"), "which steps")
	u.fails(words("node plan n1 --for provide --step a.b"), "--step goes with")
	if out := u.ok(words("node plan n1 --for deploy")...); !strings.Contains(out, "Now it would be refused") {
		t.Errorf("a deployment of a manageable node is planned as\n%s", out)
	}
	if out := u.ok(words("node show n1")...); !strings.Contains(out, "manageable") {
		t.Errorf("planning did something:\n%s", out)
	}
	u.ok(words("node clean n1 --step deploy.wait")...)
	file := filepath.Join(t.TempDir(), "steps.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("- interface: deploy\n  step: wait\n  args: {seconds: 1}\n- {interface: deploy, step: wait}\n")
	if out := u.ok("node", "clean", "n1", "--steps", file, "--dry-run"); strings.Count(out, "deploy.wait") != 2 ||
		!strings.Contains(out, `"seconds":1`) {
		t.Errorf("steps of a file are planned as\n%s", out)
	}
	u.fails([]string{"node", "service", "n1", "--steps", file}, "service") // it is not in use
	// what can be said without the conductor is said without it
	away := &user{t: t, url: "http://127.0.0.1:1"}
	away.fails([]string{"node", "service", "n1", "--steps", file + "-none"}, "no such file")
	away.fails([]string{"node", "service", "n1"}, "which steps")
	away.fails([]string{"node", "service", "n1", "--step", "a.b", "--runbook", "r"}, "which steps")
	write("- {interface: deploy, stop: wait}\n")
	away.fails([]string{"node", "service", "n1", "--steps", file}, "list of objects")
	write("- {interface: deploy}\n")
	away.fails([]string{"node", "service", "n1", "--steps", file}, "number 1 has no")
	out = u.ok(words("node steps n1 --results")...)
	for _, want := range []string{"clean, ended", "deploy.wait", "done", "verify, ended"} {
		if !strings.Contains(out, want) {
			t.Errorf("the steps lack %q:\n%s", want, out)
		}
	}
	if out := u.ok(words("node steps n1 -o json")...); !strings.Contains(out, `"past"`) ||
		!strings.Contains(out, `"wait"`) {
		t.Errorf("as JSON:\n%s", out)
	}
}
