package agent

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/ingot-metal/ingot/agent/image/swarm"
	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
	contract "github.com/ingot-metal/ingot/proto/swarm"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// enableSwarm lets this boot take part in swarms, if the conductor enabled them on enrolment. It needs the CA's
// certificate, which was received with the connection to the conductor.
func (s *session) enableSwarm() {
	st := s.mem.read()
	id := swarm.Identity{Node: st.NodeUUID, Generation: st.Generation, CA: s.trust.authority(),
		Certificate: tls.Certificate{Certificate: [][]byte{st.Certificate}, PrivateKey: s.key}}
	if st.Swarm != nil && id.CA != nil {
		s.swarm.Enable(id, *st.Swarm)
	}
}

// localAddr returns the local address of a stream's connection; invalid if that is no IP address.
func localAddr(ctx context.Context) netip.Addr {
	if p, ok := peer.FromContext(ctx); ok {
		if t, ok := p.LocalAddr.(*net.TCPAddr); ok {
			return t.AddrPort().Addr().Unmap()
		}
	}
	return netip.Addr{}
}

// swarmEvent returns the event with this agent's chunks for the conductor.
func swarmEvent(n *swarm.Node, now time.Time) (*agentv1.Event, time.Duration) {
	st, wait := n.Tell(now)
	if st == nil {
		return nil, wait
	}
	return &agentv1.Event{Time: timestamppb.New(now), Body: &agentv1.Event_SwarmState{SwarmState: st.Message()}}, 0
}

// hearPeers handles the conductor's message about neighbours.
func hearPeers(n *swarm.Node, m *agentv1.SwarmPeers) error {
	news, err := contract.NewsOf(m)
	if err != nil {
		return fmt.Errorf("the conductor's message about neighbours: %w", err)
	}
	n.Hear(news)
	return nil
}
