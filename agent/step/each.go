package step

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
)

// Item is the progress of one of several things that a step works on at the same time.
type Item struct {
	Name  string
	Bytes uint64
	Total uint64 // zero: unknown so far
	Done  bool   // ended, with success or not
	Err   string // reason of its failure; "" without one
}

// Each does the same work on every item, at most limit at a time (one, if limit is less), and waits for all. An item
// that fails, or whose work panics, does not stop the others; when ctx ends, running work should stop and no more is
// started. The error names every incomplete item, with its own error in the chain, and carries the items' remedies; it
// is retryable if every fault is.
//
// name returns the name an operator knows an item by, such as a disk's. Progress of the items, in bytes, goes to
// c.Report as the sum under the given phase, with the single items beside it; while an item's total is unknown, so is
// the sum's. c may be nil.
func Each[T any](ctx context.Context, c *Call, phase string, limit int, items []T, name func(T) string,
	do func(ctx context.Context, item T, report func(done, total int64)) error) error {
	sum := newSummer(c, phase, len(items))
	for i, item := range items {
		sum.items[i].Name = name(item)
	}
	faults := make([]error, len(items))
	slots := make(chan struct{}, max(limit, 1))
	var wg sync.WaitGroup
	for i, item := range items {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		// Both cases of the select may have been ready.
		if ctx.Err() != nil {
			faults[i] = fmt.Errorf("not begun: %w", context.Cause(ctx))
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			sum.report(i, 0, 0)
			faults[i] = sheltered(c, func() error {
				return do(ctx, item, func(done, total int64) { sum.report(i, done, total) })
			})
			sum.end(i, faults[i])
		})
	}
	wg.Wait()
	return eachFault(sum.items, faults)
}

// sheltered turns a panic into an error: the runner can catch only panics of the step's own goroutine.
func sheltered(c *Call, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if c != nil && c.Log != nil {
				c.Log.Error("panic in a step", "err", fmt.Sprint(p), "stack", string(debug.Stack()))
			}
			err = Failf("report this as a bug of the agent, with its log", "the step broke down: %v", p)
		}
	}()
	return f()
}

// summer combines the reports of all items into one.
type summer struct {
	c     *Call
	phase string
	mu    sync.Mutex
	items []Item
	begun []bool
}

func newSummer(c *Call, phase string, n int) *summer {
	return &summer{c: c, phase: phase, items: make([]Item, n), begun: make([]bool, n)}
}

func (s *summer) report(i int, done, total int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun[i] = true
	s.items[i].Bytes, s.items[i].Total = uint64(max(done, 0)), uint64(max(total, 0))
	s.send()
}

func (s *summer) end(i int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items[i].Done = true
	if err != nil {
		s.items[i].Err = err.Error()
	}
	s.send()
}

// send reports the sum; the lock is held, so that reports keep their order.
func (s *summer) send() {
	if s.c == nil || s.c.Report == nil {
		return
	}
	p := Progress{Phase: s.phase, Items: slices.Clone(s.items)}
	known := true
	for i, it := range s.items {
		p.Bytes += it.Bytes
		p.Total += max(it.Total, it.Bytes)
		known = known && (it.Total > 0 || it.Done || !s.begun[i])
	}
	if !known {
		p.Total = 0
	}
	s.c.Report(p)
}

func eachFault(items []Item, faults []error) error {
	var texts, remedies []string
	retryable, done := true, 0
	for i, err := range faults {
		if err == nil {
			done++
			continue
		}
		faults[i] = fmt.Errorf("%s: %w", items[i].Name, err)
		texts = append(texts, faults[i].Error())
		e := AsError(err)
		retryable = retryable && e.Retryable
		if e.Remedy != "" && !slices.Contains(remedies, e.Remedy) {
			remedies = append(remedies, e.Remedy)
		}
	}
	if len(texts) == 0 {
		return nil
	}
	text := strings.Join(texts, "; ")
	if len(faults) > 1 {
		text = fmt.Sprintf("%d of %d done, not %s", done, len(faults), text)
	}
	return &Error{Err: joined{text, errors.Join(faults...)}, Remedy: strings.Join(remedies, "; "), Retryable: retryable}
}

// joined is errors.Join on one line.
type joined struct {
	text string
	err  error
}

func (j joined) Error() string { return j.text }
func (j joined) Unwrap() error { return j.err }
