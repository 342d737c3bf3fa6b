package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/node"
)

// newJob makes the program that a request asks for; nil when the request is a change of state only.
func (e *Engine) newJob(ctx context.Context, n *node.Node, r Request) (*node.Job, error) {
	job := &node.Job{ID: uuid.NewString(), StartedAt: time.Now().UTC(), Requester: r.User}
	var err error
	switch r.Verb {
	case node.Manage:
		if n.Provision != node.Enroll {
			return nil, nil // giving up on failed work, or taking an available node back: nothing to do
		}
		job.Phase, job.Target = node.PhaseVerify, node.Manageable
		job.Steps = ordered(append(conductorPhase(node.PhaseVerify), e.plugSteps(n, node.PhaseVerify)...))
	case node.Inspect:
		if e.drivers.Interface(n, "inspect") == "no-inspect" {
			return nil, invalidf("inspection is not supported by the inspect interface no-inspect of node %s", n.UUID)
		}
		job.Phase, job.Target = node.PhaseInspect, node.Manageable
		job.Steps = e.agentPhase(n, "inspect", node.PhaseInspect)
	case node.Provide:
		job.Phase, job.Target = node.PhaseClean, node.Available
		job.Steps = e.cleanSteps(n)
	case node.Clean:
		job.Phase, job.Target = node.PhaseClean, node.Manageable
		job.Steps, err = e.listedSteps(n, node.PhaseClean, r.CleanSteps, r.DisableRamdisk)
	case node.Deploy, node.Rebuild:
		job.Phase, job.Target = node.PhaseDeploy, node.Active
		job.Steps, err = e.templated(ctx, n, r.DeploySteps)
	case node.Delete:
		job.Phase, job.Target = node.PhaseDelete, node.Available
		job.Steps = conductorPhase(node.PhaseDelete)
	case node.Adopt:
		job.Phase, job.Target = node.PhaseAdopt, node.Active
		job.Steps = conductorPhase(node.PhaseAdopt)
		if b := n.Boot; b != nil && b.Kept { // what runs on the machine is not the instance
			job.Steps = append(conductorPhase(node.PhaseCool), job.Steps...)
		}
	case node.Service:
		job.Phase, job.Target = node.PhaseService, node.Active
		job.Steps, err = e.listedSteps(n, node.PhaseService, r.ServiceSteps, r.DisableRamdisk)
	case node.DoRescue:
		job.Phase, job.Target = node.PhaseRescue, node.Rescue
		job.Steps, err = e.rescueSteps(n, node.PhaseRescue)
	case node.Unrescue:
		job.Phase, job.Target = node.PhaseUnresc, node.Active
		job.Steps, err = e.rescueSteps(n, node.PhaseUnresc)
	default:
		return nil, invalidf("%s is not supported", r.Verb)
	}
	if err != nil {
		return nil, err
	}
	return job, e.checkPlan(n, job.Steps)
}

// cleanJob makes the cleaning that follows a tear-down.
func (e *Engine) cleanJob(n *node.Node, requester string) *node.Job {
	return &node.Job{ID: uuid.NewString(), StartedAt: time.Now().UTC(), Requester: requester,
		Phase: node.PhaseClean, Target: node.Available, Steps: e.cleanSteps(n)}
}

func (e *Engine) cleanSteps(n *node.Node) []node.JobStep {
	on := e.cfg.AutomatedClean
	if n.AutomatedClean != nil {
		on = *n.AutomatedClean
	}
	if !on {
		return nil
	}
	return e.agentPhase(n, "deploy", node.PhaseClean)
}

// agentPhase is a phase in which the agent is booted, does the steps that have a priority, and is turned off. A node whose interface
// of that kind is a fake has no agent, and only the steps that its interfaces bring.
func (e *Engine) agentPhase(n *node.Node, kind string, phase node.Phase) []node.JobStep {
	if e.drivers.Interface(n, kind) == "fake" {
		return ordered(e.plugSteps(n, phase))
	}
	steps := append(conductorPhase(phase), e.plugSteps(n, phase)...)
	for _, s := range e.cfg.AgentSteps {
		if p := e.priority(phase, s.Interface, s.Name, s.priority(phase)); p > 0 {
			steps = append(steps, inBand(s, nil, p))
		}
	}
	return ordered(steps)
}

func inBand(s AgentStep, args json.RawMessage, priority int) node.JobStep {
	return node.JobStep{Interface: s.Interface, Name: s.Name, Args: args, Priority: priority, InBand: true,
		Abortable: s.Abortable, Stall: s.Stall}
}

// interfaceOrder is the order in which steps of the same priority run, which is Ironic's; interfaces that it does not name come last.
var interfaceOrder = []string{"network", "vendor", "power", "management", "firmware", "deploy", "bios", "raid"}

// ordered sorts by priority, highest first, then by interface, and conductor steps before the agent's of the same priority and interface.
func ordered(steps []node.JobStep) []node.JobStep {
	rank := func(s node.JobStep) int {
		if i := slices.Index(interfaceOrder, s.Interface); i >= 0 {
			return i
		}
		return len(interfaceOrder)
	}
	slices.SortStableFunc(steps, func(a, b node.JobStep) int { return cmp.Or(b.Priority-a.Priority, rank(a)-rank(b)) })
	return steps
}

// priority is a step's priority in a phase: the configuration's, else its own.
func (e *Engine) priority(phase node.Phase, iface, name string, own int) int {
	if p, ok := e.cfg.Priorities[phase][iface+"."+name]; ok {
		return p
	}
	return own
}

// Unmoved names what the configuration gives a priority, but what is no step that has one: mistyped, of another ramdisk, or one of the
// conductor's own, which stay where they are. The names have their phase before them ("clean: deploy.erase_device").
func (e *Engine) Unmoved() []string {
	known := map[string]bool{}
	for _, s := range e.cfg.AgentSteps {
		known[s.Interface+"."+s.Name] = true
	}
	if e.plugs != nil {
		for _, s := range e.plugs.All() {
			known[s.Interface+"."+s.Name] = true
		}
	}
	var out []string
	for phase, steps := range e.cfg.Priorities {
		for name := range steps {
			if !known[name] {
				out = append(out, string(phase)+": "+name)
			}
		}
	}
	slices.Sort(out)
	return out
}

// listedSteps is the client's own list for cleaning or service, in the client's order, with the agent booted around it unless the node
// has none or the client does without.
func (e *Engine) listedSteps(n *node.Node, phase node.Phase, asked []node.JobStep, noRamdisk bool) ([]node.JobStep, error) {
	if len(asked) == 0 {
		return nil, invalidf("%s_steps is empty: name the steps to run", phase)
	}
	agentless := noRamdisk || e.drivers.Interface(n, "deploy") == "fake"
	var steps []node.JobStep
	for _, a := range asked {
		if _, ok := reservedSteps()[a.Name]; ok {
			s, err := e.askReserved(n, a)
			if err != nil {
				return nil, err
			}
			steps = append(steps, s)
			continue
		}
		if s, ok, err := e.askPlug(n, phase, a); err != nil {
			return nil, err
		} else if ok {
			steps = append(steps, s)
			continue
		}
		s, err := e.agentStep(a)
		switch {
		case err != nil:
			return nil, err
		case agentless && noRamdisk:
			return nil, invalidf("step %s.%s runs in the agent, so it can't run with disable_ramdisk", a.Interface, a.Name)
		case agentless:
			return nil, invalidf("step %s.%s runs in the agent, which a node with deploy interface fake has not", a.Interface, a.Name)
		case phase == node.PhaseService && s.Priority.Service == 0: // negative: when asked for
			return nil, invalidf("step %s.%s can't run on a node with an instance: the agent has no step of that name for service", a.Interface, a.Name)
		}
		steps = append(steps, inBand(s, a.Args, max(s.priority(phase), 0)))
	}
	if agentless {
		return steps, nil
	}
	frame := conductorPhase(phase)
	return append(append([]node.JobStep{frame[0]}, steps...), frame[1:]...), nil
}

// nodeOnly are arguments that say whom to trust, and where they are set. An operator sets them in driver_info to bind who deploys, so they
// can't come with a step, whose arguments go before the node's.
var nodeOnly = map[string]string{"image_keys": "driver_info or instance_info", "image_ca": "driver_info"}

// agentStep finds a step that a client names and checks its arguments.
func (e *Engine) agentStep(a node.JobStep) (AgentStep, error) {
	s, ok := e.agentTable(a.Interface, a.Name)
	if !ok {
		return AgentStep{}, e.unknownStep(a.Interface, a.Name)
	}
	if a.Interface == "rescue" {
		return AgentStep{}, invalidf("step %s.%s runs when a node is rescued, and only then: ask for rescue", a.Interface, a.Name)
	}
	return s, checkAsked(s, a.Args)
}

// agentTable finds a step in the table of the ramdisk's agent.
func (e *Engine) agentTable(iface, name string) (AgentStep, bool) {
	i := slices.IndexFunc(e.cfg.AgentSteps, func(s AgentStep) bool { return s.Interface == iface && s.Name == name })
	if i < 0 {
		return AgentStep{}, false
	}
	return e.cfg.AgentSteps[i], true
}

func (e *Engine) unknownStep(iface, name string) error {
	var known []string
	for _, s := range e.cfg.AgentSteps {
		known = append(known, s.Interface+"."+s.Name)
	}
	return invalidf("there is no step %s.%s; the agent has %s", iface, name, strings.Join(known, ", "))
}

// deploySteps is the usual program of a deployment with the client's steps merged in: one of the same interface and name replaces
// the usual one's arguments and priority, priority 0 leaves it out, any other joins.
func (e *Engine) deploySteps(n *node.Node, asked []node.JobStep) ([]node.JobStep, error) {
	if e.runsFromMemory(n) {
		return e.ramdiskSteps(n, asked)
	}
	fake := e.drivers.Interface(n, "deploy") == "fake"
	if !fake {
		if err := e.site().CheckImage(n); err != nil {
			return nil, err
		}
	}
	steps := append(conductorPhase(node.PhaseDeploy), e.plugSteps(n, node.PhaseDeploy)...)
	if fake {
		steps = slices.DeleteFunc(steps, func(s node.JobStep) bool { return bootsAgent(s) || s.Name == stepTearDown && !s.Plug })
	} else {
		if err := e.checkAgent(n); err != nil {
			return nil, err
		}
		for _, s := range e.cfg.AgentSteps {
			p := e.priority(node.PhaseDeploy, s.Interface, s.Name, s.Priority.Deploy)
			if p <= 0 || s.Name == "write_configdrive" && !instance.HasConfigDrive(n) {
				continue
			}
			steps = append(steps, inBand(s, nil, p))
		}
	}
	if !fake {
		var err error
		if steps, err = e.withStart(n, steps, asked); err != nil {
			return nil, err
		}
	}
	for _, a := range asked {
		if a.Name == "write_configdrive" && a.Priority > 0 && noArgs(a.Args) && !instance.HasConfigDrive(n) && !phonesHome(steps) {
			return nil, invalidf("step write_configdrive is asked for, but there is no config drive")
		}
		if _, ok := reservedSteps()[a.Name]; ok {
			s, err := e.askReserved(n, a)
			if err != nil {
				return nil, err
			}
			if s.Priority > 0 {
				steps = append(steps, s)
			}
			continue
		}
		i := slices.IndexFunc(steps, func(s node.JobStep) bool { return s.Interface == a.Interface && s.Name == a.Name })
		if s, ok, err := e.askPlug(n, node.PhaseDeploy, a); err != nil {
			return nil, err
		} else if ok {
			if i >= 0 {
				steps = slices.Delete(steps, i, i+1)
			}
			if s.Priority > 0 {
				steps = append(steps, s)
			}
			continue
		}
		if i >= 0 && !steps[i].InBand {
			if a.Priority == 0 {
				return nil, invalidf("step %s.%s can't be left out", a.Interface, a.Name)
			}
			if !noArgs(a.Args) && (fake || a.Name != stepBootInstance) {
				return nil, invalidf("step %s.%s takes no arguments", a.Interface, a.Name)
			}
			steps[i].Priority = a.Priority
			continue
		}
		s, err := e.agentStep(a)
		if err != nil {
			return nil, err
		}
		if fake {
			return nil, invalidf("step %s.%s runs in the agent, which a node with deploy interface fake has not", a.Interface, a.Name)
		}
		if i >= 0 {
			steps = slices.Delete(steps, i, i+1)
		}
		if a.Priority > 0 {
			steps = append(steps, inBand(s, a.Args, a.Priority))
		}
	}
	steps = ordered(steps)
	// The agent's steps must lie where there is an agent.
	up, down := -1, len(steps)
	for i, s := range steps {
		switch {
		case bootsAgent(s):
			up = i
		case s.Name == stepTearDown:
			down = i
		}
	}
	for i, s := range steps {
		if s.InBand && (i < up || i > down || up < 0) {
			return nil, invalidf("step %s.%s with priority %d does not lie between the start (100) and the end (40) of the agent", s.Interface, s.Name, s.Priority)
		}
	}
	if fake {
		return steps, nil
	}
	if err := checkStart(steps); err != nil {
		return nil, err
	}
	return steps, checkOrder(steps)
}

// deployOrder is what of a deployment has one order only: what is erased after an image was written is the image, what is added after the
// partition table was committed is in no table, and a machine that was started before the agent is turned off stays off.
var deployOrder = []string{"erase_devices_metadata", "write_image", "write_configdrive", "prepare_instance_boot", stepLoadKernel, stepTearDown, stepSwitchNetwork, stepBootInstance}

// checkOrder refuses a deployment that would end well, and leave a machine that does not boot or lacks what was asked for.
func checkOrder(steps []node.JobStep) error {
	for _, name := range []string{"write_image", "prepare_instance_boot"} {
		if !slices.ContainsFunc(steps, func(s node.JobStep) bool { return s.Interface == "deploy" && s.Name == name }) {
			return invalidf("step deploy.%s can't be left out: the machine would have no system to boot; give it a priority, or don't name it in deploy_steps", name)
		}
	}
	// Files are put into the image, before or after the config drive is added to it.
	if i := slices.IndexFunc(steps, func(s node.JobStep) bool { return s.Interface == "deploy" && s.Name == "inject_files" }); i >= 0 {
		for k, s := range steps {
			if s.Interface == "deploy" && (s.Name == "write_image" && k > i || s.Name == "prepare_instance_boot" && k < i) {
				return invalidf("step deploy.inject_files with priority %d has to run after deploy.write_image and before deploy.prepare_instance_boot: give it a priority between theirs (79 to 61 unless they were moved)", steps[i].Priority)
			}
		}
	}
	last, before := -1, node.JobStep{}
	written, committed := slices.Index(deployOrder, "write_image"), slices.Index(deployOrder, "prepare_instance_boot")
	for _, s := range steps {
		switch s.Name {
		case stepPowerOff, stepPowerOn, stepReboot:
			// What the agent holds back of the disk until the table is committed is in its memory only.
			if last >= written && last < committed && !s.InBand && !s.Plug {
				return invalidf("step %s with priority %d would restart the agent between deploy.write_image and deploy.prepare_instance_boot, which loses the end of the image: move it before the one or behind the other", s.Name, s.Priority)
			}
		}
		at := slices.Index(deployOrder, s.Name)
		if s.Interface != "deploy" || at < 0 {
			continue
		}
		if at < last {
			return invalidf("step deploy.%s with priority %d would run after deploy.%s with priority %d, but has to run before it: give it a higher priority (the order is %s)",
				s.Name, s.Priority, before.Name, before.Priority, strings.Join(deployOrder, ", "))
		}
		last, before = at, s
	}
	return nil
}

// checkAgent refuses a deployment by an agent that lacks a step without which the disk would not hold what was asked for.
func (e *Engine) checkAgent(n *node.Node) error {
	needed := []string{"write_image", "prepare_instance_boot"}
	if instance.HasConfigDrive(n) {
		needed = append(needed, "write_configdrive")
	}
	for _, name := range needed {
		if !slices.ContainsFunc(e.cfg.AgentSteps, func(s AgentStep) bool { return s.Name == name && s.Priority.Deploy > 0 }) {
			return invalidf("the ramdisk's agent has no deploy step %s: use a ramdisk that was built with this release", name)
		}
	}
	return nil
}
