package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// plan lists the actions of a check, and those that it leaves out.
type plan struct {
	packages  []string // tested with the race detector
	jobs      []string // of the second group
	linted    []string // packages; "all" when everything is
	generated bool     // the generated code is checked
	root      bool

	budget   time.Duration
	expected float64 // seconds
	left     []leftOut
}

// leftOut is tests that are not run for the same reason.
type leftOut struct {
	why   string
	what  []string
	lines bool // each on a separate line
}

func (p *plan) leave(why string, what ...string) {
	p.left = append(p.left, leftOut{why: why, what: what})
}

func (p *plan) tests() bool { return len(p.packages)+len(p.jobs) > 0 }

// lint returns the arguments of tools/lint.sh.
func (p *plan) lint() []string {
	switch {
	case len(p.linted) == 0:
		return []string{"none"}
	case slices.Equal(p.linted, []string{"all"}):
		return nil
	}
	return dotted(p.linted)
}

// print prints what is tested, and what is left out and why.
func (p *plan) print(w io.Writer) {
	fmt.Fprintf(w, "time      %s expected, %s allowed\n", seconds(p.expected), seconds(p.budget.Seconds()))
	list := func(title string, names []string) {
		if len(names) > 0 {
			fmt.Fprintf(w, "%s\n%s", title, wrapped("  ", " ", names))
		}
	}
	list(fmt.Sprintf("tests of %s:", counted(len(p.packages), "package")), p.packages)
	list("tests in machines or of large programs, without the race detector:", p.jobs)
	if len(p.left) > 0 {
		fmt.Fprintln(w, "left out:")
	}
	for _, l := range p.left {
		switch {
		case len(l.what) == 0:
			fmt.Fprintf(w, "  %s\n", l.why)
		case !l.lines:
			fmt.Fprintf(w, "  %s:\n%s", l.why, wrapped("    ", ", ", l.what))
		default:
			fmt.Fprintf(w, "  %s:\n", l.why)
			for _, text := range l.what {
				fmt.Fprint(w, wrapped("    ", " ", strings.Fields(text)))
			}
		}
	}
}

// run does all that a plan holds, and returns an error when anything of it failed.
func (p *plan) run(ctx context.Context, began time.Time, stdout, stderr io.Writer) error {
	var failed []string
	step := func(name string, command ...string) {
		if ctx.Err() != nil {
			return
		}
		fmt.Fprintf(stdout, "\n== %s\n", name)
		start := time.Now()
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = time.Minute
		cmd.Stdout, cmd.Stderr = stdout, stderr
		result := "ok"
		if err := cmd.Run(); err != nil {
			result = "FAILED"
			failed = append(failed, name)
		}
		fmt.Fprintf(stdout, "== %s: %s, %s\n", name, result, seconds(time.Since(start).Seconds()))
	}
	if p.root && p.tests() {
		step("packages of Debian", "sh", "tools/deps.sh", "build", "lab", "images", "test")
	}
	step("format, vet, linters, shell syntax", append([]string{"sh", "tools/lint.sh"}, p.lint()...)...)
	if p.generated {
		step("generated code", "sh", "tools/generate.sh", "--check")
	}
	switch packages, jobs := strings.Join(p.packages, ","), strings.Join(p.jobs, ","); {
	case !p.tests():
	case p.root:
		// Not by go run, which does not pass signals on.
		step("build test/run", "go", "build", "-o", "build/test/run", "./test/run")
		step("tests", "build/test/run", "-record", "build/test/check.json",
			"-packages", cmp.Or(packages, "none"), "-jobs", cmp.Or(jobs, "none"))
	default:
		all := slices.Concat(p.packages, p.jobs)
		slices.Sort(all)
		step("tests", append([]string{"go", "test"}, dotted(slices.Compact(all))...)...)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	took := seconds(time.Since(began).Seconds())
	if len(failed) > 0 {
		return errors.New("failed after " + took + ": " + strings.Join(failed, "; "))
	}
	fmt.Fprintf(stdout, "\ncheck: all passed, %s\n", took)
	return nil
}

// dotted turns names of packages into arguments of go.
func dotted(names []string) []string {
	var all []string
	for _, n := range names {
		all = append(all, "./"+n)
	}
	return all
}

// counted is a number of things in words: 1 file, 2 files.
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// seconds is a time in words: 41 s, 3 min 5 s.
func seconds(s float64) string {
	if n := int(s + 0.5); n >= 60 {
		return fmt.Sprintf("%d min %d s", n/60, n%60)
	}
	return fmt.Sprintf("%.0f s", s)
}

// wrapped puts words into lines of at most 120 columns.
func wrapped(indent, between string, words []string) string {
	var b strings.Builder
	column := 0
	for i, word := range words {
		if i < len(words)-1 {
			word += strings.TrimRight(between, " ")
		}
		switch {
		case column == 0:
			b.WriteString(indent)
			column = len(indent)
		case column+1+len(word) > 120:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String() + "\n"
}
