// Package catalog knows which steps there are: those of the ramdisk's agent, with what they take and when they run by
// themselves, and those that can be asked for in any phase by name alone. What else the conductor does by itself is
// listed where it is done, in the engine.
//
// Ask and its like hold what a client asks for against it. Errors are *node.InvalidError.
package catalog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// Names of the steps that the engine looks for.
const (
	StepBootAgent     = "deploy" // in a deployment, as in Ironic
	StepBoot          = "boot_agent"
	StepLoadKernel    = "load_kernel"  // of the system on the disk, for a kexec
	StepLoadRamdisk   = "load_ramdisk" // of a workload that runs from memory, for a kexec
	StepTearDown      = "tear_down_agent"
	StepSwitchNetwork = "switch_to_tenant_network"
	StepBootInstance  = "boot_instance"
)

// AgentStep is one entry of the agent's table of steps, in the JSON of the ramdisk's manifest.
type AgentStep struct {
	Interface   string         `json:"interface"`
	Name        string         `json:"step"`
	Description string         `json:"description"`
	Args        []AgentStepArg `json:"args"`
	Priority    struct {
		Deploy, Clean, Inspect, Service, Rescue int
	} `json:"priority"`
	Abortable bool          `json:"abortable"`
	Stall     time.Duration `json:"stall"`
	Timeout   time.Duration `json:"timeout"`
}

// PriorityIn is the step's own priority in a phase.
func (s AgentStep) PriorityIn(phase node.Phase) int {
	switch phase {
	case node.PhaseDeploy:
		return s.Priority.Deploy
	case node.PhaseClean:
		return s.Priority.Clean
	case node.PhaseInspect:
		return s.Priority.Inspect
	case node.PhaseService:
		return s.Priority.Service
	case node.PhaseRescue:
		return s.Priority.Rescue
	}
	return 0
}

// AgentStepArg declares an argument of a step.
type AgentStepArg = steparg.Arg

// ParseAgentSteps reads the "steps" of a ramdisk's manifest.
func ParseAgentSteps(b []byte) ([]AgentStep, error) {
	var steps []AgentStep
	err := json.Unmarshal(b, &steps)
	return steps, err
}

// Table is the agent's table of steps.
type Table []AgentStep

// Find finds a step in the table of the ramdisk's agent.
func (t Table) Find(iface, name string) (AgentStep, bool) {
	i := slices.IndexFunc(t, func(s AgentStep) bool { return s.Interface == iface && s.Name == name })
	if i < 0 {
		return AgentStep{}, false
	}
	return t[i], true
}

// Unknown is the error that there is no such step.
func (t Table) Unknown(iface, name string) error {
	var known []string
	for _, s := range t {
		known = append(known, s.Interface+"."+s.Name)
	}
	return invalidf("there is no step %s.%s; the agent has %s", iface, name, strings.Join(known, ", "))
}

// Ask finds a step that a client names and checks its arguments.
func (t Table) Ask(a node.JobStep) (AgentStep, error) {
	s, ok := t.Find(a.Interface, a.Name)
	if !ok {
		return AgentStep{}, t.Unknown(a.Interface, a.Name)
	}
	if a.Interface == "rescue" {
		return AgentStep{},
			invalidf("step %s.%s runs when a node is rescued, and only then: ask for rescue", a.Interface, a.Name)
	}
	return s, checkAsked(s, a.Args)
}

// nodeOnly are arguments that say whom to trust, and where they are set. An operator sets them in driver_info to bind
// who deploys, so they can't come with a step, whose arguments go before the node's.
var nodeOnly = map[string]string{"image_keys": "driver_info or instance_info", "image_ca": "driver_info"}

// checkAsked holds the arguments that come with a step against what the agent's step declares: the agent would refuse
// them too, but only after the machine was booted for it.
func checkAsked(s AgentStep, raw json.RawMessage) error {
	title := s.Interface + "." + s.Name
	given, err := steparg.Parse(title, raw)
	if err != nil {
		return &node.InvalidError{Reason: err.Error()}
	}
	for name := range given {
		switch {
		case strings.HasPrefix(name, "allow_"):
			return invalidf("argument %s of step %s is the conductor's configuration to give", name, title)
		case nodeOnly[name] != "":
			return invalidf("argument %s of step %s does not come with a step: set it in %s of the node", name, title,
				nodeOnly[name])
		}
	}
	if err := steparg.CheckValues(title, s.Args, given,
		func(arg string) bool { return computed(s.Name, arg) }); err != nil {
		return &node.InvalidError{Reason: err.Error()}
	}
	return nil
}

// computed tells whether the engine itself gives an argument of a step.
func computed(step, arg string) bool {
	switch step {
	case "write_image":
		return arg == "image_source" || arg == "root_device" || strings.HasPrefix(arg, "image_")
	case "write_configdrive":
		return arg == "configdrive" || arg == "image_ca"
	case "inject_files":
		return arg == "image_ca" || arg == "root_device"
	case "create_configuration":
		return arg == "target_raid_config"
	case StepLoadRamdisk:
		return true
	}
	return false
}

// NoArgs tells whether a step comes without arguments.
func NoArgs(args json.RawMessage) bool {
	return len(args) == 0 || bytes.Equal(bytes.TrimSpace(args), []byte("{}")) || bytes.Equal(args, []byte("null"))
}

func invalidf(format string, args ...any) error {
	return &node.InvalidError{Reason: fmt.Sprintf(format, args...)}
}
