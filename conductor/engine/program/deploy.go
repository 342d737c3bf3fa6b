package program

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/engine/start"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// checkAsked refuses what a request gives the steps write_image and write_configdrive in place of what the node says,
// as CheckImage does that.
func (m Maker) checkAsked(n *node.Node, asked []node.JobStep) error {
	as := *n
	as.InstanceInfo = maps.Clone(n.InstanceInfo)
	for _, a := range asked {
		if a.Interface != "deploy" || a.Name != "write_image" && a.Name != "write_configdrive" ||
			catalog.NoArgs(a.Args) {
			continue
		}
		var args map[string]any
		if exact.Unmarshal(a.Args, &args) != nil {
			continue // which is refused by its declaration
		}
		for _, key := range []string{"image_source", "image_mirrors", "image_os_hash_algo", "image_os_hash_value",
			"image_checksum", "image_signature", "configdrive"} {
			if v, ok := args[key]; ok {
				as.InstanceInfo[key] = v
			}
		}
	}
	return m.Site.CheckImage(&as)
}

// deploySteps is the usual program of a deployment with the client's steps merged in: one of the same interface and
// name replaces the usual one's arguments and priority, priority 0 leaves it out, any other joins.
func (m Maker) deploySteps(n *node.Node, asked []node.JobStep) ([]node.JobStep, error) {
	if m.FromMemory(n) {
		return m.ramdiskSteps(n, asked)
	}
	fake := m.Drivers.Interface(n, "deploy") == "fake"
	if !fake {
		if err := m.Site.CheckImage(n); err != nil {
			return nil, err
		}
		if err := m.checkAsked(n, asked); err != nil {
			return nil, err
		}
	}
	steps := append(m.Own(node.PhaseDeploy), m.plugSteps(n, node.PhaseDeploy)...)
	if fake {
		steps = slices.DeleteFunc(steps, func(s node.JobStep) bool {
			return catalog.BootsAgent(s) || s.Name == catalog.StepTearDown && !s.Plug
		})
	} else {
		if err := m.checkAgent(n); err != nil {
			return nil, err
		}
		for _, s := range m.AgentSteps {
			p := m.priority(node.PhaseDeploy, s.Interface, s.Name, s.Priority.Deploy)
			if p <= 0 || s.Name == "write_configdrive" && !instance.HasConfigDrive(n) {
				continue
			}
			steps = append(steps, catalog.InBand(s, nil, p))
		}
	}
	if !fake {
		var err error
		if steps, err = m.withStart(n, steps, asked); err != nil {
			return nil, err
		}
	}
	for _, a := range asked {
		if a.Name == "write_configdrive" && a.Priority > 0 && catalog.NoArgs(a.Args) && !instance.HasConfigDrive(n) &&
			!start.PhonesHome(steps) {
			return nil, invalidf("step write_configdrive is asked for, but there is no config drive")
		}
		if _, ok := catalog.Reserved(a.Name); ok {
			s, err := catalog.AskReserved(n, a, StaysOn(n, m.Drivers.Interface(n, "power")))
			if err != nil {
				return nil, err
			}
			if s.Priority > 0 {
				steps = append(steps, s)
			}
			continue
		}
		i := slices.IndexFunc(steps, func(s node.JobStep) bool {
			return s.Interface == a.Interface && s.Name == a.Name
		})
		if s, ok, err := m.askPlug(n, node.PhaseDeploy, a); err != nil {
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
			if !catalog.NoArgs(a.Args) && (fake || a.Name != catalog.StepBootInstance) {
				return nil, invalidf("step %s.%s takes no arguments", a.Interface, a.Name)
			}
			steps[i].Priority = a.Priority
			continue
		}
		s, err := m.AgentSteps.Ask(a)
		if err != nil {
			return nil, err
		}
		if fake {
			return nil, invalidf("step %s.%s runs in the agent, which a node with deploy interface fake has not",
				a.Interface, a.Name)
		}
		if i >= 0 {
			steps = slices.Delete(steps, i, i+1)
		}
		if a.Priority > 0 {
			steps = append(steps, catalog.InBand(s, a.Args, a.Priority))
		}
	}
	steps = catalog.Ordered(steps)
	// The agent's steps must lie where there is an agent.
	up, down := -1, len(steps)
	for i, s := range steps {
		switch {
		case catalog.BootsAgent(s):
			up = i
		case s.Name == catalog.StepTearDown:
			down = i
		}
	}
	for i, s := range steps {
		if s.InBand && (i < up || i > down || up < 0) {
			return nil, invalidf(
				"step %s.%s with priority %d does not lie between the start (100) and the end (40) of the agent",
				s.Interface, s.Name, s.Priority)
		}
	}
	if fake {
		return steps, nil
	}
	if err := start.Check(steps); err != nil {
		return nil, err
	}
	return steps, checkOrder(steps)
}

// deployOrder is what of a deployment has one order only: what is erased after an image was written is the image, what
// is added after the partition table was committed is in no table, and a machine that was started before the agent is
// turned off stays off.
var deployOrder = []string{"erase_devices_metadata", "write_image", "write_configdrive", "prepare_instance_boot",
	catalog.StepLoadKernel, catalog.StepTearDown, catalog.StepSwitchNetwork, catalog.StepBootInstance}

// checkOrder refuses a deployment that would end well, and leave a machine that does not boot or lacks what was asked
// for.
func checkOrder(steps []node.JobStep) error {
	for _, name := range []string{"write_image", "prepare_instance_boot"} {
		if !slices.ContainsFunc(steps, func(s node.JobStep) bool { return s.Interface == "deploy" && s.Name == name }) {
			return invalidf(
				"step deploy.%s can't be left out: the machine would have no system to boot; give it a priority, or don't name it in deploy_steps", name)
		}
	}
	// Files are put into the image, before or after the config drive is added to it.
	if i := slices.IndexFunc(steps, func(s node.JobStep) bool {
		return s.Interface == "deploy" && s.Name == "inject_files"
	}); i >= 0 {
		for k, s := range steps {
			if s.Interface == "deploy" &&
				(s.Name == "write_image" && k > i || s.Name == "prepare_instance_boot" && k < i) {
				return invalidf(
					"step deploy.inject_files with priority %d has to run after deploy.write_image and before deploy.prepare_instance_boot: give it a priority between theirs (79 to 61 unless they were moved)", steps[i].Priority)
			}
		}
	}
	last, before := -1, node.JobStep{}
	written, committed := slices.Index(deployOrder, "write_image"), slices.Index(deployOrder, "prepare_instance_boot")
	for _, s := range steps {
		switch s.Name {
		case catalog.StepPowerOff, catalog.StepPowerOn, catalog.StepReboot:
			// What the agent holds back of the disk until the table is committed is in its memory only.
			if last >= written && last < committed && !s.InBand && !s.Plug {
				return invalidf(
					"step %s with priority %d would restart the agent between deploy.write_image and deploy.prepare_instance_boot, which loses the end of the image: move it before the one or behind the other", s.Name, s.Priority)
			}
		}
		at := slices.Index(deployOrder, s.Name)
		if s.Interface != "deploy" || at < 0 {
			continue
		}
		if at < last {
			return invalidf(
				"step deploy.%s with priority %d would run after deploy.%s with priority %d, but has to run before it: give it a higher priority (the order is %s)",
				s.Name, s.Priority, before.Name, before.Priority, strings.Join(deployOrder, ", "))
		}
		last, before = at, s
	}
	return nil
}

// checkAgent refuses a deployment by an agent that lacks a step without which the disk would not hold what was asked
// for.
func (m Maker) checkAgent(n *node.Node) error {
	needed := []string{"write_image", "prepare_instance_boot"}
	if instance.HasConfigDrive(n) {
		needed = append(needed, "write_configdrive")
	}
	for _, name := range needed {
		if !slices.ContainsFunc(m.AgentSteps,
			func(s catalog.AgentStep) bool { return s.Name == name && s.Priority.Deploy > 0 }) {
			return invalidf("the ramdisk's agent has no deploy step %s: use a ramdisk that was built with this release",
				name)
		}
	}
	return nil
}

const loadKernelPriority = 50 // behind prepare_instance_boot, before the agent is torn down

// withStart puts into the steps of a deployment what starting the system the way that is asked for needs.
func (m Maker) withStart(n *node.Node, steps, asked []node.JobStep) ([]node.JobStep, error) {
	named := func(list []node.JobStep, name string) int {
		return slices.IndexFunc(list, func(s node.JobStep) bool {
			return s.Interface == "deploy" && s.Name == name && !s.Plug
		})
	}
	var given json.RawMessage
	if i := named(asked, catalog.StepBootInstance); i >= 0 {
		given = asked[i].Args
	}
	a, err := m.Start.Choose(n, given)
	if err != nil {
		return nil, err
	}
	if i := named(steps, catalog.StepBootInstance); i >= 0 {
		steps[i].Args = a.JSON()
	}
	if a.Method == start.Kexec && named(steps, catalog.StepLoadKernel) < 0 {
		s, ok := m.AgentSteps.Find("deploy", catalog.StepLoadKernel)
		if !ok {
			return nil, invalidf(
				"the system can't be started by kexec: the ramdisk's agent has no step deploy.%s: use a ramdisk that was built with this release, or set %s to %s", catalog.StepLoadKernel, start.KeyMethod, start.Reboot)
		}
		p := m.priority(node.PhaseDeploy, s.Interface, s.Name, loadKernelPriority)
		if p <= 0 {
			p = loadKernelPriority
		}
		steps = append(steps, catalog.InBand(s, nil, p))
	}
	if start.PhonesHome(steps) && named(steps, "write_configdrive") < 0 {
		s, ok := m.AgentSteps.Find("deploy", "write_configdrive")
		if !ok {
			return nil, invalidf(
				"sign of life phone_home: the ramdisk's agent has no deploy step write_configdrive: use a ramdisk that was built with this release")
		}
		steps = append(steps,
			catalog.InBand(s, nil, m.priority(node.PhaseDeploy, s.Interface, s.Name, s.Priority.Deploy)))
	}
	return steps, nil
}
