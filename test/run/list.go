package main

import (
	"encoding/json"
	"io"
	"strings"
)

// printSuites prints the table of the second group, and what tests are expected to take, as JSON for `make check`
// (test/affected).
func printSuites(out io.Writer) error {
	type line struct {
		Package     string
		Apart, Also bool
		Needs       []string            // of all its tests
		More        map[string][]string // needs of single tests
	}
	var all []line
	for _, s := range suites {
		l := line{s.pkg, s.apart, s.also, s.needs, map[string][]string{}}
		for name, needs := range more {
			if pkg, test, ok := strings.Cut(name, ":"); ok && pkg == s.pkg {
				l.More[test] = needs
			}
		}
		all = append(all, l)
	}
	return json.NewEncoder(out).Encode(map[string]any{"suites": all, "costs": costs()})
}
