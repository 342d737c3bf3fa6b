package program

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/engine/start"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/node/ramdiskdeploy"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
	"github.com/ingot-metal/ingot/conductor/signoflife"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// checkAsked checks the request's arguments of the steps write_image and write_configdrive, which replace the node's
// settings, as CheckImage checks those.
func (m Planner) checkAsked(n *node.Node, asked []node.JobStep) error {
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
			if id, _ := args[key].(string); key == "image_source" {
				_, named := instance.GlanceName(id)
				if _, ok := instance.GlanceID(id); ok || named {
					return node.Invalidf("step write_image can't name an image of Glance: name it in instance_info")
				}
			}
		}
	}
	return m.Site.CheckImage(&as)
}

// onDisk lists the features of a deployment that writes a system to a disk.
func onDisk(n *node.Node) map[string]bool {
	return map[string]bool{steparg.WhenAgent: true, anyDisk: true, steparg.WhenDisk: true,
		steparg.WhenDrive: instance.HasConfigDrive(n)}
}

// customAgent is Ironic's deploy interface for sites whose own steps install the system: no step of the image is part
// of it, and what the disk boots is up to those steps. A request that names a step which writes the image has a
// deployment as with direct.
const customAgent = "custom-agent"

// custom returns the features of a deployment by a site's own steps, and how the machine starts.
func (m Planner) custom(n *node.Node, given json.RawMessage) (map[string]bool, start.Args, error) {
	if _, err := instance.RootDevice(n); err != nil {
		return nil, start.Args{}, err
	}
	if err := instance.CheckDrive(n.InstanceInfo); err != nil {
		return nil, start.Args{}, err
	}
	o := m.Start
	o.Method = "" // else a site whose systems start by kexec could have no such node
	a, err := o.Choose(n, given)
	return map[string]bool{steparg.WhenAgent: true, anyDisk: true}, a, err
}

// ofSite reports whether a deployment with these features is one by a site's own steps.
func ofSite(with map[string]bool) bool { return with[anyDisk] && !with[steparg.WhenDisk] }

// bring reports whether one of the requested steps provides something.
func (m Planner) bring(asked []node.JobStep, what string) bool {
	return slices.ContainsFunc(asked, func(a node.JobStep) bool {
		r, _ := m.AgentSteps.Find(a.Interface, a.Name)
		return a.Priority > 0 && slices.Contains(r.Provides, what)
	})
}

// has returns the features of a deployment, by the names of steparg.Row.When, and the arguments with which it starts
// its system; nil, where nothing is installed. given are the request's arguments of the step that does so.
func (m Planner) has(n *node.Node, asked []node.JobStep, given json.RawMessage) (map[string]bool, start.Args, error) {
	switch m.Drivers.Interface(n, "deploy") {
	case "fake":
		return nil, start.Args{}, nil
	case ramdiskdeploy.Interface:
		if err := m.checkWorkload(n); err != nil {
			return nil, start.Args{}, err
		}
		a, err := m.ramdiskStart(n, given)
		hot := a.Method == start.Kexec
		return map[string]bool{steparg.WhenAgent: hot, steparg.WhenLoaded: hot, steparg.WhenFromLink: !hot}, a, err
	case customAgent:
		if !m.bring(asked, "image") {
			return m.custom(n, given)
		}
	}
	if asks(asked, stepExport) {
		return m.lends(n, asked, given)
	}
	if err := m.Site.CheckImage(n); err != nil {
		return nil, start.Args{}, err
	}
	if err := m.checkAsked(n, asked); err != nil {
		return nil, start.Args{}, err
	}
	with := onDisk(n)
	a, err := m.Start.Choose(n, given)
	with[steparg.WhenKexec] = a.Method == start.Kexec
	with[steparg.WhenDrive] = with[steparg.WhenDrive] || signoflife.Has(a.Wanted(), signoflife.PhoneHome)
	return with, a, err
}

// lacking refuses a deployment by an agent that lacks a step which this version's own agent has for it.
func (m Planner) lacking(with map[string]bool) error {
	if with == nil {
		return nil // no agent is asked
	}
	for _, r := range catalog.BuiltinSteps() {
		if r.Priority[steparg.Deploy] <= 0 || !with[r.When] {
			continue
		}
		if s, _ := m.AgentSteps.Find(r.Interface, r.Name); s.Priority[steparg.Deploy] <= 0 {
			instead := ""
			if r.When == steparg.WhenKexec {
				instead = ", or set " + start.KeyMethod + " to " + start.Reboot
			}
			return node.Invalidf("the ramdisk's agent has no step %s: use a ramdisk that was built with this release%s",
				r.Title(), instead)
		}
	}
	return nil
}

// deploySteps is the usual program of a deployment with the client's steps merged in: one of the same interface and
// name replaces the usual one's arguments and priority, priority 0 leaves it out, any other joins.
func (m Planner) deploySteps(n *node.Node, asked []node.JobStep) ([]node.JobStep, error) {
	asked, err := m.byHost(n, asked)
	if err != nil {
		return nil, err
	}
	starts := func(s node.JobStep) bool {
		return s.Interface == "deploy" && s.Name == catalog.StepBootInstance && !s.Plug
	}
	var given json.RawMessage
	if i := slices.IndexFunc(asked, starts); i >= 0 {
		given = asked[i].Args
	}
	with, a, err := m.has(n, asked, given)
	if err == nil {
		err = m.lacking(with)
	}
	if err != nil {
		return nil, err
	}
	steps := m.phase(n, node.PhaseDeploy, with)
	if i := slices.IndexFunc(steps, starts); i >= 0 {
		steps[i].Args = a.JSON()
	}
	usual := slices.Clone(steps)
	for _, a := range asked {
		if steps, err = m.merge(n, steps, a, with); err != nil {
			return nil, err
		}
	}
	steps = catalog.Ordered(steps)
	if err := withinBoot(steps); err != nil || with == nil {
		return steps, err
	}
	if with[anyDisk] {
		if err := start.Check(steps); err != nil {
			return nil, err
		}
	}
	return steps, m.checkOrder(steps, usual, with)
}

// merge puts a requested step into the program of a deployment.
func (m Planner) merge(n *node.Node, steps []node.JobStep, a node.JobStep,
	with map[string]bool) ([]node.JobStep, error) {
	same := func(s node.JobStep) bool { return s.Interface == a.Interface && s.Name == a.Name }
	title := a.Interface + "." + a.Name
	if i := slices.IndexFunc(steps, same); i >= 0 && !steps[i].InBand && !steps[i].Plug {
		if _, reserved := m.Reserved(a.Name); !reserved {
			switch {
			case a.Priority == 0:
				return nil, node.Invalidf("step %s can't be left out", title)
			case !catalog.NoArgs(a.Args) && (with == nil || a.Name != catalog.StepBootInstance):
				return nil, node.Invalidf("step %s takes no arguments", title)
			}
			steps[i].Priority = a.Priority
			return steps, nil
		}
	}
	if a.Name == "write_configdrive" && a.Priority > 0 && catalog.NoArgs(a.Args) && !instance.HasConfigDrive(n) &&
		!with[steparg.WhenDrive] && !m.FromMemory(n) {
		return nil, node.Invalidf("step write_configdrive is asked for, but there is no config drive")
	}
	s, r, err := m.named(n, node.PhaseDeploy, a)
	switch {
	case err != nil:
		return nil, err
	case s.InBand && with == nil:
		return nil, noAgent(r)
	case s.InBand && !with[steparg.WhenAgent]:
		return nil, node.Invalidf(
			"step %s runs in the agent, which a workload that boots from the network does without: set %s to %s, or leave the step out", title, start.KeyMethod, start.Kexec)
	case s.InBand && !with[anyDisk] && r.When != anyDisk && r.When != steparg.WhenLoaded:
		return nil, node.Invalidf("step %s is for a system on a disk, and node %s runs from memory (deploy interface %s)",
			title, n.UUID, ramdiskdeploy.Interface)
	case s.InBand && s.Priority > 0 && ofSite(with) && (r.When == steparg.WhenDrive || r.When == steparg.WhenKexec):
		return nil, node.Invalidf(
			"step %s works on the image that deploy.write_image wrote, which deploy interface %s leaves out: name that step too, or use deploy interface direct", title, customAgent)
	}
	if s.InBand || s.Plug {
		steps = slices.DeleteFunc(steps, same)
	}
	if s.Priority > 0 {
		steps = append(steps, s)
	}
	return steps, nil
}

// withinBoot refuses steps of the agent where no agent runs.
func withinBoot(steps []node.JobStep) error {
	up := slices.IndexFunc(steps, catalog.BootsAgent)
	down := slices.IndexFunc(steps, func(s node.JobStep) bool { return s.Name == catalog.StepTearDown && !s.Plug })
	for i, s := range steps {
		if s.InBand && (up < 0 || i < up || down >= 0 && i > down) {
			return node.Invalidf(
				"step %s.%s with priority %d does not lie between the start (100) and the end (40) of the agent",
				s.Interface, s.Name, s.Priority)
		}
	}
	return nil
}

// checkOrder refuses a deployment that would succeed, but leave a machine that does not boot or lacks a requested part,
// by the places in the rows of its steps. usual are the steps that it has by itself.
func (m Planner) checkOrder(steps, usual []node.JobStep, with map[string]bool) error {
	rows := slices.Concat(m.Own, []steparg.Row(m.AgentSteps))
	row := func(s node.JobStep) steparg.Row {
		i := slices.IndexFunc(rows, func(r steparg.Row) bool { return r.Interface == s.Interface && r.Name == s.Name })
		if i < 0 || s.Plug {
			return steparg.Row{}
		}
		return rows[i]
	}
	provider := func(what string) func(node.JobStep) bool {
		return func(s node.JobStep) bool { return slices.Contains(row(s).Provides, what) }
	}
	for i, s := range steps {
		for _, what := range row(s).From {
			at := slices.IndexFunc(steps, provider(what))
			if at < 0 {
				if ofSite(with) && !s.InBand {
					break // the site's steps have put it there, or not
				}
				var lost []string
				for _, r := range rows {
					if slices.Contains(r.Provides, what) &&
						(with[r.When] || ofSite(with) && r.When == steparg.WhenDisk) {
						lost = append(lost, r.Title())
					}
				}
				return node.Invalidf(
					"step %s can't be left out: the machine would have no %s to boot; give it a priority, or don't name it in deploy_steps",
					strings.Join(lost, " or "), what)
			}
			for _, between := range steps[min(at, i):i] {
				// What an agent's step needs is in the memory of the agent.
				switch between.Name {
				case catalog.StepPowerOff, catalog.StepPowerOn, catalog.StepReboot:
					if s.InBand && !between.InBand && !between.Plug {
						return node.Invalidf(
							"step %s with priority %d would restart the agent between %s and %s, which loses the end of the %s: move it before the one or behind the other",
							between.Name, between.Priority, row(steps[at]).Title(), row(s).Title(), what)
					}
				}
			}
		}
		for _, before := range steps[:i] {
			if a, b := row(before), row(s); a.Name != "" && b.Name != "" && steparg.Precedes(rows, b, a) {
				var order []string
				for _, s := range usual {
					order = append(order, s.Name)
				}
				what := "give it a higher priority, or the other a lower one"
				for _, r := range []steparg.Row{a, b} {
					if len(r.After) > 0 && len(r.Before) > 0 {
						what = fmt.Sprintf("%s has its place behind %s and before %s, at a priority between theirs", r.Name,
							strings.Join(r.After, ", "), strings.Join(r.Before, ", "))
					}
				}
				return node.Invalidf(
					"step %s with priority %d would run after %s with priority %d, but has to run before it: %s (the usual order is %s)",
					b.Title(), s.Priority, a.Title(), before.Priority, what, strings.Join(order, ", "))
			}
		}
	}
	return nil
}
