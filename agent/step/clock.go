package step

import (
	"sync"
	"time"
)

// Clock adds up the time during which at least one is inside: how long a stage of a step was at work. The zero value is
// ready; any number of goroutines may use it.
type Clock struct {
	mu     sync.Mutex
	inside int
	since  time.Time
	sum    time.Duration
}

// Enter says that one more is inside.
func (c *Clock) Enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inside++; c.inside == 1 {
		c.since = time.Now()
	}
}

// Leave says that one is not inside any more.
func (c *Clock) Leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inside--; c.inside == 0 {
		c.sum += time.Since(c.since)
	}
}

// Total is the time so far, that of those who are inside now too.
func (c *Clock) Total() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inside > 0 {
		return c.sum + time.Since(c.since)
	}
	return c.sum
}
