package engine

import (
	"maps"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Progresses tells how far running plans are, by node UUID, for those that reported something.
func (e *Engine) Progresses() map[string]node.Progress {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.progress)
}
