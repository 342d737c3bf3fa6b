// Package catalog knows the steps of the ramdisk's agent, as rows of its manifest, and the names of those steps that
// the engine looks for. The conductor's own steps are listed in the engine.
//
// Ask compares a client's steps with the table. Errors are *node.InvalidError.
package catalog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"

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
	// Ironic's reserved steps: they can be requested by name alone, with every interface, in cleaning, deployment and
	// service.
	StepHold     = "hold"
	StepWait     = "wait"
	StepPowerOn  = "power_on"
	StepPowerOff = "power_off"
	StepReboot   = "reboot"
)

// Table is the agent's table of steps.
type Table []steparg.Row

// Parse reads the "steps" of a ramdisk's manifest.
func Parse(b []byte) (Table, error) {
	var t Table
	err := json.Unmarshal(b, &t)
	return t, err
}

// Complete adds to the steps of a ramdisk what this release's own agent says of the steps of those names: who sets an
// argument and whether it is secret in any case, since no manifest may say less; the rest to those of an earlier
// release, whose manifest has nothing but name, arguments and priorities.
func (t Table) Complete() {
	own := BuiltinSteps()
	for i := range t {
		r := &t[i]
		o, known := own.Find(r.Interface, r.Name)
		if !known {
			continue
		}
		for k := range r.Args {
			a := &r.Args[k]
			if at := slices.IndexFunc(o.Args, func(b steparg.Arg) bool { return a.Name == b.Name }); at >= 0 {
				a.Secret, a.Given = a.Secret || o.Args[at].Secret, a.Given || o.Args[at].Given
				a.Owner = cmp.Or(o.Args[at].Owner, a.Owner)
			}
		}
		if r.Repeatable || r.When != "" || len(r.From)+len(r.Provides)+len(r.After)+len(r.Before) > 0 {
			continue
		}
		r.When, r.From, r.Provides, r.After, r.Before = o.When, o.From, o.Provides, o.After, o.Before
		r.Repeatable = o.Repeatable
		if len(r.Priority) == 0 {
			r.Priority = o.Priority
		}
	}
}

// Find finds a step in the table of the ramdisk's agent.
func (t Table) Find(iface, name string) (steparg.Row, bool) {
	i := slices.IndexFunc(t, func(r steparg.Row) bool { return r.Interface == iface && r.Name == name })
	if i < 0 {
		return steparg.Row{}, false
	}
	return t[i], true
}

// Unknown is the error that a step does not exist.
func (t Table) Unknown(iface, name string) error {
	var known []string
	for _, r := range t {
		known = append(known, r.Title())
	}
	return node.Invalidf("there is no step %s.%s; the agent has %s", iface, name, strings.Join(known, ", "))
}

// Ask finds a step that a client names and checks its arguments: the agent would refuse them too, but only after the
// machine was booted for it.
func (t Table) Ask(a node.JobStep) (steparg.Row, error) {
	r, ok := t.Find(a.Interface, a.Name)
	if !ok {
		return r, t.Unknown(a.Interface, a.Name)
	}
	if a.Interface == "rescue" {
		return r, node.Invalidf("step %s runs when a node is rescued, and only then: ask for rescue", r.Title())
	}
	if err := steparg.Check(r.Title(), r.Args, a.Args, true); err != nil {
		return r, node.Invalidf("%s", err)
	}
	return r, nil
}

// InMemory reports whether a step leaves data in the agent's memory that other steps of the agent need.
func (t Table) InMemory(s node.JobStep) bool {
	r, _ := t.Find(s.Interface, s.Name)
	return slices.ContainsFunc(r.Provides, func(what string) bool {
		return slices.ContainsFunc(t, func(r steparg.Row) bool { return slices.Contains(r.From, what) })
	})
}

// InBand is a step of the agent in a job.
func InBand(r steparg.Row, args json.RawMessage, priority int) node.JobStep {
	return node.JobStep{Interface: r.Interface, Name: r.Name, Args: args, Priority: priority, InBand: true,
		Abortable: r.Abortable, Stall: r.Stall}
}

// Ordered sorts steps as they run; those of the same priority and interface stay as they were.
func Ordered(steps []node.JobStep) []node.JobStep {
	slices.SortStableFunc(steps, func(a, b node.JobStep) int {
		return steparg.Compare(a.Priority, a.Interface, b.Priority, b.Interface)
	})
	return steps
}

// BootsAgent reports whether a step of a job boots the agent.
func BootsAgent(s node.JobStep) bool {
	return !s.InBand && !s.Plug && s.Interface == "deploy" && (s.Name == StepBoot || s.Name == StepBootAgent)
}

// NoArgs reports whether a step has no arguments.
func NoArgs(args json.RawMessage) bool {
	return len(args) == 0 || bytes.Equal(bytes.TrimSpace(args), []byte("{}")) || bytes.Equal(args, []byte("null"))
}
