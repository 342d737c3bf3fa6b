package agent

import (
	"crypto/x509"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
)

// site gives two conductors with one CA, as those of one installation have it.
func site(t *testing.T) (*conductor, *conductor) {
	t.Helper()
	c1, c2 := newConductor(t), newConductor(t)
	c2.stop()
	c2.ca, c2.cert = c1.ca, c1.ca.server(t, x509.ExtKeyUsageServerAuth)
	c2.start()
	return c1, c2
}

func (c *conductor) sessions() int { return c.count(func() int { return len(c.hellos) }) }

func (c *conductor) sendsTo(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.elsewhere = addr
}

// hasty makes an agent's patience with a conductor that does not answer short.
func hasty(a *Agent) { a.session.route.patience = 300 * time.Millisecond }

// TestRedirect holds that a plan goes on while its agent changes conductors, that no result is lost, and that the
// certificate serves there, too.
func TestRedirect(t *testing.T) {
	c1, c2 := site(t)
	c1.noAck = true
	b := newBench(t, c1)
	b.run()
	c1.plan("p1", 3, "quick", "wait", "quick")
	<-b.ran
	<-b.ran
	poll(t, "the first step's result", func() bool {
		return c1.count(func() int { return len(c1.results) }) >= 3
	})
	c1.say(redirect(c2.addr))
	poll(t, "a session with the other conductor", func() bool { return c2.sessions() == 1 })
	c2.mu.Lock()
	h := c2.hellos[0]
	c2.mu.Unlock()
	if h.PlanId != "p1" || !h.PlanRunning || h.StepIndex != 1 || !h.FollowsRedirects {
		t.Errorf("the other conductor hears %v", h)
	}
	close(b.release)
	poll(t, "the plan's end", func() bool { return c2.finished("p1") != nil })
	if <-b.ran != "quick" || len(b.ran) != 0 {
		t.Error("the steps did not run once each")
	}
	c2.mu.Lock()
	defer c2.mu.Unlock()
	var seen []uint64
	for _, e := range c2.results {
		seen = append(seen, e.Seq)
	}
	// Three steps with a beginning and an end, and the plan's end.
	if !slices.Equal(seen, []uint64{1, 2, 3, 4, 5, 6, 7}) || c2.dups != 0 {
		t.Errorf("the other conductor has results %v and %d of them again", seen, c2.dups)
	}
	if len(c2.keys) != 0 {
		t.Errorf("enrolled %d times with the other conductor, want the certificate to do", len(c2.keys))
	}
}

// TestRedirectInsteadOfWelcome: the conductor that the boot parameters name need not be the node's, and a worker that
// dies leaves its successor the address.
func TestRedirectInsteadOfWelcome(t *testing.T) {
	c1, c2 := site(t)
	c1.sendsTo(c2.addr)
	b := newBench(t, c1)
	b.run()
	poll(t, "a session with the other conductor", func() bool { return c2.sessions() == 1 })
	_ = b.stop()
	was := c1.sessions()
	b.run()
	poll(t, "a session of the next worker", func() bool { return c2.sessions() == 2 })
	if c1.sessions() != was || was != 1 || c1.count(func() int { return len(c1.keys) }) != 1 {
		t.Errorf("%d sessions and then %d with the first conductor, want one", was, c1.sessions())
	}
}

// TestRedirectToTheDead: a conductor that can't be reached, or whose certificate is of another CA, costs some seconds,
// and the machine's link does not change for it.
func TestRedirectToTheDead(t *testing.T) {
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	foreign := newConductor(t)
	for name, to := range map[string]string{"dead": dead.Addr().String(), "of another CA": foreign.addr} {
		t.Run(name, func(t *testing.T) {
			c := newConductor(t)
			b := newBench(t, c)
			b.before = hasty
			b.run()
			c.plan("p1", 3, "wait")
			<-b.ran
			c.say(redirect(to))
			poll(t, "the way back", func() bool { return c.sessions() == 2 })
			close(b.release)
			poll(t, "the plan's end", func() bool { return c.finished("p1") != nil })
			b.wire.mu.Lock()
			defer b.wire.mu.Unlock()
			if b.wire.rotated != 0 {
				t.Errorf("%d times another link was preferred", b.wire.rotated)
			}
		})
	}
	if n := foreign.sessions() + foreign.count(func() int { return len(foreign.keys) }); n != 0 {
		t.Errorf("the server of another CA was given %d requests", n)
	}
}

// TestRedirectToAndFro: conductors that take each other for the owner don't make the agent spin.
func TestRedirectToAndFro(t *testing.T) {
	c1, c2 := site(t)
	c1.sendsTo(c2.addr)
	c2.sendsTo(c1.addr)
	b := newBench(t, c1)
	b.run()
	poll(t, "the second redirect by the second conductor", func() bool { return c2.sessions() == 2 })
	c1.sendsTo("") // one of them knows better now
	c1.plan("p1", 3, "quick")
	poll(t, "the plan's end", func() bool { return c1.finished("p1") != nil })
	if c1.sessions() != 3 || c2.sessions() != 2 {
		t.Errorf("%d sessions with one conductor, %d with the other; want 3 and 2", c1.sessions(), c2.sessions())
	}
	// The first pause is half a second to one and a half.
	if pause := c1.came[2].Sub(c2.came[1]); pause < time.Second/2 {
		t.Errorf("the fourth redirect was followed after %s", pause)
	}
}

// TestRedirectByAnotherServer: only a server that the CA has issued a certificate for can send an agent elsewhere.
func TestRedirectByAnotherServer(t *testing.T) {
	c1, c2 := site(t)
	foreign := newConductor(t)
	foreign.sendsTo(c2.addr)
	b := newBench(t, c1)
	b.opts.Config.Conductors = []string{foreign.addr, c1.addr}
	b.run()
	poll(t, "a session with the conductor", func() bool { return c1.sessions() == 1 })
	if foreign.sessions() != 0 || c2.sessions() != 0 {
		t.Errorf("%d sessions with the foreign server, %d where it sends agents", foreign.sessions(), c2.sessions())
	}
}

// TestRedirectToNonsense: an address that is none ends the session and is not kept.
func TestRedirectToNonsense(t *testing.T) {
	for _, to := range []string{"", "mdns", "127.0.0.1:0", "unix:///run/x:1", "[ff02::1]:6386",
		strings.Repeat("a", 64<<10) + ":6386"} {
		c := newConductor(t)
		b := newBench(t, c)
		b.run()
		c.say(redirect(to))
		poll(t, "the session after it", func() bool { return c.sessions() == 2 })
		_ = b.stop()
		state, err := os.ReadFile(b.opts.State)
		if err != nil || len(state) > 16<<10 || strings.Contains(string(state), `"conductor"`) {
			t.Errorf("after a redirect to %.20q the state has %d bytes, %v", to, len(state), err)
		}
	}
}

// TestSeveralConductors: the boot parameters may name several, and a conductor that is down costs a moment.
func TestSeveralConductors(t *testing.T) {
	c1, c2 := site(t)
	c1.stop()
	b := newBench(t, c2)
	b.opts.Config.Conductors = []string{c1.addr, c2.addr}
	hasty(b.run())
	poll(t, "a session with the second", func() bool { return c2.sessions() == 1 })
	c1.start()
	c2.stop()
	poll(t, "a session with the first", func() bool { return c1.sessions() == 1 })
}

// TestNamedConductors: a conductor that the boot parameters do not name is asked, too, by the next worker as well.
func TestNamedConductors(t *testing.T) {
	c1, c2 := site(t)
	c1.mu.Lock()
	c1.others = []string{"", c2.addr}
	c1.mu.Unlock()
	b := newBench(t, c1)
	b.run()
	poll(t, "a session with the first", func() bool { return c1.sessions() == 1 })
	poll(t, "the second's address in the state", func() bool {
		state, err := os.ReadFile(b.opts.State)
		return err == nil && strings.Contains(string(state), `"conductors":["`+c2.addr+`"]`)
	})
	_ = b.stop()
	c1.stop()
	b.run()
	poll(t, "a session with the second", func() bool { return c2.sessions() == 1 })
}

// TestBusyConductor: a conductor that ends the agent's connections before it answers is there, and is asked again; the
// others, who would only redirect the agent to it, are not.
func TestBusyConductor(t *testing.T) {
	c1, c2 := site(t)
	b := newBench(t, c1)
	b.opts.Config.Conductors = []string{c1.addr, c2.addr}
	hasty(b.run())
	poll(t, "a session", func() bool { return c1.sessions() == 1 })
	c1.stop()
	var busy net.Listener
	poll(t, "its address", func() (ok bool) {
		var err error
		busy, err = net.Listen("tcp", c1.addr)
		return err == nil
	})
	sent := make(chan struct{}, 1000)
	go func() {
		for {
			c, err := busy.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1))
			c.Close()
			sent <- struct{}{}
		}
	}()
	for range 5 { // with the pauses between them that is longer than its patience
		<-sent
	}
	if n := c2.sessions(); n > 0 {
		t.Errorf("%d sessions with the other conductor", n)
	}
	busy.Close()
	c1.start()
	poll(t, "the session again", func() bool { return c1.sessions() == 2 || c2.sessions() == 1 })
}

func TestRoute(t *testing.T) {
	now := time.Unix(1e9, 0)
	after := func(d time.Duration) time.Time { now = now.Add(d); return now }
	r := newRoute([]string{"a", "b"}, nil, "")
	at := func(want string) {
		t.Helper()
		if r.address() != want {
			t.Errorf("the address is %s, want %s", r.address(), want)
		}
	}
	at("a")
	for _, want := range []string{"b", "a", "b"} {
		if !r.lost(after(time.Second)) {
			t.Error("stays with a conductor that does not answer")
		}
		at(want)
	}
	// c is tried for 10 seconds, then all in turn.
	if p := r.redirected("c", now); p != 0 {
		t.Errorf("the first redirect waits for %s", p)
	}
	for range 9 {
		at("c")
		if r.lost(after(time.Second)) {
			t.Error("gives up too early")
		}
	}
	for _, want := range []string{"a", "b", "c", "a"} {
		if !r.lost(after(time.Second)) {
			t.Error("does not go on")
		}
		at(want)
	}
	// Where a session was open, the ten seconds begin anew.
	r.redirected("c", after(time.Second))
	r.opened()
	if after(time.Hour); r.lost(now) || r.lost(after(9*time.Second)) || !r.lost(after(time.Second)) {
		t.Error("not ten seconds after a session")
	}
	// Who sends the agent away is there, for a minute.
	r.redirected("c", after(time.Second))
	if !r.sentAway(now) || !r.sentAway(after(59*time.Second)) || r.sentAway(after(time.Second)) {
		t.Error("not a minute with one that is busy")
	}
	if r.lost(now); !r.sentAway(after(time.Second)) {
		t.Error("the minute does not begin anew")
	}
	// To and fro: three at once, then with a pause that grows; a quiet minute ends it.
	for i, want := range []time.Duration{0, 0, 0, 1, 2, 4, 8, 16, 30, 30, 30} {
		pause := r.redirected("d", after(time.Second))
		if pause != want*time.Second {
			t.Errorf("redirect %d waits for %s, want %d s", i+1, pause, want)
		}
		after(pause)
		if r.lost(after(time.Second)) {
			t.Error("the pause counts as time in which the conductor does not answer")
		}
	}
	if p := r.redirected("a", after(2*time.Minute)); p != 0 {
		t.Errorf("after two quiet minutes a redirect waits for %s", p)
	}
	// Those that a Welcome names are asked, too, without what is no address.
	many := slices.Repeat([]string{"x:1"}, agentv1.MaxConductors)
	named := append([]string{"a", "e:1", "e:1", "0.0.0.0:1", "f:1"}, many...)
	if got := r.learn(named); !slices.Equal(got, []string{"e:1", "e:1", "f:1", "x:1", "x:1", "x:1"}) {
		t.Errorf("learns %q", got)
	}
	if r.learn(named) != nil {
		t.Error("learns the same again")
	}
	after(time.Minute)
	for _, want := range []string{"b", "e:1", "f:1", "x:1", "a", "b"} {
		r.lost(after(time.Minute))
		at(want)
	}
	r.learn(nil)
	at("b")
	r.lost(after(time.Second))
	at("a")
}
