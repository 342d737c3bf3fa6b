package access

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// loginFrom is login from an address.
func loginFrom(b *Basic, addr, name, password string, header ...string) int {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = addr + ":1234"
	r.Header.Set("Authorization", pair(name, password))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	_, err := b.Authenticate(r)
	if err == nil {
		return http.StatusOK
	}
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		return 0
	}
	return refusal.Status
}

func TestGuessersAreStopped(t *testing.T) {
	b, _, _, pass := basicFixture(t, "alice:"+hashed(t, "secret", "2y")+"\nbob:"+hashed(t, "other", "2y")+"\n")
	for i := range limit.LoginFailures {
		if got := loginFrom(b, "192.0.2.1", "alice", fmt.Sprint(i)); got != 401 {
			t.Fatalf("wrong password %d = %d, want 401", i, got)
		}
	}
	for _, tt := range []struct {
		what, addr, name, password string
		want                       int
	}{
		{"another wrong one", "192.0.2.1", "alice", "x", 429},
		{"the right one, which is not looked at", "192.0.2.1", "alice", "secret", 429},
		{"from another address", "192.0.2.2", "alice", "secret", 200},
		{"another user from the guesser's address", "192.0.2.1", "bob", "other", 200},
		{"remembered by now", "192.0.2.1", "alice", "secret", 200},
	} {
		if got := loginFrom(b, tt.addr, tt.name, tt.password); got != tt.want {
			t.Errorf("%s = %d, want %d", tt.what, got, tt.want)
		}
	}
	pass(limit.LoginRefill)
	if got := loginFrom(b, "192.0.2.1", "alice", "y"); got != 401 {
		t.Errorf("a guess after %v = %d, want 401", limit.LoginRefill, got)
	}
	if got := loginFrom(b, "192.0.2.1", "alice", "z"); got != 429 {
		t.Errorf("the guess after that = %d, want 429", got)
	}
}

// One that goes through names is stopped by its address, that of IPv6 by its network; names that exist are no
// different.
func TestAddressIsStopped(t *testing.T) {
	b, _, _, _ := basicFixture(t, "alice:"+hashed(t, "secret", "2y")+"\n")
	for i := range limit.AddressFailures {
		if got := loginFrom(b, fmt.Sprintf("[2001:db8::%x]", i+1), fmt.Sprint("user", i), "x"); got != 401 {
			t.Fatalf("name %d = %d, want 401", i, got)
		}
	}
	for _, name := range []string{"unknown", "alice"} {
		if got := loginFrom(b, "[2001:db8::ffff]", name, "x"); got != 429 {
			t.Errorf("%s = %d, want 429", name, got)
		}
	}
	if got := loginFrom(b, "[2001:db8:0:1::1]", "alice", "secret"); got != 200 {
		t.Errorf("from another network = %d, want 200", got)
	}
}

func TestGuessersBehindAProxyAreDistinguished(t *testing.T) {
	b, _, _, _ := basicFixture(t, "alice:"+hashed(t, "secret", "2y")+"\n")
	clients, err := limit.ParseClients([]string{"192.0.2.9"})
	if err != nil {
		t.Fatal(err)
	}
	b.from = clients.Address
	for range limit.LoginFailures + 1 {
		loginFrom(b, "192.0.2.9", "alice", "x", "X-Forwarded-For", "198.51.100.1")
	}
	if got := loginFrom(b, "192.0.2.9", "alice", "x", "X-Forwarded-For", "198.51.100.1"); got != 429 {
		t.Errorf("the guesser = %d, want 429", got)
	}
	if got := loginFrom(b, "192.0.2.9", "alice", "secret", "X-Forwarded-For", "198.51.100.1, 203.0.113.1"); got != 200 {
		t.Errorf("another client of the proxy = %d, want 200", got)
	}
}

// What waits, and what is remembered, is bounded whatever comes.
func TestGuessesAreBounded(t *testing.T) {
	b, _, _, _ := basicFixture(t, "alice:"+hashed(t, "secret", "2y")+"\n")
	g := b.guesses
	for i := range 3 * maxStandings {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = fmt.Sprintf("[2001:db8:0:%x::1]:1", i)
		if _, err := g.check(r.Context(), guesser{limit.Owner(b.from(r)), b.mac("u")},
			func() (ok, learned bool) { return false, true }); err != nil {
			t.Fatal(err)
		}
	}
	if len(g.pairs) > maxStandings || len(g.addresses) > maxStandings {
		t.Errorf("%d users and %d addresses are remembered, want at most %d", len(g.pairs), len(g.addresses),
			maxStandings)
	}
	hold, begun := make(chan struct{}), make(chan struct{}, 1000)
	var wg sync.WaitGroup
	var busy, most atomic.Int64
	for i := range 1000 {
		wg.Go(func() {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = fmt.Sprintf("[2001:db8:1:%x::1]:1", i)
			_, err := g.check(r.Context(), guesser{limit.Owner(b.from(r)), b.mac("u")}, func() (ok, learned bool) {
				most.Store(max(most.Load(), busy.Add(1)))
				begun <- struct{}{}
				<-hold
				busy.Add(-1)
				return false, true
			})
			if err != nil {
				begun <- struct{}{}
			}
		})
	}
	for range 1000 - limit.LoginsWaiting { // all that are refused
		<-begun
	}
	close(hold)
	wg.Wait()
	if places := int64(cap(g.trusted) + cap(g.suspect)); most.Load() > places {
		t.Errorf("%d hashes at once, want at most %d", most.Load(), places)
	}
	if g.waiting != 0 {
		t.Errorf("%d logins wait for ever", g.waiting)
	}
}

// A first login does not wait behind those who guess.
func TestFirstLoginPassesGuessers(t *testing.T) {
	b, _, _, _ := basicFixture(t, "alice:"+hashed(t, "secret", "2y")+"\n")
	for i := range suspectAfter + 1 {
		loginFrom(b, "192.0.2.1", fmt.Sprint("u", i), "x")
	}
	hold := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = "192.0.2.1:1"
			b.guesses.check(r.Context(), guesser{limit.Owner(b.from(r)), b.mac(fmt.Sprint("v", i))},
				func() (ok, learned bool) { <-hold; return false, true })
		})
	}
	done := make(chan int, 1)
	go func() { done <- loginFrom(b, "192.0.2.2", "alice", "secret") }()
	select {
	case got := <-done:
		if got != 200 {
			t.Errorf("the login = %d, want 200", got)
		}
	case <-time.After(time.Minute):
		t.Error("a correct login waits for guesses")
	}
	close(hold)
	wg.Wait()
}
