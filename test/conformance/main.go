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
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

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
	seed        uint64
	seeds, most int
	part        int
	lasts       time.Duration
	auths       string
	record      bool
	dir, binary string
}

// folder has the recording and the list of accepted differences.
const folder = "test/conformance/testdata"

// ways are the kinds of authentication.
var ways = []ironic.Auth{ironic.None, ironic.HTTPBasic, ironic.Keystone}

func start(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options
	fs := flag.NewFlagSet("conformance", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Uint64Var(&o.seed, "seed", 0, "what the requests are made from, and the first of so many; 0 draws each")
	fs.IntVar(&o.seeds, "seeds", 1,
		"how many seeds; each has the next tenth of what can be varied")
	fs.IntVar(&o.most, "scenes", 0, "how many scenes at most, of about fifty requests each; 0 is all")
	fs.IntVar(&o.part, "part", 1, "the tenth that the first seed has")
	fs.DurationVar(&o.lasts, "for", 0, "go on with new seeds for so long")
	fs.StringVar(&o.auths, "auth", "none,http_basic,keystone", "kinds of authentication")
	fs.BoolVar(&o.record, "record", false, "write the answers of Ironic to "+folder)
	fs.StringVar(&o.dir, "testdata", folder, "where the list of accepted differences and the recording are")
	fs.StringVar(&o.binary, "ingotd", "", "the ingotd to compare; without it, one of this tree")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 || o.seeds < 1 || o.most < 0 || o.part < 1 || o.lasts < 0 || o.record && (o.seeds > 1 ||
		o.lasts > 0) {
		return errors.New("bad arguments: -seeds and -part are at least 1, -scenes and -for are not negative, " +
			"one seed is recorded, and nothing follows the flags")
	}
	var auths []ironic.Auth
	for name := range strings.SplitSeq(o.auths, ",") {
		if !slices.Contains(ways, ironic.Auth(name)) {
			return fmt.Errorf("bad arguments: -auth %q is none of none, http_basic and keystone", name)
		}
		auths = append(auths, ironic.Auth(name))
	}
	list, err := o.list()
	if err != nil {
		return err
	}
	return o.compare(ctx, stdout, stderr, list, auths)
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

// share is the work of one pair of servers: some of the seeds, with one kind of authentication.
type share struct {
	auth         ironic.Auth
	first, seeds int
	rare         []*accept.Entry // instead of what follows first: scenes with the routes of these lines, by their seeds
	report       run.Report
	recorded     []record.Exchange
}

const (
	seedsPerPair = 5
	pairsAtOnce  = 3 // Ironic answers one request after the other, so a pair leaves processors idle
)

// compare asks pairs of servers what the seeds give, with each kind of authentication.
func (o *options) compare(ctx context.Context, stdout, stderr io.Writer, list accept.List, auths []ironic.Auth) error {
	var shares []*share
	for _, auth := range auths {
		for first := 0; first < o.seeds; first += seedsPerPair {
			shares = append(shares, &share{auth: auth, first: first, seeds: min(seedsPerPair, o.seeds-first)})
		}
	}
	log, out := slog.New(slog.NewTextHandler(stderr, nil)), &together{to: stdout}
	group, inTime := errgroup.WithContext(ctx)
	group.SetLimit(pairsAtOnce)
	work := func(ctx context.Context, s *share) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		pair, err := ironic.Start(ctx, ironic.Options{Auth: s.auth, Binary: o.binary, Log: log})
		if err != nil {
			return err
		}
		return errors.Join(o.ask(ctx, out, list, pair, s), pair.Stop())
	}
	for _, s := range shares {
		group.Go(func() error { return work(inTime, s) })
	}
	err := group.Wait()
	whole := o.seeds >= ask.Parts && len(auths) == len(ways)
	// What few seeds show is asked for with one that does.
	rare := &share{auth: ironic.None, rare: list.Rare()}
	if err == nil && whole && o.seed != 0 && len(rare.rare) > 0 {
		rare.seeds = len(rare.rare)
		shares = append(shares, rare)
		err = work(ctx, rare)
	}
	var report run.Report
	var recorded []record.Exchange
	for _, s := range shares {
		report.Add(&s.report)
		recorded = append(recorded, s.recorded...)
		fmt.Fprintf(stdout, "%s: %d requests compared, %d differences accepted, %d not\n", s.auth, s.report.Compared,
			s.report.Accepted, len(s.report.Found))
	}
	report.Write(stdout) // also what was found before something went wrong
	if err != nil {
		return err
	}
	if o.record {
		if err := o.keep(stdout, recorded); err != nil {
			return err
		}
	}
	if whole && o.seed == 0 { // what is drawn need not meet every line
		for _, e := range list.Unmatched() {
			fmt.Fprintf(stdout, "line %d (%s %s) matched no request of these seeds\n", e.Line, e.Route, e.Field)
		}
	}
	err = list.Check(report.Compared, whole && o.seed != 0)
	if len(report.Found) > 0 || len(report.Left) > 0 {
		err = errors.Join(fmt.Errorf("%d differences are not accepted, and %d objects could not be removed",
			len(report.Found), len(report.Left)), err)
	}
	return err
}

// together has several write, each a whole text.
type together struct {
	mu sync.Mutex
	to io.Writer
}

func (w *together) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}

// keep writes a recording.
func (o *options) keep(stdout io.Writer, es []record.Exchange) error {
	var b bytes.Buffer
	if err := record.Write(&b, es); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.dir, "ironic-21.4.jsonl.gz"), b.Bytes(), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "recorded %d answers, %d bytes\n", len(es), b.Len())
	return nil
}

// ask asks a pair what its share of the seeds gives, and keeps what Ironic answered if that is to be recorded.
func (o *options) ask(ctx context.Context, stdout io.Writer, list accept.List, pair *ironic.Pair, s *share) error {
	first, second := &run.Server{Base: pair.Ironic}, &run.Server{Base: pair.Ingot}
	first.As(pair)
	second.As(pair)
	routes, err := description(ctx, second)
	if err != nil {
		return err
	}
	began := time.Now()
	for i := 0; i < s.seeds || s.rare == nil && time.Since(began) < o.lasts; i++ {
		seed, part := o.seed+uint64(s.first+i), o.part-1+s.first+i
		if o.seed == 0 {
			seed = rand.Uint64N(1<<32-1) + 1
		}
		if s.rare != nil {
			seed, part = s.rare[i].Seed, s.rare[i].Part-1
		}
		scenes := ask.Scenes(routes, asked(s.auth), seed, part)
		if s.rare != nil {
			scenes = slices.DeleteFunc(scenes, func(as []ask.Ask) bool {
				return !slices.ContainsFunc(as, s.rare[i].Covers)
			})
		}
		if len(scenes) == 0 {
			continue
		}
		if i > 0 {
			if err := pair.Reset(ctx); err != nil {
				return err
			}
		}
		before, found := s.report.Compared, len(s.report.Found)
		if o.most > 0 {
			scenes = scenes[:min(o.most, len(scenes))]
		}
		for _, scene := range scenes {
			es, err := s.report.Both(ctx, list, first, second, scene, !o.record)
			if err != nil {
				return err
			}
			if o.record {
				s.recorded = append(s.recorded, es...)
			}
			for _, f := range s.report.Found[found:] { // now, for a run is long
				fmt.Fprintf(stdout, "%s: %s: %s\n", s.auth, f.Ask.Route, f.Difference)
			}
			found = len(s.report.Found)
		}
		fmt.Fprintf(stdout, "%s: seed %d, part %d of %d: %d requests compared\n", s.auth, seed, part%ask.Parts+1,
			ask.Parts, s.report.Compared-before)
	}
	return nil
}

// asked is how requests name a kind of authentication.
func asked(auth ironic.Auth) string {
	if auth == ironic.None {
		return ""
	}
	return string(auth)
}

// description is the route table of a running ingotd.
func description(ctx context.Context, s *run.Server) ([]ask.Route, error) {
	b, err := s.Get(ctx, "/openapi.json")
	if err != nil {
		return nil, err
	}
	return ask.Routes(b)
}
