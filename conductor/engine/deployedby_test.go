package engine

import (
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestDeployedBy: a node records who requested the deployment that is on it, until that is torn down.
func TestDeployedBy(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	w.must(m, node.Provide)
	if n := w.untilState(m, node.Available); n.DeployedBy != "" {
		t.Errorf("before a deployment: %q", n.DeployedBy)
	}
	w.walk(m, node.Active)
	n := w.node(m)
	h, err := w.store.History(t.Context(), m.id, 1)
	if err != nil || len(h) != 1 || h[0].User == "" || n.DeployedBy != h[0].User {
		t.Errorf("deployed by %q, while the history says %+v, %v", n.DeployedBy, h, err)
	}
	w.must(m, node.Delete)
	if n := w.untilState(m, node.Available); n.DeployedBy != "" {
		t.Errorf("after the tear-down: %q", n.DeployedBy)
	}
}
