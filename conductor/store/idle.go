package store

import (
	"context"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Idle returns the nodes whose power is to be watched, in the order they were made: those with nothing under way, which
// are not in maintenance, and whose controllers are known to have answered once.
func (s *Store) Idle(ctx context.Context) ([]node.Idle, error) {
	return list(ctx, s.r, "list idle nodes", into(func(n *node.Idle) []any {
		return []any{&n.UUID, &n.Version, &n.Power, &n.Fault, &n.Conductor}
	}), `SELECT uuid, version, power_state, fault, conductor FROM nodes
		WHERE busy = 0 AND maintenance = 0 AND reservation = '' AND target_power_state = '' AND provision_state NOT IN (?, ?) ORDER BY seq`,
		string(node.Enroll), string(node.AdoptFailed))
}
