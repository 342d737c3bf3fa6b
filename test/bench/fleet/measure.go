package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingot-metal/ingot/conductor/observe/trace"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// bench is the measurement of one number of nodes.
type bench struct {
	ctx  context.Context
	o    *options
	row  row
	site *site
}

// measure has all agents idle, restarts all conductors, kills one of several, and then deploys all nodes at once.
func (b *bench) measure(dir string) (err error) {
	if b.site, err = newSite(b.ctx, b.o, dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.site.close()) }()
	if err := b.site.start(); err != nil {
		return err
	}
	n := b.row.Nodes
	empty, err := b.site.disk()
	if err != nil {
		return err
	}
	f, err := fleet.Start(b.ctx, fleet.Options{Nodes: n, Seed: 1, BootURL: b.site.boots(), Boot: 10 * time.Second,
		Write: 20 * time.Second, Step: time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	d := fleet.NewDriver(b.site.api, "available", 0, nil)
	if err := prepare(b.ctx, f, d); err != nil {
		return err
	}
	b.say("available: %s", f.Summary(d))
	if err := b.sessions(f, n); err != nil {
		return err
	}
	if err := b.idling(); err != nil {
		return err
	}
	if err := b.again(f); err != nil {
		return err
	}
	before, err := b.site.disk()
	if err != nil {
		return err
	}
	if b.o.conductors > 1 {
		if err := b.takeOver(f); err != nil {
			return err
		}
	}
	if err := b.deploy(f, d); err != nil {
		return err
	}
	b.row.Overlaps, b.row.Refused, b.row.Failed = f.Overlaps(), f.Counts().Refused, len(d.Failed())
	b.say("active: %s", f.Summary(d))
	if err := b.site.stop(); err != nil { // SQLite has everything in one file then
		return err
	}
	after, err := b.site.disk()
	if err != nil {
		return err
	}
	b.row.NodeKiB = float64(before-empty) / float64(n) / 1024
	b.row.DeployKiB = float64(after-before) / float64(n) / 1024
	return nil
}

// prepare makes all nodes available. Where the simulation does not keep up, some need another try: what is measured
// comes later.
func prepare(ctx context.Context, f *fleet.Fleet, d *fleet.Driver) error {
	if err := d.Create(ctx, f.Machines); err != nil {
		return err
	}
	for range 3 {
		if err := d.Run(ctx); err != nil {
			return err
		}
		if len(d.Failed()) == 0 {
			return nil
		}
		d.Target("available")
	}
	return fmt.Errorf("nodes do not become available: %s", f.Summary(d))
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.o.out, "%s  %d nodes, %d %s, %s\n", time.Now().Format(time.TimeOnly), b.row.Nodes, b.o.conductors,
		b.o.engine, fmt.Sprintf(format, args...))
}

// until waits until something is so, for as long as anything here may take.
func until(ctx context.Context, what func() string, so func() (bool, error)) error {
	for began := time.Now(); ; {
		if ok, err := so(); ok || err != nil {
			return err
		}
		if time.Since(began) > 5*time.Minute {
			return fmt.Errorf("after %s %s", time.Since(began).Round(time.Second), what())
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sessions waits until so many agents have a session.
func (b *bench) sessions(f *fleet.Fleet, n int) error {
	return until(b.ctx, func() string { return fmt.Sprintf("%d of %d agents have a session", f.Counts().Sessions, n) },
		func() (bool, error) { return f.Counts().Sessions == n, nil })
}

// idling measures the processes while nothing happens but the minute's power states and the agents' signs of life.
func (b *bench) idling() error {
	before, err := b.site.usage()
	if err != nil {
		return err
	}
	select {
	case <-time.After(b.o.idle):
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
	b.row.Each, err = b.site.usage()
	if err != nil {
		return err
	}
	for i := range b.row.Each {
		u := &b.row.Each[i]
		u.CPU = max(0, u.CPU-before[i].CPU) / b.o.idle.Seconds()
		if u.Name != postgres {
			b.row.MemoryMiB, b.row.IdleCPU = b.row.MemoryMiB+u.MemoryMiB, b.row.IdleCPU+u.CPU
		}
	}
	if b.site.db != nil {
		b.row.Connections, err = b.site.number("SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = 'fleet'")
		if err != nil {
			return err
		}
	}
	b.say("idle: %.0f MiB, %.3f cores; %+v", b.row.MemoryMiB, b.row.IdleCPU, b.row.Each)
	return nil
}

// again restarts all conductors and waits for all agents.
func (b *bench) again(f *fleet.Fleet) error {
	opened := f.Counts().Opened
	if err := b.site.stop(); err != nil {
		return err
	}
	if b.o.conductors > 1 { // while some stop, agents go to those that do not yet
		if err := b.sessions(f, 0); err != nil {
			return err
		}
		opened = f.Counts().Opened
	}
	began := time.Now()
	if err := b.site.start(); err != nil {
		return err
	}
	read := b.reading(f)
	defer read()
	if err := until(b.ctx, func() string {
		return fmt.Sprintf("%d of %d agents are back", f.Counts().Opened-opened, b.row.Nodes)
	}, func() (bool, error) { return f.Counts().Opened >= opened+b.row.Nodes, nil }); err != nil {
		return err
	}
	if err := b.sessions(f, b.row.Nodes); err != nil {
		return err
	}
	b.row.Back = time.Since(began).Seconds()
	took := read()
	b.row.BackAPIP50, b.row.BackAPIP99 = percentile(took, 50), percentile(took, 99)
	b.say("all agents are back after %.1f s; one node meanwhile: median %.1f ms, p99 %.1f ms", b.row.Back,
		b.row.BackAPIP50, b.row.BackAPIP99)
	return nil
}

// reading reads one node after another, 50 times a second, until the function that it returns is called. That one
// returns how long each answer took, in ms.
func (b *bench) reading(f *fleet.Fleet) (end func() []float64) {
	ctx, stop := context.WithCancel(b.ctx)
	var took []float64
	var work sync.WaitGroup
	work.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			at := time.Now()
			if _, err := b.site.api.Node(ctx, f.Machines[i*7919%len(f.Machines)].Name); err == nil {
				took = append(took, time.Since(at).Seconds()*1000)
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	return func() []float64 {
		stop()
		work.Wait()
		return took
	}
}

// lease is how long after its last beat a conductor is taken for dead.
const lease = 15 * time.Second

// takeOver kills the conductor that has most nodes, and waits until the others have its nodes and agents. Then it is
// started again.
func (b *bench) takeOver(f *fleet.Fleet) error {
	victim, had := b.site.all[0], int64(0)
	ownedBy := func(name string) (int64, error) {
		return b.site.number("SELECT count(*) FROM nodes WHERE conductor = '" + name + "'")
	}
	if err := b.sessions(f, b.row.Nodes); err != nil {
		return err
	}
	for _, c := range b.site.all {
		n, err := ownedBy(c.name)
		if err != nil {
			return err
		}
		if n > had {
			victim, had = c, n
		}
	}
	if err := victim.kill(); err != nil {
		return err
	}
	beat, err := b.site.number("SELECT seen_at FROM conductors WHERE name = '" + victim.name + "'")
	if err != nil {
		return err
	}
	ended := time.UnixMicro(beat).Add(lease)
	var left int64
	if err := until(b.ctx, func() string { return fmt.Sprintf("%d nodes belong to a dead conductor", left) },
		func() (bool, error) {
			left, err = ownedBy(victim.name)
			return left == 0, err
		}); err != nil {
		return err
	}
	b.row.Taken, b.row.TakenOwners = int(had), time.Since(ended).Seconds()
	if err := b.sessions(f, b.row.Nodes); err != nil {
		return err
	}
	b.row.TakenSessions = time.Since(ended).Seconds()
	b.say("%d nodes have another owner %.1f s after the lease of theirs, and all agents a session after %.1f s", had,
		b.row.TakenOwners, b.row.TakenSessions)
	if err := b.site.start(); err != nil {
		return err
	}
	return b.sessions(f, b.row.Nodes)
}

// deploy deploys all nodes at once, while a client reads nodes and others follow the events. Then it reads all nodes,
// and how long each has waited.
func (b *bench) deploy(f *fleet.Fleet, d *fleet.Driver) error {
	ctx, stop := context.WithCancel(b.ctx)
	defer stop()
	watchers, unwatch, err := watch(ctx, b.site, b.o.watchers)
	if err != nil {
		return err
	}
	read := b.reading(f)
	began := time.Now()
	d.Target("active")
	err = d.Run(b.ctx)
	b.row.Deploy = time.Since(began).Seconds()
	err = errors.Join(err, unwatch())
	took := read()
	if err != nil {
		return err
	}
	b.row.APIP50, b.row.APIP99 = percentile(took, 50), percentile(took, 99)
	got := compare(watchers)
	if got.err != nil {
		return got.err
	}
	b.row.Events, b.row.Missed, b.row.Disorder = got.events, got.missed, got.disorder
	b.row.DelayP50, b.row.DelayP99 = percentile(got.delays, 50), percentile(got.delays, 99)
	each := times(d)
	b.row.PerMinute = float64(len(each)) / b.row.Deploy * 60
	b.row.EachP50, b.row.EachP99 = percentile(each, 50), percentile(each, 99)
	if err := b.pages(); err != nil {
		return err
	}
	queued, err := b.queued(f)
	b.row.QueueP50, b.row.QueueP99 = percentile(queued, 50), percentile(queued, 99)
	b.row.QueueMax = percentile(queued, 100)
	return err
}

// times is how long each deployment took, in seconds.
func times(d *fleet.Driver) (each []float64) {
	for _, one := range d.Deployments() {
		each = append(each, one.Done.Sub(one.Asked).Seconds())
	}
	return each
}

// pages reads the list of all nodes from one conductor, 1000 at a time.
func (b *bench) pages() error {
	var each []float64
	nodes, began := 0, time.Now()
	for next := "http://" + b.site.all[0].api + "/v1/nodes?limit=1000"; next != ""; {
		at := time.Now()
		var page struct {
			Nodes []struct{ UUID string }
			Next  string
		}
		if err := get(b.ctx, next, &page); err != nil {
			return err
		}
		each = append(each, time.Since(at).Seconds()*1000)
		nodes, next = nodes+len(page.Nodes), page.Next
	}
	if nodes != b.row.Nodes {
		return fmt.Errorf("the list of %d nodes has %d", b.row.Nodes, nodes)
	}
	b.row.List, b.row.Pages = time.Since(began).Seconds()*1000, len(each)
	b.row.PageP50, b.row.PageMax = percentile(each, 50), percentile(each, 100)
	return nil
}

// get reads one answer of the API.
func get(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-OpenStack-Ironic-API-Version", "latest")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// queued is for how many seconds each node's deployment waited for a conductor, or had it work.
func (b *bench) queued(f *fleet.Fleet) ([]float64, error) {
	all := make([]float64, len(f.Machines))
	g, ctx := errgroup.WithContext(b.ctx)
	g.SetLimit(16)
	for i, m := range f.Machines {
		g.Go(func() error {
			line, err := b.site.api.Timeline(ctx, m.Name, "")
			if err != nil {
				return err
			}
			t := trace.Last(line.Traces, "deploy")
			if t == nil {
				return fmt.Errorf("the time line of %s has no deployment", m.Name)
			}
			all[i] = spent(t.Spans, trace.Conductor)
			return nil
		})
	}
	return all, g.Wait()
}

// spent adds up the seconds of a kind among spans, and the spans in them.
func spent(spans []rest.Span, kind string) (sum float64) {
	for _, s := range spans {
		if len(s.Spans) > 0 {
			sum += spent(s.Spans, kind)
		} else if s.Kind == kind {
			sum += s.Seconds
		}
	}
	return sum
}
