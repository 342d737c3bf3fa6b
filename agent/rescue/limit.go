package rescue

import (
	"net"
	"sync"
	"time"
)

// Limits of wrong passwords: a burst, and then one per interval. They apply per address and to all addresses together;
// the total is larger, so that a single guesser rarely locks out others, and many guessers still get nowhere. Keys are
// not limited.
const (
	guesses         = 5
	guessEvery      = 10 * time.Second
	guessesAll      = 50
	guessEveryAll   = time.Second
	maxGuessers     = 4096 // addresses remembered; others have only the total limit
	failedLoginsLog = 20   // failed logins logged individually; then one in so many
)

// limiter counts wrong passwords.
type limiter struct {
	now func() time.Time

	mu   sync.Mutex
	all  bucket
	from map[string]*bucket
}

// bucket is a token bucket, stored as the time at which it is full again: each guess takes one interval, up to burst.
type bucket struct{ full time.Time }

func (b *bucket) has(now time.Time, burst int, every time.Duration) bool {
	return b.full.Sub(now) <= time.Duration(burst-1)*every
}

func (b *bucket) take(now time.Time, every time.Duration) {
	if b.full.Before(now) {
		b.full = now
	}
	b.full = b.full.Add(every)
}

func newLimiter(now func() time.Time) *limiter { return &limiter{now: now, from: map[string]*bucket{}} }

// guess takes one guess, or returns false if none is left. right returns it after a correct password.
func (l *limiter) guess(addr net.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	b := l.of(addr, now)
	if !l.all.has(now, guessesAll, guessEveryAll) || b != nil && !b.has(now, guesses, guessEvery) {
		return false
	}
	l.all.take(now, guessEveryAll)
	if b != nil {
		b.take(now, guessEvery)
	}
	return true
}

// right returns the guess that a correct password took.
func (l *limiter) right(addr net.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.full = l.all.full.Add(-guessEveryAll)
	if b := l.of(addr, l.now()); b != nil {
		b.full = b.full.Add(-guessEvery)
	}
}

// of returns the bucket of an address; nil when too many are remembered. The lock is held.
func (l *limiter) of(addr net.Addr, now time.Time) *bucket {
	key := addr.String()
	if host, _, err := net.SplitHostPort(key); err == nil {
		key = host
	}
	if b := l.from[key]; b != nil {
		return b
	}
	if len(l.from) >= maxGuessers {
		for k, b := range l.from {
			if !b.full.After(now) {
				delete(l.from, k)
			}
		}
		if len(l.from) >= maxGuessers {
			return nil
		}
	}
	b := &bucket{}
	l.from[key] = b
	return b
}
