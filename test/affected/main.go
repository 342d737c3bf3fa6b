// Command affected is `make check`: it checks what a change can affect, and says what it leaves out and why.
//
// The change is every file that differs between a base and the working tree, those included that git does not know
// yet. Which packages it can affect follows from the import graph; which machine tests (the second group of
// test/run), from the table in machines.go. What would take too long is left out, the least specific first: the
// change of one leaf package is checked within 3 minutes and any other within 8, as far as test/run/costs.txt knows
// what tests take. `make test` leaves nothing out.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

const module = "github.com/ingot-metal/ingot"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("affected", flag.ContinueOnError)
	f.SetOutput(stderr)
	base := f.String("base", "", "commit or branch to compare with; without one, upstream's main or main")
	allowed := f.Duration("budget", 0, "time that all may take; without one, 3m for one leaf package, else 8m")
	dry := f.Bool("n", false, "run nothing: only print what would be run and what is left out")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unknown argument %s", f.Arg(0))
	}
	began := time.Now()
	root, err := topLevel(ctx)
	if err != nil {
		return err
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	from, files, err := changedFiles(ctx, root, *base)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		fmt.Fprintf(stdout, "Nothing differs from %s: there is nothing to check.\n", from)
		return nil
	}
	in := input{budget: *allowed, root: os.Geteuid() == 0, processors: runtime.NumCPU()}
	if in.graph, err = readGraph(ctx); err != nil {
		return err
	}
	if in.suites, in.costs, err = readSuites(ctx, in.graph); err != nil {
		return err
	}
	in.change = classify(files, in.graph)
	p := choose(in)
	fmt.Fprintf(stdout, "base      %s\nchanged   %s\n", from, countedFiles(files))
	p.print(stdout)
	if *dry {
		return nil
	}
	return p.run(ctx, began, stdout, stderr)
}
