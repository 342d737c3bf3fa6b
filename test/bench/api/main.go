// Command api measures how fast ingotd's API is and how little it needs, beside what a real Ironic was measured to do.
//
// It starts real ingotd processes on fresh data directories, with fake hardware and SQLite in its default durability:
// an answer of 2xx is on disk. The load comes from this process, over kept-alive loopback connections, and shares the
// machine's processors.
//
// The figures of Ironic are constants here, because a real one can't be had beside each run. They were taken on a
// machine of the same kind (2 shared cores) with Ironic 21.4.4 of Debian 12 and MariaDB 10.11 with its default
// durability, fake hardware too, in three shapes: API and conductor apart, both in one process, and the API under
// uwsgi. For each figure the best of the three is taken, as a median of three to six runs. That machine had other work
// at the time, which cost Ironic up to half its speed; ours is measured as it comes as well.
//
// With -base it compares ingotd with that of an earlier commit instead, as package against describes.
package main

import (
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
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/test/bench/against"
)

// What Ironic does, best of three shapes.
const (
	ironicCreate1, ironicCreate8 = 124.0, 132.0 // a second, up to 1,000 nodes
	ironicGet1, ironicGet8       = 247.0, 290.0 // a second
	ironicPatch1, ironicPatch8   = 26.0, 45.0   // a second
	ironicList, ironicDetail     = 124.0, 320.0 // ms, 1,000 nodes a page
	ironicCycles                 = 390.0        // a minute, 200 nodes from enroll to active, over 8 connections
	ironicIdle                   = 11.8         // CPU seconds a minute with 5,000 nodes, database included
	ironicMemory1000             = 263.0        // MiB, database included
	ironicMemory5000             = 409.0
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench-api:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	ctx    context.Context
	bin    string
	dir    string
	out    io.Writer
	report report
	short  time.Duration // how long a rate is measured
	idle   time.Duration
	many   int
}

func run(ctx context.Context, args []string, out io.Writer) error {
	b := &bench{ctx: ctx, out: out}
	var reports, base string
	var rounds int
	fl := flag.NewFlagSet("bench-api", flag.ContinueOnError)
	fl.StringVar(&b.bin, "ingotd", "bin/ingotd", "the program to measure")
	fl.StringVar(&b.dir, "dir", "",
		"where the data directories are made; the disk matters (default: the system's temporary folder)")
	fl.StringVar(&reports, "report", "build", "folder of bench-api.json and bench-api.md")
	fl.DurationVar(&b.short, "for", 3*time.Second, "how long each rate is measured")
	fl.DurationVar(&b.idle, "idle", time.Minute,
		"how long the idle time is measured; what it costs is given for a minute")
	fl.IntVar(&b.many, "many", 10000, "the larger number of nodes, 5000 or more")
	fl.StringVar(&base, "base", "", "measure against the ingotd of this commit instead: a shorter set, both in turn")
	fl.IntVar(&rounds, "n", against.MinRounds, "rounds against -base")
	only := fl.Bool("logins", false, "measure logins beside guessed passwords, and nothing else")
	postgres := fl.Bool("postgres", false, "measure ingotd and a real Ironic, both on PostgreSQL, and nothing else")
	if err := fl.Parse(args); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(b.dir, "bench-api-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	b.dir = tmp
	if base != "" {
		return b.against(against.Comparison{Revision: base, Rounds: rounds, Out: out, Log: os.Stderr})
	}
	b.report = report{At: time.Now().UTC().Truncate(time.Second),
		Machine: fmt.Sprintf("%d × %s", runtime.NumCPU(), processor())}
	parts := []func() error{b.flushes, b.small, b.large, func() error { return b.cycles(200) }, b.logins}
	switch {
	case *only:
		parts = []func() error{b.logins}
	case *postgres:
		parts = []func() error{b.postgres}
	}
	for _, part := range parts {
		if err := part(); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "\n%s", b.report.table())
	return b.report.write(reports)
}

func processor() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// flushes measures the disk by itself: what SQLite writes for one node, with the same calls and over blocks that exist,
// one after another. No database that keeps its promise makes nodes faster than that over one connection.
func (b *bench) flushes() error {
	const pages, page, rounds, warm = 6, 4096, 1000, 100
	f, err := os.Create(filepath.Join(b.dir, "flushes"))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 16<<20)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	block := make([]byte, page)
	var took []time.Duration
	var all time.Duration
	at := int64(0)
	for i := range rounds + warm {
		if at+pages*(24+page) > 16<<20 {
			at = 0
		}
		began := time.Now()
		for range pages { // a frame's header and the page
			for _, part := range [][]byte{block[:24], block} {
				if _, err := f.WriteAt(part, at); err != nil {
					return err
				}
				at += int64(len(part))
			}
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if i >= warm {
			took = append(took, time.Since(began))
			all += took[len(took)-1]
		}
	}
	slices.Sort(took)
	b.add(row{What: "the disk by itself: six pages and fsync", Unit: "a second", Value: rounds / all.Seconds(),
		P50: ms(took[rounds/2]), P99: ms(took[rounds*99/100])})
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (b *bench) add(r row) {
	b.report.Rows = append(b.report.Rows, r)
	fmt.Fprintf(b.out, "%-58s %8s %-14s %s\n", r.What, number(r.Value), r.Unit, r.verdict())
}

// fresh starts ingotd on new data.
func (b *bench) fresh(name string) (*server, error) { return start(b.bin, filepath.Join(b.dir, name)) }

// node is the body that makes the i-th node: as large as those of the baseline.
func node(i int) []byte {
	return fmt.Appendf(nil,
		`{"name":"node-%05d","driver":"fake-hardware","resource_class":"baremetal","network_interface":"noop","deploy_interface":"fake",`+
			`"properties":{"cpus":16,"memory_mb":65536,"local_gb":480,"cpu_arch":"x86_64","capabilities":"boot_mode:uefi,disk_label:gpt"},`+
			`"driver_info":{"fake_address":"192.0.2.%d","fake_username":"admin","fake_password":"secret-%d"},`+
			`"extra":{"rack":"r%d","position":%d,"serial":"SN%08d","contact":"dc-team@example.org"}}`, i, i%250, i,
		i/40,
		i%40, i)
}

// outcome is the result of a load: requests per second, the duration of each and its cost to the server, in ms.
type outcome struct {
	rate     float64
	p50, p99 float64
	cpu      float64
}

// load has conns connections do work until it says that there is no more, or the time is over (limit > 0), and sums up.
func (b *bench) load(s *server, conns int, limit time.Duration,
	work func(c *client, i int) (bool, error)) (outcome, error) {
	var next atomic.Int64
	times := make([][]time.Duration, conns)
	errs := make([]error, conns)
	clients := make([]*client, conns)
	for k := range clients {
		c, err := dial(s.addr)
		if err != nil {
			return outcome{}, err
		}
		defer c.close()
		if _, err := c.want(200, "GET", "/", nil); err != nil {
			return outcome{}, err
		}
		clients[k] = c
	}
	before, err := s.cpu()
	if err != nil {
		return outcome{}, err
	}
	began := time.Now()
	var wg sync.WaitGroup
	for k, c := range clients {
		wg.Go(func() {
			for b.ctx.Err() == nil && (limit == 0 || time.Since(began) < limit) {
				at := time.Now()
				more, err := work(c, int(next.Add(1)-1))
				if err != nil || !more {
					errs[k] = err
					return
				}
				times[k] = append(times[k], time.Since(at))
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	after, err := s.cpu()
	if err := errors.Join(append(errs, err, b.ctx.Err())...); err != nil {
		return outcome{}, err
	}
	all := slices.Concat(times...)
	if len(all) == 0 {
		return outcome{}, errors.New("nothing was done")
	}
	slices.Sort(all)
	n := float64(len(all))
	return outcome{n / took.Seconds(), ms(all[len(all)/2]), ms(all[len(all)*99/100]), ms(after-before) / n}, nil
}

// rate measures a load and reports it.
func (b *bench) rate(s *server, r row, conns int, limit time.Duration,
	work func(c *client, i int) (bool, error)) error {
	o, err := b.load(s, conns, limit, work)
	if err != nil {
		return fmt.Errorf("%s: %w", r.What, err)
	}
	r.Unit, r.Value, r.P50, r.P99, r.CPU, r.faster = "a second", o.rate, o.p50, o.p99, o.cpu, true
	b.add(r)
	return nil
}

// create makes nodes first to last-1.
func create(first, last int) func(c *client, i int) (bool, error) {
	return func(c *client, i int) (bool, error) {
		if first+i >= last {
			return false, nil
		}
		_, err := c.want(201, "POST", "/v1/nodes", node(first+i))
		return err == nil, err
	}
}

func (b *bench) small() error {
	s, err := b.fresh("small")
	if err != nil {
		return err
	}
	defer func() { s.stop() }()
	b.add(row{What: "start to first answer, no data yet", Unit: "s", Value: s.answer.Seconds(), Ironic: 1.2,
		Limit: 0.2})
	if err := b.rate(s, row{What: "create, 1 connection, to 1,000 nodes", Ironic: ironicCreate1, Goal: 30}, 1, 0,
		create(0, 1000)); err != nil {
		return err
	}
	if err := b.reads(s, 1000, ", 1,000 nodes"); err != nil {
		return err
	}
	if err := b.patches(s, 1000, ", 1,000 nodes"); err != nil {
		return err
	}
	if err := b.memory(s,
		row{What: "memory with 1,000 nodes, after this load", Ironic: ironicMemory1000, Goal: 5}); err != nil {
		return err
	}
	if log := s.stop(); log != "" {
		return fmt.Errorf("ingotd complained:\n%s", log)
	}
	if s, err = start(b.bin, filepath.Join(b.dir, "small")); err != nil {
		return err
	}
	b.add(row{What: "start to first answer, 1,000 nodes", Unit: "s", Value: s.answer.Seconds(), Ironic: 1.2,
		Limit: 0.2})
	return nil
}

func (b *bench) memory(s *server, r row) error {
	m, err := s.memory()
	if err != nil {
		return err
	}
	r.Unit, r.Value = "MiB", float64(m)/(1<<20)
	b.add(r)
	return nil
}

// reads measures looking at nodes.
func (b *bench) reads(s *server, nodes int, suffix string) error {
	ids, err := uuids(s, nodes)
	if err != nil {
		return err
	}
	get := func(c *client, i int) (bool, error) {
		_, err := c.want(200, "GET", "/v1/nodes/"+ids[i*7919%len(ids)], nil)
		return true, err
	}
	for _, l := range []struct {
		conns  int
		ironic float64
	}{{1, ironicGet1}, {8, ironicGet8}} {
		if err := b.rate(s, row{What: fmt.Sprintf("GET one node, %d connections%s", l.conns, suffix), Ironic: l.ironic,
			Goal: 30}, l.conns, b.short, get); err != nil {
			return err
		}
	}
	for _, l := range []struct {
		what, path string
		ironic     float64
	}{{"list", "/v1/nodes?limit=1000", ironicList}, {"detail list", "/v1/nodes/detail?limit=1000", ironicDetail}} {
		size := 0
		o, err := b.load(s, 1, b.short, func(c *client, _ int) (bool, error) {
			answer, err := c.want(200, "GET", l.path, nil)
			size = len(answer)
			return true, err
		})
		if err != nil {
			return err
		}
		b.add(row{What: fmt.Sprintf("%s, 1,000 nodes a page (%d kB)%s", l.what, size/1000, suffix), Unit: "ms",
			Value: o.p50, P50: o.p50, P99: o.p99, CPU: o.cpu, Ironic: l.ironic, Goal: 10})
	}
	return nil
}

func (b *bench) patches(s *server, nodes int, suffix string) error {
	ids, err := uuids(s, nodes)
	if err != nil {
		return err
	}
	patch := func(c *client, i int) (bool, error) {
		_, err := c.want(200, "PATCH", "/v1/nodes/"+ids[i*7919%len(ids)],
			fmt.Appendf(nil, `[{"op":"add","path":"/extra/n","value":"%d"}]`, i))
		return true, err
	}
	for _, l := range []struct {
		conns  int
		ironic float64
	}{{1, ironicPatch1}, {8, ironicPatch8}} {
		if err := b.rate(s, row{What: fmt.Sprintf("PATCH /extra, %d connections%s", l.conns, suffix), Ironic: l.ironic,
			Goal: 30}, l.conns, b.short, patch); err != nil {
			return err
		}
	}
	return nil
}

// uuids lists the nodes, and makes sure that there are as many as there should be.
func uuids(s *server, want int) ([]string, error) {
	c, err := dial(s.addr)
	if err != nil {
		return nil, err
	}
	defer c.close()
	var ids []string
	for {
		path := "/v1/nodes?fields=uuid&limit=1000"
		if len(ids) > 0 {
			path += "&marker=" + ids[len(ids)-1]
		}
		answer, err := c.want(200, "GET", path, nil)
		if err != nil {
			return nil, err
		}
		var page struct{ Nodes []struct{ UUID string } }
		if err := json.Unmarshal(answer, &page); err != nil {
			return nil, err
		}
		for _, n := range page.Nodes {
			ids = append(ids, n.UUID)
		}
		if len(page.Nodes) < 1000 {
			break
		}
	}
	if len(ids) != want {
		return nil, fmt.Errorf("%d nodes are listed, want %d", len(ids), want)
	}
	return ids, nil
}

func (b *bench) large() error {
	s, err := b.fresh("large")
	if err != nil {
		return err
	}
	defer func() { s.stop() }()
	if err := b.rate(s, row{What: "create, 8 connections, to 1,000 nodes", Ironic: ironicCreate8, Goal: 30}, 8, 0,
		create(0, 1000)); err != nil {
		return err
	}
	if err := b.rate(s, row{What: "create, 8 connections, 1,000 to 5,000 nodes", Ironic: ironicCreate8, Goal: 30}, 8, 0,
		create(1000, 5000)); err != nil {
		return err
	}
	// The power of nodes in enroll is not queried, so that the idle minute would be too easy.
	if err := b.manage(s, 5000); err != nil {
		return err
	}
	if err := b.memory(s, row{What: "memory with 5,000 nodes", Ironic: ironicMemory5000, Goal: 5}); err != nil {
		return err
	}
	before, err := s.cpu()
	if err != nil {
		return err
	}
	select {
	case <-time.After(b.idle):
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
	after, err := s.cpu()
	if err != nil {
		return err
	}
	used := max(after-before, time.Second/ticksPerSecond) // less can't be told from nothing
	b.add(row{What: "CPU in an idle minute, 5,000 manageable nodes", Unit: "s",
		Value: used.Seconds() * float64(time.Minute) / float64(b.idle), Ironic: ironicIdle, Goal: 20})
	if err := b.rate(s, row{What: fmt.Sprintf("create, 1 connection, 5,000 to %d nodes", b.many-(b.many-5000)/2),
		Ironic: ironicCreate1, Goal: 30}, 1, 0, create(5000, b.many-(b.many-5000)/2)); err != nil {
		return err
	}
	if err := b.rate(s, row{What: fmt.Sprintf("create, 8 connections, to %d nodes", b.many), Ironic: ironicCreate8,
		Goal: 30}, 8, 0, create(b.many-(b.many-5000)/2, b.many)); err != nil {
		return err
	}
	suffix := fmt.Sprintf(", %d nodes", b.many)
	if err := b.reads(s, b.many, suffix); err != nil {
		return err
	}
	if err := b.patches(s, b.many, suffix); err != nil {
		return err
	}
	if err := b.memory(s, row{What: "memory with" + suffix[1:] + ", after this load"}); err != nil {
		return err
	}
	if log := s.stop(); log != "" {
		return fmt.Errorf("ingotd complained:\n%s", log)
	}
	if s, err = start(b.bin, filepath.Join(b.dir, "large")); err != nil {
		return err
	}
	b.add(row{What: "start to first answer" + suffix, Unit: "s", Value: s.answer.Seconds(), Ironic: 1.2, Limit: 0.2})
	return nil
}

// manage takes all nodes to manageable.
func (b *bench) manage(s *server, nodes int) error {
	ids, err := uuids(s, nodes)
	if err != nil {
		return err
	}
	if _, err := b.load(s, 8, 0, func(c *client, i int) (bool, error) {
		if i >= len(ids) {
			return false, nil
		}
		_, err := c.want(202, "PUT", "/v1/nodes/"+ids[i]+"/states/provision", []byte(`{"target":"manage"}`))
		return true, err
	}); err != nil {
		return err
	}
	return b.until(s, "manageable", nodes, "")
}

// until waits until so many nodes are in a state, looking five times a second.
func (b *bench) until(s *server, state string, want int, class string) error {
	c, err := dial(s.addr)
	if err != nil {
		return err
	}
	defer c.close()
	for deadline := time.Now().Add(3 * time.Minute); ; {
		n, marker := 0, ""
		for {
			path := "/v1/nodes?fields=uuid&limit=1000&provision_state=" + state
			if class != "" {
				path += "&resource_class=" + class
			}
			answer, err := c.want(200, "GET", path+marker, nil)
			if err != nil {
				return err
			}
			var page struct{ Nodes []struct{ UUID string } }
			if err := json.Unmarshal(answer, &page); err != nil {
				return err
			}
			n += len(page.Nodes)
			if len(page.Nodes) < 1000 {
				break
			}
			marker = "&marker=" + page.Nodes[len(page.Nodes)-1].UUID
		}
		if n >= want {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after three minutes %d nodes of %d are %s", n, want, state)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-b.ctx.Done():
			return b.ctx.Err()
		}
	}
}

// verbs are how a new node becomes an active one, and the state that each leads to.
var verbs = []struct{ verb, state string }{{"manage", "manageable"}, {"provide", "available"}, {"active", "active"}}

// cycles takes nodes from enroll to active, each as fast as it goes, over 8 connections.
func (b *bench) cycles(nodes int) error {
	s, err := b.fresh("cycles")
	if err != nil {
		return err
	}
	defer func() { s.stop() }()
	if _, err := b.load(s, 8, 0, create(0, nodes)); err != nil {
		return err
	}
	ids, err := uuids(s, nodes)
	if err != nil {
		return err
	}
	before, err := s.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	available := time.Duration(0)
	for _, v := range verbs {
		if _, err := b.load(s, 8, 0, func(c *client, i int) (bool, error) {
			if i >= len(ids) {
				return false, nil
			}
			_, err := c.want(202, "PUT", "/v1/nodes/"+ids[i]+"/states/provision", []byte(`{"target":"`+v.verb+`"}`))
			return true, err
		}); err != nil {
			return err
		}
		if err := b.until(s, v.state, nodes, "baremetal"); err != nil {
			return err
		}
		if v.state == "available" {
			available = time.Since(began)
		}
	}
	took := time.Since(began)
	after, err := s.cpu()
	if err != nil {
		return err
	}
	b.add(row{What: fmt.Sprintf("%d nodes enroll → manage → provide, 8 connections", nodes), Unit: "nodes a minute",
		Value: float64(nodes) / available.Minutes(), faster: true})
	b.add(row{What: fmt.Sprintf("%d nodes enroll → manage → provide → active, 8 connections", nodes),
		Unit: "nodes a minute", Value: float64(nodes) / took.Minutes(), Ironic: ironicCycles, Goal: 20,
		CPU: ms(after-before) / float64(nodes), faster: true})
	return nil
}
