package program

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// Cleaning are the steps of the cleaning on the way to available; none where it is switched off.
func (m Planner) Cleaning(n *node.Node) []node.JobStep {
	on := m.AutomatedClean
	if n.AutomatedClean != nil {
		on = *n.AutomatedClean
	}
	if !on {
		return nil
	}
	return m.agentPhase(n, "deploy", node.PhaseClean)
}

// UnknownPriorities lists the configuration's overrides that match no step with a priority of its own: mistyped, of
// another ramdisk, or one of the conductor's steps, whose priorities are fixed. Each has its phase before it ("clean:
// deploy.erase_device").
func (m Planner) UnknownPriorities() []string {
	known := map[string]bool{}
	for _, s := range m.AgentSteps {
		known[s.Title()] = true
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

// Listed is the client's own list for cleaning or service, in the client's order, with the agent booted around it
// unless the node has none or the client does without.
func (m Planner) Listed(n *node.Node, phase node.Phase, asked []node.JobStep,
	noRamdisk bool) ([]node.JobStep, error) {
	if len(asked) == 0 {
		return nil, node.Invalidf("%s_steps is empty: name the steps to run", phase)
	}
	agentless := noRamdisk || m.Drivers.Interface(n, "deploy") == "fake"
	var steps []node.JobStep
	for _, a := range asked {
		s, r, err := m.named(n, phase, a)
		switch {
		case err != nil:
			return nil, err
		case s.InBand && noRamdisk:
			return nil, node.Invalidf("step %s runs in the agent, so it can't run with disable_ramdisk", r.Title())
		case s.InBand && agentless:
			return nil, noAgent(r)
		case s.InBand && phase == node.PhaseService && r.Priority[steparg.Service] == 0: // negative: only on request
			return nil, node.Invalidf(
				"step %s can't run on a node with an instance: the agent has no step of that name for service",
				r.Title())
		case s.InBand:
			s.Priority = max(r.Priority[steparg.Phase(phase)], 0)
		}
		steps = append(steps, s)
	}
	if agentless {
		return steps, nil
	}
	frame := m.Conductor(phase)
	return append(append([]node.JobStep{frame[0]}, steps...), frame[1:]...), nil
}

func noAgent(r steparg.Row) error {
	return node.Invalidf("step %s runs in the agent, which a node with deploy interface fake has not", r.Title())
}

// named is a step that a request names: a reserved one, one of the node's interfaces, or one of the agent, which has a
// row.
func (m Planner) named(n *node.Node, phase node.Phase, a node.JobStep) (s node.JobStep, r steparg.Row, err error) {
	if r, ok := m.Reserved(a.Name); ok {
		s, err = m.askReserved(n, r, a)
		return s, r, err
	}
	if s, ok, err := m.askPlug(n, phase, a); ok || err != nil {
		return s, r, err
	}
	if err := m.mayLend(phase, a); err != nil {
		return s, r, err
	}
	r, err = m.AgentSteps.Ask(a)
	return catalog.InBand(r, a.Args, a.Priority), r, err
}

// Reserved finds a reserved step: one that can be requested by name alone, with every interface.
func (m Planner) Reserved(name string) (steparg.Row, bool) {
	i := slices.IndexFunc(m.Own, func(r steparg.Row) bool { return r.Interface == "" && r.Name == name })
	if i < 0 {
		return steparg.Row{}, false
	}
	return m.Own[i], true
}

// askReserved checks a requested reserved step. A machine whose power is never turned off can't be turned off.
func (m Planner) askReserved(n *node.Node, r steparg.Row, a node.JobStep) (node.JobStep, error) {
	if err := steparg.Check(r.Name, r.Args, a.Args, true); err != nil {
		return a, node.Invalidf("%s", err)
	}
	if a.Name == catalog.StepWait {
		if _, err := WaitFor(a.Args); err != nil {
			return a, err
		}
	}
	if a.Name == catalog.StepPowerOff && StaysOn(n, m.Drivers.Interface(n, "power")) {
		return a, node.Invalidf(
			"step power_off is not possible: the power of node %s is never turned off (disable_power_off, or no controller)", n.UUID)
	}
	return node.JobStep{Interface: a.Interface, Name: a.Name, Args: a.Args, Priority: a.Priority, Abortable: true}, nil
}

// maxWait is a day: longer waits use hold.
const maxWait = 24 * time.Hour

// WaitFor reads the argument of a step wait; zero is none.
func WaitFor(args json.RawMessage) (time.Duration, error) {
	if len(args) == 0 {
		return 0, nil
	}
	var given struct {
		Seconds json.Number `json:"seconds"`
	}
	if err := json.Unmarshal(args, &given); err != nil {
		return 0, node.Invalidf("argument seconds of step wait is not a number")
	}
	if given.Seconds == "" {
		return 0, nil
	}
	s, err := given.Seconds.Int64()
	if err != nil || s < 0 || s > int64(maxWait/time.Second) {
		return 0, node.Invalidf(
			"argument seconds of step wait is %s: give a whole number from 0 to %d, or use the step hold",
			given.Seconds, int64(maxWait/time.Second))
	}
	return time.Duration(s) * time.Second, nil
}

// plugSteps are the steps that a node's interfaces have in a phase by themselves.
func (m Planner) plugSteps(n *node.Node, phase node.Phase) []node.JobStep {
	if m.Plugs == nil {
		return nil
	}
	var steps []node.JobStep
	for _, s := range m.Plugs.Steps(n) {
		own, may := s.Priority[phase]
		if !may {
			continue
		}
		if given, ok := m.Priorities[phase][s.Interface+"."+s.Name]; ok {
			own = given
		}
		if own > 0 {
			steps = append(steps,
				node.JobStep{Interface: s.Interface, Name: s.Name, Priority: own, Abortable: s.Abortable, Plug: true})
		}
	}
	return steps
}

// askPlug checks a requested step, if it is one of the node's interfaces.
func (m Planner) askPlug(n *node.Node, phase node.Phase, a node.JobStep) (s node.JobStep, ok bool, err error) {
	if m.Plugs == nil {
		return s, false, nil
	}
	st, ok := m.Plugs.Step(n, a.Interface, a.Name)
	if !ok {
		return s, false, nil
	}
	if _, may := st.Priority[phase]; !may {
		return s, true, node.Invalidf("step %s.%s can't run in phase %s", a.Interface, a.Name, phase)
	}
	args, err := PlugArgs(a.Args)
	if err != nil {
		return s, true, node.Invalidf("arguments of step %s.%s are not a JSON object: %v", a.Interface, a.Name, err)
	}
	if err := st.CheckArgs(n, args); err != nil {
		return s, true, node.Invalidf("%s", err)
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

// Rescue are the steps that bring a node into rescue, or back.
func (m Planner) Rescue(n *node.Node, phase node.Phase) ([]node.JobStep, error) {
	switch name := m.Drivers.Interface(n, "rescue"); name {
	case "", "no-rescue":
		return nil, node.Invalidf("Driver %s does not support rescue (disabled or not implemented).", n.Driver)
	case "fake":
		return catalog.Ordered(m.plugSteps(n, phase)), nil
	case "agent":
	default:
		return nil, node.Invalidf("rescue interface %s of node %s can't be used by this version of Ingot", name, n.UUID)
	}
	if phase == node.PhaseUnresc {
		return m.Conductor(phase), nil
	}
	if _, ok := m.AgentSteps.Find("rescue", "rescue"); !ok {
		return nil, node.Invalidf(
			"the ramdisk's agent has no step rescue.rescue: use a ramdisk that was built with this release")
	}
	return m.agentPhase(n, "rescue", phase), nil
}
