package agents_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/agents/agentstest"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
	"github.com/ingot-metal/ingot/proto/agentv1"
)

// brain records the calls that the engine would get.
type brain struct {
	mu       sync.Mutex
	enrolled int
	ups      []node.AgentState
	events   []node.AgentEvent
	progress []node.Progress
	lost     []string
	stale    []string
	fail     error // what AgentEvent answers
	up       func(node.AgentState)
}

func (b *brain) Enrolled(context.Context, string) { b.mu.Lock(); b.enrolled++; b.mu.Unlock() }

func (b *brain) AgentUp(_ context.Context, s node.AgentState) error {
	b.mu.Lock()
	b.ups = append(b.ups, s)
	up := b.up
	b.mu.Unlock()
	if up != nil {
		up(s)
	}
	return nil
}

func (b *brain) AgentEvent(_ context.Context, e node.AgentEvent) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return b.fail
	}
	b.events = append(b.events, e)
	return nil
}

func (b *brain) AgentProgress(_ string, p node.Progress) {
	b.mu.Lock()
	b.progress = append(b.progress, p)
	b.mu.Unlock()
}

func (b *brain) AgentStale(_ context.Context, _, boot string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stale = append(b.stale, boot)
}

func (b *brain) AgentLost(_ context.Context, _, boot string) {
	b.mu.Lock()
	b.lost = append(b.lost, boot)
	b.mu.Unlock()
}

// get reads under the lock.
func (b *brain) get(f func() bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return f()
}

type rig struct {
	t     *testing.T
	st    *store.Store
	srv   *agents.Server
	brain *brain
	ca    *agents.CA
	dir   string
	addr  string
	clock atomic.Int64 // added to the real time, nanoseconds
	now   func() time.Time
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, dir: storetest.Fresh(t), brain: &brain{}}
	r.now = func() time.Time { return time.Now().Add(time.Duration(r.clock.Load())) }
	var err error
	if r.st, err = store.Open(t.Context(), store.Options{Dir: r.dir}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.st.Close(); err != nil {
			t.Error(err)
		}
	})
	if r.ca, err = agents.OpenCA(r.dir); err != nil {
		t.Fatal(err)
	}
	r.serve("127.0.0.1:0")
	return r
}

// serve starts a server on addr, in place of the one before.
func (r *rig) serve(addr string) {
	r.t.Helper()
	var err error
	r.srv, err = agents.New(r.st, r.brain, r.ca,
		agents.Config{Dir: r.dir, Names: []string{"127.0.0.1"}, Hostname: "test",
			Bodies:   limit.NewBudget(256<<20, 224<<20),
			NotFound: func(err error) bool { return errors.Is(err, store.ErrNotFound) }, Now: r.now}, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.addr = l.Addr().String()
	srv, done := r.srv, make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		srv.Stop(ctx)
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

// boot makes a node with an open boot window and a token, and the agent that has it.
func (r *rig) boot(name string) (*node.Node, *agentstest.Agent) {
	r.t.Helper()
	n := &node.Node{Name: name, Driver: "fake-hardware", Provision: node.DeployWait}
	if err := r.st.CreateNode(r.t.Context(), n); err != nil {
		r.t.Fatal(err)
	}
	token := n.UUID + "." + strings.Repeat("A", 43)
	r.setToken(n.UUID, token, time.Now().Add(time.Hour))
	return n, &agentstest.Agent{Addr: r.addr, Fingerprint: r.ca.Fingerprint(), Token: token}
}

func (r *rig) setToken(uuid, token string, expires time.Time) {
	r.t.Helper()
	sum := sha256.Sum256([]byte(token))
	_, err := r.st.UpdateNode(r.t.Context(), uuid, func(n *node.Node) error {
		n.Generation++
		n.Boot = &node.Boot{OpenedAt: time.Now(), ClosesAt: time.Now().Add(time.Hour),
			TokenHash: hex.EncodeToString(sum[:]), TokenExpires: expires, Generation: n.Generation}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) node(uuid string) *node.Node {
	r.t.Helper()
	n, err := r.st.Node(r.t.Context(), uuid)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) history(uuid string) string {
	r.t.Helper()
	h, err := r.st.History(r.t.Context(), uuid, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range h {
		fmt.Fprintln(&b, e.Severity, e.Event)
	}
	return b.String()
}

func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(2 * time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s: waited two minutes", what)
		}
	}
}

// TestSilentPeersDoNotHoldUpAgents: connections that say nothing have places at the gate for a moment only.
func TestSilentPeersDoNotHoldUpAgents(t *testing.T) {
	r := newRig(t)
	_, a := r.boot("one")
	for range 8 * limit.AgentsAtOnce {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	begin := time.Now()
	if err := a.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > limit.HeaderTime {
		t.Errorf("an agent was held up for %v", took)
	}
}

func TestEnroll(t *testing.T) {
	r := newRig(t)
	n, a := r.boot("one")
	if err := a.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := r.node(n.UUID)
	b := got.Boot
	if a.Node != n.UUID || a.Gen != b.Generation || b.BootID != a.BootID || b.EnrolledAt.IsZero() ||
		b.ClosedAt.IsZero() || b.Firmware != "bios" || b.CertSerial == "" {
		t.Errorf("enrolled as %s generation %d; the store has %+v", a.Node, a.Gen, b)
	}
	if got.BootMode != "bios" {
		t.Errorf("boot mode %q, want bios", got.BootMode)
	}
	// The answer may get lost: the same again is the same.
	gen := a.Gen
	if err := a.Enroll(t.Context()); err != nil || a.Gen != gen {
		t.Errorf("the same again: generation %d, %v", a.Gen, err)
	}
	if after := r.node(n.UUID).Boot; after.EnrolledAt != b.EnrolledAt || after.KeyHash != b.KeyHash {
		t.Errorf("the same again changed the boot: %+v, was %+v", after, b)
	}
	marks, err := r.st.Marks(t.Context(), n.UUID, "")
	if err != nil || len(marks) != 2 || marks[0].Name != "kernel started" || marks[1].Name != "agent enrolled" {
		t.Errorf("marks %+v, %v", marks, err)
	}
	if d := marks[1].At.Sub(marks[0].At); d != 2*time.Second {
		t.Errorf("kernel started %s before enrolment, want 2s", d)
	}
}

// TestRenewal: an agent whose boot goes on gets another certificate long after its token has expired, with the
// certificate that it has; no other client does.
func TestRenewal(t *testing.T) {
	r := newRig(t)
	n, a := r.boot("one")
	_, other := r.boot("two")
	for _, a := range []*agentstest.Agent{a, other} {
		if err := a.Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	first, boot := a.Certificate(), r.node(n.UUID).Boot
	r.clock.Store(int64(60 * 24 * time.Hour))
	defer r.clock.Store(0)
	if err := a.Renew(t.Context()); err != nil || bytes.Equal(a.Certificate(), first) {
		t.Fatalf("Renew = %v", err)
	}
	c, err := x509.ParseCertificate(a.Certificate())
	if err != nil || time.Until(c.NotAfter) < 89*24*time.Hour {
		t.Errorf("the new certificate ends at %v, %v", c.NotAfter, err)
	}
	if after := r.node(n.UUID).Boot; after.KeyHash != boot.KeyHash || !after.EnrolledAt.Equal(boot.EnrolledAt) ||
		after.Generation != boot.Generation {
		t.Errorf("a renewal changed the boot: %+v, was %+v", after, boot)
	}
	if _, _, end, err := a.Open(t.Context()); err != nil {
		t.Errorf("a session with the new certificate: %v", err)
	} else if err := end(); err != nil {
		t.Error(err)
	}
	token := other.Token
	other.Token = a.Token
	if err := other.Renew(t.Context()); status.Code(err) != codes.PermissionDenied {
		t.Errorf("Renew with another node's certificate = %v", err)
	}
	other.Token = token
	if _, err := r.st.UpdateNode(t.Context(), n.UUID,
		func(n *node.Node) error { n.Boot.Ended = true; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := a.Renew(t.Context()); status.Code(err) != codes.PermissionDenied {
		t.Errorf("Renew after the boot's end = %v", err)
	}
}

func TestEnrollRefused(t *testing.T) {
	r := newRig(t)
	// Each case starts from a fresh node and agent; the claim must be refused and the reason be in the history.
	for _, c := range []struct {
		name string
		do   func(n *node.Node, a *agentstest.Agent) *agentstest.Agent
		want string
	}{
		{"expired", func(n *node.Node, a *agentstest.Agent) *agentstest.Agent {
			r.setToken(n.UUID, a.Token, time.Now().Add(-time.Second))
			return a
		}, "expired"},
		{"voided by a newer token", func(n *node.Node, a *agentstest.Agent) *agentstest.Agent {
			r.setToken(n.UUID, n.UUID+"."+strings.Repeat("B", 43), time.Now().Add(time.Hour))
			return a
		}, "not the newest"},
		{"another node's token", func(n *node.Node, a *agentstest.Agent) *agentstest.Agent {
			_, other := r.boot("")
			return &agentstest.Agent{Addr: r.addr, Fingerprint: a.Fingerprint,
				Token: n.UUID + strings.Replace(other.Token[36:], "A", "C", 1)}
		}, "not the newest"},
		{"another key", func(n *node.Node, a *agentstest.Agent) *agentstest.Agent {
			if err := a.Enroll(t.Context()); err != nil {
				t.Fatal(err)
			}
			return &agentstest.Agent{Addr: r.addr, Fingerprint: a.Fingerprint, Token: a.Token, BootID: a.BootID}
		}, "another key"},
		{"after the boot ended", func(n *node.Node, a *agentstest.Agent) *agentstest.Agent {
			if _, err := r.st.UpdateNode(t.Context(), n.UUID,
				func(n *node.Node) error { n.Boot.Ended = true; return nil }); err != nil {
				t.Fatal(err)
			}
			return a
		}, "ended"},
		{"after the window was closed", func(n *node.Node, a *agentstest.Agent) *agentstest.Agent {
			if _, err := r.st.UpdateNode(t.Context(), n.UUID,
				func(n *node.Node) error { n.Boot.ClosedAt = time.Now(); return nil }); err != nil {
				t.Fatal(err)
			}
			return a
		}, "no longer expected"},
		{"no boot under way", func(n *node.Node, a *agentstest.Agent) *agentstest.Agent {
			if _, err := r.st.UpdateNode(t.Context(), n.UUID,
				func(n *node.Node) error { n.Boot = nil; return nil }); err != nil {
				t.Fatal(err)
			}
			return a
		}, "no boot token"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, a := r.boot("")
			b := c.do(n, a)
			err := b.Enroll(t.Context())
			if status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != "enrolment refused" {
				t.Errorf("Enroll = %v, want PermissionDenied without details", err)
			}
			if h := r.history(n.UUID); !strings.Contains(h, "WARNING") || !strings.Contains(h, c.want) {
				t.Errorf("history %q, want it to say %q", h, c.want)
			}
		})
	}

	t.Run("the token still serves the right machine after a wrong one", func(t *testing.T) {
		n, a := r.boot("")
		r.port(n, "52:54:00:0a:00:01")
		wrong := &agentstest.Agent{Addr: r.addr, Fingerprint: a.Fingerprint, Token: a.Token,
			MACs: []string{"52:54:00:0a:00:99"}}
		if err := wrong.Enroll(t.Context()); status.Code(err) != codes.PermissionDenied {
			t.Errorf("the wrong machine: %v", err)
		}
		a.MACs = []string{"52:54:00:0a:00:01"}
		if err := a.Enroll(t.Context()); err != nil {
			t.Errorf("the right one, after it: %v", err)
		}
	})
	t.Run("same key, other boot", func(t *testing.T) {
		n, a := r.boot("")
		if err := a.Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.BootID = "00000000-1111-4222-8333-444444444444"
		if err := a.Enroll(t.Context()); status.Code(err) != codes.PermissionDenied {
			t.Errorf("Enroll = %v", err)
		}
		if h := r.history(n.UUID); !strings.Contains(h, "another boot") {
			t.Errorf("history %q", h)
		}
	})
	t.Run("the same again after expiry", func(t *testing.T) {
		_, a := r.boot("")
		if err := a.Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.clock.Store(int64(2 * time.Hour))
		defer r.clock.Store(0)
		if err := a.Enroll(t.Context()); status.Code(err) != codes.PermissionDenied {
			t.Errorf("Enroll = %v", err)
		}
	})
	t.Run("unknown node", func(t *testing.T) {
		_, a := r.boot("")
		a.Token = "00000000-0000-4000-8000-000000000000" + a.Token[36:]
		if err := a.Enroll(t.Context()); status.Code(err) != codes.PermissionDenied {
			t.Errorf("Enroll = %v", err)
		}
	})
	t.Run("bounded history", func(t *testing.T) {
		n, a := r.boot("")
		a.Token = n.UUID + "." + strings.Repeat("Z", 43)
		for range 50 {
			if err := a.Enroll(t.Context()); status.Code(err) != codes.PermissionDenied {
				t.Fatalf("Enroll = %v", err)
			}
		}
		if got := strings.Count(r.history(n.UUID), "\n"); got > 11 {
			t.Errorf("50 refusals left %d lines of history", got)
		}
	})
}

func TestEnrollMalformed(t *testing.T) {
	r := newRig(t)
	_, a := r.boot("")
	conn, err := a.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := agentv1.NewAgentsClient(conn)
	for name, x := range map[string]struct {
		spoil func(*agentv1.EnrollRequest)
		want  codes.Code
	}{
		"protocol":     {func(q *agentv1.EnrollRequest) { q.Protocol = 2 }, codes.FailedPrecondition},
		"boot id":      {func(q *agentv1.EnrollRequest) { q.BootId = "../../etc" }, codes.InvalidArgument},
		"token":        {func(q *agentv1.EnrollRequest) { q.Token = "x" }, codes.InvalidArgument},
		"boot mode":    {func(q *agentv1.EnrollRequest) { q.BootMode = "coreboot" }, codes.InvalidArgument},
		"no csr":       {func(q *agentv1.EnrollRequest) { q.Csr = nil }, codes.InvalidArgument},
		"unsigned csr": {func(q *agentv1.EnrollRequest) { q.Csr[len(q.Csr)-1] ^= 1 }, codes.InvalidArgument},
	} {
		req, err := a.Request()
		if err != nil {
			t.Fatal(err)
		}
		x.spoil(req)
		if _, err := c.Enroll(t.Context(), req); status.Code(err) != x.want {
			t.Errorf("%s: %v, want %s", name, err, x.want)
		}
	}
}

func TestSessionWithoutCertificate(t *testing.T) {
	r := newRig(t)
	_, a := r.boot("")
	if _, _, _, err := a.Open(t.Context()); status.Code(err) != codes.Unauthenticated {
		t.Errorf("Open = %v, want Unauthenticated", err)
	}
}

// TestAgentLeavesBeforeHello: one that closes its side, or whose connection breaks, before it has said hello ends its
// own session alone.
func TestAgentLeavesBeforeHello(t *testing.T) {
	r := newRig(t)
	_, a := r.boot("")
	if err := a.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := a.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := agentv1.NewAgentsClient(conn).Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("Recv after the agent closed its side = %v, want Unavailable", err)
	}
	for range 50 { // the end of the stream and that of its context race
		ctx, cancel := context.WithCancel(t.Context())
		if stream, err = agentv1.NewAgentsClient(conn).Session(ctx); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Millisecond, cancel)
		if _, err := stream.Recv(); err == nil {
			t.Fatal("the conductor answered before hello")
		}
	}
	_, _, closeConn, err := a.Open(t.Context())
	if err != nil {
		t.Fatalf("a session afterwards: %v", err)
	}
	closeConn()
}

func TestSessionOfAnOldBoot(t *testing.T) {
	r := newRig(t)
	n, a := r.boot("")
	if err := a.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	stream, _, closeConn, err := a.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn()
	if _, err := r.st.UpdateNode(t.Context(), n.UUID,
		func(n *node.Node) error { n.Boot.Ended = true; return nil }); err != nil {
		t.Fatal(err)
	}
	r.srv.CloseSession(n.UUID)
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("Recv after CloseSession = %v", err)
	}
	if _, _, _, err := a.Open(t.Context()); status.Code(err) != codes.PermissionDenied {
		t.Errorf("Open after the end of the boot = %v, want PermissionDenied", err)
	}
	wait(t, "that the agent still runs is told", func() bool {
		return r.brain.get(func() bool { return len(r.brain.stale) == 1 && r.brain.stale[0] == a.BootID })
	})
	wait(t, "the loss is told", func() bool { return r.brain.get(func() bool { return len(r.brain.lost) == 1 }) })
}

func TestResults(t *testing.T) {
	r := newRig(t)
	n, a := r.boot("")
	a.Steps = map[string]agentstest.StepFunc{
		"write_image": func(_ context.Context, _ *agentv1.Step, progress func(*agentv1.Progress)) ([]byte, error) {
			progress(&agentv1.Progress{Phase: "write", Bytes: 5, Total: 10,
				Items: []*agentv1.ItemProgress{{Name: "sda", Bytes: 5, Total: 10},
					{Name: "sdb", Done: true, Error: "lies"}}})
			return []byte(`{"bytes_written":10}`), nil
		}, "bad": func(context.Context, *agentv1.Step, func(*agentv1.Progress)) ([]byte, error) {
			return nil, errors.New("no disk fits")
		}}
	r.brain.up = func(s node.AgentState) {
		if s.PlanID != "" {
			return
		}
		err := r.srv.SendPlan(t.Context(), s.NodeUUID, node.Plan{ID: "p1", Generation: 9, Phase: node.PhaseDeploy,
			Steps: []node.PlanStep{{Interface: "deploy", Name: "write_image"}, {Interface: "deploy", Name: "bad"}}})
		if err != nil {
			t.Errorf("SendPlan = %v", err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	wait(t, "all acknowledged", func() bool {
		return r.brain.get(func() bool { return len(r.brain.events) == 5 }) && a.Unacked() == 0
	})
	r.brain.get(func() bool {
		e := r.brain.events
		for i := range e {
			if e[i].Seq != uint64(i+1) {
				t.Errorf("event %d has number %d", i, e[i].Seq)
			}
		}
		if e[0].StepStarted.Name != "write_image" || e[1].StepFinished.Outcome != node.OutcomeDone ||
			string(e[1].StepFinished.Result) != `{"bytes_written":10}` {
			t.Errorf("first step: %+v, %+v", e[0].StepStarted, e[1].StepFinished)
		}
		if f := e[3].StepFinished; f.Outcome != node.OutcomeFailed || f.Error != "no disk fits" || f.Index != 1 {
			t.Errorf("second step: %+v", f)
		}
		if f := e[4].PlanFinished; f.PlanID != "p1" || f.Done {
			t.Errorf("plan: %+v", f)
		}
		return true
	})
	if files, err := filepath.Glob(filepath.Join(r.dir, "logs", n.UUID, "*.tar.gz")); err != nil || len(files) != 1 {
		t.Errorf("logs kept after a failed step: %v, %v", files, err)
	}
	if b := r.node(n.UUID).Boot; b.AckedSeq != 5 {
		t.Errorf("AckedSeq %d, want 5", b.AckedSeq)
	}
	wait(t, "progress", func() bool { return r.brain.get(func() bool { return len(r.brain.progress) == 1 }) })
	r.brain.get(func() bool {
		p := r.brain.progress[0]
		if p.Items == nil ||
			!slices.Equal(*p.Items,
				[]node.ItemProgress{{Name: "sda", Bytes: 5, Total: 10}, {Name: "sdb", Done: true, Error: "lies"}}) {
			t.Errorf("progress %+v with items %+v", p, p.Items)
		}
		return true
	})
	stop()
	<-done
	wait(t, "the loss is told", func() bool {
		return r.brain.get(func() bool { return len(r.brain.lost) == 1 && r.brain.lost[0] == a.BootID })
	})
	wait(t, "no session", func() bool { return !r.srv.Connected(n.UUID) })
	if err := r.srv.SendPlan(t.Context(), n.UUID, node.Plan{}); !errors.Is(err, agents.ErrNoSession) {
		t.Errorf("SendPlan without a session = %v", err)
	}
}

// A conductor that can't store a result must not acknowledge it, and gets it again.
func TestResultsSurvive(t *testing.T) {
	r := newRig(t)
	n, a := r.boot("")
	r.brain.fail = errors.New("disk full")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	for range 3 {
		a.Result(&agentv1.Event{
			Body: &agentv1.Event_WorkerRestarted{WorkerRestarted: &agentv1.WorkerRestarted{Reason: "test", Count: 1}}})
	}
	wait(t, "two sessions", func() bool { return r.brain.get(func() bool { return len(r.brain.ups) >= 2 }) })
	if a.Unacked() != 3 || r.node(n.UUID).Boot.AckedSeq != 0 {
		t.Errorf("%d unacknowledged, AckedSeq %d", a.Unacked(), r.node(n.UUID).Boot.AckedSeq)
	}
	r.brain.mu.Lock()
	r.brain.fail = nil
	r.brain.mu.Unlock()
	wait(t, "all acknowledged", func() bool { return a.Unacked() == 0 })

	// Another server on the same store and address: the agent comes back and nothing is handed on twice.
	addr := r.addr
	sctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r.srv.Stop(sctx)
	a.Result(&agentv1.Event{
		Body: &agentv1.Event_WorkerRestarted{WorkerRestarted: &agentv1.WorkerRestarted{Reason: "test", Count: 2}}})
	r.serve(addr)
	wait(t, "the fourth", func() bool { return a.Unacked() == 0 })
	r.brain.get(func() bool {
		for i, e := range r.brain.events {
			if e.Seq != uint64(i+1) {
				t.Errorf("event %d has number %d", i, e.Seq)
			}
		}
		if len(r.brain.events) != 4 {
			t.Errorf("%d events, want 4", len(r.brain.events))
		}
		return true
	})
	stop()
	<-done
}

// TestSessionEndsWithItsCA: when the overlap of a rotation ends, the sessions with certificates of the previous CA end,
// and their connections can't be used any more. Those of the next CA go on.
func TestSessionEndsWithItsCA(t *testing.T) {
	r := newRig(t)
	_, old := r.boot("old")
	if err := old.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	var err error
	if r.ca, err = agents.RotateCA(r.dir, begin, time.Hour); err != nil {
		t.Fatal(err)
	}
	var clock atomic.Int64 // it stands still: only the timer of a session ends it
	clock.Store(int64(time.Minute))
	r.now = func() time.Time { return begin.Add(time.Duration(clock.Load())) }
	r.serve("127.0.0.1:0")
	n, young := r.boot("young")
	old.Addr = r.addr
	if err := young.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, _, closeYoung, err := young.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closeYoung()

	conn, err := old.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	open := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stream, err := agentv1.NewAgentsClient(conn).Session(ctx)
		if err != nil {
			return err
		}
		// Recv says why, if not
		stream.Send(&agentv1.AgentMessage{
			Body: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{BootId: old.BootID, Generation: old.Gen}}})
		for err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	clock.Store(int64(r.ca.Until().Sub(begin) - 100*time.Millisecond))
	if err := open(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "CA has been replaced") {
		t.Errorf("a session of the CA before ended with %v", err)
	}
	clock.Store(int64(2 * time.Hour))
	if err := open(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "CA has been replaced") {
		t.Errorf("a session over the old connection ended with %v", err)
	}
	req, err := old.Request()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agentv1.NewAgentsClient(conn).Enroll(t.Context(), req); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a renewal over the old connection = %v", err)
	}
	if !r.srv.Connected(n.UUID) {
		t.Error("the session of the next CA has ended, too")
	}
}

func TestNewerStreamReplacesOlder(t *testing.T) {
	r := newRig(t)
	n, a := r.boot("")
	if err := a.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, _, close1, err := a.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer close1()
	_, _, close2, err := a.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer close2()
	if _, err := first.Recv(); status.Code(err) != codes.Aborted {
		t.Errorf("the older stream ended with %v, want Aborted", err)
	}
	wait(t, "both were seen", func() bool { return r.brain.get(func() bool { return len(r.brain.ups) == 2 }) })
	if !r.brain.get(func() bool { return r.brain.ups[0].Address == "127.0.0.1" }) {
		t.Errorf("the engine does not hear where the session comes from: %+v", r.brain.ups)
	}
	if !r.srv.Connected(n.UUID) || !r.brain.get(func() bool { return len(r.brain.lost) == 0 }) {
		t.Error("replacing a stream counted as a loss")
	}
}

func TestLogsAndBundles(t *testing.T) {
	r := newRig(t)
	n, a := r.boot("")
	if err := a.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	stream, _, closeConn, err := a.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn()
	send := func(e *agentv1.Event) {
		t.Helper()
		if err := stream.Send(&agentv1.AgentMessage{Body: &agentv1.AgentMessage_Event{Event: e}}); err != nil {
			t.Fatal(err)
		}
	}
	send(&agentv1.Event{
		Body: &agentv1.Event_Log{
			Log: &agentv1.LogLine{Level: "WARN", Message: "disk is slow", Attrs: []string{"disk=sda"}, Lost: 3}}})
	send(&agentv1.Event{
		Body: &agentv1.Event_Log{Log: &agentv1.LogLine{Level: "INFO", Message: strings.Repeat("x", 1<<20)}}})
	wait(t, "two lines", func() bool { return len(r.srv.Logs(n.UUID, 0)) == 2 })
	l := r.srv.Logs(n.UUID, 0)
	if l[0].Message != "disk is slow" || l[0].Lost != 3 || l[0].Attrs[0] != "disk=sda" || len(l[1].Message) > 4096 {
		t.Errorf("lines %.200v", l)
	}
	for range 12 {
		send(&agentv1.Event{Body: &agentv1.Event_LogBundle{LogBundle: &agentv1.LogBundle{TarGz: []byte("archive")}}})
	}
	wait(t, "ten bundles", func() bool {
		files, _ := filepath.Glob(filepath.Join(r.dir, "logs", n.UUID, "*.tar.gz"))
		return len(files) == 10
	})
	info, err := os.Stat(filepath.Join(r.dir, "logs", n.UUID))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("folder of logs: %v %v", info.Mode(), err)
	}
}

// Logs of a deleted node are there for a month, and then not for ever. What is no folder of a node's stays.
func TestLogsOfDeletedNodesAreRemoved(t *testing.T) {
	r := newRig(t)
	n, a := r.boot("")
	folder := func(name string, age time.Duration) string {
		t.Helper()
		dir := filepath.Join(r.dir, "logs", name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "20260101T000000.000000.tar.gz"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		at := r.now().Add(-age)
		if err := os.Chtimes(dir, at, at); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	const day = 24 * time.Hour
	other, _ := r.boot("")
	deleted := folder("0f2c9d4e-1111-4222-8333-444455556666", 31*day)
	kept := []string{folder(other.UUID, 400*day), folder("0f2c9d4e-1111-4222-8333-444455556667", 29*day),
		folder("mine", 400*day)}
	if err := a.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	stream, _, closeConn, err := a.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn()
	bundle := func() {
		t.Helper()
		if err := stream.Send(&agentv1.AgentMessage{Body: &agentv1.AgentMessage_Event{Event: &agentv1.Event{
			Body: &agentv1.Event_LogBundle{LogBundle: &agentv1.LogBundle{TarGz: []byte("archive")}}}}}); err != nil {
			t.Fatal(err)
		}
	}
	is := func(dir string) bool {
		_, err := os.Stat(dir)
		return err == nil
	}
	bundle()
	wait(t, "the logs of a deleted node are removed", func() bool { return !is(deleted) })
	for _, dir := range append(kept, filepath.Join(r.dir, "logs", n.UUID)) {
		if !is(dir) {
			t.Errorf("%s was removed, too", dir)
		}
	}
	r.clock.Add(int64(2 * day))
	bundle()
	wait(t, "the other deleted node's are removed when they are a month old", func() bool { return !is(kept[1]) })
}

func TestPower(t *testing.T) {
	r := newRig(t)
	n, a := r.boot("")
	got := make(chan agentv1.PowerAction, 1)
	a.Power = func(p agentv1.PowerAction) { got <- p }
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	defer func() { stop(); <-done }()
	wait(t, "a session", func() bool { return r.srv.Connected(n.UUID) })
	wait(t, "power is sent", func() bool { return r.srv.Power(t.Context(), n.UUID, node.AgentOff) == nil })
	if p := <-got; p != agentv1.PowerAction_POWER_ACTION_OFF {
		t.Errorf("the agent was asked for %s", p)
	}
	if err := r.srv.Power(t.Context(), n.UUID, "explode"); err == nil {
		t.Error("an unknown power action was sent")
	}
}

// TestKexec: an agent that closes its side in order has promised to jump; one that stays, or whose session breaks off,
// has not.
func TestKexec(t *testing.T) {
	r := newRig(t)
	if err := r.srv.Kexec(t.Context(), "0f2c9d4e-1111-4222-8333-444455556666", 0); !errors.Is(err,
		agents.ErrNoSession) {
		t.Errorf("without a session: %v", err)
	}
	for name, leave := range map[string]func(agentv1.Agents_SessionClient, func()){
		"leaves": func(s agentv1.Agents_SessionClient, _ func()) {
			if err := s.CloseSend(); err != nil {
				t.Error(err)
			}
		},
		"stays":      func(agentv1.Agents_SessionClient, func()) {},
		"breaks off": func(_ agentv1.Agents_SessionClient, cut func()) { cut() },
	} {
		t.Run(name, func(t *testing.T) {
			n, a := r.boot(strings.ReplaceAll(name, " ", "-"))
			if err := a.Enroll(t.Context()); err != nil {
				t.Fatal(err)
			}
			sctx, cut := context.WithCancel(t.Context())
			defer cut()
			stream, _, closeConn, err := a.Open(sctx)
			if err != nil {
				t.Fatal(err)
			}
			defer closeConn()
			asked := make(chan *agentv1.Power, 1)
			go func() {
				for {
					m, err := stream.Recv()
					if err != nil {
						return
					}
					if p := m.GetPower(); p != nil {
						asked <- p
						leave(stream, cut)
					}
				}
			}()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got := make(chan error, 1)
			go func() { got <- r.srv.Kexec(ctx, n.UUID, 7*time.Second) }()
			if p := <-asked; p.Action != agentv1.PowerAction_POWER_ACTION_KEXEC ||
				p.Delay.AsDuration() != 7*time.Second {
				t.Errorf("the agent was asked for %v", p)
			}
			if name == "stays" {
				cancel()
			}
			err = <-got
			switch name {
			case "leaves":
				if err != nil {
					t.Errorf("Kexec = %v", err)
				}
			case "stays":
				if !errors.Is(err, context.Canceled) || !r.srv.Connected(n.UUID) {
					t.Errorf("Kexec = %v, connected %v", err, r.srv.Connected(n.UUID))
				}
			case "breaks off":
				if !errors.Is(err, agents.ErrNoSession) {
					t.Errorf("Kexec = %v", err)
				}
			}
		})
	}
}

// TestMessagesCountUntilTheyAreWorkedOff: an agent can't have more waiting than agents may hold in all: its connection
// ends. What was worked off, or lost with a connection, does not count any more.
func TestMessagesCountUntilTheyAreWorkedOff(t *testing.T) {
	r := newRig(t)
	_, a := r.boot("one")
	if err := a.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	result := func(seq uint64) *agentv1.AgentMessage {
		return &agentv1.AgentMessage{
			Body: &agentv1.AgentMessage_Event{Event: &agentv1.Event{Seq: seq, Body: &agentv1.Event_StepFinished{
				StepFinished: &agentv1.StepFinished{Name: "x", Result: make([]byte, 14<<20)}}}}}
	}
	open := func() (agentv1.Agents_SessionClient, func() error) {
		t.Helper()
		stream, _, closeConn, err := a.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return stream, closeConn
	}
	stream, closeConn := open()
	wait(t, "the agent is up", func() bool { return r.brain.get(func() bool { return len(r.brain.ups) == 1 }) })
	r.brain.mu.Lock() // nothing is worked off
	ended := make(chan error, 1)
	go func() {
		_, err := stream.Recv()
		ended <- err
	}()
	for seq := uint64(1); seq <= 3 && stream.Send(result(seq)) == nil; seq++ {
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("three results of 14 MiB wait together")
	}
	r.brain.mu.Unlock()
	closeConn()

	seq := uint64(2) // of which the conductor may have had the first before the end
	for range 4 {
		stream, closeConn := open()
		seq++
		if err := stream.Send(result(seq)); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := stream.Recv()
			if err != nil {
				t.Fatalf("result %d: %v", seq, err)
			}
			if m.GetAck().GetSeq() == seq {
				break
			}
		}
		closeConn()
	}
}
