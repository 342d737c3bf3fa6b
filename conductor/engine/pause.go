package engine

import (
	"context"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

const pausedDetail = "paused: the node is in maintenance mode"

// pause leaves a job waiting, without touching or locking anything. The engine is not notified when maintenance ends,
// so it polls.
func (e *Engine) pause(ctx context.Context, p *pass) (time.Duration, error) {
	if p.n.Job.Detail == pausedDetail && !p.n.Provision.IsWorking() {
		return e.pausePoll(), nil
	}
	_, err := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
		if n.Job.Detail != pausedDetail {
			e.mark(n, effects, node.MarkPaused, "")
		}
		n.Job.Detail = pausedDetail
		return e.waitForAgent(n, effects)
	})
	return e.pausePoll(), err
}

// pausePoll is short enough for a person who just lifted the maintenance.
func (e *Engine) pausePoll() time.Duration { return min(5*time.Second, 5*e.cfg.RetryBase) }
