package steps

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/agent/step"
)

// node is the part of a command's node that matters here.
type node struct {
	UUID         string         `json:"uuid"`
	DriverInfo   map[string]any `json:"driver_info"`
	Internal     map[string]any `json:"driver_internal_info"`
	InstanceInfo map[string]any `json:"instance_info"`
	Properties   map[string]any `json:"properties"`
	TargetRAID   map[string]any `json:"target_raid_config"`
	RAIDConfig   map[string]any `json:"raid_config"`
}

func parseNode(raw json.RawMessage) (node, error) {
	var n node
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&n); err != nil || n.UUID == "" {
		return n, errors.New("node is no object of a node, with its uuid")
	}
	return n, nil
}

// rootDevice is the hints for the root disk: the instance's before the node's own.
func (n node) rootDevice() any {
	if v := n.InstanceInfo["root_device"]; v != nil {
		return v
	}
	return n.Properties["root_device"]
}

// arrays are the UUIDs of the arrays that create_configuration reported.
func (n node) arrays() (uuids []string) {
	disks, _ := n.RAIDConfig["logical_disks"].([]any)
	for _, v := range disks {
		d, _ := v.(map[string]any)
		if id, _ := d["uuid"].(string); id != "" {
			uuids = append(uuids, id)
		}
	}
	return uuids
}

// takes reports whether a step declares an argument.
func takes(s step.Step, name string) bool {
	return slices.ContainsFunc(s.Args, func(a step.Arg) bool { return a.Name == name })
}

// argsOf makes the arguments of a step: those that Ironic's agent takes from the node, then those of the command.
func argsOf(s step.Step, n node, given json.RawMessage, guard bool) (json.RawMessage, error) {
	own := map[string]any{}
	dec := json.NewDecoder(bytes.NewReader(given))
	dec.UseNumber()
	if len(given) > 0 {
		if err := dec.Decode(&own); err != nil {
			return nil, step.Failf("give the step's arguments as an object", "the arguments of %s are no object", s.Name)
		}
	}
	args := map[string]any{}
	switch s.Name {
	case "erase_devices", "erase_devices_express", "erase_devices_metadata":
		n.eraseArgs(s, args)
		if !guard {
			args["guard_special_filesystems"] = false
		}
	case "create_configuration":
		if len(n.TargetRAID) > 0 {
			args["target_raid_config"] = n.TargetRAID
		}
	case "burnin_cpu":
		number(args, "runtime", n.DriverInfo["agent_burnin_cpu_timeout"])
	case "burnin_memory":
		number(args, "runtime", n.DriverInfo["agent_burnin_memory_timeout"])
		percent(args, "percent", n.DriverInfo["agent_burnin_memory_vm-bytes"])
	case "burnin_disk":
		number(args, "loops", n.DriverInfo["agent_burnin_fio_disk_loops"])
	case "burnin_network":
		number(args, "runtime", n.DriverInfo["agent_burnin_fio_network_runtime"])
		pair, _ := n.DriverInfo["agent_burnin_fio_network_config"].(map[string]any)
		if pair == nil && own["partner"] == nil {
			return nil, step.Failf("set agent_burnin_fio_network_config in driver_info to an object with partner and role",
				"the machine's partner for burnin_network is not known: a coordination service is not asked")
		}
		for _, key := range []string{"partner", "role"} {
			if v := pair[key]; v != nil {
				args[key] = v
			}
		}
	case "inject_files":
		if v := n.rootDevice(); v != nil {
			args["root_device"] = v
		}
		if v := n.Properties["inject_files"]; v != nil {
			args["files"] = v
		}
	}
	if takes(s, "skip_block_devices") {
		if v := n.Properties["skip_block_devices"]; v != nil {
			args["skip_block_devices"] = v
		}
		if a := n.arrays(); len(a) > 0 && takes(s, "arrays") {
			args["arrays"] = a
		}
	}
	maps.Copy(args, own)
	b, err := json.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("make the arguments of %s: %w", s.Name, err)
	}
	return b, nil
}

// eraseArgs takes the conductor's settings for erasing, which it leaves in driver_internal_info.
func (n node) eraseArgs(s step.Step, args map[string]any) {
	number(args, "concurrency", n.Internal["disk_erasure_concurrency"])
	if n.Internal["agent_erase_skip_read_only"] == true {
		args["skip_read_only"] = true
	}
	if !takes(s, "continue_if_secure_erase_failed") {
		return
	}
	for _, key := range []string{"agent_continue_if_secure_erase_failed", "agent_continue_if_ata_erase_failed"} {
		if n.Internal[key] == true {
			args["continue_if_secure_erase_failed"] = true
		}
	}
}

// number sets an argument to a number, or to the number in a string, as driver_info has both.
func number(args map[string]any, name string, v any) {
	switch v := v.(type) {
	case json.Number:
		args[name] = v
	case string:
		if f, err := strconv.ParseFloat(v, 64); err == nil {
			args[name] = f
		}
	}
}

// percent sets an argument to the number of a string like "98%".
func percent(args map[string]any, name string, v any) {
	if s, ok := v.(string); ok && strings.HasSuffix(s, "%") {
		number(args, name, strings.TrimSuffix(s, "%"))
	}
}

// resultOf is a step's result in the form of Ironic's agent.
func resultOf(s step.Step, result json.RawMessage) (any, error) {
	if s.Interface == "raid" && (s.Name == "create_configuration" || s.Name == "apply_configuration") {
		// The conductor stores it as the node's raid_config.
		var r struct {
			RAIDConfig json.RawMessage `json:"raid_config"`
		}
		if err := json.Unmarshal(result, &r); err != nil || len(r.RAIDConfig) == 0 {
			return nil, fmt.Errorf("the result of %s has no raid_config: this is a bug of the agent", s.Name)
		}
		return r.RAIDConfig, nil
	}
	return result, nil
}
