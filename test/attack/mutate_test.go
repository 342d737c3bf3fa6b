package attack

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit/made"
)

// mutation takes one guard out of the product. The row that holds the guard has to fail then, and to say why.
type mutation struct {
	kind    string // of what a hostile review found, one of kinds
	file    string // of the product
	guard   string // is in the file once
	without string // stands in its place, and compiles
	row     string // PACKAGE:TEST
	says    string // a part of the row's output when the guard is gone
}

// source returns the mutated text of the file, or the fault of the entry.
func (m mutation) source() ([]byte, error) {
	text, err := os.ReadFile(filepath.Join("../..", m.file))
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(text, []byte(m.guard)); n != 1 || m.guard == m.without {
		return nil, fmt.Errorf("%s has the guard %q %d times, want it once, and something else in its place", m.file,
			m.guard, n)
	}
	text = bytes.Replace(text, []byte(m.guard), []byte(m.without), 1)
	if _, err := parser.ParseFile(token.NewFileSet(), m.file, text, parser.SkipObjectResolution); err != nil {
		return nil, fmt.Errorf("without the guard %q: %w", m.guard, err)
	}
	return text, nil
}

// TestMutations: each entry of the list fits the code as it is now, and each of kinds has one. With INGOT_FULL the
// product is built without each of the guards: the guard's row has to fail then, and to pass with all guards.
func TestMutations(t *testing.T) {
	missing, rows := slices.Clone(kinds), proofs{}
	for _, m := range mutations {
		if _, err := m.source(); err != nil {
			t.Error(err)
		}
		if !slices.Contains(kinds, m.kind) || m.says == "" {
			t.Errorf("%s, %q: kind %q, says %q", m.file, m.guard, m.kind, m.says)
		}
		rows.check(t, m.file, []string{strings.Replace(m.row, ":", ".", 1)})
		missing = slices.DeleteFunc(missing, func(k string) bool { return k == m.kind })
	}
	if len(missing) > 0 {
		t.Errorf("no mutation shows that rows can fail that are about %q", missing)
	}
	if os.Getenv("INGOT_FULL") == "" || t.Failed() {
		return
	}
	whole := map[string]bool{} // rows that were run with all guards
	for _, m := range mutations {
		_, test, _ := strings.Cut(m.row, ":")
		t.Run(test+" "+filepath.Base(m.file), func(t *testing.T) {
			if !whole[m.row] {
				whole[m.row] = true
				if out := m.run(t, ""); !strings.Contains(out, "\n--- PASS: "+test) {
					t.Fatalf("the row does not pass with the guard:\n%s", out)
				}
			}
			if out := m.run(t, m.overlay(t)); !strings.Contains(out, "\n--- FAIL: "+test) ||
				!strings.Contains(out, m.says) {
				t.Errorf("without the guard %q of %s the row does not fail with %q: mend the row, or take out the guard if it guards nothing\n%s", m.guard, m.file, m.says, out)
			}
		})
	}
}

// overlay makes the file that has go build take the mutated text in place of the product's.
func (m mutation) overlay(t *testing.T) string {
	text, err := m.source()
	if err != nil {
		t.Fatal(err)
	}
	file, err := filepath.Abs(filepath.Join("../..", m.file))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mutant, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{file: mutant}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{mutant: text, overlay: list} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return overlay
}

// run runs the row, with the files of an overlay in place of the product's unless that is "", and gives what it prints.
// A row of this package attacks an ingotd that is built; any other is built itself.
func (m mutation) run(t *testing.T, overlay string) string {
	pkg, test, _ := strings.Cut(m.row, ":")
	dir, env := t.TempDir(), append(os.Environ(), "CGO_ENABLED=0", "INGOT_FULL=")
	attack := pkg == "test/attack"
	build, bin := []string{"test", "-c", "-vet=off", "-o", filepath.Join(dir, "row"), "./" + pkg},
		filepath.Join(dir, "row")
	if attack {
		build = []string{"build", "-buildvcs=false", "-o", filepath.Join(dir, "ingotd"), "./conductor/cmd/ingotd"}
		var err error
		if bin, err = os.Executable(); err != nil {
			t.Fatal(err)
		}
	}
	if attack && overlay == "" {
		dir = filepath.Dir(made.Program(t, "ingotd"))
	} else {
		cmd := exec.CommandContext(t.Context(), "go", slices.Insert(build, 1, "-trimpath", "-overlay="+overlay)...)
		cmd.Dir, cmd.Env = "../..", append(env, "GOGC=400") // the compiler's; see test/run
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("the entry does not compile: %v\n%s", err, out)
		}
	}
	if attack {
		env = append(env, "INGOT_PROGRAMS="+dir)
	}
	cmd := exec.CommandContext(t.Context(), bin, "-test.run=^"+test+"$", "-test.v", "-test.timeout=15m")
	cmd.Dir, cmd.Env = filepath.Join("../..", pkg), env
	out, _ := cmd.CombinedOutput() // how it ended is in what it printed
	return "\n" + string(out)
}
