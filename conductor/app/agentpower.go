package app

import (
	"context"
	"sync/atomic"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/node"
)

// agentLink is how power drivers reach agents; the server of agents is made after the drivers.
type agentLink struct{ server atomic.Pointer[agents.Server] }

// Connected reports whether an agent of the node is connected.
func (l *agentLink) Connected(nodeUUID string) bool {
	s := l.server.Load()
	return s != nil && s.Connected(nodeUUID)
}

// Reboot asks the node's agent to restart its machine.
func (l *agentLink) Reboot(ctx context.Context, nodeUUID string) error {
	return l.server.Load().Power(ctx, nodeUUID, node.AgentReboot)
}
