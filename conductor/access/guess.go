package access

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// What wrong passwords may cost. They are counted for a user's name at the address that they come from, and the names
// are counted for the address. So who guesses the passwords of a few users does not lock out others at the same
// address, and who goes through many names is stopped as well; then only users that have logged in from that address
// before can do so.
const (
	suspectAfter = 20   // such names, after which users of other addresses go first
	maxStandings = 8192 // of users, and of addresses, that are remembered
)

// guesses bounds the work that is done for wrong passwords. Hashes are computed in two places: one for users with
// recent wrong passwords, the others for all others, so that a correct first login does not wait for guesses. Safe for
// concurrent use.
type guesses struct {
	now     func() time.Time
	trusted chan struct{} // a place for each hash that is computed at once: the API stays quick meanwhile
	suspect chan struct{}

	mu        sync.Mutex
	waiting   int
	pairs     map[guesser]*standing
	addresses map[netip.Addr]*standing
}

// guesser is a user's name, as a digest, at an address.
type guesser struct {
	at   netip.Addr
	name [32]byte
}

// half is how many hashes are computed at once.
func half() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// newGuesses makes one that lets so many passwords be looked at at once, and one more of those who guess.
func newGuesses(places int, now func() time.Time) *guesses {
	return &guesses{now: now, trusted: make(chan struct{}, places), suspect: make(chan struct{}, 1),
		pairs: map[guesser]*standing{}, addresses: map[netip.Addr]*standing{}}
}

// standing is how many wrong passwords a user or an address has left.
type standing struct {
	burst   float64
	refill  time.Duration
	left    float64
	looked  time.Time
	waiting int           // logins that use it
	turn    chan struct{} // one password of a user at a time, and half of what is trusted for one address
	proven  bool          // there was a right one
}

func (s *standing) refresh(now time.Time) {
	if d := now.Sub(s.looked); d > 0 {
		s.left = min(s.burst, s.left+float64(d)/float64(s.refill))
	}
	s.looked = now
}

// wait is how long it takes until there is one left; zero: there is.
func (s *standing) wait() time.Duration {
	if s.left >= 1 {
		return 0
	}
	return time.Duration((1 - s.left) * float64(s.refill))
}

// find returns the standing under a key. When there are too many, those without anything to remember are dropped; if
// none is, all are.
func find[K comparable](m map[K]*standing, key K, burst float64, refill time.Duration, turns int,
	now time.Time) *standing {
	if s := m[key]; s != nil {
		s.refresh(now)
		return s
	}
	if len(m) >= maxStandings {
		for k, s := range m {
			if s.refresh(now); s.left == s.burst && s.waiting == 0 {
				delete(m, k)
			}
		}
		for k, s := range m {
			if len(m) < maxStandings*3/4 { // not with each that comes
				break
			}
			if s.waiting == 0 {
				delete(m, k)
			}
		}
	}
	s := &standing{burst: burst, refill: refill, left: burst, looked: now, turn: make(chan struct{}, turns)}
	m[key] = s
	return s
}

// tooMany refuses a guesser. It is the same for users that exist and for those that don't.
func tooMany(wait time.Duration) *Refusal {
	wait = time.Duration(math.Ceil(wait.Seconds())) * time.Second
	return &Refusal{Status: http.StatusTooManyRequests, RetryAfter: wait,
		Message: fmt.Sprintf("Too many wrong passwords came from this address; try again in %v", wait)}
}

// check calls right when it is the turn of a user at an address, and counts the result, if right learned one. The error
// is a *Refusal: then right was not called.
func (g *guesses) check(ctx context.Context, who guesser, right func() (ok, learned bool)) (bool, error) {
	g.mu.Lock()
	p := find(g.pairs, who, limit.LoginFailures, limit.LoginRefill, 1, g.now())
	a := find(g.addresses, who.at, limit.AddressFailures, limit.AddressRefill, max(1, cap(g.trusted)/2), g.now())
	err := refused(p, a)
	switch {
	case err != nil:
	case p.waiting > limit.LoginsWaitingPerUser:
		err = tooMany(time.Second)
	case g.waiting >= limit.LoginsWaiting:
		err = &Refusal{Status: http.StatusServiceUnavailable, RetryAfter: 2 * time.Second,
			Message: "Too many logins are under way; try again."}
	}
	if err != nil {
		g.mu.Unlock()
		return false, err
	}
	p.waiting++
	a.waiting++
	g.waiting++
	g.mu.Unlock()
	ok, counted := false, false
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		p.waiting--
		a.waiting--
		g.waiting--
		switch {
		case counted && ok:
			p.left, p.proven = p.burst, true
		case counted:
			if p.left > p.burst-1 && !p.proven {
				a.left-- // a name more
			}
			p.left--
		}
	}()
	if !enter(ctx, p.turn) {
		return false, errGivenUp
	}
	defer func() { <-p.turn }()
	g.mu.Lock()
	now := g.now()
	p.refresh(now)
	a.refresh(now)
	err = refused(p, a) // meanwhile others were wrong
	place := g.trusted
	if p.left <= p.burst-1 || a.left < a.burst-suspectAfter && !p.proven {
		place = g.suspect
	}
	g.mu.Unlock()
	if err != nil {
		return false, err
	}
	if place == g.trusted {
		if !enter(ctx, a.turn) {
			return false, errGivenUp
		}
		defer func() { <-a.turn }()
	}
	if !enter(ctx, place) {
		return false, errGivenUp
	}
	defer func() { <-place }()
	ok, counted = right()
	return ok, nil
}

var errGivenUp = &Refusal{Status: http.StatusServiceUnavailable, Message: "Too many logins are under way; try again."}

func refused(p, a *standing) error {
	wait := p.wait()
	if !p.proven {
		wait = max(wait, a.wait())
	}
	if wait > 0 {
		return tooMany(wait)
	}
	return nil
}

// enter takes a place, unless ctx ends first.
func enter(ctx context.Context, places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}
