package agents_test

import (
	"context"
	"errors"
	"net"
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
)

const (
	newMAC  = "52:54:00:dd:00:01"
	newGUID = "00112233-4455-6677-8899-aabbccddeeff"
)

// discovering starts a server that makes nodes of unknown machines, in place of the one before.
func (r *rig) discovering(limit int) {
	r.t.Helper()
	var err error
	r.srv, err = agents.New(r.st, r.brain, r.ca,
		agents.Config{Dir: r.dir, Names: []string{"127.0.0.1"}, Hostname: "test",
			Discovery: &agents.Discovery{Driver: "ipmi", Interfaces: map[string]string{"network": "noop"},
				LimitPerHour: limit, TokenLife: 15 * time.Minute},
			NotFound: func(err error) bool { return errors.Is(err, store.ErrNotFound) },
			Now:      func() time.Time { return time.Now().Add(time.Duration(r.clock.Load())) }}, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
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

// invited is the agent of a machine that was invited by one of its addresses.
func (r *rig) invited(guid string, macs ...string) *agentstest.Agent {
	r.t.Helper()
	token, err := r.ca.Invite(macs[0], time.Now().Add(time.Duration(r.clock.Load())))
	if err != nil {
		r.t.Fatal(err)
	}
	return &agentstest.Agent{Addr: r.addr, Fingerprint: r.ca.Fingerprint(), Token: token, MACs: macs, UUID: guid}
}

func (r *rig) nodes() []*node.Node {
	r.t.Helper()
	all, err := r.st.Nodes(r.t.Context(), store.Query{})
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

func refused(t *testing.T, what string, err error) {
	t.Helper()
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("%s: %v, want PermissionDenied", what, err)
	}
}

func TestDiscovery(t *testing.T) {
	r := newRig(t)
	r.discovering(10)
	a := r.invited(newGUID, newMAC, "52:54:00:dd:00:02")
	if err := a.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := r.node(a.Node)
	if n.Provision != node.Enroll || n.Driver != "ipmi" || n.Interfaces["network"] != "noop" ||
		n.DiscoveredAt.IsZero() || len(n.DriverInfo) != 0 || n.Job != nil ||
		len(n.SystemGUIDs) != 2 || n.Boot.BootID != a.BootID || n.Boot.Generation != a.Gen || n.Power != "" ||
		n.TargetPower != "" {
		t.Errorf("the node is %+v, its boot %+v", n, n.Boot)
	}
	if n.Boot.WindowOpen(time.Now()) {
		t.Error("its boot window is open")
	}
	if h := r.history(n.UUID); !strings.Contains(h,
		"INFO discovered: an unknown machine booted the agent (addresses "+newMAC) {
		t.Errorf("history:\n%s", h)
	}
	// The answer may get lost, and the conductor may be another one by then.
	gen := a.Gen
	r.discovering(10)
	a.Addr = r.addr
	if err := a.Enroll(t.Context()); err != nil || a.Node != n.UUID || a.Gen != gen || len(r.nodes()) != 1 {
		t.Errorf("the same again: node %s generation %d, %v; %d nodes", a.Node, a.Gen, err, len(r.nodes()))
	}
	// It has a session as any agent.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { _ = a.Run(ctx) })
	wait(t, "session", func() bool { return r.srv.Connected(n.UUID) })
	cancel()
	wg.Wait()

	// Booted anew under another address and with its UUID in the other byte order it is the same node, and looked at
	// again.
	again := r.invited("33221100-5544-7766-8899-aabbccddeeff", "52:54:00:dd:00:03")
	if err := again.Enroll(t.Context()); err != nil || again.Node != n.UUID || again.Gen <= gen || len(r.nodes()) != 1 {
		t.Errorf("another boot: node %s generation %d, %v; %d nodes", again.Node, again.Gen, err, len(r.nodes()))
	}
	lost := again.Gen
	if err := again.Enroll(t.Context()); err != nil || again.Gen != lost {
		t.Errorf("another boot, the same again: generation %d, %v", again.Gen, err)
	}
	if err := a.Enroll(t.Context()); err == nil {
		t.Error("the boot before could enrol")
	}
	// Once an operator has taken the node over, such a boot is refused.
	if _, err := r.st.UpdateNode(t.Context(), n.UUID,
		func(n *node.Node) error { n.Provision = node.Manageable; return nil }); err != nil {
		t.Fatal(err)
	}
	refused(t, "a managed node", r.invited(newGUID, "52:54:00:dd:00:04").Enroll(t.Context()))
	if h := r.history(n.UUID); !strings.Contains(h, "but it is this node: make a port") || len(r.nodes()) != 1 {
		t.Errorf("%d nodes, history:\n%s", len(r.nodes()), h)
	}
}

// TestDiscoveryRefuses: an invitation is of use to the machine that it was made for, for a while.
func TestDiscoveryRefuses(t *testing.T) {
	r := newRig(t)
	off := r.invited(newGUID, newMAC)
	refused(t, "discovery is off", off.Enroll(t.Context()))

	r.discovering(2)
	stolen := r.invited(newGUID, newMAC)
	stolen.MACs = []string{"52:54:00:ee:00:01"}
	refused(t, "the token of another machine", stolen.Enroll(t.Context()))
	forged := r.invited(newGUID, newMAC)
	forged.Token = forged.Token[:37] + strings.Repeat("A", 43)
	refused(t, "a token made up", forged.Enroll(t.Context()))
	moved := r.invited(newGUID, newMAC)
	moved.Token = "ffffffff" + moved.Token[8:] // a later time
	refused(t, "a token with another UUID", moved.Enroll(t.Context()))
	late := r.invited(newGUID, newMAC)
	r.clock.Add(int64(15 * time.Minute))
	refused(t, "an old token", late.Enroll(t.Context()))
	if len(r.nodes()) != 0 {
		t.Fatalf("%d nodes were made", len(r.nodes()))
	}

	// A machine whose addresses are ports of a node is that node, whatever its UUID.
	n, _ := r.boot("known")
	if err := r.st.CreatePort(t.Context(), &node.Port{NodeUUID: n.UUID, Address: "52:54:00:dd:00:09"}); err != nil {
		t.Fatal(err)
	}
	refused(t, "a node's port", r.invited(newGUID, newMAC, "52:54:00:dd:00:09").Enroll(t.Context()))
	if h := r.history(n.UUID); !strings.Contains(h, "but it is this node") {
		t.Errorf("history:\n%s", h)
	}

	// The number per hour is limited. UUIDs that vendors forgot to set identify no node.
	for i, mac := range []string{"52:54:00:dd:01:01", "52:54:00:dd:01:02"} {
		if err := r.invited("03000200-0400-0500-0006-000700080009", mac).Enroll(t.Context()); err != nil {
			t.Fatalf("machine %d: %v", i, err)
		}
	}
	refused(t, "one too many", r.invited("", "52:54:00:dd:01:03").Enroll(t.Context()))
	r.clock.Add(int64(time.Hour))
	if err := r.invited("", "52:54:00:dd:01:03").Enroll(t.Context()); err != nil {
		t.Errorf("an hour later: %v", err)
	}
	if len(r.nodes()) != 4 {
		t.Errorf("%d nodes, want 4", len(r.nodes()))
	}
}
