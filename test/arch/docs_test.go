package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCompatibilityNamesTests: what docs/ironic-compatibility.md says works names a test, and every test it names is there.
func TestCompatibilityNamesTests(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "ironic-compatibility.md"))
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)\\w+)`")
	works := 0
	for line := range strings.Lines(string(text)) {
		named := name.FindAllStringSubmatch(line, -1)
		if strings.Contains(line, "| works |") {
			if works++; len(named) == 0 {
				t.Errorf("no test is named: %s", line)
			}
		}
		for _, m := range named {
			files, err := filepath.Glob(filepath.Join(root, m[1], "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, f := range files {
				src, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				found = found || strings.Contains(string(src), "\nfunc "+m[2]+"(")
			}
			if !found {
				t.Errorf("there is no test %s in %s, which is named here: %s", m[2], m[1], line)
			}
		}
	}
	if works < 50 {
		t.Errorf("the table has %d lines that work; is its shape still as this test reads it?", works)
	}
}
