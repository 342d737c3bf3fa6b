package agents_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/agents/agentstest"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/proto/agentv1"
)

// swarmRig is a rig whose conductor introduces agents to each other; network says who is where.
func swarmRig(t *testing.T, network func(node string) string) *rig {
	t.Helper()
	r := newRig(t)
	srv, err := agents.New(r.st, r.brain, r.ca,
		agents.Config{Dir: r.dir, Names: []string{"127.0.0.1"}, Hostname: "test",
			NotFound: func(err error) bool { return errors.Is(err, store.ErrNotFound) },
			Swarm: &agents.Swarm{
				UploadRate: 5_000_000, Network: func(_ context.Context, node string) (string, error) {
					return network(node), nil
				}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr, r.srv = l.Addr().String(), srv
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		srv.Stop(ctx)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

type voice struct {
	t      *testing.T
	node   string
	stream agentv1.Agents_SessionClient
	close  func() error
	heard  chan *agentv1.SwarmPeers
}

func (r *rig) speak(name string) *voice {
	r.t.Helper()
	n, a := r.boot(name)
	return r.speakAs(n.UUID, a)
}

func (r *rig) speakAs(uuid string, a *agentstest.Agent) *voice {
	r.t.Helper()
	if err := a.Enroll(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	stream, _, closeConn, err := a.Open(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	v := &voice{t: r.t, node: uuid, stream: stream, close: closeConn, heard: make(chan *agentv1.SwarmPeers, 100)}
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			if p := m.GetSwarmPeers(); p != nil {
				v.heard <- p
			}
		}
	}()
	return v
}

func (v *voice) say(s *agentv1.SwarmState) {
	v.t.Helper()
	err := v.stream.Send(
		&agentv1.AgentMessage{
			Body: &agentv1.AgentMessage_Event{Event: &agentv1.Event{Body: &agentv1.Event_SwarmState{SwarmState: s}}}})
	if err != nil {
		v.t.Fatal(err)
	}
}

// until takes messages until one has what is looked for.
func (v *voice) until(what string, ok func(*agentv1.SwarmPeers) bool) *agentv1.SwarmPeers {
	v.t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case p := <-v.heard:
			if ok(p) {
				return p
			}
		case <-limit:
			v.t.Fatalf("%s: waited 20 s", what)
		}
	}
}

func state(port uint32) *agentv1.SwarmState {
	return &agentv1.SwarmState{Image: make([]byte, 32), Port: port, Chunks: 10, Whole: true, Have: []byte{0b11, 0}}
}

func TestSwarmPeers(t *testing.T) {
	far := ""
	r := swarmRig(t, func(node string) string {
		if node == far {
			return "another"
		}
		return ""
	})
	if p, err := func() (*agentv1.Policy, error) {
		_, a := r.boot("policy")
		req, err := a.Request()
		if err != nil {
			return nil, err
		}
		conn, err := a.Dial()
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		answer, err := agentv1.NewAgentsClient(conn).Enroll(t.Context(), req)
		return answer.GetPolicy(), err
	}(); err != nil || p.GetSwarm().GetUploadRate() != 5_000_000 {
		t.Fatalf("policy %v, %v", p, err)
	}

	one, two, three := r.speak("one"), r.speak("two"), r.speak("three")
	far = three.node
	one.say(state(1001))
	one.until("the first word", func(p *agentv1.SwarmPeers) bool {
		return p.Whole && len(p.Peers) == 0 && slices.Equal(p.Seeds, []string{one.node})
	})
	three.say(state(1003))
	three.until("the first word", func(p *agentv1.SwarmPeers) bool { return p.Whole && len(p.Peers) == 0 })
	two.say(state(1002))
	two.until("the introduction", func(p *agentv1.SwarmPeers) bool {
		return p.Whole && len(p.Peers) == 1 && p.Peers[0].Node == one.node && p.Peers[0].Address == "127.0.0.1:1001" &&
			p.Peers[0].Generation > 0 &&
			p.Peers[0].Whole && slices.Equal(p.Peers[0].Have, []byte{0b11, 0})
	})
	one.until("the introduction", func(p *agentv1.SwarmPeers) bool {
		return len(p.Peers) == 1 && p.Peers[0].Node == two.node && p.Peers[0].Whole
	})

	two.say(&agentv1.SwarmState{Image: make([]byte, 32), Port: 1002, Chunks: 10, Added: []uint32{5, 99},
		Fetching: []uint32{7}})
	one.until("the news", func(p *agentv1.SwarmPeers) bool {
		return len(p.Peers) == 1 && slices.Equal(p.Peers[0].Added, []uint32{5}) &&
			slices.Equal(p.Peers[0].Fetching, []uint32{7}) && !p.Peers[0].Whole
	})
	// A report that makes no sense is ignored, and ends nothing.
	for _, s := range []*agentv1.SwarmState{{}, {Image: make([]byte, 31)},
		{Image: make([]byte, 32), Port: 1 << 20, Chunks: 10, Whole: true},
		{Image: []byte("01234567890123456789012345678901"), Port: 1, Chunks: 1 << 31, Whole: true}} {
		three.say(s)
	}
	if err := two.close(); err != nil {
		t.Fatal(err)
	}
	// It may be back in a moment, and stays a neighbour; but it fetches nothing for others.
	one.until("the loss of a seed", func(p *agentv1.SwarmPeers) bool {
		return slices.Equal(p.Seeds, []string{one.node}) && len(p.Gone) == 0
	})
	if !r.srv.Connected(three.node) {
		t.Error("nonsense has ended a session")
	}
}

// TestSwarmOff: agents are not introduced where that is not configured.
func TestSwarmOff(t *testing.T) {
	r := newRig(t)
	one, two := r.speak("one"), r.speak("two")
	one.say(state(1001))
	two.say(state(1002))
	r.srv.CloseSession(one.node) // whatever was to be said has been said by its end
	wait(t, "the end", func() bool { return !r.srv.Connected(one.node) })
	if len(one.heard)+len(two.heard) > 0 {
		t.Error("agents hear of each other")
	}
}
