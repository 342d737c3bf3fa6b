package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// suite is a package of test/run's second group.
type suite struct {
	Package     string
	Apart, Also bool                // see test/run
	Needs       []string            // things of test/kit/made that all its tests need
	More        map[string][]string // what single tests need besides
	files       map[string][]string // its tests, by file
}

// readSuites asks test/run for its second group, and finds the tests of each.
func readSuites(ctx context.Context, g graph) ([]suite, error) {
	cmd := exec.CommandContext(ctx, "go", "run", "./test/run", "-list")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the second group of tests: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	var all []suite
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("list the second group of tests: %w", err)
	}
	for i := range all {
		s := &all[i]
		s.files = map[string][]string{}
		if g[s.Package] == nil {
			continue // deleted
		}
		for _, f := range g[s.Package].tests {
			src, err := os.ReadFile(filepath.Join(s.Package, f))
			if err != nil {
				return nil, err
			}
			s.files[f] = testsIn(string(src))
		}
	}
	return all, nil
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)

// testsIn lists the tests of a file.
func testsIn(source string) []string {
	var names []string
	for _, m := range testFunc.FindAllStringSubmatch(source, -1) {
		if m[1] != "TestMain" {
			names = append(names, m[1])
		}
	}
	return names
}

// cutColon takes package:Test apart.
func cutColon(name string) (pkg, test string, ok bool) { return strings.Cut(name, ":") }

// matchesTest tells whether a line's name, which may end in *, stands for a test.
func matchesTest(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// readCosts reads test/run/costs.txt: what jobs, things and packages (race:NAME) take, in processor seconds.
func readCosts(path string) (map[string]float64, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m := map[string]float64{}
	for l := range strings.Lines(string(text)) {
		var s float64
		var name string
		if n, _ := fmt.Sscanf(l, "%f %s", &s, &name); n == 2 {
			m[name] = s
		}
	}
	return m, nil
}
