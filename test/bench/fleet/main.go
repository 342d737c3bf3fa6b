// Command fleet measures ingotd with many simulated machines (tools/lab/fleet): idle agents, the return of all agents
// after a restart, the take-over of a dead conductor's nodes, and deployments at once with many readers of events.
//
// It starts real ingotd processes on fresh data directories, one or several, with SQLite or PostgreSQL in their default
// durability and power states read every minute. The machines run in this process and share the machine's processors;
// memory and processor time are those of the processes themselves, from /proc.
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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench-fleet:", err)
		os.Exit(1)
	}
}

// Engines.
const (
	sqlite   = "sqlite"
	postgres = "postgres"
)

// options are what is measured.
type options struct {
	bin, dir, engine     string
	conductors, watchers int
	idle                 time.Duration
	out                  io.Writer
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o := &options{out: out}
	var reports, counts, flats string
	var goals bool
	fl := flag.NewFlagSet("bench-fleet", flag.ContinueOnError)
	fl.StringVar(&o.bin, "ingotd", "bin/ingotd", "the program to measure")
	fl.StringVar(&o.dir, "dir", "", "where data directories are made (default: the system's temporary folder)")
	fl.StringVar(&o.engine, "engine", sqlite, "the database, sqlite or postgres")
	fl.IntVar(&o.conductors, "conductors", 1, "number of ingotd; several need postgres")
	fl.IntVar(&o.watchers, "watchers", 200, "readers of the stream of events during the deployments")
	fl.StringVar(&reports, "report", "build", "folder of bench-fleet.json and bench-fleet.md")
	fl.StringVar(&counts, "nodes", "100 1000", "numbers of nodes, one run for each")
	fl.StringVar(&flats, "flat", "", "numbers of nodes in the store with which the same 100 machines are deployed")
	fl.DurationVar(&o.idle, "idle", time.Minute, "how long idle agents are measured")
	fl.BoolVar(&goals, "goals", false, "end with an error if a goal is missed")
	if err := fl.Parse(args); err != nil {
		return err
	}
	switch {
	case !slices.Contains([]string{sqlite, postgres}, o.engine):
		return fmt.Errorf("-engine %q: it is sqlite or postgres", o.engine)
	case o.conductors < 1 || o.conductors > 9:
		return fmt.Errorf("-conductors %d: it is from 1 to 9", o.conductors)
	case o.conductors > 1 && o.engine == sqlite:
		return errors.New("several conductors share one PostgreSQL: add -engine postgres")
	}
	rows, err := numbers("-nodes", counts, 1)
	if err != nil {
		return err
	}
	fills, err := numbers("-flat", flats, few)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(o.dir, "bench-fleet-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	r := report{At: time.Now().UTC().Truncate(time.Second), Machine: fmt.Sprintf("%d processors", runtime.NumCPU())}
	for _, n := range rows {
		b := &bench{ctx: ctx, o: o}
		b.row = row{Nodes: n, Engine: o.engine, Conductors: o.conductors, Watchers: o.watchers}
		if err := b.measure(filepath.Join(tmp, strconv.Itoa(n))); err != nil {
			return fmt.Errorf("%d nodes: %w", n, err)
		}
		r.Rows = append(r.Rows, b.row)
	}
	for _, n := range fills {
		x, err := measureFlat(ctx, o, filepath.Join(tmp, "flat-"+strconv.Itoa(n)), n)
		if err != nil {
			return fmt.Errorf("deployments with %d nodes in the store: %w", n, err)
		}
		r.Flat = append(r.Flat, x)
	}
	r.Goals = r.goals()
	r.print(out)
	if err := r.write(reports); err != nil {
		return err
	}
	if n := r.missed(); goals && n > 0 {
		return fmt.Errorf("%d of %d goals are missed", n, len(r.Goals))
	}
	return nil
}

// numbers reads a list of numbers of nodes.
func numbers(name, list string, least int) (all []int, err error) {
	for _, word := range strings.Fields(list) {
		n, err := strconv.Atoi(word)
		if err != nil || n < least || n > fleet.Most {
			return nil, fmt.Errorf("%s %q: a number of nodes is from %d to %d", name, word, least, fleet.Most)
		}
		all = append(all, n)
	}
	return all, nil
}
