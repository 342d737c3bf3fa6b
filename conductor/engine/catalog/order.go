package catalog

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/ingot-metal/ingot/conductor/node"
)

// InBand is a step of the agent in a job.
func InBand(s AgentStep, args json.RawMessage, priority int) node.JobStep {
	return node.JobStep{Interface: s.Interface, Name: s.Name, Args: args, Priority: priority, InBand: true,
		Abortable: s.Abortable, Stall: s.Stall}
}

// interfaceOrder is the order in which steps of the same priority run, which is Ironic's; interfaces that it does not
// name come last.
var interfaceOrder = []string{"network", "vendor", "power", "management", "firmware", "deploy", "bios", "raid"}

// Ordered sorts by priority, highest first, then by interface, and conductor steps before the agent's of the same
// priority and interface.
func Ordered(steps []node.JobStep) []node.JobStep {
	rank := func(s node.JobStep) int {
		if i := slices.Index(interfaceOrder, s.Interface); i >= 0 {
			return i
		}
		return len(interfaceOrder)
	}
	slices.SortStableFunc(steps, func(a, b node.JobStep) int { return cmp.Or(b.Priority-a.Priority, rank(a)-rank(b)) })
	return steps
}

// BootsAgent tells whether a step of a job boots the agent.
func BootsAgent(s node.JobStep) bool {
	return !s.InBand && !s.Plug && s.Interface == "deploy" && (s.Name == StepBoot || s.Name == StepBootAgent)
}
