// Command names compares the tests and subtests of a run with those of an earlier commit: `make test-names`, after
// `make test`. Each that is gone needs a line in one of this folder's moved files, which says where its guarantee went:
//
//	PACKAGE TEST[/SUBTEST] => where it is proved now, and why
//
// A name may end in *, for all that begin so, and TEST may be *. A line must name a test that the run has, and one that
// stands for nothing is an error. Packages are paths in this module; those that moved have a line of their own (PACKAGE
// -> NEW PACKAGE), and their tests are looked for there.
package main

import (
	"bufio"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

const module = "github.com/ingot-metal/ingot/"

// The names of the tests of a commit are in a file with its name, one PACKAGE TEST a line.
//
//go:embed *.txt
var files embed.FS

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "test/names:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	f := flag.NewFlagSet("names", flag.ContinueOnError)
	record := f.String("record", "build/test/record.json",
		"events of the run, as test/run and `go test -json` write them")
	base := f.String("base", "d926546", "commit to compare with")
	list := f.Bool("list", false, "compare nothing: print the names of the run")
	if err := f.Parse(args); err != nil {
		return err
	}
	events, err := os.Open(*record)
	if err != nil {
		return fmt.Errorf("%w: make test writes it", err)
	}
	defer events.Close()
	now, err := ran(events)
	if err != nil {
		return fmt.Errorf("read %s: %w", *record, err)
	}
	if *list {
		for _, name := range slices.Sorted(maps.Keys(now)) {
			fmt.Fprintln(out, name)
		}
		return nil
	}
	before, err := files.ReadFile(*base + ".txt")
	if err != nil {
		return fmt.Errorf("the names of commit %s are not kept here: %w", *base, err)
	}
	var moved strings.Builder
	all, err := files.ReadDir(".")
	if err != nil {
		return err
	}
	for _, e := range all {
		if strings.HasPrefix(e.Name(), "moved") {
			text, err := files.ReadFile(e.Name())
			if err != nil {
				return err
			}
			moved.Write(text)
		}
	}
	return compare(out, strings.Split(strings.TrimSpace(string(before)), "\n"), now, moved.String())
}

// ran reads the names of all tests that passed.
func ran(in io.Reader) (map[string]bool, error) {
	names := map[string]bool{}
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var e struct{ Action, Package, Test string }
		if json.Unmarshal(sc.Bytes(), &e) == nil && e.Action == "pass" && e.Test != "" {
			names[strings.TrimPrefix(e.Package, module)+" "+e.Test] = true
		}
	}
	return names, sc.Err()
}

// line is one of a moved file.
type line struct {
	text, from, to string
	used           bool
}

var named = regexp.MustCompile(`\b(Test|Fuzz)\w+`)

// compare prints each name of before that is neither in now nor explained, and each explanation that is wrong.
func compare(out io.Writer, before []string, now map[string]bool, moved string) error {
	var lines []*line
	packages := map[string]string{}
	top := map[string]bool{} // all top-level tests of the run, without packages
	for name := range now {
		_, test, _ := strings.Cut(name, " ")
		test, _, _ = strings.Cut(test, "/")
		top[test] = true
	}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for text := range strings.Lines(moved) {
		text = strings.TrimSpace(text)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		if from, to, ok := strings.Cut(text, " -> "); ok {
			packages[from] = to
			continue
		}
		from, to, ok := strings.Cut(text, " => ")
		if !ok || !strings.Contains(from, " ") {
			fault("not PACKAGE TEST => WHERE: %s", text)
			continue
		}
		if !slices.ContainsFunc(named.FindAllString(to, -1), func(t string) bool { return top[t] }) {
			fault("names no test of this run: %s", text)
		}
		lines = append(lines, &line{text: text, from: from, to: to})
	}
	gone := 0
	for _, name := range before {
		pkg, test, _ := strings.Cut(name, " ")
		if to, ok := packages[pkg]; ok {
			pkg = to
		}
		if now[pkg+" "+test] {
			continue
		}
		gone++
		explained := false
		for _, l := range lines {
			if prefix, ok := strings.CutSuffix(l.from, "*"); l.from == name || ok && strings.HasPrefix(name, prefix) {
				l.used, explained = true, true
			}
		}
		if !explained {
			fault("gone without a line: %s", name)
		}
	}
	for _, l := range lines {
		if !l.used {
			fault("stands for no test that is gone: %s", l.text)
		}
	}
	fmt.Fprintf(out, "%d names before, %d now; %d are gone, each with a line that says where its guarantee went\n",
		len(before), len(now), gone)
	for i, err := range faults {
		if i == 200 {
			fmt.Fprintf(out, "... and %d more\n", len(faults)-i)
			break
		}
		fmt.Fprintln(out, err)
	}
	if len(faults) > 0 {
		return errors.New("not all names are accounted for; see above")
	}
	return nil
}
