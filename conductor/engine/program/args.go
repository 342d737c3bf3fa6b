package program

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
	"github.com/ingot-metal/ingot/proto/drive"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// Args are the arguments of a step of a job as the agent gets them.
func (m Planner) Args(n *node.Node, j *node.Job, s node.JobStep) (json.RawMessage, error) {
	args, err := m.stepArgs(n, s)
	switch {
	case err != nil:
		return nil, err
	case s.Name == "write_configdrive":
		return m.Start.AddPhoneHome(n, j, args)
	case m.writtenByHost(n, s):
		return oncePassword(args, j.PlanID)
	}
	return args, nil
}

// stepArgs returns a step's arguments: the node's, overridden by those that the client sent with the step.
func (m Planner) stepArgs(n *node.Node, s node.JobStep) (json.RawMessage, error) {
	args := map[string]any{}
	raidArgs(n, s, args)
	if err := m.siteArgs(n, s, args); err != nil {
		return nil, err
	}
	switch s.Name {
	case "write_image":
		if err := m.Site.ImageArgs(n, args); err != nil {
			return nil, err
		}
	case "inspect":
		if t := m.LLDPTimeout; t > 0 {
			args["lldp_timeout"] = int(t.Seconds())
		}
	case "rescue":
		if s.Interface == "rescue" {
			if err := instance.RescueArgs(n, args); err != nil {
				return nil, err
			}
		}
	case "write_configdrive":
		if v := n.InstanceInfo["configdrive"]; v != nil {
			args["configdrive"] = v
		}
		if url, _ := args["configdrive"].(string); drive.IsURL(url) {
			instance.CA(n, args)
		}
	case catalog.StepLoadRamdisk:
		if err := m.workloadArgs(n, args); err != nil {
			return nil, err
		}
	case "inject_files", stepExport:
		if s.Name != stepExport {
			instance.CA(n, args)
		}
		hints, err := instance.RootDevice(n)
		if err != nil {
			return nil, err
		}
		if hints != nil {
			args["root_device"] = hints
		}
	case "erase_devices_metadata", "erase_devices", "erase_devices_express", "burnin_disk":
		if v := n.Properties["skip_block_devices"]; v != nil {
			args["skip_block_devices"] = v
		}
		if known := arrays(n.RAIDConfig); len(known) > 0 {
			args["arrays"] = known
		}
	}
	if len(s.Args) > 0 {
		given := map[string]any{}
		if err := exact.Unmarshal(s.Args, &given); err != nil {
			return nil, fmt.Errorf("read arguments of step %s: %w", s.Name, err)
		}
		maps.Copy(args, given)
	}
	if err := injectedFiles(n, s, args); err != nil {
		return nil, err
	}
	b, err := json.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("make arguments of step %s: %w", s.Name, err)
	}
	return b, nil
}

// siteArgs adds to a step of the site those arguments that its manifest calls "given": what write_image and
// write_configdrive are told about the node's image, its disk and its config drive.
func (m Planner) siteArgs(n *node.Node, s node.JobStep, args map[string]any) error {
	r, _ := m.AgentSteps.Find(s.Interface, s.Name)
	if _, own := catalog.BuiltinSteps().Find(s.Interface, s.Name); own || !slices.ContainsFunc(r.Args,
		func(a steparg.Arg) bool { return a.Given }) {
		return nil
	}
	known := map[string]any{}
	if err := m.Site.ImageArgs(n, known); err != nil {
		return err
	}
	if instance.HasConfigDrive(n) {
		known["configdrive"] = n.InstanceInfo["configdrive"]
	}
	for _, a := range r.Args {
		if v, ok := known[a.Name]; ok && a.Given && v != "" {
			args[a.Name] = v
		}
	}
	return nil
}

// injectedFiles puts the files that the node says before those that the step is given, as Ironic's agent does it.
func injectedFiles(n *node.Node, s node.JobStep, args map[string]any) error {
	const key = "inject_files"
	if s.Name != key || n.Properties[key] == nil {
		return nil
	}
	files, ok := n.Properties[key].([]any)
	if !ok {
		return node.Invalidf("inject_files of the node's properties is not a list of files")
	}
	switch given := args["files"].(type) {
	case nil:
	case []any:
		files = append(slices.Clone(files), given...)
	default: // refused by its declaration
		return nil
	}
	args["files"] = files
	return nil
}

// raidArgs adds the node's own arguments to a step of the interface raid.
func raidArgs(n *node.Node, s node.JobStep, args map[string]any) {
	if s.Interface == "raid" && s.Name == "create_configuration" && len(n.TargetRAID) > 0 {
		args["target_raid_config"] = n.TargetRAID
	}
}

// arrays are the UUIDs of the arrays in a raid_config.
func arrays(config map[string]any) (uuids []string) {
	disks, _ := config["logical_disks"].([]any)
	for _, v := range disks {
		d, _ := v.(map[string]any)
		if id, _ := d["uuid"].(string); id != "" {
			uuids = append(uuids, id)
		}
	}
	return uuids
}

// Shown returns arguments of a step without secrets, as declared by this version's own agent and by the ramdisk's.
func (m Planner) Shown(args json.RawMessage) json.RawMessage {
	if len(args) == 0 {
		return args
	}
	return redact.JSON(args, steparg.Secrets(slices.Concat(catalog.BuiltinSteps(), m.AgentSteps))...)
}
