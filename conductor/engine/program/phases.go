package program

import (
	"encoding/json"
	"slices"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

func (m Maker) cleanSteps(n *node.Node) []node.JobStep {
	on := m.AutomatedClean
	if n.AutomatedClean != nil {
		on = *n.AutomatedClean
	}
	if !on {
		return nil
	}
	return m.agentPhase(n, "deploy", node.PhaseClean)
}

// agentPhase is a phase in which the agent is booted, does the steps that have a priority, and is turned off. A node
// whose interface of that kind is a fake has no agent, and only the steps that its interfaces bring.
func (m Maker) agentPhase(n *node.Node, kind string, phase node.Phase) []node.JobStep {
	if m.Drivers.Interface(n, kind) == "fake" {
		return catalog.Ordered(m.plugSteps(n, phase))
	}
	steps := append(m.Own(phase), m.plugSteps(n, phase)...)
	for _, s := range m.AgentSteps {
		if p := m.priority(phase, s.Interface, s.Name, s.PriorityIn(phase)); p > 0 {
			steps = append(steps, catalog.InBand(s, nil, p))
		}
	}
	return catalog.Ordered(steps)
}

// priority is a step's priority in a phase: the configuration's, else its own.
func (m Maker) priority(phase node.Phase, iface, name string, own int) int {
	if p, ok := m.Priorities[phase][iface+"."+name]; ok {
		return p
	}
	return own
}

// Unmoved names what the configuration gives a priority, but what is no step that has one: mistyped, of another
// ramdisk, or one of the conductor's own, which stay where they are. The names have their phase before them ("clean:
// deploy.erase_device").
func (m Maker) Unmoved() []string {
	known := map[string]bool{}
	for _, s := range m.AgentSteps {
		known[s.Interface+"."+s.Name] = true
	}
	if m.Plugs != nil {
		for _, s := range m.Plugs.All() {
			known[s.Interface+"."+s.Name] = true
		}
	}
	var out []string
	for phase, steps := range m.Priorities {
		for name := range steps {
			if !known[name] {
				out = append(out, string(phase)+": "+name)
			}
		}
	}
	slices.Sort(out)
	return out
}

// listedSteps is the client's own list for cleaning or service, in the client's order, with the agent booted around it
// unless the node has none or the client does without.
func (m Maker) listedSteps(n *node.Node, phase node.Phase, asked []node.JobStep,
	noRamdisk bool) ([]node.JobStep, error) {
	if len(asked) == 0 {
		return nil, invalidf("%s_steps is empty: name the steps to run", phase)
	}
	agentless := noRamdisk || m.Drivers.Interface(n, "deploy") == "fake"
	var steps []node.JobStep
	for _, a := range asked {
		if _, ok := catalog.Reserved(a.Name); ok {
			s, err := catalog.AskReserved(n, a, StaysOn(n, m.Drivers.Interface(n, "power")))
			if err != nil {
				return nil, err
			}
			steps = append(steps, s)
			continue
		}
		if s, ok, err := m.askPlug(n, phase, a); err != nil {
			return nil, err
		} else if ok {
			steps = append(steps, s)
			continue
		}
		s, err := m.AgentSteps.Ask(a)
		switch {
		case err != nil:
			return nil, err
		case agentless && noRamdisk:
			return nil, invalidf("step %s.%s runs in the agent, so it can't run with disable_ramdisk", a.Interface,
				a.Name)
		case agentless:
			return nil, invalidf("step %s.%s runs in the agent, which a node with deploy interface fake has not",
				a.Interface, a.Name)
		case phase == node.PhaseService && s.Priority.Service == 0: // negative: when asked for
			return nil, invalidf(
				"step %s.%s can't run on a node with an instance: the agent has no step of that name for service",
				a.Interface, a.Name)
		}
		steps = append(steps, catalog.InBand(s, a.Args, max(s.PriorityIn(phase), 0)))
	}
	if agentless {
		return steps, nil
	}
	frame := m.Own(phase)
	return append(append([]node.JobStep{frame[0]}, steps...), frame[1:]...), nil
}

// plugSteps are the steps that a node's interfaces have in a phase by themselves.
func (m Maker) plugSteps(n *node.Node, phase node.Phase) []node.JobStep {
	if m.Plugs == nil {
		return nil
	}
	var steps []node.JobStep
	for _, s := range m.Plugs.Steps(n) {
		own, may := s.Priority[phase]
		if !may {
			continue
		}
		if p := m.priority(phase, s.Interface, s.Name, own); p > 0 {
			steps = append(steps,
				node.JobStep{Interface: s.Interface, Name: s.Name, Priority: p, Abortable: s.Abortable, Plug: true})
		}
	}
	return steps
}

// askPlug checks a step that a client asks for, if it is one of the node's interfaces.
func (m Maker) askPlug(n *node.Node, phase node.Phase, a node.JobStep) (s node.JobStep, ok bool, err error) {
	if m.Plugs == nil {
		return s, false, nil
	}
	st, ok := m.Plugs.Step(n, a.Interface, a.Name)
	if !ok {
		return s, false, nil
	}
	if _, may := st.Priority[phase]; !may {
		return s, true, invalidf("step %s.%s can't run in phase %s", a.Interface, a.Name, phase)
	}
	args, err := PlugArgs(a.Args)
	if err != nil {
		return s, true, invalidf("arguments of step %s.%s are not a JSON object: %v", a.Interface, a.Name, err)
	}
	if err := st.CheckArgs(n, args); err != nil {
		return s, true, &node.InvalidError{Reason: err.Error()}
	}
	return node.JobStep{Interface: a.Interface, Name: a.Name, Args: a.Args, Priority: a.Priority,
		Abortable: st.Abortable, Plug: true}, true, nil
}

// PlugArgs reads the arguments of a step of an interface.
func PlugArgs(raw json.RawMessage) (map[string]any, error) {
	args := map[string]any{}
	if len(raw) == 0 {
		return args, nil
	}
	return args, exact.Unmarshal(raw, &args)
}

// rescueSteps are the steps that bring a node into rescue, or back.
func (m Maker) rescueSteps(n *node.Node, phase node.Phase) ([]node.JobStep, error) {
	switch name := m.Drivers.Interface(n, "rescue"); name {
	case "", "no-rescue":
		return nil, invalidf("Driver %s does not support rescue (disabled or not implemented).", n.Driver)
	case "fake":
		return catalog.Ordered(m.plugSteps(n, phase)), nil
	case "agent":
	default:
		return nil, invalidf("rescue interface %s of node %s can't be used by this version of Ingot", name, n.UUID)
	}
	if phase == node.PhaseUnresc {
		return m.Own(phase), nil
	}
	if _, ok := m.AgentSteps.Find("rescue", "rescue"); !ok {
		return nil, invalidf(
			"the ramdisk's agent has no step rescue.rescue: use a ramdisk that was built with this release")
	}
	return m.agentPhase(n, "rescue", phase), nil
}
