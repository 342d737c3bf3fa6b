package app

import (
	"context"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/store"
)

// swarmOf is how agents are introduced to each other; nil when they are not.
func swarmOf(cfg config.Config, st *store.Store) *agents.Swarm {
	if !cfg.Swarm.Enabled {
		return nil
	}
	return &agents.Swarm{UploadRate: uint64(cfg.Swarm.UploadLimit),
		Network: func(ctx context.Context, nodeUUID string) (string, error) {
			return physicalNetwork(ctx, st, nodeUUID)
		}}
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
