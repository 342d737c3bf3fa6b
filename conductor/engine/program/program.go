// Package program makes the program of a job: the steps of a request on a node, in order, with their arguments.
//
// It only decides: the node, the configuration, deploy templates and runbooks go in, a list of steps comes out, or an
// error with the reason. Errors are *node.InvalidError, or the library's.
package program

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/engine/start"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// Planner makes programs.
type Planner struct {
	Site       instance.Site
	Start      start.Options
	AgentSteps catalog.Table
	// of steps ("interface.step") other than their own, by phase; 0 leaves a step out
	Priorities     map[node.Phase]map[string]int
	AutomatedClean bool          // clean on the way to available, unless the node says otherwise
	AllowExport    bool          // a deployment may lend the machine's disk to another host
	Writers        []Writer      // hosts that write disks for deploy interface ByHost
	LLDPTimeout    time.Duration // how long an inspection listens for switches

	Own     []steparg.Row // the conductor's own steps
	Drivers drivers
	Plugs   Plugs // nil: none
	Library Library
}

// drivers tell which interface of a kind ("deploy", "inspect", ...) a node uses.
type drivers interface {
	Interface(n *node.Node, kind string) string
}

// Plugs returns the steps of a node's interfaces. *hardware.Set is one.
type Plugs interface {
	Steps(n *node.Node) []hardware.Step
	// All are the steps of any interface, whether a node uses it or not.
	All() []hardware.Step
	Step(n *node.Node, iface, name string) (hardware.Step, bool)
}

// Library is where steps are kept that requests bring in by name.
type Library interface {
	TemplatesNamed(ctx context.Context, names []string) ([]*node.DeployTemplate, error)
	Runbook(ctx context.Context, ident string) (*node.Runbook, error)
}

// Request is the part of a request that decides on the steps of its job.
type Request struct {
	Verb                                  node.Verb
	CleanSteps, DeploySteps, ServiceSteps []node.JobStep
	Runbook                               string
	RunbookByName                         bool // goes by the trait of its name, and not by its traits
	DisableRamdisk                        bool
	User                                  string
}

// AgentPower is the power interface of machines that have nothing but their agent to restart them with.
const AgentPower = "agent"

// StaysOn reports whether a machine's power is never turned off: it must not be, or it can't be.
func StaysOn(n *node.Node, powerInterface string) bool {
	return n.DisablePowerOff || powerInterface == AgentPower
}

// OutOfBand are the steps of a phase in which no agent is booted.
func (m Planner) OutOfBand(n *node.Node, phase node.Phase) []node.JobStep {
	return m.phase(n, phase, nil)
}

// Inspection are the steps of an inspection.
func (m Planner) Inspection(n *node.Node) ([]node.JobStep, error) {
	if m.Drivers.Interface(n, "inspect") == "no-inspect" {
		return nil, node.Invalidf("inspection is not supported by the inspect interface no-inspect of node %s", n.UUID)
	}
	return m.agentPhase(n, "inspect", node.PhaseInspect), nil
}

// Stage is the writing of an image ahead, with all its arguments: what instance_info says by the time it runs is none
// of its business.
func (m Planner) Stage(n *node.Node, image map[string]any) (node.JobStep, error) {
	as := *n
	as.InstanceInfo = image
	if err := m.lacking(onDisk(&as)); err != nil {
		return node.JobStep{}, err
	}
	if id, _ := image["image_source"].(string); id != "" {
		_, named := instance.GlanceName(id)
		if _, ok := instance.GlanceID(id); ok || named { // its address is that of a job
			return node.JobStep{}, node.Invalidf("an image of Glance can't be written ahead: give the image's URL")
		}
	}
	if err := m.Site.CheckImage(&as); err != nil {
		return node.JobStep{}, err
	}
	st, _ := m.AgentSteps.Find("deploy", "write_image") // lacking has seen it
	step := catalog.InBand(st, nil, st.Priority[steparg.Deploy])
	step.Abortable = true // no client waits for it, and what it leaves has no partition table
	if err := m.Check(&as, []node.JobStep{step}); err != nil {
		return node.JobStep{}, err
	}
	var err error
	step.Args, err = m.stepArgs(&as, step)
	return step, err
}

// Discovery returns the steps that inspect an unknown machine: those that only read.
func (m Planner) Discovery() []node.JobStep {
	var steps []node.JobStep
	for _, r := range m.AgentSteps {
		if p := m.priority(node.PhaseInspect, r); p > 0 && r.Interface == "inspect" {
			steps = append(steps, catalog.InBand(r, nil, p))
		}
	}
	return catalog.Ordered(steps)
}

// Check compares the real arguments of the agent's steps of a job, including those from the node, with the declarations
// of the steps.
func (m Planner) Check(n *node.Node, steps []node.JobStep) error {
	for _, s := range steps {
		if !s.InBand {
			continue
		}
		st, ok := m.AgentSteps.Find(s.Interface, s.Name)
		if !ok {
			return m.AgentSteps.Unknown(s.Interface, s.Name)
		}
		args, err := m.Args(n, &node.Job{Steps: steps}, s)
		if err != nil {
			return err
		}
		if err := steparg.Check(st.Title(), st.Args, args, false); err != nil {
			return node.Invalidf("%s", err)
		}
		if s.Interface == "raid" {
			if err := checkRAID(args); err != nil {
				return err
			}
		}
	}
	return nil
}

// phase returns the steps that a phase has by itself, in order: the conductor's, those of the node's interfaces, and
// the agent's if the agent is booted. with lists the features of the work, by the names of steparg.Row.When.
func (m Planner) phase(n *node.Node, phase node.Phase, with map[string]bool) []node.JobStep {
	steps := append(m.own(phase, with), m.plugSteps(n, phase)...)
	for _, r := range m.AgentSteps {
		if with[lent] && slices.Contains(r.Provides, "image") {
			continue // what another host writes
		}
		if p := m.priority(phase, r); p > 0 && with[steparg.WhenAgent] && with[r.When] {
			steps = append(steps, catalog.InBand(r, nil, p))
		}
	}
	return catalog.Ordered(steps)
}

// Conductor are the conductor's own steps of a phase, in their order, with those that boot the agent and turn it off.
func (m Planner) Conductor(phase node.Phase) []node.JobStep {
	return catalog.Ordered(m.own(phase, withAgent))
}

func (m Planner) own(phase node.Phase, with map[string]bool) (steps []node.JobStep) {
	for _, r := range m.Own {
		if p := r.Priority[steparg.Phase(phase)]; p != 0 && (r.When == "" || with[r.When]) {
			steps = append(steps, node.JobStep{Interface: r.Interface, Name: r.Name, Priority: p, Abortable: true})
		}
	}
	return steps
}

// anyDisk is the When of the agent's steps that name no property: the disks are the agent's to work on.
const anyDisk = ""

// withAgent is work for which the agent is booted, and which may be on a disk.
var withAgent = map[string]bool{steparg.WhenAgent: true, anyDisk: true, steparg.WhenDisk: true}

// agentless are interfaces that do the work of a phase without the agent.
var agentless = []string{"fake", "redfish", "idrac-redfish", "openstack"}

// agentPhase is a phase in which the agent is booted, does the steps that have a priority, and is turned off. A node
// whose interface of that kind is agentless has only the steps that its interfaces bring.
func (m Planner) agentPhase(n *node.Node, kind string, phase node.Phase) []node.JobStep {
	if slices.Contains(agentless, m.Drivers.Interface(n, kind)) {
		return catalog.Ordered(m.plugSteps(n, phase))
	}
	return m.phase(n, phase, withAgent)
}

// priority is a step's priority in a phase: the configuration's, else its own. What starts a system by kexec has one in
// any case.
func (m Planner) priority(phase node.Phase, r steparg.Row) int {
	own := r.Priority[steparg.Phase(phase)]
	needed := own > 0 && (r.When == steparg.WhenKexec || r.When == steparg.WhenLoaded)
	if p, ok := m.Priorities[phase][r.Title()]; ok && (p > 0 || !needed) {
		return p
	}
	return own
}

// checkRAID returns an error for arrays that a step can't create.
func checkRAID(args json.RawMessage) error {
	var a struct {
		Target map[string]any `json:"target_raid_config"` // of create_configuration
		Config map[string]any `json:"raid_config"`        // of apply_configuration
	}
	if err := exact.Unmarshal(args, &a); err != nil {
		return err
	}
	for _, c := range []map[string]any{a.Target, a.Config} {
		if err := hardware.CheckSoftwareRAID(c); err != nil {
			return node.Invalidf("%s", err)
		}
	}
	return nil
}
