package engine

import (
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/node"
)

// discover begins the inspection of an unknown machine, when its agent has come up for the first time in this boot. The
// job has no step that boots, so the machine's power is never changed: if the agent is lost, the job fails.
func (e *Engine) discover(n *node.Node, effects *node.SideEffects) {
	if n.DiscoveredAt.IsZero() || n.Provision != node.Enroll || n.Job != nil ||
		!n.InspectionFinishedAt.Before(n.Boot.EnrolledAt) {
		return
	}
	steps := e.planner().Discovery()
	if len(steps) == 0 {
		return
	}
	n.Job = &node.Job{ID: uuid.NewString(), StartedAt: time.Now().UTC(), Phase: node.PhaseDiscover, Target: node.Enroll,
		Steps: steps}
	n.InspectionStartedAt = n.Job.StartedAt
	n.SetLastError("", "")
	e.mark(n, effects, node.MarkRequested, string(n.Job.Phase))
}

// discovered leaves the machine to its agent, which waits: the next move is an operator's.
func discovered(e *Engine, n *node.Node, effects *node.SideEffects) (node.Verb, error) {
	n.InspectionStartedAt, n.InspectionFinishedAt = time.Time{}, time.Now().UTC()
	e.history(n, effects, "provisioning", "INFO",
		"the machine has been inspected and is left alone until somebody wants it managed", "")
	n.Job = nil
	return "", nil
}
