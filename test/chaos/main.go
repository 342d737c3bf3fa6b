// Command chaos runs three ingotd on one PostgreSQL, simulated machines and clients of the public API, has faults
// happen that a seed draws, and checks that no promise is broken:
//
//   - each node's history is linearisable: there is an order of its requests in which every answer is right;
//   - no change that was acknowledged is lost, no event is missing or comes twice;
//   - a machine has one owner: its agent runs one step at a time and writes an image once for a deployment, and its
//     controller is asked by one client at a time;
//   - in the end nothing is under way or locked, each failed node says why, no connection or transaction is left.
//
// It ends with 0 when all held. Otherwise the broken promises are printed with the seed, which draws the same faults.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := start(ctx, os.Args[1:], os.Stdout)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context, args []string, out io.Writer) error {
	o := options{out: out}
	fl := flag.NewFlagSet("chaos", flag.ContinueOnError)
	fl.Uint64Var(&o.seed, "seed", 1, "draws the faults, the machines and what the clients do")
	fl.DurationVar(&o.lasts, "time", 2*time.Minute, "how long faults happen")
	fl.IntVar(&o.nodes, "nodes", 20, "number of machines")
	fl.StringVar(&o.bin, "ingotd", "bin/ingotd", "the program")
	fl.BoolVar(&o.quiet, "quiet", false, "no faults, to see how it is without")
	fl.BoolVar(&o.plant, "plant", false, "run an ingotd whose fencing is off; it is an error when all holds nevertheless")
	fl.StringVar(&o.keep, "keep", "", "folder for the conductors' logs if something did not hold")
	if err := fl.Parse(args); err != nil {
		return err
	}
	if o.nodes < 1 || o.lasts <= 0 {
		return errors.New("-nodes is 1 or more, and -time longer than 0")
	}
	if _, err := os.Stat(o.bin); err != nil && !o.plant {
		return fmt.Errorf("-ingotd names the program to run (make build): %w", err)
	}
	faults, err := run(ctx, o)
	switch {
	case err != nil:
		return err
	case o.plant && len(faults) > 0:
		fmt.Fprintf(out, "the planted fault was found:\n%s\n", strings.Join(faults, "\n"))
	case o.plant:
		return fmt.Errorf("the planted fault was not found with seed %d", o.seed)
	case len(faults) > 0:
		return fmt.Errorf("with seed %d these did not hold:\n%s", o.seed, strings.Join(faults, "\n"))
	}
	return nil
}

type options struct {
	seed      uint64
	lasts     time.Duration
	nodes     int
	bin, keep string
	quiet     bool
	plant     bool
	out       io.Writer
}

// Numbers of clients, in sum.
const (
	registerClients = 8
	createClients   = 2
)

// settle is how long the nodes may need, when all is in order again, until nothing is under way.
const settle = 4 * time.Minute

// run returns what did not hold.
func run(ctx context.Context, o options) (faults []string, err error) {
	dir, err := os.MkdirTemp("", "ingot-chaos-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL has no rights
		return nil, err
	}
	defer func() {
		if (len(faults) > 0 || err != nil) && o.keep != "" {
			err = errors.Join(err, keep(dir, o.keep))
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	began := time.Now()
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(o.out, "%7.1f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	if o.plant {
		if o.bin, err = plant(ctx, dir); err != nil {
			return nil, err
		}
	}
	s, err := newSite(ctx, dir, o.bin)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	w := &work{running: map[*fleet.Machine]map[string]int{}, wrote: map[string]int{},
		images: map[*fleet.Machine]int{}}
	f, err := fleet.Start(ctx, fleet.Options{Nodes: o.nodes, Seed: o.seed, Network: byte(80 + os.Getpid()%170),
		Log:     slog.New(slog.NewTextHandler(logTo(say), &slog.HandlerOptions{Level: slog.LevelWarn})),
		BootURL: s.boots(), Boot: 2 * time.Second, Write: 6 * time.Second, Step: time.Second / 2,
		Trouble: 12 * time.Second, Seen: w.seen,
		Rates: fleet.Rates{Die: 0.01, Freeze: 0.01, Lie: 0.02, Fail: 0.02, Slow: 1}})
	if err != nil {
		return nil, err
	}
	gone := sync.OnceValue(f.Close)
	defer func() { err = errors.Join(err, gone()) }()
	c := &clients{site: s, history: &history{began: began}, say: say, codes: map[int]int{}, made: map[string]bool{},
		values: map[string]int64{}, asked: map[string]int{}}
	if err := c.create(ctx, f.Machines); err != nil {
		return nil, err
	}
	say("%d conductors, %d machines, seed %d", len(s.all), o.nodes, o.seed)

	working, stop := context.WithTimeout(ctx, o.lasts)
	defer stop()
	number := uint64(0)
	var clients sync.WaitGroup
	client := func(f func(context.Context, *rand.Rand)) {
		number++
		rng := rand.New(rand.NewPCG(o.seed, number))
		clients.Go(func() { f(working, rng) })
	}
	for range registerClients {
		client(c.registers)
	}
	for range createClients {
		client(c.creates)
	}
	for _, node := range c.nodes {
		client(func(ctx context.Context, rng *rand.Rand) { c.verbs(ctx, rng, node) })
	}
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch()
	var watchers sync.WaitGroup
	watchers.Go(func() { c.events(watching, rand.New(rand.NewPCG(o.seed, 1<<32))) })
	watchers.Go(func() {
		for seen := int64(0); watching.Err() == nil; time.Sleep(50 * time.Millisecond) {
			if n := f.Overlaps(); n > seen {
				seen = n
				say("a controller was asked while another client waited: %d times so far", n)
			}
		}
	})
	b := &befaller{site: s, say: say, busy: map[string]bool{}}
	var watchErr error
	watchers.Go(func() { watchErr = b.watch(watching) })
	if !o.quiet {
		err = b.run(working, schedule(rand.New(rand.NewPCG(o.seed, 0)), o.lasts))
	}
	clients.Wait()
	if err != nil || ctx.Err() != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	say("no more faults; %s", f.Summary(nil))
	for _, at := range s.all {
		if err := at.answers(ctx, time.Minute); err != nil {
			return nil, err
		}
	}
	faults = append(faults, c.rest(ctx)...)
	faults = append(faults, c.kept(ctx)...)
	unwatch()
	watchers.Wait()
	say("checking %d requests to registers, %d steps of agents, %d images; %d overlaps; answers by status: %v",
		len(c.history.ops), w.steps, len(w.wrote), f.Overlaps(), c.codes)
	faults = append(faults, c.history.check(ctx)...)
	if n := f.Overlaps(); n > 0 {
		faults = append(faults, fmt.Sprintf("controllers were asked %d times while another client waited for an answer", n))
	}
	faults = append(append(append(faults, c.faults...), w.faults...), w.again(c.asked)...)
	faults = append(faults, s.logs()...)
	web.CloseIdleConnections()
	if err := gone(); err != nil {
		return faults, err
	}
	return append(faults, s.left(ctx)...), watchErr
}

// logTo prints the lines of a log.
type logTo func(format string, args ...any)

func (l logTo) Write(line []byte) (int, error) {
	l("%s", bytes.TrimSpace(line))
	return len(line), nil
}

// mostFiles is how many files a conductor that does nothing may have open: listeners, connections to the database.
const mostFiles = 64

// left returns what is left at the conductors a while after all machines and clients have gone.
func (s *site) left(ctx context.Context) (faults []string) {
	const open = `SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'ingotd' AND pid <> pg_backend_pid() AND xact_start < clock_timestamp() - interval '5 s'`
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		faults = nil
		for _, c := range s.all {
			files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.pid()))
			if err != nil || len(files) > mostFiles {
				faults = append(faults, fmt.Sprintf("%s has %d open files, %v", c.name, len(files), err))
			}
		}
		if n, err := s.db.Query(ctx, "ingot", open); err != nil || n != "0" {
			faults = append(faults, fmt.Sprintf("transactions of conductors that stay open: %s, %v", n, err))
		}
		if len(faults) == 0 || time.Now().After(end) || ctx.Err() != nil {
			return faults
		}
	}
}

// atRest are the states in which nothing is under way.
var atRest = []string{"enroll", "manageable", "available", "active", "deploy failed", "clean failed", "inspect failed",
	"error", "rescue failed", "unrescue failed", "service failed", "adopt failed"}

// rest waits until nothing is under way on any node, and returns what is wrong with the nodes then.
func (c *clients) rest(ctx context.Context) (faults []string) {
	for end := time.Now().Add(settle); ; time.Sleep(time.Second) {
		faults = nil
		for i, node := range c.nodes {
			n, ok := c.node(ctx, c.all[i%len(c.all)], node)
			failed := strings.HasSuffix(n.State, "failed") || n.State == "error"
			switch {
			case !ok:
				faults = append(faults, fmt.Sprintf("node %s can't be read", node))
			case !slices.Contains(atRest, n.State):
				faults = append(faults, fmt.Sprintf("node %s still is %s %s after all faults", node, n.State, settle))
			case n.Reservation != nil:
				faults = append(faults, fmt.Sprintf("node %s, %s, is still locked by %s", node, n.State, *n.Reservation))
			case failed && (n.Error == nil || *n.Error == ""):
				faults = append(faults, fmt.Sprintf("node %s is %s without an error that says why", node, n.State))
			}
		}
		if len(faults) == 0 || time.Now().After(end) || ctx.Err() != nil {
			return faults
		}
	}
}

// kept returns what is lost of what was promised, at each conductor: nodes that were made, and deletions.
func (c *clients) kept(ctx context.Context) (faults []string) {
	for _, at := range c.all {
		for _, node := range c.nodes {
			c.read(ctx, at, node)
		}
		a := c.ask(ctx, at, http.MethodGet, "/v1/nodes?fields=name", nil)
		var list struct{ Nodes []struct{ Name string } }
		if err := json.Unmarshal(a.body, &list); err != nil || !a.ok() {
			faults = append(faults, fmt.Sprintf("the list of nodes at %s: %d %v", at.name, a.status, err))
			continue
		}
		there := map[string]bool{}
		for _, n := range list.Nodes {
			there[n.Name] = true
		}
		c.mu.Lock()
		for name, sure := range c.made {
			if sure && !there[name] {
				faults = append(faults, fmt.Sprintf("node %s was made, and is not there at %s", name, at.name))
			}
		}
		for name := range there {
			if _, known := c.made[name]; !known && strings.HasPrefix(name, "made-") {
				faults = append(faults, fmt.Sprintf("node %s was deleted, and is there at %s", name, at.name))
			}
		}
		c.mu.Unlock()
	}
	return faults
}

// logs returns what the conductors' logs have that they never may.
func (s *site) logs() (faults []string) {
	for _, c := range s.all {
		b, err := os.ReadFile(c.logFile())
		if err != nil {
			faults = append(faults, err.Error())
		}
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") ||
				strings.Contains(line, "DATA RACE") {
				faults = append(faults, c.name+" said: "+strings.TrimSpace(line))
			}
		}
	}
	return faults
}

// keep copies the conductors' logs.
func keep(dir, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for i := range conductors {
		name := fmt.Sprint("c", i+1)
		b, err := os.ReadFile(filepath.Join(dir, name, "log"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name+".log"), b, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
