package engine

import (
	"maps"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Load returns how many nodes wait for a worker, how many a worker has, and how many wait for a controller in use.
func (e *Engine) Load() (due, working, inLine int) {
	due, working = e.queue.Load()
	return due, working, e.bmcs.InLine()
}

// Progresses returns the progress of running plans, by node UUID, of those that reported any.
func (e *Engine) Progresses() map[string]node.Progress {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.progress)
}
