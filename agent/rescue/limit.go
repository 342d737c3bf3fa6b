package rescue

import (
	"net"
	"sync"
	"time"
)

// Wrong passwords that are taken: so many at once, and then one in each interval. Per address, and from all addresses
// together; the second is larger, so that one guesser locks out others as little as can be, and many guessers get
// nowhere still. Keys are not limited.
const (
	guesses         = 5
	guessEvery      = 10 * time.Second
	guessesAll      = 50
	guessEveryAll   = time.Second
	maxGuessers     = 4096 // addresses remembered; beyond, the bound for all holds alone
	failedLoginsLog = 20   // failed logins that are logged one by one; later ones every so many
)

// limiter counts wrong passwords.
type limiter struct {
	now func() time.Time

	mu   sync.Mutex
	all  bucket
	from map[string]*bucket
}

// bucket is when its guesses will all be there again: each takes an interval, and no more than burst are owed.
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

// guess takes one guess, or says that there is none left. A right one is given back by right.
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

// right gives back what a right password took.
func (l *limiter) right(addr net.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.full = l.all.full.Add(-guessEveryAll)
	if b := l.of(addr, l.now()); b != nil {
		b.full = b.full.Add(-guessEvery)
	}
}

// of is the bucket of an address; nil when too many are remembered. The lock is held.
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
