// Command run runs tests and records what each of them cost; `make test` is this without arguments.
//
// There are two groups. Packages are tested by `go test -race`. Tests that boot machines, and the few that the race
// detector is too slow for or has nothing to see in, are jobs in one queue over all packages, the longest first
// (test/kit/queue); the places that the first group leaves free are theirs. What they share is made before, once
// (test/kit/made).
//
// The record is a file of JSON lines: the events of `go test -json`, with the CPU seconds of tests and packages, and
// what each phase cost. `run -times` prints it as tables. A skipped test is a failure: all are meant to run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/ingot-metal/ingot/test/kit/made"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "test/run:", err)
		os.Exit(1)
	}
}

const defaultRecord = "build/test/record.json"

func run(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	o := options{}
	f.StringVar(&o.record, "record", defaultRecord, "file of the record")
	f.IntVar(&o.slots, "slots", runtime.NumCPU()+2, "jobs at a time: machines also wait")
	f.StringVar(&o.packages, "packages", "all", "packages to test with the race detector, by commas; all, or none")
	f.StringVar(&o.jobs, "jobs", "all", "jobs of the second group, by commas (package, or package:Test); all, or none")
	times := f.Bool("times", false, "run nothing: print the record as tables")
	update := f.Bool("update-costs", false, "run nothing: write test/run/costs.txt from the record")
	listed := f.Bool("list", false, "run nothing: print the table of the second group as JSON")
	thing := f.String("make", "", "run nothing: make one of the things that tests share")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unknown argument %s", f.Arg(0))
	}
	switch {
	case *thing != "":
		_, err := made.Make(ctx, *thing)
		return err
	case *listed:
		return printSuites(out)
	case *times:
		return printTimes(out, o.record)
	case *update:
		return updateCosts(o.record, filepath.Join("test", "run", "costs.txt"))
	}
	if os.Geteuid() != 0 && (o.packages == "all" || o.jobs != "none") {
		return errors.New(
			"tests need root: they make network namespaces, loop devices and virtual machines. (make test-fast does not.)")
	}
	return o.run(ctx, out)
}

// options selects what to run.
type options struct {
	record         string
	slots          int
	packages, jobs string
}

// selected reports whether a list of names, by commas, or the words all and none, names one of some names.
func selected(list string, names ...string) bool {
	switch list {
	case "all":
		return true
	case "none":
		return false
	}
	for _, have := range strings.Split(list, ",") {
		for _, name := range names {
			if have == name {
				return true
			}
		}
	}
	return false
}
