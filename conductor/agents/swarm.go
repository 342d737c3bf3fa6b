package agents

import (
	"context"
	"net/netip"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/ingot-metal/ingot/conductor/agents/swarm"
	"github.com/ingot-metal/ingot/proto/agentv1"
	contract "github.com/ingot-metal/ingot/proto/swarm"
)

// Swarm lets agents that write the same published image fetch its chunks from each other.
type Swarm struct {
	// UploadRate limits what each agent sends to others, in bytes per second; zero is no limit.
	UploadRate uint64
	// Registry introduces agents to each other; nil: one of this conductor alone.
	Registry Introducer
	// Network names the network that a node's machine is on: agents meet only those of the same one. Nil: there is only
	// one.
	Network func(ctx context.Context, nodeUUID string) (string, error)
}

// Introducer is a swarm.Registry or what takes its place.
type Introducer interface {
	Update(who swarm.Member, st swarm.State) (accused, barred []string)
	Lost(node string)
	News(node string) *swarm.News
}

// swarmPause is the least time between two messages about neighbours to one agent: all news in between become one
// message.
const swarmPause = 100 * time.Millisecond

// policy returns the policy that agents get at enrolment.
func (s *Server) policy() *agentv1.Policy {
	p := &agentv1.Policy{}
	if s.cfg.Swarm != nil {
		p.Swarm = &agentv1.SwarmPolicy{UploadRate: s.cfg.Swarm.UploadRate}
	}
	return p
}

// swarming is a session's part in a swarm.
type swarming struct {
	news    chan struct{}
	network *string // once it has been looked up
	joined  bool
}

// swarmState handles an agent's report of its chunks.
func (s *Server) swarmState(ss *session, st *agentv1.SwarmState) {
	if s.swarms == nil {
		return
	}
	state, err := contract.StateOf(st)
	if err != nil {
		ss.log.Debug("what the agent says of its swarm makes no sense", "err", err)
		return
	}
	if ss.swarm.network == nil {
		network := ""
		if s.cfg.Swarm.Network != nil {
			var err error
			if network, err = s.cfg.Swarm.Network(ss.ctx, ss.id.node); err != nil {
				ss.log.Warn("the agent's neighbours can't be found, it fetches its image alone", "err", err)
				return
			}
		}
		ss.swarm.network = &network
	}
	who := swarm.Member{Node: ss.id.node, Generation: ss.id.generation, Network: *ss.swarm.network,
		Addr: address(ss.ctx), News: func() {
			select {
			case ss.swarm.news <- struct{}{}:
			default:
			}
		}}
	ss.swarm.joined = true
	accused, barred := s.swarms.Update(who, state)
	for _, name := range accused {
		ss.log.Warn("the agent says that a neighbour sent it wrong bytes of an image; they were thrown away",
			"neighbour", name)
	}
	for _, name := range barred {
		ss.log.Error(swarm.Barred, "neighbour", name)
	}
}

// address is where a session comes from; not valid when that is no IP address.
func address(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	a, err := netip.ParseAddrPort(p.Addr.String())
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap()
}

// swarmPeers returns the message with the news about an agent's neighbours; nil when there are none.
func (s *Server) swarmPeers(nodeUUID string) *agentv1.ConductorMessage {
	n := s.swarms.News(nodeUUID)
	if n == nil {
		return nil
	}
	return &agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_SwarmPeers{SwarmPeers: n.Message()}}
}
