package engine

import (
	"context"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/node/ramdiskdeploy"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// Names of conductor steps that other parts of the engine look for, beside those of package catalog.
const (
	stepOffAgent  = "power_off_agent"
	stepAfterFail = "power_off_after_failure"
)

// conductorStep is a step that the conductor does.
type conductorStep struct {
	steparg.Row
	// Run does the next action of the step and returns its result. It is called again until the step is done; between
	// calls Job.Note holds the point that it has reached.
	Run func(ctx context.Context, p *pass) (verdict, error)
}

// in makes priorities of phases that only the conductor has.
func in(phases map[node.Phase]int) steparg.Priorities {
	out := steparg.Priorities{}
	for phase, p := range phases {
		out[steparg.Phase(phase)] = p
	}
	return out
}

// conductorSteps is the only list of them. Names and priorities follow Ironic where it has the step. Those without an
// interface are Ironic's reserved steps: a request may name them whatever the interface.
func conductorSteps() []conductorStep {
	return []conductorStep{
		{Run: hold, Row: steparg.Row{Name: catalog.StepHold}},
		{Run: wait, Row: steparg.Row{Name: catalog.StepWait, Args: []steparg.Arg{
			{Name: "seconds", Description: "how long; without it until the agent gives its next sign of life"}}}},
		{Run: turnOn, Row: steparg.Row{Name: catalog.StepPowerOn}},
		{Run: turnOff, Row: steparg.Row{Name: catalog.StepPowerOff}},
		{Run: reboot, Row: steparg.Row{Name: catalog.StepReboot}},

		{Run: verify, Row: steparg.Row{Interface: "power", Name: "verify",
			Priority: in(map[node.Phase]int{node.PhaseVerify: 100, node.PhaseAdopt: 100})}},

		{Run: bootAgent, Row: steparg.Row{Interface: "deploy", Name: catalog.StepBootAgent, When: steparg.WhenAgent,
			Priority: in(map[node.Phase]int{node.PhaseDeploy: 100})}},
		// puts nothing on a disk
		{Run: bootRamdisk, Row: steparg.Row{Interface: "deploy", Name: ramdiskdeploy.Step, When: steparg.WhenFromLink,
			Provides: []string{"system"}, Priority: in(map[node.Phase]int{node.PhaseDeploy: 100})}},
		{Run: tearDownAgent, Row: steparg.Row{Interface: "deploy", Name: catalog.StepTearDown, When: steparg.WhenAgent,
			Priority: in(map[node.Phase]int{node.PhaseDeploy: 40, node.PhaseService: -1, node.PhaseUnresc: 40})}},
		{Run: switchToTenantNetwork, Row: steparg.Row{Interface: "deploy", Name: catalog.StepSwitchNetwork,
			After:    []string{catalog.StepTearDown},
			Priority: in(map[node.Phase]int{node.PhaseDeploy: 30, node.PhaseService: -2, node.PhaseUnresc: 30})}},
		{Run: bootInstance, Row: steparg.Row{Interface: "deploy", Name: catalog.StepBootInstance,
			From: []string{"system"}, After: []string{catalog.StepSwitchNetwork},
			Priority: in(map[node.Phase]int{node.PhaseDeploy: 20, node.PhaseService: -3})}},

		{Run: bootAgent, Row: steparg.Row{Interface: "deploy", Name: catalog.StepBoot, When: steparg.WhenAgent,
			Priority: in(map[node.Phase]int{node.PhaseInspect: 1000, node.PhaseClean: 1000, node.PhaseService: 1000,
				node.PhaseWarm: 1000, node.PhaseRescue: 1000})}},
		{Run: powerOffAgent, Row: steparg.Row{Interface: "deploy", Name: stepOffAgent, When: steparg.WhenAgent,
			Priority: in(map[node.Phase]int{node.PhaseInspect: -1, node.PhaseClean: -1, node.PhaseCool: -1})}},

		{Run: powerOffForGood, Row: steparg.Row{Interface: "power", Name: "power_off_instance",
			Priority: in(map[node.Phase]int{node.PhaseDelete: 100})}},
		{Run: removeTenantNetwork, Row: steparg.Row{Interface: "network", Name: "remove_tenant_network",
			Priority: in(map[node.Phase]int{node.PhaseDelete: 50})}},

		{Run: endRescue, Row: steparg.Row{Interface: "rescue", Name: stepEndRescue,
			Priority: in(map[node.Phase]int{node.PhaseUnresc: 100})}},
		{Run: powerOn, Row: steparg.Row{Interface: "power", Name: "power_on",
			Priority: in(map[node.Phase]int{node.PhaseUnresc: 20})}},
		{Run: powerOff, Row: steparg.Row{Interface: "power", Name: "power_off"}},
		{Run: softPowerOff, Row: steparg.Row{Interface: "power", Name: "soft_power_off"}},
		{Run: reset, Row: steparg.Row{Interface: "power", Name: "reset"}},
		{Run: powerOffAgent, Row: steparg.Row{Interface: "deploy", Name: stepAfterFail}},
	}
}

// rowsOf are the rows of steps of the conductor.
func rowsOf(steps []conductorStep) (rows []steparg.Row) {
	for _, s := range steps {
		rows = append(rows, s.Row)
	}
	return rows
}

// findStep finds the implementation of a step that is not the agent's. The actions of the job of a power action have
// the names of reserved steps.
func (e *Engine) findStep(n *node.Node, s *node.JobStep) (run func(context.Context, *pass) (verdict, error), ok bool) {
	if s.Plug {
		return e.plugStep(n, s)
	}
	for _, c := range e.steps {
		if c.Name == s.Name && (c.Interface == s.Interface || c.Interface == "" && !isPowerJob(n.Job)) {
			return c.Run, true
		}
	}
	return nil, false
}
