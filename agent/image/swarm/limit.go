package swarm

import (
	"context"
	"sync"
	"time"
)

// limiter spreads bytes over time. All that share it wait in line.
type limiter struct {
	rate float64 // bytes per second; zero: no limit

	mu   sync.Mutex
	free time.Time // when what has been let through is paid for
}

// burst is how much may go at once after a rest.
const burst = 256 << 10

// wait returns when n more bytes may be sent.
func (l *limiter) wait(ctx context.Context, n int) error {
	if l.rate <= 0 {
		return nil
	}
	l.mu.Lock()
	now := time.Now()
	earliest := now.Add(-time.Duration(burst / l.rate * float64(time.Second)))
	if l.free.Before(earliest) {
		l.free = earliest
	}
	l.free = l.free.Add(time.Duration(float64(n) / l.rate * float64(time.Second)))
	d := l.free.Sub(now)
	l.mu.Unlock()
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// slots is how many transfers may run at once. Few large ones spread a chunk faster than many slow ones, but a fast
// link needs several to be busy all the time: the number follows how long a transfer takes.
type slots struct {
	least, most int

	mu    sync.Mutex
	used  int
	limit int
}

// goal is how long a transfer should take.
const goal = time.Second

func newSlots(least, most int) *slots { return &slots{least: least, most: most, limit: least} }

// open tells whether there is a slot.
func (s *slots) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used < s.limit
}

func (s *slots) take() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used >= s.limit {
		return false
	}
	s.used++
	return true
}

// give returns a slot after a transfer that took d; zero means that there was none.
func (s *slots) give(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	switch {
	case d <= 0:
	case d > goal:
		s.limit = max(s.least, s.limit-1)
	case d < goal/2:
		s.limit = min(s.most, s.limit+1)
	}
}
