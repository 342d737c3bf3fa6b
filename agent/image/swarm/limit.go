package swarm

import (
	"context"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// limiter limits a rate. All its users wait in line.
type limiter struct {
	rate float64 // bytes per second; zero: no limit

	mu   sync.Mutex
	free time.Time // when the bytes sent so far are within the rate
}

// burst is how much may be sent at once after a pause.
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
	return step.Sleep(ctx, d)
}

// slots limits the number of concurrent transfers. A few fast ones spread a chunk sooner than many slow ones, but a
// fast link needs several to be busy: the number follows the duration of transfers.
type slots struct {
	least, most int

	mu    sync.Mutex
	used  int
	limit int
}

// goal is the desired duration of a transfer.
const goal = time.Second

func newSlots(least, most int) *slots { return &slots{least: least, most: most, limit: least} }

// open reports whether a slot is free.
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

// give returns a slot after a transfer of duration d; zero means no transfer.
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
