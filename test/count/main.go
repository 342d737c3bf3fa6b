// Command count reads the output of `go test -json`, shows what failed, and ends with the number of tests passed, failed and
// skipped. It exits with 1 when a test failed, when one was skipped (a gap, where everything was meant to run), or when there was
// none at all.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	if !count(os.Stdin, os.Stdout) {
		os.Exit(1)
	}
}

type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

// unfinished shows what tests said that never ended, because their package died: the time was up, or the process was killed.
func unfinished(out io.Writer, text map[string]*strings.Builder, pkg string) {
	for _, key := range slices.Sorted(maps.Keys(text)) {
		if test, ok := strings.CutPrefix(key, pkg+" "); ok {
			fmt.Fprintf(out, "UNFINISHED  %s %s\n%s", pkg, test, text[key])
			delete(text, key)
		}
	}
}

// count reports whether everything ran and passed.
func count(in io.Reader, out io.Writer) bool {
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 16<<20)
	text := map[string]*strings.Builder{} // output per test, and per package under "pkg "
	var passed, failed, skipped int
	took := map[string]float64{} // of tests that took long
	broken := false              // a package that did not build, or died outside a test
	for sc.Scan() {
		var e event
		if json.Unmarshal(sc.Bytes(), &e) != nil {
			fmt.Fprintln(out, sc.Text()) // what go itself says
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "output":
			if text[key] == nil {
				text[key] = &strings.Builder{}
			}
			text[key].WriteString(e.Output)
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "pass":
			if e.Test != "" {
				passed++
				if e.Elapsed >= 20 && !strings.Contains(e.Test, "/") {
					took[key] += e.Elapsed
				}
			} else if e.Elapsed >= 1 {
				fmt.Fprintf(out, "ok    %-55s %v\n", e.Package, time.Duration(e.Elapsed*float64(time.Second)).Round(100*time.Millisecond))
			}
			delete(text, key)
		case "skip":
			if e.Test != "" {
				skipped++
				fmt.Fprintf(out, "SKIP  %s %s\n%s", e.Package, e.Test, text[key])
			}
		case "fail":
			if e.Test != "" {
				failed++
			} else {
				broken = true
			}
			fmt.Fprintf(out, "FAIL  %s %s\n", e.Package, e.Test)
			if b := text[key]; b != nil {
				fmt.Fprint(out, b)
			}
			delete(text, key)
			if e.Test == "" {
				unfinished(out, text, e.Package)
			}
		}
	}
	if err := sc.Err(); err != nil {
		fmt.Fprintln(out, "read test output:", err)
		broken = true
	}
	slowest := slices.SortedFunc(maps.Keys(took), func(a, b string) int { return cmp.Compare(took[b], took[a]) })
	for _, key := range slowest[:min(len(slowest), 20)] {
		fmt.Fprintf(out, "slow  %6.0f s  %s\n", took[key], key)
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	return passed > 0 && failed == 0 && skipped == 0 && !broken
}
