package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/test/kit/queue"
)

var errTests = errors.New("not all tests passed; what failed is named above")

// phase measures a part of the run.
type phase struct {
	rec    *recorder
	name   string
	began  time.Time
	before machineTimes
}

func (r *recorder) begin(name string) phase {
	before, err := readMachineTimes()
	if err != nil {
		r.trouble(err)
	}
	return phase{r, name, time.Now(), before}
}

func (p phase) end() {
	now, err := readMachineTimes()
	if err != nil {
		p.rec.trouble(err)
	}
	used := now.since(p.before)
	p.rec.add(event{Action: "phase", Name: p.name, Elapsed: time.Since(p.began).Seconds(), CPU: used.busy,
		Idle: used.idle, Stolen: used.stolen})
}

// run runs what the options name.
func (o options) run(ctx context.Context, out io.Writer) error {
	for name, value := range map[string]string{
		"INGOT_MUST_RUN": "1",
		"INGOT_RUN":      fmt.Sprintf("%d-%d", time.Now().UnixNano(), os.Getpid()),
	} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	rec, done, err := newRecorder(o.record, out)
	if err != nil {
		return err
	}
	whole := rec.begin("all")
	dirs, err := packages(ctx)
	if err != nil {
		return errors.Join(err, done())
	}

	if err := o.known(dirs); err != nil {
		return errors.Join(err, done())
	}

	build := rec.begin("build")
	jobs, err := o.machineJobs(ctx, dirs, rec)
	build.end()
	if err != nil {
		return errors.Join(err, done())
	}

	var race []string
	for pkg := range dirs {
		own := slices.IndexFunc(suites, func(s suite) bool { return module+"/"+s.pkg == pkg })
		if (own < 0 || suites[own].also) && selected(o.packages, short(pkg)) {
			race = append(race, pkg)
		}
	}
	slices.Sort(race)
	places := o.slots
	if len(jobs) > 0 && len(race) > 0 {
		places -= places / 2 // half for the machines, which take longest
	}
	slots := queue.NewSlots(o.slots - places)
	now := rec.begin("race group, machines beside it")
	var packages sync.WaitGroup
	packages.Go(func() {
		if len(race) == 0 {
			slots.Give(places)
			return
		}
		used, err := o.goTest(ctx, dirs, race, rec, places, func() { slots.Give(1) })
		if err != nil {
			rec.trouble(err)
		}
		rec.add(event{Action: "job", Name: "race group", Elapsed: time.Since(now.began).Seconds(), CPU: used})
		now.end()
		now = rec.begin("machines alone")
	})
	jobs, last := alone(jobs)
	if err := queue.Run(ctx, jobs, slots); err != nil {
		rec.trouble(err)
	}
	packages.Wait()
	now.end()
	if len(last) > 0 && ctx.Err() == nil {
		now = rec.begin("alone, at the end")
		if err := queue.Run(ctx, last, queue.NewSlots(1)); err != nil {
			rec.trouble(err)
		}
		now.end()
	}
	whole.end()
	ok := rec.end()
	if err := done(); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if !ok {
		return errTests
	}
	return nil
}

// known checks the names that the options give.
func (o options) known(dirs map[string]string) error {
	var unknown []error
	for _, name := range strings.Split(o.packages, ",") {
		if _, ok := dirs[module+"/"+name]; !ok && name != "all" && name != "none" {
			unknown = append(unknown, fmt.Errorf("-packages %s: there is no such package", name))
		}
	}
	for _, name := range strings.Split(o.jobs, ",") {
		pkg, _, test := strings.Cut(name, ":")
		is := func(s suite) bool { return s.pkg == pkg && (s.apart || !test) }
		if !slices.ContainsFunc(suites, is) && name != "all" && name != "none" {
			unknown = append(unknown, fmt.Errorf("-jobs %s: there is no such job; test/run/jobs.go lists them", name))
		}
	}
	return errors.Join(unknown...)
}
