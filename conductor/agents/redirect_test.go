package agents_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/agents/agentstest"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/proto/agentv1"
)

// owners says which conductor owns the node of a test, by its address; "" is none.
type owners struct {
	mu    sync.Mutex
	owner string
	asked int
	all   []string // addresses of the conductors
}

func (o *owners) set(addr string) { o.mu.Lock(); o.owner = addr; o.mu.Unlock() }

// count is how often it was asked for an owner.
func (o *owners) count() int { o.mu.Lock(); defer o.mu.Unlock(); return o.asked }

// peer is one of several conductors on one store, with one CA.
type peer struct {
	*agents.Server
	brain *brain
	addr  string
	log   *bytes.Buffer
	stop  func()
}

// peers starts conductors in place of the rig's own.
func peers(r *rig, o *owners, count int) []*peer {
	r.t.Helper()
	var all []*peer
	for range count {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			r.t.Fatal(err)
		}
		p := &peer{brain: &brain{}, addr: l.Addr().String(), log: new(bytes.Buffer)}
		o.mu.Lock()
		o.all = append(o.all, p.addr)
		o.mu.Unlock()
		p.Server, err = agents.New(r.st, p.brain, r.ca, agents.Config{Dir: r.dir, Names: []string{p.addr},
			NotFound: func(err error) bool { return errors.Is(err, store.ErrNotFound) },
			Others: func() []string {
				o.mu.Lock()
				defer o.mu.Unlock()
				return append([]string{"nonsense"},
					slices.DeleteFunc(slices.Clone(o.all), func(a string) bool { return a == p.addr })...)
			},
			Elsewhere: func(*node.Node) string {
				o.mu.Lock()
				defer o.mu.Unlock()
				o.asked++
				if o.owner == p.addr {
					return ""
				}
				return o.owner
			}}, slog.New(slog.NewTextHandler(p.log, nil)))
		if err != nil {
			r.t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- p.Serve(l) }()
		p.stop = sync.OnceFunc(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			p.Stop(ctx)
			if err := <-done; err != nil {
				r.t.Error(err)
			}
		})
		r.t.Cleanup(p.stop)
		all = append(all, p)
	}
	return all
}

func (b *brain) upCount() (n int) { b.get(func() bool { n = len(b.ups); return true }); return n }

// TestRedirectInMidPlan: the node changes hands during a step. The agent goes with it, the step goes on, and each
// result is taken by one of the two.
func TestRedirectInMidPlan(t *testing.T) {
	r, o := newRig(t), &owners{}
	both := peers(r, o, 2)
	first, second := both[0], both[1]
	o.set(first.addr)
	n, a := r.boot("one")
	a.Addr = first.addr
	release := make(chan struct{})
	started := make(chan struct{}, 9)
	a.Steps = map[string]agentstest.StepFunc{
		"slow": func(context.Context, *agentv1.Step, func(*agentv1.Progress)) ([]byte, error) {
			started <- struct{}{}
			<-release
			return json.RawMessage(`{"a": 1}`), nil
		},
	}
	run(t, a)
	wait(t, "a session", func() bool { return first.brain.upCount() == 1 })
	plan := node.Plan{ID: "p1", Generation: r.node(n.UUID).Boot.Generation, Phase: node.PhaseDeploy,
		Steps: []node.PlanStep{{Interface: "deploy", Name: "quick"}, {Interface: "deploy", Name: "slow"},
			{Interface: "deploy", Name: "quick2"}}}
	if err := first.SendPlan(t.Context(), n.UUID, plan); err != nil {
		t.Fatal(err)
	}
	<-started
	o.set(second.addr)
	if err := first.Redirect(t.Context(), n.UUID); err != nil {
		t.Fatal(err)
	}
	if first.Connected(n.UUID) {
		t.Error("the session is still there after Redirect")
	}
	count := func(b *brain) (events, lost int) {
		b.get(func() bool { events, lost = len(b.events), len(b.lost); return true })
		return events, lost
	}
	before, _ := count(first.brain)
	wait(t, "a session with the owner", func() bool { return second.brain.upCount() == 1 })
	second.brain.get(func() bool {
		up := second.brain.ups[0]
		if up.PlanID != "p1" || !up.PlanRunning || up.StepIndex != 1 {
			t.Errorf("the owner hears %+v", up)
		}
		return true
	})
	close(release)
	wait(t, "all results", func() bool { return a.Unacked() == 0 && r.node(n.UUID).Boot.AckedSeq == 7 })
	var seen []uint64
	for _, b := range []*brain{first.brain, second.brain} {
		b.get(func() bool {
			for _, e := range b.events {
				seen = append(seen, e.Seq)
			}
			return true
		})
	}
	slices.Sort(seen)
	if got := slices.Compact(slices.Clone(seen)); !slices.Equal(got, []uint64{1, 2, 3, 4, 5, 6, 7}) {
		t.Errorf("the conductors have results %v", seen)
	}
	for _, s := range []string{"quick", "slow", "quick2"} {
		if a.Runs(s) != 1 {
			t.Errorf("step %s ran %d times", s, a.Runs(s))
		}
	}
	events, lost := count(first.brain)
	if _, here := count(second.brain); events != before || lost+here != 0 {
		t.Errorf("the conductor before has %d results, then %d; %d and %d losses", before, events, lost, here)
	}
}

// TestResultAfterTheNodeMoved: a result that comes when the node has just become another conductor's can't be stored
// here. The agent is sent there, and hands it in there; that is no error.
func TestResultAfterTheNodeMoved(t *testing.T) {
	r, o := newRig(t), &owners{}
	both := peers(r, o, 2)
	first, second := both[0], both[1]
	o.set(first.addr)
	n, a := r.boot("one")
	a.Addr = first.addr
	release, started := make(chan struct{}), make(chan struct{}, 9)
	a.Steps = map[string]agentstest.StepFunc{
		"slow": func(context.Context, *agentv1.Step, func(*agentv1.Progress)) ([]byte, error) {
			started <- struct{}{}
			<-release
			return json.RawMessage(`{}`), nil
		},
	}
	run(t, a)
	wait(t, "a session", func() bool { return first.brain.upCount() == 1 })
	plan := node.Plan{ID: "p1", Generation: r.node(n.UUID).Boot.Generation, Phase: node.PhaseDeploy,
		Steps: []node.PlanStep{{Interface: "deploy", Name: "slow"}}}
	if err := first.SendPlan(t.Context(), n.UUID, plan); err != nil {
		t.Fatal(err)
	}
	<-started
	wait(t, "the step's begin", func() bool { return r.node(n.UUID).Boot.AckedSeq == 1 })
	first.brain.get(func() bool { first.brain.fail = errors.New("the node belongs to another"); return true })
	o.set(second.addr)
	close(release)
	wait(t, "all results", func() bool { return a.Unacked() == 0 && r.node(n.UUID).Boot.AckedSeq == 3 })
	second.brain.get(func() bool {
		if len(second.brain.events) != 2 || len(second.brain.ups) != 1 {
			t.Errorf("the new owner has %d results in %d sessions", len(second.brain.events), len(second.brain.ups))
		}
		return true
	})
	first.stop()
	if log := first.log.String(); strings.Contains(log, "level=ERROR") || !strings.Contains(log, "agent redirected") ||
		len(first.brain.lost) > 0 {
		t.Errorf("%d losses, and the log of the former owner:\n%s", len(first.brain.lost), log)
	}
}

// run runs an agent until the end of the test.
func run(t *testing.T, a *agentstest.Agent) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
}

// TestEnrolledElsewhere: any conductor enrols an agent, and then sends it to the owner of its node. The engine of the
// first hears nothing of it.
func TestEnrolledElsewhere(t *testing.T) {
	r, o := newRig(t), &owners{}
	both := peers(r, o, 2)
	o.set(both[1].addr)
	n, a := r.boot("one")
	a.Addr = both[0].addr
	run(t, a)
	wait(t, "a session with the owner", func() bool { return both[1].brain.upCount() == 1 })
	b := both[0].brain
	b.get(func() bool {
		if b.enrolled != 1 || len(b.ups)+len(b.lost)+len(b.stale) != 0 {
			t.Errorf("the other conductor's engine heard %+v", b)
		}
		return true
	})
	// The owner dies, and another conductor takes over: which the agent asks does not matter.
	both[1].stop()
	o.set(both[0].addr)
	if err := both[0].Redirect(t.Context(), n.UUID); err != nil {
		t.Errorf("without a session: %v", err)
	}
}

// TestStubbornAgent: an agent that can't be redirected is refused while its node is elsewhere, and served when it comes
// back; no message that it does not know is sent.
func TestStubbornAgent(t *testing.T) {
	r, o := newRig(t), &owners{}
	p := peers(r, o, 1)[0]
	o.set("192.0.2.1:6386")
	n, a := r.boot("one")
	a.Addr, a.Stubborn = p.addr, true
	if err := a.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := a.Open(t.Context()); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "another conductor") {
		t.Errorf("an agent that can't be redirected got %v", err)
	}
	for _, nonsense := range []string{"nonsense", "0.0.0.0:1", strings.Repeat("a", 300) + ":1"} {
		o.set(nonsense)
		follows := &agentstest.Agent{Addr: p.addr, Fingerprint: a.Fingerprint, Token: a.Token}
		r.setToken(n.UUID, a.Token, time.Now().Add(time.Hour))
		if err := follows.Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := follows.Open(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("with the address %.20q an agent got %v", nonsense, err)
		}
	}
	o.set("")
	r.setToken(n.UUID, a.Token, time.Now().Add(time.Hour))
	a = &agentstest.Agent{Addr: p.addr, Fingerprint: a.Fingerprint, Token: a.Token, Stubborn: true}
	run(t, a)
	wait(t, "a session", func() bool { return p.brain.upCount() == 1 })
	o.set("192.0.2.1:6386")
	if err := p.Redirect(t.Context(), n.UUID); err != nil {
		t.Fatal(err)
	}
	o.set("")
	wait(t, "a session again", func() bool { return p.brain.upCount() == 2 })
	if !p.brain.get(func() bool { return len(p.brain.lost) == 0 }) {
		t.Error("an agent whose node moves counts as lost")
	}
	p.stop()
	if strings.Count(p.log.String(), "older than several conductors") == 0 {
		t.Errorf("the log does not say why:\n%s", p.log)
	}
}

// TestWhereTheOwnerIsIsForAgents: who has no certificate learns no address.
func TestWhereTheOwnerIsIsForAgents(t *testing.T) {
	r, o := newRig(t), &owners{}
	p := peers(r, o, 1)[0]
	o.set("192.0.2.1:6386")
	_, a := r.boot("one")
	a.Addr = p.addr
	if _, _, _, err := a.Open(t.Context()); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a certificate: %v", err)
	}
	if a.Addr != p.addr || o.asked != 0 {
		t.Errorf("an agent without certificate was sent to %s", a.Addr)
	}
}

// TestLostElsewhere: a session that breaks off when the node has just moved is no loss, as the owner may have the agent
// already.
func TestLostElsewhere(t *testing.T) {
	r, o := newRig(t), &owners{}
	p := peers(r, o, 1)[0]
	n, a := r.boot("one")
	a.Addr = p.addr
	if err := a.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, owner := range []string{"192.0.2.1:6386", ""} {
		o.set("")
		_, _, closeConn, err := a.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wait(t, "a session", func() bool { return p.brain.upCount() == i+1 })
		o.set(owner)
		before := o.count()
		if err := closeConn(); err != nil {
			t.Fatal(err)
		}
		wait(t, "the session's end, and a look whose the node is", func() bool {
			return !p.Connected(n.UUID) && o.count() > before
		})
	}
	p.stop()
	if len(p.brain.lost) != 1 {
		t.Errorf("%d losses were reported, want that of the node which is here", len(p.brain.lost))
	}
}
