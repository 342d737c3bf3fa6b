package engine

import (
	"maps"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Progresses returns the progress of running plans, by node UUID, of those that reported any.
func (e *Engine) Progresses() map[string]node.Progress {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.progress)
}
