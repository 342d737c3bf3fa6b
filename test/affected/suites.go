package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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

// readSuites asks test/run for its second group and finds the tests of each, and for what jobs, things and packages
// (race:NAME) are expected to take, in processor seconds.
func readSuites(ctx context.Context, g graph) ([]suite, map[string]float64, error) {
	cmd := exec.CommandContext(ctx, "go", "run", "./test/run", "-list")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("list the second group of tests: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	var listed struct {
		Suites []suite
		Costs  map[string]float64
	}
	if err := json.Unmarshal(out, &listed); err != nil {
		return nil, nil, fmt.Errorf("list the second group of tests: %w", err)
	}
	for i := range listed.Suites {
		s := &listed.Suites[i]
		s.files = map[string][]string{}
		if g[s.Package] == nil {
			continue // deleted
		}
		for _, f := range g[s.Package].tests {
			src, err := os.ReadFile(filepath.Join(s.Package, f))
			if err != nil {
				return nil, nil, err
			}
			s.files[f] = testsIn(string(src))
		}
	}
	return listed.Suites, listed.Costs, nil
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

// matchesTest reports whether a line's name, which may end in *, stands for a test.
func matchesTest(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}
