package app

import (
	"context"
	"log/slog"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/agents/swarm"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/member"
	"github.com/ingot-metal/ingot/conductor/store"
)

// swarmOf is how agents are introduced to each other; nil when they are not. With others the swarms are those of all
// conductors, by a relay that has to run.
func swarmOf(cfg config.Config, st *store.Store, others *member.Conductors, between func() *peers,
	log *slog.Logger) (*agents.Swarm, *swarm.Relay) {
	if !cfg.Swarm.Enabled {
		return nil, nil
	}
	s := &agents.Swarm{UploadRate: uint64(cfg.Swarm.UploadLimit),
		Network: func(ctx context.Context, nodeUUID string) (string, error) {
			return physicalNetwork(ctx, st, nodeUUID)
		}}
	if others == nil {
		return s, nil
	}
	relay := swarm.NewRelay(swarm.Settings{Self: cfg.Name(), Home: others.Home, Log: log,
		Ask: func(ctx context.Context, conductor string, message []byte) ([]byte, error) {
			return between().client.AboutSwarms(ctx, conductor, message)
		}})
	s.Registry = relay
	return s, relay
}

// physicalNetwork is the network that a node boots from, as its ports tell; empty when they don't: then it is taken for
// the one that all such nodes share.
func physicalNetwork(ctx context.Context, st *store.Store, nodeUUID string) (string, error) {
	ports, err := st.Ports(ctx, store.PortQuery{NodeUUID: &nodeUUID})
	if err != nil {
		return "", err
	}
	name := ""
	for _, p := range ports {
		if p.PhysicalNetwork != "" && (name == "" || p.PXEEnabled) {
			name = p.PhysicalNetwork
		}
	}
	return name, nil
}
