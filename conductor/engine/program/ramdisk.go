package program

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/engine/start"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/node/ramdiskdeploy"
	"github.com/ingot-metal/ingot/conductor/signoflife"
)

// A node with deploy_interface "ramdisk" runs from memory: nothing is written to a disk, so no agent is needed. Where
// its workload is to be started by kexec, or an agent waits on the machine anyway, the agent loads it and jumps, which
// takes no firmware.

const (
	loadRamdiskPriority = 50
	bootRamdiskPriority = 100
)

// FromMemory tells whether a node's instance is a workload of conductor/node/ramdiskdeploy.
func (m Maker) FromMemory(n *node.Node) bool {
	return m.Drivers.Interface(n, "deploy") == ramdiskdeploy.Interface
}

// checkWorkload refuses a workload that could not be booted.
func (m Maker) checkWorkload(n *node.Node) error {
	w, err := ramdiskdeploy.Of(n, m.Site.ImageBase)
	if err == nil && w.Drive != nil {
		_, err = w.Seed(n.UUID, time.Now())
	}
	if err != nil {
		return &node.InvalidError{Reason: err.Error()}
	}
	return nil
}

// ramdiskStart decides how the workload is first started. By kexec if that is asked for, or if an agent is there anyway
// and nobody asked for anything else.
func (m Maker) ramdiskStart(n *node.Node, asked json.RawMessage) (start.Args, error) {
	a, err := m.Start.Choose(n, asked)
	if err != nil {
		return a, err
	}
	if signoflife.Has(a.Wanted(), signoflife.PhoneHome) {
		return a, invalidf(
			"the sign of life phone_home can't be asked of a workload that runs from memory, which gets its config drive as it was handed in: ask for another sign (%s)", start.KeySigns)
	}
	var given struct {
		Method string `json:"method"`
	}
	if !catalog.NoArgs(asked) {
		if err := json.Unmarshal(asked, &given); err != nil {
			return a, invalidf("arguments of step deploy.%s are not a JSON object: %v", catalog.StepBootInstance, err)
		}
	}
	own, _ := n.InstanceInfo[start.KeyMethod].(string)
	ofNode, _ := n.DriverInfo[start.KeyMethod].(string)
	_, able := m.AgentSteps.Find("deploy", catalog.StepLoadRamdisk)
	switch {
	case a.Method == start.Kexec && !able:
		return a, invalidf(
			"the workload can't be started by kexec: the ramdisk's agent has no step deploy.%s: use a ramdisk that was built with this release, or set %s to %s", catalog.StepLoadRamdisk, start.KeyMethod, start.Reboot)
	case a.Method == "" && able && given.Method+own+ofNode == "":
		if b := n.Boot; b != nil && b.Kept && b.Connected && !b.Ended {
			a.Method = start.Kexec
		}
	}
	return a, nil
}

// ramdiskSteps is the program of a deployment of a workload, with the client's steps merged in as deploySteps does.
func (m Maker) ramdiskSteps(n *node.Node, asked []node.JobStep) ([]node.JobStep, error) {
	if err := m.checkWorkload(n); err != nil {
		return nil, err
	}
	is := func(name string) func(node.JobStep) bool {
		return func(s node.JobStep) bool { return s.Interface == "deploy" && s.Name == name && !s.Plug }
	}
	var given json.RawMessage
	if i := slices.IndexFunc(asked, is(catalog.StepBootInstance)); i >= 0 {
		given = asked[i].Args
	}
	a, err := m.ramdiskStart(n, given)
	if err != nil {
		return nil, err
	}
	hot := a.Method == start.Kexec
	steps := append(m.Own(node.PhaseDeploy), m.plugSteps(n, node.PhaseDeploy)...)
	if hot {
		s, _ := m.AgentSteps.Find("deploy", catalog.StepLoadRamdisk)
		p := m.priority(node.PhaseDeploy, s.Interface, s.Name, loadRamdiskPriority)
		if p <= 0 {
			p = loadRamdiskPriority
		}
		steps = append(steps, catalog.InBand(s, nil, p))
	} else {
		steps = slices.DeleteFunc(steps, func(s node.JobStep) bool {
			return catalog.BootsAgent(s) || is(catalog.StepTearDown)(s)
		})
		steps = append(steps,
			node.JobStep{Interface: "deploy", Name: ramdiskdeploy.Step, Priority: bootRamdiskPriority, Abortable: true})
	}
	if i := slices.IndexFunc(steps, is(catalog.StepBootInstance)); i >= 0 {
		steps[i].Args = a.JSON()
	}
	for _, s := range asked {
		if steps, err = m.mergeRamdisk(n, steps, s, hot); err != nil {
			return nil, err
		}
	}
	steps = catalog.Ordered(steps)
	return steps, checkRamdiskOrder(steps)
}

// mergeRamdisk puts one step that a client asks for into the program of a workload.
func (m Maker) mergeRamdisk(n *node.Node, steps []node.JobStep, a node.JobStep, hot bool) ([]node.JobStep, error) {
	join := func(s node.JobStep) []node.JobStep {
		steps = slices.DeleteFunc(steps, func(o node.JobStep) bool {
			return o.Interface == a.Interface && o.Name == a.Name
		})
		if a.Priority > 0 {
			steps = append(steps, s)
		}
		return steps
	}
	if _, ok := catalog.Reserved(a.Name); ok {
		s, err := catalog.AskReserved(n, a, StaysOn(n, m.Drivers.Interface(n, "power")))
		if err == nil && s.Priority > 0 {
			steps = append(steps, s)
		}
		return steps, err
	}
	if s, ok, err := m.askPlug(n, node.PhaseDeploy, a); err != nil {
		return nil, err
	} else if ok {
		return join(s), nil
	}
	if i := slices.IndexFunc(steps, func(s node.JobStep) bool {
		return s.Interface == a.Interface && s.Name == a.Name && !s.InBand
	}); i >= 0 {
		switch {
		case a.Priority == 0:
			return nil, invalidf("step %s.%s can't be left out", a.Interface, a.Name)
		case !catalog.NoArgs(a.Args) && a.Name != catalog.StepBootInstance:
			return nil, invalidf("step %s.%s takes no arguments", a.Interface, a.Name)
		}
		steps[i].Priority = a.Priority
		return steps, nil
	}
	s, err := m.AgentSteps.Ask(a)
	switch {
	case err != nil:
		return nil, err
	case !hot:
		return nil, invalidf(
			"step %s.%s runs in the agent, which a workload that boots from the network does without: set %s to %s, or leave the step out", a.Interface, a.Name, start.KeyMethod, start.Kexec)
	case a.Interface == "deploy" &&
		slices.Contains([]string{"write_image", "write_configdrive", "prepare_instance_boot", catalog.StepLoadKernel},
			a.Name):
		return nil, invalidf("step %s.%s is for a system on a disk, and node %s runs from memory (deploy interface %s)",
			a.Interface, a.Name, n.UUID, ramdiskdeploy.Interface)
	case a.Name == catalog.StepLoadRamdisk && a.Interface == "deploy" && a.Priority == 0:
		return nil, invalidf("step %s.%s can't be left out", a.Interface, a.Name)
	}
	return join(catalog.InBand(s, a.Args, a.Priority)), nil
}

// ramdiskOrder is what of such a deployment has one order only.
var ramdiskOrder = []string{catalog.StepBootAgent, ramdiskdeploy.Step, catalog.StepLoadRamdisk, catalog.StepTearDown,
	catalog.StepSwitchNetwork, catalog.StepBootInstance}

func checkRamdiskOrder(steps []node.JobStep) error {
	up, down := -1, len(steps)
	last, before := -1, node.JobStep{}
	for i, s := range steps {
		if catalog.BootsAgent(s) {
			up = i
		}
		if s.Interface != "deploy" || s.Plug {
			continue
		}
		if s.Name == catalog.StepTearDown {
			down = i
		}
		at := slices.Index(ramdiskOrder, s.Name)
		if at < 0 {
			continue
		}
		if at < last {
			return invalidf(
				"step deploy.%s with priority %d would run after deploy.%s with priority %d, but has to run before it: give it a higher priority (the order is %s)",
				s.Name, s.Priority, before.Name, before.Priority, strings.Join(ramdiskOrder, ", "))
		}
		last, before = at, s
	}
	for i, s := range steps {
		if s.InBand && (up < 0 || i < up || i > down) {
			return invalidf(
				"step %s.%s with priority %d does not lie between the start (100) and the end (40) of the agent",
				s.Interface, s.Name, s.Priority)
		}
	}
	return nil
}

// workloadArgs are the arguments of load_ramdisk, as instance_info has them.
func (m Maker) workloadArgs(n *node.Node, args map[string]any) error {
	w, err := ramdiskdeploy.Of(n, m.Site.ImageBase)
	if err != nil {
		return &node.InvalidError{Reason: err.Error()}
	}
	for k, v := range map[string]string{"kernel": w.Kernel, "ramdisk": w.Ramdisk, "boot_iso": w.ISO,
		"kernel_checksum": w.KernelDigest, "ramdisk_checksum": w.RamdiskDigest, "kernel_append_params": w.Params} {
		if v != "" {
			args[k] = v
		}
	}
	if w.Drive != nil {
		args["configdrive"], args["instance"] = w.Drive, n.UUID
	}
	instance.CA(n, args)
	return nil
}
