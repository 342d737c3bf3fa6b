package step

import (
	"context"
	"sync"
	"time"
)

// Clock measures how long a stage of a step was at work: the time during which at least one goroutine is inside. The
// zero value is ready; any number of goroutines may use it.
type Clock struct {
	mu     sync.Mutex
	inside int
	since  time.Time
	sum    time.Duration
	watch  func(running bool)
}

// Watch sets a function to be called when the clock starts to run and when it stops, in place of an earlier one, which
// gets a last call if the clock is running. It must not use the clock.
func (c *Clock) Watch(f func(running bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inside > 0 {
		c.changed(false)
	}
	c.watch = f
}

func (c *Clock) changed(running bool) {
	if c.watch != nil {
		c.watch(running)
	}
}

// Enter marks one more goroutine as inside.
func (c *Clock) Enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inside++; c.inside == 1 {
		c.since = time.Now()
		c.changed(true)
	}
}

// Leave marks one goroutine less as inside.
func (c *Clock) Leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inside--; c.inside == 0 {
		c.sum += time.Since(c.since)
		c.changed(false)
	}
}

// Total returns the time so far, including the current one if a goroutine is inside.
func (c *Clock) Total() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inside > 0 {
		return c.sum + time.Since(c.since)
	}
	return c.sum
}

// Sleep waits for d. If ctx ends before that, it returns the cause.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
