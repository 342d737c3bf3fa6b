package hook

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/ingot-metal/ingot/proto/rootdevice"
)

// Serials returns the serial numbers of an inventory's disks, as far as known.
func Serials(inventory map[string]any) []string {
	var out []string
	for _, d := range list(inventory["disks"]) {
		if s := text(object(d)["serial"]); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// raidDevice finds the disk that a RAID controller made between two inspections.
func raidDevice(f *Found, s *Settings) error {
	if !blank(f.Node.Properties["root_device"]) {
		return nil // it is known
	}
	now := Serials(f.Inventory)
	if len(now) == 0 {
		f.note("WARNING", "the inventory has no disks with a serial number, so no new RAID device can be told")
		return nil
	}
	if f.LastSerials == nil {
		return nil // the first inspection
	}
	var fresh []string
	for _, serial := range now {
		if !slices.Contains(f.LastSerials, serial) {
			fresh = append(fresh, serial)
		}
	}
	switch len(fresh) {
	case 0:
		f.note("WARNING", "no disk is new since the inspection before, so no RAID device can be told")
	case 1:
		f.setProperty(s, "root_device", map[string]any{"serial": fresh[0]})
	default:
		f.note("WARNING",
			"%d disks are new since the inspection before, so it can't be told which one is the RAID device",
			len(fresh))
	}
	return nil
}

func parseHints(v any) (rootdevice.Hints, error) {
	if t, ok := v.(string); ok {
		return rootdevice.ParseHints(json.RawMessage(t))
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return rootdevice.ParseHints(b)
}

// rootDevice finds the disk that the hints in the node's properties choose. Without hints it is the one that the agent
// would choose.
func rootDevice(f *Found, s *Settings) error {
	hints, err := parseHints(f.Node.Properties["root_device"])
	if err != nil {
		return fmt.Errorf("root_device in the node's properties can't be used: %w", err)
	}
	if hints != nil {
		disks, err := usable(f)
		if err != nil {
			return err
		}
		x := rootdevice.Explain(disks, hints)
		if x.Err != nil && f.OutOfBand { // which does not know the names that the system gives them
			f.note("WARNING", "root_device in the node's properties fits no disk that the controller lists: %v", x.Err)
			return nil
		}
		if x.Err != nil {
			return fmt.Errorf("%w: %s", x.Err, x.Err.Remedy)
		}
		for _, d := range list(f.Inventory["disks"]) {
			if text(object(d)["name"]) == x.Chosen.Name {
				chosen := map[string]any{"why": x.Why}
				maps.Copy(chosen, object(d))
				f.PluginData["root_disk"] = chosen
			}
		}
	}
	size := int64(0)
	if root := object(f.PluginData["root_disk"]); root != nil {
		if size = number(root["size"]) >> 30; size == 0 {
			f.note("WARNING", "the root disk %s is smaller than 1 GiB, or does not tell its size", text(root["name"]))
		} else if s.DiskSpacing {
			size--
		}
	}
	f.PluginData["local_gb"] = size
	f.setProperty(s, "local_gb", size)
	return nil
}

// usable is the disks that skip_block_devices leaves.
func usable(f *Found) ([]rootdevice.Disk, error) {
	var disks []rootdevice.Disk
	b, err := json.Marshal(list(f.Inventory["disks"]))
	if err == nil {
		err = json.Unmarshal(b, &disks)
	}
	if err != nil {
		return nil, fmt.Errorf("read the inventory's disks: %w", err)
	}
	for _, skip := range list(plain(f.Node.Properties["skip_block_devices"])) {
		hints, err := parseHints(skip)
		if err != nil {
			return nil, fmt.Errorf("skip_block_devices in the node's properties can't be used: %w", err)
		}
		if hints != nil {
			disks = slices.DeleteFunc(disks, hints.Fit)
		}
	}
	return disks, nil
}
