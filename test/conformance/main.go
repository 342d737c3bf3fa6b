// Command conformance sends generated requests to a real Ironic and to ingotd and compares the answers.
//
// It ends with 0 if no answer differs but by the list of accepted differences, testdata/accept.txt.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/test/conformance/accept"
	"github.com/ingot-metal/ingot/test/conformance/ask"
	"github.com/ingot-metal/ingot/test/conformance/ironic"
	"github.com/ingot-metal/ingot/test/conformance/record"
	"github.com/ingot-metal/ingot/test/conformance/run"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := start(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

type options struct {
	seed          uint64
	seeds, scenes int
	lasts         time.Duration
	record        bool
	dir, binary   string
}

// folder has the recording and the list of accepted differences.
const folder = "test/conformance/testdata"

func start(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options
	fs := flag.NewFlagSet("conformance", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Uint64Var(&o.seed, "seed", 0, "what the requests are made from; 0 draws one")
	fs.IntVar(&o.seeds, "seeds", 1, "how many seeds; all but the first are drawn")
	fs.IntVar(&o.scenes, "scenes", 95, "how many scenes each, of some thirty requests")
	fs.DurationVar(&o.lasts, "for", 0, "go on with new seeds for so long")
	fs.BoolVar(&o.record, "record", false, "write the answers of Ironic to "+folder)
	fs.StringVar(&o.dir, "testdata", folder, "where the list of accepted differences and the recording are")
	fs.StringVar(&o.binary, "ingotd", "", "the ingotd to compare; without it, one of this tree")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 || o.seeds < 1 || o.scenes < 1 || o.lasts < 0 || o.record && (o.seeds > 1 || o.lasts > 0) {
		return errors.New(
			"bad arguments: -seeds and -scenes are at least 1, -for is not negative, one seed is recorded, and nothing follows the flags")
	}
	list, err := o.list()
	if err != nil {
		return err
	}
	pair, err := ironic.Start(ctx, ironic.Options{Binary: o.binary, Log: slog.New(slog.NewTextHandler(stderr, nil))})
	if err != nil {
		return err
	}
	return errors.Join(o.compare(ctx, stdout, list, pair), pair.Stop())
}

func (o *options) list() (accept.List, error) {
	f, err := os.Open(filepath.Join(o.dir, "accept.txt"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l, err := accept.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return l, nil
}

func (o *options) compare(ctx context.Context, stdout io.Writer, list accept.List, pair *ironic.Pair) error {
	routes, err := description(ctx, pair.Ingot)
	if err != nil {
		return err
	}
	var report run.Report
	err = o.ask(ctx, stdout, list, pair, routes, &report)
	report.Write(stdout) // also what was found before something went wrong
	if err != nil {
		return err
	}
	if len(report.Found) > 0 || len(report.Left) > 0 {
		return fmt.Errorf("%d differences are not accepted, and %d objects could not be removed", len(report.Found),
			len(report.Left))
	}
	return list.Check(report.Compared, o.seeds >= 10)
}

// ask asks both what the seeds give.
func (o *options) ask(ctx context.Context, stdout io.Writer, list accept.List, pair *ironic.Pair, routes []ask.Route,
	report *run.Report) error {
	began := time.Now()
	for i := 0; i < o.seeds || time.Since(began) < o.lasts; i++ {
		seed := o.seed
		if seed == 0 || i > 0 {
			seed = rand.Uint64N(1<<32-1) + 1
		}
		fmt.Fprintf(stdout, "seed %d\n", seed)
		if i > 0 {
			if err := pair.Reset(ctx); err != nil {
				return err
			}
		}
		first, second := &run.Server{Base: pair.Ironic}, &run.Server{Base: pair.Ingot}
		var all []record.Exchange
		for scene := range o.scenes {
			es, err := report.Both(ctx, list, first, second, ask.Scene(routes, seed, scene))
			if err != nil {
				return err
			}
			all = append(all, es...)
		}
		if o.record {
			var b bytes.Buffer
			if err := record.Write(&b, all); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(o.dir, "ironic-21.4.jsonl.gz"), b.Bytes(), 0o644); err != nil {
				return err
			}
			fmt.Fprintf(stdout, "recorded %d answers, %d bytes\n", len(all), b.Len())
		}
	}
	return nil
}

// description is the route table of a running ingotd.
func description(ctx context.Context, base string) ([]ask.Route, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/openapi.json", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	return ask.Routes(b)
}
