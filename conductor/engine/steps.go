package engine

import (
	"context"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/node/ramdiskdeploy"
)

// Names of conductor steps that other parts of the engine look for, beside those of package catalog.
const (
	stepOffAgent  = "power_off_agent"
	stepAfterFail = "power_off_after_failure"
)

// conductorStep is a step that the conductor does.
type conductorStep struct {
	Interface, Name string
	Priority        map[node.Phase]int // phases that it is part of by itself
	// Run does the next act of the step and says how it went. It is called again until it says that the step is done;
	// between calls Job.Note tells where it is.
	Run func(ctx context.Context, p *pass) (verdict, error)
}

// conductorSteps is the only list of them. Names and priorities follow Ironic where it has the step.
func conductorSteps() []conductorStep {
	return []conductorStep{
		{"power", "verify", map[node.Phase]int{node.PhaseVerify: 100, node.PhaseAdopt: 100}, verify},

		{"deploy", catalog.StepBootAgent, map[node.Phase]int{node.PhaseDeploy: 100}, bootAgent},
		{"deploy", catalog.StepTearDown,
			map[node.Phase]int{node.PhaseDeploy: 40, node.PhaseService: -1, node.PhaseUnresc: 40}, tearDownAgent},
		{"deploy", catalog.StepSwitchNetwork,
			map[node.Phase]int{node.PhaseDeploy: 30, node.PhaseService: -2, node.PhaseUnresc: 30},
			switchToTenantNetwork},
		{"deploy", catalog.StepBootInstance, map[node.Phase]int{node.PhaseDeploy: 20, node.PhaseService: -3},
			bootInstance},

		{"deploy", ramdiskdeploy.Step, nil, bootRamdisk}, // of a deployment that puts nothing on a disk

		{"deploy", catalog.StepBoot,
			map[node.Phase]int{node.PhaseInspect: 1000, node.PhaseClean: 1000, node.PhaseService: 1000,
				node.PhaseWarm: 1000, node.PhaseRescue: 1000}, bootAgent},
		{"deploy", stepOffAgent, map[node.Phase]int{node.PhaseInspect: -1, node.PhaseClean: -1, node.PhaseCool: -1},
			powerOffAgent},

		{"power", "power_off_instance", map[node.Phase]int{node.PhaseDelete: 100}, powerOffForGood},
		{"network", "remove_tenant_network", map[node.Phase]int{node.PhaseDelete: 50}, removeTenantNetwork},

		{"rescue", stepEndRescue, map[node.Phase]int{node.PhaseUnresc: 100}, endRescue},
		{"power", "power_on", map[node.Phase]int{node.PhaseUnresc: 20}, powerOn},
		{"power", "power_off", nil, powerOff},
		{"power", "soft_power_off", nil, softPowerOff},
		{"power", "reset", nil, reset},
		{"deploy", stepAfterFail, nil, powerOffAgent},
	}
}

// findStep finds what does a step that is not the agent's.
func (e *Engine) findStep(n *node.Node, s *node.JobStep) (run func(context.Context, *pass) (verdict, error), ok bool) {
	if s.Plug {
		return e.plugStep(n, s)
	}
	if r, ok := reservedSteps()[s.Name]; ok && !isPowerJob(n.Job) {
		return r, true
	}
	for _, c := range conductorSteps() {
		if c.Interface == s.Interface && c.Name == s.Name {
			return c.Run, true
		}
	}
	return nil, false
}

// conductorPhase returns the conductor's steps of a phase in their order.
func conductorPhase(phase node.Phase) []node.JobStep {
	var steps []node.JobStep
	for _, s := range conductorSteps() {
		if p := s.Priority[phase]; p != 0 {
			steps = append(steps, node.JobStep{Interface: s.Interface, Name: s.Name, Priority: p, Abortable: true})
		}
	}
	return catalog.Ordered(steps)
}
