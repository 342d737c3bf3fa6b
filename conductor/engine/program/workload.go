package program

import (
	"encoding/json"
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

// FromMemory reports whether a node's instance is a workload of conductor/node/ramdiskdeploy.
func (m Planner) FromMemory(n *node.Node) bool {
	return m.Drivers.Interface(n, "deploy") == ramdiskdeploy.Interface
}

// Disc returns the address of the ISO image that a node's instance is, if it runs from memory; "" when it is no ISO.
func (m Planner) Disc(n *node.Node) string {
	if !m.FromMemory(n) {
		return ""
	}
	w, err := ramdiskdeploy.Of(n, m.Site.ImageBase)
	if err != nil {
		return "" // which was refused when it was deployed
	}
	return w.ISO
}

// checkWorkload refuses a workload that could not be booted.
func (m Planner) checkWorkload(n *node.Node) error {
	w, err := ramdiskdeploy.Of(n, m.Site.ImageBase)
	if err == nil && w.Drive != nil {
		_, err = w.Seed(n.UUID, time.Now())
	}
	if err != nil {
		return node.Invalidf("%s", err)
	}
	return nil
}

// ramdiskStart decides how the workload is first started: by kexec if that was requested, or if an agent is there
// anyway and nothing else was requested.
func (m Planner) ramdiskStart(n *node.Node, asked json.RawMessage) (start.Args, error) {
	a, err := m.Start.Choose(n, asked)
	if err != nil {
		return a, err
	}
	if signoflife.Has(a.Wanted(), signoflife.PhoneHome) {
		return a, node.Invalidf(
			"the sign of life phone_home can't be asked of a workload that runs from memory, which gets its config drive as it was handed in: ask for another sign (%s)", start.KeySigns)
	}
	var given struct {
		Method string `json:"method"`
	}
	if !catalog.NoArgs(asked) {
		if err := json.Unmarshal(asked, &given); err != nil {
			return a, node.Invalidf("arguments of step deploy.%s are not a JSON object: %v", catalog.StepBootInstance, err)
		}
	}
	own, _ := n.InstanceInfo[start.KeyMethod].(string)
	ofNode, _ := n.DriverInfo[start.KeyMethod].(string)
	_, able := m.AgentSteps.Find("deploy", catalog.StepLoadRamdisk)
	switch {
	case a.Method == start.Kexec && !able:
		return a, node.Invalidf(
			"the workload can't be started by kexec: the ramdisk's agent has no step deploy.%s: use a ramdisk that was built with this release, or set %s to %s", catalog.StepLoadRamdisk, start.KeyMethod, start.Reboot)
	case a.Method == "" && able && given.Method+own+ofNode == "":
		if b := n.Boot; b != nil && b.Kept && b.Connected && !b.Ended {
			a.Method = start.Kexec
		}
	}
	return a, nil
}

// workloadArgs are the arguments of load_ramdisk, as instance_info has them.
func (m Planner) workloadArgs(n *node.Node, args map[string]any) error {
	w, err := ramdiskdeploy.Of(n, m.Site.ImageBase)
	if err != nil {
		return node.Invalidf("%s", err)
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
