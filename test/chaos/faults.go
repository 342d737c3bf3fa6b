package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"
)

// fault is something that happens to the site and lasts for a while. All of it is drawn by the seed.
type fault struct {
	what  string
	at    time.Duration // since the beginning
	lasts time.Duration
	whom  int // the conductor
}

// kind of a fault, with the time that it may last and how often it is drawn, against the others.
type kind struct {
	what        string
	least, most time.Duration
	often       int
}

// A conductor that is frozen, or cut off, for up to 8 s keeps its nodes; after 15 s they are the others'. Agents are
// away for less than session_grace, so no fault here makes a job boot a machine anew.
var kinds = []kind{
	{"kill a conductor", time.Second / 2, 4 * time.Second, 4},
	{"kill a conductor for longer than its lease", 17 * time.Second, 22 * time.Second, 1},
	{"stop a conductor in order", time.Second / 2, 4 * time.Second, 2},
	{"freeze a conductor", time.Second, 8 * time.Second, 3},
	{"freeze a conductor past its lease", 17 * time.Second, 28 * time.Second, 4},
	{"cut a conductor off from the database", time.Second, 9 * time.Second, 3},
	{"cut a conductor off from the database past its lease", 17 * time.Second, 20 * time.Second, 1},
	{"slow a conductor's link to the database", 3 * time.Second, 12 * time.Second, 2},
	{"drop a conductor's connections to the database", 0, 0, 3},
	{"cut the agents off from a conductor", 2 * time.Second, 10 * time.Second, 2},
	{"slow the agents' link to a conductor", 3 * time.Second, 12 * time.Second, 2},
	{"drop the agents' connections to a conductor", 0, 0, 2},
	{"restart the database", time.Second / 2, 5 * time.Second, 1},
	{"take the database away past all leases", 17 * time.Second, 35 * time.Second, 1},
	{"crash the database", time.Second / 2, 5 * time.Second, 1},
	{"fill the database's disk", 2 * time.Second, 8 * time.Second, 1},
	{"set the database's clock an hour forward", 2 * time.Second, 30 * time.Second, 1},
	{"set the database's clock an hour back", 2 * time.Second, 30 * time.Second, 1},
}

// schedule draws the faults of a run.
func schedule(rng *rand.Rand, lasts time.Duration) (all []fault) {
	total := 0
	for _, k := range kinds {
		total += k.often
	}
	for at := 8 * time.Second; ; { // the nodes begin in order
		at += time.Second/2 + time.Duration(rng.Int64N(int64(6*time.Second)))
		if at >= lasts {
			return all
		}
		n, i := rng.IntN(total), 0
		for ; n >= kinds[i].often; i++ {
			n -= kinds[i].often
		}
		k := kinds[i]
		all = append(all, fault{k.what, at, k.least + time.Duration(rng.Int64N(int64(k.most-k.least)+1)),
			rng.IntN(conductors)})
	}
}

// befaller makes the faults happen.
type befaller struct {
	*site
	say func(format string, args ...any)

	mu   sync.Mutex
	busy map[string]bool // what is out of order: a fault that is drawn for it meanwhile does not happen
}

// run makes the faults happen, and returns when all is in order again.
func (b *befaller) run(ctx context.Context, all []fault) error {
	began := time.Now()
	var work sync.WaitGroup
	var errs []error
	for _, f := range all {
		select {
		case <-time.After(f.at - time.Since(began)):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		work.Go(func() {
			if err := b.befall(ctx, f); err != nil {
				b.mu.Lock()
				errs = append(errs, fmt.Errorf("%s: %w", f.what, err))
				b.mu.Unlock()
			}
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

// take reserves a part of the site for a fault.
func (b *befaller) take(part string) (free func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy[part] {
		return nil, false
	}
	b.busy[part] = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.busy, part)
	}, true
}

func (b *befaller) befall(ctx context.Context, f fault) error {
	c := b.all[f.whom]
	part, name := "process "+c.name, " "+c.name
	var begin, end func() error
	nothing := func() error { return nil }
	signal := func(sig syscall.Signal) func() error {
		return func() error { c.signal(sig); return nil }
	}
	do := func(of func()) func() error { return func() error { of(); return nil } }
	again := func() error { c.wait(time.Minute); return c.alive() }
	switch f.what {
	case "kill a conductor", "kill a conductor for longer than its lease":
		begin, end = signal(syscall.SIGKILL), again
	case "stop a conductor in order":
		begin, end = signal(syscall.SIGTERM), again
	case "freeze a conductor":
		begin, end = signal(syscall.SIGSTOP), signal(syscall.SIGCONT)
	case "freeze a conductor past its lease":
		begin, end = signal(syscall.SIGSTOP), signal(syscall.SIGCONT)
	case "cut a conductor off from the database", "cut a conductor off from the database past its lease":
		part, begin, end = "database link "+c.name, do(c.database.Cut), do(c.database.Heal)
	case "slow a conductor's link to the database":
		part, end = "database link "+c.name, do(c.database.Heal)
		begin = do(func() { c.database.Slow(f.lasts / 40) })
	case "drop a conductor's connections to the database":
		part, begin, end = "database link "+c.name, do(c.database.Drop), nothing
	case "cut the agents off from a conductor":
		part, begin, end = "agents' link "+c.name, do(c.agents.Cut), do(c.agents.Heal)
	case "slow the agents' link to a conductor":
		part, end = "agents' link "+c.name, do(c.agents.Heal)
		begin = do(func() { c.agents.Slow(f.lasts / 20) })
	case "drop the agents' connections to a conductor":
		part, begin, end = "agents' link "+c.name, do(c.agents.Drop), nothing
	case "restart the database", "take the database away past all leases":
		part, name, begin, end = "database", "", b.db.Stop, func() error { return b.db.Start(quick...) }
	case "crash the database":
		part, name, begin, end = "database", "", b.db.Kill, func() error { return b.db.Start(quick...) }
	case "fill the database's disk":
		part, name, begin, end = "database", "", b.fill, b.clear
	case "set the database's clock an hour forward":
		part, name, end = "clock", "", func() error { return b.db.SetClock(0) }
		begin = func() error { return b.db.SetClock(time.Hour) }
	case "set the database's clock an hour back":
		part, name, end = "clock", "", func() error { return b.db.SetClock(0) }
		begin = func() error { return b.db.SetClock(-time.Hour) }
	default:
		return errors.New("unknown fault")
	}
	free, ok := b.take(part)
	if !ok {
		return nil
	}
	defer free()
	b.say("%s:%s, for %.1f s", f.what, name, f.lasts.Seconds())
	err := begin()
	select {
	case <-time.After(f.lasts):
	case <-ctx.Done():
	}
	return errors.Join(err, end())
}

// watch starts conductors that have ended by themselves, as one does that was replaced, until the context ends.
func (b *befaller) watch(ctx context.Context) error {
	for {
		for _, c := range b.all {
			if free, ok := b.take("process " + c.name); ok {
				if c.wait(0) {
					b.say("%s has ended, and is started again", c.name)
					if err := c.alive(); err != nil {
						free()
						return err
					}
				}
				free()
			}
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}
