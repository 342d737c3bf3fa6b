package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCompatibilityNamesTests: what docs/reference/ironic-compatibility.md says works names a test, and every test it
// names is there.
func TestCompatibilityNamesTests(t *testing.T) {
	works := func(line string) bool { return strings.Contains(line, "| works |") }
	namesTests(t, "reference/ironic-compatibility.md", works, 50)
}

// TestGuaranteesNameTests: each guarantee of docs/reference/guarantees.md names a test, and every test it names is
// there.
func TestGuaranteesNameTests(t *testing.T) {
	namesTests(t, "reference/guarantees.md", func(line string) bool {
		return strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| guarantee |")
	}, 40)
}

// TestContributingNamesFiles: every file and folder that CONTRIBUTING.md, SECURITY.md and CHANGELOG.md name is there.
func TestContributingNamesFiles(t *testing.T) {
	named := regexp.MustCompile("`((?:agent|conductor|images|proto|initramfs|tools|test|docs)/[A-Za-z0-9_./-]+)`")
	found := 0
	for _, page := range []string{"CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			found++
			if _, err := os.Stat(filepath.Join("..", "..", m[1])); err != nil {
				t.Errorf("%s names %s, which is not there", page, m[1])
			}
		}
	}
	if found < 20 {
		t.Errorf("%d files are named; are they still as this test reads them?", found)
	}
}

var testName = regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)\\w+)(\\*?)`")

// namesTests checks the tests that a page of the documentation names, as `package.Test` or, for several,
// `package.Test*`. Each line that promises something must name one, and there are at least some such lines.
func namesTests(t *testing.T, page string, promises func(line string) bool, least int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(text)) {
		named := testName.FindAllStringSubmatch(line, -1)
		if promises(line) {
			if found++; len(named) == 0 {
				t.Errorf("no test is named: %s", line)
			}
		}
		for _, m := range named {
			end := "("
			if m[3] != "" {
				end = ""
			}
			if !isTest(t, m[1], m[2]+end) {
				t.Errorf("there is no test %s in %s, which is named here: %s", m[2], m[1], line)
			}
		}
	}
	if found < least {
		t.Errorf("docs/%s has %d lines that promise something, want %d or more; is its shape still as this test reads it?", page, found, least)
	}
}

// isTest reports whether a package has a test whose name, followed by its subtest's, begins so.
func isTest(t *testing.T, pkg, begin string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(f string) bool {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(src), "\nfunc "+begin)
	})
}
