package program

import (
	"encoding/json"
	"slices"

	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/engine/start"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/signoflife"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// A deployment that names the step export_disk has it in place of write_image: the agent lends the disk to another
// host, whose program writes it, and the usual steps go on with what is there.

// stepExport is the agent's step that lends the disk.
const stepExport = "export_disk"

// lent is the feature of a deployment whose disk another host writes.
const lent = "export"

// asks reports whether a request has a step of the agent's deploy interface, to be run.
func asks(asked []node.JobStep, name string) bool {
	return slices.ContainsFunc(asked, func(a node.JobStep) bool {
		return a.Interface == "deploy" && a.Name == name && a.Priority > 0
	})
}

// lends returns the features of a deployment whose disk another host writes, and how the machine starts.
func (m Planner) lends(n *node.Node, asked []node.JobStep, given json.RawMessage) (map[string]bool, start.Args, error) {
	if asks(asked, "write_image") {
		return nil, start.Args{}, node.Invalidf(
			"steps write_image and %s both write the disk: name one of them", stepExport)
	}
	if _, err := instance.RootDevice(n); err != nil {
		return nil, start.Args{}, err
	}
	if err := instance.CheckDrive(n.InstanceInfo); err != nil {
		return nil, start.Args{}, err
	}
	with := onDisk(n)
	a, err := m.Start.Choose(n, given)
	with[lent], with[steparg.WhenKexec] = true, a.Method == start.Kexec
	with[steparg.WhenDrive] = with[steparg.WhenDrive] || signoflife.Has(a.Wanted(), signoflife.PhoneHome)
	return with, a, err
}

// mayLend refuses the step where it is not allowed.
func (m Planner) mayLend(phase node.Phase, a node.JobStep) error {
	switch {
	case a.Interface != "deploy" || a.Name != stepExport || a.Priority == 0 && phase == node.PhaseDeploy:
		return nil
	case !m.AllowExport:
		return node.Invalidf(
			"step %s lends the machine's disk to another host, which this conductor does not allow: have its export.allow set", stepExport)
	case phase != node.PhaseDeploy:
		return node.Invalidf("step %s is part of a deployment, in place of write_image", stepExport)
	}
	return nil
}
