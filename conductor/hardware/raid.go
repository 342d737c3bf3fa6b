package hardware

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// RAIDLevels are those a logical disk may have.
var RAIDLevels = []string{"JBOD", "0", "1", "2", "5", "6", "1+0", "5+0", "6+0"}

// VolumeArgs are the arguments of steps that make logical disks, in Ironic's words; RAIDConfigArg is the one of
// apply_configuration beside them.
var (
	VolumeArgs = []Arg{
		{Name: "create_root_volume", Type: "boolean",
			Description: "Setting this to 'False' indicates not to create root volume that is specified in the node's target_raid_config. Default value is 'True'."},
		{Name: "create_nonroot_volumes", Type: "boolean",
			Description: "Setting this to 'False' indicates not to create non-root volumes (all except the root volume) in the node's target_raid_config. Default value is 'True'."},
		{Name: "delete_existing", Type: "boolean",
			Description: "Setting this to 'True' indicates to delete existing RAID configuration prior to creating the new configuration. Default value is 'False'."},
	}
	RAIDConfigArg = Arg{Name: "raid_config", Type: "object", Required: true,
		Description: "The RAID configuration to apply."}
)

// GenericRAID knows the logical disks that all RAID interfaces share, in Ironic's words. Implementations embed it.
type GenericRAID struct{}

// Properties implements RAID.
func (GenericRAID) Properties(*node.Node) ([]Property, error) {
	return []Property{
		{"raid_level", "RAID level for the logical disk. Valid values are 'JBOD', '0', '1', '2', '5', '6', '1+0', '5+0' and '6+0'. Required."},
		{"size_gb", "Size in GiB (Integer) for the logical disk. Use 'MAX' as size_gb if this logical disk is supposed to use the rest of the space available. Required."},
		{"volume_name", "Name of the volume to be created. If this is not specified, it will be auto-generated. Optional."},
		{"is_root_volume", "Specifies whether this disk is a root volume. By default, this is False. Optional."},
		{"share_physical_disks",
			"Specifies whether other logical disks can share physical disks with this logical disk. By default, this is False. Optional."},
		{"disk_type", "The type of disk preferred. Valid values are 'hdd' and 'ssd'. If this is not specified, disk type will not be a selection criterion for choosing backing physical disks. Optional."},
		{"interface_type",
			"The interface type of disk. Valid values are 'sata', 'scsi' and 'sas'. If this is not specified, interface type will not be a selection criterion for choosing backing physical disks. Optional."},
		{"number_of_physical_disks",
			"Number of physical disks to use for this logical disk. By default, the driver uses the minimum number of disks required for that RAID level. Optional."},
		{"controller", "Controller to use for this logical disk. If not specified, the driver will choose a suitable RAID controller on the bare metal node. Optional."},
		{"physical_disks",
			"The physical disks to use for this logical disk. If not specified, the driver will choose suitable physical disks to use. Optional."},
	}, nil
}

// Check implements RAID. Faults have the texts that clients of the API know.
func (GenericRAID) Check(_ *node.Node, config map[string]any) error {
	if len(config) == 0 {
		return nil
	}
	bad := func(format string, args ...any) error {
		return Invalidf("RAID config validation error: "+format, args...)
	}
	for k := range config {
		if k != "logical_disks" {
			return bad("Additional properties are not allowed ('%s' was unexpected)", k)
		}
	}
	disks, ok := config["logical_disks"].([]any)
	if !ok {
		return bad("%s is not of type 'array'", repr(config["logical_disks"]))
	}
	if len(disks) == 0 {
		return bad("[] is too short")
	}
	roots := 0
	for _, v := range disks {
		d, ok := v.(map[string]any)
		if !ok {
			return bad("%s is not of type 'object'", repr(v))
		}
		if fault := checkDisk(d); fault != "" {
			return bad("%s", fault)
		}
		if d["is_root_volume"] == true {
			roots++
		}
	}
	if roots > 1 {
		return Invalidf("Raid config cannot have more than one root volume. %d root volumes were specified", roots)
	}
	return nil
}

func checkDisk(d map[string]any) string {
	oneOf := func(v any, allowed ...string) string {
		if s, ok := v.(string); ok && slices.Contains(allowed, s) {
			return ""
		}
		return fmt.Sprintf("%s is not one of ['%s']", repr(v), strings.Join(allowed, "', '"))
	}
	is := func(v any, kind string) string {
		_, text := v.(string)
		_, flag := v.(bool)
		if text && kind == "string" || flag && kind == "boolean" {
			return ""
		}
		return fmt.Sprintf("%s is not of type '%s'", repr(v), kind)
	}
	for _, name := range []string{"raid_level", "size_gb"} {
		if _, ok := d[name]; !ok {
			return fmt.Sprintf("'%s' is a required property", name)
		}
	}
	checks := map[string]func(v any) string{
		"raid_level": func(v any) string { return oneOf(v, RAIDLevels...) },
		"size_gb": func(v any) string {
			f, ok := exact.Float(v)
			if v == "MAX" || ok && f >= 0 && f == float64(int64(f)) {
				return ""
			}
			return repr(v) + " is not valid under any of the given schemas"
		},
		"volume_name":          func(v any) string { return is(v, "string") },
		"is_root_volume":       func(v any) string { return is(v, "boolean") },
		"share_physical_disks": func(v any) string { return is(v, "boolean") },
		"disk_type":            func(v any) string { return oneOf(v, "hdd", "ssd") },
		"interface_type":       func(v any) string { return oneOf(v, "sata", "scsi", "sas") },
		"number_of_physical_disks": func(v any) string {
			if f, ok := exact.Float(v); !ok || f != float64(int64(f)) {
				return repr(v) + " is not of type 'integer'"
			} else if f <= 0 {
				return repr(v) + " is less than or equal to the minimum of 0"
			}
			return ""
		},
		"controller": func(v any) string { return is(v, "string") },
		"physical_disks": func(v any) string {
			list, ok := v.([]any)
			strings, objects := true, true
			for _, e := range list {
				_, s := e.(string)
				_, o := e.(map[string]any)
				strings, objects = strings && s, objects && o
			}
			if !ok || !strings && (!objects || len(list) < 2) {
				return repr(v) + " is not valid under any of the given schemas"
			}
			return ""
		},
	}
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		if v, ok := d[name]; ok {
			if fault := checks[name](v); fault != "" {
				return fault
			}
		}
	}
	for name := range d {
		if checks[name] == nil {
			return fmt.Sprintf("Additional properties are not allowed ('%s' was unexpected)", name)
		}
	}
	if _, ok := d["physical_disks"]; ok && d["controller"] == nil {
		return "'controller' is a dependency of 'physical_disks'"
	}
	return ""
}

// repr writes a JSON value as clients know it from Python.
func repr(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case string:
		return "'" + v + "'"
	}
	return fmt.Sprint(v)
}

// CheckSoftwareRAID returns an error for a configuration that the agent can't create on a machine's disks, in steps
// such as raid.create_configuration, by the rules of Ironic's agent. It does not limit target_raid_config of a node,
// which Ironic accepts unchecked, but the steps, before a machine is booted for nothing.
func CheckSoftwareRAID(config map[string]any) error {
	if err := (GenericRAID{}).Check(nil, config); err != nil || len(config) == 0 {
		return err
	}
	disks, _ := config["logical_disks"].([]any)
	if len(disks) > 2 {
		return Invalidf("Software RAID configuration supports only one or two logical disks, not %d", len(disks))
	}
	names := map[any]bool{}
	named := 0 // how many say which disks they are made of
	for _, v := range disks {
		if d, _ := v.(map[string]any); d["physical_disks"] != nil {
			named++
		}
	}
	for i, v := range disks {
		d, _ := v.(map[string]any)
		if c := d["controller"]; c != nil && c != "software" {
			return Invalidf("Logical disk %d: the controller of software RAID is 'software', not %s", i+1, repr(c))
		}
		if l := d["raid_level"]; !slices.Contains([]any{"0", "1", "1+0", "5", "6"}, l) {
			return Invalidf("Logical disk %d: software RAID has the levels 0, 1, 1+0, 5 and 6, not %s", i+1, repr(l))
		}
		switch {
		case i == 0 && d["raid_level"] != "1":
			return Invalidf("Software RAID Configuration requires RAID-1 for the first logical disk")
		case i > 0 && d["is_root_volume"] == true:
			return Invalidf("Software RAID: the root volume must be the first logical disk")
		case exact.Plain(d["size_gb"]) == float64(0):
			return Invalidf("Logical disk %d: a size of 0 GiB can't be made", i+1)
		case d["size_gb"] == "MAX" && i < len(disks)-1 && named < len(disks):
			return Invalidf("Software RAID: only the last logical disk on the same disks can have the size MAX")
		}
		if name, ok := d["volume_name"].(string); ok {
			if len(name) > 26 || strings.ContainsAny(name, ":/\n\x00") {
				return Invalidf(
					"Logical disk %d: the name of a software RAID has up to 26 characters, no colon and no slash", i+1)
			}
			if names[name] && name != "" {
				return Invalidf("Software RAID: two logical disks have the name %s", repr(name))
			}
			names[name] = true
		}
	}
	return nil
}
