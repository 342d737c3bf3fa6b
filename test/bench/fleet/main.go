// Command fleet measures one ingotd with many simulated machines (tools/lab/fleet): idle agents, deployments at once,
// and the return of all agents after a restart.
//
// It starts real ingotd processes on fresh data directories, with SQLite in its default durability and power states
// read every minute. The machines run in this process and share the machine's processors; memory and processor time are
// those of ingotd alone, from /proc.
package main

import (
	"cmp"
	"context"
	"encoding/json"
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

// row is the figures of one number of nodes.
type row struct {
	Nodes int `json:"nodes"`
	// Of idle agents: resident memory in MiB, and processor seconds per second.
	MemoryMiB float64 `json:"memory_mib"`
	IdleCPU   float64 `json:"idle_cpu"`
	// Of the return of all agents after a restart: seconds, and agents that were refused.
	Back    float64 `json:"back_s"`
	Refused int     `json:"refused"`
	// Of deployments of all nodes at once: seconds until all are active, deployments per minute, and seconds from a
	// node's request until it is active, of which its machine spends 11 to 33.
	Deploy    float64 `json:"deploy_s"`
	PerMinute float64 `json:"per_minute"`
	EachP50   float64 `json:"each_p50_s"`
	EachP99   float64 `json:"each_p99_s"`
	// Of the API while all nodes are deployed: one node, in ms; a page of all nodes, in ms.
	APIP50 float64 `json:"api_p50_ms"`
	APIP99 float64 `json:"api_p99_ms"`
	List   float64 `json:"list_ms"`
	// Overlaps is how often a controller was asked while another request waited there.
	Overlaps int64 `json:"overlaps"`
	Failed   int   `json:"failed"`
}

type report struct {
	At      time.Time `json:"at"`
	Machine string    `json:"machine"`
	Rows    []row     `json:"rows"`
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var bin, dir, reports, counts string
	var idle time.Duration
	fl := flag.NewFlagSet("bench-fleet", flag.ContinueOnError)
	fl.StringVar(&bin, "ingotd", "bin/ingotd", "the program to measure")
	fl.StringVar(&dir, "dir", "", "where data directories are made (default: the system's temporary folder)")
	fl.StringVar(&reports, "report", "build", "folder of bench-fleet.json and bench-fleet.md")
	fl.StringVar(&counts, "nodes", "100 1000", "numbers of nodes, one run for each")
	fl.DurationVar(&idle, "idle", time.Minute, "how long idle agents are measured")
	if err := fl.Parse(args); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(dir, "bench-fleet-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	r := report{At: time.Now().UTC().Truncate(time.Second), Machine: fmt.Sprintf("%d processors", runtime.NumCPU())}
	for _, word := range strings.Fields(counts) {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > fleet.Most {
			return fmt.Errorf("-nodes %q: a number of nodes is from 1 to %d", word, fleet.Most)
		}
		b := &bench{ctx: ctx, bin: bin, dir: filepath.Join(tmp, word), idle: idle, out: out, row: row{Nodes: n}}
		if err := b.measure(); err != nil {
			return fmt.Errorf("%d nodes: %w", n, err)
		}
		r.Rows = append(r.Rows, b.row)
	}
	fmt.Fprintf(out, "\n%s", r.table())
	return r.write(reports)
}

// percentile sorts a list; it is zero for an empty one.
func percentile(all []float64, p int) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.SortFunc(all, cmp.Compare[float64])
	return all[(len(all)-1)*p/100]
}

func (r *report) table() string {
	var b strings.Builder
	b.WriteString("| nodes | memory MiB | idle CPU cores | all back s | refused | all active s | per minute | each p50 / p99 s | GET p50 / p99 ms | list ms | overlaps | failed |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, x := range r.Rows {
		fmt.Fprintf(&b, "| %d | %.0f | %.3f | %.1f | %d | %.1f | %.0f | %.1f / %.1f | %.1f / %.1f | %.0f | %d | %d |\n",
			x.Nodes, x.MemoryMiB, x.IdleCPU, x.Back, x.Refused, x.Deploy, x.PerMinute, x.EachP50, x.EachP99, x.APIP50,
			x.APIP99, x.List, x.Overlaps, x.Failed)
	}
	return b.String()
}

// write puts the report into dir as bench-fleet.json and bench-fleet.md.
func (r *report) write(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "bench-fleet.json"), append(text, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "bench-fleet.md"), []byte(r.table()), 0o644))
}
