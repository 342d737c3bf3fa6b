// Package queue shares the machine's processors among jobs: the job with the longest way to go first, so that the last
// minutes of a run are filled with short ones and no processor waits for one long job.
//
// A job takes one slot while it runs. Costs are expected seconds; only their order matters.
package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Job is one thing to do. The zero Cost is right for a job that takes no time.
type Job struct {
	Name  string
	Cost  float64  // expected seconds
	Needs []string // names of jobs that must have succeeded before
	Run   func(context.Context) error
}

// Slots counts free places. More can be given while jobs run: a group of other work that ends gives its places up.
type Slots struct {
	mu   sync.Mutex
	free int
	more chan struct{} // closed when a slot was given
}

// NewSlots returns n free places.
func NewSlots(n int) *Slots { return &Slots{free: n, more: make(chan struct{})} }

// Give adds n free places.
func (s *Slots) Give(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free += n
	close(s.more)
	s.more = make(chan struct{})
}

// take waits for a free place.
func (s *Slots) take(ctx context.Context) error {
	for {
		s.mu.Lock()
		if s.free > 0 {
			s.free--
			s.mu.Unlock()
			return nil
		}
		more := s.more
		s.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// NotRunError is the error of a job that was not run, because a job that it needs failed.
type NotRunError struct{ Job, Need string }

func (e NotRunError) Error() string { return fmt.Sprintf("%s was not run: %s failed", e.Job, e.Need) }

// Run runs all jobs in places of slots and returns the errors of all that failed or were not run. A need that is no
// job's name, or a circle of needs, is an error before anything runs. When the context ends, no more jobs are started.
func Run(ctx context.Context, jobs []Job, slots *Slots) error {
	rank, err := ranks(jobs)
	if err != nil {
		return err
	}
	type ended struct {
		name string
		err  error
	}
	var (
		all     []error
		waiting = append([]Job(nil), jobs...)
		done    = map[string]bool{} // true: succeeded, false: failed
		ends    = make(chan ended)
		running int
	)
	note := func(e ended) {
		done[e.name] = e.err == nil
		if e.err != nil {
			all = append(all, fmt.Errorf("%s: %w", e.name, e.err))
		}
	}
	for len(waiting) > 0 && ctx.Err() == nil {
		best := -1
		for i := 0; i < len(waiting); i++ {
			ready := true
			for _, need := range waiting[i].Needs {
				ok, over := done[need]
				ready = ready && over
				if over && !ok {
					all = append(all, NotRunError{waiting[i].Name, need})
					done[waiting[i].Name] = false
					waiting = append(waiting[:i], waiting[i+1:]...)
					best, i, ready = -1, -1, false // look at all again: others may need this one
					break
				}
			}
			if ready && (best < 0 || rank[waiting[i].Name] > rank[waiting[best].Name]) {
				best = i
			}
		}
		if len(waiting) == 0 {
			break
		}
		if best < 0 { // all that is left needs what runs
			note(<-ends)
			running--
			continue
		}
		// While it waits for a place something better may become ready: one that ended is looked at first.
		got := make(chan error, 1)
		wait, cancel := context.WithCancel(ctx)
		go func() { got <- slots.take(wait) }()
		select {
		case e := <-ends:
			cancel()
			if <-got == nil {
				slots.Give(1)
			}
			note(e)
			running--
			continue
		case err := <-got:
			cancel()
			if err != nil {
				continue // the context has ended
			}
		}
		j := waiting[best]
		waiting = append(waiting[:best], waiting[best+1:]...)
		running++
		go func() {
			err := j.Run(ctx)
			slots.Give(1)
			ends <- ended{j.Name, err}
		}()
	}
	for ; running > 0; running-- {
		note(<-ends)
	}
	if ctx.Err() != nil {
		all = append(all, context.Cause(ctx))
	}
	return errors.Join(all...)
}

// ranks gives each job its cost and the longest way through the jobs that need it.
func ranks(jobs []Job) (map[string]float64, error) {
	byName := map[string]Job{}
	for _, j := range jobs {
		if _, twice := byName[j.Name]; twice {
			return nil, fmt.Errorf("two jobs are named %s", j.Name)
		}
		byName[j.Name] = j
	}
	dependents := map[string][]string{}
	for _, j := range jobs {
		for _, n := range j.Needs {
			if _, ok := byName[n]; !ok {
				return nil, fmt.Errorf("job %s needs %s, which is no job", j.Name, n)
			}
			dependents[n] = append(dependents[n], j.Name)
		}
	}
	rank, open := map[string]float64{}, map[string]bool{}
	var visit func(name string) (float64, error)
	visit = func(name string) (float64, error) {
		if r, ok := rank[name]; ok {
			return r, nil
		}
		if open[name] {
			return 0, fmt.Errorf("job %s needs itself", name)
		}
		open[name] = true
		var longest float64
		for _, d := range dependents[name] {
			r, err := visit(d)
			if err != nil {
				return 0, err
			}
			longest = max(longest, r)
		}
		rank[name] = byName[name].Cost + longest
		return rank[name], nil
	}
	for _, j := range jobs {
		if _, err := visit(j.Name); err != nil {
			return nil, err
		}
	}
	return rank, nil
}
